--- Marks in a text that comes piece by piece: stop strings, tags. Needs nothing.
-- Usage: `local at, mark, held = marks.find("Hello <|en", { "<|end|>" }) --> nil, nil, 4`

local M = {}

-- The length of the longest end of the text that is the beginning of a mark, but no whole mark.
local function begun(text, marks)
  local longest = 0
  for _, mark in ipairs(marks) do
    for n = math.min(#mark - 1, #text), longest + 1, -1 do
      if text:sub(-n) == mark:sub(1, n) then
        longest = n
        break
      end
    end
  end
  return longest
end

--- Finds the first mark in a text; of several at one place, the one named first.
-- @param text the part that is known
-- @param marks list of texts, none empty; they are plain text, not patterns
-- @return the mark's first byte and the mark; or nil, nil and the number of bytes at the end of the text that may begin one
function M.find(text, marks)
  local first, found
  for _, mark in ipairs(marks) do
    local at = text:find(mark, 1, true)
    if at and (not first or at < first) then first, found = at, mark end
  end
  if first then return first, found, 0 end
  return nil, nil, begun(text, marks)
end

return M
