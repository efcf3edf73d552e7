-- `ane grammar`: its contract with scripts, and what it says of schemas that it cannot enforce.
local ane = require "ane"
local core = require "ane.core"
local command = require "support.command"

local function file_of(text)
  local path = os.tmpname()
  local f <close> = assert(io.open(path, "w"))
  f:write(text)
  return path
end

describe("ane grammar", function()
  it("says for each text whether it is accepted", function()
    local schema = file_of '{"type": "object", "properties": {"a": {"minimum": 3}}, "required": ["a"]}'
    local lines = {}
    for _, text in ipairs { '{"a": 3}', '{"a": 2}', "{}", '{"a": "\u{e9}\\n"}' } do lines[#lines + 1] = core.json_encode(text) end
    local instances = file_of(table.concat(lines, "\n") .. "\n")
    local out = command.json { "grammar", "--json-schema", schema, "--instances", instances }
    assert.same({ ok = true, accepted = { true, false, false, true } }, out)
  end)

  it("names the line of --instances that is no JSON string, and skips empty lines", function()
    local schema, instances = file_of '{"type": "string"}', file_of '"1"\n\n"2"\n3\n'
    local code, _, message = command.run({ "grammar", "--json-schema", schema, "--instances", instances }, "")
    assert.same({ 1, ("ane grammar: %s: line 4: must be a JSON string\n"):format(instances) }, { code, message })
  end)

  it("drops the last newline of standard input, which echo and editors add", function()
    local schema = file_of '{"type": "string"}'
    local function accepted(text) return command.json({ "grammar", "--json-schema", schema }, text).accepted end
    assert.same({ true }, accepted '"a"\n')
    assert.same({ true }, accepted '"a"')
    assert.same({ false }, accepted '"a"\n\n')
  end)

  it("needs one grammar", function()
    local code, _, message = command.run({ "grammar" }, "1")
    assert.same({ 2, "ane grammar: give one of --json-schema, --regex, --gbnf, --lark\n" }, { code, message })
    code, _, message = command.run({ "grammar", "--regex", "(" }, "1")
    assert.same({ 2, "ane grammar: --regex: ( is not closed at character 2\n" }, { code, message })
  end)

  it("ends with file, keyword and path where a schema cannot be enforced", function()
    local schema = file_of '{"items": {"$ref": "other.json"}}'
    local code, _, message = command.run({ "grammar", "--json-schema", schema, "--json" }, "1")
    assert.same({ 1, ("ane grammar: %s: $ref at #/items: 'other.json' is not in the document\n"):format(schema) }, { code, message })
  end)
end)

describe("ane.grammar", function()
  it("makes grammars of schemas, patterns and lists", function()
    local g = assert(ane.grammar.json_schema { type = "array", items = { enum = { 1, ane.null } } })
    assert.is_true(g:matches "[1, null]")
    assert.is_false(g:matches "[2]")
    assert.is_true(ane.grammar.json():matches '{"a": [true]}')
    assert.is_false(ane.grammar.json { blanks = 0 }:matches '{"a": [true]}')
    assert.is_true(ane.grammar.regex("a+b"):matches "aab")
    assert.is_true(ane.grammar.choice({ "yes", "no" }):matches "no")
    assert.is_false(ane.grammar.choice({ "yes", "no" }):matches "n")
    assert.is_true(ane.grammar.is(g))
  end)

  it("says what is wrong", function()
    local g, message, code = ane.grammar.json_schema '{"pattern": "("}'
    assert.same({ nil, "pattern at #: ( is not closed at character 2", "invalid" }, { g, message, code })
    assert.has_error(function() ane.grammar.json_schema("true", { lax = true }) end)
    assert.has_error(function() ane.grammar.choice { 1 } end)
    assert.is_nil((ane.grammar.choice {}))
  end)
end)
