--- A request of a pool: a reply that is computed together with others, as an iterator over its pieces.
-- Needs ane.core and ane.util.methods. The decode loop of ane.generate runs in a coroutine. Instead of computing, its session yields a work
-- item. The pool resumes the coroutine when the item is done. So every option of generate works as it does outside a pool.
-- Usage: `local request = pool:add("Once"); for piece in request do io.write(piece) end; print(request.result.stop)`

local core = require "ane.core"
local methods = require "ane.util.methods"

local M = {}

local Request = {}
Request.__index = Request
Request.__name = "ane.request"

-- The first value that a coroutine yields when its session has something to compute. A callback yields anything else.
local COMPUTE = {}

--- Makes a request. Its coroutine begins with _begin().
-- @param pool of ane.pool
-- @param fields ids (the prompt), opts (of generate, checked), priority, deadline (a time of core.clock(), or nil), number
function M.new(pool, fields)
  local self = setmetatable({
    pool = pool, ids = fields.ids, opts = fields.opts, priority = fields.priority, deadline = fields.deadline, number = fields.number,
    arrived = core.clock(), state = "waiting", shares = setmetatable({}, { __mode = "k" }), -- see ane.pool: shared
    done = false, _pieces = {}, _first = 1, _last = 0,
  }, Request)
  self.result = { -- that of a request which ends before it begins
    ids = {}, prompt_ids = fields.ids,
    timings = { prefill_s = 0, decode_s = 0, prompt_tokens = #fields.ids, cached_tokens = 0, tokens = 0 },
  }
  return self
end

-- Runs the coroutine until its session has something to compute, a callback yields, or the reply ends.
local function resume(self, ...)
  local thread = self._thread
  local results = table.pack(coroutine.resume(thread, ...))
  if self.done then
    coroutine.close(thread) -- a callback has ended the request, or closed its pool or model
  elseif not results[1] then
    self:_fail(results[2], nil, true)
  elseif coroutine.status(thread) == "dead" then
    local message, code = results[2], results[3]
    if message then self:_fail(message, code) else self:_complete() end
  elseif results[2] == COMPUTE then
    self.item = { ids = results[3], fed = 0, want = results[4], upto = results[5], mask = results[6] }
    self.state = "running"
  else
    self.item, self.state = nil, "paused" -- a callback yielded: it continues with the next step
  end
end

--- Begins the reply in a session.
-- @param session of ane.generate.session
-- @param start function(session, ids, opts) -> run of ane.generate; or nil, message, code
function Request:_begin(session, start)
  self.session = session
  session:_compute_with(function(_, ids, want, upto, mask) return coroutine.yield(COMPUTE, ids, want, upto, mask) end,
    function(more) return self.pool:_price_of(more) end, self.pool:_most_rows())
  self._thread = coroutine.create(function()
    local run, message, code = start(session, self.ids, self.opts)
    if not run then return message, code end
    self.run, self.result = run, run.result
    while true do
      local piece
      piece, message, code = run:next()
      if message then return message, code end
      if piece == nil then return nil end
      self.first_at = self.first_at or core.clock()
      if piece ~= "" then
        self._last = self._last + 1
        self._pieces[self._last] = piece
      end
      if run.done then return nil end
    end
  end)
  resume(self)
end

--- The work item is done: resumes the coroutine.
-- @param ok true; or nil with message and code
function Request:_computed(ok, message, code)
  self.item = nil
  resume(self, ok, message, code)
end

--- Resumes a callback that yielded.
function Request:_continue() resume(self) end

-- Ends the request; the pool takes its session back.
local function ended(self)
  self.done, self.item, self.state, self._thread = true, nil, "done", nil
  self.ended_at = core.clock()
  self.pool:_released(self)
end

--- Ends the request with a failure.
-- @param raised true: a callback raised, and next() raises its error again
function Request:_fail(message, code, raised)
  self.message, self.code, self.raised = message, code, raised
  if self.run then self.run.done = true end
  self.result.stop = self.result.stop or "failed"
  ended(self)
end

--- Ends the request with its result so far.
-- @param reason result.stop if the reply did not end by itself
function Request:_complete(reason)
  local result = self.result
  if reason and not result.stop then
    result.stop = reason
    if self.run then
      self.run.done = true
      result.text = self.run:text()
    else
      result.text = ""
    end
  end
  if self.timed_out and result.stop == "stopped" then result.stop = "time" end
  ended(self)
end

--- The next piece. Steps the pool until there is one. nil at the end; nil, message, code if the request failed.
-- @raise the error of a callback of the request
function Request:next()
  local piece, message, code = self:_next(2)
  return piece, message, code
end

--- As next, for callers inside ane.
-- @param level of errors for misuse, as error()'s
function Request:_next(level)
  while true do
    local piece = self:poll()
    if piece ~= nil then return piece end
    if self.done then
      if self.raised then error(self.message, 0) end
      return nil, self.message, self.code
    end
    self.pool:_step(level + 1)
  end
end

--- A piece that is ready, or nil. Does not step the pool.
function Request:poll()
  local first = self._first
  local piece = self._pieces[first]
  if piece ~= nil then
    self._pieces[first] = nil
    self._first = first + 1
  end
  return piece
end

function Request:__call()
  local piece, message = self:_next(2)
  if piece == nil and message then error(message, 2) end
  return piece
end

--- Steps the pool until the reply is complete.
-- @return the result; or nil, message, code
function Request:finish()
  repeat
    local piece, message, code = self:_next(2)
    if message then return nil, message, code end
  until piece == nil
  return self.result
end

--- Ends the reply before its next computation: result.stop is then "stopped".
function Request:stop()
  if not self.done and not self.stopping then self.pool:_stop(self) end
end

--- Ends the reply now. A reply that was not complete has result.stop = "closed".
function Request:close()
  if not self.done then self:_complete "closed" end
end

Request.__close = Request.close
methods.guard(Request, Request, "request")

return M
