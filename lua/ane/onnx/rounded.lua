--- Frequencies of rope tables that are stored in fp16.
-- A stored number x stands for every number that rounds to it. The frequencies and the magnitude (the factor on cosine and sine) are
-- chosen so that cosines and sines computed in fp32 and rounded to fp16 are the stored numbers.
-- A table is {half, rows, cos(row, i), sin(row, i)}: `half` frequencies i = 0, 1, ...; row = position.
-- Usage: `if rounded.is_half(t) then local magnitude = rounded.fit(t, list) end`

local M = {}

-- Most rows of a column that are compared.
local MOST_ROWS = 512

-- Most numbers of a table from which the magnitude is found.
local MOST_NUMBERS = 12000

--- Returns whether the numbers of a table are rounded to fp16. Of other fp32 numbers, 1 in 8192 ends in 13 zero bits.
-- @return true or nil
function M.is_half(t)
  for row = 1, math.min(t.rows - 1, 7) do
    for i = 0, t.half - 1 do
      for _, x in ipairs { t.cos(row, i), t.sin(row, i) } do
        if math.abs(x) > 2.0 ^ -14 and ("<I4"):unpack(("<f"):pack(x)) & 0x1FFF ~= 0 then return nil end
      end
    end
  end
  return t.rows > 1 and true or nil
end

-- The frequency near f that fits the phases of many rows best (least squares); the phase of one row has a rounding error.
local function settle(t, i, f)
  local step, up, down = math.max(t.rows // MOST_ROWS, 1), 0.0, 0.0
  for row = t.rows - 1, t.rows // 2, -step do
    local phase = math.atan(t.sin(row, i), t.cos(row, i))
    phase = phase + 2 * math.pi * math.floor((f * row - phase) / (2 * math.pi) + 0.5)
    up, down = up + row * phase, down + row * row
  end
  return down > 0 and up / down or f
end

-- The lowest and the highest number that round to the fp16 number x.
local function bounds(x)
  local a = math.max(math.abs(x), 2.0 ^ -14)
  local exponent = math.floor(math.log(a, 2))
  if 2.0 ^ exponent > a then exponent = exponent - 1 elseif 2.0 ^ (exponent + 1) <= a then exponent = exponent + 1 end
  local above = 2.0 ^ (exponent - 11) -- half of the distance to the next number away from zero
  local below = a == 2.0 ^ exponent and exponent > -14 and above / 2 or above
  if x < 0 then return x - above, x + below end
  return x - below, x + above
end

-- Largest relative error of one operation in fp32.
local SINGLE = 2.0 ^ -24

-- The constraints of column i on the magnitude m and on the change e of frequency f: low <= m (base + slope * e) <= high. base is cos or
-- sin of row * f, slope its derivative by f. The bounds are those of the stored number, wider by the errors of fp32.
-- Returns base, slope, low and high of all constraints in one list.
local function constraints(t, i, f, step)
  local list, n = {}, 0
  local function add(base, slope, x)
    local low, high = bounds(x)
    local slack = SINGLE * (2 * math.abs(x) + math.abs(slope * f))
    list[n + 1], list[n + 2], list[n + 3], list[n + 4] = base, slope, low - slack, high + slack
    n = n + 4
  end
  for row = 0, t.rows - 1, step do
    local c, s = math.cos(row * f), math.sin(row * f)
    add(c, -s * row, t.cos(row, i))
    add(s, c * row, t.sin(row, i))
  end
  return list
end

-- The middle of the values of e that the constraints allow with magnitude m; if they allow none, the middle between the highest lower
-- limit and the lowest upper limit. Constraints that hardly depend on e are left out.
local function middle(list, m)
  local least, most, steep = -math.huge, math.huge, 0.1
  for k = 1, #list, 4 do
    local slope = list[k + 1]
    if slope > steep or slope < -steep then
      local a, b = (list[k + 2] / m - list[k]) / slope, (list[k + 3] / m - list[k]) / slope
      if slope < 0 then a, b = b, a end
      if a > least then least = a end
      if b < most then most = b end
    end
  end
  if least == -math.huge or most == math.huge then return 0.0 end
  return (least + most) / 2
end

-- The sum of the distances by which numbers computed with m and e are outside of their bounds.
local function outside(list, m, e)
  local sum = 0.0
  for k = 1, #list, 4 do
    local v = m * (list[k] + list[k + 1] * e)
    if v < list[k + 2] then sum = sum + list[k + 2] - v elseif v > list[k + 3] then sum = sum + v - list[k + 3] end
  end
  return sum
end

-- The magnitude that fits many rows best: the mean of their projections on the rotation by the frequencies.
local function projected(t, list)
  local sum, n = 0.0, 0
  for row = 0, t.rows - 1, math.max(1, t.rows // MOST_ROWS) do
    for i = 0, t.half - 1 do
      local phase = row * list[i + 1]
      sum, n = sum + t.cos(row, i) * math.cos(phase) + t.sin(row, i) * math.sin(phase), n + 1
    end
  end
  return sum / n
end

-- The magnitude within `reach` steps of m that has the least sum outside of the bounds; the middle if several have.
local function search(columns, m, step, reach)
  local sums, least = {}, math.huge
  for k = -reach, reach do
    local sum, magnitude = 0.0, m + k * step
    for _, list in ipairs(columns) do sum = sum + outside(list, magnitude, middle(list, magnitude)) end
    sums[k], least = sum, math.min(least, sum)
  end
  local first, last
  for k = -reach, reach do
    if sums[k] <= least * 1.01 + 1e-7 then first, last = first or k, k end
  end
  return m + (first + last) / 2 * step
end

-- The searches for the magnitude, one after the other: the step, and the number of steps to each side. The error of the projection, with
-- which they begin, is up to 2e-4.
local STEPS = { { 1e-5, 50 }, { 1e-6, 20 }, { 1e-7, 20 } }

-- The magnitude of a table, from frequencies near the right ones.
local function magnitude_of(t, list)
  local columns, skip = {}, math.max(1, t.half // 16)
  local every = math.max(1, t.rows * (t.half // skip) // MOST_NUMBERS)
  for i = 0, t.half - 1, skip do columns[#columns + 1] = constraints(t, i, list[i + 1], every) end
  local m = projected(t, list)
  for _, s in ipairs(STEPS) do m = search(columns, m, s[1], s[2]) end
  return m
end

--- Changes frequencies in place, so that they give the stored numbers.
-- @param list frequencies near the right ones, radians per position
-- @param magnitude the factor on cosine and sine; nil: it is found
-- @return the magnitude
function M.fit(t, list, magnitude)
  for i = 0, t.half - 1 do list[i + 1] = settle(t, i, list[i + 1]) end
  magnitude = magnitude or magnitude_of(t, list)
  if math.abs(magnitude - 1) < 1e-3 then magnitude = 1.0 end
  for _ = 1, 2 do -- the constraints are linear near the frequency
    for i = 0, t.half - 1 do
      local column = constraints(t, i, list[i + 1], math.max(1, t.rows // MOST_ROWS))
      list[i + 1] = list[i + 1] + middle(column, magnitude)
    end
  end
  return magnitude
end

return M
