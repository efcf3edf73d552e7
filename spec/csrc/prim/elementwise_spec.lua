-- Elementwise primitives against closed forms in double precision, through ONNX nodes.
local onnx = require "support.onnx_writer"

local VALUES = { -7.5, -2, -1, -0.5, -1e-3, 0, 1e-3, 0.5, 1, 1.5, 2.5, 7.5, 30 }

local function near(want, got, what)
  if want ~= want then return assert.is_true(got ~= got, what) end
  assert.is_true(want == got or math.abs(want - got) <= 2e-6 * (1 + math.abs(want)), ("%s: %s, wanted %s"):format(what, got, want))
end

local function logistic(x) return 1 / (1 + math.exp(-x)) end
local function tanh(x) return 1 - 2 / (math.exp(2 * x) + 1) end

-- Abramowitz and Stegun 7.1.5: the series of erf, which converges for every x; here |x| <= 4.
local function erf(x)
  if math.abs(x) > 4 then return x > 0 and 1 or -1 end
  local sum, term = x, x
  for n = 1, 100 do
    term = -term * x * x / n
    sum = sum + term / (2 * n + 1)
  end
  return 2 / math.sqrt(math.pi) * sum
end

local function to_even(x)
  local low = math.floor(x)
  if x - low ~= 0.5 then return math.floor(x + 0.5) end
  return low % 2 == 0 and low or low + 1
end

local UNARY = {
  Abs = math.abs, Neg = function(x) return -x end, Sign = function(x) return x > 0 and 1 or x < 0 and -1 or 0 end, Exp = math.exp,
  Sin = math.sin, Cos = math.cos, Tan = math.tan, Atan = math.atan, Erf = erf, Floor = math.floor, Ceil = math.ceil, Round = to_even,
  Relu = function(x) return math.max(x, 0) end, Sigmoid = logistic, Tanh = tanh,
  Softplus = function(x) return math.max(x, 0) + math.log(1 + math.exp(-math.abs(x))) end,
  Softsign = function(x) return x / (1 + math.abs(x)) end, Gelu = function(x) return x / 2 * (1 + erf(x / math.sqrt(2))) end,
  Sqrt = function(x) return x < 0 and 0 / 0 or math.sqrt(x) end,
  Reciprocal = function(x) return x == 0 and math.huge or 1 / x end,
  LeakyRelu = function(x) return x < 0 and 0.01 * x or x end, Elu = function(x) return x < 0 and math.exp(x) - 1 or x end,
  HardSigmoid = function(x) return math.min(math.max(0.2 * x + 0.5, 0), 1) end,
  Log = function(x) return x < 0 and 0 / 0 or x == 0 and -math.huge or math.log(x) end,
}

