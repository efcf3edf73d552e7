-- Matrix products: every form, kind of activations and level against ref to the bit, and ref against decoding by formula.
local testing = require("ane.core").testing
local floats = require "spec.support.floats"

local levels = testing.matmul_levels()

-- Stored types: columns and bytes a block, where its fp16 fields lie, value(block bytes, column from 0), where its fp32 fields lie.
local function half(s, at)
  local h = string.unpack("<I2", s, at + 1)
  local e, m = h >> 10 & 31, h & 1023
  local x = e == 0 and m * 2.0 ^ -24 or (1024 + m) * 2.0 ^ (e - 25)
  return h >= 0x8000 and -x or x
end
local function word(s, at) return (string.unpack("<f", s, at + 1)) end
local function nibble(s, at, c) -- 16 bytes: columns c and c + 16
  local b = s:byte(at + c % 16 + 1)
  return c < 16 and b & 15 or b >> 4
end
local function bit(s, at, c) return string.unpack("<I4", s, at + 1) >> c & 1 end
local function k_scale(s, i) -- scale and minimum of sub-block i
  local function b(n) return s:byte(4 + n + 1) end
  if i < 4 then return b(i) & 63, b(i + 4) & 63 end
  return b(i + 4) & 15 | b(i - 4) >> 6 << 4, b(i + 4) >> 4 | b(i) >> 6 << 4
