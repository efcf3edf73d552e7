local testing = require("ane.core").testing
local floats = require("support.floats")

local inf, nan = math.huge, 0 / 0
local sizes = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 100}

-- Every power of two with neighbours, both signs, and what is not a number.
local function extremes()
  local values = {0.0, -0.0, inf, -inf, nan, 2.0 ^ -149, -2.0 ^ -149, 88.72, 88.73, -87.33, -87.34, -103.9, -104.1, 89, -104}
  for e = -149, 127 do
    for _, f in ipairs {1, 1.25, 1.999} do
      values[#values + 1] = f * 2.0 ^ e
      values[#values + 1] = -f * 2.0 ^ e
    end
  end
  return floats.pack(values)
end

-- Dense where the functions bend.
local function sweep(limit, n)
  local values = {}
  for i = 0, n do values[i + 1] = limit * (2 * i / n - 1) end
  return floats.pack(values)
end

local activations = {"silu", "gelu_tanh", "gelu_erf", "sigmoid"}
local inputs = {extremes(), sweep(110, 20001), sweep(6, 20003), sweep(0.01, 1001)}

-- tanh in double from exp; erf by its series, and by the continued fraction of erfc where the series cancels.
local function tanh(x)
  if math.abs(x) < 1e-4 then return x - x * x * x / 3 end
  local e = math.exp(-2 * math.abs(x))
  local t = (1 - e) / (1 + e)
  return x < 0 and -t or t
end
local function erf(x)
  local a = math.abs(x)
  if a < 2.5 then
    local term, sum = x, x
    for n = 1, 80 do
      term = -term * x * x / n
      sum = sum + term / (2 * n + 1)
    end
    return sum * 2 / math.sqrt(math.pi)
  end
  local f = 0
  for n = 60, 1, -1 do f = n / 2 / (a + f) end
  local e = 1 - math.exp(-a * a) / (a + f) / math.sqrt(math.pi)
  return x < 0 and -e or e
end

describe("elementwise functions", function()
  for _, level in ipairs(testing.kernel_levels()) do
    it(level .. ": same bits as ref on odd sizes", function()
      for _, n in ipairs(sizes) do
        local a, b = floats.uniform(n, n, 10), floats.uniform(n, n + 1, 10)
        for _, name in ipairs {"add", "mul"} do
          assert.is_nil(floats.difference(testing.elementwise(level, name, a, b), testing.elementwise("ref", name, a, b)))
        end
        for _, name in ipairs {"scale", "softcap"} do
          assert.is_nil(floats.difference(testing.elementwise(level, name, a, 3.7), testing.elementwise("ref", name, a, 3.7)))
        end
        for _, name in ipairs(activations) do
          assert.is_nil(floats.difference(testing.elementwise(level, name, a, b), testing.elementwise("ref", name, a, b)))
          assert.is_nil(floats.difference(testing.elementwise(level, name, a), testing.elementwise("ref", name, a)))
        end
      end
    end)

    it(level .. ": same bits as ref over sweeps and extremes", function()
      for _, x in ipairs(inputs) do
        for _, name in ipairs(activations) do
          assert.is_nil(floats.difference(testing.elementwise(level, name, x), testing.elementwise("ref", name, x)), name)
        end
        for _, s in ipairs {1, 0.3, 50} do
          local want = testing.elementwise("ref", "softcap", x, s)
          assert.is_nil(floats.difference(testing.elementwise(level, "softcap", x, s), want))
        end
      end
    end)
  end

  it("add, mul and scale round once", function()
    local as, bs = floats.uniform(100, 1, 9), floats.uniform(100, 2, 9)
    local a, b = floats.unpack(as), floats.unpack(bs)
    local s = floats.unpack(floats.pack {0.7})[1]
    local sum, product, scaled = {}, {}, {}
    for i = 1, 100 do sum[i], product[i], scaled[i] = a[i] + b[i], a[i] * b[i], a[i] * s end
    assert.equal(floats.pack(sum), testing.elementwise("ref", "add", as, bs))
    assert.equal(floats.pack(product), testing.elementwise("ref", "mul", as, bs))
    assert.equal(floats.pack(scaled), testing.elementwise("ref", "scale", as, 0.7))
  end)

  -- sigmoid(-x) = 1 / (1 + exp(x)) shows exp itself: for x >= 20 the 1 is lost, and the quotient adds one rounding.
  it("exp is within 1.5 ulp, seen through sigmoid of large negative numbers", function()
    local xs, worst = {}, 0
    for i = 0, 20000 do xs[i + 1] = -20 - i * (67 / 20000) end
    local packed = floats.pack(xs)
    local y = floats.unpack(testing.elementwise("ref", "sigmoid", packed))
    for i, x in ipairs(floats.unpack(packed)) do worst = math.max(worst, floats.ulps(y[i], 1 / (1 + math.exp(-x)))) end
    assert.is_true(worst <= 2.5, worst)
  end)

  it("exp ends in 0 and infinity: sigmoid and silu have their limits", function()
    local y = floats.unpack(testing.elementwise("ref", "sigmoid", floats.pack {-inf, inf, 0, -1e30, 1e30, nan, -89.5}))
    assert.same({0, 1, 0.5, 0, 1}, {table.unpack(y, 1, 5)})
    assert.is_true(y[6] ~= y[6])
    assert.equal(0, y[7])
    y = floats.unpack(testing.elementwise("ref", "silu", floats.pack {inf, 1e30, -1e30, 0}))
    assert.same({inf, string.unpack("<f", string.pack("<f", 1e30)), -0.0, 0}, y)
  end)

  it("tanh is within 3 ulp, seen through softcap 1", function()
    for k = 2, 4 do
      local y, worst = floats.unpack(testing.elementwise("ref", "softcap", inputs[k], 1)), 0
      for i, x in ipairs(floats.unpack(inputs[k])) do worst = math.max(worst, floats.ulps(y[i], tanh(x))) end
      assert.is_true(worst <= 3, worst)
    end
    local y = floats.unpack(testing.elementwise("ref", "softcap", floats.pack {inf, -inf, 2.0 ^ -149, -0.0}, 1))
    assert.same({1, -1, 2.0 ^ -149}, {table.unpack(y, 1, 3)})
    assert.equal(-inf, 1 / y[4])
  end)

  -- Relative where the result is a plain quotient, absolute to 0.5 |g| where 1 + erf cancels. Results below 1e-36 may be
  -- 0, since 1 + exp(-g) is infinite there.
  local truths = {
    silu = {function(g) return g / (1 + math.exp(-g)) end, 3e-7, 0},
    sigmoid = {function(g) return 1 / (1 + math.exp(-g)) end, 3e-7, 0},
    gelu_tanh = {function(g) return g / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (g + 0.044715 * g ^ 3))) end, 1e-5, 0},
    gelu_erf = {function(g) return 0.5 * g * (1 + erf(g / math.sqrt(2))) end, 2e-7, 5e-8},
  }
  for name, truth in pairs(truths) do
    it(name .. " agrees with double precision", function()
      for _, limit in ipairs {0.01, 6, 80} do
        local x = sweep(limit, 4001)
        local y = floats.unpack(testing.elementwise("ref", name, x))
        for i, g in ipairs(floats.unpack(x)) do
          local want = truth[1](g)
          local allowed = truth[2] * math.abs(want) + truth[3] * math.abs(g) + 1e-36
          assert.is_true(math.abs(y[i] - want) <= allowed, ("%s(%g): %g, not %g"):format(name, g, y[i], want))
        end
      end
    end)
  end
end)

