-- Forms of weights: numbers against plain arithmetic and exhaustive k-means, bytes against MIL's packing by hand.
local core = require "ane.core"
local floats = require "support.floats"

local T = core.testing
local FORMS = { "fp16", "int8", "int8-channel", "int8-block", "int4-block", "int4-block64", "uint4-block", "lut4", "lut4-g8", "lut4-g16",
  "lut4-g32",  "lut2", "lut2-g8", "lut3", "lut3-g32", "lut6", "lut6-g8", "lut6-g16", "lut8" }

-- Of the result of encode.
local FIELDS = { "scheme", "payload", "scales", "offsets", "lut", "values", "error", "max_abs" }

local function half(v) return string.unpack("<f", T.decode("fp16", T.encode("fp16", string.pack("<f", v)))) end
local function halves(s) return floats.unpack(T.decode("fp16", s)) end

-- Normal numbers times `scale`.
local function normal(n, seed, scale)
  local r, values = floats.random(seed), {}
  for i = 1, n do values[i] = scale * math.sqrt(-2 * math.log(1 - r())) * math.cos(2 * math.pi * r()) end
  return floats.pack(values)
end

local function encode(form, bytes, rows, cols, opts)
  opts = opts or {}
  return assert(T.encode_weights(form, opts.dtype or "fp32", bytes, rows, cols, opts.threads, opts.importance, opts.from, opts.to,
    opts.transposed))
end

