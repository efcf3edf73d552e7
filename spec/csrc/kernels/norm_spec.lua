local testing = require("ane.core").testing
local floats = require("support.floats")

local sizes = {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 576, 1023}

describe("norms", function()
  for _, level in ipairs(testing.kernel_levels()) do
    it(level .. ": same bits as ref, with and without weights, in place too", function()
      for i, c in ipairs(sizes) do
        for _, kind in ipairs {"rms", "layer"} do
          for variant = 0, 3 do
            local rows = 1 + i % 3
            local x = floats.uniform(rows * c, 10 * c + variant, 3)
            local w = variant > 0 and floats.uniform(c, c + 1, 2) or nil
            local b = variant > 1 and floats.uniform(c, c + 2) or nil
            local want = testing.norm("ref", kind, x, w, b, 1e-5, rows)
            assert.is_nil(floats.difference(testing.norm(level, kind, x, w, b, 1e-5, rows, variant == 3), want))
          end
        end
      end
    end)
  end

  it("a row does not depend on the rows beside it", function()
    local c = 100
    local x = floats.uniform(3 * c, 5)
    for _, kind in ipairs {"rms", "layer"} do
      local all = testing.norm("ref", kind, x, nil, nil, 1e-6, 3)
      assert.equal(all:sub(4 * c + 1, 8 * c), testing.norm("ref", kind, x:sub(4 * c + 1, 8 * c), nil, nil, 1e-6, 1))
    end
  end)

  -- 576 sums of rounded squares, a division and two products: a few units of 2^-24.
  local tolerance = 2e-6

  it("rms is x / sqrt(mean x^2 + eps) * w", function()
    for _, c in ipairs(sizes) do
      local xs, ws = floats.uniform(c, c, 4), floats.uniform(c, c + 9, 2)
      local y = floats.unpack(testing.norm("ref", "rms", xs, ws, nil, 1e-5, 1))
      local x, w, sum = floats.unpack(xs), floats.unpack(ws), 0
      for i = 1, c do sum = sum + x[i] * x[i] end
      for i = 1, c do
        local want = x[i] / math.sqrt(sum / c + 1e-5) * w[i]
        assert.is_true(math.abs(y[i] - want) <= tolerance * (1 + math.abs(want)), c)
      end
    end
  end)

  it("layer norm is (x - mean) / sqrt(variance + eps) * w + b", function()
    for _, c in ipairs(sizes) do
      local xs, ws, bs = floats.uniform(c, c, 4), floats.uniform(c, c + 9, 2), floats.uniform(c, c + 5)
      local y = floats.unpack(testing.norm("ref", "layer", xs, ws, bs, 1e-3, 1))
      local x, w, b = floats.unpack(xs), floats.unpack(ws), floats.unpack(bs)
      local mean, variance = 0, 0
      for i = 1, c do mean = mean + x[i] / c end
      for i = 1, c do variance = variance + (x[i] - mean) ^ 2 / c end
      for i = 1, c do
        local want = (x[i] - mean) / math.sqrt(variance + 1e-3) * w[i] + b[i]
        assert.is_true(math.abs(y[i] - want) <= tolerance * (1 + math.abs(want)), c)
      end
    end
  end)
end)
