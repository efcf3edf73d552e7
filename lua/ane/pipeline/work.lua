--- The work of the ranks other than 0: they load their layers and run them when rank 0 orders it.
-- Needs ane.core, ane.model.loader, ane.pipeline.head, ane.pipeline.links, ane.pipeline.orders, ane.recipe and ane.util.isa.
-- Usage: `work.run(team, { threads = 2 })`

local core = require "ane.core"
local head = require "ane.pipeline.head"
local isa = require "ane.util.isa"
local links = require "ane.pipeline.links"
local loader = require "ane.model.loader"
local orders = require "ane.pipeline.orders"
local recipe = require "ane.recipe"

local M = {}

-- heads: groups with output rows whose hidden states have not arrived, oldest first. own: on the last rank, the hidden states (bytes) of
-- such groups that it has computed and not yet used, oldest first. gives_rows: this rank computes the whole head and sends the rows to
-- rank 0.
local Worker = {}
Worker.__index = Worker

--- Adds a rank's part of the head to the facts of its stage.
-- @param info of its program
-- @param part of ane.pipeline.head, or nil
function M.add_info(info, part)
  if not part then return info end
  local more = part.program:info()
  for _, key in ipairs { "weight_bytes", "stored_bytes", "scratch_bytes", "steps" } do info[key] = info[key] + more[key] end
  table.move(more.matrices, 1, #more.matrices, #info.matrices + 1, info.matrices)
  return info
end

--- What a rank reports before rank 0 chooses the cut.
-- @param measure true: measure the speed, which takes half a second and half a gigabyte of memory
-- @return {free (bytes of free memory), threads, speed (bytes read per second; if it is not measured, the number of threads)}; or nil,
-- message, code
function M.facts(threads, measure)
  local free, limits = core.memory().available, nil
  if measure then
    local message, code
    limits, message, code = core.limits(threads, (isa.choose()))
    if not limits then return nil, message, code end
  end
  return { free = free, threads = threads, speed = limits and limits.read or threads }
end

--- The options of a program that is a stage of a team's pipeline.
-- @param team the ranks
-- @param from, to body steps
-- @param before nil, or function() that is called before the first message is sent
-- @param rows nil, or function(bytes) that takes the hidden states of output rows: the stage has the tail without the head
function M.stage(team, from, to, fp16, before, rows)
  local rank = team.rank
  return {
    from = from, to = to, fp16 = fp16, tail = rows and "no-head" or "all",
    receive = function() return team:take(rank - 1, "A") end,
    send = function(bytes)
      if before then before() end
      if rows then return rows(bytes) end
      return team:send(rank + 1, "A", bytes)
    end,
  }
end

--- The options of a program that has some rows of each matrix.
-- @param before nil, or function() that is called before each message is sent or awaited
function M.tensor(team, before)
  return {
    rank = team.rank, ranks = team.size, shared = team.shared, shared_bytes = team.shared and team.shared_bytes,
    begin = before or function() return true end,
    wait = function(rank, seconds) return team:look(rank, seconds) end,
    receive = function(rank)
      if before then before() end
      return team:take(rank, "A")
    end,
    send = function(bytes, to_first)
      if before then before() end
      if to_first then return team:send(0, "A", bytes) end
      return team:tell("A", bytes)
    end,
  }
end

local function is_last(team) return team.rank == team.size - 1 end

-- Sends the hidden states of output rows to all ranks' parts of the head, this rank's among them.
local function send_values(self, bytes)
  table.insert(self.own, bytes)
  return self.team:tell("N", bytes)
end

-- Computes this rank's part of the head for all output rows whose hidden states have arrived.
-- @return true: there were some; false: there were none; or nil, message, code
local function compute_heads(self)
  local team, busy = self.team, false
  while true do
    local bytes
    if is_last(team) then
      bytes = table.remove(self.own, 1)
    else
      bytes = team:has(team.size - 1, "N")
    end
    if not bytes then return busy end
    local group = table.remove(self.heads, 1)
    if self.head then
      local rows, message, code = self.head:rows(bytes, (orders.wanted(group)))
      if not rows then return nil, message, code end
      local ok
      ok, message, code = team:send(0, "V", orders.rows(rows))
      if not ok then return nil, message, code end
    end
    busy = true
  end
end

-- Plans this rank's part of a divided head, after its stage of the graph.
local function plan_head(self, graph, job)
  local rank = self.team.rank
  local from, to = job.head[rank + 1], job.head[rank + 2]
  if from < to then
    local message, code
    self.head, message, code = head.open(graph, job.options, { from = from, to = to, steps = job.cuts[#job.cuts], fp16 = job.fp16 })
    if not self.head then return nil, message, code end
  end
  self.team.between = function() return compute_heads(self) end
  return true
end

-- Plans the stage of this rank.
local function stage_of(self, job)
  local rank = self.team.rank
  local rows = job.head and is_last(self.team) and function(bytes) return send_values(self, bytes) end
  return M.stage(self.team, job.cuts[rank + 1], job.cuts[rank + 2], job.fp16, nil, rows)
end

-- Plans this rank's part of the model. job: what rank 0 sent.
local function plan(self, job)
  local team = self.team
  local source, message, code = core.open(job.path)
  if not source then return nil, message, code end
  self.source = source
  local r, cfg
  r, cfg, code = loader.identify(source, job.path, { recipe = job.recipe })
  if not r then return nil, cfg, code end
  cfg.soft_experts = job.soft_experts
  local graph
  graph, message, code = recipe.build(r, cfg, source)
  if not graph then return nil, message, code end
  local _ <close> = graph
  local ok
  ok, message, code = graph:passes(job.pipeline)
  if not ok then return nil, message, code end
  local identity
  identity, message, code = graph:identity()
  if not identity then return nil, message, code end
  if ("%016x"):format(identity) ~= job.identity then
    return nil, job.path .. ": has another model than rank 0", "invalid"
  end
  local options = job.options
  options.threads = self.opts.threads
  if job.tensor then
    options.tensor = M.tensor(team)
  else
    options.stage = stage_of(self, job)
  end
  self.program, message, code = core.program(graph, options)
  if not self.program then return nil, message, code end
  if job.head then
    ok, message, code = plan_head(self, graph, job)
    if not ok then return nil, message, code end
  end
  self.gives_rows = is_last(team) and not job.head and not job.tensor
  local info = M.add_info(self.program:info(), self.head)
  for _, m in ipairs(info.matrices) do m.input = nil end
  info.resident, info.rank, info.host = core.memory().resident, team.rank, team.host
  return core.json_encode(info)
end

-- Replies to an order: "+" and a text (ok, if it is a string), or "-", code, newline and message.
local function acknowledge(self, ok, message, code)
  if ok then return self.team:send(0, "K", "+" .. (type(ok) == "string" and ok or "")) end
  return self.team:send(0, "K", ("-%s\n%s"):format(code or "io", message))
end

-- The file of a session's part on this rank.
local function part_of(self, path) return ("%s.rank%d"):format(path, self.team.rank) end

-- Closes the model and its sessions.
local function drop(self)
  for _, s in pairs(self.sessions) do s:close() end
  self.sessions = {}
  if self.head then self.head:close() end
  if self.program then self.program:close() end
  if self.source then self.source:close() end
  self.program, self.source, self.head, self.heads, self.own, self.team.between = nil, nil, nil, {}, {}, nil
end

-- Executes the order of a run.
local function run(self, text)
  local sessions, team = self.sessions, self.team
  local function session(id) return sessions[id] end
  local groups = orders.read_run(text)
  for _, group in ipairs(groups) do
    if team.between and orders.has_rows(group) then table.insert(self.heads, group) end
  end
  for _, group in ipairs(groups) do
    local items = {}
    for i, item in ipairs(group) do items[i] = { sessions[item.id], item.ids, want = item.want, ["until"] = item.upto } end
    local ok, message, code = self.program:run(items)
    if ok and self.gives_rows and orders.has_rows(group) then
      ok, message, code = team:send(0, "V", orders.rows(orders.rows_of(group, session)))
    end
    if not ok then return nil, message, code end
  end
  return true
end

-- The function of each order. It returns true; or nil, message, code if the pipeline cannot continue.
local HANDLE = {
  I = function(self, text)
    local _, measure = orders.unpack(text)
    local facts, message, code = M.facts(self.opts.threads, measure == 1)
    return acknowledge(self, facts and core.json_encode(facts), message, code)
  end,
  M = function(self, text)
    local _, described = orders.unpack(text)
    drop(self)
    local job, message, code = core.json_decode(described)
    if not job then return acknowledge(self, nil, message, code) end
    return acknowledge(self, plan(self, job))
  end,
  O = function(self, text)
    local _, id, context, kv = orders.unpack(text)
    local s, message, code = self.program:session { context = context, kv = kv }
    self.sessions[id] = s
    return acknowledge(self, s ~= nil, message, code)
  end,
  R = run,
  Z = function(self, text)
    local _, id, n = orders.unpack(text)
    return self.sessions[id]:rewind(n)
  end,
  P = function(self, text)
    local _, id, n = orders.unpack(text)
    return self.sessions[id]:part(n)
  end,
  F = function(self, text)
    local _, id, new = orders.unpack(text)
    local s, message, code = self.sessions[id]:fork()
    self.sessions[new] = s
    return acknowledge(self, s ~= nil, message, code)
  end,
  S = function(self, text)
    local _, id, path = orders.unpack(text)
    return acknowledge(self, self.sessions[id]:save(part_of(self, path)))
  end,
  L = function(self, text)
    local _, id, context, kv, path = orders.unpack(text)
    local s, message, code = self.program:session { context = context, kv = kv }
    local ok
    if s then ok, message, code = s:restore(part_of(self, path)) end
    self.sessions[id] = s
    return acknowledge(self, ok, message, code)
  end,
  D = function(self, text)
    local _, id = orders.unpack(text)
    if self.sessions[id] then self.sessions[id]:close() end
    self.sessions[id] = nil
    return true
  end,
  T = function(self, text)
    local _, from = orders.unpack(text)
    local times, message, code = links.part(self.team, from)
    return acknowledge(self, times and core.json_encode(core.json_array(times)), message, code)
  end,
  Q = function(self)
    drop(self)
    return true
  end,
}

--- Works until rank 0 ends the work.
-- @param team of ane.pipeline.team
-- @param opts threads (default: this rank's share of the cores of its host)
-- @return true; or nil, message, code if this rank or another one has failed
function M.run(team, opts)
  local threads = opts.threads or math.max(1, core.cpu_cores() // team.near)
  local self = setmetatable({ team = team, opts = { threads = threads }, sessions = {}, heads = {}, own = {} }, Worker)
  local ok, message, code = true, nil, nil
  while ok do
    local text
    text, message, code = team:take(0, "C", true)
    if not text then break end
    local ran
    ran, ok, message, code = pcall(HANDLE[text:sub(1, 1)], self, text)
    if not ran then ok, message, code = nil, tostring(ok), "io" end
  end
  if not ok and code ~= "stopped" then
    team:complain(message)
    team:take(0, "C", true) -- until rank 0 ends the work
  end
  pcall(drop, self)
  if not team.failed then team:leave() end
  if code == "stopped" then return true end
  return nil, message, code
end

return M
