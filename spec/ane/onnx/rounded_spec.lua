-- Frequencies of rotary tables that are stored in fp16.
local rounded = require "ane.onnx.rounded"

-- The fp16 number nearest to x; of two the even one. |x| < 65504.
local function half(x)
  if x == 0 then return 0.0 end
  local a = math.abs(x)
  local _, exponent = ("%a"):format(a):match "^(.-)p([+-]%d+)$"
  local unit = 2.0 ^ (math.max(math.tointeger(exponent), -14) - 10)
  local n = math.floor(a / unit)
  local rest = a / unit - n
  if rest > 0.5 or rest == 0.5 and n % 2 == 1 then n = n + 1 end
  return x < 0 and -n * unit or n * unit
end

local function table_of(frequencies, magnitude, rows, round)
  return {
    half = #frequencies, rows = rows,
    cos = function(row, i) return round(magnitude * math.cos(row * frequencies[i + 1])) end,
    sin = function(row, i) return round(magnitude * math.sin(row * frequencies[i + 1])) end,
  }
end

local function single(x) return (("<f"):unpack(("<f"):pack(x))) end

-- Frequencies of `dims` dimensions, divided as longrope does.
local function long_frequencies(dims, slope)
  local list = {}
  for i = 0, dims // 2 - 1 do list[i + 1] = 10000.0 ^ (-2 * i / dims) / (1 + slope * i * (7 * i % 5)) end
  return list
end

-- Numbers of a table that differ from those of other frequencies.
local function wrong(t, list, magnitude)
  local made, n = table_of(list, magnitude, t.rows, half), 0
  for row = 0, t.rows - 1 do
    for i = 0, t.half - 1 do
      if made.cos(row, i) ~= t.cos(row, i) then n = n + 1 end
      if made.sin(row, i) ~= t.sin(row, i) then n = n + 1 end
    end
  end
  return n
end

describe("rotary tables in fp16", function()
  it("are told from tables in fp32", function()
    local list = long_frequencies(16, 0.3)
    assert.is_true(rounded.is_half(table_of(list, 1.2, 64, half)))
    assert.is_nil(rounded.is_half(table_of(list, 1.2, 64, single)))
    assert.is_nil(rounded.is_half(table_of(list, 1.2, 1, half)))
  end)

  --- dims, slope of the divisors, magnitude, rows
  local cases = {
    { 12, 0.1, 1.2649110641, 32 }, { 12, 0.6, 1.2247448714, 256 }, { 32, 0.6, 1.3228756555, 128 }, { 20, 0.4, 1.1902380714, 600 },
    { 24, 0.0, 1.0, 100 },
  }
  for _, case in ipairs(cases) do
    local dims, slope, magnitude, rows = table.unpack(case)
    it(("of %d dimensions and %d rows get frequencies that give their numbers"):format(dims, rows), function()
      local want, list = long_frequencies(dims, slope), {}
      local t = table_of(want, magnitude, rows, half)
      for i, f in ipairs(want) do list[i] = f * (1 + 1e-4 / rows) end
      local got = rounded.fit(t, list)
      assert.is_true(math.abs(got - magnitude) < 5e-6, got)
      assert.is_true(wrong(t, list, got) <= 2 * rows * t.half // 1000)
    end)
  end

  it("take a magnitude that is known, as of a longer table", function()
    local want, list = long_frequencies(16, 0.2), {}
    local t = table_of(want, 1.3228756555, 16, half)
    for i, f in ipairs(want) do list[i] = f + 1e-6 end
    assert.equal(1.3228756555, rounded.fit(t, list, 1.3228756555))
    assert.equal(0, wrong(t, list, 1.3228756555))
  end)
end)
