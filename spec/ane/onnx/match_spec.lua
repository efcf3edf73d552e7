-- A recipe's record against a lifted graph: equal, or the first difference with the node that has it.
local match = require "ane.onnx.match"

-- Segments: all rows of stored constant number `data`.
local function segments(data, rows, cols)
  return { { piece = { kind = "plain", data = data, rows = rows, cols = cols }, from = 0, step = 1, n = rows } }
end

local TABLE, W, NORM = segments(1, 10, 4), segments(2, 6, 4), segments(3, 4, 1)
local WEIGHTS = { ["table.weight"] = TABLE, ["w.weight"] = W, ["norm.weight"] = NORM }

-- What a recipe built: embed, norm, product. change(record) changes it.
local function built(change)
  local record = {
    t = { weight = "table.weight" }, w = { weight = "w.weight" }, n = { weight = "norm.weight" },
    x = { op = "embed", inputs = { "ids", "t" }, attrs = {}, name = "x" },
    h = { op = "rms_norm", inputs = { "x", "n" }, attrs = { eps = 1e-5, groups = 1 }, name = "h" },
    y = { op = "conv1x1", inputs = { "h", "w", false }, attrs = {}, name = "y" },
    z = { op = "gather", inputs = { "y", "out_rows" }, attrs = {}, name = "z" },
  }
  if change then change(record) end
  return { record = record }
end

-- The lifted graph. change(e) changes the expression of the product.
local function lifted(change)
  local node = function(name, op) return { name = name, op = op } end
  local x = { op = "embed", w = TABLE, channels = 4, node = node("n1", "Gather") }
  local h = { op = "rms_norm", x = x, w = NORM, eps = 1e-5, groups = 1, channels = 4, node = node("n2", "SimplifiedLayerNormalization") }
  local y = { op = "linear", x = h, w = W, channels = 6, node = node("n3", "MatMul") }
  if change then change(y) end
  return y
end

local function same(recipe, graph) return match.same(built(recipe), "z", lifted(graph), WEIGHTS) end

describe("a match", function()
  it("is found, past gathers of output rows", function()
    assert.is_true(same())
  end)

  it("is found for a slice of a product as a product by some rows", function()
    local function slice(record) record.z = { op = "slice", inputs = { "y" }, attrs = { from = 2, to = 5 }, name = "z" } end
    local function part(y) y.w = { { piece = W[1].piece, from = 2, step = 1, n = 3 } } end
    assert.is_true(same(slice, part))
    local ok, reason = same(slice)
    assert.is_nil(ok)
    assert.matches("node n3 %(MatMul%) has another weight than the recipe", reason)
  end)

  it("fails with the node and the reason", function()
    for _, case in ipairs {
      { nil, function(y) y.w = segments(9, 6, 4) end, "node n3 %(MatMul%) has another weight than the recipe" },
      { nil, function(y) y.b = segments(4, 6, 1) end, "node n3 %(MatMul%) has a bias, but the recipe has none" },
      { nil, function(y) y.x.eps = 1e-3 end, "node n2 %(SimplifiedLayerNormalization%) has epsilon 0.001, the recipe 1e%-05" },
      { nil, function(y) y.op = "act" end, "node n3 %(MatMul%) does not match: the recipe has conv1x1 %(y%) there, but the graph has act" },
      { function(r) r.h.attrs.groups = 2 end, nil, "norms 1 groups, the recipe 2" },
      { function(r) r.w.transposed = true end, nil, "has another weight than the recipe" },
      { function(r) r.y.op = "delay" end, nil, "is where the recipe has delay" },
    } do
      local ok, reason = same(case[1], case[2])
      assert.is_nil(ok)
      assert.matches(case[3], reason)
    end
  end)

  it("takes sums in either order", function()
    local function sum(record)
      record.s = { op = "add", inputs = { "x", "y" }, attrs = {}, name = "s" }
      record.z.inputs = { "s" }
    end
    local y = lifted()
    for _, pair in ipairs { { y.x.x, y }, { y, y.x.x } } do
      assert.is_true(match.same(built(sum), "z", { op = "add", a = pair[1], b = pair[2], channels = 4 }, WEIGHTS))
    end
    assert.is_nil((match.same(built(sum), "z", { op = "add", a = y, b = y, channels = 4 }, WEIGHTS)))
  end)
end)
