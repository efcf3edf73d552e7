--- Call sizes of package sets: which sizes are possible, and which function of each package a call runs.
-- Needs nothing. Usage: `local sizes = calls.sizes(packages); local size, tokens = calls.choose(program, n, length)`
--
-- A function takes a fixed number of tokens T, or a range, and sees as many positions as its `context` says. Sizes are disjoint
-- ranges {low, high} of tokens, in ascending order, for which every package of the set has a function.

local M = {}

-- The intersection of two lists of ranges.
local function both(a, b)
  local out = {}
  for _, x in ipairs(a) do
    for _, y in ipairs(b) do
      local low, high = math.max(x.low, y.low), math.min(x.high, y.high)
      if low <= high then out[#out + 1] = { low = low, high = high } end
    end
  end
  return out
end

-- Merges ranges that overlap or touch.
local function merged(list)
  table.sort(list, function(a, b) return a.low < b.low end)
  local out = {}
  for _, r in ipairs(list) do
    local last = out[#out]
    if last and r.low <= last.high + 1 then last.high = math.max(last.high, r.high)
    else out[#out + 1] = { low = r.low, high = r.high } end
  end
  return out
end

--- Sizes that all packages take; empty where there are none.
-- @param packages list of {functions = list of {low, high}}
function M.sizes(packages)
  local sizes
  for _, p in ipairs(packages) do
    local own = {}
    for i, f in ipairs(p.functions) do own[i] = { low = f.low, high = f.high } end
    own = merged(own)
    sizes = sizes and both(sizes, own) or own
  end
  return merged(sizes or {})
end

--- Returns whether a package takes a call of n tokens.
function M.takes(p, n)
  for _, f in ipairs(p.functions) do
    if f.low <= n and n <= f.high then return true end
  end
  return false
end

--- The function of a package for n tokens, the last of them at position `upto` - 1. Of several that fit, the one that sees the
-- fewest positions.
-- @return function; nil: there is none
function M.function_for(p, n, upto)
  local best
  for _, f in ipairs(p.functions) do
    local fits = f.low <= n and n <= f.high and (not f.context or upto <= f.context)
    if fits and (not best or (f.context or 0) < (best.context or 0)) then best = f end
  end
  return best
end

-- The largest size of at most n, and the smallest of at least n; each is nil if there is none.
local function around(sizes, n)
  local below, above
  for _, r in ipairs(sizes) do
    if r.low <= n then below = math.min(r.high, n) end
    if not above and r.high >= n then above = math.max(r.low, n) end
  end
  return below, above
end

--- The next call for n tokens or the first of them: its size, and how many of the n it takes. The rest is padding. A call is
-- padded if more than half of it is tokens, or if there is no smaller size.
-- @param program sizes; whole: all tokens in one call; exact_calls: no padding
-- @param room largest size
-- @return size, tokens; nil: no call fits
function M.choose(program, n, room)
  local below, above = around(program.sizes, n)
  if above and above > room then above = nil end
  while below and below > room do below = around(program.sizes, math.min(below - 1, room)) end
  if program.whole then below = below == n and below or nil end
  if program.exact_calls and above ~= n then above = nil end
  if above and (not below or above < 2 * n) then return above, n end
  if below then return below, below end
  return nil
end

return M
