-- Attributes and states whose products are beyond 64 bits. Nothing in a file bounds them, so shape inference must refuse them: with
-- wrapped products all shapes fit, and steps write far beyond their memory.
local core = require "ane.core"

local HUGE = 1 << 62

local function graph()
  local g = core.graph "g"
  local ids = g:input("ids", "int32", { 1, "T" })
  return g, function(channels, name) return g:add("embed", name or "x", { ids, g:blank((name or "x") .. "_table", { 4, channels }) }) end
end

local function refused(message, f)
  local ok, why = pcall(f)
  assert.is_false(ok)
  assert.is_truthy(why:find(message, 1, true), why)
end

describe("shape inference", function()
  it("refuses states whose products wrap to the sizes of the inputs", function()
    -- 4 heads of 2^62 + 2 channels, and 2^62 + 3 numbers of state: 4 (2^62 + 2) is 8 in 64 bits.
    local g <close>, input = graph()
    local x, dt, decay = input(8 + 2 * 4 * 3), input(4, "dt"), g:blank("a", { 4 })
    local state = g:state("s", { 1, 4, HUGE + 3, HUGE + 2 })
    local wrong = "s must be a state [1, heads, n, width] of at most 2^40 elements"
    refused("y: " .. wrong, function() g:add("ssm_scan", "y", { x, dt, decay, decay, decay, state }, { groups = 4 }) end)
    refused("z: " .. wrong, function() g:add("delta_rule", "z", { x, dt, dt, decay, decay, state }, { key_heads = 4 }) end)
    local zero = g:state("zero", { 1, 4, 3, 2 })
    g:add("ssm_scan", "fits", { x, dt, decay, decay, decay, zero }, { groups = 4 })
  end)

  it("refuses repeated heads whose number of channels wraps", function()
    local g <close>, input = graph()
    local x = input(4)
    for _, times in ipairs { HUGE + 1, 1 << 40, math.maxinteger } do
      refused("y: 4 heads, " .. times .. " times, do not fit 4 channels",
        function() g:add("repeat_heads", "y", { x }, { heads = 4, times = times }) end)
    end
    assert.same({ 1, 8, "T", 1 }, g:shape(g:add("repeat_heads", "y", { x }, { heads = 4, times = 2 })))
  end)

  it("refuses values of more than 2^40 channels", function()
    local g <close>, input = graph()
    local x = input((1 << 40) + 1)
    refused("y: x must be an activation", function() g:add("scale", "y", { x }, {}) end)
  end)

  it("refuses windows beyond any sequence", function()
    local g <close>, input = graph()
    local x = input(4)
    local k, v = g:state("k", { 1, 1, "context", 4 }), g:state("v", { 1, 1, "context", 4 })
    for _, name in ipairs { "window", "ahead" } do
      refused("y: window and ahead must be at most 2^40, but are " .. (name == "window" and "9223372036854775807 and 0" or
        "0 and 9223372036854775807"), function()
        g:add("attention", "y", { x, x, x, k, v }, { heads = 1, kv_heads = 1, [name] = math.maxinteger })
      end)
    end
  end)
end)
