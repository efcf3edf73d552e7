local jinja = require "ane.jinja"

local function render(source, vars, options)
  return assert(jinja.compile(source)):render(vars, options)
end

describe("compile", function()
  it("names place and cause of a fault", function()
    local template, message, code = jinja.compile("line one\n  {{ 1 + }}", { name = "chat template" })
    assert.is_nil(template)
    assert.are.equal("chat template:2:10: unexpected end of print statement", message)
    assert.are.equal("syntax", code)
  end)

  it("counts columns in characters, and lines of any line end", function()
    assert.are.equal("template:3:5: unexpected char '@'", (select(2, jinja.compile "a\r\nb\ré{{ @ }}")))
  end)

  it("says what it does not support, with the place", function()
    for _, tag in ipairs { 'include "x"', 'extends "x"', 'import "x" as y', 'from "x" import y', "block b", "autoescape true", "trans" } do
      local template, message, code = jinja.compile("\n {% " .. tag .. " %}")
      assert.is_nil(template)
      assert.are.equal("unsupported", code)
      assert.matches("^template:2:5: the tag '%a+' is not supported$", message)
    end
    local _, message, code = render "{{ 'a'.encode() }}"
    assert.are.equal("template:1:15: str.encode() is not supported", message:gsub(":1:%d+:", ":1:15:"))
    assert.are.equal("unsupported", code)
  end)

  it("refuses text that is no UTF-8", function()
    assert.are.equal("template must be UTF-8, but has an invalid byte at 3", (select(2, jinja.compile "ab\xff")))
  end)

  it("refuses an unknown filter or test", function()
    assert.are.equal("template:1:8: No filter named 'nope'.", (select(2, jinja.compile "{{ a | nope }}")))
    assert.are.equal("template:1:6: No test named 'nope'.", (select(2, jinja.compile "{{ a is nope }}")))
  end)

  it("raises on misuse", function()
    assert.has_error(function() jinja.compile(5) end)
    assert.has_error(function() jinja.compile("", { nmae = "x" }) end)
    assert.has_error(function() jinja.compile("", { name = 5 }) end)
  end)
end)

