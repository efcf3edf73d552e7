--- Reusable sessions for computing whole sequences: made once, emptied for each batch.
-- Needs nothing. Usage: `local list <close> = empty_sessions.new(program, "fp16"); assert(list:ready(8, 128)); list[1]:feed(ids)`

local M = {}

local List = {}
List.__index = List

--- An empty list. Close it.
-- @param program of ane.core
-- @param kv type of the state
function M.new(program, kv) return setmetatable({ _program = program, _kv = kv, _context = 0 }, List) end

function List:close()
  for i = #self, 1, -1 do
    self[i]:close()
    self[i] = nil
  end
end
List.__close = List.close

--- Prepares `n` empty sessions for `length` tokens each: entries 1 .. n.
-- @return true; or nil, message, code
function List:ready(n, length)
  if length > self._context then
    self:close()
    self._context = length
  end
  for i = 1, n do
    local ok, message, code
    if self[i] then
      ok, message, code = self[i]:rewind(0)
    else
      self[i], message, code = self._program:session { context = self._context, kv = self._kv }
      ok = self[i]
    end
    if not ok then return nil, message, code end
  end
  return true
end

return M
