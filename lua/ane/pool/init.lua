--- Many sequences on one model: requests share the steps of the executor, so that one read of the weights serves them all.
-- Needs ane.core, ane.pool.prefixes, price, queue, request and sessions, and ane.util.list, methods,
-- pool_rules, schema and units.
-- A step computes one mixed batch of at most `step_tokens` tokens: the next token, or a draft, of every running reply, and parts of
-- the prompts that are being read, in equal shares. The bits of a reply do not depend on what else is in the batch.
-- Usage: `local pool = model:pool { sessions = 8 }; local a, b = pool:add "One", pool:add "Two"; pool:run(); print(a.result.text)`

local common_prefix = require("ane.util.list").common_prefix
local core = require "ane.core"
local methods = require "ane.util.methods"
local pool_rules = require "ane.util.pool_rules"
local prefixes = require "ane.pool.prefixes"
local price = require "ane.pool.price"
local queue = require "ane.pool.queue"
local request = require "ane.pool.request"
local sessions = require "ane.pool.sessions"
local schema = require "ane.util.schema"
local units = require "ane.util.units"

local M = {}

local Pool = {}
Pool.__index = Pool
Pool.__name = "ane.pool"

-- A feed of at most this many tokens is a decode. It precedes prompts and is never divided.
local DECODE = 8

-- A request waits for another one that computes at least this many positions of its prompt: a page.
local WORTH_WAITING = 64

-- Cost of one more token relative to a step of one token, until steps have been measured.
local SLOPE = 0.15

-- Default limit in bytes of known prefixes, and the share of free memory that they may take.
local PREFIX_MEMORY, PREFIX_SHARE = 1 << 30, 4

-- The file of known prefixes in a folder.
local FILE = "/prefixes.ane"

--- Options of model:pool.
--   sessions: replies that are computed at once; the others wait
--   step_tokens: maximum tokens of a step
--   memory: maximum bytes of cached state of all sessions, a number or a text ("2G"); when it is reached, the newest reply is preempted
--   and recomputed later, with the same result
--   prefix_memory: bytes of the prefixes that are kept of replies that have ended, within `memory`, 0 for none; default 1G, at most a
--   quarter of free memory
--   context, kv: of each session, as for model:session
--   on_work: function(pool), called when a request is added to a pool that is idle
M.rules = {
  sessions = pool_rules.sessions(32),
  step_tokens = pool_rules.step_tokens(256),
  memory = units.bytes_rule,
  prefix_memory = units.limit_rule,
  context = { type = "integer", min = 1 },
  kv = { type = "string", choices = { "fp16", "fp32", "int16", "int8" } },
  on_work = { type = "callable" },
}

--- Options of pool:add beside those of generate: priority (higher goes first; default 0), time_limit (seconds, from the call on).
M.request_rules = {
  priority = { type = "integer", default = 0 },
  time_limit = { type = "number", above = 0 },
}