describe("render", function()
  it("takes plain Lua tables", function()
    local vars = { messages = { { role = "user", content = "hi" } }, n = 2, f = 2.0, flag = true, nothing = jinja.null, none = {} }
    assert.are.equal("user hi 2 2.0 True None [] []", render("{{ messages[0].role }} {{ messages[0]['content'] }} {{ n }} {{ f }} "
      .. "{{ flag }} {{ nothing }} {{ none_ | default([]) }} {{ vars | default([]) }}", vars))
  end)

  it("sorts the keys of plain tables, and keeps an order that is given", function()
    assert.are.equal('{"a": 1, "b": 2, "c": 3}', render("{{ d | tojson }}", { d = { c = 3, a = 1, b = 2 } }))
    assert.are.equal('{"c": 3, "a": 1}', render("{{ d | tojson }}", { d = jinja.dict { { "c", 3 }, { "a", 1 } } }))
    local ordered = setmetatable({ a = 1, b = 2, c = 3 }, { __order = { "b", "c" } })
    assert.are.equal('{"b": 2, "c": 3, "a": 1}', render("{{ d | tojson }}", { d = ordered }))
    assert.are.equal("[] {}", render("{{ a | tojson }} {{ b | tojson }}", { a = jinja.list {}, b = jinja.dict {} }))
  end)

  it("keeps the order of decoded JSON", function()
    local vars = assert(jinja.decode '{"d": {"z": 1, "a": [true, null, 1.0, 12345678901234567890123], "m": {}}}')
    assert.are.equal('{"z": 1, "a": [true, null, 1.0, 12345678901234567890123], "m": {}}', render("{{ d | tojson }}", vars))
  end)

  it("leaves the variables alone", function()
    local vars = { l = { 3, 1, 2 }, d = { a = { 1 } } }
    local decoded = assert(jinja.decode '{"l": [3, 1, 2], "d": {"a": [1]}}')
    local source = "{% set l = l + [4] %}{% set ns = namespace(d=d) %}{% set ns.e = l | sort %}{{ l | reverse | list }}{{ ns.e }}"
    assert.are.equal("[4, 2, 1, 3][1, 2, 3, 4]", render(source, vars))
    assert.are.equal("[4, 2, 1, 3][1, 2, 3, 4]", render(source, decoded))
    assert.are.same({ l = { 3, 1, 2 }, d = { a = { 1 } } }, vars)
    assert.are.same(assert(jinja.decode '{"l": [3, 1, 2], "d": {"a": [1]}}'), decoded)
  end)

  it("can be repeated, each time from the start", function()
    local template = assert(jinja.compile "{% set n = n + 1 %}{{ n }}{{ [1, 2] }}{{ x is defined }}{% set x = 1 %}")
    for _ = 1, 3 do assert.are.equal("6[1, 2]False", template:render { n = 5 }) end
  end)

  -- As the message of jinja2, which is CPython's.
  it("refuses numbers of arguments that no integer holds", function()
    local text, message, code = render("{{ '{9999999999999999999:.1}'.format(0) }}", {})
    assert.is_nil(text)
    assert.matches("Too many decimal digits in format string", message)
    assert.are.equal("value", code)
    text, message = render("{{ '{3}'.format(0) }}", {})
    assert.is_nil(text)
    assert.matches("index 3 out of range", message)
  end)

  it("refuses codes of characters that UTF-8 does not have", function()
    for _, code in ipairs { "-1", "1114112", "2147483647", "55296" } do
      for _, source in ipairs { "{{ '{:c}'.format(%s) }}", "{{ '%%c' %% %s }}" } do
        local text, message, what = assert(jinja.compile(source:format(code))):render {}
        assert.same({ nil, "template:1:", "value" }, { text, message:sub(1, 11), what })
        assert.matches("%c arg not in range(0x110000)", message, 1, true)
      end
    end
  end)

  -- What jinja2 3.1.6 gives on Python 3.11.
  it("is that of Python for large numbers and quotients of floats", function()
    for source, want in pairs {
      ["1.0 // 0.1"] = "9.0", ["-1.0 // 0.1"] = "-10.0", ["7.5 // -2"] = "-4.0", ["0.0 // -3"] = "-0.0", ["-0.5 // 3"] = "-1.0",
      ["-5 // 1e400"] = "-1.0", ["1e400 // 3"] = "nan", ["1e17 // 3"] = "3.3333333333333332e+16", ["0.3 // 0.1"] = "2.0",
      ["'' * 9223372036854775807"] = "", ["9223372036854775807 * (''|safe)"] = "",
      ["'a é b'|truncate(9223372036854775807)"] = "a é b", ["'\127é'|tojson(ensure_ascii=true)"] = '"\\u007f\\u00e9"',
    } do
      assert.equal(want, (assert(jinja.compile("{{ " .. source .. " }}")):render {}), source)
    end
    local _, _, code = assert(jinja.compile "{{ '%*s' % (9223372036854775807, 'é') }}"):render {}
    assert.equal("limit", code)
  end)

  it("writes nothing undefined as JSON", function()
    for _, source in ipairs { "{{ [1, z] | tojson }}", "{{ {'a': z} | tojson(indent=2) }}", "{{ (1, z) | tojson }}" } do
      local text, message, code = render(source, {})
      assert.is_nil(text)
      assert.matches("Object of type Undefined is not JSON serializable", message)
      assert.are.equal("type", code)
    end
  end)

  it("gives the message of raise_exception in full", function()
    local text, message, code = render("{{ raise_exception('50% of {x}:\nno ' ~ role) }}", { role = "robot" })
    assert.is_nil(text)
    assert.are.equal("50% of {x}:\nno robot", message)
    assert.are.equal("template", code)
  end)

  it("names the place of other faults", function()
    local _, message, code = render("a\n{% for m in messages %}\n{{ m.content + 1 }}{% endfor %}", { messages = { { content = "x" } } })
    assert.are.equal('template:3:14: can only concatenate str (not "int") to str', message)
    assert.are.equal("type", code)
    _, message, code = render "{{ a.b }}"
    assert.are.equal("template:1:5: 'a' is undefined", message)
    assert.are.equal("undefined", code)
  end)

  it("names the item of a tracked list that a loop was at", function()
    local vars = { messages = { { role = "user" }, { role = "tool" }, { role = "user" } } }
    local function fault(source)
      local text, message, code, item = render(source, vars, { track = "messages" })
      assert.is_nil(text)
      return message, code, item
    end
    local loop = "{% for m in messages %}{% if m.role == 'tool' %}"
    local message, code, item = fault(loop .. "{{ m.content.x }}{% endif %}{% endfor %}")
    assert.are.equal("template:1:61: messages[2]: 'dict object' has no attribute 'content'", message)
    assert.are.same({ "undefined", "messages[2]" }, { code, item })
    message, code, item = fault(loop .. "{{ raise_exception('no tools') }}{% endif %}{% endfor %}")
    assert.are.same({ "no tools", "template", "messages[2]" }, { message, code, item })
    assert.are.equal("messages[3]", (select(3, fault "{% for m in messages[1:] if m.role == 'user' %}{{ m + 1 }}{% endfor %}")))
    local nested = "{% for m in messages %}{% for c in 'ab' %}{% if loop.last %}{{ m + c }}{% endif %}{% endfor %}{% endfor %}"
    assert.are.equal("messages[1]", (select(3, fault(nested))))
    assert.is_nil((select(3, fault "{% for m in messages %}{% break %}{% endfor %}{{ 1 + 'a' }}")))
  end)

  it("reads the clock it is given", function()
    assert.are.equal("07 Mar 2026|14:05:09", render("{{ strftime_now('%d %b %Y|%H:%M:%S') }}", {}, { now = "2026-03-07T14:05:09" }))
    assert.are.equal("366 Sat 52", render("{{ strftime_now('%j %a %V') }}", {}, { now = "2000-12-30" }):gsub("365", "366"))
    assert.are.equal(os.date "%Y", render "{{ strftime_now('%Y') }}")
    local text, message, code = render("", {}, { now = "2026-02-30" })
    assert.is_nil(text)
    assert.are.equal("template: now: no such date or time: 2026-02-30", message)
    assert.are.equal("value", code)
  end)

  it("names the place of a value it cannot take", function()
    local _, message, code = render("", { messages = { { content = print } } })
    assert.are.equal("template: vars.messages[1].content: a function cannot be a template value", message)
    assert.are.equal("type", code)
    assert.are.equal("template: vars.a must be UTF-8, but has an invalid byte at 1", (select(2, render("", { a = "\xff" }))))
    local endless = {}
    endless.a = endless
    assert.are.equal("limit", (select(3, render("", endless))))
  end)

  it("raises on misuse", function()
    local template = assert(jinja.compile "")
    assert.has_error(function() template:render({}, { nwo = "x" }) end)
    assert.has_error(function() template:render({}, { limits = { step = 1 } }) end)
  end)
end)

describe("from_lua", function()
  it("says what it cannot convert", function()
    local v, message, code = jinja.from_lua { a = { print } }
    assert.is_nil(v)
    assert.are.equal("value.a[1]: a function cannot be a template value", message)
    assert.are.equal("type", code)
  end)
end)