-- Codes of some bits of a payload, unsigned, bit by bit.
local function codes_of(payload, n, bits)
  local codes = {}
  for i = 0, n - 1 do
    codes[i + 1] = 0
    for b = 0, bits - 1 do
      local at = i * bits + b
      codes[i + 1] = codes[i + 1] | (payload:byte(at // 8 + 1) >> at % 8 & 1) << b
    end
  end
  return codes
end

local function weighted_error(bytes, values, cols, weight)
  local x, y, sum = floats.unpack(bytes), floats.unpack(values), 0
  for i = 1, #x do sum = sum + (weight and weight[(i - 1) % cols + 1] or 1) * (x[i] - y[i]) ^ 2 end
  return sum
end

-- Least sum of w (x - entry)^2 over all tables of k entries: every split of the sorted points tried.
local function best_error(points, k)
  if k >= #points then return 0.0 end
  table.sort(points, function(a, b) return a.x < b.x end)
  local n, w, s, q = #points, { [0] = 0 }, { [0] = 0 }, { [0] = 0 }
  for i, p in ipairs(points) do
    w[i], s[i], q[i] = w[i - 1] + p.w, s[i - 1] + p.w * p.x, q[i - 1] + p.w * p.x * p.x
  end
  local function cost(i, j) return q[j] - q[i - 1] - (s[j] - s[i - 1]) ^ 2 / (w[j] - w[i - 1]) end
  local best = {}
  for j = 1, n do best[j] = cost(1, j) end
  for _ = 2, k do
    local now = {}
    for j = 1, n do
      now[j] = best[j]
      for i = 2, j do now[j] = math.min(now[j], best[i - 1] + cost(i, j)) end
    end
    best = now
  end
  return best[n]
end

describe("weight forms", function()
  it("have the bytes that their shapes say", function()
    local want = { 2 * 96 * 128, 96 * 128 + 2, 96 * 128 + 2 * 96, 96 * 128 + 2 * 96 * 4, 96 * 64 + 2 * 96 * 4,
      96 * 64 + 2 * 96 * 2, 96 * 64 + 4 * 96 * 4, 96 * 64 + 32, 96 * 64 + 32 * 12, 96 * 64 + 32 * 6, 96 * 64 + 32 * 3,
      96 * 32 + 8, 96 * 32 + 8 * 12, 96 * 48 + 16, 96 * 48 + 16 * 3, 96 * 96 + 128, 96 * 96 + 128 * 12, 96 * 96 + 128 * 6, 96 * 128 + 512 }
    for i, form in ipairs(FORMS) do
      local name, bytes = T.weight_scheme(form, 96, 128)
      assert.same({ form, want[i] }, { name, bytes })
      local got = encode(form, normal(96 * 128, 5, 0.1), 96, 128)
      assert.equal(want[i], #got.payload + #(got.scales or "") + #(got.offsets or "") + #(got.lut or ""))
    end
    assert.same({ "int8" }, { T.weight_scheme("int8", math.maxinteger, 3) }) -- beyond 64 bits: no size
  end)

  it("become what fits where blocks or tables do not divide the matrix", function()
    local function fit(form, rows, cols) return (T.weight_scheme(form, rows, cols)) end
    assert.equal("int4-block", fit("int4-block64", 8, 96))
    assert.equal("int8-channel", fit("int4-block64", 8, 72))
    assert.equal("int8-channel", fit("int4-block", 8, 40))
    assert.equal("uint4-block", fit("uint4-block", 8, 96))
    assert.equal("int8-channel", fit("uint4-block", 8, 40))
    assert.equal("int8-block", fit("int8-block", 8, 96))
    assert.equal("int8-channel", fit("int8-block", 8, 40))
    assert.equal("lut4-g8", fit("lut4-g32", 24, 5))
    assert.equal("lut4-g16", fit("lut4-g32", 48, 5))
    assert.equal("lut4", fit("lut4-g8", 12, 64))
    assert.equal("lut4", fit("lut4", 7, 3))
    assert.equal("lut6-g8", fit("lut6-g32", 24, 5))
    assert.equal("lut3", fit("lut3-g8", 12, 64))
  end)

  it("int8 takes the smallest fp16 scale that clamps nothing, for the matrix or a row", function()
    local bytes = normal(5 * 37, 3, 0.3)
    local x = floats.unpack(bytes)
    local function check(got, scales, rows)
      for r = 0, 4 do
        local scale, amax = scales[rows == 1 and 1 or r + 1], 0
        for i = 1, #x do
          if rows == 1 or (i - 1) // 37 == r then amax = math.max(amax, math.abs(x[i])) end
        end
        assert.is_true(scale * 127 >= amax and half(scale * (1 - 2 ^ -11)) * 127 < amax)
        for c = 1, 37 do
          local code = string.unpack("b", got.payload, r * 37 + c)
          assert.is_true(math.abs(x[r * 37 + c] / scale - code) <= 0.5 + 1e-4)
        end
      end
    end
    local whole, rows = encode("int8", bytes, 5, 37), encode("int8-channel", bytes, 5, 37)
    assert.equal(2, #whole.scales)
    check(whole, halves(whole.scales), 1)
    check(rows, halves(rows.scales), 5)
    assert.is_true(rows.error < whole.error)
  end)

  it("int8 in blocks has the scale of a row for each block", function()
    local bytes = normal(5 * 64, 3, 0.3)
    local got = encode("int8-block", bytes, 5, 64)
    for b = 0, 9 do
      local row = encode("int8-channel", bytes:sub(128 * b + 1, 128 * (b + 1)), 1, 32)
      assert.equal(row.scales, got.scales:sub(2 * b + 1, 2 * b + 2))
      assert.equal(row.payload, got.payload:sub(32 * b + 1, 32 * (b + 1)))
      assert.equal(row.values, got.values:sub(128 * b + 1, 128 * (b + 1)))
    end
    assert.is_true(got.error < encode("int8-channel", bytes, 5, 64).error)
  end)

  it("int4 packs two's complement, low nibble first, a scale for each block", function()
    local values = {}
    for c = 0, 63 do values[c + 1] = (c % 16 - 8) * (c < 32 and 0.5 or 0.25) end
    local got = encode("int4-block", floats.pack(values), 1, 64)
    assert.same({ 0.5, 0.25 }, halves(got.scales))
    assert.equal(("\x98\xBA\xDC\xFE\x10\x32\x54\x76"):rep(4), got.payload)
    assert.equal(floats.pack(values), got.values)
    assert.equal(0, got.error)
  end)

  it("int4 keeps the numbers of blocks that were int4 already, with scales of either sign, whatever their codes", function()
    math.randomseed(23)
    local values = {}
    for b = 0, 199 do
      local d = (math.random(2) == 1 and -1 or 1) * (1 + math.random(0, 1023) / 1024) * 2.0 ^ math.random(-14, 3)
      local most = b % 9 -- codes of least 0, and of all that there are
      for i = 1, 32 do values[32 * b + i] = d * math.random(-most, math.min(most, 7)) end
    end
    local got = encode("int4-block", floats.pack(values), 100, 64)
    assert.equal(0, got.error)
    for i, v in ipairs(floats.unpack(got.values)) do
      assert.is_true(v == values[i], ("number %d: %g, wanted %g"):format(i, v, values[i]))
    end
    for b, d in ipairs(halves(got.scales)) do -- negative only where code -8 is a positive number
      local largest = math.max(table.unpack(values, 32 * b - 31, 32 * b))
      assert.is_true(d >= 0 or largest == -8 * d, ("block %d: scale %g, largest %g"):format(b, d, largest))
    end
  end)

  it("int4 finds scales that a fine grid of others does not beat", function()
    local bytes = normal(16 * 64, 11, 0.05)
    local x, got = floats.unpack(bytes), encode("int4-block", bytes, 16, 64)
    local ours, grid = weighted_error(bytes, got.values, 64), 0
    for b = 0, 31 do
      local amax, least = 0, math.huge
      for i = 1, 32 do amax = math.max(amax, math.abs(x[32 * b + i])) end
      for k = 0, 400 do
        local scale, sum = amax / (5 + k * 0.01), 0
        for i = 1, 32 do
          local v = x[32 * b + i]
          sum = sum + (v - scale * math.max(-8, math.min(7, math.floor(v / scale + 0.5)))) ^ 2
        end
        least = math.min(least, sum)
      end
      grid = grid + least
    end
    assert.is_true(ours <= grid * 1.01, ("%g against %g"):format(ours, grid))
  end)

  -- Decodes a block by hand, w = scale (q - offset); checks that it is a block of Q4_1 with the same numbers, in float32 and fp16.
  local function check_block(got)
    local scales, offsets, q, values = halves(got.scales), halves(got.offsets), codes_of(got.payload, 32 * #halves(got.scales), 4), {}
    for i, code in ipairs(q) do
      local s, o = scales[(i - 1) // 32 + 1], offsets[(i - 1) // 32 + 1]
      local w = s * (code - o)
      assert.equal(half(-s * o), -s * o)
      assert.equal(half(code - o), code - o)
      assert.equal(string.unpack("<f", string.pack("<f", w)), w)
      assert.is_true(math.abs(w) <= 65504)
      values[i] = w
    end
    assert.equal(got.values, floats.pack(values))
    return values
  end

  local function block(of)
    local x = {}
    for i = 1, 32 do x[i] = of(i) end
    return floats.unpack(floats.pack(x))
  end

  it("uint4 has exact numbers for blocks of all kinds, near the elements", function()
    local r = floats.random(3)
    for name, x in pairs {
      mixed = block(function() return (r() + r() + r() - 1.5) * 0.1 end), above = block(function() return 3 + r() end),
      below = block(function() return -0.01 - 0.001 * r() end), far = block(function() return 100 + r() end),
      wide = block(function() return (r() - 0.5) * 131008 end), ends = block(function(i) return i % 2 * 131008 - 65504 end),
      small = block(function(i) return (i * 7 % 16 - 4) * 2 ^ -22 end), smallest = block(function(i) return i % 16 * 2 ^ -24 end),
      one = block(function(i) return i == 9 and 1 or 0 end), two = block(function(i) return i == 9 and 1 or -0.25 end),
    } do
      local low, high = math.min(table.unpack(x)), math.max(table.unpack(x))
      local got = encode("uint4-block", floats.pack(x), 1, 32)
      check_block(got)
      local step = math.max((high - low) / 15, math.max(-low, high) * 2 ^ -11)
      assert.is_true(got.max_abs <= step, ("%s: %g steps"):format(name, got.max_abs / step))
      assert.is_true(math.sqrt(got.error / 32) <= 0.36 * step, ("%s: %g steps"):format(name, math.sqrt(got.error / 32) / step))
    end
  end)

  it("uint4 keeps blocks of one value, which every fp16 can be", function()
    for _, v in ipairs { 0, 1, -1, half(0.3), half(-1e-3), 65504, -65504, 2 ^ -24, -2 ^ -24, 2 ^ -14 } do
      local x = block(function() return v end)
      assert.same(x, check_block(encode("uint4-block", floats.pack(x), 1, 32)))
    end
    local large = floats.pack(block(function() return 1e9 end))
    assert.same({ nil, "row 0 has an element that is not finite, or beyond fp16", "invalid" },
      { T.encode_weights("uint4-block", "fp32", large, 1, 32) })
  end)

  it("uint4 nearly keeps the numbers of blocks that have an offset already", function()
    local bytes = normal(200 * 32, 13, 0.05)
    for _, dtype in ipairs { "q4_1", "q4_0" } do
      local source = T.decode(dtype, T.encode(dtype, bytes))
      local got = encode("uint4-block", source, 200, 32)
      check_block(got)
      -- rounding these numbers the first time cost 0.5 % or more of the squares
      assert.is_true(got.error < 3e-4 * got.signal, ("%s: %g"):format(dtype, got.error / got.signal))
      assert.is_true(got.error < 0.05 * encode("int4-block", bytes, 200, 32).error)
    end
    -- codes 3 .. 12 of 0 .. 15, above and below zero
    for _, m in ipairs { -0.5, 0.25, 1.5, -2 } do
      local x = block(function(i) return 0.03125 * (3 + i * 7 % 10) + m end)
      assert.same(x, check_block(encode("uint4-block", floats.pack(x), 1, 32)))
    end
  end)

  it("uint4 finds lines that a fine grid of free ones hardly beats", function()
    local bytes = normal(16 * 64, 11, 0.05)
    local x, got, grid = floats.unpack(bytes), encode("uint4-block", bytes, 16, 64), 0
    for b = 0, 31 do
      local block_x, least = table.move(x, 32 * b + 1, 32 * b + 32, 1, {}), math.huge
      local low, high = math.min(table.unpack(block_x)), math.max(table.unpack(block_x))
      for k = 0, 40 do
        for j = 0, 20 do
          local scale, sum = (high - low) / (13 + k * 0.075), 0
          local from = low + (j - 10) * 0.05 * scale
          for _, v in ipairs(block_x) do
            sum = sum + (v - from - scale * math.max(0, math.min(15, math.floor((v - from) / scale + 0.5)))) ^ 2
          end
          least = math.min(least, sum)
        end
      end
      grid = grid + least
    end
    assert.is_true(got.error <= grid * 1.08, ("%g against %g"):format(got.error, grid))
    assert.is_true(got.error < 0.8 * encode("int4-block", bytes, 16, 64).error)
  end)

  it("uint4 with importance leaves less weighted error", function()
    local bytes, weight = normal(32 * 64, 17, 0.05), {}
    for c = 1, 64 do weight[c] = c % 4 == 0 and 16 or 0.25 end
    local plain, guided = encode("uint4-block", bytes, 32, 64),
      encode("uint4-block", bytes, 32, 64, { importance = floats.pack(weight) })
    assert.is_true(weighted_error(bytes, guided.values, 64, weight) < 0.9 * weighted_error(bytes, plain.values, 64, weight))
    local none = {}
    for c = 1, 64 do none[c] = 0 end -- no column counts
    check_block(encode("uint4-block", bytes, 32, 64, { importance = floats.pack(none) }))
  end)

  local function best_tables(bits, heavy, seed)
    local points, values, r = {}, {}, floats.random(seed)
    for i = 1, 17 * 13 do
      local v = (r() + r() + r() - 1.5) * 0.2
      values[i] = half(heavy and v / (r() + 0.02) or v)
      points[i] = { x = values[i], w = 1 }
    end
    local bytes = floats.pack(values)
    local got, least = encode("lut" .. bits, bytes, 17, 13), best_error(points, 1 << bits)
    assert.is_true(got.error <= 1.005 * least + 1e-6, ("%g against %g"):format(got.error, least))
    local lut, codes = halves(got.lut), codes_of(got.payload, #values, bits)
    for i = 2, 1 << bits do assert.is_true(lut[i - 1] <= lut[i]) end
    for i, v in ipairs(values) do
      for _, entry in ipairs(lut) do assert.is_true(math.abs(v - lut[codes[i] + 1]) <= math.abs(v - entry) + 1e-9) end
    end
    local decoded = floats.unpack(got.values)
    for i = 1, #values do assert.equal(lut[codes[i] + 1], decoded[i]) end
  end

  for _, bits in ipairs { 2, 3, 4, 6, 8 } do
    it(("lut%d tables leave hardly more than the best of all tables"):format(bits), function()
      for seed, heavy in ipairs { false, true } do best_tables(bits, heavy, seed) end
    end)
  end

  it("lut4 with importance leaves the least weighted error", function()
    local values, weight, points, r = {}, {}, {}, floats.random(9)
    for c = 1, 40 do weight[c] = c % 5 == 0 and 8 or 0.125 end
    for i = 1, 8 * 40 do
      local w = weight[(i - 1) % 40 + 1]
      values[i] = half((r() - 0.5) * (w > 1 and 1 or 4))
      points[i] = { x = values[i], w = w }
    end
    local bytes = floats.pack(values)
    local plain, guided = encode("lut4", bytes, 8, 40), encode("lut4", bytes, 8, 40, { importance = floats.pack(weight) })
    local least = best_error(points, 16)
    assert.is_true(weighted_error(bytes, guided.values, 40, weight) <= 1.01 * least)
    assert.is_true(weighted_error(bytes, plain.values, 40, weight) > 1.5 * least)
    local same = encode("lut4", bytes, 8, 40, { importance = floats.pack((function()
      local all = {}
      for c = 1, 40 do all[c] = 3.5 end
      return all
    end)()) })
    assert.equal(plain.payload .. plain.lut, same.payload .. same.lut)
  end)

  it("lut4 counts outliers, constants and few values exactly", function()
    local few = floats.pack { -1, 0, 0.5, 2, 2, 2, -1, 0, 0.5, 0.5, 7, 0, -0.0, 1, 1, 1 }
    for _, form in ipairs { "lut4", "lut4-g8" } do
      local got = encode(form, few, 8, 2)
      assert.equal(0, got.error)
      assert.equal(0, encode(form, floats.pack { 0, 0, 0, 0, 0, 0, 0, 0 }, 8, 1).error)
    end
    -- Thousands of values beside one far away, and most of the weight on a single one: still about the best.
    local values, points, r = {}, {}, floats.random(4)
    for i = 1, 6000 do values[i] = i % 8 ~= 0 and 0.01 or half((r() - 0.5) * 0.5) end
    values[6000] = 900
    local seen = {}
    for _, v in ipairs(values) do seen[half(v)] = (seen[half(v)] or 0) + 1 end
    for x, w in pairs(seen) do points[#points + 1] = { x = x, w = w } end
    local got = encode("lut4", floats.pack(values), 100, 60)
    assert.is_true(got.error <= 1.02 * best_error(points, 16))
  end)

  it("give the same bytes on any number of threads, in slices, from transposed and from bf16 rows", function()
    local rows, cols = 100, 64
    local bytes = normal(rows * cols, 21, 0.02)
    local x, turned = floats.unpack(bytes), {}
    for r = 0, rows - 1 do
      for c = 0, cols - 1 do turned[c * rows + r + 1] = x[r * cols + c + 1] end
    end
    local weight = {}
    for c, v in ipairs(floats.unpack(floats.uniform(cols, 3, 1))) do weight[c] = math.abs(v) end
    weight = floats.pack(weight)
    for _, form in ipairs(FORMS) do
      local want = encode(form, bytes, rows, cols, { importance = weight })
      for _, opts in ipairs { { threads = 2 }, { threads = 5 }, { threads = 2, transposed = true } } do
        opts.importance = weight
        local got = encode(form, opts.transposed and floats.pack(turned) or bytes, rows, cols, opts)
        for _, key in ipairs(FIELDS) do assert.equal(want[key], got[key]) end
      end
      local head = encode(form, bytes, rows, cols, { importance = weight, from = 0, to = 64 })
      local tail = encode(form, bytes, rows, cols, { importance = weight, from = 64 })
      assert.equal(want.values, head.values .. tail.values)
      assert.equal(want.payload, head.payload .. tail.payload)
    end
    local halfway = T.encode("bf16", bytes)
    local plain = encode("lut4-g16", T.decode("bf16", halfway), rows, cols)
    assert.equal(plain.values, encode("lut4-g16", halfway, rows, cols, { dtype = "bf16" }).values)
  end)

  it("refuse what no form can hold, with the row", function()
    local values = {}
    for i = 1, 64 * 40 do values[i] = i * 1e-3 end
    for _, bad in ipairs { 0 / 0, math.huge } do
      values[36 * 40 + 3] = bad
      for _, form in ipairs { "fp16", "int8", "int8-channel", "uint4-block", "lut4", "lut4-g8" } do
        local got, message, code = T.encode_weights(form, "fp32", floats.pack(values), 64, 40, 2)
        assert.same({ nil, "row 36 has an element that is not finite, or beyond fp16", "invalid" }, { got, message, code })
      end
    end
    local cut = { T.encode_weights("lut4-g16", "fp32", normal(64 * 8, 1, 1), 64, 8, 1, nil, 8) }
    assert.same({ nil, "rows 8 .. 64 are not whole tables of 16 rows", "range" }, cut)
    assert.equal("range", select(3, T.encode_weights("int8", "fp32", normal(64, 1, 1), 8, 8, 1, nil, 3, 3)))
    assert.equal("unsupported", select(3, T.encode_weights("int8", "bool", ("\0"):rep(64), 8, 8)))
  end)

  it("survive every failing allocation", function()
    local bytes = normal(40 * 32, 2, 1)
    for _, form in ipairs(FORMS) do
      local want, failed = encode(form, bytes, 40, 32, { threads = 2 }), 0
      for n = 0, 30 do
        T.alloc_fail_after(n)
        local got, message, code = T.encode_weights(form, "fp32", bytes, 40, 32, 2)
        T.alloc_fail_after()
        if got then
          assert.equal(want.values, got.values) -- fewer threads do it too
        else
          failed = failed + 1
          assert.equal("memory", code, message)
        end
      end
      assert.is_true(failed >= 5 and failed < 20, failed)
    end
  end)
end)
