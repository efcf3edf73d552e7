-- A template comes with a model file: it must reach nothing of the host, and neither exhaust nor crash it.
local jinja = require "ane.jinja"

local function render(source, vars, options)
  local template, message, code = jinja.compile(source)
  if not template then return nil, message, code end
  return template:render(vars, options)
end

describe("the sandbox", function()
  it("hides Lua", function()
    for _, name in ipairs { "_G", "_ENV", "string", "os", "io", "require", "load", "debug", "getmetatable", "jinja", "rt", "env" } do
      assert.are.equal("False", render("{{ " .. name .. " is defined }}"), name)
    end
    for _, name in ipairs { "rep", "byte", "gsub", "len", "dump", "char", "replace_text", "kind", "keys_", "map", "__index", "text" } do
      assert.are.equal("False False", render(("{{ ''.%s is defined }} {{ [].%s is defined }}"):format(name, name)), name)
      assert.are.equal("False", render(("{{ {}['%s'] is defined }}"):format(name)), name)
      assert.are.equal("False", render(("{{ x.y['%s'] is defined }}"):format(name), { x = { y = 1.5 } }), name)
    end
    for _, object in ipairs { "loop", "ns", "f", "j", "c", "range", "dict", "''.strip", "range(2)", "[]|map('abs')", "''|safe", "none" } do
      for _, name in ipairs { "call", "kind", "next_", "fn", "attrs", "map", "keys_", "python", "__index", "__name", "items_", "after" } do
        local source = "{% set ns = namespace() %}{% set j = joiner() %}{% set c = cycler(1) %}{% macro f() %}{% endmacro %}"
          .. ("{%% for i in [1] %%}{{ (%s).%s is defined }}{%% endfor %%}"):format(object, name)
        assert.are.equal("False", render(source), object .. "." .. name)
      end
    end
  end)

  it("refuses Python's ways out", function()
    for _, source in ipairs {
      "{{ ''.__class__.__mro__ }}", "{{ (1).__class__.x }}", "{{ [].__len__() }}", "{{ {}.__class__() }}",
      "{{ l.append(1) }}", "{{ l.pop() }}", "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ [].sort() }}", "{{ {}.clear() }}",
      "{{ (l | attr('append'))(1) }}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    } do
      local text, message, code = render(source, { l = { 1 }, d = { a = 1 } })
      assert.is_nil(text, source)
      assert.are.equal("security", code, message)
    end
  end)
end)

describe("limits", function()
  local NESTED = {
    ["("] = { "{{ ", "(", "1", ")", " }}" }, ["["] = { "{{ ", "[", "", "]", " }}" }, ["{"] = { "{{ ", "{1:", "1", "}", " }}" },
    ["not"] = { "{{ ", "not ", "1", "", " }}" }, ["-"] = { "{{ ", "- ", "1", "", " }}" }, ["f("] = { "{{ ", "f(", "", ")", " }}" },
    ["inline if"] = { "{{ ", "1 if 1 else ", "1", "", " }}" }, ["if"] = { "", "{% if 1 %}", "", "{% endif %}", "" },
    ["for"] = { "", "{% for a in b %}", "", "{% endfor %}", "" }, ["+"] = { "{{ 1", " + 1", "", "", " }}" },
    ["."] = { "{{ a", ".a", "", "", " }}" }, ["|"] = { "{{ a", "|abs", "", "", " }}" },
    ["target"] = { "{% set ", "(", "a", ")", " = 1 %}" },
    ["[0]"] = { "{{ a", "[0]", "", "", " }}" }, ["()"] = { "{{ a", "()", "", "", " }}" }, ["is"] = { "{{ a is a", ".a", "", "", " }}" },
  }
  for what, parts in pairs(NESTED) do
    it("refuses a hundred thousand of " .. what, function()
      local n = what == "for" and 30000 or 100000
      local text, message, code = render(parts[1] .. parts[2]:rep(n) .. parts[3] .. parts[4]:rep(n) .. parts[5])
      assert.is_nil(text)
      assert.are_not.equal("internal", code, message)
    end)
  end

  for _, source in ipairs {
    "{{ 'x' * 10**9 }}", "{{ 'ab' * 9223372036854775807 }}", "{{ [0] * 10**9 }}", "{{ (1, 2) * 9223372036854775807 }}",
    "{{ range(10**9) }}", "{{ range(-9223372036854775807, 9223372036854775807) }}", "{{ 10**100000 }}", "{{ 'a'.center(10**9) }}",
    "{{ 'a' | center(10**9) }}", "{{ 'a'.ljust(10**9) }}", "{{ 'a'.zfill(10**9) }}", "{{ '\\t'.expandtabs(10**9) }}",
    "{{ 'a\\nb' | indent(10**9) }}", "{{ [[1]] | tojson(indent=10**9) }}", "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (10**9, 1) }}",
    "{{ '%999999999s' % 1 }}", "{{ '{:999999999}'.format(1) }}", "{{ '{:.200f}'.format(1.5) }}", "{{ '%.999f' % 1 }}",
    "{{ [1] | batch(10**9, 0) | list }}", "{{ [1] | slice(10**9) | list }}", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ ('b' * 100000).join('a' * 100000) }}", "{{ range(100000) | join('b' * 100000) }}", "{{ 9223372036854775807 + 1 }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=(1,)) %}{% for i in range(99) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
    "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x | select %}{% endfor %}{{ ns.x | first }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% set s = 'a' * 4000000 %}{% set t = 'a' * 2000000 ~ 'b' %}{% for i in range(99999) %}{{ s.find(t) }}{% endfor %}",
    "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if 'b' in s %}{% endif %}{% endfor %}",
    "{% set s = range(99999) | list %}{% for i in range(99999) %}{% if -1 in s %}{% endif %}{% endfor %}",
  } do
    it("ends " .. source:sub(1, 70), function()
      local start = os.clock()
      local text, message, code = render(source, {}, { limits = { steps = 1000000 } })
      assert.is_nil(text)
      assert.are.equal("limit", code, message)
      assert.is_true(os.clock() - start < 10)
    end)
  end

  it("can be set", function()
    assert.are.equal("limit", (select(3, render("{% for i in range(99) %}{% endfor %}", {}, { limits = { steps = 50 } }))))
    assert.are.equal("limit", (select(3, render("{% for i in range(99) %}ab{% endfor %}", {}, { limits = { output = 150 } }))))
    local macro = "{% macro f(n) %}{{ f(n - 1) if n else 'end' }}{% endmacro %}{{ f(20) }}"
    assert.are.equal("end", render(macro))
    assert.are.equal("limit", (select(3, render(macro, {}, { limits = { depth = 10 } }))))
  end)

  it("leave room for a long conversation", function()
    local messages = {}
    for i = 1, 2000 do messages[i] = { role = i % 2 == 1 and "user" or "assistant", content = ("words "):rep(100) } end
    local source = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim + '\n' }}{% endfor %}"
    assert.are.equal(2000 * 600 + 1000 * 8 + 1000 * 13, #assert(render(source, { messages = messages })))
  end)
end)
