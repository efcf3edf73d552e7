--- Marks in a text that comes piece by piece: stop strings, tags. Needs nothing.
-- Usage: `local at, mark, held = marks.find("Hello <|en", { "<|end|>" }) --> nil, nil, 4`

local M = {}

-- The length of the longest end of the text that is the beginning of a mark, but no whole mark.
local function begun(text, marks)
  local longest = 0
  for _, mark in ipairs(marks) do
    local first = mark:sub(1, 1)
    local at = text:find(first, math.max(1, #text - #mark + 2), true)
    while at and #text - at + 1 > longest do
      if mark:sub(1, #text - at + 1) == text:sub(at) then
        longest = #text - at + 1
      else
        at = text:find(first, at + 1, true)
      end
    end
  end
  return longest
end

-- The same for the text from byte `at` on.
local function begun_from(text, marks, at) return begun(text:sub(math.max(at, #text - M.longest(marks) + 2)), marks) end

--- Finds the first mark in a text; of several that begin at one byte, the one named first.
-- @param text the part that is known
-- @param marks list of texts, none empty; they are plain text, not patterns
-- @param at the byte to begin with; default 1
-- @return the mark's first byte and the mark; or nil, nil and the number of bytes at the end of the text that may begin one
function M.find(text, marks, at)
  local first, found
  for _, mark in ipairs(marks) do
    local hit = text:find(mark, at or 1, true)
    if hit and (not first or hit < first) then first, found = hit, mark end
  end
  if first then return first, found, 0 end
  return nil, nil, begun_from(text, marks, at or 1)
end

--- Searches a text from several positions, each at or after the one before. All searches together read the text once for each mark.
-- @param text the part that is known
-- @param marks as for find
-- @return function(at): what find returns from byte `at` on
function M.search(text, marks)
  local hits = {}
  return function(at)
    local first, found
    for i, mark in ipairs(marks) do
      if hits[i] == nil or hits[i] and hits[i] < at then hits[i] = text:find(mark, at, true) or false end
      if hits[i] and (not first or hits[i] < first) then first, found = hits[i], mark end
    end
    if first then return first, found, 0 end
    return nil, nil, begun_from(text, marks, at)
  end
end

--- The length of the longest mark of a list; 0 if it is empty.
function M.longest(marks)
  local most = 0
  for _, mark in ipairs(marks) do most = math.max(most, #mark) end
  return most
end

return M
