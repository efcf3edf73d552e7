-- JSON Schemas as Lua tables: what an empty table stands for.
local grammar = require "ane.grammar"

describe("an empty table in a schema", function()
  it("is an object where JSON Schema expects one", function()
    for _, schema in ipairs {
      {}, { type = "object", properties = {} }, { additionalProperties = {} }, { items = {} }, { items = { {}, {} } },
      { anyOf = { {}, {} } },
      { dependentRequired = {} }, { patternProperties = {} }, { ["$defs"] = {} }, { ["if"] = {}, ["then"] = {} }, { contains = {} },
      { propertyNames = {} }, { properties = { required = {}, a = { items = {} } } },
    } do
      local g, message = grammar.json_schema(schema)
      assert.is_not_nil(g, message)
      assert.is_true(g:matches "[1]" or g:matches "{}")
    end
    assert.same({ nil, "#: no value fulfils the schema", "invalid" }, { grammar.json_schema { ["not"] = {} } })
  end)

  it("is a list elsewhere", function()
    local g = assert(grammar.json_schema { type = "object", required = {}, properties = { a = { const = {} } } })
    assert.is_true(g:matches '{"a": []}')
    assert.is_false(g:matches '{"a": {}}')
    assert.is_not_nil(grammar.json_schema { items = { required = {} }, dependentRequired = { a = {} } })
  end)

  it("leaves tables that hold themselves to the encoder, which refuses them", function()
    local schema = { type = "object" }
    schema.properties = { a = schema, b = schema }
    assert.has_error(function() grammar.json_schema(schema) end, nil)
  end)
end)
