local core = require "ane.core"
local graphs = require "support.graphs"
local testing = core.testing

local HEAD = [[
  input ids: int32[1, T]
  input positions: int32[1, T]
  input out_rows: int32[1, W]
  const table: fp32[16, 8]
  const w: fp32[6, 8]
  const wide: fp32[6, 9]
  const n: fp32[8]
  const n4: fp32[4]
  state ks: fp16[1, 1, context, 4]
  state vs: fp16[1, 1, context, 4]
  state odd: fp16[1, 2, context, 4]
  x = embed(ids, table)
  r = rope_table(positions) {inv_freq=[1 0.5]}
]]

local function open(text) return graphs.parse(HEAD .. (text or "")) end

-- What adding one node gives: its shape as text, or the message.
local function add(op, inputs, attrs)
  local g, v = open "k = slice(x) {from=0 to=4}\n t = gather(x, out_rows)\n y = conv1x1(x, w)"
  local list = {}
  for i, name in ipairs(inputs) do list[i] = name and v[name] end
  local ok, result = pcall(g.add, g, op, "node", list, attrs)
  if not ok then return result end
  return table.concat(g:shape(result), ", ")
end

describe("shape inference", function()
  local cases = {
    { "embed", { "ids", "table" }, nil, "1, 8, T, 1" },
    { "embed", { "positions", "n" }, nil, "node: n must be a table [V, C], but is fp32[8]" },
    { "embed", { "x", "table" }, nil, "node: x must be ids int32[1, T], but is fp32[1, 8, ?, 1]" },
    { "conv1x1", { "x", "w" }, nil, "1, 6, T, 1" },
    { "conv1x1", { "t", "w" }, nil, "1, 6, W, 1" },
    { "conv1x1", { "x", "wide" }, nil, "node: weight wide must be [N, 8] for an input of 8 channels, but is [6, 9]" },
    { "conv1x1", { "x", "w", "n" }, nil, "node: bias n must be [6], but is [8]" },
    { "conv1x1", { "ids", "w" }, nil, "node: ids must be an activation fp32[1, C, T, 1], but is int32[1, ?]" },
    { "conv1x1", { "x", false }, nil, "node: input 2 of conv1x1 is not a value" },
    { "conv1x1", { "x" }, nil, "node: conv1x1 must have 2 to 3 inputs, but has 1" },
    { "rms_norm", { "x", "n" }, { eps = 1 }, "1, 8, T, 1" },
    { "rms_norm", { "x", "n4" }, { groups = 2 }, "1, 8, T, 1" },
    { "rms_norm", { "x", "n" }, { groups = 2 }, "node: weight n must be [4], but is [8]" },
    { "rms_norm", { "x" }, { groups = 3 }, "node: 3 groups do not divide 8 channels" },
    { "rms_norm", { "x" }, { groups = 0 }, "node: 0 groups do not divide 8 channels" },
    { "layer_norm", { "x", false, "n" }, nil, "1, 8, T, 1" },
    { "layer_norm", { "x", false, "n4" }, nil, "node: bias n4 must be [8], but is [4]" },
    { "rope_table", { "positions" }, { inv_freq = { 1, 2, 3 } }, "1, 6, T, 1" },
    { "rope_table", { "positions" }, nil, "node: inv_freq is empty" },
    { "rope", { "x", "r" }, { heads = 2 }, "1, 8, T, 1" },
    { "rope", { "x", "r" }, { heads = 3 }, "node: 3 heads do not divide 8 channels" },
    { "rope", { "x", "r" }, { heads = 4 }, "node: rope rotates 4 dimensions, but a head has 2" },
    { "rope", { "x", "r" }, { heads = 2, layout = "neox" }, "node: rope layout neox is unknown; known are: half, interleaved" },
    { "rope", { "t", "r" }, { heads = 2 }, "node: t [1, 8, ?, 1] and r [1, 4, ?, 1] have different numbers of tokens" },
    { "attention", { "x", "k", "k", "ks", "vs" }, { heads = 2, kv_heads = 1 }, "1, 8, T, 1" },
    { "attention", { "x", "x", "k", "ks", "vs" }, { heads = 2, kv_heads = 1 },
      "node: k has 8 and v 4 channels, but must have 1 heads of 4" },
    { "attention", { "x", "k", "k", "ks", "vs" }, { heads = 2, kv_heads = 3 },
      "node: 2 heads and 3 kv heads do not fit each other or 8 channels" },
    { "attention", { "x", "k", "k", "ks", "odd" }, { heads = 2, kv_heads = 1 },
      "node: state odd must be [1, 1, context, 4], but is [1, 2, ?, 4]" },
    { "attention", { "x", "k", "k", "ks", "x" }, { heads = 2, kv_heads = 1 },
      "node: state x must be [1, 1, context, 4], but is [1, 8, ?, 1]" },
    { "attention", { "x", "k", "k", "ks", "vs" }, { heads = 2, kv_heads = 1, window = -1 },
      "node: window and softcap must not be negative" },
    { "attention", { "t", "k", "k", "ks", "vs" }, { heads = 2, kv_heads = 1 },
      "node: t [1, 8, ?, 1] and k [1, 4, ?, 1] have different numbers of tokens" },
    { "glu", { "x", "x" }, { act = "gelu_erf" }, "1, 8, T, 1" },
    { "glu", { "x", "y" }, nil, "node: x is [1, 8, ?, 1] but y is [1, 6, ?, 1]" },
    { "act", { "x" }, { act = "elu" }, "node: activation elu is unknown; known are: silu, gelu_tanh, gelu_erf, sigmoid, relu" },
    { "add", { "x", "x" }, nil, "1, 8, T, 1" },
    { "add", { "x", "t" }, nil, "node: x is [1, 8, ?, 1] but t is [1, 8, ?, 1]" },
    { "mul", { "x", "y" }, nil, "node: x is [1, 8, ?, 1] but y is [1, 6, ?, 1]" },
    { "scale", { "x" }, { by = 2 }, "1, 8, T, 1" },
    { "softcap", { "x" }, { cap = 30 }, "1, 8, T, 1" },
    { "slice", { "x" }, { from = 2, to = 5 }, "1, 3, T, 1" },
    { "slice", { "x" }, { from = 5, to = 9 }, "node: channels 5 to 9 of x, which has 8" },
    { "slice", { "x" }, { from = 3, to = 3 }, "node: channels 3 to 3 of x, which has 8" },
    { "gather", { "x", "out_rows" }, nil, "1, 8, W, 1" },
    { "gather", { "x", "w" }, nil, "node: w must be positions int32[1, W], but is fp32[6, 8]" },
    { "linear", { "x", false, false, "w", false }, nil, "1, 6, T, 1" },
    { "linear", { "x", "y", "n", "w", false }, { norm = 1 }, "1, 6, T, 1" },
    { "linear", { "x", "x", false, "w", false }, nil, "node: x must be a residual of the output's shape, but is fp32[1, 8, ?, 1]" },
    { "linear", { "x", false, false, "w", false }, { count = 2, outputs = 2 }, "node: linear of 2 matrices with 5 inputs and 2 outputs" },
    { "linear", { "x", false, false, "w", false, "table", false }, { count = 2, act = "silu" },
      "node: weight table has 16 rows, but its gate has 6" },
    { "linear", { "x", false, false, "w", false }, { outputs = 9 }, "node: 9 outputs, not 1 .. 8" },
    { "fused_attention", { "x", "k", "k", "ks", "vs", false, "r", false, "n" }, { heads = 2, kv_heads = 1, norm = 1 },
      "node: k norm n must be [4], but is [8]" },
  }

  for i, case in ipairs(cases) do
    it(("%d: %s"):format(i, case[4]), function() assert.equal(case[4], add(case[1], case[2], case[3])) end)
  end
end)

