-- JSON Schemas: keyword by keyword, texts that are valid and texts that are not, by the text of the specification (2020-12).
local core = require "ane.core"

local function accepts(grammar, text)
  local matcher = assert(grammar:matcher())
  local taken, message = matcher:push(text)
  assert(taken ~= nil, message)
  return taken and matcher:accepts()
end

-- schema, valid texts, invalid texts
local ROWS = {
  { "true", { "1", "-0.5e+10", '"\\ud83d\\ude00"', "[]", '{"a": [1, {"b": null}], "c": true}', '{"":1,"\\u0000":2}' },
    { "", "01", "1.", "+1", "[1,]", '{"a":1,}', '{"a":1,"a":2}', '"\\ud83d"', '"\n"', '"\xff"', "nul", "1 ", " 1", "[1 ,2]", "[1,  2]" } },
  { '{"type": ["null", "boolean"]}', { "null", "true", "false" }, { "0", '""', "[]", "{}" } },
  { '{"type": "integer"}', { "0", "-7", "1.0", "1e2", "12345678901234567890" }, { "1.5", "1e-1", '"1"' } },
  { '{"enum": [1, "a", null, [1, "b"], {"x": 2}]}', { "1", "1.0", '"a"', '"\\u0061"', "null", '[1, "b"]', '{"x": 2}' },
    { "2", '"b"', "[1]", '{"x": 3}', "{}", "[]", '{"x": 2, "y": 1}' } },
  { '{"const": {"a": [0, -1.5]}}', { '{"a": [0, -1.5]}', '{"a":[0.0,-1.50]}' }, { '{"a": [0]}' } },
  { '{"minimum": 3, "exclusiveMaximum": 20.5}', { "3", "20.49", "3.0", '"x"', "5" }, { "2.99", "20.5", "21", "-4", "1e2" } },
  -- Draft 4, section 3.5: an integer is a number without a fraction or an exponent. 1.0 is one from draft 6 on.
  { '{"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1.0}', { "1", "20" }, { "1.0", "1e2", "0" } },
  { '{"$schema": "http://json-schema.org/draft-04/schema#", "not": {"type": "integer"}}', { "1.5", "1.0", '"a"' }, { "1", "-7" } },
  { '{"$schema": "http://json-schema.org/draft-04/schema#", "type": ["integer", "null"], "enum": [1.0, null]}', { "1" }, { "1.0", "2" } },
  { '{"$schema": "http://json-schema.org/draft-04/schema#", "oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]}',
    { "1", "5.0", "7.5" }, { "5", "1.5", "1.0" } },
  { '{"$schema": "http://json-schema.org/draft-06/schema#", "type": "integer"}', { "1.0" }, { "1.5" } },
  { '{"minimum": -12, "maximum": -3, "type": "integer"}', { "-3", "-12", "-7" }, { "-2", "-13", "3", "0" } },
  { '{"multipleOf": 0.01, "minimum": 0, "maximum": 1}', { "0.25", "1", "0.1", "0" }, { "0.255", "1.01" } },
  { '{"minimum": 0, "exclusiveMaximum": 1}', { "5e-05", "1.5e-7", "0.9" }, { "5", "5e0", "1" } },
  { '{"multipleOf": 7, "minimum": 50, "maximum": 60, "type": "integer"}', { "56" }, { "50", "57", "49", "63" } },
  { '{"minLength": 2, "maxLength": 3}', { '"ab"', '"\\n\\u00e9x"', '"\u{1f600}\u{1f600}"', "1" }, { '"a"', '"abcd"', '"\u{1f600}"' } },
  { '{"pattern": "^a.*z$", "maxLength": 4}', { '"az"', '"abcz"' }, { '"a"', '"abbbz"', '"ab"' } },
  { '{"pattern": "b"}', { '"abc"', '"b"' }, { '"ac"' } },
  { '{"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2}', { "[1]", "[1, 2]" }, { "[]", "[1,2,3]", '["a"]' } },
  { '{"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}', { "[]", '["a"]', '["a",1]' }, { "[1]", '["a",1,2]' } },
  { '{"items": [{"const": 1}], "additionalItems": {"const": 2}}', { "[1, 2, 2]", "[]" }, { "[2]", "[1,1]" } },
  { '{"contains": {"minimum": 5}, "minContains": 2, "maxContains": 3}', { "[5, 1, 6]", "[5,5,5]" }, { "[5]", "[5,5,5,5]", "[]" } },
  { '{"uniqueItems": true, "contains": true, "maxContains": 2, "required": ["a"]}', { '{"a": 1, "b": 1}', "[1, 2]" },
    { "[1, 1]", "[]", "{}" } },
  { '{"uniqueItems": true}', { '[1, "1", [1], {"a": 1, "b": 2}]' },
    { "[1, 1.0]", '["a", "\\u0061"]', '[{"a":1,"b":2},{"b":2,"a":1}]', "[[],[]]" } },
  { '{"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "string"}}, "required": ["a"],'
    .. ' "additionalProperties": false}',
    { '{"a": 1}', '{"ab": "x", "a": 1}' }, { "{}", '{"a": "x"}', '{"a": 1, "b": 2}', '{"ab": "x"}', '{"a":1,"a":2}' } },
  { '{"patternProperties": {"^x-": {"type": "string"}, "n$": {"maxLength": 3}}, "additionalProperties": {"type": "null"}}',
    { '{"x-a": "long text", "y": null, "x-n": "abc"}' }, { '{"x-a": 1}', '{"y": 1}', '{"x-n": "abcd"}' } },
  { '{"propertyNames": {"pattern": "^[a-z]{1,3}$"}}', { '{"abc": 1}' }, { '{"abcd": 1}', '{"": 1}' } },
  { '{"minProperties": 1, "maxProperties": 2}', { '{"a":1}', '{"a":1,"b":1}' }, { "{}", '{"a":1,"b":1,"c":1}' } },
  { '{"dependentRequired": {"a": ["b"]}}', { '{"a":1,"b":1}', '{"b":1}', "{}", "[]" }, { '{"a":1}' } },
  { '{"dependentSchemas": {"a": {"required": ["b"], "properties": {"b": {"const": 1}}}}}', { '{"a":1,"b":1}', '{"b":2}' },
    { '{"a":1,"b":2}' } },
  { '{"allOf": [{"properties": {"a": {"minimum": 2}}}, {"required": ["a"]}]}', { '{"a": 2}', '{"a": "x"}', "3" }, { "{}", '{"a": 1}' } },
  { '{"anyOf": [{"type": "string", "maxLength": 1}, {"type": "integer", "minimum": 10}]}', { '"a"', "12" }, { '"ab"', "9" } },
  { '{"oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]}', { "3", "10" }, { "15", "7", '"x"' } },
  { '{"oneOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}', { '"a"', '"xb"' }, { '"ab"', '"c"' } },
  { '{"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}', { '{"a": 1}', '{"b": 1, "c": 2}' }, { "{}", '{"a": 1, "b": 2}' } },
  { '{"not": {"type": "string", "pattern": "^x"}}', { '"a"', "1", "{}" }, { '"xa"' } },
  { '{"not": {"required": ["a"]}, "type": "object"}', { '{"b": 1}' }, { '{"a": 1}' } },
  { '{"not": {"enum": ["a", 1]}}', { '"b"', "2", '"ab"' }, { '"a"', "1", "1.0" } },
  { '{"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["a"]}, "else": {"required": ["b"]}}',
    { '{"k": 1, "a": 0}', '{"k": 2, "b": 0}', '{"b": 0}' }, { '{"k": 1, "b": 0}', '{"k": 2, "a": 0}' } },
  { '{"$defs": {"t": {"properties": {"l": {"$ref": "#/$defs/t"}}, "additionalProperties": false}}, "$ref": "#/$defs/t"}',
    { '{"l": {"l": {}}}' }, { '{"l": {"r": 1}}' } },
  { '{"$defs": {"n": {"$anchor": "here", "type": "null"}}, "items": {"$ref": "#here"}}', { "[null]" }, { "[1]" } },
  { '{"allOf": [{"properties": {"a": true}}], "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, true],'
    .. ' "unevaluatedProperties": false}',
    { '{"a": 1}', '{"a": 1, "b": 1}' }, { '{"c": 1}', '{"b": 2}' } },
  { '{"prefixItems": [true], "contains": {"type": "string"}, "unevaluatedItems": false}', { '[1, "a"]', '["a"]' }, { '["a", 1]', "[1]" } },
  { '{"type": "number", "exclusiveMinimum": 0}', { "1e-300", "1.6e308", "5e+9" }, { "8e-3767", "1e-400", "1e309", "9e308" } },
  { '{"type": "number"}', { "-1e300", "0e9", "12e4" }, { "-8e9888", "1e-999", "123456e304" } },
  -- The part before an exponent must begin a number that fits without one, or have one digit other than 0 before the point.
  { '{"minimum": 1}', { "10e-1", "123e-2", "1.50e1", "1e300", "1000e-3" }, { "0.1e1", "0.00123e3", "10e-2", "-5e1" } },
  { '{"maximum": 1}', { "0.1e1", "0.01e-9", "5e-1", "-12e3" }, { "10e-1", "12.5e-2", "0.2e1" } },
  { '{"minimum": 0, "maximum": 1}', { "0.1e1", "5e-1", "0e9", "1.5e-3" }, { "10e-1", "15e-3" } },
  { '{"multipleOf": 0.5}', { "1.50e1", "15e-1", "2.5e0", "1e300", "0.5e1" }, { "123e-2", "0.7e0" } },
  { '{"type": "integer"}', { "1e2", "10e-1", "1.0e3" }, { "1.5e1", "1.50e1", "15e-1" } },
  { '{"enum": [100, 1.5]}', { "1e2", "1.5e0", "1.0e2", "10e1", "100e0" }, { "15e-1", "0.15e1", "1000e-1", "1e3" } },
  -- $dynamicRef and $recursiveRef: the root resource is the outermost of every dynamic scope.
  { '{"$id": "http://a/root", "$ref": "list", "$defs": {"s": {"$dynamicAnchor": "item", "type": "string"},'
    .. ' "list": {"$id": "list", "items": {"$dynamicRef": "#item"}, "$defs": {"n": {"$dynamicAnchor": "item", "type": "null"}}}}}',
    { '["a"]', "[]" }, { "[null]", "[1]" } },
  { '{"$ref": "list", "$defs": {"list": {"$id": "list", "items": {"$dynamicRef": "#item"}, "$defs": {'
    .. '"n": {"$dynamicAnchor": "item", "type": "null"}, "m": {"$dynamicAnchor": "other"}}}}}', { "[null]" }, { '["a"]' } },
  { '{"$ref": "list", "$defs": {"s": {"$dynamicAnchor": "item", "type": "string"}, "list": {"$id": "list",'
    .. ' "items": {"$dynamicRef": "#item"}, "$defs": {"n": {"$anchor": "item", "type": "null"}}}}}', { "[null]" }, { '["a"]' } },
  { '{"$ref": "list", "$defs": {"s": {"$dynamicAnchor": "item", "type": "string"}, "list": {"$id": "list",'
    .. ' "items": {"$dynamicRef": "#%69tem"}, "$defs": {"n": {"$dynamicAnchor": "item", "type": "null"}}}}}', { '["a"]' }, { "[null]" } },
  { '{"$ref": "list", "$defs": {"s": {"$dynamicAnchor": "item", "type": "string"}, "list": {"$id": "list",'
    .. ' "items": {"$dynamicRef": "#/$defs/n"}, "$defs": {"n": {"$dynamicAnchor": "item", "type": "null"}}}}}', { "[null]" }, { '["a"]' } },
  { '{"$recursiveAnchor": true, "required": ["a"], "properties": {"a": {"$ref": "tree"}}, "$defs": {"tree": {"$id": "tree",'
    .. ' "$recursiveAnchor": true, "properties": {"b": {"$recursiveRef": "#"}}}}}', { '{"a":{"b":{"a":1}}}' }, { '{"a":{"b":{}}}' } },
  { '{"$ref": "tree", "$recursiveAnchor": false, "required": ["a"], "$defs": {"tree": {"$id": "tree",'
    .. ' "properties": {"b": {"$recursiveRef": "#"}}}}}', { '{"a":1,"b":{}}' }, { '{"b":{}}' } },
  { '{"format": "date"}', { '"2024-02-29"', '"1999-12-31"' }, { '"2023-02-29"', '"2024-13-01"', '"24-01-01"' } },
  { '{"format": "regex"}',
    { '""', '"a|"', [["^(?:a|[-a-z])+\\s{1,3}?$"]], [["(a(b(c)|[^/]))\\.\\d{2,}"]], [["(?!foo)[\\u0000-\\u001f]"]] },
    { [["^(abc]"]], [["a**"]], [["\\Z"]], [["[z-a]"]], [["a{3,2}"]], [["(?<n"]], '"[]"', '"a{"', '")"', [["\\01"]] } },
  { '{"format": "uint8"}', { "0", "255", '"x"' }, { "-1", "256" } },
  { '{"format": "int16"}', { "-32768", "32767" }, { "-32769", "32768" } },
  { '{"format": "int64"}', { "-9223372036854775808", "9223372036854775807" }, { "9223372036854775808" } },
  { '{"format": "utc-millisec"}', { "1e12", "-5.5" }, {} },
  { '{"format": "host-name"}', { '"a.example"', "1" }, { '"-a"', '"a..b"' } },
  { '{"format": "ipv6"}', { '"::1"', '"1::d6:192.168.0.1"' }, { '"1::2::3"', '"12345::"' } },
}

