-- Calls of tools: forms by template, their grammar, and what is read from replies.
local core = require "ane.core"
local calls = require "ane.tools.calls"
local forms = require "ane.tools.forms"
local jinja = require "ane.jinja"
local reader = require "ane.tools.reader"
local tools = require "ane.tools"

local WEATHER = { type = "function", ["function"] = { name = "get_weather", description = "Tells the weather.", parameters = {
  type = "object", required = { "city" },
  properties = { city = { type = "string" }, days = { type = "integer", minimum = 1, maximum = 9 }, wet = { type = "boolean" } } } } }
local GET = { type = "function", ["function"] = { name = "get", parameters = { type = "object", properties = {} } } }

-- Arguments as a form writes them: of the first tool, of the second, and some that the schema forbids.
local function written(form)
  if form.arguments == "json" then return '{"city": "R\u{f4}m {1}", "days": 3}', "{}", '{"city": "x", "days": 33}' end
  if form.arguments == "tagged" then
    local function member(name, value) return form.member[1] .. name .. form.member[2] .. value .. form.member[3] end
    return member("city", "R\u{f4}m {1}") .. member("days", "3"), "", member("city", "x") .. member("days", "33")
  end
  if form.arguments == "python" then return 'city="R\u{f4}m {1}", days=3', "", 'city="x", days=33' end
  local function city(text, days) return ("{city:%s%s%s,days:%d}"):format(form.quote, text, form.quote, days) end
  return city("R\u{f4}m {1}", 3), "{}", city("x", 33)
end

local function call(form, name, arguments)
  return (form.call:gsub("{(%l+)}", { name = name, id = "a1B2c3D4e", arguments = (arguments:gsub("%%", "%%%%")) }))
end

-- A form for the two tools.
local function form_of(name) return forms.with_names(forms.named(name), { "get_weather", "get" }) end

-- What a reply may say before its calls: as it is written, and as it is read.
local function preface(form)
  if form.at_start then return "", "" end
  if not form.channels then return "Let me see. ", "Let me see. " end
  return "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see. <|end|><|start|>assistant",
    "Let me see. "
end

-- A reply that calls both tools, or the first one where a form has one call at most.
local function reply(form, first, second)
  local text = form.first .. call(form, "get_weather", first)
  if form.between then text = text .. form.between .. call(form, "get", second) end
  return text .. form.last
end

local function templates()
  local file = assert(io.open("spec/fixtures/chat_template_golden.json", "rb"))
  local list, out = assert(core.json_decode(file:read "a")).templates, {}
  file:close()
  for _, entry in ipairs(list) do out[entry.name] = entry.template end
  return out
end

describe("the form of calls", function()
  it("is found by the template", function()
    local list = templates()
    for name, want in pairs { ["qwen2.5"] = "hermes", llama3 = "llama3", mistral = "mistral-v3", ["phi4-mini"] = "phi4", lfm2 = "lfm2" } do
      assert.equal(want, (assert(forms.of(list[name]))).name)
    end
    local function of(text) return (assert(forms.of(text))).name end
    assert.equal("mistral-nemo", of "{{ '[TOOL_CALLS][' }}")
    assert.equal("mistral-v11", of "[TOOL_CALLS]x[CALL_ID]y[ARGS]z")
    assert.equal("mistral-v13", of "[TOOL_CALLS]x[ARGS]z")
    assert.equal("functionary", of "{% for t in tools %}<function=name>{}</function>")
    assert.equal("functiongemma", of "<start_function_call>call:")
    assert.equal("gemma4", of "<|tool_call>call:")
  end)

  it("is an error where it is not known, never another one", function()
    for _, text in ipairs { "{{ tools }}<|tool_calls_section_begin|>", "{{ tools }}<minimax:tool_call><invoke name=", "{{ tools }}" } do
      local form, message, code = forms.of(text)
      assert.same({ nil, "unsupported" }, { form, code })
      assert.matches("not known; name it with the option tool_form if it is one of these: hermes, qwen3%-coder, glm", message)
    end
    local form, message, code = forms.of "{{ messages }}"
    assert.same({ nil, "the model's chat template does not support tools", "unsupported" }, { form, message, code })
  end)
end)

