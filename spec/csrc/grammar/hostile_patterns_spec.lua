-- Patterns and schemas that ask for very much work in few bytes. They take about the time of their length.
local core = require "ane.core"

-- The processor time of making a grammar, which may be refused.
local function timed(kind, text)
  local start = os.clock()
  core.grammar(kind, text, {})
  return os.clock() - start
end

local function check(kind, text) local seconds = timed(kind, text) assert.is_true(seconds < 5, ("%.1f s"):format(seconds)) end

describe("a pattern of 64 KB", function()
  it("of general categories", function() check("regex", ("\\p{L}?"):rep(65536 // 6)) end)
  it("of one class of general categories", function() check("regex", "[" .. ("\\p{L}"):rep(13000) .. "]") end)
  it("of many classes, which are no ranges", function()
    local parts = {}
    for i = 1, 6000 do parts[i] = ("[%c%c%c]?"):format(0x61 + i % 26, 0x41 + i // 26 % 26, 0x30 + i // 676 % 10) end
    check("regex", table.concat(parts))
  end)

  it("still matches what its categories say", function()
    local function matches(pattern, text)
      local m = assert(core.grammar("regex", pattern):matcher())
      return m:push(text) and m:accepts()
    end
    assert.is_true(matches("\\p{Lu}\\p{Ll}+\\p{Nd}\\P{L}", "Zx\u{e9}\u{661}!"))
    assert.is_false(matches("\\p{Lu}", "z"))
    assert.is_true(matches("[\\p{Lu}\\p{Sm}]+", "A+\u{410}"))
    assert.is_true(matches("[zyxa-c\\p{Nd}]+", "azb9y"))
    assert.is_false(matches("[^zyxa-c\\p{Nd}]", "b"))
  end)
end)

describe("a schema", function()
  it("with many references to many definitions", function()
    local defs, members = {}, {}
    for i = 1, 60000 do defs[i] = ('"d%d":{}'):format(i) end
    for i = 1, 60000 do members[i] = ('"p%d":{"$ref":"#/$defs/d%d"}'):format(i, 60001 - i) end
    check("json_schema", ('{"$defs":{%s},"properties":{%s}}'):format(table.concat(defs, ","), table.concat(members, ",")))
  end)

  it("with a long chain of objects, of which each needs the next", function()
    local function chain(n)
      local defs = {}
      for i = 1, n do
        defs[i] = ('"d%d":{"type":"object","required":["x"],"properties":{"x":{"$ref":"#/$defs/d%d"}}}'):format(i, i + 1)
      end
      return ('{"$defs":{%s,"d%d":{"type":"string"}},"$ref":"#/$defs/d1"}'):format(table.concat(defs, ","), n + 1)
    end
    assert.is_truthy(core.grammar("json_schema", chain(200), {}))
    local start = os.clock()
    local g, message, code = core.grammar("json_schema", chain(30000), {})
    assert.same({ nil, "#: 30001 schemas need each other in too long a chain", "range" }, { g, message, code })
    assert.is_true(os.clock() - start < 10)
  end)

  it("with many identifiers and references to them", function()
    local defs, members = {}, {}
    for i = 1, 30000 do defs[i] = ('"d%d":{"$id":"http://x/%d"}'):format(i, i) end
    for i = 1, 30000 do members[i] = ('"p%d":{"$ref":"http://x/%d"}'):format(i, 30001 - i) end
    check("json_schema", ('{"$defs":{%s},"properties":{%s}}'):format(table.concat(defs, ","), table.concat(members, ",")))
  end)

  it("with rules in a long chain", function()
    local rules = { { { "=x" }, { 2 } } }
    for i = 2, 32000 do
      rules[i] = {}
      for k = 1, 8 do rules[i][k] = { i + 1 } end
    end
    rules[#rules + 1] = { { "=a" } }
    check("rules", rules)
  end)

  it("with many numbers to choose from", function()
    local numbers = {}
    for i = 1, 30000 do numbers[i] = ("1.%05d1"):format(i) end
    local g = assert(core.grammar("json_schema", ('{"enum":[%s]}'):format(table.concat(numbers, ","))))
    local start = os.clock()
    for _, text in ipairs { "2", "-", "1e" } do assert.is_false(g:matcher():push(text)) end
    assert.is_true(os.clock() - start < 1)
    assert.is_true(g:matcher():push "1.2")
  end)

  it("takes each number that it lists, and no other", function()
    local g = assert(core.grammar("json_schema", '{"enum":[7,-0.5,0,120,-3,1e-7,-44,7.0,3]}'))
    local function takes(text)
      local m = g:matcher()
      return m:push(text) and m:accepts()
    end
    for _, text in ipairs { "7", "7.0", "-0.5", "-5e-1", "0", "-0", "120", "1.2e2", "-3", "1e-7", "0.0000001", "-44", "3" } do
      assert.is_true(takes(text), text)
    end
    for _, text in ipairs { "1", "12", "-7", "0.5", "44", "-4", "-120", "8", "1e-6", "5" } do assert.is_false(takes(text), text) end
  end)
end)
