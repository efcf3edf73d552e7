-- Dimensions and attributes that no real graph has: products beyond 64 bits, dimensions of 0 beside huge ones. A graph is
-- refused, or its result is empty. Nothing is read or written beyond a tensor, and nothing runs for hours.
local onnx = require "support.onnx_writer"

local MS = "com.microsoft"
local floats, ints = onnx.floats, onnx.ints

-- What a node says that is refused.
local function told(...)
  local out, message, code = onnx.run(...)
  assert.is_nil(out)
  return { message:match "node .*$", code }
end

local function ones(n)
  local list = {}
  for i = 1, n do list[i] = 1 end
  return list
end

-- The shape of a result without elements.
local function empty(...)
  local out = assert(onnx.run(...))
  assert.equal(0, #out)
  return out.shape
end

local HUGE = 1 << 50

describe("a node with a shape that no memory holds is refused:", function()
  it("blocks larger than all numbers", function()
    assert.same({ "node node (dequantize): scale is fp32[0] for blocks of 9223372036854775807 on axis 0 of uint8[4]", "shape" },
      told("DequantizeLinear", { onnx.bytes({ 4 }, { 1, 2, 3, 4 }), floats({ 0 }, {}) },
        { attrs = { axis = 0, block_size = math.maxinteger } }))
  end)

  -- Grouped attention of one head of 4 channels.
  local function grouped(queries, total, bias)
    local part = floats({ 1, queries, 4 }, ones(4 * queries))
    return told("GroupQueryAttention", { part, part, part, false, false, ints({ 1 }, { 0 }), ints({}, { total }), false, false,
      false, bias }, { domain = MS, attrs = { num_heads = 1, kv_num_heads = 1 } })
  end

  it("caches of 2^60 rows", function()
    assert.same({ "node node (group_query_attention): a tensor of shape [1, 1, 1152921504606846976, 4] has too many elements", "range" },
      grouped(1, 1 << 60))
  end)

  it("a bias narrower than its queries", function()
    assert.same({ "node node (group_query_attention): attention_bias does not fit 5 queries and 5 keys", "shape" },
      grouped(5, 1, floats({ 1, 1, 5, 1 }, { 0, 0, 0, 0, 0 })))
  end)

  it("2^62 heads without channels", function()
    assert.same({ "node node (attention): a result of shape [1, 4611686018427387904, 1, 4] has too many elements", "range" },
      told("Attention", { floats({ 1, 1, 0 }, {}), floats({ 1, 1, 0 }, {}), floats({ 1, 1, 4 }, { 1, 2, 3, 4 }) },
        { attrs = { q_num_heads = 1 << 62, kv_num_heads = 1 } }))
  end)

  it("states of a convolution of 2^64 elements", function()
    assert.same({ "node node (causal_conv): a state of shape [72057594037927936, 1, 256] has too many elements", "range" },
      told("CausalConvWithState", { floats({ 1 << 56, 1, 0 }, {}), floats({ 1, 1, 257 }, ones(257)), false, floats({ 0 }, {}) },
        { domain = MS }))
  end)

  it("a kernel of 2^64 positions", function()
    assert.same({ "node node (conv): weight is fp32[4, 0, 1099511627776]", "shape" },
      told("Conv", { floats({ 1, 0, 8 }, {}), floats({ 4, 0, 1 << 40 }, {}) }, { attrs = { dilations = { 1 << 24 } } }))
  end)

  it("experts without rows or columns", function()
    local wrong = "the weights of fc1, fc2 and fc3 are not [experts, rows, columns], each of them 1 or more"
    for _, constant in ipairs { false, { [3] = true, [4] = true, [5] = true, [6] = true } } do
      assert.same({ "node node (moe): " .. wrong, "shape" },
        told("MoE", { floats({ 1, 0 }, {}), floats({ 1, 1 }, { 1 }), floats({ 1, HUGE, 0 }, {}), false, floats({ 1, 0, HUGE }, {}) },
          { domain = MS, constant = constant or nil }))
      assert.same({ "node node (qmoe): " .. wrong, "shape" },
        told("QMoE", { floats({ 1, 0 }, {}), floats({ 1, 1 }, { 1 }), onnx.bytes({ 1, 0, 1 << 56 }, {}), floats({ 1, 0 }, {}), false,
          onnx.bytes({ 1, 1 << 56, 0 }, {}), floats({ 1, 0 }, {}) }, { domain = MS, constant = constant or nil }))
    end
  end)

  it("paddings beyond all numbers, and of axes that are not there", function()
    local x, most = floats({ 2, 3 }, ones(6)), math.maxinteger
    assert.same({ "node node (pad): pad of 9223372036854775807 and 9223372036854775807 on 2 elements", "range" },
      told("Pad", { x, ints({ 4 }, { most, 0, most, 0 }) }))
    assert.same({ "node node (pad): pad of -9223372036854775808 and 0 on 2 elements", "range" },
      told("Pad", { x, ints({ 4 }, { math.mininteger, 0, 0, 0 }) }, { attrs = { mode = "wrap" } }))
    assert.same({ "node node (pad): axes holds -9223372036854775808, not an axis of 2 dimensions, or twice", "invalid" },
      told("Pad", { x, ints({ 2 }, { 1, 1 }), false, ints({ 1 }, { math.mininteger }) }))
    assert.same({ "node node (pad): pad of 1 and 0 on 0 elements", "range" },
      told("Pad", { floats({ 0 }, {}), ints({ 2 }, { 1, 0 }) }, { attrs = { mode = "wrap" } }))
  end)

  it("products and convolutions of codes", function()
    local codes = onnx.bytes({ 1, 1 }, { 1 })
    assert.same({ "node node (matmul_integer): uint8[1, 1] times uint8[0, 1048576]", "shape" },
      told("MatMulInteger", { codes, onnx.bytes({ 0, 1 << 20 }, {}) }))
    assert.same({ "node node (matmul_integer): zero points must be one number, 1 for x or 1 for y", "shape" },
      told("MatMulInteger", { codes, codes, onnx.bytes({ 0 }, {}) }))
    assert.same({ "node node (matmul_integer): x is fp32[1, 1] and y uint8[1, 1], but they and the zero points must be int8 or uint8",
      "shape" }, told("MatMulInteger", { floats({ 1, 1 }, { 1 }), codes }))
    assert.same({ "node node (conv_integer): weight_zero_point has 2 elements, but must have 1 or 1", "shape" },
      told("ConvInteger", { onnx.bytes({ 1, 1, 1 }, { 1 }), onnx.bytes({ 1, 1, 1 }, { 1 }), false, onnx.bytes({ 2 }, { 1, 2 }) }))
    local _, _, code = onnx.run("MatMulInteger", { onnx.bytes({ HUGE, 0 }, {}), onnx.bytes({ 0, 64 }, {}) })
    assert.equal("range", code)
  end)

  it("rows written beyond a cache", function()
    local past, row = floats({ 1, 2, 3 }, ones(6)), floats({ 1, 1, 3 }, ones(3))
    for _, at in ipairs { -1, 2, math.maxinteger, math.mininteger } do
      assert.same({ ("node node (tensor_scatter): write_indices holds %d for 1 of 2 rows"):format(at), "range" },
        told("TensorScatter", { past, row, ints({ 1 }, { at }) }))
    end
    assert.same({ 1, 2, 3 }, assert(onnx.run("TensorScatter", { past, row, ints({ 1 }, { math.maxinteger }) },
      { attrs = { mode = "circular" } })).shape)
    assert.same({ "node node (tensor_scatter): past is fp32[1, 2, 3], update fp32[1, 3, 3], axis 1, and there are 0 write_indices",
      "shape" },
      told("TensorScatter", { past, floats({ 1, 3, 3 }, ones(9)) }))
  end)

  it("windows and lengths of attention beyond all numbers", function()
    local q = floats({ 1, 1, 2, 1 }, { 1, 2 })
    for _, n in ipairs { math.maxinteger, math.mininteger } do
      local attrs = { left_window_size = n, right_window_size = n, is_causal = 1 }
      local inputs = { q, q, q, false, false, false, ints({ 1 }, { n }) }
      assert.same({ 1, 1, 2, 1 }, assert(onnx.run("Attention", inputs, { attrs = attrs })).shape)
    end
    assert.same({ "node node (attention): nonpad_kv_seqlen has 2 elements for a batch of 1", "shape" },
      told("Attention", { q, q, q, false, false, false, ints({ 2 }, { 1, 1 }) }))
    assert.same({ "node node (attention): qk_matmul_output_mode is 4, not 0 to 3", "invalid" },
      told("Attention", { q, q, q }, { attrs = { qk_matmul_output_mode = 4 } }))
  end)

  it("equations that name too much", function()
    local x = floats({ 2 }, { 1, 2 })
    for _, equation in ipairs { "i,j", "i->ii", "i->", ("i"):rep(70), "....->i", "i-i", "i->j", "abcdefghijkl->abcdefghijkl", "-" } do
      local out, _, code = onnx.run("Einsum", { x }, { attrs = { equation = equation } })
      assert.equal(equation == "i->" and "table" or "nil", type(out))
      assert.equal(equation == "i->" and "nil" or "string", type(code))
    end
  end)

  it("equations whose result has more than one term", function()
    for _, equation in ipairs { "i->,.", "i->i->i", "i->" .. (" "):rep(58) .. ",." } do
      assert.same({ ('node node (einsum): the equation "%s" of 1 operands'):format(equation), "unsupported" },
        told("Einsum", { floats({ 2 }, { 1, 2 }) }, { attrs = { equation = equation } }))
    end
  end)

  it("results of four bits", function()
    local n = 4096
    local x = onnx.int4s({ n }, ("\x21"):rep(n // 2))
    for op, attrs in pairs { Neg = {}, BitwiseNot = {}, BitShift = { direction = "LEFT" }, PRelu = {}, Add = {}, CumSum = {},
      ReduceMax = { noop_with_empty_axes = 1 }, Einsum = { equation = "i->i" } } do
      local inputs = { x }
      if op == "BitShift" or op == "PRelu" or op == "Add" then inputs[2] = x end
      if op == "CumSum" then inputs[2] = ints({}, { 0 }) end
      local _, message, code = onnx.run(op, inputs, { attrs = attrs, constant = { true, true } })
      assert.matches("a result of type int4$", message)
      assert.equal("unsupported", code)
    end
  end)

  it("a view whose dimensions have a product beyond 2^57", function()
    assert.same({ "node node (reshape): fp32[0] cannot take the shape [536870912, 536870912, 0]", "shape" },
      told("Reshape", { floats({ 0 }, {}), ints({ 3 }, { 1 << 29, 1 << 29, 0 }) }, { attrs = { allowzero = 1 } }))
  end)
end)

describe("a node without elements has an empty result:", function()
  local x = floats({ HUGE, 0 }, {})

  it("norms with their means, codes, and rows of a cache", function()
    assert.same({ 2, 0 }, empty("LayerNormalization", { floats({ 2, 0 }, {}), floats({ 0 }, {}) }, { outputs = 3 }))
    assert.same({ HUGE, 0 }, empty("TensorScatter", { x, floats({ HUGE, 0 }, {}) }, { attrs = { axis = 1 } }))
    assert.same({ HUGE, 0 }, empty("DynamicQuantizeLinear", { x }))
    assert.same({ HUGE, 0 }, empty("BatchNormalization", { x, floats({ 0 }, {}), floats({ 0 }, {}), floats({ 0 }, {}), floats({ 0 }, {}) }))
  end)

  it("sums, and the largest elements", function()
    assert.same({ HUGE, 0 }, empty("CumSum", { x, ints({}, { 1 }) }))
    assert.same({ HUGE, 0 }, empty("TopK", { x, ints({ 1 }, { 0 }) }, { outputs = 2 }))
  end)

  it("gathered rows", function()
    assert.same({ HUGE, 0 }, empty("Gather", { x, ints({ 0 }, {}) }, { attrs = { axis = 1 } }))
    assert.same({ 1, HUGE, 0 }, empty("GatherBlockQuantized",
      { onnx.bytes({ 2, HUGE, 0 }, {}), ints({ 1 }, { 1 }), floats({ 2, HUGE, 0 }, {}) },
      { domain = MS, attrs = { block_size = 16, quantize_axis = 2 } }))
  end)

  it("products", function()
    assert.same({ HUGE, 0 }, empty("MatMul", { x, floats({ 0, 0 }, {}) }))
  end)

  it("rotated heads", function()
    assert.same({ HUGE, 0, 1, 2 }, empty("RotaryEmbedding", { floats({ HUGE, 0, 1, 2 }, {}), ints({ 1 }, { 0 }), floats({ 1, 1 }, { 1 }),
      floats({ 1, 1 }, { 0 }) }, { domain = MS }))
  end)

  it("attention without channels", function()
    local q = floats({ 1, 4, 0 }, {})
    assert.same({ 1, 4, 0 }, empty("MultiHeadAttention", { q, q, q }, { domain = MS, attrs = { num_heads = 1 << 50 } }))
    assert.same({ 1, 4, 0 }, empty("Attention", { q, q, q }, { attrs = { q_num_heads = 1 << 50, kv_num_heads = 1 << 50 } }))
  end)

  it("attention that lists the scores of no keys", function()
    local q, k = floats({ 1, HUGE, 1, 0 }, {}), floats({ 1, HUGE, 0, 0 }, {})
    assert.same({ 1, HUGE, 1, 0 }, empty("Attention", { q, k, k }, { outputs = 4 }))
  end)

  it("a causal convolution", function()
    for taps = 1, 2 do
      assert.same({ HUGE, 1, 0 }, empty("CausalConvWithState", { floats({ HUGE, 1, 0 }, {}), floats({ 1, 1, taps }, ones(taps)) },
        { domain = MS }))
    end
  end)
end)
