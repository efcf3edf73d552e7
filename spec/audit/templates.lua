--- Chat templates: random templates over random variables render as jinja2 renders them, or are refused where jinja2 raises.
-- Needs a Python with jinja2 (the environment's PYTHON, default python3).
local jinja = require "ane.jinja"
local reference = require "audit.reference"

local M = { cases = 1 }

-- Templates of a case, which starts one Python.
local BATCH = 200

-- ---- Expressions -------------------------------------------------------------------------------------------------------------

local LITERALS = {
  "0", "1", "-3", "12", "2.5", "'a'", "'  Ab c '", "''", "true", "false", "none", "[]", "[1, 2, 3]", "['b', 'a', 'b']", "{}",
  "{'k': 1, 'a': 'z'}", "(1, 2)", "'\u{e9}\u{4f60}\\n'", "'1'",
}
local VARIABLES = {
  "x", "s", "l", "d", "n", "t", "u", "m", "m[0]", "m[-1].content", "d.k", "d['a']", "d.missing", "l[0]", "l[-1]", "l[1:]", "s[0]",
  "s[1:3]", "m[0]['role']", "l[::-1]", "x.y",
}
local BINARY = { "+", "-", "*", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in", "/" }
local FILTERS = {
  "length", "upper", "lower", "trim", "join(', ')", "first", "last", "default('z')", "default('z', true)", "tojson", "int", "string",
  "list", "reverse | list", "sort", "unique | list", "replace('a', 'bb')", "title", "capitalize", "map('upper') | list", "select | list",
  "abs", "reject('none') | list", "float", "indent(2)", "map(attribute='role') | list", "selectattr('role', 'equalto', 'user') | list",
  "count", "dictsort", "items | list", "join", "max", "min", "sum", "round", "tojson(indent=2)", "select('string') | list",
  "batch(2) | list",
}
local TESTS = {
  "defined", "undefined", "none", "string", "mapping", "iterable", "number", "sequence", "boolean", "true", "false", "integer", "odd",
  "divisibleby(3)", "equalto(1)", "in([1, 'a'])", "lower", "not defined", "not none", "float",
}
local METHODS = {
  "upper()", "strip()", "split()", "split('a')", "startswith('a')", "items() | list", "keys() | list", "get('k')",
  "get('q', 7)", "replace('a', 'x')", "title()", "lstrip()", "rstrip('c ')", "endswith('c')", "find('b')", "split(' ', 1)", "capitalize()",
  "values() | list",
}

local expression

local SHAPES = {
  function(d) return d.one_of(LITERALS) end,
  function(d) return d.one_of(VARIABLES) end,
  function(d, n) return ("(%s %s %s)"):format(expression(d, n - 1), d.one_of(BINARY), expression(d, n - 1)) end,
  function(d, n) return ("(%s | %s)"):format(expression(d, n - 1), d.one_of(FILTERS)) end,
  function(d, n) return ("(%s is %s)"):format(expression(d, n - 1), d.one_of(TESTS)) end,
  function(d, n) return ("(%s if %s else %s)"):format(expression(d, n - 1), expression(d, n - 1), expression(d, n - 1)) end,
  function(d, n) return ("(not %s)"):format(expression(d, n - 1)) end,
  function(d, n) return ("(%s).%s"):format(expression(d, n - 1), d.one_of(METHODS)) end,
  function(d, n) return ("[%s, %s]"):format(expression(d, n - 1), expression(d, n - 1)) end,
  function(d, n) return ("(%s)[%s]"):format(expression(d, n - 1), expression(d, n - 1)) end,
}

function expression(d, depth)
  return SHAPES[depth <= 0 and d.between(1, 2) or d.between(1, #SHAPES)](d, depth)
end

-- ---- Statements ----------------------------------------------------------------------------------------------------------------

local TEXTS = { "", " ", "\n", "a", "  b\n", "\n\n  ", "<|im_start|>", "\u{e9} ", "{", "}", "%", "# " }
local OPEN, CLOSE = { "{%", "{%-", "{%", "{%+" }, { "%}", "-%}", "%}" }

local function tag(d, text) return ("%s %s %s"):format(d.one_of(OPEN), text, d.one_of(CLOSE)) end

local block

local function loop(d, depth)
  local over = d.one_of { "l", "m", "range(3)", "d", "d.items()", "s", expression(d, 1) }
  local target = over == "d.items()" and "k, v" or "e"
  local body = d.one_of { "{{ loop.index }}", "{{ e }}", "{{ loop.last }}{{ loop.index0 }}", "{{ loop.length }}", "{{ loop.previtem }}" }
  local skip = d.chance(0.2) and tag(d, "if loop.index == 2") .. tag(d, d.one_of { "break", "continue" }) .. tag(d, "endif") or ""
  local last = d.chance(0.3) and tag(d, "else") .. block(d, depth - 1) or ""
  local filter = d.chance(0.2) and " if " .. expression(d, 1) or ""
  return tag(d, ("for %s in %s%s"):format(target, over, filter)) .. body .. skip .. block(d, depth - 1) .. last .. tag(d, "endfor")
end

local function branch(d, depth)
  local middle = d.chance(0.4) and tag(d, "elif " .. expression(d, 2)) .. block(d, depth - 1) or ""
  local last = d.chance(0.5) and tag(d, "else") .. block(d, depth - 1) or ""
  return tag(d, "if " .. expression(d, 2)) .. block(d, depth - 1) .. middle .. last .. tag(d, "endif")
end

local STATEMENTS = {
  function(d) return d.one_of(TEXTS) end,
  function(d) return ("%s %s %s"):format(d.one_of { "{{", "{{-" }, expression(d, 3), d.one_of { "}}", "-}}" }) end,
  branch,
  loop,
  function(d) return tag(d, ("set %s = %s"):format(d.one_of { "x", "y", "l", "s" }, expression(d, 2))) end,
  function(d) return ("{#%s c %s#}"):format(d.one_of { "", "-" }, d.one_of { "", "-" }) end,
  function(d, depth)
    return tag(d, "set ns = namespace(a=" .. expression(d, 1) .. ")") .. tag(d, "for e in l") .. tag(d, "set ns.a = e")
      .. block(d, depth - 1) .. tag(d, "endfor") .. "{{ ns.a }}"
  end,
  function(d, depth)
    return tag(d, "macro f(a, b=2)") .. "{{ a }}{{ b }}" .. block(d, depth - 1) .. tag(d, "endmacro")
      .. "{{ f(" .. expression(d, 1) .. ") }}"
  end,
  function(d, depth) return tag(d, "set y") .. block(d, depth - 1) .. tag(d, "endset") .. "{{ y }}" end,
  function(d) return tag(d, "raw") .. d.one_of { "{{ x }}", "{% if", " a\n" } .. tag(d, "endraw") end,
}

function block(d, depth)
  local parts = {}
  for i = 1, d.between(0, 3) do parts[i] = STATEMENTS[depth <= 0 and d.between(1, 2) or d.between(1, #STATEMENTS)](d, depth) end
  return table.concat(parts)
end

local VALUES = {
  x = { "0", "7", "-2", "1.5", "null", '"x"' },
  s = { '"abc"', '" Ab \\n"', '""', '"\u{e9}\u{df}"' }, t = { "true", "false" }, n = { "null" },
  l = { "[]", "[3,1,2]", '["b","a"]', '[1,"a",null]', "[[1],[2,3]]" },
  d = { "{}", '{"k":1,"a":"z"}', '{"b":[1],"a":{"k":2}}' },
  m = {
    '[{"role":"user","content":"Hi"}]',
    '[{"role":"system","content":"S"},{"role":"user","content":"a\\nb"},{"role":"assistant","content":null}]',
  },
}

local function variables(d)
  local parts = {}
  for i, name in ipairs { "x", "s", "t", "n", "l", "d", "m" } do parts[i] = ('"%s":%s'):format(name, d.one_of(VALUES[name])) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- ---- The comparison ------------------------------------------------------------------------------------------------------------

-- Codes of what is left out, or bounded, here only.
local OWN_LIMITS = { unsupported = true, limit = true }

local function render(case)
  local template, message, code = jinja.compile(case.template)
  local text
  if template then text, message, code = template:render(assert(jinja.decode(case.variables))) end
  return text, message, code
end

--- Why the jinja of Python cannot be asked; nil: it can.
function M.missing() return reference.missing "jinja2" end

function M.case(d)
  local cases = {}
  for i = 1, BATCH do cases[i] = { template = block(d, 3) .. block(d, 2), variables = variables(d) } end
  local wants = reference.ask("templates", cases)
  for i, case in ipairs(cases) do
    local text, message, code = render(case)
    assert(code ~= "internal", message)
    local want = wants[i]
    local fine = OWN_LIMITS[code] or text == want.text or text == nil and want.error ~= nil
    if not fine then
      error(("template %q\nvariables %s\njinja2: %s\nhere: %s"):format(case.template, case.variables,
        want.text and ("%q"):format(want.text) or want.error, text and ("%q"):format(text) or code .. ": " .. message), 0)
    end
  end
end

return M
