--- The sessions of a pool whose program shares pages of cached state. Each request continues from the longest known prefix of its
-- prompt, without copying it.
-- Needs nothing. Prefixes of ended replies are kept in a tree (csrc/kv); the least recently used are dropped first. The interface
-- is that of ane.pool.sessions.
-- Usage: `local all = prefixes.new(engine, { memory = 2 << 30, prefix_memory = 1 << 30 }); local s = all:acquire(ids)`

local M = {}

local Prefixes = {}
Prefixes.__index = Prefixes

local PAGE = 64 -- positions

--- @param engine open(opts) -> session of ane.generate.session, prefixes() -> known prefixes of the core; or nil, message, code
-- @param opts context (of each session), memory (bytes of all pages), prefix_memory (bytes of the known ones)
-- @return the sessions; or nil, message, code
function M.new(engine, opts)
  local tree, message, code = engine.prefixes()
  if not tree then return nil, message, code end
  local _, page_bytes = tree:bytes()
  return setmetatable({ _engine = engine, _opts = opts, _tree = tree, _page_bytes = page_bytes }, Prefixes)
end

-- An empty session that shares pages. If memory runs out, known prefixes are dropped.
local function open(self, adapters)
  local session, message, code = self._engine.open({ context = self._opts.context, prefixes = self._tree }, adapters)
  if not session and code == "memory" and self._tree:forget(math.maxinteger) > 0 then
    session, message, code = self._engine.open({ context = self._opts.context, prefixes = self._tree }, adapters)
  end
  return session, message, code
end

--- A session for a prompt, which already holds the known prefix.
-- @param adapters of the request, or nil
-- @return a session; or nil, message, code
function Prefixes:acquire(ids, adapters)
  local session, message, code = open(self, adapters)
  if not session then return nil, message, code end
  session:_raw():begin(self._tree, ids)
  return session
end

--- Number of tokens of a prompt without adapters that acquire() would find known.
function Prefixes:known(ids) return self._tree:known(ids) end

--- Makes the pages that a session has filled known, so that other sessions can continue from them. If there is no memory for the tree,
-- they stay unknown.
function Prefixes:note(session) session:_raw():keep(self._tree) end

--- Handles the end of a reply: keeps the content of its session.
-- @param preempted true: it holds nothing
function Prefixes:give_back(session, preempted)
  if not preempted and not session.closed then session:_raw():keep(self._tree, true) end
  session:close()
  self:trim()
end

--- Bytes of all pages, each counted once.
function Prefixes:bytes() return (self._tree:bytes()) end

--- Bytes of the pages that are known.
function Prefixes:known_bytes() return self._tree:count() * self._page_bytes end

--- Drops known prefixes that no session uses, until they and all states are within the limits.
function Prefixes:trim()
  local excess = math.max(self:known_bytes() - self._opts.prefix_memory, self:bytes() - self._opts.memory)
  if excess > 0 then self._tree:forget(math.ceil(excess)) end
end

--- Drops all known prefixes that no session uses.
function Prefixes:forget() self._tree:forget(math.maxinteger) end

--- Returns whether the states exceed the memory limit.
function Prefixes:over()
  if self:bytes() <= self._opts.memory then return false end
  self:trim()
  return self:bytes() > self._opts.memory
end

--- Returns whether n more tokens would fit.
function Prefixes:fits(n)
  local more = (n + PAGE - 1) // PAGE * self._page_bytes
  local excess = self:bytes() + more - self._opts.memory
  if excess > 0 then self._tree:forget(math.ceil(excess)) end
  return self:bytes() + more <= self._opts.memory
end

--- Frees the state of a busy session for a while.
-- @return the ids that it held
function Prefixes.preempt(_, session)
  local ids = session.ids
  session:_replace_raw(nil)
  return ids
end

--- Restores the state of a preempted session, with the known prefix of the ids that it held.
-- @return how many of these ids it holds; or nil, message, code
function Prefixes:reopen(session, ids)
  local fresh, message, code = open(self, session._adapters)
  if not fresh then return nil, message, code end
  local raw = fresh:_release_raw()
  session:_replace_raw(raw)
  if #ids == 0 then return 0 end
  local all = table.move(ids, 1, #ids, 1, {})
  all[#all + 1] = ids[#ids] -- a prefix is always shorter than the whole
  return raw:begin(self._tree, all)
end

--- Number of idle sessions: none, because the tree holds their content.
function Prefixes.cached() return 0 end

--- Writes the known prefixes to a file, and reads such a file.
-- @return true; or nil, message, code
function Prefixes:save(path) return self._tree:save(path) end
function Prefixes:load(path)
  local most = math.min(self._opts.prefix_memory, self._opts.memory - self:bytes())
  return self._tree:restore(path, most == math.huge and math.maxinteger or math.max(0, math.floor(most)))
end

function Prefixes:close() self._tree:close() end

return M
