--- JSON objects that differ in one text: all but the text is encoded once.
-- Needs ane.core.
-- Usage: `local encode = frame.new(function(text) return { id = 1, text = text } end); print(encode "a")`

local core = require "ane.core"

local M = {}

-- The text that is replaced by others.
local HOLE = "\1\2\1"

--- Makes an encoder.
-- @param build function(text) -> value for JSON, which holds the text once and is otherwise the same for each text
-- @return function(text) -> JSON of build(text)
function M.new(build)
  local json, hole = core.json_encode(build(HOLE)), core.json_encode(HOLE)
  local first, last = json:find(hole, 1, true)
  -- If another text of the value holds the hole too, the value is encoded as a whole each time.
  if not first or json:find(hole, last + 1, true) then return function(text) return core.json_encode(build(text)) end end
  local head, tail = json:sub(1, first - 1), json:sub(last + 1)
  return function(text) return head .. core.json_encode(text) .. tail end
end

return M
