--- Decides when a reply ends before its limit: stop strings, and n-grams that repeat.
-- Needs nothing. Usage: `local w = stops.watch {"\n\n"}; local text, found = w:push(piece)`

local M = {}

local Watch = {}
Watch.__index = Watch

--- A watcher over streamed text for a list of stop strings. It holds back text that may be the start of one.
function M.watch(strings)
  return setmetatable({ strings = strings, held = "" }, Watch)
end

-- Returns the length of the longest suffix of the text that is a prefix of one of the strings.
local function partial(text, strings)
  local longest = 0
  for _, stop in ipairs(strings) do
    for n = math.min(#stop - 1, #text), longest + 1, -1 do
      if text:sub(-n) == stop:sub(1, n) then
        longest = n
        break
      end
    end
  end
  return longest
end

--- Takes the next piece of text.
-- @return text that can no longer be part of a stop string; the stop string once one is complete (the text then ends before it)
function Watch:push(piece)
  if not self.strings[1] then return piece end
  local text = self.held .. piece
  local first, found
  for _, stop in ipairs(self.strings) do
    local at = text:find(stop, 1, true)
    if at and (not first or at < first) then first, found = at, stop end
  end
  if found then
    self.held = ""
    return text:sub(1, first - 1), found
  end
  local n = partial(text, self.strings)
  self.held = text:sub(#text - n + 1)
  return text:sub(1, #text - n)
end

--- Returns the text that is still held back, once no more text comes.
function Watch:flush()
  local text = self.held
  self.held = ""
  return text
end

local Repeats = {}
Repeats.__index = Repeats

--- Makes a counter of n-grams of tokens.
-- @param size tokens of one n-gram
-- @param times how often one must occur to count as a repeat
function M.repeats(size, times)
  return setmetatable({ size = size, times = times, seen = {} }, Repeats)
end

--- Counts the n-gram at the end of a list of ids.
-- @return true if it has occurred `times` times
function Repeats:push(ids)
  local n = #ids
  if n < self.size then return false end
  local key = table.concat(ids, " ", n - self.size + 1, n)
  local count = (self.seen[key] or 0) + 1
  self.seen[key] = count
  return count >= self.times
end

return M
