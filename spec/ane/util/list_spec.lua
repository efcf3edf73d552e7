-- Lists that callers give: their metatables.
local list = require "ane.util.list"

local function class(methods, parent) return { __index = setmetatable(methods, parent and { __index = parent }) } end

describe("lists", function()
  it("may have methods", function()
    local parent = { len = function(self) return #self end }
    assert.is_nil(list.stray(setmetatable({ "a", "b" }, class({ map = print }))))
    assert.is_nil(list.stray(setmetatable({ "a", "b" }, class({ map = print }, parent))))
    assert.is_nil(list.ids_fault(setmetatable({ 1, 2 }, class({}, parent))))
  end)

  it("have no more entries than they hold", function()
    local endless = {}
    setmetatable(endless, { __index = endless })
    for _, mt in ipairs {
      class { "third" }, class({}, { "third" }), { __index = function() return 1 end }, { __index = endless },
      { __len = function() return 9 end }, { __pairs = function() return next, {} end }, { __metatable = "hidden" },
    } do
      assert.equal(list.MORE, list.stray(setmetatable({ "a", "b" }, mt)))
    end
  end)

  it("are refused with a metatable that stands for a missing field", function()
    assert.equal(list.MORE, list.stray(setmetatable({ content = "x" }, class { role = "user" })))
  end)

  it("have a common prefix", function()
    assert.equal(2, list.common_prefix({ 1, 2, 3 }, { 1, 2, 4, 5 }))
    assert.equal(1, list.common_prefix({ 1 }, { 1, 2 }))
    assert.equal(0, list.common_prefix({}, { 1 }))
  end)
end)
