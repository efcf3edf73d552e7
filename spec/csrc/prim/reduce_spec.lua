-- Reductions and norms against closed forms in double precision, through ONNX nodes.
local near = require("support.numbers").near_within(2e-6)
local onnx = require "support.onnx_writer"

local A = { 1, -2, 3, 4, 0.5, -6, 7, 8, 9, -10, 11, 0.25 } -- [2, 3, 2]

local function x() return onnx.floats({ 2, 3, 2 }, A) end

-- f(list) of each line of A along its middle axis: [2, 2].
local function along(f)
  local out = {}
  for i = 0, 1 do
    for k = 1, 2 do out[#out + 1] = f { A[i * 6 + k], A[i * 6 + 2 + k], A[i * 6 + 4 + k] } end
  end
  return out
end

local function fold(start, f)
  return function(list)
    local v = start
    for _, e in ipairs(list) do v = f(v, e) end
    return v
  end
end

local sum = fold(0, function(v, e) return v + e end)
local REDUCTIONS = {
  ReduceSum = sum, ReduceMean = function(l) return sum(l) / #l end, ReduceMax = fold(-math.huge, math.max),
  ReduceMin = fold(math.huge, math.min), ReduceProd = fold(1, function(v, e) return v * e end),
  ReduceSumSquare = fold(0, function(v, e) return v + e * e end), ReduceL1 = fold(0, function(v, e) return v + math.abs(e) end),
  ReduceL2 = function(l) return math.sqrt(fold(0, function(v, e) return v + e * e end)(l)) end,
  ReduceLogSumExp = function(l) return math.log(fold(0, function(v, e) return v + math.exp(e) end)(l)) end,
}

describe("a reduction", function()
  for op, f in pairs(REDUCTIONS) do
    it(op .. " over one axis, kept or not, and over all", function()
      local kept = assert(onnx.run(op, { x(), onnx.ints({ 1 }, { 1 }) }))
      assert.same({ 2, 1, 2 }, kept.shape)
      near(along(f), kept)
      local dropped = assert(onnx.run(op, { x(), onnx.ints({ 1 }, { -2 }) }, { attrs = { keepdims = 0 } }))
      assert.same({ 2, 2 }, dropped.shape)
      near(along(f), dropped)
      near({ f(A) }, assert(onnx.run(op, { x() }, { attrs = { keepdims = 0 } })))
    end)
  end

  it("of no numbers begins at the end of the type", function()
    for op, want in pairs { ReduceMax = -(1 << 31), ReduceMin = (1 << 31) - 1 } do
      assert.same({ want }, { table.unpack(assert(onnx.run(op, { onnx.int32s({ 1, 0 }, {}) }, { attrs = { keepdims = 0 } }))) })
    end
  end)

  it("refuses an axis that is not there", function()
    local out, _, code = onnx.run("ReduceSum", { x(), onnx.ints({ 1 }, { 3 }) })
    assert.is_nil(out)
    assert.is_string(code)
  end)

  it("finds the first or the last of the largest", function()
    local t = onnx.floats({ 2, 3 }, { 5, 7, 7, 1, 0, 1 })
    assert.same({ 1, 0 }, { table.unpack(assert(onnx.run("ArgMax", { t }, { attrs = { axis = 1, keepdims = 0 } }))) })
    local last = { axis = 1, keepdims = 0, select_last_index = 1 }
    assert.same({ 2, 2 }, { table.unpack(assert(onnx.run("ArgMax", { t }, { attrs = last }))) })
    assert.same({ 0, 1 }, { table.unpack(assert(onnx.run("ArgMin", { t }, { attrs = { axis = 1, keepdims = 0 } }))) })
  end)

  it("adds up along an axis", function()
    local t, axis = onnx.floats({ 4 }, { 1, 2, 3, 4 }), onnx.ints({}, { 0 })
    assert.same({ 1, 3, 6, 10 }, { table.unpack(assert(onnx.run("CumSum", { t, axis }))) })
    assert.same({ 0, 1, 3, 6 }, { table.unpack(assert(onnx.run("CumSum", { t, axis }, { attrs = { exclusive = 1 } }))) })
    assert.same({ 10, 9, 7, 4 }, { table.unpack(assert(onnx.run("CumSum", { t, axis }, { attrs = { reverse = 1 } }))) })
  end)

  it("gives the k best with their places, the lower place first among equals", function()
    local t = onnx.floats({ 5 }, { 3, 9, 1, 9, 4 })
    local values, places = onnx.run("TopK", { t, onnx.ints({ 1 }, { 3 }) }, { outputs = 2 })
    assert.same({ { 9, 9, 4 }, { 1, 3, 4 } }, { { table.unpack(assert(values)) }, { table.unpack(places) } })
    values, places = onnx.run("TopK", { t, onnx.ints({ 1 }, { 2 }) }, { outputs = 2, attrs = { largest = 0 } })
    assert.same({ { 1, 3 }, { 2, 0 } }, { { table.unpack(assert(values)) }, { table.unpack(places) } })
  end)
end)

describe("a norm", function()
  it("softmax sums to one along its axis, without overflow", function()
    local large = assert(onnx.run("Softmax", { onnx.floats({ 1, 3 }, { 1000, 1001, 999 }) }))
    local e = math.exp(1)
    local total = 1 + e + 1 / e
    near({ 1 / total, e / total, 1 / e / total }, large)
    near(along(function(l) return math.exp(l[1]) / (math.exp(l[1]) + math.exp(l[2]) + math.exp(l[3])) end),
      (function()
        local all, first = assert(onnx.run("Softmax", { x() }, { attrs = { axis = 1 } })), {}
        for i = 0, 1 do
          for k = 1, 2 do first[#first + 1] = all[i * 6 + k] end
        end
        return first
      end)())
    local logs = assert(onnx.run("LogSoftmax", { onnx.floats({ 1, 3 }, { 1000, 1001, 999 }) }))
    near({ -math.log(total), 1 - math.log(total), -1 - math.log(total) }, logs)
  end)

  it("layer_norm has mean 0 and variance 1 before its scale and shift", function()
    local row, gamma, beta, eps = { 1, 2, 4, 9 }, { 1, 2, 3, 4 }, { 0.5, 0, -1, 2 }, 1e-5
    local mean, variance, want = 4, (9 + 4 + 0 + 25) / 4, {}
    for i, v in ipairs(row) do want[i] = (v - mean) / math.sqrt(variance + eps) * gamma[i] + beta[i] end
    local t = { onnx.floats({ 1, 4 }, row), onnx.floats({ 4 }, gamma), onnx.floats({ 4 }, beta) }
    near(want, assert(onnx.run("LayerNormalization", t, { attrs = { epsilon = eps } })))
  end)

  it("rms_norm divides by the root of the mean square", function()
    local row, gamma, want = { 1, -2, 4, 9 }, { 1, 2, 3, 4 }, {}
    for i, v in ipairs(row) do want[i] = v / math.sqrt((1 + 4 + 16 + 81) / 4 + 1e-6) * gamma[i] end
    local t = { onnx.floats({ 1, 4 }, row), onnx.floats({ 4 }, gamma) }
    near(want, assert(onnx.run("SimplifiedLayerNormalization", t, { attrs = { epsilon = 1e-6 } })))
  end)

  it("norms want floats and a scale", function()
    local reals, ones = onnx.floats({ 2, 2 }, { 1, 2, 3, 4 }), onnx.floats({ 2 }, { 1, 1 })
    local ints, whole = onnx.int32s({ 2, 2 }, { 1, 2, 3, 4 }), onnx.int32s({ 2 }, { 1, 1 })
    local function refused(what, op, inputs, domain)
      local out, message = onnx.run(op, inputs, { domain = domain })
      assert.is_nil(out)
      assert.matches("node node %(.*" .. what, message)
    end
    for _, op in ipairs { "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization" } do
      refused("x must be floats, but is int32%[2, 2%]", op, { ints, ones })
      refused("gamma must be floats, but is int32%[2%]", op, { reals, whole })
      refused("is missing", op, { reals })
      refused("gamma must have 2 elements, but is fp32%[0%]", op, { reals, onnx.floats({ 0 }, {}) })
    end
    refused("beta must be floats, but is int32%[2%]", "LayerNormalization", { reals, ones, whole })
    for _, op in ipairs { "SkipLayerNormalization", "SkipSimplifiedLayerNormalization" } do
      refused("is missing", op, { reals, reals }, "com.microsoft")
      refused("gamma must be floats, but is int32%[2%]", op, { reals, reals, whole }, "com.microsoft")
    end
  end)
end)
