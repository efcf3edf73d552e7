-- Elementary functions beside those of the C library in double precision, which Lua has.
local floats = require "support.floats"
local testing = require("ane.core").testing

-- The nearest float32.
local function rounded(x) return (string.unpack("<f", string.pack("<f", x))) end

local FUNCTIONS = {
  exp = math.exp,
  log = math.log,
  softplus = function(x)
    if x > 20 then return x end
    local e = math.exp(x)
    return e > 1e-3 and math.log(1 + e) or e - e ^ 2 / 2 + e ^ 3 / 3 - e ^ 4 / 4 + e ^ 5 / 5
  end,
  sin = math.sin,
  cos = math.cos,
}

describe("elementary functions", function()
  -- 20,000 numbers of both signs with magnitudes from 2^low to 2^high.
  local function numbers(low, high)
    local list, random = {}, floats.random(7)
    for i = 1, 20000 do
      local x = rounded(2.0 ^ (low + (high - low) * random()))
      list[i] = i % 2 == 0 and x or -x
    end
    return list
  end

  local function worst(name, list, allowed)
    local wrong, fn = 0, FUNCTIONS[name]
    for _, x in ipairs(list) do
      local got, want = testing.elementary(name, x), fn(x)
      if got ~= rounded(want) then
        wrong = wrong + 1
        assert(math.abs(got - want) <= allowed(want), ("%s(%.9g) is %.9g, expected %.9g"):format(name, x, got, want))
      end
    end
    return wrong
  end

  -- Half of the distance to the next float32, and a millionth of it.
  local function half(want) return math.abs(want) * 2.0 ^ -24 * 1.000001 + 2.0 ^ -150 end

  it("are the nearest float32", function()
    assert.equal(0, worst("exp", numbers(-30, 6.4), half))
    assert.equal(0, worst("softplus", numbers(-30, 6.4), half))
    local positive = {}
    for i, x in ipairs(numbers(-126, 127)) do positive[i] = math.abs(x) end
    for i, x in ipairs(numbers(-20, -1)) do positive[#positive + 1] = rounded(1 + x * (i % 3)) end
    for i = #positive, 1, -1 do
      if positive[i] <= 0 then table.remove(positive, i) end
    end
    assert.equal(0, worst("log", positive, half))
  end)

  it("are that for angles too, but where the result is next to 0", function()
    local function near(want) return math.max(half(want), 1e-9) end
    for _, name in ipairs { "sin", "cos" } do
      assert.equal(0, worst(name, numbers(-30, 3), near))
      assert.is_true(worst(name, numbers(-30, 23), near) < 20)
    end
  end)

  it("have limits", function()
    local inf, nan = math.huge, 0 / 0
    assert.same({ 0.0, inf, 1.0, inf, 0.0 }, {
      testing.elementary("exp", -105), testing.elementary("exp", 89), testing.elementary("exp", 0), testing.elementary("exp", inf),
      testing.elementary("exp", -inf),
    })
    assert.equal(2.0 ^ -149, testing.elementary("exp", -103.2))
    assert.same({ -inf, 0.0, inf }, { testing.elementary("log", 0), testing.elementary("log", 1), testing.elementary("log", inf) })
    assert.same({ 0.0, 25.0, inf }, {
      testing.elementary("softplus", -inf), testing.elementary("softplus", 25), testing.elementary("softplus", inf),
    })
    assert.same({ 0.0, 1.0 }, { testing.elementary("sin", 0), testing.elementary("cos", 0) })
    for name, arguments in pairs { exp = { nan }, log = { nan, -1 }, softplus = { nan }, sin = { nan, inf, 2.0 ^ 31 }, cos = { -inf } } do
      for _, x in ipairs(arguments) do
        local y = testing.elementary(name, x)
        assert.is_true(y ~= y, name)
      end
    end
  end)
end)
