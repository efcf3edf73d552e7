-- Sums of second moments for attention sinks.
local ane = require "ane"
local core = require "ane.core"
local layout = require "ane.quantise.layout"
local model_of = require "ane.model"
local sinks = require "ane.quantise.sinks"

local function keyed_of(path)
  local model <close> = assert(ane.load(path))
  local bundle = model_of.bundle(model)
  local found = layout.of(bundle.recipe, bundle.config, bundle.source)
  local names = {}
  for name in pairs(found.keyed) do names[#names + 1] = name end
  found.graph:close()
  table.sort(names)
  return names, found
end

describe("the values whose products are keys or values", function()
  it("are the inputs of both projections", function()
    for _, name in ipairs { "llama", "qwen3_moe-odd", "gemma3", "glm4-odd" } do
      local names, found = keyed_of("spec/fixtures/hf/" .. name)
      local want = {}
      for weight, input in pairs(found.inputs) do
        if weight:find "k_proj" or weight:find "v_proj" then want[input.value] = true end
      end
      local n = 0
      for value in pairs(want) do
        n = n + 1
        assert.is_true(found.keyed[value], name .. ": " .. value)
      end
      assert.is_true(n > 0)
      assert.equal(n, #names, name)
    end
  end)

  it("are those of the layers with attention alone", function()
    local names = keyed_of "spec/fixtures/hf/lfm2-odd"
    assert.is_true(#names > 0)
    for _, name in ipairs(names) do assert.matches("^layers%.%d+%.", name) end
    assert.same({}, (keyed_of "spec/fixtures/hf/mamba2-odd"))
  end)
end)

describe("the mean of first tokens", function()
  -- A matrix of two tokens; the second one must not count.
  local function window(a, b) return core.tensor({ 2, 2 }, { a, b, 9, 9 }) end

  it("weighs as much as all tokens", function()
    local first, got = sinks.new { x = true }, nil
    first:note("x", window(1, 2), window(3, 2))
    first:note("x", window(3, -2), window(1, 2))
    local moments = { add = function(_, ...)
      got = { ... }
      return true
    end }
    assert.is_true(first:add(moments, "x", 1000))
    assert.same({ "x", { 2, 0 }, { 2, 2 }, sinks.WEIGHT * 1000 }, { got[1], got[2]:totable(), got[3]:totable(), got[4] })
    got = nil
    assert.is_true(first:add(moments, "x", 1000)) -- it was added, and is forgotten
    assert.is_nil(got)
  end)

  it("is not added for other values", function()
    local first = sinks.new { x = true }
    first:note("y", window(1, 2))
    assert.is_true(first:add({ add = error }, "y", 1000))
  end)

  it("has no source where the source alone is read", function()
    local first, got = sinks.new { x = true }, nil
    first:note("x", window(1, 2))
    first:add({ add = function(_, ...) got = table.pack(...) end }, "x", 10)
    assert.same({ 1, 2 }, got[2]:totable())
    assert.is_nil(got[3])
  end)
end)
