-- Lists of numbers for specs that compare results with sums in double precision.
local assert = require "luassert"

local M = {}

-- n numbers in -1 .. 1 that float32 holds exactly.
function M.made(n, seed)
  local list = {}
  for i = 1, n do list[i] = ((i * 7919 + seed * 104729) % 2049 - 1024) / 1024 end
  return list
end

-- Asserts that each got[i] is within tolerance (1 + |want[i]|) of want[i].
function M.near(want, got, tolerance)
  assert.equal(#want, #got)
  for i, v in ipairs(want) do
    assert.is_true(math.abs(v - got[i]) <= tolerance * (1 + math.abs(v)), ("%d: %s, wanted %s"):format(i, got[i], v))
  end
end

-- `near` with a tolerance that a call need not give.
function M.near_within(default)
  return function(want, got, tolerance) M.near(want, got, tolerance or default) end
end

return M
