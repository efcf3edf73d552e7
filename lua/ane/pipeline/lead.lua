--- Rank 0 of a pipeline: a program whose layers lie on all ranks, and its sessions. Both have the methods of those of ane.core.
-- Needs ane.core, ane.pipeline.cut, ane.pipeline.head, ane.pipeline.links, ane.pipeline.orders, ane.pipeline.work
-- and ane.util.failure.
-- Usage: `local program = assert(lead.program(team, graph, options, job, opts))`
--
-- This rank executes a call on its stage and sends it as an order to the other ranks, which execute it on theirs. The order leaves
-- just before the call's first message to the next stage, or at the end of the call. So no other rank learns of a call that fails the
-- checks of this one. A run is divided into groups: while later stages compute a group, this one computes the next. This rank waits
-- only for output rows.

local core = require "ane.core"
local cut = require "ane.pipeline.cut"
local failures = require "ane.util.failure"
local head = require "ane.pipeline.head"
local links = require "ane.pipeline.links"
local orders = require "ane.pipeline.orders"
local work = require "ane.pipeline.work"

local M = {}

local Program, Session = {}, {}
Program.__index, Session.__index = Program, Session

-- ---- Orders ------------------------------------------------------------------------------------------------------------------

-- Sends the pending order.
local function flush(self)
  local order = self.order
  self.order = nil
  if not order then return true end
  return self.team:tell("C", order)
end

-- Marks the program as failed: the ranks may hold different states.
local function broken(self, message, code)
  self.failed = self.failed or { message, code or "io" }
  return nil, table.unpack(self.failed)
end

-- Executes a call on this rank's stage and orders the other ranks to execute it.
-- @return what fn gives; or nil, message, code
local function command(self, order, fn)
  if self.failed then return nil, table.unpack(self.failed) end
  self.order = order
  local ran, result, message, code = pcall(fn)
  if not ran then -- an interrupt: the others may be in the middle of the call
    if not self.order then broken(self, "a call of the ranks was interrupted", "stopped") end
    self.order = nil
    error(result, 0)
  end
  if not result and self.order then
    self.order = nil
    return nil, message, code
  end
  if not result then return broken(self, message, code) end
  local ok
  ok, message, code = flush(self)
  if not ok then return broken(self, message, code) end
  return result
end

-- The replies of the other ranks to an order: a list of texts by rank; or nil, message, code of the first rank that failed.
local function replies(self)
  local list, failed = {}, nil
  for rank = 1, self.team.size - 1 do
    local text, message, code = self.team:take(rank, "K")
    if not text then return broken(self, message, code) end
    list[rank] = text:sub(2)
    if text:sub(1, 1) == "-" and not failed then
      local word, what = list[rank]:match "^(%S*)\n(.*)$"
      failed = { ("%s: %s"):format(self.team:name(rank), what), word }
    end
  end
  if failed then return nil, failed[1], failed[2] end
  return list
end

-- ---- Sessions ----------------------------------------------------------------------------------------------------------------

local function new_session(program, own, context, kv, id)
  local self = setmetatable({ program = program, own = own, id = id, kv = kv, most = context, list = {} }, Session)
  program.sessions[id] = self
  return self
end

local function next_id(program)
  program.count = program.count + 1
  return program.count
end

--- Feeds ids: see ane.generate.session.
function Session:feed(ids, want, upto)
  return self.program:run { { self, ids, want = want or "last", ["until"] = upto } }
end

--- Number of rows of the last run.
function Session:rows() return #self.list end

