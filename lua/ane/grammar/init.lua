--- Grammars for constrained replies: JSON by schema, patterns, choices, rules. Making a grammar fails if a part of it cannot be
-- enforced.
-- Needs ane.core, ane.util.failure, list, nested and schema, and ane.grammar.objects. A grammar is given to generate, stream and chat as
-- their option `grammar`.
-- Usage: `local g = assert(grammar.json_schema {type = "object", properties = {n = {type = "integer"}}}); g:matches '{"n": 3}'`

local core = require "ane.core"
local failure = require "ane.util.failure"
local list_of = require "ane.util.list"
local nested = require "ane.util.nested"
local objects = require "ane.grammar.objects"
local schema = require "ane.util.schema"

local M = {}

local Grammar = {}
Grammar.__index = Grammar
Grammar.__name = "ane.grammar"

local KINDS = { literal = true, pattern = true, json = true } -- of the edges of parts

local function is_state(v) return math.type(v) == "integer" and v >= 1 and v <= 0x7fffffff end

local JSON = {
  strict = { type = "boolean", default = true },
  blanks = { type = "integer", min = 0, max = 1000 },
}

-- Makes a grammar; or nil, message, code. kind, source, opts: as core.grammar takes them.
local function make(kind, source, opts)
  local raw, message, code = core.grammar(kind, source, opts)
  if not raw then return nil, message, code end
  return setmetatable({ kind = kind, _raw = raw }, Grammar)
end

-- The JSON text of a schema that is a table or a boolean; or nil, message, code. Raises at `level` if there is no such text.
local function text_of(of, level)
  local fault = nested.fault(of)
  if fault then error("json_schema: the schema " .. fault, level + 1) end
  if type(of) == "table" and next(of) == nil then of = core.json_object() end
  local ok, text, message, code = pcall(core.json_encode, objects.with(of, core.json_object), { exact = true })
  if ok then return text, message, code end
  if failure.code(text) == "memory" then return nil, "json_schema: out of memory", "memory" end
  error("json_schema: the schema has no JSON form: " .. text, level + 1)
end

--- JSON that is valid under a JSON Schema (2020-12, and older spellings). Members may come in any order, each once.
-- @param of the schema: JSON text, or a table (ane.null is JSON's null; an empty table is an object where JSON Schema expects one)
-- @param opts strict (false: unknown names of formats are ignored), blanks (maximum blanks at each place where JSON allows them; default:
-- at most one space after commas and colons)
-- @return a grammar; or nil, message, code: the message begins with the keyword and its path
function M.json_schema(of, opts)
  schema.argument({ type = { "string", "table", "boolean" } }, of, "json_schema: schema", 2)
  opts = schema.check(JSON, opts, "json_schema", 2)
  if type(of) ~= "string" then
    local text, message, code = text_of(of, 2)
    if not text then return nil, message, code end
    of = text
  end
  return make("json_schema", of, { lenient = not opts.strict, blanks = opts.blanks })
end

--- Any JSON text.
-- @param opts blanks, as for json_schema
function M.json(opts)
  opts = schema.check({ blanks = JSON.blanks }, opts, "json", 2)
  return make("json_schema", "true", { blanks = opts.blanks })
end

--- Texts that a pattern matches as a whole. ECMA-262 syntax without back references and lookbehind.
-- @return a grammar; or nil, message, code
function M.regex(pattern)
  schema.argument({ type = "string" }, pattern, "regex: pattern", 2)
  return make("regex", pattern)
end

--- One of several texts.
-- @param list of strings
-- @return a grammar; or nil, message, code
function M.choice(list)
  schema.argument({ type = "list" }, list, "choice: list", 2)
  for i, text in ipairs(list) do schema.argument({ type = "string" }, text, ("choice: entry %d of the list"):format(i), 2) end
  return make("choice", list)
end

--- Patterns that combine as in LPeg: P, S, R, V and the operators * + ^. `rules` makes a grammar of one. Unlike in LPeg, choices
-- are not ordered and repetition is not possessive: a text is accepted if any parse of it exists.
for _, name in ipairs { "P", "S", "R", "V" } do
  M[name] = function(...) return require("ane.grammar.rules")[name](...) end -- a tail call: levels of errors do not count it
end

--- Texts that a pattern matches as a whole.
-- @param pattern made with P, S, R, V; or a table of rules, whose first entry names the first one
-- @return a grammar; or nil, message, code
function M.rules(pattern)
  local list, message, code = require("ane.grammar.rules").lower(pattern)
  if not list then return nil, message, code end
  return make("rules", list)
end

local function read(name, text)
  schema.argument({ type = "string" }, text, name .. ": text", 3)
  local pattern, message, code = require("ane.grammar." .. name).read(text)
  if not pattern then return nil, message, code end
  return M.rules(pattern)
end

--- A grammar in GBNF, the EBNF of llama.cpp; the first rule is `root`.
-- @return a grammar; or nil, message, code
function M.gbnf(text) return read("gbnf", text) end

--- A grammar in the syntax of Lark; the first rule is `start`.
-- @return a grammar; or nil, message, code
function M.lark(text) return read("lark", text) end

-- The fault of a list of edges; nil: none.
local function parts_fault(list)
  for i = 1, rawlen(list) do
    local part = list[i]
    if type(part) ~= "table" or not is_state(part[1]) or not is_state(part[2]) or not KINDS[part[3]] or type(part[4]) ~= "string" then
      return ('must have as entry %d {from, to, "literal", "pattern" or "json", text}, with states from 1'):format(i)
    end
  end
  if type(list.ends) ~= "table" or list_of.fault(list.ends) then return "must have a list of states as ends" end
  for i, state in ipairs(list.ends) do
    if not is_state(state) then return ("must have states as ends, its entry %d is %s"):format(i, schema.shown(state)) end
  end
end

--- Texts along paths from state 1 to an end: sequences of literals, patterns and JSON values, such as calls of tools. The edges
-- of a state are either several literals, none a prefix of another, or one pattern, or one JSON value. Patterns and values are
-- greedy: what follows must not begin with a byte that they could consume.
-- @param list of {from, to, kind, text}: states, "literal" | "pattern" | "json", the literal, pattern or schema (JSON text); its field
-- ends is the list of the states in which a text may end
-- @param opts strict, blanks: as for json_schema
-- @return a grammar; or nil, message, code
function M.parts(list, opts)
  schema.argument({ type = "table", check = parts_fault }, list, "parts: list", 2)
  opts = schema.check(JSON, opts, "parts", 2)
  return make("parts", list, { lenient = not opts.strict, blanks = opts.blanks })
end

--- Returns whether a value is a grammar.
function M.is(value) return getmetatable(value) == Grammar end

--- Makes a matcher at the beginning of a text: push(bytes) -> whether they are allowed, accepts() -> whether the text may end,
-- rewind(pushes), pushes(), forced() -> bytes that must come, allowed(tree), count(tree), mask(tree, logits, ids) with a tree of
-- core.token_tree.
-- @return it; or nil, message, code
function Grammar:matcher() return self._raw:matcher() end

--- Returns whether a whole text matches the grammar.
-- @return true or false; or nil, message, code if a limit is reached
function Grammar:matches(text)
  schema.argument({ type = "string" }, text, "matches: text", 2)
  local matcher, message, code = self._raw:matcher()
  if not matcher then return nil, message, code end
  local taken
  taken, message, code = matcher:push(text)
  local whole = taken and matcher:accepts()
  matcher:close()
  if taken == nil then return nil, message, code end
  return whole
end

return M