-- The sessions that a pool computes in. They share pages if the program has them.
local function sessions_of(engine, opts)
  local memory = opts.memory and units.read_bytes(opts.memory) or math.huge
  if not engine.prefixes then
    return sessions.new(engine, { context = opts.context, kv = opts.kv, most = opts.sessions, memory = memory })
  end
  local free = core.memory().available
  local most = opts.prefix_memory and units.read_limit(opts.prefix_memory)
    or math.min(PREFIX_MEMORY, free and free > 0 and free // PREFIX_SHARE or PREFIX_MEMORY)
  return prefixes.new(engine, { context = opts.context, memory = memory, prefix_memory = most })
end

-- Requests in the order in which they are served.
local function by_rank(a, b)
  if a.priority ~= b.priority then return a.priority > b.priority end
  return a.number < b.number
end

--- Makes a pool.
-- @param engine what the model gives it: program, open(opts, adapters) -> session, prefixes() -> known prefixes of the core (nil: it has
-- none), prepare(prompt, opts, level) -> ids, checked options (with those of request_rules) or nil, message, code; start(session, ids,
-- opts) -> run
-- @param opts checked (see rules)
-- @return a pool; or nil, message, code
function M.new(engine, opts)
  local held, message, code = sessions_of(engine, opts)
  if not held then return nil, message, code end
  local program = engine.program
  local room = program.max_chunk and program:max_chunk() or opts.step_tokens
  return setmetatable({
    _engine = engine, _opts = opts, _step_tokens = math.min(opts.step_tokens, room), _count = 0, _running = {},
    _waiting = queue.new(by_rank), _sessions = held, _price = price.new(),
    _limited = 0, _stopped = 0, -- unfinished requests that have a time limit; that are to be stopped
    _last = 0, _depth = program.depth and program:depth() or 1, _flights = {},
    _stats = {
      steps = 0, prompt_tokens = 0, reply_tokens = 0, cached_tokens = 0, replayed_tokens = 0, preempted = 0, largest_step = 0, seconds = 0,
      dropped = 0,
    },
  }, Pool)
end

local function opened(self)
  return self._engine or error("pool is closed", 3)
end

local function is_idle(self) return self._waiting.count == 0 and #self._running == 0 end

--- Adds a request. It begins with the next step.
-- @param prompt a text, a list of token ids or a list of messages, as for model:generate
-- @param opts those of generate, and priority, time_limit
-- @param level of errors about the arguments, for callers inside ane; default 3, the caller
-- @return a request; or nil, message, code
function Pool:add(prompt, opts, level)
  local ids, checked, code = opened(self).prepare(prompt, opts, level or 3)
  if not ids then return nil, checked, code end
  if #ids == 0 then return nil, "the prompt is empty: there is no token to continue", "invalid" end
  local idle = is_idle(self)
  self._count = self._count + 1
  local made = request.new(self, {
    ids = ids, opts = checked, priority = checked.priority, number = self._count,
    deadline = checked.time_limit and core.clock() + checked.time_limit,
  })
  if made.deadline then self._limited = self._limited + 1 end
  self._waiting:push(made)
  if not idle or not self._opts.on_work then return made end
  local ok, raised = pcall(self._opts.on_work, self)
  if ok then return made end
  made:close() -- nobody would hold it
  error(raised, 0)
end

--- Returns whether there is nothing to compute.
function Pool:idle()
  opened(self)
  return is_idle(self)
end

local function remove(list, item)
  for i = 1, #list do
    if list[i] == item then return table.remove(list, i) end
  end
end

-- Handles the end of a request: its session is kept for prompts that begin alike.
function Pool:_released(r)
  self._waiting:remove(r)
  remove(self._running, r)
  if r.deadline then self._limited = self._limited - 1 end
  if r.stopping then self._stopped = self._stopped - 1 end
  if self._ended then table.insert(self._ended, r) end -- set by ane.pool.many
  if r.session then
    r.session:_compute_with(nil, nil)
    self._sessions:give_back(r.session, r.preempted)
  end
  self._starved = nil
  if r.run then
    self._stats.reply_tokens = self._stats.reply_tokens + #r.result.ids
    self._stats.cached_tokens = self._stats.cached_tokens + r.result.timings.cached_tokens
  end
end

-- Lets the next sweep end a request that is not done.
function Pool:_stop(r)
  r.stopping, self._stopped = true, self._stopped + 1
end

--- Lets the next sweep end all requests, as their stop() does; nothing if the pool is closed.
function Pool:_stop_all()
  for r in pairs(self._waiting.held) do r:stop() end
  for _, r in ipairs(self._running) do r:stop() end
end

-- Ends requests that were stopped or have exceeded their time limit. It looks at all of them only if there are any such requests.
local function sweep(self)
  if self._stopped == 0 and self._limited == 0 then return end
  local now, ending = core.clock(), {}
  local function look(r)
    if r.deadline and now > r.deadline and not r.stopping then
      self:_stop(r)
      r.timed_out = true
    end
    if r.stopping and not r.under_way then ending[#ending + 1] = r end
  end
  for r in pairs(self._waiting.held) do look(r) end
  for _, r in ipairs(self._running) do look(r) end
  table.sort(ending, function(a, b) return a.number > b.number end)
  for _, r in ipairs(ending) do -- a callback may end others
    if not r.done then
      if r.item and not r.preempted then r:_computed(nil, "stopped", "stopped") else r:_complete "stopped" end
    end
  end
end

-- Number of positions that one of two requests can take over from the prompt of the other. It is counted once.
local function shared(r, other)
  local known = r.shares[other]
  if known then return known end
  local n = math.min(common_prefix(r.ids, other.ids), math.min(#r.ids, #other.ids) - 1) -- the last token is fed for its logits
  r.shares[other] = n
  return n
end

-- Does a running request compute a part of this one's prompt that is not known yet? Then this one waits, so that the part is computed
-- once for both.
local function must_wait(self, r)
  if not self._engine.prefixes or r.opts.adapters then return false end
  local known
  for _, other in ipairs(self._running) do
    local item = other.item
    if item and not other.preempted and not other.opts.adapters and #item.ids > DECODE then
      local n = shared(r, other) // WORTH_WAITING * WORTH_WAITING
      known = known or self._sessions:known(r.ids)
      if n >= known + WORTH_WAITING and other.session.length < n then return true end
    end
  end
  return false
end

-- Begins a request that was waiting. Returns false if memory must become free first.
local function begin(self, r)
  local session, message, code = self._sessions:acquire(r.ids, r.opts.adapters)
  if not session and code == "memory" and #self._running > 0 then return false end
  if not session then
    r:_fail(message, code)
    return true
  end
  table.insert(self._running, r)
  r:_begin(session, self._engine.start)
  return true
end

-- Requests that were taken from the queue and have not begun: they go back, whatever happens.
local Later = {}
function Later.__close(later)
  for i = 1, #later do
    local r = later[i]
    if not r.done and r.state == "waiting" then
      if later.pool._engine then later.pool._waiting:push(r) else r:close() end -- a callback may have closed the pool
    end
  end
end

-- Begins requests while sessions are free. A request that waits for another one's prefix lets others go first.
local function admit(self)
  if self._starved then return end
  local later <close>, most = setmetatable({ pool = self }, Later), 2 * self._opts.sessions
  while #later < most and #self._running < self._opts.sessions do
    local r = self._engine and self._waiting:pop()
    if not r then return end
    later[#later + 1] = r
    if not must_wait(self, r) then
      if not begin(self, r) then return end
      table.remove(later)
    end
  end
end

-- The running requests in the order in which they are served, and how many of them hold a state.
local function ranked(self)
  local order, active = table.move(self._running, 1, #self._running, 1, {}), 0
  table.sort(order, by_rank)
  for _, r in ipairs(order) do
    if not r.preempted then active = active + 1 end
  end
  return order, active
end

-- Frees the state of the newest reply that can be computed again later. Returns false if there is none, or if only one reply holds a state:
-- that reply always continues.
local function preempt(self)
  local order, active = ranked(self)
  for i = #order, 1, -1 do
    local r = order[i]
    if active > 1 and r.item and not r.preempted and not r.under_way then
      local held = self._sessions:preempt(r.session)
      r.preempted, r.item.replay = r.item.replay or held, nil -- a replay in progress: the session holds a part of it
      self._stats.preempted = self._stats.preempted + 1
      return true
    end
  end
  return false
end

-- Restores the states of preempted replies, in order, while they fit. The first is restored in any case if nothing else runs.
local function readmit(self)
  local order, active = ranked(self)
  for _, r in ipairs(order) do
    if r.preempted then
      if active > 0 and (self._starved or not self._sessions:fits(#r.preempted + #r.item.ids)) then return end
      local known, message, code = self._sessions:reopen(r.session, r.preempted)
      if not known then
        if active == 0 then r:_fail(message, code) end
        return
      end
      r.item.replay, r.item.replayed, r.preempted = #r.preempted > known and r.preempted or nil, known, nil
      active = active + 1
    end
  end
end

-- Keeps the states within the memory limit.
local function balance(self)
  self._sessions:trim()
  repeat until not self._sessions:over() or not preempt(self)
  readmit(self)
end

-- Tokens that an item still has to feed, of its replay or its own; and whether it is a decode.
local function left(item)
  if item.replay then return #item.replay - item.replayed, false end
  return #item.ids - item.fed, #item.ids <= DECODE
end

-- The next n tokens of an item, in the form that a run of the program takes.
local function part_of(r, n)
  local item = r.item
  if item.replay then
    local ids = table.move(item.replay, item.replayed + 1, item.replayed + n, 1, {})
    return { r.session:_raw(), ids, want = "none", ["until"] = #item.replay + #item.ids, request = r, n = n }
  end
  local whole = item.fed == 0 and n == #item.ids
  local ids = whole and item.ids or table.move(item.ids, item.fed + 1, item.fed + n, 1, {})
  local want, mask = item.want, item.mask
  if item.fed + n < #item.ids and (want == "last" or want == "best") then want, mask = "none", nil end
  return { r.session:_raw(), ids, want = want, ["until"] = item.upto, mask = mask, request = r, n = n }
end

-- The batch of a step: first decodes, never divided; then prompts in equal shares. A decode that does not fit comes first in the
-- next step.
local function batch_of(self)
  local items, room, prompts = {}, self._step_tokens, {}
  local most = math.ceil(#self._running / self._depth)
  for _, r in ipairs(self._running) do
    if r.item and not r.preempted and not r.under_way and #items + #prompts < most then
      local n, decode = left(r.item)
      if not decode then
        prompts[#prompts + 1] = r
      elseif n <= room then
        items[#items + 1] = part_of(r, n)
        room = room - n
      end
    end
  end
  table.sort(prompts, by_rank)
  if #prompts > 0 and room < self._step_tokens // 4 then room = self._step_tokens // 4 end -- prompts always advance
  for i, r in ipairs(prompts) do
    local share = (room + #prompts - i) // (#prompts - i + 1)
    local n = math.min(left(r.item), share)
    -- Output rows of several tokens are computed together. The first prompt has room for them (see _most_rows).
    if not r.item.replay and (r.item.want == "all" or r.item.want == "argmax") then n = #r.item.ids <= room and #r.item.ids or 0 end
    if n > 0 then
      items[#items + 1] = part_of(r, n)
      room = room - n
    end
  end
  return items
end

-- Feeds of want "all" or "argmax" that are longer than a share run alone, so that they do not wait forever.
local function alone(self)
  for _, r in ipairs(self._running) do
    if r.item and not r.preempted and not r.under_way then return { part_of(r, math.min(left(r.item), self._step_tokens)) } end
  end
  return {}
end

-- Computes one part of a batch. If memory runs out, cached prefixes and idle sessions are dropped, and it is tried again.
local function feed(self, part)
  local ok, message, code = part[1]:feed(part[2], part.want, part["until"], part.mask)
  if not ok and code == "memory" then
    self._sessions:forget()
    ok, message, code = part[1]:feed(part[2], part.want, part["until"], part.mask)
  end
  if not ok then part.failed = { message, code } end
end

-- Handles parts that failed for lack of memory: while other replies hold states, the newest reply frees its own, and the parts are
-- tried again in the next step. Nothing begins or returns before a request has ended. A reply that is left alone fails.
local function make_room(self, items)
  local short = {}
  for _, part in ipairs(items) do
    if part.failed and part.failed[2] == "memory" then short[#short + 1] = part end
  end
  if #short == 0 or not preempt(self) then return end
  self._starved = true
  for _, part in ipairs(short) do part.failed, part.starved = nil, true end
end

-- Computes a batch. If it fails, its parts are tried one by one, so that only the request at fault fails.
local function compute(self, items)
  local program = self._engine.program
  if program.run and program:run(items) then return end
  for _, part in ipairs(items) do feed(self, part) end
  make_room(self, items)
end

-- Records the tokens of a part that was fed, and resumes its request if the feed is complete.
local function advance(self, part)
  local stats, r = self._stats, part.request
  local item = r.item
  if r.done then
    stats.dropped = stats.dropped + part.n -- a callback of another request has ended it
  elseif item.replay then
    item.replayed = item.replayed + part.n
    self._sessions:note(r.session)
    stats.replayed_tokens = stats.replayed_tokens + part.n
    if item.replayed == #item.replay then item.replay = nil end
  else
    item.fed = item.fed + part.n
    if #item.ids > DECODE then
      stats.prompt_tokens = stats.prompt_tokens + part.n
      self._sessions:note(r.session)
    end
    if item.fed == #item.ids then r:_computed(true) end
  end
end

-- Draws the next tokens of the replies whose feeds are complete, all together. Each reply then takes its own.
local function draw(self, items)
  local program, list, runs = self._engine.program, {}, {}
  if not program.draw then return end
  for _, part in ipairs(items) do
    local r, item = part.request, part.request.item
    local complete = not (part.failed or part.starved or r.done or item.replay) and item.fed + part.n == #item.ids
    local wanted = complete and part.want == "last" and r.run and r.run:draw_item()
    if wanted then list[#list + 1], runs[#runs + 1] = wanted, r.run end
  end
  if #list < 2 then return end
  local ids, values = program:draw(list)
  for i, run in ipairs(ids and runs or {}) do
    if ids[i] then run:drawn(ids[i], values[i]) end -- otherwise the reply itself draws, and says what is wrong
  end
end

-- Continues the requests of a batch. A starved part is tried again in the next step.
local function deliver(self, items)
  for _, part in ipairs(items) do
    if part.failed and not part.request.done then
      part.request:_computed(nil, part.failed[1], part.failed[2])
    elseif not part.starved then
      advance(self, part)
    end
  end
end

-- Computes a batch of a program whose runs overlap (ane.pipeline.lead). The batch begins. If as many batches are under way as the program
-- takes, or if this batch is empty, it waits for the end of the oldest one.
-- @return the batch that has ended; nil: none
local function overlap(self, items)
  local program, flights = self._engine.program, self._flights
  local ticket = #items > 0 and program:begin(items)
  if #items > 0 and not ticket then -- one by one, so that only the request at fault fails
    compute(self, items)
    return items
  end
  if ticket then
    flights[#flights + 1] = { ticket, items }
    for _, part in ipairs(items) do part.request.under_way = true end
    if #flights < self._depth then return nil end
  end
  local oldest = table.remove(flights, 1)
  if not oldest then return nil end
  local ok, message, code = program:finish(oldest[1])
  for _, part in ipairs(oldest[2]) do
    part.request.under_way = nil
    if not ok then part.failed = { message, code } end
  end
  return oldest[2]
end

-- Computes one batch; nil if the pool is idle. Callbacks may end requests and close the pool.
local function one_step(self)
  sweep(self)
  admit(self)
  for _, r in ipairs(table.move(self._running, 1, #self._running, 1, {})) do
    if r.state == "paused" then r:_continue() end
  end
  if not self._engine or is_idle(self) then return nil end
  balance(self)
  local items = batch_of(self)
  if #items == 0 then items = alone(self) end
  local stats, total = self._stats, 0
  for _, item in ipairs(items) do total = total + item.n end
  if total > 0 or #self._flights > 0 then
    local started = core.clock()
    if self._depth > 1 then items = overlap(self, items) or {} else compute(self, items) end
    local seconds = core.clock() - started
    self._last = total
    if total > 0 then self._price:stepped(total, seconds) end
    stats.seconds = stats.seconds + seconds
    stats.steps, stats.largest_step = stats.steps + 1, math.max(stats.largest_step, total)
    draw(self, items)
    deliver(self, items)
    -- The first becomes the last, so that decodes that do not fit in a step alternate.
    if #self._running > self._step_tokens then table.insert(self._running, table.remove(self._running, 1)) end
  end
  return total
end

--- Computes one batch. A call takes at most as long as `step_tokens` tokens.
-- @return the tokens that were computed, 0 if only callbacks continued; nil if the pool is idle
-- @raise inside a callback of one of its requests
function Pool:step()
  local tokens = self:_step(2)
  return tokens
end

--- As step, for callers inside ane.
-- @param level of errors for misuse, as error()'s
function Pool:_step(level)
  if not self._engine then error("pool is closed", level + 1) end
  if self._stepping then error("step: the pool is already computing (a callback called step)", level + 1) end
  self._stepping = true
  local ok, tokens = pcall(one_step, self)
  self._stepping = nil
  if not ok then error(tokens, 0) end
  return tokens
end

--- Steps until the pool is idle.
function Pool:run()
  opened(self)
  while self._engine and self:_step(2) do end -- a callback may close it
end

--- The cost of `more` tokens in the next step for a reply, as a multiple of the cost of its next token. A draft must gain more
-- than that.
function Pool:_price_of(more)
  return self._price:of(more, #self._running, math.max(self._last, #self._running)) or 1 + SLOPE * more * #self._running
end

--- The most tokens of a feed that needs the rows of all its tokens: what a step has room for, whatever else it computes.
function Pool:_most_rows() return math.max(DECODE, self._step_tokens // 4) end

--- Writes the known prefixes to a folder, which is made if needed. They are one file, written as a whole or not at all.
-- @param folder its path
-- @return true; or nil, message, code
function Pool:save(folder)
  opened(self)
  schema.argument({ type = "path" }, folder, "save: folder", 2)
  local ok, message, code = core.make_folder(folder)
  if not ok then return nil, message, code end
  return self._sessions:save(folder .. FILE)
end

--- Reads a file of save that has the same model and options. Requests then continue from its prefixes.
-- @param folder its path
-- @return true; or nil, message, code: "state" if the file is of another model, engine, option or version, "format" if it is
-- damaged; nothing of it is used then
function Pool:load(folder)
  opened(self)
  schema.argument({ type = "path" }, folder, "load: folder", 2)
  return self._sessions:load(folder .. FILE)
end

--- Counts of what the pool has done: steps, prompt_tokens and reply_tokens (computed), cached_tokens (of prompts, not computed),
-- replayed_tokens (computed again after a preemption), dropped (computed for replies that had been ended), preempted, largest_step,
-- seconds (in the executor). The current state: running, waiting, cached (idle sessions, of programs that share no pages), kv_bytes (of all
-- states, shared ones once), prefix_bytes (of known prefixes).
function Pool:stats()
  opened(self)
  local out = { running = #self._running, waiting = self._waiting.count, cached = self._sessions:cached(),
    kv_bytes = self._sessions:bytes(), prefix_bytes = self._sessions:known_bytes() }
  for key, value in pairs(self._stats) do out[key] = value end
  return out
end

--- Ends all requests and frees their sessions. Closing twice is fine.
function Pool:close()
  if not self._engine then return end
  self._engine = nil
  for _, list in ipairs { self._waiting:list(), table.move(self._running, 1, #self._running, 1, {}) } do
    for i = #list, 1, -1 do list[i]:close() end
  end
  self._sessions:close()
end

Pool.__close = Pool.close
Pool.__gc = Pool.close

function Pool:__tostring()
  if not self._engine then return "pool (closed)" end
  return ("pool (%d running, %d waiting)"):format(#self._running, self._waiting.count)
end

methods.guard(Pool, Pool, "pool")

return M
