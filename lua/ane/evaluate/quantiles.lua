--- Medians and percentiles of measurements. Needs nothing.
-- Usage: `local m, p99 = quantiles.median(seconds), quantiles.percentile(seconds, 0.99)`

local M = {}

local function ascending(list)
  local copy = table.move(list, 1, #list, 1, {})
  table.sort(copy)
  return copy
end

--- The middle number, or the mean of the two in the middle.
-- @param list of at least one number, in any order
function M.median(list)
  local sorted, n = ascending(list), #list
  return (sorted[(n + 1) // 2] + sorted[n // 2 + 1]) / 2
end

--- The nearest-rank percentile, which is one of the list's own numbers; nil for an empty list.
-- @param list of numbers, in any order
-- @param share 0 .. 1: the share of the numbers that are at most the result
function M.percentile(list, share) return ascending(list)[math.max(1, math.ceil(share * #list))] end

return M
