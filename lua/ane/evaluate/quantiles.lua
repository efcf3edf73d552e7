--- Medians and percentiles of measurements. Needs nothing.
-- Usage: `table.sort(seconds); local m, p99 = quantiles.median(seconds), quantiles.percentile(seconds, 0.99)`

local M = {}

--- The middle number, or the mean of the two in the middle.
-- @param sorted ascending list of at least one number
function M.median(sorted)
  local n = #sorted
  return (sorted[(n + 1) // 2] + sorted[n // 2 + 1]) / 2
end

--- The nearest-rank percentile, which is one of the list's own numbers; nil for an empty list.
-- @param sorted ascending list
-- @param share 0 .. 1: the share of the numbers that are at most the result
function M.percentile(sorted, share) return sorted[math.max(1, math.ceil(share * #sorted))] end

return M
