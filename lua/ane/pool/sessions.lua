--- The sessions of a pool whose program shares no pages (ane.pool.prefixes). Each request gets a free one with the longest known
-- prefix of its prompt, within a memory budget.
-- Needs ane.util.list. Sessions of ended replies are kept; the least recently used are closed first. A prompt that shares a prefix with
-- a session takes it over. It takes a fork instead if the session still has use for its other tokens.
-- Usage: `local all = sessions.new(engine, { most = 8, memory = 2 << 30 }); local s = all:acquire(ids)`

local common_prefix = require("ane.util.list").common_prefix

local M = {}

local Sessions = {}
Sessions.__index = Sessions

-- Shorter prefixes are computed again, because a fork copies all that its source holds.
local WORTH_A_FORK = 32

--- @param engine open(opts) -> session of ane.generate.session; or nil, message, code
-- @param opts context, kv (of each session), most (busy and idle ones), memory (bytes)
function M.new(engine, opts)
  return setmetatable({ _engine = engine, _opts = opts, _busy = {}, _idle = {}, _bytes_per_token = 0 }, Sessions)
end

-- The session with these adapters and the longest start of ids: {session, common, index in the idle list or nil}.
local function best_of(self, ids, adapters)
  local best, key = { common = 0 }, adapters and adapters.key
  for i, s in ipairs(self._idle) do
    local n = s.adapters_key == key and common_prefix(s.ids, ids) or 0
    if n > best.common then best = { session = s, common = n, idle = i } end
  end
  for s in pairs(self._busy) do
    if s:_raw() and s.adapters_key == key then
      local n = common_prefix(s.ids, ids)
      if n > best.common then best = { session = s, common = n } end
    end
  end
  return best
end

local function open(self, adapters)
  return self._engine.open({ context = self._opts.context, kv = self._opts.kv }, adapters)
end

--- A session for a prompt, which may hold a part of it already.
-- @param adapters that the session carries (ane.model.adapters); nil: the model's own
-- @return a session; or nil, message, code
function Sessions:acquire(ids, adapters)
  local best = best_of(self, ids, adapters)
  local session, message, code
  if best.idle and 2 * best.common >= best.session.length then
    session = table.remove(self._idle, best.idle)
  elseif best.common >= WORTH_A_FORK and best.session.length <= 8 * best.common then
    session, message, code = best.session:fork()
  else
    session, message, code = open(self, adapters)
  end
  while not session and code == "memory" and #self._idle > 0 do -- idle sessions are closed
    table.remove(self._idle, 1):close()
    session, message, code = open(self, adapters)
  end
  if not session then return nil, message, code end
  self._busy[session] = true
  return session
end

--- Handles the end of a reply: keeps its session, at the end of the list.
-- @param preempted true: it holds nothing
function Sessions:give_back(session, preempted)
  self._busy[session] = nil
  if preempted or session.closed or session.length == 0 then return session:close() end
  session:unstop()
  table.insert(self._idle, session)
  self:trim()
end

--- Bytes of cached state of all sessions.
function Sessions:bytes()
  local sum = 0
  for _, s in ipairs(self._idle) do sum = sum + s:kv_bytes() end
  for s in pairs(self._busy) do
    if s:_raw() then
      local bytes, length = s:kv_bytes(), s.length
      sum = sum + bytes
      if length > 0 then self._bytes_per_token = math.max(self._bytes_per_token, bytes / math.max(length, 64)) end
    end
  end
  return sum
end

--- Closes kept sessions, the least recently used first, until their number and all states are within the limits.
function Sessions:trim()
  while #self._idle > 0 and (#self._idle > self._opts.most or self:over()) do table.remove(self._idle, 1):close() end
end

--- Closes all kept sessions.
function Sessions:forget()
  while #self._idle > 0 do table.remove(self._idle):close() end
end

--- Returns whether the states exceed the memory limit.
function Sessions:over() return self._opts.memory < math.huge and self:bytes() > self._opts.memory end

--- Returns whether n more tokens would fit.
function Sessions:fits(n)
  return self._opts.memory == math.huge or self:bytes() + n * self._bytes_per_token <= self._opts.memory
end

--- Frees the state of a busy session for a while.
-- @return the ids that it held
function Sessions.preempt(_, session)
  local ids = session.ids
  session:_replace_raw(nil)
  return ids
end

--- Gives a preempted session an empty state.
-- @return 0, the number of its ids that it holds again; or nil, message, code
function Sessions:reopen(session)
  local fresh, message, code = open(self, session._adapters)
  if not fresh then return nil, message, code end
  session:_replace_raw(fresh:_release_raw())
  return 0
end

--- Operations that only ane.pool.prefixes needs.
function Sessions.known() return 0 end
function Sessions.note() end
function Sessions.known_bytes() return 0 end
function Sessions.save() return nil, "sessions of this engine share no prefixes", "unsupported" end
Sessions.load = Sessions.save

--- Number of idle sessions.
function Sessions:cached() return #self._idle end

function Sessions:close()
  for _, s in ipairs(self._idle) do s:close() end
  self._idle = {}
end

return M
