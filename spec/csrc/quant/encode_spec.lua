-- The encoders that search: Q2_K to Q6_K.
local core = require "ane.core"
local floats = require "support.floats"

local testing = core.testing

-- n numbers about normally distributed (variance 1), times `scale`; every 97th eight times as large.
local function weights(n, seed, scale)
  local r, values = floats.random(seed), {}
  for i = 1, n do
    local sum = r() + r() + r() + r() + r() + r() + r() + r() + r() + r() + r() + r() - 6
    values[i] = sum * scale * (i % 97 == 0 and 8 or 1)
  end
  return floats.pack(values)
end

-- Root of the mean (weighted) square of the difference.
local function rms(a, b, importance)
  local x, y, w = floats.unpack(a), floats.unpack(b), importance and floats.unpack(importance)
  local sum, total = 0, 0
  for i = 1, #x do
    local k = w and w[i] or 1
    sum, total = sum + k * (x[i] - y[i]) ^ 2, total + k
  end
  return math.sqrt(sum / total)
end

local function back(dtype, bytes, importance) return testing.decode(dtype, testing.encode(dtype, bytes, importance)) end

-- Root mean square errors of ggml_quantize_chunk (ggml of llama.cpp, Sep 2025) on weights(8192, 3, 0.02), with and without
-- weights of the columns.
local REFERENCE = { q2_k = 8.853201e-03, q3_k = 5.144374e-03, q4_k = 2.307642e-03, q5_k = 1.150130e-03, q6_k = 6.658855e-04 }
local BLOCK = { q2_k = 84, q3_k = 110, q4_k = 144, q5_k = 176, q6_k = 210 }
local NAMES = { "q2_k", "q3_k", "q4_k", "q5_k", "q6_k" }

describe("encoders with a search", function()
  for _, dtype in ipairs(NAMES) do
    it("of " .. dtype .. " leave no more than the reference's error", function()
      local x = weights(8192, 3, 0.02)
      local bytes = testing.encode(dtype, x)
      assert.equal(BLOCK[dtype] * 32, #bytes)
      local got = rms(x, testing.decode(dtype, bytes))
      assert.is_true(got <= REFERENCE[dtype], ("%.9f, the reference %.9f"):format(got, REFERENCE[dtype]))
    end)

    it("of " .. dtype .. " find again what can be said exactly", function()
      -- Codes of the type times a power of two; what is left is the rounding of the fp16 factors.
      local r, top = floats.random(5), ({ q2_k = 3, q3_k = 7, q4_k = 15, q5_k = 31, q6_k = 63 })[dtype]
      local from = (dtype == "q3_k" or dtype == "q6_k") and -(top + 1) // 2 or 0
      local values = {}
      for i = 1, 512 do values[i] = (from + math.floor(r() * (top + 1))) / 64 end
      for i = 1, 512, 16 do values[i], values[i + 1] = from / 64, (from + top) / 64 end -- each sub-block has both ends
      local x = floats.pack(values)
      assert.is_true(rms(x, back(dtype, x)) < 5e-4 * rms(x, ("\0"):rep(#x)))
    end)

    it("of " .. dtype .. " obey the importance of columns", function()
      local x, r, w = weights(4096, 7, 1), floats.random(9), {}
      for i = 1, 4096 do w[i] = r() ^ 4 * 10 + 0.01 end
      local importance = floats.pack(w)
      assert.is_true(rms(x, back(dtype, x, importance), importance) < 0.97 * rms(x, back(dtype, x), importance))
      -- One weight for all is no weight; a column of no weight may become anything, the others keep their place.
      assert.equal(testing.encode(dtype, x), testing.encode(dtype, x, floats.pack { 1 }:rep(4096)))
      assert.equal(#testing.encode(dtype, x), #testing.encode(dtype, x, floats.pack { 0 }:rep(4096)))
    end)

    it("of " .. dtype .. " keep zeros, and constants", function()
      for _, v in ipairs(floats.unpack(back(dtype, floats.pack { 0 }:rep(512)))) do assert.equal(0.0, v + 0.0) end
      for _, c in ipairs { 1, -1, 0.37, -1e-3, 3e4 } do
        for _, v in ipairs(floats.unpack(back(dtype, floats.pack { c }:rep(256)))) do assert.near(c, v, math.abs(c) * 0.02) end
      end
    end)

    it("of " .. dtype .. " take anything without a trap", function()
      local list = floats.pack({ 1 / 0, -1 / 0, 0 / 0, 1e38, -1e38, 1e-45, 0, 1 }):rep(64)
      assert.equal(512 * 4, #back(dtype, list))
      assert.equal(512 * 4, #back(dtype, floats.pack({ 1e-30, -1e-30 }):rep(256)))
      assert.equal(512 * 4, #back(dtype, list, list))
    end)
  end

  it("give each block the bytes that it gets alone", function()
    local x = weights(1024, 11, 1)
    for _, dtype in ipairs(NAMES) do
      local alone = {}
      for i = 0, 3 do alone[i + 1] = testing.encode(dtype, x:sub(i * 1024 + 1, (i + 1) * 1024)) end
      assert.equal(table.concat(alone), testing.encode(dtype, x))
    end
  end)
end)
