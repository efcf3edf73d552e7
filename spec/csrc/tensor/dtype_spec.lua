-- Element types: sizes against the GGUF specification, conversions against string.pack and the formats' definitions.
local testing = require("ane.core").testing

-- Name, GGUF type id, elements and bytes of a block (ggml-common.h, ggml.h).
local GGUF = {
  { "fp32", 0, 1, 4 }, { "fp16", 1, 1, 2 }, { "q4_0", 2, 32, 18 }, { "q4_1", 3, 32, 20 }, { "q5_0", 6, 32, 22 }, { "q5_1", 7, 32, 24 },
  { "q8_0", 8, 32, 34 }, { "q2_k", 10, 256, 84 }, { "q3_k", 11, 256, 110 }, { "q4_k", 12, 256, 144 }, { "q5_k", 13, 256, 176 },
  { "q6_k", 14, 256, 210 }, { "iq2_xxs", 16, 256, 66 }, { "iq2_xs", 17, 256, 74 }, { "iq3_xxs", 18, 256, 98 }, { "iq1_s", 19, 256, 50 },
  { "iq4_nl", 20, 32, 18 }, { "iq3_s", 21, 256, 110 }, { "iq2_s", 22, 256, 82 }, { "iq4_xs", 23, 256, 136 }, { "int8", 24, 1, 1 },
  { "int16", 25, 1, 2 }, { "int32", 26, 1, 4 }, { "int64", 27, 1, 8 }, { "fp64", 28, 1, 8 }, { "iq1_m", 29, 256, 56 }, { "bf16", 30, 1, 2 },
}

local function bits_of(f) return (("<I4"):unpack(("<f"):pack(f))) end

describe("dtypes", function()
  it("have the sizes and ids of the GGUF specification", function()
    for _, row in ipairs(GGUF) do
      local d = assert(testing.dtype(row[1]), row[1])
      assert.same({ row[1], row[2], row[3], row[4], true }, { row[1], d.gguf, d.block, d.bytes, d.found })
    end
    assert.is_nil(testing.dtype "fp17")
    assert.is_nil(testing.dtype "")
  end)

  it("give the bytes of whole blocks only", function()
    assert.same({ 0, 34, 144 * 1000 },
      { testing.dtype_bytes("q8_0", 0), testing.dtype_bytes("q8_0", 32), testing.dtype_bytes("q4_k", 256000) })
    assert.is_nil(testing.dtype_bytes("q8_0", 33))
    assert.is_nil(testing.dtype_bytes("q4_k", 128))
    assert.is_nil(testing.dtype_bytes("fp64", 1 << 62)) -- overflows
  end)

  it("convert plain elements to float32", function()
    local cases = {
      { "fp32", "<f", 1.5 }, { "fp64", "<d", -0.1 }, { "int8", "<i1", -128 }, { "int16", "<i2", -32768 }, { "int32", "<i4", -16777217 },
      { "int64", "<i8", 1 << 53 }, { "uint8", "<I1", 255 }, { "uint16", "<I2", 65535 }, { "uint32", "<I4", 4294967295 },
    }
    for _, case in ipairs(cases) do
      local bytes = case[2]:pack(case[3]):rep(3)
      assert.equal(("<f"):pack(case[3]):rep(3), assert(testing.to_f32(case[1], bytes)), case[1])
    end
    assert.equal(("<fff"):pack(0, 1, 1), testing.to_f32("bool", "\0\1\255"))
    local got, message, code = testing.to_f32("q8_0", ("\0"):rep(34))
    assert.same({ nil, "unsupported" }, { got, code })
    assert.is_string(message)
  end)
end)

describe("small floats", function()
  -- The nearest of all finite values of a format, of two equally near ones that with the even code: the definition of rounding.
  local function nearest(values, x)
    local best, distance
    for code, v in pairs(values) do
      local d = math.abs(v - x)
      if not best or d < distance or d == distance and code % 2 == 0 then best, distance = code, d end
    end
    return best
  end

  it("round float32 to the nearest fp16, ties to even, beyond 65519 to infinity", function()
    local values = {}
    for code = 0, 0x7C00 do -- 0x7C00 stands for 65536 here, where rounding to infinity begins
      local exponent, mantissa = code >> 10, code & 0x3FF
      values[code] = exponent == 0 and mantissa * 2.0 ^ -24 or (1024 + mantissa) * 2.0 ^ (exponent - 25)
    end
    local xs = {
      0, 1, 65504, 65519, 65519.996, 65520, 70000, 2.0 ^ -14, 2.0 ^ -24, 2.0 ^ -25, 2.0 ^ -25 * 1.0001, 2.0 ^ -26, 0.1, 1 / 3, 1e-5, 1e-7,
    }
    for i = 1, 12 do xs[#xs + 1] = 1 + i * 2.0 ^ -12 end -- ties and their neighbours
    for i = 1, 12 do xs[#xs + 1] = i * 2.0 ^ -26 end
    for _, x in ipairs(xs) do
      x = ("<f"):unpack(("<f"):pack(x))
      for sign = 0, 1 do
        local h, back = testing.half(bits_of(x) | sign << 31)
        assert.equal(nearest(values, math.min(x, 65536)) | sign << 15, h, x)
        if h & 0x7FFF < 0x7C00 then assert.equal(bits_of(values[h & 0x7FFF]) | sign << 31, back) end
      end
    end
  end)

  it("keep infinities and NaN", function()
    for _, case in ipairs { { 0x7F800000, 0x7C00, 0x7F80 }, { 0xFF800000, 0xFC00, 0xFF80 } } do
      local h, back, b, again = testing.half(case[1])
      assert.same({ case[2], case[1], case[3], case[1] }, { h, back, b, again })
    end
    for _, nan in ipairs { 0x7FC00000, 0x7F800001, 0xFFFFFFFF } do
      local h, back, b, again = testing.half(nan)
      local parts = { { h, 0x7C00, 0x3FF }, { back, 0x7F800000, 0x7FFFFF }, { b, 0x7F80, 0x7F }, { again, 0x7F800000, 0x7FFFFF } }
      for _, pair in ipairs(parts) do
        assert.is_true(pair[1] & pair[2] == pair[2] and pair[1] & pair[3] ~= 0)
      end
    end
  end)

  it("round float32 to the nearest bf16, ties to even", function()
    local cases = {
      [0x3F800000] = 0x3F80, [0x3F808000] = 0x3F80, [0x3F818000] = 0x3F82, [0x3F808001] = 0x3F81, [0x3F807FFF] = 0x3F80,
      [0x7F7FFFFF] = 0x7F80, [0x00000001] = 0, [0x80000000] = 0x8000, [0x00008001] = 1,
    }
    for bits, want in pairs(cases) do
      local _, _, b, back = testing.half(bits)
      assert.same({ want, want << 16 }, { b, back })
    end
  end)
end)
