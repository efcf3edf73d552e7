-- Snippets and whole templates with what jinja2 3.1.6 makes of them on Python 3.11, in the environment of transformers:
-- ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loopcontrols, generation blocks, its tojson, dict and namespace.
-- jinja_cases.json: variables and sources, and cases of [source, variables, { output } or { error = class in Python }].
local jinja = require "ane.jinja"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local data = file:read "a"
  file:close()
  return data
end

local fixture = assert(jinja.decode(read "spec/fixtures/jinja_cases.json"))
local sources, variables = fixture.map.sources, fixture.map.variables

-- Codes for a Python exception; one that is not here may have any.
local CODES = {
  TemplateSyntaxError = { syntax = true, unsupported = true },
  TemplateAssertionError = { syntax = true },
  SyntaxError = { syntax = true },
  UndefinedError = { undefined = true },
  SecurityError = { security = true },
  TemplateError = { template = true },
  TypeError = { type = true, unsupported = true },
  ValueError = { value = true },
  ZeroDivisionError = { value = true },
  OverflowError = { value = true, limit = true },
  TemplateRuntimeError = { runtime = true },
}

local function check(source, vars, want)
  local text, message, code
  local template
  template, message, code = jinja.compile(source, { name = "case" })
  if template then text, message, code = template:render(vars, { now = "2026-03-07T14:05:09" }) end
  if want.output then
    assert(text == want.output, ("%s\n  want %q\n  got  %q"):format(source, want.output, text or message))
    return
  end
  assert(text == nil, ("%s\n  want %s\n  got  %q"):format(source, want.error, text or ""))
  local codes = CODES[want.error]
  assert(not codes or codes[code], ("%s\n  want %s, got %s: %s"):format(source, want.error, code, message))
  if want.message then assert(message == want.message, message) end
end

describe("jinja2's own results", function()
  for i, case in ipairs(fixture.map.cases) do
    local source = sources[case[1] + 1]
    it(("%d: %s"):format(i, source:sub(1, 60):gsub("%c", " ")), function()
      check(source, variables[case[2] + 1], case[3].map)
    end)
  end
end)