describe("JSON Schema", function()
  for _, row in ipairs(ROWS) do
    it("takes what is valid and nothing else: " .. row[1]:sub(1, 90), function()
      local grammar = assert(core.grammar("json_schema", row[1]))
      for _, text in ipairs(row[2]) do assert.is_true(accepts(grammar, text), text) end
      for _, text in ipairs(row[3]) do assert.is_false(accepts(grammar, text), text) end
    end)
  end

  it("refuses by keyword and path what it cannot enforce", function()
    for text, why in pairs {
      ['{"properties": {"a": {"pattern": "(a"}}}'] = "pattern at #/properties/a: ( is not closed at character 3",
      ['{"items": {"format": "colour"}}'] = "format at #/items: 'colour' is not known",
      ['{"$ref": "http://example.com/x"}'] = "$ref at #: 'http://example.com/x' is not in the document",
      ['{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'] = "refers to itself",
      ['{"type": "any"}'] = "type at #: must be", ['{"minLength": -1}'] = "minLength at #: must be a whole number",
      ['{"required": true}'] = "required at #: must be a list", ['{"multipleOf": 0}'] = "multipleOf at #: must be above 0",
      ['{"anyOf": []}'] = "anyOf at #: must not be empty", ["[1]"] = "a schema must be an object", ["{"] = "line 1",
      ["false"] = "no value fulfils the schema", ['{"minimum": 3, "maximum": 2, "type": "number"}'] = "no value fulfils the schema",
      ['{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'] = "no value fulfils the schema",
      ['{"anyOf": [{"$ref": "a"}, {"$ref": "b"}], "$defs": {"a": {"$id": "a", "$ref": "b", "$defs": {"x": {"$dynamicAnchor": "n"}}},'
        .. ' "b": {"$id": "b", "items": {"$dynamicRef": "#n"}, "$defs": {"x": {"$dynamicAnchor": "n", "type": "null"}}}}}'] =
        "$dynamicRef at #/$defs/b/items: several schemas have the dynamic anchor '#n', and none of them is in the root resource",
    } do
      local grammar, message = core.grammar("json_schema", text)
      assert.is_nil(grammar, text)
      assert.is_truthy(message:find(why, 1, true), message)
    end
    assert(core.grammar("json_schema", '{"format": "colour"}', { lenient = true }))
  end)

  it("tells different elements apart, and none that are equal", function()
    local list = { "null", "true", "false", "[]", "{}", '{"":1}', '{"\\u0000":1}' }
    for _, text in ipairs { "", "\\u0000", "\\u0000\\u0000", "a", "\\u0000a" } do list[#list + 1] = '"' .. text .. '"' end
    for i = -300, 300 do list[#list + 1] = tostring(i) end
    local scales = { "0.%d", "-0.%d", "0.0%d", "-7.%d", "7.%d", "%de20", "-%de20", "%de-20", "-%de-20", "[%d]", "[-%d]", '{"a":%d}' }
    for _, scale in ipairs(scales) do
      for i = 1, 9 do list[#list + 1] = scale:format(i) end
    end
    local text = "[" .. table.concat(list, ",")
    local unique = assert(core.grammar("json_schema", '{"uniqueItems": true}'))
    local repeated = assert(core.grammar("json_schema", '{"not": {"uniqueItems": true}}'))
    assert.is_true(accepts(unique, text .. "]"))
    assert.is_false(accepts(repeated, text .. "]"))
    for _, more in ipairs { "-3.0", "20e-1", "-0", "0.30", "[1.0]" } do
      assert.is_false(accepts(unique, text .. "," .. more .. "]"), more)
      assert.is_true(accepts(repeated, text .. "," .. more .. "]"), more)
    end
  end)

  it("compares many elements and names in a time that grows with their number", function()
    local n, elements, members = 40000, {}, {}
    for i = 1, n do
      elements[i] = tostring(i * 7919 % 100003)
      members[i] = ('"%s":1'):format(elements[i])
    end
    local started = core.clock()
    for schema, form in pairs { ['{"uniqueItems": true}'] = { "[%s]", elements }, ["true"] = { "{%s}", members } } do
      local grammar, list = assert(core.grammar("json_schema", schema)), form[2]
      for _, last in ipairs { 0, 1, 4096, 39999 } do -- the last one is new, or equal to this one
        local old = list[n]
        if last > 0 then list[n] = list[last] end
        assert.equal(last == 0, accepts(grammar, form[1]:format(table.concat(list, ","))))
        list[n] = old
      end
    end
    assert.is_true(core.clock() - started < 20) -- took minutes
  end)

  it("finds the names that may come in a time that grows with their number", function()
    local n, properties, names = 50000, {}, {}
    for i = 1, n do
      names[i] = ('"%d"'):format(i)
      properties[i] = names[i] .. ": true"
    end
    local grammar = assert(core.grammar("json_schema", ('{"type": "object", "properties": {%s}, "required": [%s], "maxProperties": %d}')
      :format(table.concat(properties, ","), table.concat(names, ","), n)))
    local started = core.clock()
    assert.is_true(assert(grammar:matcher()):push '{"7":1,"8":2,"9":3,"1')
    for _, text in ipairs { '{"7":1,"7"', '{"x' } do assert.is_false(assert(grammar:matcher()):push(text)) end
    assert.is_true(core.clock() - started < 5)
  end)

  it("refuses schemas that combine to too many conditions, at once", function()
    for _, form in ipairs {
      '{"oneOf": [{"$ref": "#/$defs/%d"}, {"not": {"$ref": "#/$defs/%d"}}]}',
      '{"if": {"$ref": "#/$defs/%d"}, "then": {"required": ["b"]}, "else": {"allOf": [{"$ref": "#/$defs/%d"}]}}',
    } do
      local function chain(n)
        local defs = { ('"%d": {"required": ["x"]}'):format(n + 1) }
        for i = 1, n do defs[#defs + 1] = ('"%d": %s'):format(i, form:format(i + 1, i + 1)) end
        return '{"$ref": "#/$defs/1", "$defs": {' .. table.concat(defs, ", ") .. "}}"
      end
      assert(core.grammar("json_schema", chain(8)))
      local started = core.clock()
      local grammar, message, code = core.grammar("json_schema", chain(60))
      assert.is_nil(grammar)
      assert.same({ "#: schemas that apply to one value combine to more than 32768 conditions", "range" }, { message, code })
      assert.is_true(core.clock() - started < 5)
    end
    local defs = { '"14": {"title": "the last one"}' }
    for i = 0, 13 do
      defs[#defs + 1] = ('"%d": {"allOf": [%s{}]}'):format(i, ('{"$ref": "#/$defs/%d"}, '):format(i + 1):rep(8))
    end
    for _, keyword in ipairs { "unevaluatedProperties", "unevaluatedItems" } do
      local started = core.clock()
      local unevaluated = ('{"%s": false, "allOf": [{"$ref": "#/$defs/0"}], "$defs": {%s}}'):format(keyword, table.concat(defs, ", "))
      local refusal = keyword .. " at #: too many schemas beside it"
      assert.same({ nil, refusal, "unsupported" }, { core.grammar("json_schema", unevaluated) })
      assert.is_true(core.clock() - started < 5)
    end
    local pairs_of = {}
    for i = 1, 5000 do pairs_of[i] = ("[%d]"):format(i) end
    local few = assert(core.grammar("json_schema", '{"enum": [' .. table.concat(pairs_of, ",", 1, 4000) .. "]}"))
    assert.is_true(accepts(few, "[3999]"))
    assert.is_false(accepts(few, "[4001]"))
    local many = '{"enum": [' .. table.concat(pairs_of, ",") .. "]}"
    local refusal = ": 5000 schemas of arrays apply to one value, the most is 4096"
    assert.same({ nil, "enum at #" .. refusal, "range" }, { core.grammar("json_schema", many) })
    local inner = ('{"properties": {"a": {"items": %s}}}'):format(many)
    assert.same({ nil, "enum at #/properties/a/items" .. refusal, "range" }, { core.grammar("json_schema", inner) })
  end)

  it("takes thousands of objects at one place, or refuses them when it is compiled", function()
    local function objects(n, form, sep)
      local list = {}
      for i = 1, n do list[i] = form:gsub("%%d", tostring(i)) end
      return table.concat(list, sep or ",")
    end
    local whole = '{"id": %d, "name": "n%d", "tags": ["a", %d]}'
    local schema = '{"type": "object", "properties": {"kind": {"const": "k%d"}, "v": {"minimum": %d, "type": "integer"}}, ' ..
      '"required": ["kind", "v"], "additionalProperties": false}'
    for _, keyword in ipairs { "enum", "anyOf", "oneOf" } do
      local function of(n) return ('{"%s": [%s]}'):format(keyword, objects(n, keyword == "enum" and whole or schema)) end
      local grammar = assert(core.grammar("json_schema", of(2500)))
      local started = core.clock()
      if keyword == "enum" then
        assert.is_true(accepts(grammar, '{"id":2000,"name":"n2000","tags":["a",2000]}'))
        assert.is_true(accepts(grammar, '{"tags":["a",7],"name":"n7","id":7}'))
        assert.is_false(accepts(grammar, '{"id":2000,"name":"n2001","tags":["a",2000]}'))
        assert.is_false(accepts(grammar, '{"id":2501}'))
      else
        assert.is_true(accepts(grammar, '{"kind":"k2000","v":2000}'))
        assert.is_false(accepts(grammar, '{"kind":"k2000","v":1999}'))
        assert.is_false(accepts(grammar, '{"v":3,"kind":"k4"}'))
      end
      assert.is_true(core.clock() - started < 20)
      local refusal = keyword .. " at #: 5000 schemas of objects apply to one value, the most is 4096"
      assert.same({ nil, refusal, "range" }, { core.grammar("json_schema", of(5000)) })
    end
    local own = '{"required": ["a%d"], "properties": {"a%d": {"type": "integer"}}}'
    local _, message = core.grammar("json_schema", ('{"anyOf": [%s]}'):format(objects(2000, own)))
    assert.equal("anyOf at #: 2000 schemas of objects with 2000 names apply to one value, too many", message)
    assert(core.grammar("json_schema", ('{"anyOf": [%s]}'):format(objects(900, own))))
    -- Names of a type that no value has do not count.
    assert(core.grammar("json_schema", ('{"type": "string", "anyOf": [{"minLength": 1}, %s]}'):format(objects(5000, own))))
  end)

  it("finds members of large objects, and refuses more patterns for their names than it can test", function()
    local function object(n, n_patterns)
      local members, names, patterns = {}, {}, {}
      for i = 1, n do
        names[i] = ('"%dp"'):format(i * 7919 % 100003)
        members[i] = ('%s: {"const": %d}'):format(names[i], i)
      end
      for i = 1, n_patterns do patterns[i] = ('"^x%d$": {"type": "null"}'):format(i) end
      return ('{"properties": {%s}, "required": [%s], "patternProperties": {%s}, "additionalProperties": false}'):format(
        table.concat(members, ", "), table.concat(names, ", "), table.concat(patterns, ", "))
    end
    for _, n in ipairs { 1, 8, 9, 300 } do
      local grammar = assert(core.grammar("json_schema", object(n, 3)))
      local texts = {}
      for i = 1, n do texts[i] = ('"%dp":%d'):format(i * 7919 % 100003, i) end
      assert.is_true(accepts(grammar, "{" .. table.concat(texts, ",") .. ',"x2":null}'))
      texts[n] = texts[n] .. "0"
      assert.is_false(accepts(grammar, "{" .. table.concat(texts, ",") .. "}"))
    end
    for text, why in pairs {
      [object(3000, 3000)] = "patternProperties at #: too many patterns for 6000 names",
      [object(1, 20000)] = "patternProperties at #: more than 16384 patterns",
    } do
      local started = core.clock()
      local grammar, message, code = core.grammar("json_schema", text)
      assert.same({ nil, why, "range" }, { grammar, message, code })
      assert.is_true(core.clock() - started < 5)
    end
  end)

  it("knows that no escape may come where a name has its greatest length", function()
    local matcher = assert(assert(core.grammar("json_schema", '{"type": "object", "propertyNames": {"maxLength": 2}}')):matcher())
    assert.is_true(matcher:push '{"ab')
    for _ = 1, 200 do -- takes minutes if each character is tried
      for _, text in ipairs { "\\u", "\\ud83d", "\\u0" } do assert.is_false(matcher:push(text)) end
    end
    assert.is_true(matcher:push '":1}')
  end)

  it("offers no way into what cannot be completed", function()
    local tokens = assert(core.token_tree { '"', "a", "b", "1", "2", "9", "-", "0", ".", "{", "}", "[", "]", ",", ":", "e" })
    local function next_ids(text, schema)
      local matcher = assert(assert(core.grammar("json_schema", schema)):matcher())
      assert.is_true(matcher:push(text))
      return matcher:allowed(tokens)
    end
    assert.same({ 3 }, next_ids("", '{"type": "integer", "minimum": 10, "maximum": 12}'))
    assert.same({ 3, 4, 7 }, next_ids("1", '{"type": "integer", "minimum": 10, "maximum": 12}'))
    assert.same({ 2 }, next_ids('["a","', '{"items": {"enum": ["a", "b"]}, "uniqueItems": true, "maxItems": 3,'
      .. ' "not": {"prefixItems": [{"const": "a"}, {"const": "a"}]}}'))
    assert.same({ 12 }, next_ids('["a","b"', '{"items": {"enum": ["a", "b"]}, "uniqueItems": true}'))
    assert.same({ 0 }, next_ids('{', '{"type": "object", "required": ["a"], "maxProperties": 1}'))
    assert.same({ 1 }, next_ids('{"', '{"type": "object", "required": ["a"], "maxProperties": 1}'))
  end)

  it("offers no name that needs another one which cannot come", function()
    local tokens = assert(core.token_tree { '"', "a", "b", "c", "}", "d", "e" })
    local function next_ids(text, schema)
      local matcher = assert(assert(core.grammar("json_schema", schema)):matcher())
      assert.is_true(matcher:push(text))
      return matcher:allowed(tokens)
    end
    local closed = '{"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false, %s}'
    assert.same({ 2, 3 }, next_ids('{"', closed:format '"dependentRequired": {"a": ["d"]}'))
    assert.same({ 2, 3 }, next_ids('{"', closed:format '"dependentSchemas": {"a": {"required": ["d"]}}'))
    assert.same({ 2, 3 }, next_ids('{"', closed:format '"if": {"required": ["a"]}, "then": {"required": ["d"]}'))
    assert.same({ 3 }, next_ids('{"', closed:format '"dependentRequired": {"a": ["b"], "b": ["d"]}'))
    assert.same({ 4 }, next_ids('{', closed:format '"dependentRequired": {"a": ["b"], "b": ["c"], "c": ["d"]}'))
    assert.same({ 1, 2 }, next_ids('{"c":1,"', closed:format '"dependentRequired": {"a": ["c"]}'))
    assert.same({ 2 }, next_ids('{"c":1,"', closed:format '"dependentRequired": {"a": ["d"]}'))
    local forbidden = '{"type": "object", "properties": {"d": false}, "dependentRequired": {"a": ["d"]}}'
    assert.not_same(0, next_ids('{"a', forbidden)[1])
    assert.same(0, next_ids('{"b', forbidden)[1])
  end)

  it("gives back the memory of texts that are refused or taken back", function()
    local list = {}
    for i = 1, 100 do list[i] = ('{"required": ["%d"]}'):format(i) end
    local grammar = assert(core.grammar("json_schema", ('{"anyOf": [%s], "allOf": [{"properties": {"a": {"pattern": "^\\\\p{L}"}}}, '
      .. '{"properties": {"a": {"type": "string", "pattern": "^\\\\P{L}"}}}]}'):format(table.concat(list, ", "))))
    local matcher = assert(grammar:matcher())
    assert.is_true(matcher:push '{"b":1')
    local function use()
      assert.is_false(matcher:push ',"a":"\\') -- no character fits: each is tried
      assert.is_true(matcher:push ',"c":{"d":[1,2,3]}')
      matcher:rewind(1)
    end
    use()
    local before = core.testing.alloc_count()
    for _ = 1, 20 do use() end
    assert.equal(before, core.testing.alloc_count())
  end)

  it("bounds the memory for names of objects in many places", function()
    local names, items = {}, {}
    for i = 1, 20000 do names[i] = ('"n%d": {"type": "integer"}'):format(i) end
    for i = 1, 1500 do items[i] = ('{"allOf": [{"$ref": "#/$defs/big"}, {"maxProperties": %d}]}'):format(i) end
    local grammar = assert(core.grammar("json_schema", ('{"type": "array", "prefixItems": [%s], "$defs": {"big": {"properties": {%s}, '
      .. '"type": "object"}}}'):format(table.concat(items, ","), table.concat(names, ","))))
    local item = '{"n1":1}'
    assert.is_true(accepts(grammar, "[" .. (item .. ","):rep(49) .. item .. "]"))
    local refusal = { nil, "the grammar needs more states than its limits allow", "range" }
    assert.same(refusal, { assert(grammar:matcher()):push("[" .. (item .. ","):rep(1499) .. item .. "]") })
  end)

  it("counts blanks", function()
    local grammar = assert(core.grammar("json_schema", "true", { blanks = 2 }))
    assert.is_true(accepts(grammar, ' [ 1 ,\n\t2 ]'))
    assert.is_false(accepts(grammar, '[1,   2]'))
    assert.is_false(accepts(assert(core.grammar("json_schema", "true", { blanks = 0 })), '[1, 2]'))
    local many = assert(core.grammar("json_schema", "true", { blanks = 300 }))
    assert.is_true(accepts(many, "[" .. (" "):rep(300) .. "1]"))
    assert.is_false(accepts(many, "[" .. (" "):rep(301) .. "1]"))
  end)

  it("bounds depth", function()
    local grammar = assert(core.grammar("json_schema", "true"))
    assert.is_true(accepts(grammar, ("["):rep(256) .. ("]"):rep(256)))
    assert.is_false(accepts(grammar, ("["):rep(257) .. ("]"):rep(257)))
    assert.is_nil((core.grammar("json_schema", ('{"items":'):rep(60000) .. "true" .. ("}"):rep(60000))))
    assert.is_nil((core.grammar("json_schema", ('{"not":'):rep(300) .. "true" .. ("}"):rep(300))))
  end)

  it("takes no pattern with two repetitions in a row", function()
    for _, pattern in ipairs { "a**", "a{2}{3}", "a??*", "a+{2}" } do
      local _, message, code = core.grammar("json_schema", '{"pattern": "' .. pattern .. '"}')
      assert.same("invalid", code)
      assert.matches("^pattern at #: two repetitions follow each other at character %d$", message)
      local regex = assert(core.grammar("json_schema", '{"type": "string", "format": "regex"}'))
      assert.is_false(assert(regex:matcher()):push('"' .. pattern .. '"') or false)
    end
    assert(core.grammar("json_schema", '{"pattern": "a*?b{2}?(c*)*"}'))
  end)

  it("refuses a beginning that no valid text has", function()
    -- schema, beginnings that some valid text has, beginnings that none has
    local three = '{"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": true}'
    local rows = {
      { three, { "[3,1,2", "[1,2", "[1.0,3e0" }, { "[3,1,2,", "[1,1", "[2,1,2", "[1,1.", "[3.0,3" } },
      { '{"items": {"type": "integer", "minimum": -2, "exclusiveMaximum": 1}, "uniqueItems": true, "type": "array"}',
        { "[-2,-1,0", "[0,-" }, { "[-2,-1,0,", "[-2,-1,-1", "[0,0", "[0,-0" } },
      { '{"items": {"type": ["boolean", "null"]}, "uniqueItems": true, "type": "array"}', { "[true,n", "[null,true,f" },
        { "[true,t", "[null,n", "[true,false,null," } },
      { '{"items": {"type": "string", "maxLength": 0}, "uniqueItems": true, "type": "array"}', { '[""' }, { '["",' } },
      { '{"items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxContains": 1, "type": "array"}', { "[1,2", "[2,1" }, { "[1,1" } },
      { '{"propertyNames": {"enum": ["a", "b"]}, "type": "object"}', { '{"b":1,"a' }, { '{"a":1,"a', '{"b":1,"a":1,', '{"c' } },
      { '{"patternProperties": {"^(a|bc)$": {"type": "boolean"}}, "additionalProperties": false, "type": "object"}',
        { '{"bc":t', '{"a":true,"b' }, { '{"a":true,"bc":true,', '{"a":true,"a', '{"a":1' } },
      { '{"patternProperties": {"^[ab]$": {"type": "null"}, "^b": false}, "additionalProperties": false, "type": "object"}',
        { '{"a":n' }, { '{"b', '{"a":null,' } },
    }
    for _, row in ipairs(rows) do
      local grammar = assert(core.grammar("json_schema", row[1]))
      for i = 2, 3 do
        for _, text in ipairs(row[i]) do
          assert.are.equal(i == 2, (assert(grammar:matcher()):push(text)), row[1] .. ": " .. text)
        end
      end
    end
    for _, text in ipairs { '"propertyNames": {"enum": ["a"]}, "minProperties": 2',
      '"properties": {"a": false, "b": true}, "additionalProperties": false, "minProperties": 2' } do
      local _, message = core.grammar("json_schema", '{"type": "object", ' .. text .. "}")
      assert.are.equal("#: no value fulfils the schema", message)
    end
  end)

  it("survives schemas that are cut short or changed, and every failing allocation", function()
    local text = '{"$defs": {"t": {"type": ["object", "null"], "properties": {"a": {"pattern": "^a+$", "maxLength": 9}},'
      .. ' "required": ["a"]}}, '
      .. '"anyOf": [{"$ref": "#/$defs/t"}, {"enum": [1, "b", {"c": []}]}], "not": {"const": null}, "properties":'
      .. ' {"b": {"uniqueItems": true, "items": {"enum": [1, 2]}}}, "patternProperties": {"^(a|b)$": {}}, "additionalProperties": false}'
    for n = 0, #text - 1 do
      core.grammar("json_schema", text:sub(1, n))
      core.grammar("json_schema", text:sub(1, n) .. text:sub(n + 2))
    end
    local function use()
      local grammar, _, code = core.grammar("json_schema", text)
      if not grammar then return code end
      local matcher
      matcher, _, code = grammar:matcher()
      if not matcher then return code end
      local taken
      taken, _, code = matcher:push '{"a": "aaa", "b": [1]}'
      return taken and matcher:accepts() and "done" or code
    end
    for n = 0, 1000 do
      core.testing.alloc_fail_after(n)
      local code = use()
      local reached = core.testing.alloc_count()
      assert.is_true(code == "done" or code == "memory", ("allocation %d of %d: %s"):format(n, reached, tostring(code)))
    end
  end)
end)