--- Logits of a row.
function Session:logits(i) return core.tensor({ self.program:vocab() }, self.list[i or #self.list].logits) end

--- Best id of a row and its logit.
function Session:argmax(i)
  local row = self.list[i or #self.list]
  return row.id, row.value
end

function Session:length() return self.own:length() end
function Session:context() return self.own:context() end
function Session:ids() return self.own:ids() end
function Session:replayed() return self.own:replayed() end

--- Bytes of the cached state on all ranks: those of this rank, scaled by the numbers that all ranks and this one cache per token.
function Session:kv_bytes()
  local program, own = self.program, self.own:kv_bytes()
  local mine = program.infos[0].kv_bytes_per_token
  if mine == 0 then return program.kv_per_token * self.own:length() end
  return own * program.kv_per_token // mine
end

local function change(self, letter, n)
  local ok, message, code = command(self.program, orders.pack(letter, self.id, n), function()
    if letter == "Z" then return self.own:rewind(n) end
    return self.own:part(n)
  end)
  if ok then self.list, self.ticket = {}, nil end
  return ok, message, code
end

function Session:rewind(n) return change(self, "Z", n) end
function Session:part(n) return change(self, "P", n) end

function Session:fork()
  local program, id = self.program, next_id(self.program)
  local own, message, code = command(program, orders.pack("F", self.id, id), function() return self.own:fork() end)
  if not own then return nil, message, code end
  local made = new_session(program, own, self.most, self.kv, id)
  local done
  done, message, code = replies(program)
  if done then return made end
  made:close()
  return nil, message, code
end

-- The note in a session's file: a flag (1: the caller gave a note), the caller's note, and the row of the last token with its logits, or
-- "". The row is saved here because the session of a stage has no rows.
local NOTE = "<Bs4s4"

local function pack_note(note, row)
  return NOTE:pack(note and 1 or 0, note or "", row and row.logits and orders.rows { row } or "")
end

-- @param vocab numbers of the logits of a row
-- @return the caller's note or nil, list of rows; nil, nil: the text is not such a note
local function unpack_note(text, vocab)
  local ok, given, note, rows = pcall(string.unpack, NOTE, text or "")
  if ok then
    ok, rows = pcall(orders.read_rows, rows)
    if not ok and failures.code(rows) then error(rows, 0) end
  end
  if not ok then return nil, nil end
  for _, row in ipairs(rows) do
    if not row.logits or #row.logits ~= 4 * vocab then return nil, nil end
  end
  return given == 1 and note or nil, rows
end

--- Writes this rank's part to the file, and has the others write theirs to files beside it, PATH.rank1 and so on.
function Session:save(path, note)
  local order = orders.pack("S", self.id, path)
  local text = pack_note(note, self.list[#self.list])
  local ok, message, code = command(self.program, order, function() return self.own:save(path, text) end)
  if ok then ok, message, code = replies(self.program) end
  return ok and true, message, code
end

--- Reads such files. A failure on any rank leaves the session as it was.
function Session:restore(path)
  local program, id = self.program, next_id(self.program)
  local own, message, code = program.own:session { context = self.most, kv = self.kv }
  if not own then return nil, message, code end
  local note, rows
  local ok
  ok, message, code = command(program, orders.pack("L", id, self.most, self.kv, path), function()
    local done, text, word = own:restore(path)
    if not done then return nil, text, word end
    note, rows = unpack_note(text, program:vocab())
    if not rows then return nil, path .. " is damaged: it has no note of a model on several ranks", "format" end
    return true
  end)
  if ok then ok, message, code = replies(program) end
  if not ok then
    own:close()
    program:forget(id)
    return nil, message, code
  end
  self.own:close()
  program:forget(self.id)
  program.sessions[self.id], program.sessions[id] = nil, self
  self.own, self.id, self.list, self.ticket = own, id, rows, nil
  return true, note
end

--- Refuses adapters: they work in one process only.
function Session.adapt(_, list)
  if #list == 0 then return true end
  return nil, "a model on several ranks does not support adapters", "unsupported"
end

function Session.adapters_key() return 0 end

function Session:close()
  if not self.own then return end
  self.own:close()
  self.own = nil
  self.program.sessions[self.id] = nil
  self.program:forget(self.id)
end

Session.__close, Session.__gc = Session.close, Session.close

-- ---- Programs ----------------------------------------------------------------------------------------------------------------

-- Closes the session on the other ranks.
function Program:forget(id)
  if self.own and not self.failed then self.team:tell("C", orders.pack("D", id)) end
end

--- Maximum tokens of a run. A pipeline divides it into groups, which have at most as many tokens as a run of a stage.
function Program:max_chunk() return self.tensor and self.own:max_chunk() or self.chunk end

function Program:context() return self.own:context() end
function Program:vocab() return self.own:vocab() end
function Program:n_ids() return self.own:n_ids() end
function Program:exact() return self.own:exact() end
function Program.head() return 0, 0, 0 end

--- Facts of all ranks together, and `ranks`, a list of the facts of each: rank, host, threads, first and last (layers), head_rows (if
-- the head is divided), weight_bytes, stored_bytes (of its weights as stored), kv_bytes_per_token, sends (bytes per token), resident
-- (bytes after loading).
function Program:info()
  local out = work.add_info(self.own:info(), self.part)
  out.ranks = self.ranks
  for rank = 1, self.team.size - 1 do
    local info = self.infos[rank]
    for _, key in ipairs { "weight_bytes", "stored_bytes", "scratch_bytes", "kv_bytes_per_token", "steps", "threads" } do
      out[key] = out[key] + info[key]
    end
    table.move(info.matrices, 1, #info.matrices, #out.matrices + 1, out.matrices)
  end
  return out
end

function Program:session(opts)
  local id = next_id(self)
  local own, message, code = command(self, orders.pack("O", id, opts.context, opts.kv or "fp16"), function()
    return self.own:session { context = opts.context, kv = opts.kv }
  end)
  if not own then return nil, message, code end
  local made = new_session(self, own, opts.context, opts.kv or "fp16", id)
  local done
  done, message, code = replies(self)
  if done then return made end
  made:close()
  return nil, message, code
end

-- The items of a run, by session number, with the length at the end of each feed.
local function items_of(items, want)
  local list = {}
  for i, item in ipairs(items) do
    local s, ids = item[1], item[2]
    ids = type(ids) == "number" and { ids } or ids
    list[i] = { id = s.id, ids = ids, want = item.want or want or "last", upto = math.max(item["until"] or 0, s.own:length() + #ids) }
  end
  return list
end

-- Computes this rank's stage of all groups.
local function run_groups(self, groups)
  for _, group in ipairs(groups) do
    local items = {}
    for i, item in ipairs(group) do
      items[i] = { self.sessions[item.id].own, item.ids, want = item.want, ["until"] = item.upto }
    end
    local ok, message, code = self.own:run(items)
    if not ok then return nil, message, code end
  end
  return true
end

-- Checks that the sessions have room for all ids of a run. The executor checks one group at a time, and an error after the first group
-- would leave the ranks with different states.
local function check_room(items)
  for _, item in ipairs(items) do
    local s, n = item[1], type(item[2]) == "table" and #item[2] or 1
    if s.own:length() + n > s.most then
      local what = "context exceeded: %d positions are used and %d ids are fed, the session holds %d"
      return nil, what:format(s.own:length(), n, s.most), "range"
    end
  end
  return true
end

-- Begins a run: see Program:begin and Program:run.
local function begin(self, items, want, together)
  local ok, message, code = check_room(items)
  if not ok then return nil, message, code end
  local groups = items_of(items, want)
  groups = self.tensor and { groups } or orders.groups(groups, self.team.size, self.whole, together)
  ok, message, code = command(self, orders.run(groups), function() return run_groups(self, groups) end)
  if not ok then return nil, message, code end
  local ticket = { groups = groups, at = 1, rows = {}, sessions = {}, arrived = {} }
  if self.tensor then -- this rank alone has all logits
    ticket.list = orders.rows_of(groups[1], function(id) return self.sessions[id].own end)
  end
  for _, item in ipairs(items) do
    local s = item[1]
    ticket.sessions[s.id], s.ticket, s.list = s, ticket, {}
  end
  table.insert(self.tickets, ticket)
  return ticket
end

--- Begins a run, and returns when this rank's stage has computed it. finish() then waits for its rows. Runs of other sessions may begin
-- before that; runs finish in the order in which they began.
-- @param items, want as run()
-- @return a ticket for finish(); or nil, message, code
function Program:begin(items, want) return begin(self, items, want, true) end

-- This rank's part of the rows of a group.
local function own_rows(self, ticket, group)
  local message, code
  if not ticket.values then
    ticket.values, message, code = self.team:take(self.team.size - 1, "N")
    if not ticket.values then return nil, message, code end
  end
  local list
  list, message, code = self.part:rows(ticket.values, (orders.wanted(group)))
  ticket.values = nil
  return list, message, code
end

-- Does a rank send rows?
local function sends_rows(self, rank)
  if not self.parts then return rank == self.team.size - 1 end
  return self.parts[rank + 2] > self.parts[rank + 1]
end

-- Waits for the rows of the ticket's current group. The ticket keeps the rows that have arrived, so an interrupted wait can be repeated.
-- @return list of rows; or nil, message, code
local function take_rows(self, ticket, group)
  local arrived, list = ticket.arrived, {}
  for rank = 0, self.team.size - 1 do
    if not arrived[rank] and sends_rows(self, rank) then
      local text, message, code
      if rank == 0 then
        arrived[0], message, code = own_rows(self, ticket, group)
      else
        text, message, code = self.team:take(rank, "V")
        arrived[rank] = text and orders.read_rows(text)
      end
      if not arrived[rank] then return nil, message, code end
    end
    list[#list + 1] = arrived[rank]
  end
  ticket.arrived = {}
  return head.join(list)
end

-- Waits for the rows of the oldest run in progress. An interrupted wait can be repeated.
local function collect(self)
  local ticket = self.tickets[1]
  local rows = ticket.rows
  while ticket.at <= #ticket.groups do
    local group, list = ticket.groups[ticket.at], {}
    if ticket.list then
      list = ticket.list
    elseif orders.has_rows(group) then
      local message, code
      list, message, code = take_rows(self, ticket, group)
      if not list then return broken(self, message, code) end
    end
    ticket.at = ticket.at + 1
    local _, ids = orders.wanted(group)
    for i, row in ipairs(list) do
      local id = ids[i]
      rows[id] = rows[id] or {}
      table.insert(rows[id], row)
    end
  end
  table.remove(self.tickets, 1)
  ticket.collected = true
  for id, s in pairs(ticket.sessions) do
    if s.ticket == ticket then s.list, s.ticket = rows[id] or {}, nil end -- otherwise it has been rewound or fed since
  end
  return true
end

--- Waits for the rows of a run and of all runs that began before it.
-- @return true; or nil, message, code
function Program:finish(ticket)
  while not ticket.collected do
    local ok, message, code = collect(self)
    if not ok then return nil, message, code end
  end
  if self.failed then return nil, table.unpack(self.failed) end
  return true
end

--- The number of runs that should be in progress at once, so that all stages have work.
function Program:depth() return self.tensor and 1 or self.team.size end

--- Feeds tokens to sessions, as program:run of ane.core. If rows are wanted, it returns when they have arrived; else when this rank's
-- stage has computed the run.
function Program:run(items, want)
  local ticket, message, code = begin(self, items, want, false)
  if not ticket then return nil, message, code end
  return self:finish(ticket)
end

function Program.adapter() return nil, "a model on several ranks does not support adapters", "unsupported" end
function Program.adapt() end

-- Adds what the other ranks have answered, JSON by rank, to `list`.
-- @return list; or nil, message, code
local function decode(texts, list)
  for rank, text in pairs(texts) do
    local value, message, code = core.json_decode(text)
    if value == nil then return nil, message, code end
    list[rank] = value
  end
  return list
end

--- Measures the links between neighbouring ranks: see ane.pipeline.links.
-- @return list of rows; or nil, message, code
function Program:links()
  local list = {}
  for from = 0, self.team.size - 2 do
    local ok, message, code = self.team:tell("C", orders.pack("T", from))
    if not ok then return broken(self, message, code) end
    local times, texts
    times, message, code = links.part(self.team, from)
    if not times then return broken(self, message, code) end
    texts, message, code = replies(self)
    if not texts then return nil, message, code end
    texts, message, code = decode({ [from] = texts[from] }, { [0] = times })
    if not texts then return nil, message, code end
    list[from + 1] = links.row(self.team, from, texts[from])
  end
  return list
end

function Program:close()
  if not self.own then return end
  for _, s in pairs(self.sessions) do
    s.own:close()
    s.own = nil
  end
  self.sessions = {}
  self.own:close()
  if self.part then self.part:close() end
  self.own, self.part = nil, nil
  self.team.busy = nil
  if not self.failed then self.team:tell("C", orders.pack "Q") end
end

-- ---- Loading -----------------------------------------------------------------------------------------------------------------

-- Are all ranks on this host? Their speeds then differ only by their threads.
local function is_one_host(team)
  for _, one in pairs(team.others) do
    if one.host ~= team.host then return false end
  end
  return true
end

-- Free memory and rates of all ranks, by number from 0. All ranks measure at the same time, because they also compute at the same time.
local function ask(self, threads)
  local measure = not is_one_host(self.team)
  local ok, message, code = self.team:tell("C", orders.pack("I", measure and 1 or 0))
  if not ok then return broken(self, message, code) end
  local own, own_message, own_code = work.facts(threads, measure)
  local texts
  texts, message, code = replies(self)
  if not texts then return nil, message, code end
  if not own then return nil, own_message, own_code end
  return decode(texts, { [0] = own })
end

-- The `ranks` of cut.choose(). The ranks of a host share its free memory equally.
local function rates(team, facts)
  local on_host, list = {}, {} -- on_host: number of ranks by host
  local function host(rank) return rank == 0 and team.host or team.others[rank].host end
  for rank = 0, team.size - 1 do on_host[host(rank)] = (on_host[host(rank)] or 0) + 1 end
  for rank = 0, team.size - 1 do
    local free = facts[rank].free -- 0: not known
    list[rank + 1] = { speed = facts[rank].speed, room = free > 0 and free // on_host[host(rank)] or nil }
  end
  return list
end

-- If the slowest rank is slower than the fastest by at most this fraction, all count as equally fast, because measurements scatter.
local SCATTER = 0.25

local function equalise(list)
  local low, high = math.huge, 0
  for _, one in ipairs(list) do low, high = math.min(low, one.speed), math.max(high, one.speed) end
  if low < (1 - SCATTER) * high then return list end
  for _, one in ipairs(list) do one.speed = 1 end
  return list
end

-- The rows of info().ranks.
local function describe(self, costs, cuts, fp16, divided)
  local list, stages = {}, cut.describe(costs, cuts, divided)
  for i = 1, self.team.size do
    local s = stages[i] or stages[1] -- with tensor parallelism, every rank has all layers
    local info = self.infos[i - 1]
    list[i] = {
      rank = i - 1, host = self.team:name(i - 1):match "%((.*)%)", threads = info.threads, first = s.first, last = s.last,
      head_rows = s.head_rows, weight_bytes = info.weight_bytes, stored_bytes = info.stored_bytes,
      kv_bytes_per_token = info.kv_bytes_per_token,
      sends = self.tensor and info.exchanged_bytes or s.sends * (fp16 and 2 or 4), resident = info.resident,
    }
  end
  return list
end

-- The head with its `parts`, if it is divided over the ranks; else nil. A re-encoded head is not divided, because its scales
-- depend on all rows. The head of an encoder is not divided either: it is small, and the values of all tokens would be sent to all ranks.
local function divide_head(graph, ranks, options, job)
  local is_encoded = (options.weights or "file") ~= "file" or options.mixed and next(options.mixed)
  if job.whole or is_encoded then return nil end
  local found = graph:head()
  if found then found.parts = cut.divide(found, ranks) end
  return found and found.parts and found
end

-- Chooses where the model is cut.
-- @return {cuts (see ane.pipeline.cut), costs (of its steps), head (nil: it is not divided)}; or nil, message, code
local function choose(self, graph, options, job, opts)
  if opts.parallel == "tensor" then return { cuts = {}, costs = graph:costs() } end
  local facts, message, code = ask(self, options.threads)
  if not facts then return nil, message, code end
  local ranks, costs = equalise(rates(self.team, facts)), graph:costs()
  local divided = divide_head(graph, ranks, options, job)
  local cuts
  cuts, message, code = cut.choose(costs, ranks, opts, divided)
  if not cuts then return nil, message, code end
  return { cuts = cuts, costs = costs, head = divided }
end

-- The description of the model that is sent to the other ranks.
-- @param starts list of the body steps at which the stages begin, and the number of body steps at its end
-- @return text; or nil, message, code
local function job_text(graph, options, job, opts, chosen, starts)
  local identity, message, code = graph:identity()
  if not identity then return nil, message, code end
  local sent = {}
  for key, value in pairs(options) do
    if key ~= "progress" and key ~= "threads" then sent[key] = value end
  end
  return core.json_encode {
    path = job.path, recipe = job.recipe, soft_experts = job.soft_experts, pipeline = job.pipeline, options = sent,
    tensor = opts.parallel == "tensor", identity = ("%016x"):format(identity),
    cuts = starts, fp16 = opts.fp16 or false, head = chosen.head and chosen.head.parts,
  }
end

-- Plans this rank's stage, and its part of the head.
-- @return true; or nil, message, code
local function plan_own(self, graph, options, opts, chosen, starts)
  local o, before = {}, function() return flush(self) end
  if self.tensor then
    o.tensor = work.tensor(self.team, before)
  else
    o.stage = work.stage(self.team, starts[1], starts[2], opts.fp16, before)
  end
  for key, value in pairs(options) do o[key] = value end
  local message, code
  self.own, message, code = core.program(graph, o)
  if not self.own then return nil, message, code end
  self.parts = chosen.head and chosen.head.parts
  if not self.parts or self.parts[2] == 0 then return true end
  self.part, message, code = head.open(graph, options, { from = 0, to = self.parts[2], steps = starts[#starts], fp16 = opts.fp16 })
  return self.part and true, message, code
end

local function with_chunk(options, chunk)
  local made = {}
  for key, value in pairs(options) do made[key] = value end
  made.chunk = chunk
  return made
end

-- Closes what has been planned, after a failure.
local function give_up(self)
  if self.own then self.own:close() end
  if self.part then self.part:close() end
  self.own, self.part = nil, nil
  self.team:tell("C", orders.pack "Q")
end

--- Plans a model over all ranks.
-- @param team of ane.pipeline.team, on rank 0
-- @param graph after its passes
-- @param options of core.program, without functions that others would need
-- @param job path, recipe (path or nil), soft_experts, pipeline (name of the passes), whole (true: items of a run stay whole)
-- @param opts cut (list of layers), fp16, tail: see ane.pipeline
-- @return a program; or nil, message, code
function M.program(team, graph, options, job, opts)
  if team.busy then return nil, "the ranks hold one model at a time: close the other one first", "state" end
  local self = setmetatable({
    team = team, sessions = {}, tickets = {}, count = 0, whole = job.whole, infos = {}, chunk = options.chunk,
  }, Program)
  if not job.whole then options = with_chunk(options, math.min(options.chunk, orders.GROUP)) end
  self.tensor = opts.parallel == "tensor"
  local wrong = self.tensor and (opts.cut and "cut" or opts.fp16 and "fp16 (--link fp16)" or opts.tail and "tail")
  if wrong then return nil, ("option %s applies to pipelines only, and parallel is tensor"):format(wrong), "invalid" end
  wrong = self.tensor and ((options.weights or "file") ~= "file" and "weights" or next(options.mixed or {}) and "mixed")
  if wrong then
    return nil, ("option %s applies to pipelines only: parallel tensor keeps the stored types"):format(wrong), "unsupported"
  end
  local chosen, message, code = choose(self, graph, options, job, opts)
  if not chosen then return nil, message, code end
  local starts = { 0, table.unpack(chosen.cuts) }
  starts[#starts + 1] = #chosen.costs - 1
  local described, ok
  described, message, code = job_text(graph, options, job, opts, chosen, starts)
  if not described then return nil, message, code end
  ok, message, code = team:tell("C", orders.pack("M", described))
  if not ok then return nil, message, code end
  -- the others pack their weights at the same time
  local ran, planned, own_message, own_code = pcall(plan_own, self, graph, options, opts, chosen, starts)
  local texts
  texts, message, code = replies(self)
  if not ran then -- an interrupt, or an error of the caller's progress
    give_up(self)
    error(planned, 0)
  end
  if not planned or not texts then
    give_up(self)
    if not planned then return nil, own_message, own_code end
    return nil, message, code
  end
  team.busy, self.infos[0] = true, work.add_info(self.own:info(), self.part)
  texts, message, code = decode(texts, self.infos)
  if not texts then
    give_up(self)
    return nil, message, code
  end
  self.infos[0].resident, self.kv_per_token = core.memory().resident, 0
  for rank = 0, team.size - 1 do self.kv_per_token = self.kv_per_token + self.infos[rank].kv_bytes_per_token end
  self.ranks = describe(self, chosen.costs, chosen.cuts, opts.fp16, chosen.head)
  return self
end

return M
