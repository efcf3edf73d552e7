-- Masks: the tokens that may come are those that a push takes, found one by one.
local core = require "ane.core"

-- Tokens of one to three parts: characters, parts of characters, what ends strings and what comes behind.
local function vocabulary()
  local parts = { "a", "b", "name", "1", "23", "-", ".", "e", " ", '"', ",", ":", "{", "}", "[", "]", "\u{e9}", "\xc3", "\xa9",
    "\xf0\x9f", "\x98\x80", "\n", "\\n", "\\\"", "\\", "u00", "1f", "true", "nul", "l", "x-", "0123456789abcdef0123456789abcdef" }
  local list, seen = {}, {}
  local function add(text)
    if not seen[text] then
      seen[text] = true
      list[#list + 1] = text
    end
  end
  for _, a in ipairs(parts) do
    add(a)
    for _, b in ipairs(parts) do
      add(a .. b)
      add(a .. b .. '"')
      add('"' .. a .. b)
      add(a .. '"' .. b)
      add(a .. '":' .. b)
      add(a .. '","' .. b)
    end
  end
  list[#list + 1] = "a" -- two tokens of one spelling
  list[#list + 1] = "" -- one of none
  return list
end

local SCHEMAS = {
  "true",
  '{"type": "object", "properties": {"a": {"type": "string"}, "name": {"type": "integer"}, "ab": {"maxLength": 3}}, '
    .. '"required": ["name"]}',
  '{"type": "object", "properties": {"a": {"enum": ["a", "ab", 1]}, "name": {"$ref": "#"}}, "additionalProperties": false}',
  '{"type": "object", "patternProperties": {"^x-": {"type": "null"}, "a$": {"type": "string"}}, "additionalProperties": false}',
  '{"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"pattern": "^[ab]+$", "maxLength": 4}}',
  '{"type": "array", "uniqueItems": true, "items": {"type": ["string", "object", "integer"]}}',
  '{"type": "array", "items": {"anyOf": [{"type": "string", "pattern": "^a[^b]*$"}, {"type": "object", "required": ["a"]}]}}',
  '{"anyOf": [{"properties": {"a": {"const": "a"}, "b": {"type": "integer"}}, "required": ["a", "b"]}, '
    .. '{"properties": {"a": {"const": "b"}, "b": {"type": "string"}}, "required": ["a", "b"]}], "type": "object"}',
  '{"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "pattern": "a"}]}',
  '{"type": "string", "maxLength": 40, "pattern": "^[^1]*$"}',
  '{"type": "string", "minLength": 3, "maxLength": 33}',
  '{"not": {"type": "object", "required": ["a"]}, "maxProperties": 1}',
  -- Bytes that lead back to the same state, and bytes that end the text: subtrees are walked at once.
  '{"type": "string", "pattern": "^[a-z]+$"}',
  '{"type": "string", "pattern": "^-?[a-z0-9]*(\\\\.[a-z]+)?$"}',
  '{"type": "string", "pattern": "^[^\u{e9}]*$"}',
  '{"type": "string", "pattern": "^a?[b-z\u{c0}-\u{ff}]*$"}',
  '{"type": "string", "pattern": "^[\u{80}-\u{ffff}]*$", "minLength": 2}',
  '{"type": "string", "pattern": "^[a-e ]*$", "maxLength": 34}',
  '{"type": "string", "pattern": "^[0-9a-f]*$", "maxLength": 50}',
  '{"anyOf": [{"type": "string", "pattern": "^[a-z]*$"}, {"type": "string", "pattern": "^[0-9.]*$", "maxLength": 9}]}',
  -- Several parts with bounds of the length, near and far.
  '{"anyOf": [{"type": "string", "pattern": "^[a-e]*$", "minLength": 1}, {"type": "string", "pattern": "^[0-9.]*$", "minLength": 1}]}',
  '{"anyOf": [{"type": "string", "pattern": "^[a-e]*$", "minLength": 4}, {"type": "string", "pattern": "^[0-9a]*$", "minLength": 2}]}',
  '{"anyOf": [{"type": "string", "pattern": "^[a-z0-9]*$", "maxLength": 60}, {"type": "string", "pattern": "^a", "maxLength": 36}]}',
  '{"anyOf": [{"type": "string", "pattern": "^[a-z0-9]*$", "maxLength": 3}, {"type": "string", "maxLength": 40, "minLength": 1}]}',
  '{"oneOf": [{"type": "string", "pattern": "^[a-f0-9]{40}$"}, {"type": "string", "maxLength": 39}, {"type": "string", "minLength": 45}]}',
  '{"type": "object", "properties": {"a": {"type": "string", "minLength": 1}, "name": {"enum": ["a", "b"]}}, "oneOf": [{"properties": '
    .. '{"a": {"pattern": "^[0-7a]{3,4}$"}, "name": {"const": "a"}}}, {"properties": {"a": {"type": "string", "maxLength": 50}}}]}',
  '{"allOf": [{"type": "string", "pattern": "b"}, {"not": {"enum": ["ab", "name"]}}]}',
  '{"type": "object", "patternProperties": {"^[a-z]+$": {"type": "null"}}, "additionalProperties": false}',
  '{"type": "object", "propertyNames": {"pattern": "^[^x]*$"}, "properties": {"name": true}}',
}

-- Small steps along texts that the grammar takes: one allowed token after the other, by a fixed sequence of numbers.
-- canonical: pushes take what masks offer alone. start: the text that stands there already.
local function check(grammar, tree, list, seed, canonical, start)
  local matcher = assert(grammar:matcher())
  if start then assert(matcher:push(start)) end
  for _ = 1, 5 do
    local allowed = assert(matcher:allowed(tree))
    local set = {}
    for _, id in ipairs(allowed) do set[id] = true end
    local before, wrong = matcher:pushes(), {}
    for id, token in ipairs(list) do
      local taken = token ~= "" and matcher:push(token, canonical)
      if taken then matcher:rewind(before) end
      local spelled = token:find "\\u" or token:find "\\$" or token:find "^u00" -- an escape that is not needed is taken, but not offered
      if not spelled and (taken or false) ~= (set[id - 1] or false) then wrong[#wrong + 1] = ("%q"):format(token) end
    end
    assert.same({}, wrong)
    if #allowed == 0 then return end
    seed = (seed * 1103515245 + 12345) % 0x7fffffff
    assert.is_true(matcher:push(list[allowed[seed % #allowed + 1] + 1]))
  end
end

describe("masks", function()
  local list = vocabulary()
  local tree = assert(core.token_tree(list))

  for _, text in ipairs(SCHEMAS) do
    it("hold the tokens that a push takes: " .. text:sub(1, 90), function()
      local grammar = assert(core.grammar("json_schema", text))
      for seed = 1, 2 do check(grammar, tree, list, seed * 7919) end
    end)
  end

  it("hold where the same beginning of a text has other goals left", function()
    local object = '{"patternProperties": {"^%s[a-z]*$": {"type": "null"}}, "additionalProperties": false}'
    local either = object:format "a" .. ", " .. object:format "b"
    local names = assert(core.grammar("json_schema", '{"type": "object", "anyOf": [' .. either .. "]}"))
    for _, start in ipairs { '{"', '{"a":null,"', '{"b":null,"', '{"a":null,"', '{"' } do check(names, tree, list, 5, false, start) end
    local member = '{"properties": {"l": {"type": "integer", "const": %d}, "a": {"type": "string", "pattern": "%s"}}, "required": ["l"]}'
    local values = assert(core.grammar("json_schema", '{"anyOf": [' .. member:format(1, "^a[a-z]*$") .. ", "
      .. member:format(2, "^b[a-z]*$") .. '], "type": "object", "required": ["l", "a"]}'))
    for _, start in ipairs { '{"a":"', '{"l":1,"a":"', '{"l":2,"a":"', '{"l":1,"a":"', '{"a":"' } do
      check(values, tree, list, 9, false, start)
    end
  end)

  it("hold where an escape stands in a name that the schema lists", function()
    local properties = [["a\n": {"type": "integer"}, "b\"": {"type": "null"}]]
    local grammar = assert(core.grammar("json_schema", '{"type": "object", "properties": {' .. properties .. "}}"))
    for _, start in ipairs { '{"', '{"a', '{"b', '{"a\\n":1,"a' } do check(grammar, tree, list, 3, true, start) end
    local form = '{"type": "object", "properties": {%s}, "additionalProperties": false, "patternProperties": {%s}}'
    for _, others in ipairs { '"": {"type": "null"}', '"^a": {"type": "null"}', '"^[bx]": true' } do
      grammar = assert(core.grammar("json_schema", form:format(properties, others)))
      for _, start in ipairs { '{"', '{"a', '{"b' } do check(grammar, tree, list, 3, true, start) end
    end
  end)

  it("hold where a listed name begins that no pattern allows", function()
    local grammar = assert(core.grammar("json_schema", '{"type": "object", "properties": {"name": {"type": "integer"}, "ab": true, '
      .. '"\u{e9}": true}, "patternProperties": {"^x-": {"type": "null"}, "^b$": true}, "additionalProperties": false}'))
    for _, start in ipairs { '{"', '{"na', '{"a', '{"name":1,"' } do check(grammar, tree, list, 3, true, start) end
  end)

  it("hold where the beginning of a name is another name of the object", function()
    local grammar = assert(core.grammar("json_schema", '{"type": "object", "additionalProperties": {"type": "null"}}'))
    for _, start in ipairs { '{"":null,"', '{"a":null,"a', '{"a":null,"ab":null,"' } do check(grammar, tree, list, 3, false, start) end
  end)

  it("hold where a name ends an element that must differ from others", function()
    local grammar = assert(core.grammar("json_schema", '{"type": "array", "uniqueItems": true, "items": {"type": "object"}}'))
    local small = { 'a":1}', 'b":1}', 'a":1},', 'a":2}', '":1}', 'a"', "a" }
    local few = assert(core.token_tree(small))
    for _, start in ipairs { '[{"a":1},{"', '[{"":1},{"', '[{"ba":1},{"b' } do check(grammar, few, small, 3, false, start) end
  end)

  it("hold for patterns and choices", function()
    for seed = 1, 4 do
      check(assert(core.grammar("regex", "(a|name|\u{e9}){3,9}(?!1)[\\d.]+")), tree, list, seed)
      check(assert(core.grammar("choice", { "aab", "name1", "name23" })), tree, list, seed)
    end
  end)

  it("hold inside parts and where one follows another", function()
    for i, text in ipairs(SCHEMAS) do
      local grammar = assert(core.grammar("parts", {
        { 1, 2, "literal", 'a"' }, { 1, 3, "literal", "name" }, { 2, 4, "json", text }, { 3, 4, "pattern", "[ab]+(1|\u{e9})?" },
        { 4, 5, "literal", ' "' }, { 4, 1, "literal", "\n" }, ends = { 4, 5 },
      }))
      check(grammar, tree, list, 31 * i, true)
    end
  end)

  it("set the logits of all other tokens to minus infinity, and keep end tokens where the text may end", function()
    local matcher = assert(assert(core.grammar("regex", "ab?")):matcher())
    local small = assert(core.token_tree { "a", "b", "ab", "c", "" })
    local function left(ends)
      local logits = core.tensor({ 6 }, { 1, 2, 3, 4, 5, 6 })
      local n = assert(matcher:mask(small, logits, ends))
      return n, logits:totable()
    end
    local no = -math.huge
    assert.same({ 2, { 1, no, 3, no, no, no } }, { left { [4] = true } })
    matcher:push "a"
    assert.same({ 1, { no, 2, no, no, 5, no } }, { left { [4] = true } })
    matcher:push "b"
    assert.same({ 0, { no, no, no, no, 5, no } }, { left { [4] = true } })
  end)
end)
