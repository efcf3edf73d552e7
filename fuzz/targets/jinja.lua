--- Chat templates, rendered with the variables of the input: parts "template" and "variables" (JSON).
local bundle = require "lib.bundle"
local jinja = require "ane.jinja"
local mutate_json = require "lib.mutate_json"
local promise = require "lib.promise"
local scratch = require "lib.scratch"

local M = { lines = true }

local PIECES = {
  "{{ ", " }}", "{% ", " %}", "{# ", " #}", "{%- ", " -%}", "if x", "else", "endif", "for m in messages", "endfor", "set x = 1", "endset",
  "macro f(x, y=1)", "endmacro", "call(f) f()", "endcall", "loop.index", "loop(x)", "recursive", "raw", "endraw", "filter upper",
  "endfilter",
  "break", "continue", "generation", "endgeneration", "namespace(a=1)", "messages", "messages[0].content", "[-1:]", "[::2]", "(", ")",
  "|list",
  "|tojson(indent=2)", "|map(attribute='role')", "|selectattr('a', 'equalto', 1)", "|join(',')", "|sort", "|batch(2)", "|groupby('role')",
  "|replace('a', 'b')", "|format(1)", "|round(2)", "|trim", "|dictsort", "|unique", "|indent(4)", "|default(1)", ".split('a', 1)",
  ".format(x)", ".items()", ".strip()", ".__class__", "'%s' % x", " ~ ", " ** ", " // ", "range(9)", "9999999999999999999", "1e308", "none",
  "is defined", "is mapping", "not in", "raise_exception('a')", "strftime_now('%Y')", "cycler(1, 2)", "joiner(',')", "lipsum()",
  "dict(a=1)",
}
M.words = PIECES

local function pieces(text, most, random, bytes)
  local at = 1 + random(#text + 1)
  local way = random(4)
  if way == 0 then return text:sub(1, at - 1) .. text:sub(at + 1 + random(12)) end
  if way == 1 then return text:sub(1, at + random(40)) .. text:sub(at) end
  if way == 2 then return bytes(text, most) end
  return text:sub(1, at - 1) .. PIECES[1 + random(#PIECES)] .. text:sub(at)
end

M.mutate = bundle.mutator { pieces, variables = mutate_json.mutator { "messages", "role", "content", "tools", "tool_calls", "user" } }

local OPTIONS = { now = "2026-03-07", limits = { steps = 20000, output = 100000 } }

function M.run(data)
  local parts = bundle.split(data)
  local template = promise.keep("compile", jinja.compile(parts.template or data))
  if not template then return end
  local variables = jinja.decode(parts.variables or "{}")
  if type(variables) ~= "table" or not variables.map then variables = jinja.decode "{}" end
  promise.keep("render", template:render(variables, OPTIONS))
end

function M.seeds()
  local fixture = assert(jinja.decode(scratch.read "spec/fixtures/jinja_cases.json"))
  local out = {}
  local variables = '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"type":"function",'
    .. '"function":{"name":"f","arguments":{"a":[1,2.5]}}}]}],"add_generation_prompt":true,"bos_token":"<s>","x":3,"tools":null}'
  for i, source in ipairs(fixture.map.sources) do
    if i % 6 == 1 and #source < 4000 then
      out[#out + 1] = { ("source-%d"):format(i), bundle.join { { "template", source }, { "variables", variables } } }
    end
  end
  return out
end

return M
