--- Grammars: parts "kind", "grammar" and "text". A grammar of this kind is made, and tries to match the text.
local bundle = require "lib.bundle"
local grammar = require "ane.grammar"
local mutate_json = require "lib.mutate_json"
local promise = require "lib.promise"

local M = { lines = true }

local KINDS = { "json_schema", "regex", "gbnf", "lark" }

local WORDS = {
  "type", "properties", "required", "additionalProperties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not", "enum", "const",
  "$ref",
  "#/$defs/a", "#", "$defs", "pattern", "patternProperties", "minLength", "maxLength", "minimum", "exclusiveMaximum", "multipleOf",
  "minItems",
  "maxItems", "uniqueItems", "contains", "unevaluatedProperties", "dependentRequired", "format", "date-time", "string", "object", "array",
  "integer", "number", "null", "boolean", "propertyNames", "if", "then", "else", "$id", "$anchor", "$dynamicRef", "minProperties",
}
M.words = WORDS

local schema = mutate_json.mutator(WORDS)

local function rules(text, most, random, bytes)
  local at = 1 + random(#text + 1)
  local way = random(5)
  if way == 4 then -- a piece many times
    local piece = text:sub(at, at + random(12))
    return #piece > 0 and text:sub(1, at - 1) .. piece:rep(math.min(1 + random(8000), (most - #text) // #piece)) .. text:sub(at) or text
  end
  if way == 0 then return bytes(text, most) end
  if way == 1 then return text:sub(1, at + random(30)) .. text:sub(at) end
  if way == 2 then
    local n = 1 + random(random(8) == 0 and 4000 or 3)
    return text:sub(1, at - 1) .. ("("):rep(n) .. "a" .. (")"):rep(n) .. text:sub(at)
  end
  local pieces = { "{2,}", "{0,100000}", "*", "+", "?", "|", "[^a-z]", "(?=a)", "\\p{L}", "\\u{10FFFF}", "::= ", "root", "start: ",
    "/a/i", ".." }
  return text:sub(1, at - 1) .. pieces[1 + random(#pieces)] .. text:sub(at)
end

local parts_mutator = bundle.mutator {
  rules,
  grammar = function(text, most, random, bytes)
    return (text:find "^%s*[%[{]" and schema or rules)(text, most, random, bytes)
  end,
}
M.mutate = parts_mutator

function M.run(data)
  local parts = bundle.split(data)
  local kind = KINDS[1 + #(parts.kind or "") % #KINDS]
  for _, name in ipairs(KINDS) do
    if parts.kind == name then kind = name end
  end
  local made = promise.keep(kind, grammar[kind](parts.grammar or ""))
  if not made then return end
  promise.keep("matches", made:matches(parts.text or ""))
end

function M.seeds()
  local function seed(kind, source, text)
    return { ("%s-%d"):format(kind, #source), bundle.join { { "kind", kind }, { "grammar", source }, { "text", text } } }
  end
  return {
    seed("json_schema",
      '{"type":"object","properties":{"a":{"type":"integer","minimum":3},"b":{"type":"string","pattern":"^a+$"}},"required":["a"]}',
      '{"a": 5, "b": "aa"}'),
    seed("json_schema", '{"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"}', '{"next": {}}'),
    seed("json_schema",
      '{"anyOf":[{"enum":[1,"a",null]},{"type":"array","prefixItems":[{"type":"number"}],"items":{"type":"boolean"},"maxItems":4}]}',
      "[1.5, true]"),
    seed("json_schema", '{"allOf":[{"properties":{"a":{"multipleOf":7}}},{"patternProperties":{"^x":{"format":"date-time"}}}],'
      .. '"unevaluatedProperties":false}', '{"a": 14}'),
    seed("regex", "(ab|c{2,5})*[^x-z]\\d+(?:é|\\u0041)$", "abcc12A"),
    seed("gbnf", 'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")" | [0-9]{1,3}\n', "ab,(c,12)"),
    seed("lark", 'start: item ("," item)*\nitem: WORD | "(" start ")"\nWORD: /[a-z]+/\n%ignore " "\n', "ab, (c)"),
  }
end

return M
