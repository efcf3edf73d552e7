-- What each ONNX op is lifted to, one rule at a time: expressions as text, layouts as atoms, and refusals with the node's name.
local graph = require "ane.onnx.graph"
local lift = require "ane.onnx.lift"
local onnx = require "support.onnx_writer"

local ROLES = {
  ids = "input_ids", mask = "attention_mask", positions = "position_ids", past_length = "past_sequence_length",
  total_length = "total_sequence_length", logits = "y",
  states = {
    { past = "past.key", present = "present.key" }, { past = "past.value", present = "present.value" },
    { past = "past.conv", present = "present.conv" },
  },
}

local INPUTS = {
  { "input_ids", "int64", { 1, "s" } }, { "attention_mask", "int64", { 1, "t" } }, { "position_ids", "int64", { 1, "s" } },
  { "past_sequence_length", "int32", {} }, { "total_sequence_length", "int32", {} },
  { "past.key", "float", { 1, 2, "p", 4 } }, { "past.value", "float", { 1, 2, "p", 4 } }, { "past.conv", "float", { 1, 8, 2 } },
}

local function filled(shape, value)
  local n, list = 1, {}
  for _, d in ipairs(shape) do n = n * d end
  for i = 1, n do list[i] = type(value) == "function" and value(i - 1) or value or i / 8 end
  return onnx.floats(shape, list)
end

local function zeros(shape)
  local n, list = 1, {}
  for _, d in ipairs(shape) do n = n * d end
  for i = 1, n do list[i] = 0 end
  return onnx.bytes(shape, list)
end

