-- Matrices whose rows are made when they are read: every kind of storage against the formula of struct ane_gather in doubles.
local testing = require("ane.core").testing

local ROWS, COLS = 6, 64

local function random(seed)
  local state = seed
  return function(n)
    state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
    return (state >> 33) % n
  end
end

local function floats(bytes)
  local out = {}
  for at = 1, #bytes, 4 do out[#out + 1] = ("<f"):unpack(bytes, at) end
  return out
end

-- Codes of `bits` bits, lower bits first.
local function packed(codes, bits)
  local out = {}
  for i, code in ipairs(codes) do
    local at = (i - 1) * bits
    out[at // 8 + 1] = (out[at // 8 + 1] or 0) | (code << at % 8)
  end
  for i, byte in ipairs(out) do out[i] = string.char(byte) end
  return table.concat(out)
end

-- The matrix by the formula: codes 0 .. 2^bits - 1, scale(r, c) and zero(r, c) in the codes' own numbers.
local function expected(o, rows)
  local out = {}
  for r = 0, rows - 1 do
    local row = {}
    for c = 0, COLS - 1 do
      local code = o.codes[o.base + (r + o.row0) * o.row_step + c * o.col_step + 1]
      if o.signed and code >= 1 << o.bits - 1 then code = code - (1 << o.bits) end
      local k = o.scale_base + (r + o.row0) // o.row_block * o.scale_row + (o.group and o.group[c + 1] or c // o.block) * o.scale_col
      local product = (code - o.zero(k)) * o.scale[k + 1]
      row[c + 1] = ("<f"):unpack(("<f"):pack(product)) -- exact factors: rounded once
    end
    out[r + 1] = row
  end
  return out
end

-- A case: codes and scales at random, the rest from `o`.
local function case(o)
  local rnd = random(o.bits * 100 + #(o.zeros or "") + (o.signed and 1 or 0))
  local all = { base = 0, row_step = COLS, col_step = 1, row0 = 0, scale_base = 0, scale_row = 2, scale_col = 1, block = 32, row_block = 1 }
  for k, v in pairs(o) do all[k] = v end
  all.codes, all.scale = {}, {}
  for i = 1, 2 * ROWS * COLS do all.codes[i] = rnd(1 << o.bits) end
  for i = 1, 16 * ROWS do all.scale[i] = (rnd(255) + 1) / 64 end -- exact in fp16
  all.data = packed(all.codes, o.bits)
  local scales = {}
  for i, s in ipairs(all.scale) do
    if o.scale_dtype == "fp16" then
      local bits = testing.half((("<I4"):unpack(("<f"):pack(s))))
      scales[i] = ("<I2"):pack(bits)
    else
      scales[i] = ("<f"):pack(s)
    end
  end
  all.scales = table.concat(scales)
  all.zero = o.zero or function() return o.zero_default or 0 end
  return all
end

local function check(o, dtype, rows)
  rows = rows or ROWS
  local options = {}
  for k, v in pairs(o) do
    if type(v) ~= "function" and k ~= "codes" and k ~= "scale" and k ~= "group" then options[k] = v end
  end
  local name, stored, plain = testing.gather(options, rows, COLS)
  assert.equal(dtype, name)
  local want = expected(o, rows)
  for r = 1, rows do
    assert.same(want[r], floats(plain[r]))
    local decoded = testing.decode(name, stored[r])
    if decoded then assert.same(want[r], floats(decoded)) end
  end
end

describe("a gathered matrix of codes", function()
  it("comes as q4_0 and q8_0 where scales are fp16 and zero points the middle", function()
    check(case { bits = 4, scale_dtype = "fp16", zero_default = 8 }, "q4_0")
    check(case { bits = 8, scale_dtype = "fp16", zero_default = 128 }, "q8_0")
    check(case { bits = 4, scale_dtype = "fp16", signed = true }, "q4_0")
    check(case { bits = 8, scale_dtype = "fp16", signed = true }, "q8_0")
  end)

  it("comes as blocks with fp32 scales and zero points", function()
    check(case { bits = 4, zero_default = 3 }, "nbits4")
    check(case { bits = 8, zero_default = 200 }, "nbits8")
    check(case { bits = 2, zero_default = 1 }, "nbits4")
    local zeros = {}
    for i = 1, 64 do zeros[i] = i * 7 % 16 end
    check(case { bits = 4, zeros = packed(zeros, 8), zero_dtype = "uint8", zero = function(k) return zeros[k + 1] end }, "nbits4")
    local per_row = packed(zeros, 4)
    check(case {
      bits = 4, zeros = per_row, zero_bits = 4, zero_row_bytes = 1, zero_blocks = 2,
      zero = function(k) return zeros[k // 2 * 2 + k % 2 + 1] end,
    }, "nbits4")
  end)

  it("comes as q4_1 where offsets are floats and scale times offset is exact in fp16", function()
    local offsets, halves, floats32 = {}, {}, {}
    for i = 1, 16 * ROWS do
      offsets[i] = ({ 0.5, 1.5, 2.5, 3.5, -2.5, -0.5, 6, 28, -40 })[i * 5 % 9 + 1]
      floats32[i] = ("<f"):pack(offsets[i])
      halves[i] = ("<I2"):pack((testing.half((("<I4"):unpack(floats32[i])))))
    end
    local function zero(k) return offsets[k + 1] end
    for _, signed in ipairs { false, true } do
      check(case {
        bits = 4, scale_dtype = "fp16", signed = signed, zeros = table.concat(halves), zero_dtype = "fp16", zero = zero,
      }, "q4_1")
    end
    check(case { bits = 4, scale_dtype = "fp16", zeros = table.concat(floats32), zero_dtype = "fp32", zero = zero }, "q4_1")
    check(case { bits = 4, zeros = table.concat(halves), zero_dtype = "fp16", zero = zero }, "fp32") -- scales in fp32
    check(case { bits = 4, scale_dtype = "fp16", zero_default = 3.5 }, "q4_1")
    check(case { bits = 4, scale_dtype = "fp16", zero_default = 7.5 }, "fp32") -- products of 12 bits
    check(case { bits = 8, scale_dtype = "fp16", zero_default = 3.5 }, "fp32")
  end)

  it("has a scale for each 16 columns", function()
    check(case { bits = 4, block = 16, scale_row = 4, zero_default = 8 }, "nbits4_16")
    check(case { bits = 8, block = 16, scale_row = 4, zero_default = 128 }, "nbits8_16")
  end)

  it("comes as fp32 where no block type holds it", function()
    check(case { bits = 4, block = 16, scale_row = 4, zero_default = 5 }, "fp32")
    check(case { bits = 4, zero_default = 7.5 }, "fp32")
    check(case { bits = 4, block = 8, scale_row = 8, zero_default = 8 }, "fp32")
    local group, index = {}, {}
    for c = 1, COLS do group[c] = c * 5 % 2 end
    for c = 1, COLS do index[c] = ("<i4"):pack(group[c]) end
    check(case { bits = 4, zero_default = 8, group = group, g_idx = table.concat(index) }, "fp32")
  end)

  it("is read by steps, from an offset, in any order", function()
    check(case { bits = 4, zero_default = 8, base = COLS, row0 = 2, scale_base = 1 }, "nbits4", ROWS - 2)
    check(case { bits = 4, zero_default = 8, base = 1 }, "nbits4") -- codes that begin in the middle of a byte
    check(case { bits = 8, zero_default = 128, row_step = 1, col_step = ROWS }, "nbits8") -- transposed
    check(case { bits = 4, zero_default = 8, row_step = 2 * COLS, row_block = 2 }, "nbits4")
  end)
end)

describe("a gathered matrix of floats", function()
  it("keeps its type and is read by steps", function()
    local values, bytes = {}, {}
    for i = 1, ROWS * COLS do
      values[i] = i
      bytes[i] = ("<I2"):pack((testing.half((("<I4"):unpack(("<f"):pack(i))))))
    end
    local name, stored, plain = testing.gather({ data = table.concat(bytes), dtype = "fp16", row_step = 1, col_step = ROWS }, ROWS, COLS)
    assert.equal("fp16", name)
    for r = 1, ROWS do
      local want = {}
      for c = 1, COLS do want[c] = values[(c - 1) * ROWS + r] + 0.0 end
      assert.same(want, floats(plain[r]))
      assert.same(want, floats(testing.to_f32("fp16", stored[r])))
    end
    name = testing.gather({ data = ("\0"):rep(8 * ROWS * COLS), dtype = "fp64" }, ROWS, COLS)
    assert.equal("fp32", name)
  end)
end)

describe("a gathered matrix of blocks", function()
  it("holds the numbers of the blocks, seen by columns", function()
    for _, kind in ipairs { { "q8_0", 96, 34 * 3 }, { "q4_k", 512, 144 * 2 }, { "mxfp4", 64, 17 * 2 }, { "iq2_xxs", 256, 66 } } do
      local dtype, cols, bytes = table.unpack(kind)
      local rows, list = 5, {}
      math.randomseed(cols)
      for i = 1, rows * bytes do list[i] = string.char(math.random(0, 63)) end -- small exponents: all is finite
      local data = table.concat(list)
      local want = floats(testing.decode(dtype, data))
      local name, _, plain = testing.gather({ data = data, dtype = dtype, blocks = true, row_step = 1, col_step = cols }, cols, rows)
      assert.equal("fp32", name)
      for c = 1, cols do
        local column = {}
        for r = 1, rows do column[r] = want[(r - 1) * cols + c] end
        assert.same(column, floats(plain[c]))
      end
    end
  end)
end)

describe("a gathered matrix of table entries", function()
  it("has for each code the entry of its rows' table", function()
    local codes, table_, halves = {}, {}, {}
    local next_code = random(5)
    for i = 1, ROWS * COLS do codes[i] = next_code(16) end
    for i = 1, 2 * 16 do table_[i] = (i * i - 200) / 16 end
    for i, v in ipairs(table_) do halves[i] = ("<I2"):pack((testing.half((("<I4"):unpack(("<f"):pack(v)))))) end
    for name, bytes in pairs { fp16 = table.concat(halves), fp32 = ("<" .. ("f"):rep(32)):pack(table.unpack(table_)) } do
      local got, stored, plain = testing.gather({ data = packed(codes, 4), bits = 4, table = bytes, table_dtype = name,
        row_block = ROWS // 2 }, ROWS, COLS)
      assert.equal(name, got)
      for r = 0, ROWS - 1 do
        local want = {}
        for c = 0, COLS - 1 do want[c + 1] = table_[r // (ROWS // 2) * 16 + codes[r * COLS + c + 1] + 1] end
        assert.same(want, floats(plain[r + 1]))
        assert.same(want, floats(testing.to_f32(name, stored[r + 1])))
      end
    end
  end)
end)
