-- Where a model is cut: least time of the slowest rank, memory of each, and layers that were asked for.
local cut = require "ane.pipeline.cut"

-- Steps of n layers, two each: attention and a larger feed-forward part; few numbers cross before each layer.
local function costs_of(n, tail)
  local costs = { { name = "embed", weights = 0, read = 0, values = 0, table = 100, kv = 0, crossing = 0 } }
  for layer = 0, n - 1 do
    costs[#costs + 1] = { name = ("layers.%d.attn"):format(layer), weights = 40, read = 40, values = 20, table = 0, kv = 2, crossing = 8 }
    costs[#costs + 1] = { name = ("layers.%d.ffn"):format(layer), weights = 60, read = 60, values = 30, table = 0, kv = 0, crossing = 20 }
  end
  costs[#costs + 1] = { name = "head", weights = tail, read = tail, values = tail, table = 0, kv = 0, crossing = 8 }
  return costs
end

local function ranks_of(...)
  local list = {}
  for i, speed in ipairs { ... } do list[i] = { speed = speed } end
  return list
end

local function first_layers(costs, cuts)
  local list = {}
  for i, s in ipairs(cut.describe(costs, cuts)) do list[i] = s.first end
  return list
end

describe("the cut of a model", function()
  it("gives equal ranks equal parts", function()
    local costs = costs_of(12, 0)
    assert.same({ 0, 3, 6, 9 }, first_layers(costs, assert(cut.choose(costs, ranks_of(1, 1, 1, 1), {}))))
    assert.same({}, assert(cut.choose(costs, ranks_of(1), {})))
  end)

  it("gives the faster rank more", function()
    local costs = costs_of(12, 0)
    assert.same({ 0, 9 }, first_layers(costs, assert(cut.choose(costs, ranks_of(3, 1), {}))))
  end)

  it("counts the head as much as it is told to", function()
    local costs = costs_of(12, 400)
    assert.same({ 0, 6 }, first_layers(costs, assert(cut.choose(costs, ranks_of(1, 1), { tail = 0 }))))
    assert.same({ 0, 8 }, first_layers(costs, assert(cut.choose(costs, ranks_of(1, 1), { tail = 1 }))))
  end)

  it("gives no rank more than its memory, and says when all of it is too little", function()
    local costs, ranks = costs_of(10, 0), ranks_of(1, 1)
    ranks[1].room = 300
    assert.same({ 0, 3 }, first_layers(costs, assert(cut.choose(costs, ranks, {}))))
    ranks[2].room = 500
    local cuts, message, code = cut.choose(costs, ranks, {})
    assert.is_nil(cuts)
    assert.equal("memory", code)
    assert.matches("do not fit", message)
  end)

  it("is where the list of layers says", function()
    local costs = costs_of(6, 10)
    assert.same({ 0, 1, 5 }, first_layers(costs, assert(cut.choose(costs, ranks_of(1, 1, 1), { cut = { 1, 5 } }))))
    for _, case in ipairs { { { 1 }, "2" }, { { 1, 9 }, "no layer 9" }, { { 5, 1 }, "ascend" } } do
      local cuts, message, code = cut.choose(costs, ranks_of(1, 1, 1), { cut = case[1] })
      assert.is_nil(cuts)
      assert.equal("invalid", code)
      assert.matches(case[2], message)
    end
  end)

  it("divides the head by speed, in whole groups of rows, and counts its parts", function()
    local costs, head = costs_of(12, 400), { rows = 1000, cols = 1, weights = 400 }
    assert.is_nil(cut.divide(head, ranks_of(1)))
    assert.is_nil(cut.divide(nil, ranks_of(1, 1)))
    head.parts = cut.divide(head, ranks_of(1, 3))
    assert.same({ 0, 256, 1000 }, head.parts)
    assert.same({ 0, 0, 16, 16, 16, 20 }, cut.divide({ rows = 20 }, ranks_of(1, 1, 1, 1, 1)))
    head.parts = cut.divide(head, ranks_of(1, 1))
    local cuts = assert(cut.choose(costs, ranks_of(1, 1), { tail = 1 }, head))
    assert.same({ 0, 6 }, first_layers(costs, cuts))
    local stages = cut.describe(costs, cuts, head)
    assert.equal(1600, stages[1].weights + stages[2].weights)
    assert.equal(496, stages[1].head_rows)
    local ranks = ranks_of(1, 1)
    ranks[1].room = 350 -- half of the head and one layer
    assert.same({ 0, 1 }, first_layers(costs, assert(cut.choose(costs, ranks, {}, head))))
  end)

  it("leaves ranks empty where there are more of them than places", function()
    local costs = costs_of(2, 0)
    local stages = cut.describe(costs, assert(cut.choose(costs, ranks_of(1, 1, 1, 1, 1, 1), {})))
    local weights = 0
    for _, s in ipairs(stages) do weights = weights + s.weights end
    assert.equal(6, #stages)
    assert.equal(200, weights)
    assert.equal(0, stages[6].sends)
  end)
end)