describe("the builder", function()
  it("names the node and the choices of an attribute", function()
    assert.equal("node: rms_norm has no attribute epsilon; it has: eps, groups, offset", add("rms_norm", { "x" }, { epsilon = 1 }))
    assert.equal("node: add has no attribute by; it has: none", add("add", { "x", "x" }, { by = 1 }))
    assert.equal("node: attribute heads must be an integer, but is a number", add("rope", { "x", "r" }, { heads = 2.5 }))
    assert.equal("node: attribute inv_freq must be a list of numbers, but is a string",
      add("rope_table", { "positions" }, { inv_freq = "1" }))
    assert.equal("node: attribute act must be a string, but is an integer", add("act", { "x" }, { act = 1 }))
    assert.equal("attribute inv_freq: entry 2 is not a number", add("rope_table", { "positions" }, { inv_freq = { 1, "x" } }))
    assert.equal("node: no op softmax", add("softmax", { "x" }))
  end)

  it("names the node and the place of a wrong input", function()
    local g, v = open()
    assert.error(function() g:add("scale", "big", { 999 }) end, "big: input 1 is 999; the values of the graph are 1 .. " .. v.r)
    assert.error(function() g:add("add", "words", { v.x, "x" }) end, "words: input 2 is a string, not a value")
    assert.error(function() g:add("add", "words", { v.x, true }) end, "words: input 2 is a boolean, not a value")
  end)

  it("refuses a name that is taken, or empty", function()
    local g, v = open()
    assert.error(function() g:input("x", "fp32", { 1 }) end, "two values of the graph are called x")
    assert.error(function() g:state("ks", { 1 }) end, "two values of the graph are called ks")
    assert.error(function() g:add("scale", "x", { v.x }) end, "two values of the graph are called x")
    assert.error(function() g:add("scale", "", { v.x }) end, "a value of the graph has no name")
  end)

  it("gives the same value for the same constant, and an error for another of its name", function()
    local g <close> = assert(core.graph "g")
    local a, b = graphs.source "const w: fp32[2, 2]", graphs.source "const w: fp32[2, 2]\nconst v: fp32[1]"
    local w = g:const("w", a, "w")
    assert.equal(w, g:const("w", a, "w"))
    assert.error(function() g:const("w", b, "w") end, "two values of the graph are called w")
    assert.error_matches(function() g:const("u", b, "u") end, "no tensor u")
  end)

  it("checks dimensions and types", function()
    local g <close> = assert(core.graph "g")
    assert.error(function() g:input("a", "int32", { 1, "S" }) end, "dimension S is not a symbol; known are: T, W, context")
    assert.error(function() g:input("a", "int32", { 1, -1 }) end, "dimension 2 of the shape is negative")
    assert.error(function() g:input("a", "int32", { 1, 1, 1, 1, 1, 1 }) end, "a shape has at most 5 dimensions, but this one has 6")
    assert.error_matches(function() g:input("a", "float", { 1 }) end, "is not a dtype")
    assert.same({ 1, "T", "W", "context" }, g:shape(g:input("b", "int32", { 1, "T", "W", "context" })))
  end)

  -- The second output of a node may have a name that is taken: the first must not stay behind as a value without maker.
  it("takes back what a node that failed half-way made", function()
    local g, v = open "q.1 = scale(x)"
    local inputs = { v.x, false, false, v.table, false, v.table, false }
    assert.error_matches(function() g:add("linear", "q", inputs, { count = 2, outputs = 2 }) end, "two values of the graph are called q.1")
    local stray = v["q.1"] + 1
    assert.error(function() g:add("scale", "y", { stray }) end, "y: input 1 of scale is q, which no node makes")
    g:results(v["q.1"])
    assert(g:passes "cpu")
  end)

  it("refuses a value whose node a pass removed", function()
    local g, v = open "gone = scale(x)\n give x"
    assert(g:pass "dead_code")
    assert.error(function() g:add("scale", "y", { v.gone }) end, "y: input 1 of scale is gone, which no node makes")
    g:results(v.gone)
    local _, message = g:passes "cpu"
    assert.equal("pass dead_code: the result gone is made by no node", message)
  end)

  it("refuses all use once it is closed", function()
    local g, v = open()
    assert.equal("graph g (2 nodes)", tostring(g))
    g:close()
    g:close()
    assert.equal("graph (closed)", tostring(g))
    assert.error_matches(function() g:add("scale", "y", { v.x }) end, "graph is closed")
    assert.error_matches(function() core.program(g, {}) end, "graph is closed")
  end)
end)

