-- The kinds of values of an ONNX graph: static, data or neither; and values that are computed for given lengths.
local graph = require "ane.onnx.graph"
local onnx = require "support.onnx_writer"

-- ids -> embedding; a position range made of the ids' shape and the past; a folded constant.
local MODEL = {
  inputs = {
    { "input_ids", "int64", { 1, "s" } }, { "attention_mask", "int64", { 1, "t" } },
    { "past_key_values.0.key", "float", { 1, 1, "p", 2 } },
  },
  outputs = { { "logits", "float" }, { "present.0.key", "float" } },
  constants = {
    { "table", onnx.floats({ 4, 2 }, { 0, 1, 2, 3, 4, 5, 6, 7 }) }, { "two", onnx.ints({}, { 2 }) }, { "three", onnx.ints({}, { 3 }) },
    { "axis", onnx.ints({ 1 }, { 1 }) }, { "zero", onnx.ints({}, { 0 }) }, { "one", onnx.ints({}, { 1 }) },
  },
  nodes = {
    { "Gather", { "table", "input_ids" }, { "embedded" } },
    { "Mul", { "two", "three" }, { "six" } },
    { "Identity", { "six" }, { "same" } },
    { "ReduceSum", { "attention_mask", "axis" }, { "total" }, attrs = { keepdims = 0 } },
    { "Shape", { "input_ids" }, { "shape" } },
    { "Gather", { "shape", "one" }, { "tokens" } },
    { "Range", { "zero", "tokens", "one" }, { "positions" } },
    { "Identity", { "past_key_values.0.key" }, { "present.0.key" } },
    { "Identity", { "embedded" }, { "logits" } },
  },
}

local ROLES = {
  ids = "input_ids", mask = "attention_mask", logits = "logits", states = { { past = "past_key_values.0.key", present = "present.0.key" } },
}

-- fn(g, value number by name)
local function with_graph(fn)
  local source, file <close> = onnx.open(MODEL)
  assert(source, file)
  local g = graph.new(source, ROLES)
  g.shape = function(_, _, tokens) return { 1, tokens } end
  local numbers = {}
  for v, value in ipairs(g.doc.values) do numbers[value.name] = v end
  fn(g, numbers)
  g:close()
end

describe("an ONNX graph", function()
  it("tells constants, what tokens make, and what lengths make", function()
    with_graph(function(g, v)
      for name, want in pairs {
        table = { true, false }, six = { true, false }, same = { true, false }, embedded = { false, true }, logits = { false, true },
        total = { false, false }, positions = { false, false }, ["present.0.key"] = { false, true },
      } do
        assert.same(want, { g.static[v[name]] == true, g.data[v[name]] == true }, name)
      end
    end)
  end)

  it("sees through nodes that change nothing", function()
    with_graph(function(g, v)
      assert.equal(v.six, g:through(v.same))
      assert.equal(v.embedded, g:through(v.logits))
    end)
  end)

  it("computes static values, and others for lengths", function()
    with_graph(function(g, v)
      assert.equal(6, g:number(v.same))
      assert.is_nil(g:number(v.total))
      assert.same({ 12 }, g:numbers(v.total, 7, 5))
      assert.same({ 0, 1, 2, 3, 4 }, g:numbers(v.positions, 7, 5))
      assert.same({ 0, 1 }, g:numbers(v.positions, 0, 2))
    end)
  end)

  it("knows which values are floats", function()
    with_graph(function(g, v)
      assert.same({ true, false, false }, { g:is_float(v.table), g:is_float(v.two), g:is_float(v.shape) })
    end)
  end)

  it("reads numbers of every stored type", function()
    assert.same({ 1, -2 }, graph.numbers { dtype = "fp16", data = string.pack("<I2I2", 0x3C00, 0xC000) })
    assert.same({ 1, -2 }, graph.numbers { dtype = "bf16", data = string.pack("<I2I2", 0x3F80, 0xC000) })
    assert.same({ 2 ^ -24 }, graph.numbers { dtype = "fp16", data = string.pack("<I2", 1) })
    assert.same({ -3 }, graph.numbers({ dtype = "int8", data = "\1\xFD" }, 1, 1))
    assert.is_nil(graph.numbers { dtype = "int4", data = "\1" })
    assert.is_nil(graph.numbers { dtype = "fp32" })
  end)

  it("refuses with the node's name", function()
    local ok, raised = pcall(graph.refuse, { name = "n7", op = "Mul" }, "has %d inputs", 3)
    assert.same({ false, true, "node n7 (Mul) has 3 inputs" }, { ok, raised.uncovered, raised.message })
  end)
end)
