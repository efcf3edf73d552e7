--- Decides when a reply ends before its limit: stop strings, and n-grams that repeat.
-- Needs ane.util.marks. Usage: `local w = stops.watch {"\n\n"}; local text, found = w:push(piece)`

local marks = require "ane.util.marks"

local M = {}

local Watch = {}
Watch.__index = Watch

--- A watcher over streamed text for a list of stop strings. It holds back text that may be the start of one.
function M.watch(strings)
  return setmetatable({ strings = strings, held = "" }, Watch)
end

--- Takes the next piece of text.
-- @return text that can no longer be part of a stop string; the stop string once one is complete (the text then ends before it)
function Watch:push(piece)
  if not self.strings[1] then return piece end
  local text = self.held .. piece
  local first, found, n = marks.find(text, self.strings)
  if first then
    self.held = ""
    return text:sub(1, first - 1), found
  end
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