end
local function k_nibble(s, at, c) -- 32 bytes for 64 columns
  local b = s:byte(at + c // 64 * 32 + c % 32 + 1)
  return c % 64 < 32 and b & 15 or b >> 4
end
local function k_value(s, c, code)
  local scale, min = k_scale(s, c // 32)
  return half(s, 0) * scale * code - half(s, 2) * min
end

local types = {
  fp32 = {1, 4, {}, function(s) return (string.unpack("<f", s)) end},
  fp16 = {1, 2, {}, function(s) return half(s, 0) end},
  bf16 = {1, 2, {}, function(s) return (string.unpack("<f", "\0\0" .. s)) end},
  int8 = {1, 1, {}, function(s) return (string.unpack("b", s)) end},
  q4_0 = {32, 18, {0}, function(s, c) return half(s, 0) * (nibble(s, 2, c) - 8) end},
  q4_1 = {32, 20, {0, 2}, function(s, c) return half(s, 0) * nibble(s, 4, c) + half(s, 2) end},
  q5_0 = {32, 22, {0}, function(s, c) return half(s, 0) * (nibble(s, 6, c) + 16 * bit(s, 2, c) - 16) end},
  q5_1 = {32, 24, {0, 2}, function(s, c) return half(s, 0) * (nibble(s, 8, c) + 16 * bit(s, 4, c)) + half(s, 2) end},
  q8_0 = {32, 34, {0}, function(s, c) return half(s, 0) * string.unpack("b", s, 2 + c + 1) end},
  q4_k = {256, 144, {0, 2}, function(s, c) return k_value(s, c, k_nibble(s, 16, c)) end},
  q5_k = {256, 176, {0, 2}, function(s, c)
    return k_value(s, c, k_nibble(s, 48, c) + 16 * (s:byte(16 + c % 32 + 1) >> c // 32 & 1))
  end},
  q6_k = {256, 210, {208}, function(s, c)
    local h, j, l = c // 128, c % 128 // 32, c % 32
    local low = s:byte(64 * h + 32 * (j % 2) + l + 1) >> 4 * (j // 2) & 15
    local high = s:byte(128 + 32 * h + l + 1) >> 2 * j & 3
    return half(s, 208) * string.unpack("b", s, 192 + c // 16 + 1) * (low + 16 * high - 32)
  end},
  nbits4 = {32, 21, {}, function(s, c) return word(s, 0) * (nibble(s, 5, c) - s:byte(5)) end, {0}},
  nbits8 = {32, 37, {}, function(s, c) return word(s, 0) * (s:byte(c + 6) - s:byte(5)) end, {0}},
  nbits4_16 = {32, 24, {}, function(s, c) return word(s, c // 16 * 4) * (nibble(s, 8, c) - 8) end, {0, 4}},
  nbits8_16 = {32, 40, {}, function(s, c) return word(s, c // 16 * 4) * (s:byte(c + 9) - 128) end, {0, 4}},
}

-- Types whose decoders are checked against ggml's blocks (spec/csrc/quant/codec_spec.lua): columns and bytes a block, its fp16 fields,
-- and what must be done to random bytes so that no scale is infinite.
local function by_decoder(name, block, bytes, halves, mend)
  local last, values
  types[name] = {block, bytes, halves, function(s, c)
    if s ~= last then last, values = s, floats.unpack(testing.decode(name, s)) end
    return values[c + 1]
  end, nil, mend}
end
for name, row in pairs {
  iq4_nl = {32, 18, {0}}, iq4_xs = {256, 136, {0}}, q2_k = {256, 84, {80, 82}}, q3_k = {256, 110, {108}}, iq3_s = {256, 110, {0}},
  iq3_xxs = {256, 98, {0}}, iq2_xxs = {256, 66, {0}}, iq2_xs = {256, 74, {0}}, iq2_s = {256, 82, {0}}, iq1_s = {256, 50, {0}},
  tq1_0 = {256, 54, {52}}, tq2_0 = {256, 66, {64}}, nvfp4 = {64, 36, {}},
  iq1_m = {256, 56, {}, function(s) return s:sub(1, 55) .. string.char(s:byte(56) & 15 | 0x20) end}, -- d: a nibble of each scale word
  mxfp4 = {32, 17, {}, function(s) return string.char(s:byte(1) % 16 + 110) .. s:sub(2) end},
} do
  by_decoder(name, table.unpack(row, 1, 4))
end
types.halves = types.q8_0 -- the same rows in two halves
local names = {}
for name in pairs(types) do names[#names + 1] = name end
table.sort(names)

local noise
do
  local r, bytes = floats.random(7), {}
  for i = 1, 65521 do bytes[i] = string.char(math.floor(r() * 256)) end
  noise = table.concat(bytes)
end

-- A function that keeps what it has returned: several specs take the same numbers, and making them takes long under qemu.
local function kept(f)
  local results = {}
  return function(...)
    local key = table.concat({...}, " ")
    results[key] = results[key] or f(...)
    return results[key]
  end
end

-- rows x cols of stored blocks: random bits, the fp16 fields small numbers of both signs.
local stored = kept(function(name, rows, cols, seed)
  local block, bytes, halves, _, words, mend = table.unpack(types[name], 1, 6)
  local n, r = rows * cols // block, floats.random(seed)
  if name == "fp32" then return floats.uniform(math.min(n, 4999), seed, 1):rep(n // 4999 + 1):sub(1, 4 * n) end
  local parts = {}
  if block == 1 and bytes == 2 then
    for i = 1, math.min(n, 4999) do -- exponents of 1/8 .. 2 and any sign and mantissa
      local u = math.floor(r() * 65536)
      parts[i] = string.pack("<I2", name == "fp16" and (u & 0x83FF | (12 + u % 4) << 10) or (u & 0x807F | (124 + u % 4) << 7))
    end
    return table.concat(parts):rep(n // 4999 + 1):sub(1, 2 * n)
  end
  local at = seed * 97 % 60000
  if block == 1 then return noise:sub(at + 1):rep(n // 5000 + 1):sub(1, n) end
  for i = 1, n do
    local s = noise:sub(at + 1, at + bytes)
    at = (at + bytes + 13) % 65000
    for _, h in ipairs(halves) do
      local u = math.floor(r() * 65536)
      s = s:sub(1, h) .. string.pack("<I2", u & 0x83FF | (4 + u % 4) << 10) .. s:sub(h + 3)
    end
    for _, w in ipairs(words or {}) do -- of both signs, and no fp16 numbers
      s = s:sub(1, w) .. string.pack("<f", (r() - 0.5) * 0.01) .. s:sub(w + 5)
    end
    if name == "nbits4" then s = s:sub(1, 4) .. string.char(math.floor(r() * 16)) .. s:sub(6) end
    parts[i] = mend and mend(s) or s
  end
  return table.concat(parts)
end)

-- t columns of floats whose blocks of 32 differ in size by powers of two, so that some are fine and some are not. A column of
-- one block is never fine.
local uneven = kept(function(t, cols, seed, scale)
  local flat, r, parts = floats.uniform(t * cols, seed, scale), floats.random(seed + 1), {}
  for i = 0, t - 1 do
    for c = 0, cols - 1, 32 do
      local n, by = math.min(32, cols - c), 2.0 ^ math.floor(r() * 6 - 3)
      local v = {string.unpack("<" .. ("f"):rep(n), flat, 4 * (i * cols + c) + 1)}
      for j = 1, n do v[j] = v[j] * by end
      for _ = 1, r() < 0.3 and 1 + math.floor(r() * 2) or 0 do -- one or two values far above the others of the block
        local j = 1 + math.floor(r() * n)
        v[j] = v[j] * 20
      end
      parts[#parts + 1] = string.pack("<" .. ("f"):rep(n), table.unpack(v, 1, n))
    end
  end
  return table.concat(parts)
end)

local function scales(rows) -- of int8 matrices
  return floats.uniform(rows, 3, 0.1)
end
local function pack(name, rows, cols, bytes)
  return testing.matmul_pack(name, rows, cols, bytes, name == "int8" and scales(rows) or nil)
end
local function offered(name, act)
  return act == "fp32" or act == "int8" and types[name][1] > 1 or act == "int8" and name == "int8"
end

-- A matrix of codes 0 .. 15 and two tables for each 16 rows; and value(row, column).
local function pack_lut4(rows, cols)
  local codes = stored("int8", rows, cols, rows + 7):gsub(".", function(c) return string.char(c:byte() & 15) end)
  local lut = floats.uniform((rows + 15) // 16 * 32, cols, 0.5)
  local values = floats.unpack(lut)
  return testing.matmul_pack_lut4(rows, cols, codes, lut), function(r, c) return values[r // 8 * 16 + codes:byte(r * cols + c + 1) + 1] end
end

-- Fewer and smaller products, for emulators (spec/arm).
local short = os.getenv "ANE_SHORT" ~= nil
local T = short and {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 65} or {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 31, 64, 65}
local half_units = testing.matmul_half_units()
-- The levels at which products of m and this kind of activations run other functions than at any level before, and avx512vnni, of
-- those, once more divided as for the other kind of CPU (ane_half_units).
local function each_level(m, act, f)
  local seen, new = {}, nil
  for _, level in ipairs(levels) do
    local functions = testing.matmul_functions(m, level, act)
    new = not seen[functions]
    seen[functions] = true
    if new then f(level) end
  end
  if levels[#levels] ~= "avx512vnni" or not new then return end
  testing.matmul_half_units(not half_units)
  local ok, message = pcall(f, "avx512vnni")
  testing.matmul_half_units(half_units)
  if not ok then error(message .. ", divided for the other kind of CPU", 0) end
end
local function shapes(name)
  local unit = math.max(types[name][1], name == "int8" and 32 or 1)
  local list = {{1, unit}, {15, 3 * unit}, {17, unit}, {33, 3 * unit}, {100, 1536}, {1, 1536}, {17, 3 * unit}}
  if short then list = {{1, unit}, {15, 3 * unit}, {33, 3 * unit}, {40, 1536}} end
  if name == "halves" then list[#list + 1] = {33, 38 * unit} end -- pieces of 32 blocks, of 4, and 2 more
  return list
end

describe("matmul", function()
  for _, name in ipairs(names) do
    for _, act in ipairs {"fp32", "int8"} do
      if offered(name, act) then
        it(("of %s and %s is the same to the bit at all levels, for any T and range"):format(name, act), function()
          for _, shape in ipairs(shapes(name)) do
            local rows, cols = shape[1], shape[2]
            local m = pack(name, rows, cols, stored(name, rows, cols, rows + cols))
            local x = uneven(65, cols, cols, 3)
            local want = testing.matmul(m, "ref", act, x, 65)
            local groups = (rows + 15) // 16
            local ld = 4 * (16 * groups + 1)
            each_level(m, act, function(level)
              for _, t in ipairs(level == "ref" and {1, 2, 9} or T) do
                local got = testing.matmul(m, level, act, x:sub(1, 4 * t * cols), t)
                local diff = floats.difference(got, want:sub(1, t * ld))
                if diff then error(("%s, %dx%d, t = %d: %s"):format(level, rows, cols, t, diff)) end
              end
              for _, range in ipairs {{0, 1}, {1, groups}, {groups // 2, groups // 2}, {groups - 1, groups}} do
                for _, t in ipairs {1, 7, 20} do
                  local from, to = math.min(range[1], groups), math.max(range[1], range[2])
                  local got = testing.matmul(m, level, act, x:sub(1, 4 * t * cols), t, from, to)
                  local first, last = 4 * 16 * from, 4 * math.max(math.min(16 * to, rows), 16 * from)
                  for i = 0, t - 1 do
                    local line = want:sub(i * ld + 1, (i + 1) * ld)
                    local none = string.pack("<f", -77):rep(16 * groups + 1)
                    local expect = none:sub(1, first) .. line:sub(first + 1, last) .. none:sub(last + 1)
                    local diff = floats.difference(got:sub(i * ld + 1, (i + 1) * ld), expect)
                    if diff then error(("%s, groups %d to %d, t = %d of %d: %s"):format(level, from, to, i, t, diff)) end
                  end
                end
              end
            end)
          end
        end)
      end
    end

    it(("of %s agrees with decoding by formula"):format(name), function()
      local block, bytes, _, value = table.unpack(types[name])
      local rows, cols, t = 19, math.max(block, 32) * 2, 2
      local raw = stored(name, rows, cols, 5)
      local m, x = pack(name, rows, cols, raw), uneven(t, cols, 11, 2)
      local xs, scale = floats.unpack(x), floats.unpack(scales(rows))
      for _, act in ipairs {"fp32", "int8"} do
        if offered(name, act) then
          local seen, tolerance = xs, 2e-6
          if act == "int8" then -- what the product meets: codes times scales
            local q, d, _, _, high = testing.matmul_activations("ref", "int8", x, t, cols)
            local ds = floats.unpack(d)
            seen = {}
            for i = 1, t * cols do seen[i] = (string.unpack("b", q, i) + 128 * string.unpack("b", high, i)) * ds[(i - 1) // 32 + 1] end
          end
          local got, ld = floats.unpack(testing.matmul(m, "ref", act, x, t)), (rows + 15) // 16 * 16 + 1
          for r = 0, rows - 1 do
            for i = 0, t - 1 do
              local sum, size = 0, 0
              for c = 0, cols - 1 do
                local at = (r * cols + c) // block * bytes
                local w = value(raw:sub(at + 1, at + bytes), c % block) * (name == "int8" and scale[r + 1] or 1)
                sum, size = sum + w * seen[i * cols + c + 1], size + math.abs(w * seen[i * cols + c + 1])
              end
              local y = got[i * ld + r + 1]
              -- codes and zero are multiplied apart, so intermediate sums are a few times larger than the terms
              assert(math.abs(y - sum) <= tolerance * (size * 8 + 1e-6), ("%s row %d: %g, not %g"):format(act, r, y, sum))
            end
          end
        end
      end
    end)
  end

  it("takes int8 and float matrices of any number of columns", function()
    for _, cols in ipairs {1, 31, 33, 47, 257} do
      local rows, t = 21, 10
      local x = uneven(t, cols, cols, 1)
      for _, m in ipairs {
        pack("int8", rows, cols, stored("int8", rows, cols, 9)), pack("bf16", rows, cols, stored("bf16", rows, cols, 9)),
        pack("fp16", rows, cols, stored("fp16", rows, cols, 9)), pack("fp32", rows, cols, stored("fp32", rows, cols, 9)),
        (pack_lut4(rows, cols)),
      } do
        for _, act in ipairs {"fp32", "int8"} do
          local want = testing.matmul(m, "ref", act, x, t)
          for _, level in ipairs(levels) do
            for _, n in ipairs {1, 2, 5, 10} do
              local got = testing.matmul(m, level, act, x:sub(1, 4 * n * cols), n)
              assert.is_nil(got and floats.difference(got, want:sub(1, #want // t * n)))
            end
          end
        end
      end
    end
  end)

  it("of lut4 looks up tables of 8 rows, the same at all levels, for any T and range", function()
    for _, shape in ipairs {{1, 32}, {8, 31}, {9, 64}, {17, 257}, {33, 600}, {100, 1}} do
      local rows, cols = shape[1], shape[2]
      local m, value = pack_lut4(rows, cols)
      local x = floats.uniform(13 * cols, cols, 3)
      local want, xs = testing.matmul(m, "ref", "fp32", x, 13), floats.unpack(x)
      local got, ld = floats.unpack(want), (rows + 15) // 16 * 16 + 1
      for r = 0, rows - 1 do
        local sum, size = 0, 0
        for c = 0, cols - 1 do
          local term = value(r, c) * xs[cols + c + 1]
          sum, size = sum + term, size + math.abs(term)
        end
        assert(math.abs(got[ld + r + 1] - sum) <= 2e-6 * (size + 1e-6))
      end
      for _, level in ipairs(levels) do
        assert.is_nil(testing.matmul(m, level, "int8", x, 13))
        for _, t in ipairs {1, 2, 3, 6, 13} do
          assert.is_nil(floats.difference(testing.matmul(m, level, "fp32", x:sub(1, 4 * t * cols), t), want:sub(1, 4 * t * ld)))
        end
        local groups = (rows + 15) // 16
        local part = floats.unpack(testing.matmul(m, level, "fp32", x:sub(1, 4 * cols), 1, groups - 1, groups))
        for r = 0, rows - 1 do assert.equal(r < 16 * (groups - 1) and -77 or got[r + 1], part[r + 1]) end
      end
    end
  end)

  it("of bf16 meets bf16 activations where the machine has the dot", function()
    local rows, cols, t = 40, 333, 13
    local raw = stored("bf16", rows, cols, 3)
    local m, x = pack("bf16", rows, cols, raw), floats.uniform(t * cols, 8, 2)
    for _, level in ipairs(levels) do
      if testing.matmul_activation_type(m, level) == "bf16" then
        local halves = testing.matmul_activations(level, "bf16", x, t, cols)
        assert.equal(testing.matmul_activations("ref", "bf16", x, t, cols), halves)
        local out = testing.matmul(m, level, "bf16", x, t)
        local got, ld, pad = floats.unpack(out), 49, cols + 1
        for i = 0, t - 1 do
          for r = 0, rows - 1 do
            local sum, size = 0, 0
            for c = 0, cols - 1 do
              local w = string.unpack("<f", "\0\0" .. raw:sub(2 * (r * cols + c) + 1, 2 * (r * cols + c) + 2))
              local v = string.unpack("<f", "\0\0" .. halves:sub(2 * (i * pad + c) + 1, 2 * (i * pad + c) + 2))
              sum, size = sum + w * v, size + math.abs(w * v)
            end
            assert(math.abs(got[i * ld + r + 1] - sum) <= 1e-5 * size)
          end
        end
        for n = 1, t do
          assert.is_nil(floats.difference(testing.matmul(m, level, "bf16", x:sub(1, 4 * n * cols), n), out:sub(1, 4 * ld * n)))
        end
      else
        assert.is_nil(testing.matmul(m, level, "bf16", x, t))
      end
    end
  end)

  it("computes rows longer than a panel in pieces", function()
    for _, name in ipairs {"q8_0", "q4_k", "q6_k", "int8", "nbits4", "nbits8_16"} do
      local cols, rows, t = 16384, 17, 19 -- columns enough for panels at every level
      local m = pack(name, rows, cols, stored(name, rows, cols, 2))
      local x = uneven(1, cols, 6, 1):rep(t - 1) .. uneven(1, cols, 7, 1)
      local want = testing.matmul(m, "ref", "int8", x, t)
      for _, level in ipairs(levels) do
        assert.is_nil(floats.difference(testing.matmul(m, level, "int8", x, t), want))
      end
    end
  end)

  it("computes more columns than a run holds in several runs", function()
    for _, name in ipairs {"q4_1", "q5_0", "q6_k", "int8"} do
      local cols, rows, t = 512, 33, 1043
      local m, x = pack(name, rows, cols, stored(name, rows, cols, 3)), uneven(t, cols, 8, 4)
      local want = testing.matmul(m, "ref", "int8", x, t)
      for _, level in ipairs(levels) do
        assert.is_nil(floats.difference(testing.matmul(m, level, "int8", x, t), want), level .. " " .. name)
      end
    end
  end)
end)

describe("the bounds of q8_0 products", function()
  it("are never below a product, by the upper halves as near as Cauchy and Schwarz allow, by both near it", function()
    for seed, shape in ipairs { {17, 32}, {48, 96}, {100, 896}, {33, 4096} } do
      local rows, cols = shape[1], shape[2]
      local raw = stored("q8_0", rows, cols, seed)
      local m, blocks = pack("halves", rows, cols, raw), rows * cols // 32
      local lower, left, scale = {}, {}, {} -- of each column and of each block of the rows
      for i = 0, blocks - 1 do
        left[i] = 0
        for c = 1, 32 do
          local v = raw:byte(34 * i + 2 + c) % 16 - 7.5
          lower[32 * i + c], left[i] = v, left[i] + v * v
        end
        scale[i] = half(raw:sub(34 * i + 1, 34 * i + 2), 0)
      end
      for _, x in ipairs { uneven(1, cols, seed, 3), floats.uniform(cols, seed + 9, 1e-3), ("\0"):rep(4 * cols) } do
        local product = floats.unpack(testing.matmul(m, "ref", "int8", x, 1))
        local q, d, _, _, high = testing.matmul_activations("ref", "int8", x, 1, cols)
        local ds, codes, size = floats.unpack(d), {}, {}
        for b = 0, cols // 32 - 1 do
          size[b] = 0
          for c = 32 * b + 1, 32 * b + 32 do
            codes[c] = string.unpack("b", q, c) + 128 * string.unpack("b", high, c)
            size[b] = size[b] + codes[c] ^ 2
          end
        end
        local most, whole = {}, {} -- of each row: the bound's distance by Cauchy and Schwarz, and the size of the product's terms
        for r = 1, rows do
          most[r], whole[r] = 0, 0
          for b = 0, cols // 32 - 1 do
            local i, rest = (r - 1) * cols // 32 + b, 0
            for c = 1, 32 do rest = rest + lower[32 * i + c] * codes[32 * b + c] end
            local by = math.abs(scale[i]) * ds[b + 1]
            whole[r] = whole[r] + by * size[b] ^ 0.5 * 32 ^ 0.5
            most[r] = most[r] - scale[i] * ds[b + 1] * rest + by * ((left[i] ^ 0.5 + 1 / 6) * 1.02 * size[b] ^ 0.5)
          end
        end
        for _, level in ipairs(levels) do
          local upper, both = testing.matmul_bounds(m, level, x)
          local bounds, fine = floats.unpack(upper), floats.unpack(both)
          for r = 1, rows do
            assert(bounds[r] >= product[r], ("%s row %d: %g below %g"):format(level, r, bounds[r], product[r]))
            local near = fine[rows + 1 - r] -- rows came in falling order
            assert(near >= product[r] and near <= product[r] + whole[r] * cols * 1e-5 + 1e-30,
              ("%s row %d: %g, not %g"):format(level, r, near, product[r]))
            assert(bounds[r] <= product[r] + most[r] + 1e-6,
              ("%s row %d: %g above %g"):format(level, r, bounds[r], product[r] + most[r]))
          end
        end
      end
    end
  end)

  it("are those of each token alone where several are computed", function()
    for seed, cols in ipairs { 64, 896 } do
      local rows, tokens = 33, 6
      local m = pack("halves", rows, cols, stored("q8_0", rows, cols, seed))
      local x = uneven(tokens, cols, seed, 3)
      for _, level in ipairs(levels) do
        for t = 1, tokens do
          local upper, both = testing.matmul_bounds(m, level, x:sub(1, 4 * cols * t), t)
          for i = 1, t do
            local one, fine = testing.matmul_bounds(m, level, x:sub(4 * cols * (i - 1) + 1, 4 * cols * i))
            assert.is_true(upper:sub(#one * (i - 1) + 1, #one * i) == one, level)
            assert.is_true(both:sub(#fine * (i - 1) + 1, #fine * i) == fine, level)
          end
        end
      end
    end
  end)
end)

describe("quantise_i8", function()
  it("is the same to the bit at all levels, and near x", function()
    local wides, fours = 0, 0
    -- Large values are told apart closely (limit 2, a quarter of it for 127 steps) or, where `coarse`, less so.
    for _, case in ipairs {{1}, {31}, {32}, {33}, {576}, {1000}, {4864}, {32, true}, {300, true}, {513, true}, {1536, true}} do
      local cols, coarse, t = case[1], case[2], 3
      local over, part = coarse and 4 or 2, coarse and 0.35 or 0.25
      local x = uneven(t, cols, cols, 5)
      x = x:sub(1, 4 * (t - 1) * cols) .. ("\0"):rep(4 * cols) -- the last column is zero
      local want = {testing.matmul_activations("ref", "int8", x, t, cols, coarse)}
      local q, d, isum, dsum, high, wide, d_high, high_isum = table.unpack(want)
      for _, level in ipairs(levels) do assert.same(want, {testing.matmul_activations(level, "int8", x, t, cols, coarse)}) end
      local xs, ds, dsums, highs, nb = floats.unpack(x), floats.unpack(d), floats.unpack(dsum), floats.unpack(d_high), (cols + 31) // 32
      for i = 0, t - 1 do
        local squares, largest = 0, {}
        for b = 0, nb - 1 do
          largest[b] = 0
          for c = 32 * b + 1, math.min(32 * b + 32, cols) do largest[b] = math.max(largest[b], math.abs(xs[i * cols + c])) end
          squares = squares + largest[b] ^ 2
        end
        for b = 0, nb - 1 do -- the larger ones are wide
          local at, sums, high_sums = i * nb + b, {0, 0}, {0, 0}
          local scale, marks, by = ds[at + 1], wide:byte(at + 1), largest[b] ^ 2 / (over * squares / nb)
          assert(marks > 0 and by >= 0.999 or marks == 0 and (by <= 1.001 or squares == 0), by)
          if marks > 0 then wides = wides + 1 end
          local span = marks == 0 and largest[b] or math.max((over * squares / nb) ^ 0.5 * part, largest[b] * 127 / 16319)
          assert(math.abs(scale - span / 127) <= span * 1e-6)
          for c = 0, 31 do
            local code, above = string.unpack("b", q, at * 32 + c + 1), string.unpack("b", high, at * 32 + c + 1)
            sums[c // 16 + 1] = sums[c // 16 + 1] + code
            high_sums[c // 16 + 1] = high_sums[c // 16 + 1] + above
            local v = 32 * b + c < cols and xs[i * cols + 32 * b + c + 1] or 0
            assert(math.abs(code + 128 * above - v / math.max(scale, 1e-30)) <= 0.502)
            assert(marks >> c // 4 & 1 == 1 or above == 0)
          end
          for four = 0, 7 do
            local any = false
            for c = 4 * four + 1, 4 * four + 4 do
              any = any or 32 * b + c <= cols and math.abs(xs[i * cols + 32 * b + c]) > scale * 127.51
            end
            if any then fours = fours + 1 end
            assert(not any or marks >> four & 1 == 1)
          end
          assert.same(string.pack("<i4i4", sums[1], sums[2]), isum:sub(8 * at + 1, 8 * at + 8))
          assert.same(string.pack("<i4i4", high_sums[1], high_sums[2]), high_isum:sub(8 * at + 1, 8 * at + 8))
          assert.equal(marks > 0 and scale * 128 or 0, highs[at + 1])
          assert(floats.ulps(dsums[at + 1], scale * (sums[1] + sums[2] + 128 * (high_sums[1] + high_sums[2]))) <= 1)
        end
      end
    end
    assert(wides > 30 and fours > wides)
  end)

  it("takes blocks of tiny numbers for zero", function()
    local x = string.pack("<f", 2.0 ^ -101):rep(32) .. string.pack("<f", -2.0 ^ -99):rep(32)
    for _, level in ipairs(levels) do
      local q, d = testing.matmul_activations(level, "int8", x, 1, 64)
      assert.equal(("\0"):rep(32) .. ("\x81"):rep(32), q)
      assert.equal(0, (string.unpack("<f", d)))
      assert(floats.ulps(2.0 ^ -99 / 127, (string.unpack("<f", d, 5))) <= 1)
    end
  end)

  it("gives codes in range for nan and infinity", function()
    local values = {}
    for i = 1, 64 do values[i] = i % 7 == 0 and 0 / 0 or i % 5 == 0 and math.huge or -i end
    for _, level in ipairs(levels) do
      local q = testing.matmul_activations(level, "int8", floats.pack(values), 2, 32)
      for i = 1, #q do assert(string.unpack("b", q, i) >= -127) end
    end
  end)
end)