describe("the printer", function()
  it("gives inputs, constants and states, nodes with what is not default, and results", function()
    local g <close> = open [[
      y = rms_norm(x, n) {eps=1e-06 groups=1}
      q = linear(y, -, n, table, -, w, -) {count=2 outputs=2 norm=1}
      t = gather(y, out_rows)
      give t
    ]]
    assert.equal([[
graph g
input ids: int32[1, T]
input positions: int32[1, T]
input out_rows: int32[1, W]
const table: fp32[16, 8]
const w: fp32[6, 8]
const wide: fp32[6, 9]
const n: fp32[8]
const n4: fp32[4]
state ks: fp16[1, 1, context, 4]
state vs: fp16[1, 1, context, 4]
state odd: fp16[1, 2, context, 4]
x = embed(ids, table) : fp32[1, 8, T, 1]
r = rope_table(positions) {inv_freq=[1 0.5]} : fp32[1, 4, T, 1]
y = rms_norm(x, n) {eps=1e-06} : fp32[1, 8, T, 1]
q, q.1 = linear(y, -, n, table, -, w, -) {count=2 outputs=2 norm=1} : fp32[1, 16, T, 1], fp32[1, 6, T, 1]
t = gather(y, out_rows) : fp32[1, 8, W, 1]
give t
]], g:dump())
  end)

  it("gives a text that reads back as the same graph", function()
    local g <close> = open "y = rms_norm(x, n) {eps=0.25}\n z = slice(y) {from=1 to=3}\n give z"
    local again <close> = graphs.parse(g:dump())
    assert.equal(g:dump(), again:dump())
  end)

  it("gives the same text for each dump, and for a graph built again", function()
    local a <close> = open()
    local b <close> = open()
    assert.equal(a:dump(), a:dump())
    assert.equal(a:dump(), b:dump())
  end)
end)