describe("a unary primitive", function()
  for op, f in pairs(UNARY) do
    it(op .. " gives its closed form", function()
      local got = assert(onnx.run(op, { onnx.floats({ #VALUES }, VALUES) }))
      assert.same({ #VALUES }, got.shape)
      for i, x in ipairs(VALUES) do near(f(x), got[i], ("%s(%g)"):format(op, x)) end
    end)
  end

  it("gives the same on one thread and several, for many elements", function()
    local list = {}
    for i = 1, 100003 do list[i] = (i * 7919 % 2001 - 1000) / 100 end
    local x = onnx.floats({ #list }, list)
    local one, many = assert(onnx.run("Tanh", { x })), assert(onnx.run("Tanh", { x }, { threads = 3 }))
    for i = 1, #list do assert(one[i] == many[i]) end
  end)

  it("takes an empty tensor and a scalar", function()
    assert.same({ 0 }, assert(onnx.run("Exp", { onnx.floats({ 0 }, {}) })).shape)
    local scalar = assert(onnx.run("Exp", { onnx.floats({}, { 0 }) }))
    assert.same({}, scalar.shape)
    assert.equal(1, scalar[1])
  end)
end)

local BINARY = {
  Add = function(a, b) return a + b end, Sub = function(a, b) return a - b end, Mul = function(a, b) return a * b end,
  Div = function(a, b) return a / b end, Pow = function(a, b) return math.abs(a) ^ b end, Max = math.max, Min = math.min,
}

describe("a binary primitive", function()
  local a, b = { 1.5, 2, 3, 0.25, 5, 6 }, { 2, 0.5, 3 }
  for op, f in pairs(BINARY) do
    it(op .. " broadcasts as numpy", function()
      local rows = assert(onnx.run(op, { onnx.floats({ 2, 3 }, a), onnx.floats({ 3 }, b) }))
      assert.same({ 2, 3 }, rows.shape)
      for i = 0, 5 do near(f(a[i + 1], b[i % 3 + 1]), rows[i + 1], op) end
      local columns = assert(onnx.run(op, { onnx.floats({ 2, 1, 3 }, a), onnx.floats({ 2, 1 }, { 2, 3 }) }))
      assert.same({ 2, 2, 3 }, columns.shape)
      for i = 0, 11 do near(f(a[i // 6 * 3 + i % 3 + 1], ({ 2, 3 })[i // 3 % 2 + 1]), columns[i + 1], op) end
    end)
  end

  it("refuses shapes that do not fit", function()
    local out, message, code = onnx.run("Add", { onnx.floats({ 2 }, { 1, 2 }), onnx.floats({ 3 }, { 1, 2, 3 }) })
    assert.same({ nil, "shape" }, { out, code })
    assert.matches("node", message)
  end)

  it("divides integers towards zero, and takes the sign of y or of x in Mod", function()
    local x, y = onnx.ints({ 4 }, { 7, -7, 7, -7 }), onnx.ints({ 4 }, { 2, 2, -2, -2 })
    assert.same({ 3, -3, -3, 3 }, { table.unpack(assert(onnx.run("Div", { x, y }))) })
    x, y = onnx.ints({ 4 }, { 7, -7, 7, -7 }), onnx.ints({ 4 }, { 3, 3, -3, -3 })
    assert.same({ 1, 2, -2, -1 }, { table.unpack(assert(onnx.run("Mod", { x, y }))) })
    x, y = onnx.floats({ 2 }, { 7, -7 }), onnx.floats({ 2 }, { 3, 3 })
    assert.same({ 1, -1 }, { table.unpack(assert(onnx.run("Mod", { x, y }, { attrs = { fmod = 1 } }))) })
  end)

  it("gives 0 for an integer divided by zero, and the lowest integer divided by -1 wraps", function()
    local lowest = math.mininteger
    local out = assert(onnx.run("Div", { onnx.ints({ 2 }, { 1, lowest }), onnx.ints({ 2 }, { 0, -1 }) }))
    assert.same({ 0, lowest }, { table.unpack(out) })
    assert.equal(0, assert(onnx.run("Mod", { onnx.ints({ 1 }, { lowest }), onnx.ints({ 1 }, { -1 }) }))[1])
  end)

  it("compares, and joins booleans", function()
    local x, y = onnx.floats({ 3 }, { 1, 2, 3 }), onnx.floats({}, { 2 })
    for op, want in pairs { Equal = { 0, 1, 0 }, Less = { 1, 0, 0 }, LessOrEqual = { 1, 1, 0 }, Greater = { 0, 0, 1 },
      GreaterOrEqual = { 0, 1, 1 } } do
      local got = assert(onnx.run(op, { x, y }))
      assert.same({ "bool", want }, { got.dtype, { table.unpack(got) } })
    end
    local p, q = onnx.bools({ 4 }, { 0, 0, 1, 1 }), onnx.bools({ 4 }, { 0, 1, 0, 1 })
    for op, want in pairs { And = { 0, 0, 0, 1 }, Or = { 0, 1, 1, 1 }, Xor = { 0, 1, 1, 0 } } do
      assert.same(want, { table.unpack(assert(onnx.run(op, { p, q }))) })
    end
    assert.same({ 1, 1, 0, 0 }, { table.unpack(assert(onnx.run("Not", { p }))) })
  end)
end)

describe("Where, Clip and Cast", function()
  it("choose, bound and convert", function()
    local chosen = assert(onnx.run("Where", { onnx.bools({ 2, 1 }, { 1, 0 }), onnx.floats({ 2 }, { 1, 2 }), onnx.floats({}, { 9 }) }))
    assert.same({ 1, 2, 9, 9 }, { table.unpack(chosen) })
    local x = onnx.floats({ 4 }, { -2.75, -0.5, 0.5, 300.9 })
    assert.same({ -1, -0.5, 0.5, 2 }, { table.unpack(assert(onnx.run("Clip", { x, onnx.floats({}, { -1 }), onnx.floats({}, { 2 }) }))) })
    local whole = assert(onnx.run("Cast", { x }, { attrs = { to = 7 } }))
    assert.same({ "int64", { -2, 0, 0, 300 } }, { whole.dtype, { table.unpack(whole) } })
    local truth = assert(onnx.run("Cast", { onnx.floats({ 3 }, { 0, -0.5, 2 }) }, { attrs = { to = 9 } }))
    assert.same({ "bool", { 0, 1, 1 } }, { truth.dtype, { table.unpack(truth) } })
  end)
end)