describe("calls", function()
  local list = assert(tools.check { WEATHER, GET })

  for _, name in ipairs(forms.names()) do
    local form = form_of(name)

    it("of the form " .. name .. " are what its grammar takes", function()
      local first, second, wrong = written(form)
      local grammar = assert(calls.grammar(form, list, { many = true }))
      assert.is_true(grammar:matches(reply(form, first, second)))
      assert.is_false(grammar:matches(reply(form, wrong, second)))
      assert.is_false(grammar:matches(reply(form, second, second)))
      assert.is_false(grammar:matches(form.first .. call(form, "set", second) .. form.last))
      local one = assert(calls.grammar(form, list, { many = false }))
      assert.is_true(one:matches(form.first .. call(form, "get_weather", first) .. form.last))
      if form.between then assert.is_false(one:matches(reply(form, first, second))) end
    end)

    it("of the form " .. name .. " are read in pieces of any size", function()
      local first, second = written(form)
      local before, shown = preface(form)
      local text, schemas = before .. reply(form, first, second), {}
      for _, tool in ipairs(list) do schemas[tool.name] = tool.schema end
      for size = 1, 9 do
        local r, said, told = reader.new(form, { schemas = schemas }), {}, {}
        for at = 1, #text, size do
          local more, deltas = r:push(text:sub(at, at + size - 1))
          said[#said + 1] = more
          for _, d in ipairs(deltas) do
            local entry = told[d.index] or { arguments = "" }
            told[d.index] = entry
            if d.name then entry.name, entry.id = d.name, d.id else entry.arguments = entry.arguments .. d.arguments end
          end
        end
        local rest, of_call = r:finish()
        said[#said + 1] = rest
        assert.same({ "" }, { of_call, r.cut })
        assert.equal(shown, table.concat(said))
        assert.equal(form.between and 2 or 1, #r.calls)
        for i, c in ipairs(r.calls) do
          assert.same({ name = c["function"].name, id = c.id, arguments = c["function"].arguments }, told[i])
          assert.equal(9, #c.id)
        end
        assert.equal("get_weather", r.calls[1]["function"].name)
        assert.same({ city = "R\u{f4}m {1}", days = 3 }, core.json_decode(r.calls[1]["function"].arguments))
        if form.between then assert.same({ "get", "{}" }, { r.calls[2]["function"].name, r.calls[2]["function"].arguments }) end
      end
    end)
  end

  it("may be written without tags by small models", function()
    local said, found = tools.parse('{"name": "get", "arguments": {"a": 1}}\n{"name": "f", "arguments": {}}', { form = "hermes" })
    assert.equal("", said)
    assert.same({ a = 1 }, tools.arguments(found[1]))
    assert.same({ "get", '{"a": 1}', "f" },
      { found[1]["function"].name, found[1]["function"].arguments, found[2]["function"].name })
    local grammar = assert(calls.grammar(forms.named "hermes", list, {}))
    assert.is_true(grammar:matches '{"name": "get", "arguments": {}}')
    assert.is_false(grammar:matches '{"name": "get", "arguments": {}}\n</tool_call>')
  end)

  it("of Llama 3 may begin in other ways", function()
    for _, text in ipairs { '{"type": "function", "name": "get", "parameters": {}}', '<|python_tag|>{"name": "get", "parameters": {}}' } do
      assert.is_true(assert(calls.grammar(forms.named "llama3", list, {})):matches(text))
      local _, found = tools.parse(text, { form = "llama3" })
      assert.equal("get", found[1]["function"].name)
    end
  end)

  it("in the style of Python are read as such", function()
    local text = "<|tool_call_start|>[f(a='it\\'s', b=[1, {'k': True}], c=None, d=\"x\\ty\")]<|tool_call_end|>"
    local _, found = tools.parse(text, { form = "lfm2" })
    assert.same({ a = "it's", b = { 1, { k = true } }, c = core.null, d = "x\ty" }, core.json_decode(found[1]["function"].arguments))
  end)

  it("in the style of Python follow each other with any blanks, in pieces of any size", function()
    for _, between in ipairs { ", ", ",", ",  ", ",\n" } do
      local text = "<|tool_call_start|>[f(a=1)" .. between .. "g(b=2)]<|tool_call_end|>"
      for size = 1, 5 do
        local r, said = reader.new(forms.named "lfm2"), ""
        for at = 1, #text, size do said = said .. r:push(text:sub(at, at + size - 1)) end
        said = said .. r:finish()
        local names = {}
        for i, found in ipairs(r.calls) do names[i] = found["function"].name .. found["function"].arguments end
        assert.same({ 'f{"a": 1}', 'g{"b": 2}', "" }, { names[1], names[2], said }, ("%q %d"):format(between, size))
      end
    end
  end)

  it("in Gemma's style nest", function()
    local nested = assert(tools.check { { name = "f", parameters = { type = "object", required = { "a" }, properties = {
      a = { type = "array", items = { type = "object", properties = { k = { type = "string", enum = { "x", "xy" } } } } },
      n = { type = "array", items = { type = "number" } }, s = { type = "string", maxLength = 3 } } } } })
    local grammar = assert(calls.grammar(forms.named "gemma4", nested, {}))
    local function text(arguments) return "<|tool_call>call:f" .. arguments .. "<tool_call|>" end
    local Q = '<|"|>'
    assert.is_true(grammar:matches(text("{a:[{k:" .. Q .. "xy" .. Q .. "},{}],n:[1, 2.5],s:" .. Q .. "a|b" .. Q .. "}")))
    assert.is_true(grammar:matches(text "{a:[]}"))
    assert.is_false(grammar:matches(text("{a:[{k:" .. Q .. "y" .. Q .. "}]}")))
    assert.is_false(grammar:matches(text("{a:[],s:" .. Q .. "four" .. Q .. "}")))
    local _, found = tools.parse(text("{a:[{k:" .. Q .. "x" .. Q .. "}],n:[1, 2.5]}"), { form = "gemma4" })
    assert.same({ a = { { k = "x" } }, n = { 1, 2.5 } }, core.json_decode(found[1]["function"].arguments))
  end)

  it("are constrained by each schema, or it is an error that names tool, keyword and path", function()
    local function fault(form, parameters)
      local grammar, message = calls.grammar(forms.named(form), assert(tools.check { { name = "f", parameters = parameters } }), {})
      assert.is_nil(grammar)
      return message
    end
    local odd = { type = "object", properties = { a = { type = "string", pattern = "(?<=x)y" } } }
    assert.matches("^tools: f: parameters: pattern", fault("hermes", odd))
    assert.matches("^tools: f: parameters: pattern: /properties/a/pattern", fault("gemma4", odd))
    assert.matches("^tools: f: parameters: minProperties: /minProperties cannot", fault("lfm2", { type = "object", minProperties = 1 }))
    for _, form in ipairs { "lfm2", "gemma4", "functiongemma" } do
      local message = fault(form, { properties = { ["a b"] = { type = "null" } } })
      assert.matches('^tools: f: parameters: properties: the name "a b" cannot', message)
    end
    -- A format that is not known is a note.
    assert.is_truthy(calls.grammar(forms.named "hermes", assert(tools.check {
      { name = "f", parameters = { type = "object", properties = { a = { type = "string", format = "city" } } } } }), {}))
  end)

  it("refuse malformed schemas in each form, and do not raise", function()
    local malformed = {
      ["minLength at #/properties/a: must be a whole number"] = '{"type": "string", "minLength": "x"}',
      ["maxLength at #/properties/a: must be a whole number"] = '{"type": "string", "maxLength": 1.5}',
      ["number is too large"] = '{"type": "string", "minLength": 1e400}',
      ["enum at #/properties/a: must be a list"] = '{"type": "string", "enum": 5}',
      ["anyOf at #/properties/a: must be a list"] = '{"anyOf": 5}',
      ["properties at #/properties/a: must be an object"] = '{"type": "object", "properties": [1]}',
      ["required at #/properties/a: must be a list"] = '{"type": "object", "required": true}',
    }
    for _, form in ipairs { "hermes", "qwen3-coder", "lfm2", "gemma4" } do
      for want, schema in pairs(malformed) do
        local json = '[{"name": "f", "parameters": {"properties": {"a": ' .. schema .. "}}}]"
        local planned, parsed = { tools.plan("", { tools = json, tool_form = form }) }, { tools.parse("", { form = form, tools = json }) }
        for _, made in ipairs { planned, parsed } do
          assert.is_nil(made[1])
          assert.matches("^tools: f: parameters: .*" .. want, made[2])
          assert.is_truthy(made[3] == "invalid" or made[3] == "format")
        end
      end
    end
  end)

  it("may be nested 256 deep, as text too", function()
    for _, form in ipairs { "hermes", "qwen3-coder", "lfm2", "gemma4" } do
      for _, depth in ipairs { 240, 251, 252, 253, 254, 255, 256, 300, 500, 507, 508, 509, 600 } do
        local schema = ('{"items": '):rep(depth) .. "{}" .. ("}"):rep(depth)
        local json = '[{"name": "f", "parameters": {"properties": {"a": ' .. schema .. "}}}]"
        local plan, message = tools.plan("", { tools = json, tool_form = form })
        if depth > 251 then assert.matches(depth < 509 and "^tools: the list is nested deeper than 256 tables" or "deep", message) end
        assert.equal(depth <= 251 and form ~= "gemma4", plan ~= nil) -- Gemma's form needs the type of each list
      end
    end
  end)

  it("are refused at once where lists in lists, or optional members, need too large a grammar", function()
    local nested, members = '{"type": "string"}', {}
    for _ = 1, 40 do nested = '{"type": "array", "items": ' .. nested .. "}" end
    for i = 1, 4000 do members[i] = ('"a%d": {"type": "string"}'):format(i) end
    for _, parameters in ipairs { '{"properties": {"a": ' .. nested .. "}}", '{"properties": {' .. table.concat(members, ", ") .. "}}" } do
      local json = '[{"name": "f", "parameters": ' .. parameters .. "}]"
      assert.same({ nil, "tools: f: parameters: the grammar is too large", "range" },
        { tools.plan("", { tools = json, tool_form = "gemma4" }) })
    end
  end)

  it("keep to numbers as a schema writes them", function()
    local function takes(described, n)
      local grammar = assert(calls.grammar(forms.named "functionary", assert(tools.check(described)), {}))
      return grammar:matches('<function=f>{"n": ' .. n .. "}</function>")
    end
    local big = '[{"name": "f", "parameters": {"properties": {"n": {"const": 18446744073709551617}}, "required": ["n"]}}]'
    for _, described in ipairs { big, core.json_decode(big, { exact = true }) } do
      assert.is_true(takes(described, "18446744073709551617"))
      assert.is_false(takes(described, "18446744073709551616"))
    end
    local tenth = { { name = "f", parameters = { properties = { n = { multipleOf = 0.1 } } } } }
    assert.is_true(takes(tenth, "0.3"))
    assert.is_false(takes(tenth, "0.35"))
  end)

  it("have the members that a schema lists, and no others where it says nothing", function()
    local function takes(parameters, arguments)
      local grammar = assert(calls.grammar(forms.named "functionary", assert(tools.check { { name = "f", parameters = parameters } }), {}))
      return grammar:matches("<function=f>" .. arguments .. "</function>")
    end
    assert.is_true(takes(nil, "{}"))
    assert.is_false(takes(nil, '{"a": 1}'))
    assert.is_false(takes({ properties = { a = {} } }, '{"b": 1}'))
    assert.is_true(takes({ properties = { a = {} }, additionalProperties = true }, '{"b": 1}'))
    assert.is_true(takes({ ["$ref"] = "#/$defs/x", ["$defs"] = { x = { properties = { a = {} } } } }, '{"b": 1}'))
  end)
end)

describe("descriptions of tools", function()
  local function fault(list)
    local checked, message, code = tools.check(list)
    assert.is_nil(checked)
    return message, code
  end

  it("are checked", function()
    assert.matches("entry 1 must be a table", (fault { "f" }))
    assert.matches("entry 2 has no name", (fault { GET, { type = "function", ["function"] = {} } }))
    assert.matches('tools: the name of a tool must be 1 .. 64 letters, digits, _, %- and %., but is "a b"', (fault { { name = "a b" } }))
    assert.matches("two tools have the name get", (fault { GET, GET }))
    assert.matches('f: parameters must be a schema of an object, but has the type "string"',
      (fault { { name = "f", parameters = { type = "string" } } }))
    assert.matches("must be a list of tools", (fault { name = "f" }))
    assert.same({ "unsupported" }, { select(2, fault { { type = "web_search" } }) })
    assert.matches("^tools: ", (fault "[1"))
  end)

  it("are an error where their text is nested too deeply for a template, which would not show them", function()
    local schema = ('{"items": '):rep(200) .. "{}" .. ("}"):rep(200)
    local ok, why = pcall(tools.for_template, '[{"name": "f", "parameters": ' .. schema .. "}]")
    assert.is_false(ok)
    assert.equal("invalid", why.code)
    assert.matches("^tools: json: .*nested more than 128 levels", why.message)
  end)

  it("may be JSON text or values of a template", function()
    local text = core.json_encode { WEATHER }
    assert.equal("get_weather", assert(tools.check(text))[1].name)
    local decoded = assert(tools.check(jinja.decode(text)))
    assert.equal("integer", decoded[1].schema.properties.days.type)
  end)

  it("may hold null", function()
    local list = core.json_decode('[{"type":"function","function":{"name":"f","description":null,'
      .. '"parameters":{"type":"object","properties":{"a":{"default":null}}}}}]')
    local text = assert(assert(jinja.compile "{{ tools | tojson }}"):render { tools = tools.for_template(list) })
    assert.matches('"default": null', text, 1, true)
    assert.matches('"description": null', text, 1, true)
  end)

  it("are chosen from", function()
    local plan = assert(tools.plan("<tool_call>\"arguments\"tools", { tools = { WEATHER, GET }, tool_choice = { type = "function",
      ["function"] = { name = "get" } } }))
    assert.is_true(plan.required)
    assert.is_false(plan.grammar:matches '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>')
    assert.is_nil((tools.plan("", { tools = { GET }, tool_choice = "none" })))
    local same = { tools = core.json_decode(core.json_encode { GET, WEATHER }), tool_form = "hermes" }
    assert.equal(assert(tools.plan("", same)).grammar, assert(tools.plan("", { tools = { GET, WEATHER }, tool_form = "hermes" })).grammar)
    assert.is_nil((tools.plan("", { tools = {} })))
    local missing, why, code = tools.plan("", { tool_choice = "required" })
    assert.same({ nil, 'option tool_choice needs tools: without them it must be "auto" or "none"', "invalid" }, { missing, why, code })
    assert.same({ nil, "parse: the options need form or template", "invalid" }, { tools.parse("x", {}) })
    local none, message = tools.plan("x tools", { tools = { GET }, tool_choice = "set", tool_form = "hermes" })
    assert.is_nil(none)
    assert.matches('tool_choice must be "auto", "none", "required" or one of the tools %(get%), is "set"', message)
  end)
end)

describe("messages with calls", function()
  local CALL = { id = "a1B2c3D4e", type = "function", ["function"] = { name = "get_weather", arguments = '{"z": 1, "city": "Rom"}' } }

  local function render(template, messages)
    local vars = { messages = assert(tools.messages(messages, template)) }
    return (assert(assert(jinja.compile(template)):render(assert(jinja.from_lua(vars, "x")))))
  end

  it("give arguments as values, in their order, and a content", function()
    local messages = { { role = "assistant", tool_calls = { CALL } } }
    local template = "{{ messages[0].content + '|' }}{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert.equal('|{"z": 1, "city": "Rom"}', render(template, messages))
    assert.equal('{"z": 1, "city": "Rom"}', messages[1].tool_calls[1]["function"].arguments)
    local decoded = jinja.decode(core.json_encode(messages))
    assert.equal('|{"z": 1, "city": "Rom"}', render(template, decoded))
  end)

  it("print their keys, and those of tools, in the order that models have seen", function()
    local messages = { { role = "assistant", tool_calls = { CALL } } }
    assert.equal('{"id": "a1B2c3D4e", "type": "function", "function": {"name": "get_weather", "arguments": {"z": 1, "city": "Rom"}}}',
      render("{{ messages[0].tool_calls[0] | tojson }}", messages))
    local vars = assert(jinja.from_lua({ tools = tools.for_template { WEATHER, GET } }, "x"))
    local text = assert(assert(jinja.compile "{{ tools | tojson }}"):render(vars))
    assert.matches('^%[{"type": "function", "function": {"name": "get_weather", "description": "Tells the weather.", "parameters": '
      .. '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9, "minimum": 1}, ', text)
    assert.matches('"required": %["city"%]}}}, {"type": "function", "function": {"name": "get", "parameters": '
      .. '{"type": "object", "properties": {}}}}%]$', text)
  end)

  it("are an error where they are malformed, and do not raise", function()
    local function fault(form, entry)
      local row = forms.named(form)
      local messages = { { role = "assistant", tool_calls = { { name = "f", arguments = "{}" }, entry } } }
      local made, message, code = tools.messages(messages, table.concat(row.has, " "))
      assert.is_nil(made)
      assert.equal("invalid", code)
      return message
    end
    for _, form in ipairs { "hermes", "lfm2" } do
      assert.equal("messages[1]: tool_calls[2] must be a table, but is 5", fault(form, 5))
      assert.equal("messages[1]: tool_calls[2] must be a table, but is a userdata", fault(form, core.null))
    end
    for _, f in ipairs { 5, true, core.null, { name = true }, { name = {} } } do
      assert.equal("messages[1]: tool_calls[2] has no function with a name", fault("lfm2", { ["function"] = f }))
    end
    assert.equal("messages[1]: tool_calls[2]: id must be a string", fault("lfm2", { id = {}, ["function"] = { name = "f" } }))
  end)

  it("are written where the template does not do so", function()
    assert.equal('Hm.<|tool_call_start|>[get_weather(city="Rom", z=1)]<|tool_call_end|>',
      render("{{ messages[0].content }}{# <|tool_list_start|> #}", { { role = "assistant", content = "Hm.", tool_calls = { CALL } } }))
    assert.equal('<|tool_call|>[{"name": "get_weather", "arguments": {"z": 1, "city": "Rom"}}]<|/tool_call|>',
      render("{{ messages[0].content }}{# <|tool|> #}", { { role = "assistant", tool_calls = { CALL } } }))
  end)

  it("show the tools to templates that look for them in the system's message", function()
    local messages, injected = tools.inject({ { role = "user", content = "x" } }, { GET }, "<|tool|>")
    assert.is_true(injected)
    assert.same({ "system", "", "user" }, { messages[1].role, messages[1].content, messages[2].role })
    assert.equal("get", core.json_decode(messages[1].tools)[1].name)
    messages = tools.inject({ { role = "system", content = "s" } }, { GET }, "<|tool|>")
    assert.same({ 1, "s" }, { #messages, messages[1].content })
    assert.is_false((select(2, tools.inject({}, { GET }, "<tool_call>"))))
  end)
end)
