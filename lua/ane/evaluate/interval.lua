--- Confidence intervals of means over windows of unequal length.
-- Needs nothing. Usage: `local low, high = interval.of(windows, function(w) return w.sum end)`
--
-- The mean is a ratio of two sums, value and count. Its standard error is the one of a ratio estimator (Cochran 1977, Sampling
-- Techniques, section 2.11), times the quantile of Student's t for one degree of freedom less than there are windows.

local M = {}

-- The 0.975 quantile of the normal distribution.
local Z = 1.959963984540054

-- The 0.975 quantile of Student's t: exact for 1 and 2 degrees of freedom, else the expansion around the normal one (Abramowitz and
-- Stegun 26.7.5), which is 0.3 % low at 3 degrees.
local function student(degrees)
  if degrees == 1 then return 12.706204736432095 end
  if degrees == 2 then return 4.302652729911275 end
  local z, n = Z, degrees
  local a, b = (z ^ 3 + z) / 4, (5 * z ^ 5 + 16 * z ^ 3 + 3 * z) / 96
  local c = (3 * z ^ 7 + 19 * z ^ 5 + 17 * z ^ 3 - 15 * z) / 384
  local d = (79 * z ^ 9 + 776 * z ^ 7 + 1482 * z ^ 5 - 1920 * z ^ 3 - 945 * z) / 92160
  return z + a / n + b / n ^ 2 + c / n ^ 3 + d / n ^ 4
end

--- The 95 % interval of sum(value) / sum(count).
-- @param windows list of {count = terms of the window, ...}
-- @param value function(window) -> the sum of the window's terms
-- @return low, high; nil if there are fewer than two windows
function M.of(windows, value)
  local n, total, count = #windows, 0.0, 0
  if n < 2 then return nil end
  for _, w in ipairs(windows) do total, count = total + value(w), count + w.count end
  local mean, square = total / count, 0.0
  for _, w in ipairs(windows) do square = square + (value(w) - mean * w.count) ^ 2 end
  local error = math.sqrt(n / (n - 1) * square) / count
  return mean - student(n - 1) * error, mean + student(n - 1) * error
end

return M
