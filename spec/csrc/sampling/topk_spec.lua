local core = require "ane.core"

-- All ids by value, best first, the lower id first where equal; NaN last.
local function sorted(values)
  local order = {}
  for i = 1, #values do order[i] = i - 1 end
  table.sort(order, function(a, b)
    local x, y = values[a + 1], values[b + 1]
    if x ~= x or y ~= y then
      if x ~= x and y ~= y then return a < b end
      return y ~= y
    end
    if x ~= y then return x > y end
    return a < b
  end)
  return order
end

local function ids(ranked)
  local out = {}
  for i, pair in ipairs(ranked) do out[i] = pair[1] end
  return out
end

describe("topk", function()
  it("agrees with a full sort for every k", function()
    for _, n in ipairs { 1, 2, 3, 7, 64, 301 } do
      local values = {}
      for i = 1, n do values[i] = math.floor(core.random(n, i) * 40) - 20.0 end -- few values, so many are equal
      local t, order = core.tensor({ n }, values), sorted(values)
      for k = 0, n do
        assert.same(table.move(order, 1, k, 1, {}), ids(t:topk(k)))
      end
      assert.equal(order[1], (t:argmax()))
    end
  end)

  it("gives values with the ids and at most all of them", function()
    local t = core.tensor({ 4 }, { 1, 4, 3, 2 })
    assert.same({ { 1, 4.0 }, { 2, 3.0 } }, t:topk(2))
    assert.equal(4, #t:topk(100))
  end)

  it("prefers the lower id among equals, with zeros of both signs equal", function()
    assert.same({ 0, 1, 2 }, ids(core.tensor({ 3 }, { -0.0, 0.0, 0.0 }):topk(3)))
    assert.equal(1, (core.tensor({ 4 }, { 1, 5, 5, 5 }):argmax()))
  end)

  it("puts NaN behind everything and infinities at the ends", function()
    local nan, inf = 0 / 0, math.huge
    local t = core.tensor({ 6 }, { nan, -inf, 3, inf, nan, 1 })
    assert.same({ 3, 2, 5, 1, 0, 4 }, ids(t:topk(6)))
    assert.same({ 3, 2 }, ids(t:topk(2)))
    assert.equal(3, (t:argmax()))
    assert.equal(0, (core.tensor({ 2 }, { nan, nan }):argmax()))
  end)

  it("handles ascending and descending rows of a large vocabulary", function()
    local up, down = core.tensor { 60000 }, core.tensor { 60000 }
    for i = 1, 60000 do
      up:set(i, i)
      down:set(i, -i)
    end
    assert.same({ 59999, 59998, 59997 }, ids(up:topk(3)))
    assert.same({ 0, 1, 2 }, ids(down:topk(3)))
  end)
end)
