--- What the readers of grammar texts share: a position in a text, and faults that name it. Needs nothing.
-- A reader is a table with `text`, `at` (the next byte) and `depth` (groups that are open). Its faults are raised as { message }, which
-- the read function catches.
-- Usage: `local self = { text = text, at = 1, depth = 0 }; local name = cursor.take(self, "%a+") or cursor.fail(self, "expected a name")`

local M = {}

-- Most groups in groups. Each level takes a few calls of Lua.
local MOST_DEPTH = 200

--- Raises a fault at the current position.
-- @param what is wrong
function M.fail(self, what)
  local before = self.text:sub(1, self.at - 1)
  local _, line = before:gsub("\n", "")
  local start = before:match "^.*\n()" or 1 -- in one pass: lines may be long
  error({ message = ("line %d, column %d: %s"):format(line + 1, self.at - start + 1, what) }, 0)
end

--- Reads what a pattern of Lua without captures matches at the current position.
-- @return the text that is read; nil if the pattern does not match
function M.take(self, pattern)
  local found, to = self.text:match("^(" .. pattern .. ")()", self.at)
  if found then self.at = to end
  return found
end

--- Notes that a group begins; the reader lowers `depth` where it ends. Too many groups in groups are a fault.
function M.enter(self)
  self.depth = self.depth + 1
  if self.depth > MOST_DEPTH then M.fail(self, ("groups are nested more than %d deep"):format(MOST_DEPTH)) end
end

--- The character of an escape. Its code must be at most U+10FFFF and no half of a surrogate pair.
-- @param digits hexadecimal digits of the code
-- @return the character as UTF-8
function M.character(self, digits)
  local code = tonumber(digits, 16)
  if code > 0x10FFFF or code >= 0xD800 and code <= 0xDFFF then M.fail(self, "the escape names no character") end
  return utf8.char(code)
end

return M