describe("compacting", function()
  it("leaves nodes that are in order where they are", function()
    local g <close> = open "a = scale(x) {by=1}\n b = scale(x) {by=2}\n c = add(b, a)\n d = scale(a) {by=3}\n give c d"
    assert(g:pass "dead_code")
    assert.equal(graphs.trim [[
      x = embed(ids, table)
      a = scale(x)
      b = scale(x) {by=2}
      c = add(b, a)
      d = scale(a) {by=3}
      give c d
    ]], graphs.nodes(g))
  end)

  -- Joined projections stand at the place of the first; what the second one needed may come later.
  it("moves users behind their makers", function()
    local g <close> = graphs.parse [[
      input ids: int32[1, T]
      const table: fp32[16, 8]
      const w: fp32[8, 8]
      x = embed(ids, table)
      a = linear(x, -, -, w, -)
      s = scale(a) {by=2}
      b = linear(x, -, -, w, -)
      y = add(s, b)
      give y
    ]]
    assert(g:pass "fuse_projection")
    assert(g:verify())
  end)
end)

describe("a graph without memory", function()
  it("is an error at every allocation, and no crash", function()
    local function build()
      local source = graphs.source "const w: fp32[8, 8]\nconst table: fp32[16, 8]"
      return function()
        local g <close> = assert(core.graph "g")
        local ids = g:input("ids", "int32", { 1, "T" })
        local x = g:add("embed", "x", { ids, g:const("table", source, "table") })
        for i = 1, 70 do x = g:add("conv1x1", "y" .. i, { x, g:const("w", source, "w") }) end
        local r = g:add("rope_table", "r", { ids }, { inv_freq = { 1, 2, 3 } })
        x = g:add("rope", "z", { x, r }, { heads = 1, layout = "half" })
        g:results(x)
        assert(g:passes "cpu")
        return g:dump()
      end
    end
    local run = build()
    local want = run()
    local failures = 0
    for n = 0, 400 do
      testing.alloc_fail_after(n)
      local ok, result = pcall(run)
      testing.alloc_fail_after(-1)
      if ok and failures == n then
        assert.equal(want, result)
        break
      end
      assert.is_false(ok)
      assert.matches("memory", tostring(result))
      failures = failures + 1
    end
    assert.is_true(failures > 10 and failures < 400)
  end)
end)
