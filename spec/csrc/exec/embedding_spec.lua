-- Embeddings by position and token type, rows pooled to a vector, the product of a matrix and a vector.
local core = require "ane.core"
local graphs = require "support.graphs"

local HEAD = [[
  input ids: int32[1, T]
  input types: int32[1, T]
  input positions: int32[1, T]
  input out_rows: int32[1, W]
  const table: fp32[16, 8]
  const kinds: fp32[3, 8]
  const places: fp32[12, 8]
  a = embed(ids, table)
  b = embed(types, kinds)
  c = embed(positions, places)
  d = add(a, b)
  x = add(d, c)
  y = gather(x, out_rows)
  z = scale(y) {by=1}
  give z
]]

local function plan(context)
  local g <close>, consts = graphs.parse(HEAD)
  assert(g:passes "cpu-plain")
  local p, message, code = core.program(g, { threads = 1, context = context or 12, chunk = 32, int8 = false })
  return p, p and consts or message, code
end

describe("embeddings", function()
  it("are looked up by id, token type and position", function()
    local p = assert(plan())
    local s <close> = assert(p:session { context = 12 })
    local t <close> = assert(p:session { context = 12 })
    assert(p:run({ { s, { 3, 5, 3 }, { 0, 2, 0 } } }, "all"))
    local first, third = s:logits(1), s:logits(3)
    assert.is_true((first - third):abs():max() > 0) -- same id and type, other positions
    assert(p:run({ { t, { 3, 5, 3 } } }, "all"))
    assert.equal(first:tostring(), t:logits(1):tostring())
    assert.is_true((s:logits(2) - t:logits(2)):abs():max() > 0)
    p:close()
  end)

  it("are refused beyond their tables", function()
    local none, message, code = plan(13)
    assert.is_nil(none)
    assert.matches("context is 13, the model has embeddings for 12 positions", message)
    assert.equal("range", code)
    local p = assert(plan())
    local s <close> = assert(p:session { context = 12 })
    local _, why = p:run({ { s, { 3, 5 }, { 0, 3 } } }, "all")
    assert.equal("token type 3 at position 1 is not in 0 .. 2", why)
    assert.has_error(function() p:run({ { s, { 3, 5 }, { 0 } } }, "all") end)
    p:close()
  end)
end)

describe("pooled rows", function()
  local p, s, rows
  setup(function()
    p = assert(plan())
    s = assert(p:session { context = 12 })
    assert(p:run({ { s, { 3, 5, 9, 1 } } }, "all"))
    rows = {}
    for t = 1, 4 do rows[t] = s:logits(t) end
  end)
  teardown(function()
    s:close()
    p:close()
  end)

  local function near(want, got)
    assert.is_true((want - got):abs():max() < 1e-6)
  end

  it("are the first, the last, means and the largest", function()
    near(rows[1], s:pooled "cls")
    near(rows[2], s:pooled("cls", 2))
    near(rows[4], s:pooled "last")
    near((rows[1] + rows[2] + rows[3] + rows[4]) / 4, s:pooled "mean")
    near((rows[3] + rows[4]) / 2, s:pooled("mean", 3))
    near((rows[1] + rows[2] + rows[3] + rows[4]) / 2, s:pooled "mean_sqrt")
    near((rows[1] + rows[2] * 2 + rows[3] * 3 + rows[4] * 4) / 10, s:pooled "weighted_mean")
    near((rows[3] * 3 + rows[4] * 4) / 7, s:pooled("weighted_mean", 3))
    local most = s:pooled("max", 3):totable()
    for c = 1, 8 do assert.equal(math.max(rows[3][c], rows[4][c]), most[c]) end
  end)

  it("raise where there are no such rows", function()
    assert.has_error(function() s:pooled("mean", 5) end)
    assert.has_error(function() s:pooled "median" end)
  end)
end)

describe("a matrix times a vector", function()
  it("is the dot product of each row", function()
    local m = core.tensor({ 2, 5 }, { 1, 2, 3, 4, 5, -1, 0, 1, 0, 2 })
    assert.same({ 55, 12 }, m:times(core.tensor({ 5 }, { 1, 2, 3, 4, 5 })):totable())
    assert.has_error(function() m:times(core.tensor({ 4 }, { 1, 2, 3, 4 })) end)
    assert.has_error(function() core.tensor({ 5 }, { 1, 2, 3, 4, 5 }):times(m) end)
  end)
end)
