local schema = require "ane.util.schema"

local RULES = {
  size = { type = "integer", min = 1, max = 10, default = 3 },
  kind = { type = "string", choices = { "a", "b" }, aliases = { old = "b" } },
  scale = { type = "number", min = 0 },
  stop = { type = { "string", "table" }, check = function(v) return v == "" and "must not be empty" or nil end },
  call = { type = "callable" },
  flag = { type = "boolean", default = false },
}

local function check(opts) return schema.check(RULES, opts, "f", 2) end

describe("schema", function()
  it("fills in defaults and copies the table", function()
    local given = { size = 5 }
    local got = check(given)
    assert.same({ size = 5, flag = false }, got)
    assert.not_equal(given, got)
    assert.same({ size = 3, flag = false }, check(nil))
    assert.same({}, schema.check(RULES, {}, "f", 2, true))
  end)

  it("takes whole floats where integers are wanted", function()
    assert.equal("integer", math.type(check({ size = 4.0 }).size))
    assert.error_matches(function() check { size = 4.5 } end, "f: option size must be an integer, but is 4.5")
  end)

  it("names the option, what was wanted and what was found", function()
    local cases = {
      { { size = 0 }, "f: option size must be 1 .. 10, but is 0" },
      { { scale = -1 }, "f: option scale must be 0 or more, but is %-1" },
      { { size = "x" }, 'f: option size must be an integer, but is "x"' },
      { { kind = "c" }, 'f: option kind is "c": choose a, b' },
      { { stop = 1 }, "f: option stop must be a string or a table, but is 1" },
      { { stop = "" }, "f: option stop must not be empty" },
      { { call = 1 }, "f: option call must be a function, but is 1" },
      { { scale = 0 / 0 }, "f: option scale must be a number" },
      { { sise = 1 }, 'f: unknown option "sise"; the options are call, flag, kind, scale, size, stop' },
      { 7, "f: options must be a table, not 7" },
    }
    for _, case in ipairs(cases) do assert.error_matches(function() check(case[1]) end, case[2]) end
  end)

  it("writes whole bounds without a fraction", function()
    local rules = { x = { type = "number", min = 0.0, max = 1e6 }, y = { type = "number", max = 0.5 } }
    assert.error_matches(function() schema.check(rules, { x = -1 }, "f") end, "f: option x must be 0 .. 1000000, but is %-1")
    assert.error_matches(function() schema.check(rules, { y = 1 }, "f") end, "f: option y must be 0.5 or less, but is 1")
  end)

  it("takes an alias for the choice that it stands for, and does not list it", function()
    assert.equal("b", check({ kind = "old" }).kind)
    assert.equal("b", schema.parse(RULES.kind, "old"))
    assert.equal("b", schema.argument(RULES.kind, "old", "g: kind"))
    assert.error_matches(function() check { kind = "older" } end, 'f: option kind is "older": choose a, b$')
  end)

  it("takes callable tables for functions", function()
    assert.truthy(check { call = setmetatable({}, { __call = function() end }) }.call)
  end)

  it("names the caller's line", function()
    local function api(opts)
      local checked = schema.check(RULES, opts, "f", 2)
      return checked
    end
    local line = debug.getinfo(1, "l").currentline + 1
    local _, message = pcall(function() local r = api { size = 0 } return r end)
    assert.matches("schema_spec.lua:" .. line .. ": f: option size", message)
    local _, second = pcall(function() local r = schema.argument({ type = "string" }, 1, "g: path", 1) return r end)
    assert.matches("schema_spec.lua:%d+: g: path must be a string, but is 1", second)
  end)

  it("reads texts as the rule wants them", function()
    local cases = {
      { "size", "5", 5 }, { "size", "5.0", 5 }, { "scale", "0.5", 0.5 }, { "kind", "b", "b" }, { "stop", "1", "1" },
      { "size", "0", nil, "must be 1 .. 10, but is 0" }, { "size", "1.5", nil, "must be an integer, but is 1.5" },
      { "size", "x", nil, 'must be an integer, but is "x"' }, { "kind", "c", nil, 'is "c": choose a, b' },
      { "stop", "", nil, "must not be empty" },
    }
    for _, case in ipairs(cases) do
      assert.same({ case[3], case[4] }, { schema.parse(RULES[case[1]], case[2]) }, case[1] .. " " .. case[2])
    end
    assert.equal("integer", math.type(schema.parse({ type = { "integer", "table" } }, "5")))
    assert.equal(-1, schema.parse({ type = "integer" }, "-1"))
  end)

  it("knows limits that are themselves too low", function()
    local rule = { type = "number", above = 0 }
    assert.equal(1e-9, schema.parse(rule, "1e-9"))
    assert.same({ nil, "must be above 0, but is 0" }, { schema.parse(rule, "0") })
    assert.same({ nil, "must be above 0, but is -1" }, { schema.parse(rule, "-1") })
    rule.max = 2
    assert.same({ nil, "must be above 0 and at most 2, but is 3" }, { schema.parse(rule, "3") })
  end)

  it("merges rules, later ones winning", function()
    assert.same({ a = 1, b = 3, c = 4 }, schema.merge({ a = 1, b = 2 }, { b = 3, c = 4 }))
  end)
end)