describe("argmax", function()
  local cases = {
    {"one", {5}, 0}, {"nan only", {nan, nan, nan}, 0}, {"ties", {1, 7, 3, 7, 7}, 1}, {"nan first", {nan, -3, nan, 2}, 3},
    {"infinities", {-inf, inf, inf}, 1}, {"all -inf after nan", {nan, -inf, -inf}, 1}, {"zeros of both signs", {-1, -0.0, 0.0}, 1},
    {"empty", {}, 0},
  }
  for _, level in ipairs(testing.kernel_levels()) do
    it(level .. ": finds the lowest index of the largest", function()
      for _, case in ipairs(cases) do assert.equal(case[3], (testing.argmax(level, floats.pack(case[2]))), case[1]) end
      for _, n in ipairs {1, 15, 16, 17, 1000, 1023, 1024, 1025, 2047, 3000, 5001} do
        local values, random = {}, floats.random(n)
        for i = 1, n do values[i] = random() < 0.2 and nan or math.floor(random() * 50) - 25 end
        local best, at = -inf, 0
        for i = 1, n do
          if values[i] > best then best, at = values[i], i - 1 end
        end
        local index, value = testing.argmax(level, floats.pack(values))
        assert.equal(at, index)
        assert.equal(best, value)
      end
    end)
  end
end)