-- Row p of a rope table of 4 channels: cos or sin of p and of p / 10.
local function table_of(fn) return filled({ 64, 2 }, function(i) return fn((i // 2) * (i % 2 == 0 and 1 or 0.1)) end) end

-- Constants by name; a case uses those it names.
local CONSTANTS = {
  table = filled { 10, 8 }, w84 = filled { 8, 4 }, w48 = filled { 4, 8 }, w88 = filled { 8, 8 }, w824 = filled { 8, 24 },
  w816 = filled { 8, 16 }, w34 = filled { 3, 4 }, w184 = filled { 1, 8, 4 }, flat = filled { 32 },
  g8 = filled { 8 }, g4 = filled { 4 }, g24 = filled { 24 }, g18 = filled { 1, 1, 8 }, sinks = filled { 2 },
  one = filled({}, 1), two = filled({}, 2), three = filled({}, 3), nought = filled({}, 0), half = filled({}, 0.5), eps = filled({}, 0.25),
  q84 = zeros { 8, 4 }, s4 = filled { 4 }, nb = zeros { 4, 1, 8 }, nbs = filled { 4, 1 }, gb = zeros { 10, 16 }, gbs = filled { 10, 2 },
  i1 = onnx.ints({ 1 }, { 1 }), i2 = onnx.ints({ 1 }, { 2 }), i0 = onnx.ints({ 1 }, { 0 }), im1 = onnx.ints({ 1 }, { -1 }),
  i4 = onnx.ints({ 1 }, { 4 }), i8 = onnx.ints({ 1 }, { 8 }), i20 = onnx.ints({ 1 }, { 20 }), i1000 = onnx.ints({ 1 }, { 1000 }),
  heads = onnx.ints({ 4 }, { 0, 0, 2, 4 }), back = onnx.ints({ 3 }, { 0, 0, -1 }), s48 = onnx.ints({ 2 }, { 8, 4 }),
  wrong = onnx.ints({ 2 }, { -1, 3 }), split = onnx.ints({ 2 }, { 6, 2 }), short = onnx.ints({ 2 }, { 3, 2 }),
  k2 = onnx.ints({ 1 }, { 2 }), cos = table_of(math.cos), sin = table_of(math.sin), low = filled({}, 1e-30),
  hidden = filled({ 1, 1, 1 }, -1e30), fc1 = filled { 3, 12, 8 }, fc2 = filled { 3, 8, 6 }, zero12 = filled({ 3, 12 }, 0),
  one12 = filled({ 3, 12 }, 1), q1 = zeros { 3, 12, 4 }, q1s = filled { 3, 12 }, q2 = zeros { 3, 8, 3 }, q2s = filled { 3, 8 },
  w83 = filled { 8, 3 }, b3 = filled { 3 }, conv = filled { 8, 1, 3 }, conv2 = filled { 8, 2, 3 },
}

local EMBED = { "Gather", { "table", "input_ids" }, { "x" }, name = "embed" }

-- ---- Text of lifted values -----------------------------------------------------------------------------------------------

local FIELDS = {
  "act", "by", "eps", "groups", "cap", "from", "to", "head", "heads", "kv_heads", "layout", "window", "softcap", "scale", "taps", "k",
  "score", "norm", "norm_eps", "rotary",
}
local PARTS = { "x", "a", "b", "q", "k", "v", "route" }

-- Segments as name[from+n], a ' where the stored matrix is transposed, /2 for every second row, #e for matrix e of a stack.
local function segments(g, list)
  local out = {}
  for i, s in ipairs(list) do
    local p = s.piece
    local name = g.doc.values[p.data].name .. (p.transposed and "'" or "") .. (p.matrix and "#" .. p.matrix or "")
    out[i] = ("%s[%d+%d%s]"):format(name, s.from, s.n, s.step ~= 1 and "/" .. s.step or "")
  end
  return table.concat(out, "|")
end

-- The embedding of the cases is x; others are spelled out.
local function show(g, e)
  local inside = {}
  if e.op == "embed" and e.node.name == "embed" then return "x" end
  for _, part in ipairs(PARTS) do
    if type(e[part]) == "table" and (e[part].op) then inside[#inside + 1] = show(g, e[part]) end
  end
  if e.w then inside[#inside + 1] = segments(g, e.w) end
  local bias = e.op == "linear" and e.b or e.op == "biased" and e.b or e.op == "conv_causal" and e.b or e.bias
  if bias then inside[#inside + 1] = "bias " .. segments(g, bias) end
  for _, field in ipairs(FIELDS) do
    local v = e[field]
    if type(v) == "number" then inside[#inside + 1] = ("%s=%.4g"):format(field, v)
    elseif type(v) == "string" or type(v) == "boolean" then inside[#inside + 1] = ("%s=%s"):format(field, v) end
  end
  if e.sinks then inside[#inside + 1] = "sinks " .. segments(g, e.sinks) end
  for i, x in ipairs(e.list or {}) do
    inside[#inside + 1] = ("%d: %s %s %s"):format(i - 1, segments(g, x.gate), segments(g, x.up), segments(g, x.down))
  end
  return ("%s(%s)"):format(e.op, table.concat(inside, ", "))
end

-- "1 s c2/4 c4": sizes of dimensions, channels with their stride where it is not 1.
local function layout(v)
  local out = {}
  for i, dim in ipairs(v.dims) do
    local atoms = lift.atoms { dim }
    local names = {}
    for k, a in ipairs(atoms) do
      names[k] = (a.kind == "s" or a.kind == "t") and a.kind or a.kind .. a.size .. (a.stride > 1 and "/" .. a.stride or "")
    end
    out[i] = #names == 0 and "1" or table.concat(names, "*")
  end
  return table.concat(out, " ")
end

-- ---- Cases ---------------------------------------------------------------------------------------------------------------

-- Calls fn(lift, value number of `name`) on a graph of an embedding `x` [1, S, 8] and the nodes.
local function with(nodes, name, fn)
  local used, constants = { table = true }, {}
  local list = table.move(nodes, 1, #nodes, 2, { EMBED })
  for _, n in ipairs(nodes) do
    for _, input in ipairs(n[2]) do used[input] = true end
  end
  for key, t in pairs(CONSTANTS) do
    if used[key] then constants[#constants + 1] = { key, t } end
  end
  table.sort(constants, function(a, b) return a[1] < b[1] end)
  local made = {}
  for _, n in ipairs(nodes) do
    for _, out in ipairs(n[3]) do made[out] = true end
  end
  local outputs = { { made.y and "y" or name, "float" } }
  for _, present in ipairs { "present.key", "present.value", "present.conv" } do
    if made[present] then outputs[#outputs + 1] = { present, "float" } end
  end
  local source, file <close> = onnx.open { inputs = INPUTS, outputs = outputs, constants = constants, nodes = list }
  assert(source, file)
  local g = graph.new(source, ROLES)
  local l = lift.new(g)
  l.context, l.head_dim = 64, 4
  local number
  for v, value in ipairs(g.doc.values) do
    if value.name == name then number = v end
  end
  local ok, raised = pcall(fn, l, number)
  g:close()
  if not ok then error(raised, 0) end
end

local function gives(want, nodes, name)
  with(nodes, name or "y", function(l, number) assert.equal(want, show(l.graph, l:value(number).e)) end)
end

local function lies(want, nodes, name)
  with(nodes, name or "y", function(l, number) assert.equal(want, layout(l:value(number))) end)
end

local function refused(pattern, nodes, name)
  with(nodes, name or "y", function(l, number)
    local ok, raised = pcall(l.value, l, number)
    assert.is_false(ok)
    assert.is_true(type(raised) == "table" and raised.uncovered == true, tostring(raised))
    assert.matches(pattern, raised.message)
  end)
end

local function node(op, inputs, attrs, out, domain) return { op, inputs, { out or "y" }, attrs = attrs, domain = domain } end
local MS = "com.microsoft"

describe("lifting tables and products", function()
  it("makes Gather by the ids an embedding", function()
    gives("embed(table[0+10])", { node("Gather", { "table", "input_ids" }) })
    lies("1 s c8", {}, "x")
    refused("node y %(Gather%) takes rows by other numbers", { node("Gather", { "x", "i1" }) })
    refused("takes rows by other numbers", { node("Gather", { "table", "input_ids" }, { axis = 1 }) })
  end)

  it("makes GatherBlockQuantized an embedding, with the padding of a block sliced off", function()
    local q = node("GatherBlockQuantized", { "gb", "input_ids", "gbs" }, { block_size = 16 }, "e", MS)
    gives("embed(gb[0+10])", { q }, "e")
    lies("1 s c32", { q }, "e")
    lies("1 s c20", { q, node("Slice", { "e", "i0", "i20", "im1" }) })
    refused("takes rows by other numbers", { node("GatherBlockQuantized", { "gb", "i1", "gbs" }, { block_size = 16 }, nil, MS) })
  end)

  it("makes MatMul by a constant a linear, transposed or not", function()
    gives("linear(x, w84'[0+4])", { node("MatMul", { "x", "w84" }) })
    gives("linear(x, w48[0+4])", { node("Transpose", { "w48" }, { perm = { 1, 0 } }, "t"), node("MatMul", { "x", "t" }) })
    gives("linear(x, w84'[0+4])",
      { node("Transpose", { "w84" }, nil, "t"), node("Transpose", { "t" }, nil, "u"), node("MatMul", { "x", "u" }) })
    refused("node y %(MatMul%) has 8 inputs, but its weight needs 4", { node("MatMul", { "x", "w48" }) })
    refused("constant of 3 dimensions", { node("MatMul", { "x", "w184" }) })
    refused("weight that is made in another way", { node("Mul", { "w84", "w84" }, nil, "t"), node("MatMul", { "x", "t" }) })
  end)

  it("makes Gemm a linear with its bias", function()
    gives("linear(x, w48[0+4], bias g4[0+4])", { node("Gemm", { "x", "w48", "g4" }, { transB = 1 }) })
    refused("scales or transposes its product", { node("Gemm", { "x", "w84" }, { alpha = 2.0 }) })
    refused("bias that is not a constant vector", { node("Gemm", { "x", "w84", "g8" }) })
    refused("bias that is not a constant vector", { node("Gemm", { "x", "w84", "g4" }, { beta = 0.5 }) })
  end)

  it("makes products by stored codes a linear", function()
    gives("linear(x, q84'[0+4])", { node("DequantizeLinear", { "q84", "s4" }, { axis = -1 }, "t"), node("MatMul", { "x", "t" }) })
    gives("linear(x, nb[0+4])", { node("MatMulNBits", { "x", "nb", "nbs" }, { N = 4, K = 8, block_size = 16 }, nil, MS) })
    gives("linear(x, nb[0+4], bias g4[0+4])",
      { node("MatMulNBits", { "x", "nb", "nbs", "", "", "g4" }, { N = 4, K = 8, block_size = 16 }, nil, MS) })
    refused("has N 0, but must have a whole number", { node("MatMulNBits", { "x", "nb", "nbs" }, { N = 0, K = 8, block_size = 16 }, nil,
      MS) })
    refused("weights that are not constants", { node("MatMulNBits", { "x", "x", "nbs" }, { N = 4, K = 8, block_size = 16 }, nil, MS) })
    refused("bias that is not a constant", { node("MatMulNBits",
      { "x", "nb", "nbs", "", "", "g8" }, { N = 4, K = 8, block_size = 16 }, nil, MS) })
  end)

  it("looks through reshapes of constants", function()
    gives("rms_norm(x, g18[0+8], eps=1e-05, groups=1)",
      { node("Squeeze", { "g18", "i0" }, nil, "g"), node("RMSNormalization", { "x", "g" }) })
    gives("linear(x, q84'[0+4])", {
      node("Reshape", { "q84", "s48" }, nil, "q"), node("DequantizeLinear", { "q", "s4" }, nil, "t"), node("MatMul", { "x", "t" }),
    })
    refused("has a shape that does not fit", {
      node("Reshape", { "q84", "wrong" }, nil, "q"), node("DequantizeLinear", { "q", "s4" }, nil, "t"), node("MatMul", { "x", "t" }),
    })
  end)
end)

describe("lifting norms", function()
  local NORM = "rms_norm(x, g8[0+8], eps=0.25, groups=1)"

  it("takes them as one op", function()
    for _, op in ipairs { "SimplifiedLayerNormalization", "RMSNormalization" } do
      gives(NORM, { node(op, { "x", "g8" }, { epsilon = 0.25 }) })
      refused("norms over several dimensions", { node(op, { "x", "g8" }, { axis = 1 }) })
      refused("not a constant vector of 8", { node(op, { "x", "g4" }) })
    end
    gives("rms_norm(x, g4[0+4], eps=1e-05, groups=2)",
      { node("Reshape", { "x", "heads" }, nil, "h"), node("RMSNormalization", { "h", "g4" }) })
  end)

  it("takes the sum of SkipSimplifiedLayerNormalization, with its bias", function()
    local m = node("MatMul", { "x", "w88" }, nil, "m")
    local function skip(inputs) return { "SkipSimplifiedLayerNormalization", inputs, { "y", "", "", "sum" }, domain = MS } end
    local sum = "add(x, linear(x, w88'[0+8]%s))"
    gives(sum:format "", { m, skip { "x", "m", "g8" } }, "sum")
    gives("rms_norm(" .. sum:format ", bias g8[0+8]" .. ", g8[0+8], eps=1e-05, groups=1)", { m, skip { "x", "m", "g8", "g8" } })
    refused("bias to something else than a product", { skip { "x", "x", "g8", "g8" } })
    refused("bias that is not a constant", { m, skip { "x", "m", "g8", "g4" } })
    refused("adds values with different layouts", { node("MatMul", { "x", "w84" }, nil, "m"), skip { "x", "m", "g8" } })
  end)

  -- x^2, its mean, + eps, root
  local function root(more)
    local list = {
      node("Pow", { "x", "two" }, nil, "p"), node("ReduceMean", { "p", "im1" }, nil, "m"), node("Add", { "m", "eps" }, nil, "e"),
      node("Sqrt", { "e" }, nil, "r"),
    }
    return table.move(more, 1, #more, #list + 1, list)
  end

  it("takes them spelled out, in three ways", function()
    gives(NORM, root { node("Div", { "x", "r" }, nil, "n"), node("Mul", { "n", "g8" }) })
    gives(NORM, root { node("Reciprocal", { "r" }, nil, "i"), node("Mul", { "x", "i" }, nil, "n"), node("Mul", { "g8", "n" }) })
    gives(NORM, root { node("Div", { "one", "r" }, nil, "i"), node("Mul", { "i", "x" }, nil, "n"), node("Mul", { "n", "g8" }) })
    gives("square(x)", { node("Mul", { "x", "x" }) })
    refused("constant vector of 8", root { node("Div", { "x", "r" }, nil, "n"), node("Mul", { "n", "g4" }) })
  end)

  it("refuses nodes that only resemble norms", function()
    refused("another power than 2", { node("Pow", { "x", "three" }) })
    refused("mean that does not belong to a norm", { node("ReduceMean", { "x", "im1" }) })
    refused("mean that does not belong to a norm", { node("Pow", { "x", "two" }, nil, "p"), node("ReduceMean", { "p", "i1" }) })
    refused("root that does not belong to a norm", { node("Sqrt", { "x" }) })
    refused("divides in a way that does not belong to a norm", { node("Reciprocal", { "x" }) })
    refused("divides in a way that no recipe does", { node("Div", { "x", "nought" }) })
    refused("divides in a way that no recipe does", { node("Div", { "two", "x" }) })
  end)
end)

describe("lifting activation functions", function()
  it("names them", function()
    for _, case in ipairs {
      { "sigmoid", node("Sigmoid", { "x" }) }, { "gelu_erf", node("Gelu", { "x" }) },
      { "gelu_tanh", node("Gelu", { "x" }, { approximate = "tanh" }) }, { "gelu_tanh", node("FastGelu", { "x" }, nil, nil, MS) },
      { "silu", node("Swish", { "x" }) }, { "silu", node("QuickGelu", { "x" }, { alpha = 1.0 }, nil, MS) },
    } do
      gives("act(x, act=" .. case[1] .. ")", { case[2] })
    end
    refused("has a bias", { node("FastGelu", { "x", "g8" }, nil, nil, MS) })
    refused("an alpha other than 1", { node("Swish", { "x" }, { alpha = 2.0 }) })
    refused("an alpha other than 1, that of silu", { node("QuickGelu", { "x" }, nil, nil, MS) })
  end)

  it("takes silu spelled out", function()
    local silu = "act(x, act=silu)"
    gives(silu, { node("Sigmoid", { "x" }, nil, "s"), node("Mul", { "s", "x" }) })
    gives(silu, {
      node("Neg", { "x" }, nil, "n"), node("Exp", { "n" }, nil, "e"), node("Add", { "e", "one" }, nil, "a"), node("Div",
        { "one", "a" }, nil, "s"),
      node("Mul", { "x", "s" }),
    })
    refused("is not a part of a sigmoid", { node("Exp", { "x" }) })
  end)

  it("refuses nodes that lack inputs, or whose inputs are no activations", function()
    for _, case in ipairs {
      { "RMSNormalization", { "x" }, 2 }, { "RMSNormalization", { "", "g8" }, 1 }, { "SimplifiedLayerNormalization", { "x", "" }, 2 },
      { "SkipSimplifiedLayerNormalization", { "x", "x" }, 3, MS }, { "SkipSimplifiedLayerNormalization", { "x", "", "g8" }, 2, MS },
      { "Add", { "x" }, 2 }, { "Mul", { "x", "" }, 2 }, { "Div", { "x" }, 2 }, { "Pow", { "x" }, 2 }, { "MatMul", { "x" }, 2 },
      { "Gemm", { "x" }, 2 }, { "Reshape", { "x" }, 2 }, { "Expand", { "x" }, 2 }, { "Slice", {}, 1 }, { "Identity", { "" }, 1 },
    } do
      local op, inputs, lacks, domain = table.unpack(case)
      refused(("node y %%(%s%%) lacks input %d"):format(op, lacks), { node(op, inputs, nil, nil, domain) })
    end
    refused("node y %(SkipSimplifiedLayerNormalization%) takes g8, which is not made by a node",
      { node("SkipSimplifiedLayerNormalization", { "x", "g8", "g8" }, nil, nil, MS) })
    CONSTANTS.whole8 = onnx.ints({ 8 }, { 1, 1, 1, 1, 1, 1, 1, 1 })
    refused("has a weight that is not a constant vector of 8", { node("RMSNormalization", { "x", "whole8" }) })
  end)

  it("takes a softcap, and factors", function()
    gives("softcap(x, cap=3)",
      { node("Div", { "x", "three" }, nil, "d"), node("Tanh", { "d" }, nil, "t"), node("Mul", { "t", "three" }) })
    gives("scale(x, by=3)", { node("Mul", { "three", "x" }) })
    gives("scale(x, by=0.5)", { node("Div", { "x", "two" }) })
    gives("x", { node("Mul", { "x", "one" }) })
  end)

  it("takes products and sums of activations with the same layout", function()
    local m, n = node("MatMul", { "x", "w84" }, nil, "m"), node("MatMul", { "x", "w88" }, nil, "n")
    gives("mul(x, linear(x, w88'[0+8]))", { n, node("Mul", { "x", "n" }) })
    gives("add(linear(x, w88'[0+8]), x)", { n, node("Add", { "n", "x" }) })
    refused("multiplies values with different layouts", { m, node("Mul", { "x", "m" }) })
    refused("adds values with different layouts", { m, node("Add", { "x", "m" }) })
  end)

  it("takes constants that are added", function()
    local n = node("MatMul", { "x", "w88" }, nil, "n")
    gives("linear(x, w88'[0+8], bias g8[0+8])", { n, node("Add", { "g8", "n" }) })
    gives("biased(x, bias g8[0+8])", { node("Add", { "x", "g8" }) })
    refused("adds something that no recipe does", { node("Add", { "x", "g4" }) })
    refused("adds something that no recipe does", { node("Add", { "x", "two" }) })
  end)
end)

describe("lifting moves", function()
  it("keeps what changes no number", function()
    gives("x", { node("Identity", { "x" }, nil, "i"), node("Dropout", { "i" }, nil, "d"), node("Cast", { "d" }, { to = 10 }) })
    refused("casts activations to integers", { node("Cast", { "x" }, { to = 7 }) })
    refused("is not covered by any recipe", { node("Sin", { "x" }) })
  end)

  it("follows tokens and channels through reshapes", function()
    local h = node("Reshape", { "x", "heads" }, nil, "h")
    lies("1 s c2/4 c4", { h }, "h")
    lies("1 c2/4 s c4", { h, node("Transpose", { "h" }, { perm = { 0, 2, 1, 3 } }) })
    lies("c4 c2/4 s 1", { h, node("Transpose", { "h" }) })
    lies("1 s c2/4*c4", { h, node("Reshape", { "h", "back" }) })
    lies("1 1 s c8", { node("Unsqueeze", { "x", "i1" }) })
    lies("s c8", { node("Squeeze", { "x", "i0" }) })
    lies("s c8", { node("Squeeze", { "x" }) })
    refused("mixes tokens and channels", { node("Reshape", { "x", "wrong" }) })
    refused("takes out a dimension that is not 1", { node("Squeeze", { "x", "i1" }) })
    refused("has no axes", { node("Unsqueeze", { "x" }) })
    refused("has wrong axes", { node("Unsqueeze", { "x", "im1" }, { axes = { 9 } }) })
    refused("has a wrong perm", { node("Transpose", { "x" }, { perm = { 0, 1, 5 } }) })
  end)

  it("splits the rows of a product", function()
    local qkv = node("MatMul", { "x", "w824" }, nil, "p")
    local function split(attrs, inputs) return { "Split", inputs or { "p" }, { "a", "y", "c" }, attrs = attrs } end
    gives("linear(x, w824'[8+8])", { qkv, split { axis = -1 } })
    gives("linear(x, w824'[4+16])", { qkv, split { axis = 2, split = { 4, 16, 4 } } })
    gives("linear(x, w824'[16+8])", { qkv, split { axis = -1 } }, "c")
    refused("splits 12 of 24", { qkv, split { axis = 2, split = { 4, 4, 4 } } })
    refused("has no such axis", { qkv, split { axis = 3 } })
    refused("slices something else than channels", { split({ axis = 1, split = { 1, 1, 1007 } }, { "x" }) })
  end)

  it("slices channels, whole or within heads", function()
    gives("slice(x, from=2, to=4)", { node("Slice", { "x", "i2", "i4", "im1" }) })
    gives("x", { node("Slice", { "x", "i0", "i1000", "im1" }) })
    local h = node("Reshape", { "x", "heads" }, nil, "h")
    gives("part(x, from=2, to=4, head=4)", { h, node("Slice", { "h", "i2", "i4", "im1" }) })
    gives("part(x, from=3, to=4, head=4)",
      { h, node("Slice", { "h", "i2", "i4", "im1" }, nil, "p"), node("Slice", { "p", "i1", "i2", "im1" }) })
    refused("slices nothing", { node("Slice", { "x", "i4", "i2", "im1" }) })
    refused("takes every other element", { node("Slice", { "x", "i0", "i4", "im1", "i2" }) })
    refused("has unknown bounds", { node("Slice", { "x" }) })
  end)

  it("joins only the parts of ropes and caches", function()
    refused("joins activations in a way that no recipe does", { node("Concat", { "x", "x", "x" }, { axis = -1 }) })
    refused("joins activations in a way that no recipe does", { node("Concat", { "x", "x" }, { axis = -1 }) })
  end)

  it("repeats along dimensions of 1", function()
    local u = node("Unsqueeze", { "x", "i2" }, nil, "u")
    CONSTANTS.want4 = onnx.ints({ 4 }, { 1, 1, 3, 1 })
    CONSTANTS.want3 = onnx.ints({ 3 }, { 1, 1, 3 })
    CONSTANTS.want5 = onnx.ints({ 5 }, { 1, 1, 1, 1, 1 })
    lies("1 s rep3 c8", { u, node("Expand", { "u", "want4" }) })
    refused("has a shape that does not fit", { node("Expand", { "x", "want3" }) })
    refused("adds dimensions", { u, node("Expand", { "u", "want5" }) })
  end)
end)

describe("lifting attention", function()
  local PRESENT = { "y", "present.key", "present.value" }
  local LENGTHS = { node("Sub", { "total_sequence_length", "i32one" }, nil, "last") }
  CONSTANTS.i32one = onnx.int32s({ 1 }, { 1 })

  -- GroupQueryAttention of packed q, k, v of 2 heads of 4 channels and 2 kv heads; change(inputs, attrs).
  local function gqa(change)
    local inputs = { "p", "", "", "past.key", "past.value", "last", "total_sequence_length" }
    local attrs = { num_heads = 2, kv_num_heads = 2 }
    if change then change(inputs, attrs) end
    return { node("MatMul", { "x", "w824" }, nil, "p"), LENGTHS[1],
      { "GroupQueryAttention", inputs, PRESENT, attrs = attrs, domain = MS } }
  end

  local function rows(from, n) return ("linear(x, w824'[%d+%d])"):format(from, n) end
  local function attention(q, k, v, more)
    return ("attention(%s, %s, %s, heads=2, kv_heads=2, window=%s, softcap=%s, scale=%s%s)"):format(q, k, v, more.window or 0,
      more.softcap or 0,
      more.scale or 0.5, more.sinks or "")
  end

  it("takes GroupQueryAttention with packed and separate operands", function()
    gives(attention(rows(0, 8), rows(8, 8), rows(16, 8), {}), gqa())
    local want = attention(rows(0, 8), rows(8, 8), rows(16, 8), { window = 7, softcap = 3, scale = 0.25, sinks = ", sinks sinks[0+2]" })
    gives(want, gqa(function(inputs, attrs)
      for i = 8, 11 do inputs[i] = "" end
      inputs[12] = "sinks"
      attrs.local_window_size, attrs.softcap, attrs.scale = 7, 3.0, 0.25
    end))
    local apart = gqa(function(inputs) inputs[1], inputs[2], inputs[3] = "x", "x", "x" end)
        gives(attention("x", "x", "x", {}), apart)
  end)

  it("takes its rope from tables", function()
    local function rope(x) return "rope(" .. x .. ", heads=2, layout=%s)" end
    for flag, name in pairs { [0] = "half", [1] = "interleaved" } do
      gives(attention(rope(rows(0, 8)):format(name), rope(rows(8, 8)):format(name), rows(16, 8), {}), gqa(function(inputs, attrs)
        inputs[8], inputs[9] = "cos", "sin"
        attrs.do_rotary, attrs.rotary_interleaved = 1, flag
      end))
    end
    refused("rotates without tables", gqa(function(_, attrs) attrs.do_rotary = 1 end))
  end)

  it("refuses other GroupQueryAttention", function()
    for pattern, change in pairs {
      ["packed channels for 3 %+ 2 %* 2 heads"] = function(_, at) at.num_heads = 3 end,
      ["has kv_num_heads 0, but must have a whole number"] = function(_, at) at.kv_num_heads = 0 end,
      ["a softmax that no recipe computes"] = function(_, at) at.smooth_softmax = 1 end,
      ["no cache among the inputs"] = function(inputs) inputs[4] = "x" end,
      ["not returned as output present.value"] = function(inputs) inputs[4] = "past.value" end,
      ["lacks its lengths"] = function(inputs) inputs[6] = "" end,
      ["other lengths than those of the tokens"] = function(inputs) inputs[6] = "total_sequence_length" end,
      ["the input attention_bias, which no recipe takes"] = function(inputs)
        for i = 8, 10 do inputs[i] = "" end
        inputs[11] = "g8"
      end,
      ["a head_sink that is not a constant"] = function(inputs)
        for i = 8, 11 do inputs[i] = "" end
        inputs[12] = "g4"
      end,
    } do
      refused(pattern, gqa(change))
    end
  end)

  it("takes MultiHeadAttention with caches of the op", function()
    local list = {
      node("MatMul", { "x", "w88" }, nil, "q"),
      { "MultiHeadAttention",
        { "q", "x", "x", "", "", "", "past.key", "past.value" }, PRESENT, attrs = { num_heads = 2, unidirectional = 1 },
        domain = MS },
    }
    gives(attention("linear(x, w88'[0+8])", "x", "x", {}), list)
    list[2].attrs = { num_heads = 2 }
    refused("has no mask: every token sees all others", list)
    list[2] = node("MultiHeadAttention", { "q", "x", "x" }, { num_heads = 2, unidirectional = 1 }, nil, MS)
    refused("come from no cache", list)
    list[2] = node("MultiHeadAttention", { "q", "x", "x", "g24" }, { num_heads = 2, unidirectional = 1 }, nil, MS)
    refused("has the input bias", list)
  end)

  it("takes Attention of the standard", function()
    local function list(attrs, domain)
      return { { "Attention", { "x", "x", "x", "", "past.key", "past.value" }, PRESENT, attrs = attrs, domain = domain } }
    end
        gives(attention("x", "x", "x", { softcap = 2 }), list { q_num_heads = 2, kv_num_heads = 2, is_causal = 1, softcap = 2.0 })
    refused("do not lie as tokens and heads", list { is_causal = 1 })
    refused("has no mask", list { q_num_heads = 2, kv_num_heads = 2 })
    refused("has 8, 8 and 8 channels for 2 and 4 heads", list { q_num_heads = 2, kv_num_heads = 4, is_causal = 1 })
    refused("packs its weights", list({ num_heads = 2 }, MS))
    refused("hides keys", list { q_num_heads = 2, kv_num_heads = 2, is_causal = 1, left_window_size = 4 })
  end)

  it("takes RotaryEmbedding of both domains", function()
    local function rotary(attrs, inputs) return { node("RotaryEmbedding", inputs or { "x", "position_ids", "cos", "sin" }, attrs, nil,
      MS) } end
    gives("rope(x, heads=2, layout=half)", rotary { num_heads = 2 })
    gives("rope(x, heads=2, layout=interleaved)", rotary { interleaved = 1 })
    gives("rope(x, heads=2, layout=half)", { node("RotaryEmbedding", { "x", "cos", "sin", "position_ids" }, { num_heads = 2 }) })
    refused("an attribute that no recipe knows", rotary { scale = 2.0 })
    refused("rotates 6 channels by a table for 4", rotary { rotary_embedding_dim = 6 })
    refused("rotates 4 channels of heads of 2", rotary { num_heads = 4 })
    refused("are not %[tokens, channels%]", {
      node("Squeeze", { "x", "i0" }, nil, "f"), node("Transpose", { "f" }, nil, "t"), node("RotaryEmbedding",
        { "t", "position_ids", "cos", "sin" },
        { num_heads = 2 }, nil, MS),
    })
  end)

  it("refuses parts of a spelled-out attention that stand alone", function()
    refused("multiplies two activations", { node("Transpose", { "x" }, { perm = { 0, 2, 1 } }, "t"), node("MatMul", { "x", "t" }) })
    refused("does not belong to attention", { node("Softmax", { "x" }) })
    refused("multiplies by something that no recipe does", {
      node("Transpose", { "x" }, { perm = { 0, 2, 1 } }, "t"), node("Cast", { "position_ids" }, { to = 1 }, "f"), node("Mul", { "t", "f" }),
    })
  end)
end)

describe("lifting causal convolutions", function()
  local function conv(inputs, attrs)
    return {
      node("Transpose", { "x" }, { perm = { 0, 2, 1 } }, "t"),
      { "CausalConvWithState", inputs or { "t", "conv", "g8", "past.conv" }, { "y", "present.conv" }, attrs = attrs, domain = MS },
    }
  end

  it("takes depthwise ones with a cache", function()
    gives("conv_causal(x, conv[0+8], bias g8[0+8], taps=3)", conv())
    gives("act(conv_causal(x, conv[0+8], taps=3), act=silu)",
      conv({ "t", "conv", "", "past.conv" }, { activation = "silu" }))
  end)

  it("refuses others", function()
    refused("do not lie as channels and tokens", conv { "x", "conv", "", "past.conv" })
    refused("not %[channels, 1, taps%]", conv { "t", "conv2", "", "past.conv" })
    refused("bias that is not a constant vector", conv { "t", "conv", "g4", "past.conv" })
    refused("activation that is not known", conv(nil, { activation = "relu" }))
    refused("no cache among the inputs", conv { "t", "conv" })
    refused("weight that is not a constant", conv { "t", "t", "", "past.conv" })
  end)
end)

describe("lifting mixtures of experts", function()
  local ROUTER = node("MatMul", { "x", "w83" }, nil, "logits3")
  local LIST = "0: fc1#0[0+6/2] fc1#0[1+6/2] fc2#0[0+8], 1: fc1#1[0+6/2] fc1#1[1+6/2] fc2#1[0+8], 2: fc1#2[0+6/2] fc1#2[1+6/2] fc2#2[0+8]"
  local ATTRS = { k = 2, activation_type = "swiglu", swiglu_fusion = 1, normalize_routing_weights = 1 }

  local function attrs(changes)
    local out = {}
    for key, v in pairs(ATTRS) do out[key] = v end
    for key, v in pairs(changes or {}) do out[key] = v end
    return out
  end

  local function moe(changes, inputs) return { ROUTER,
    node("MoE", inputs or { "x", "logits3", "fc1", "", "fc2" }, attrs(changes), nil, MS) } end

  it("takes MoE with a softmax over its router", function()
    local route = "route(linear(x, w83'[0+3]), scale=1, k=2, score=softmax, norm=%s, norm_eps=0)"
    gives(("experts(x, %s, act=silu, %s)"):format(route:format "true", LIST), moe())
    gives(("experts(x, %s, act=silu, %s)"):format(route:format "false", LIST), moe { normalize_routing_weights = 0 })
    gives(("experts(x, %s, act=silu, %s)"):format(route:format "true", LIST),
      moe(nil, { "x", "logits3", "fc1", "zero12", "fc2" }))
  end)

  it("takes QMoE", function()
    local list = { ROUTER, node("QMoE", { "x", "logits3", "q1", "q1s", "", "q2", "q2s" }, attrs(), nil, MS) }
    with(list, "y", function(l, number)
      local e = l:value(number).e
      assert.same({ 3, "nbits", 4, 12, 8, 6 }, {
        #e.list, e.list[1].gate[1].piece.kind, e.list[1].gate[1].piece.bits, e.list[1].gate[1].piece.rows, e.list[1].gate[1].piece.cols,
        e.list[1].down[1].piece.cols,
      })
    end)
  end)

  it("refuses other experts", function()
    refused("has the activation relu %(swiglu_fusion 1%)", moe { activation_type = "relu" })
    refused("%(swiglu_fusion 2%)", moe { swiglu_fusion = 2 })
    refused("alpha, beta or limit", moe { activation_alpha = 1.702 })
    refused("alpha, beta or limit", moe { swiglu_limit = 7.0 })
    refused("biases of experts", moe(nil, { "x", "logits3", "fc1", "one12", "fc2" }))
    refused("three matrices per expert", moe(nil, { "x", "logits3", "fc1", "", "fc2", "", "fc1" }))
    refused("weights that are not constants", moe(nil, { "x", "logits3", "x", "", "fc2" }))
    refused("weights of an unknown shape", moe(nil, { "x", "logits3", "w84", "", "fc2" }))
    refused("weights of an unknown shape", { ROUTER, node("QMoE", { "x", "logits3", "q84", "q1s", "", "q2", "q2s" }, attrs(), nil, MS) })
    refused("separate weights of its router", { ROUTER,
      node("QMoE", { "x", "logits3", "q1", "q1s", "", "q2", "q2s", "", "", "", "", "", "", "", "x" }, attrs(), nil, MS) })
  end)

  -- sigmoid scores, the best two of score + bias, their weights divided by sum + eps, as one MoE with log weights
  local function sigmoid_route(changes)
    local list = {
      ROUTER, node("Sigmoid", { "logits3" }, nil, "s"), node("Add", { "s", "b3" }, nil, "biased"),
      { "TopK", { "biased", "k2" }, { "best", "index" }, attrs = { axis = -1 } },
      node("GatherElements", { "s", "index" }, { axis = -1 }, "chosen"),
      node("ReduceSum", { "chosen", "im1" }, { keepdims = 1 }, "sum"), node("Add", { "sum", "eps" }, nil, "safe"),
      node("Div", { "sum", "safe" }, nil, "share"), node("Mul", { "share", "two" }, nil, "scaled"),
      node("Clip", { "chosen", "low" }, nil, "clipped"), node("Log", { "clipped" }, nil, "log"),
      node("ScatterElements", { "rest", "index", "log" }, { axis = -1 }, "routed"),
      node("MoE", { "x", "routed", "fc1", "", "fc2" }, attrs(), "e", MS), node("Mul", { "e", "scaled" }),
    }
    CONSTANTS.rest = CONSTANTS.hidden
    for i, n in pairs(changes or {}) do list[i] = n end
    return list
  end

  it("take a router of sigmoids, spelled out", function()
    local route = "route(linear(x, w83'[0+3]), bias b3[0+3], scale=2, k=2, score=sigmoid, norm=true, norm_eps=0.25)"
    gives(("experts(x, %s, act=silu, %s)"):format(route, LIST), sigmoid_route())
  end)

  it("refuse other choices", function()
    refused("chooses by something else than a sigmoid", { ROUTER, { "TopK", { "logits3", "k2" }, { "v", "y" }, attrs = { axis = -1 } } })
    refused("is not a choice of experts", sigmoid_route { [4] = { "TopK", { "biased", "k2" }, { "best", "index" }, attrs = { axis = 1 } } })
    refused("picks something else than the scores", sigmoid_route { [5] = node("GatherElements",
      { "x", "index" }, { axis = -1 }, "chosen") })
    refused("is not a sum of chosen scores", sigmoid_route { [6] = node("ReduceSum", { "s", "im1" }, nil, "sum") })
    refused("divides in a way that no recipe does", sigmoid_route { [8] = node("Div", { "sum", "sum" }, nil, "share") })
    refused("bounds activations", sigmoid_route { [10] = node("Clip", { "chosen", "half" }, nil, "clipped") })
    refused("Log%) does not belong to a choice", sigmoid_route { [11] = node("Log", { "s" }, nil, "log") })
    refused("ScatterElements%) does not belong to a choice", sigmoid_route { [12] = node("ScatterElements",
      { "half", "index", "log" }, { axis = -1 }, "routed") })
    refused("takes 1 experts, but its router chooses 2", sigmoid_route { [13] = node("MoE",
      { "x", "routed", "fc1", "", "fc2" }, attrs { k = 1 }, "e", MS) })
  end)
end)
