--- A stable merge sort. table.sort is not stable, and a fault of a comparison must not pass through a C function.
-- Needs ane.jinja.limits. Usage: `sort.stable(rt, items, function(a, b) return a < b end)`

local limits = require "ane.jinja.limits"

local M = {}

local function merge(rt, from, to, low, middle, high, less)
  local i, j = low, middle
  for k = low, high - 1 do
    limits.tick(rt, 2)
    if i < middle and (j >= high or not less(from[j], from[i])) then
      to[k], i = from[i], i + 1
    else
      to[k], j = from[j], j + 1
    end
  end
end

--- A sorted copy of items. less(a, b) must be a strict order.
function M.stable(rt, items, less)
  local n = #items
  limits.table(rt, 2 * n)
  local from, to = table.move(items, 1, n, 1, {}), {}
  local width = 1
  while width < n do
    for low = 1, n, 2 * width do
      merge(rt, from, to, low, math.min(low + width, n + 1), math.min(low + 2 * width, n + 1), less)
    end
    from, to, width = to, from, 2 * width
  end
  return from
end

return M
