-- Forms of calls of single families: arguments between tags (Qwen3-Coder, GLM), DeepSeek, gpt-oss, Functionary 3.2. The templates here
-- write calls as the families' own do.
local ane = require "ane"
local calls = require "ane.tools.calls"
local core = require "ane.core"
local forms = require "ane.tools.forms"
local jinja = require "ane.jinja"
local tiny = require "support.tiny"
local tools = require "ane.tools"

local NAMES = { "qwen3-coder", "glm-4.5", "glm-4.7", "deepseek-v3", "deepseek-v3.1", "harmony", "functionary-v3.2" }

-- Templates that write the calls of a message, and the text that comes before them.
local TEMPLATES = {
  ["qwen3-coder"] = [[{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% set c = c.function %}
{{- '<tool_call>\n<function=' + c.name + '>\n' }}{% for k, v in c.arguments|items %}{{ '<parameter=' + k + '>\n' }}
{%- set v = v if v is string else v | tojson %}{{ v }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}
{%- endfor %}{% endfor %}]],
  ["glm-4.5"] = [[{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ '<tool_call>' + c.function.name + '\n' }}
{%- for k, v in c.function.arguments.items() %}{{ '<arg_key>' }}{{ k }}{{ '</arg_key>\n<arg_value>' }}
{{- v | tojson if v is not string else v }}
{{- '</arg_value>\n' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}{% endfor %}{# </arg_key>
<arg_value> #}]],
  ["glm-4.7"] = [[{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ '<tool_call>' + c.function.name }}
{%- for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson if v is not string else v }}</arg_value>
{%- endfor %}{{ '</tool_call>' }}{% endfor %}{% endfor %}]],
  ["deepseek-v3"] = [[{% for m in messages %}{% if m['content'] is none %}{% for c in m['tool_calls'] %}
{{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n' + '```json' + '\n'
+ c['function']['arguments'] + '\n' + '```' + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}{% endfor %}{% else %}{{ m['content'] }}{% endif %}
{%- endfor %}]],
  ["deepseek-v3.1"] = [[{% for m in messages %}{{ m['content'] }}{% for c in m['tool_calls'] %}{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'
+ c['function']['name'] + '<｜tool▁sep｜>' + c['function']['arguments'] + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}{% endfor %}{% endfor %}]],
  harmony = [[{{ tools }}{% for m in messages %}{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}{{ " to=" }}
{{- "functions." + c.name + "<|channel|>commentary json<|message|>" }}{{ c.arguments|tojson }}{% else %}{{ m.content }}{% endif %}
{%- endfor %}]],
  ["functionary-v3.2"] = [[{{ tools }}{% for m in messages %}{% if m['content'] %}{{ '>>>all\n' + m['content'] }}{% endif %}
{%- for c in m['tool_calls'] %}{{ '>>>' + c['function']['name'] + '\n' + c['function']['arguments'] }}{% endfor %}{% endfor %}]],
}

local FIND = { type = "function", ["function"] = { name = "find", description = "Finds lines.", parameters = {
  type = "object", required = { "text" },
  properties = {
    text = { type = "string", maxLength = 30 }, kind = { type = "string", enum = { "line", "word" } },
    most = { type = "integer", minimum = 1 }, where = { type = "array", items = { type = "string" } },
    note = { anyOf = { { type = "string" }, { type = "null" } } } } } } }
local NOW = { type = "function", ["function"] = { name = "now" } }

local ARGUMENTS = { kind = "word", most = 12, text = "12", where = { "a<b", "</x>" } }

local function render(name, messages)
  local vars = { messages = assert(tools.messages(messages, TEMPLATES[name])), tools = "" }
  return (assert(assert(jinja.compile(TEMPLATES[name])):render(assert(jinja.from_lua(vars, "x")))))
end

describe("the families' forms", function()
  for _, name in ipairs(NAMES) do
    it("are found by template, and written by it as the grammar takes them and as they are read: " .. name, function()
      assert.equal(name, assert(forms.of(TEMPLATES[name])).name)
      local plan = assert(tools.plan(TEMPLATES[name], { tools = { FIND, NOW } }))
      for _, arguments in ipairs { core.json_encode(ARGUMENTS, { sort = true }), '{"text": "two\\nlines"}' } do
        local text = render(name, { { role = "assistant",
          tool_calls = { { id = "1", type = "function", ["function"] = { name = "find", arguments = arguments } } } } })
        assert.is_true(plan.grammar:matches(text), text)
        local said, found = tools.parse(text, { template = TEMPLATES[name], tools = { FIND, NOW } })
        assert.same({ "", "find" }, { said, found[1]["function"].name })
        assert.same(core.json_decode(arguments), tools.arguments(found[1]))
      end
    end)
  end
end)

describe("arguments between tags", function()
  local list = assert(tools.check { FIND, NOW })
  local grammar = assert(calls.grammar(forms.named "qwen3-coder", list, {}))

  local function text(members)
    local parts = { "<tool_call>\n<function=find>\n" }
    for i, m in ipairs(members) do parts[i + 1] = ("<parameter=%s>\n%s\n</parameter>\n"):format(m[1], m[2]) end
    return table.concat(parts) .. "</function>\n</tool_call>"
  end

  it("fulfil the schema", function()
    assert.is_true(grammar:matches(text { { "text", "a\n</parameter> b" } }))
    assert.is_true(grammar:matches(text { { "text", "" } }))
    assert.is_true(grammar:matches(text { { "note", "null" }, { "text", "x" } }))
    assert.is_true(grammar:matches(text { { "text", "x" }, { "where", '["a"]' } }))
    assert.is_false(grammar:matches(text {}))
    assert.is_false(grammar:matches(text { { "most", "0" }, { "text", "x" } }))
    assert.is_false(grammar:matches(text { { "kind", "page" }, { "text", "x" } }))
    assert.is_false(grammar:matches(text { { "text", ("x"):rep(31) } }))
    assert.is_false(grammar:matches(text { { "text", "x" }, { "other", "x" } }))
  end)

  it("keep the types of the schema", function()
    local function read(members, known)
      local _, found = tools.parse(text(members), { form = "qwen3-coder", tools = known and { FIND } or nil })
      return tools.arguments(found[1])
    end
    assert.same({ text = "true", most = 3, note = core.null }, read({ { "text", "true" }, { "most", "3" }, { "note", "null" } }, true))
    assert.same({ text = true, most = 3, note = "free text" }, read { { "text", "True" }, { "most", "3" }, { "note", "free text" } })
  end)

  it("are texts where they are no single value", function()
    local members = { { "a", "" }, { "b", "1, 2" }, { "c", "1], [2" }, { "d", " 1 " }, { "e", "NaN" }, { "f", "01" }, { "g", "null" } }
    local _, found = tools.parse(text(members), { form = "qwen3-coder" })
    assert.same({ a = "", b = "1, 2", c = "1], [2", d = 1, e = "NaN", f = "01", g = core.null }, tools.arguments(found[1]))
  end)

  it("may be strings by reference", function()
    local checked = assert(tools.check { { name = "f", parameters = { type = "object", required = { "a" },
      properties = { a = { ["$ref"] = "#/$defs/word" } }, ["$defs"] = { word = { type = "string", enum = { "x", "y" } } } } } })
    local made = assert(calls.grammar(forms.named "glm-4.7", checked, {}))
    assert.is_true(made:matches "<tool_call>f<arg_key>a</arg_key><arg_value>y</arg_value></tool_call>")
    assert.is_false(made:matches "<tool_call>f<arg_key>a</arg_key><arg_value>z</arg_value></tool_call>")
  end)

  it("that cannot be written are an error", function()
    local function fault(properties)
      local made, message, code = calls.grammar(forms.named "glm-4.5",
        assert(tools.check { { name = "f", parameters = { type = "object", properties = properties } } }), {})
      assert.same({ nil, "unsupported" }, { made, code })
      return message
    end
    assert.matches("^tools: f: parameters: pattern: /properties/a/pattern cannot", fault { a = { type = "string", pattern = "x" } })
    assert.matches('^tools: f: parameters: properties: the name "a<b" cannot', fault { ["a<b"] = { type = "string" } })
    assert.matches("^tools: f: parameters: enum: /properties/a/enum cannot", fault { a = { enum = { "x</arg_value>\n" } } })
  end)
end)

describe("gpt-oss", function()
  it("shows the text of channels, except that of analysis", function()
    local text = "<|channel|>analysis<|message|>Hm, a < b.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert.same({ "Yes.", {} }, { tools.parse(text, { form = "harmony" }) })
    assert.same({ "Plain.", {} }, { tools.parse("Plain.", { form = "harmony" }) })
    assert.same({ "", {} }, { tools.parse("<|channel|>analysis<|message|>Hm.", { form = "harmony" }) })
    local said, found = tools.parse("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
      .. "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}", { form = "harmony" })
    assert.same({ "I look.", "now" }, { said, found[1]["function"].name })
  end)
end)

describe("Functionary 3.2", function()
  it("names a recipient before each text", function()
    assert.same({ "Hello", {} }, { tools.parse("all\nHello", { form = "functionary-v3.2", tools = { NOW } }) })
    local said, found = tools.parse('all\nI look.>>>now\n{}>>>find\n{"text": "a"}',
      { form = "functionary-v3.2", tools = { NOW, FIND } })
    assert.same({ "I look.", "now", "find" }, { said, found[1]["function"].name, found[2]["function"].name })
    assert.same({ "nowhere\n", {} }, { tools.parse("nowhere\n", { form = "functionary-v3.2", tools = { NOW } }) })
    local none, message, code = tools.parse("now\n{}", { form = "functionary-v3.2" })
    assert.same({ nil, "invalid" }, { none, code })
    assert.matches("without the option tools", message)
  end)
end)

describe("DeepSeek's templates", function()
  it("have no place for tools, which are described in the system's message", function()
    local messages, injected = tools.inject({ { role = "user", content = "x" } }, { FIND }, TEMPLATES["deepseek-v3.1"])
    assert.is_true(injected)
    assert.equal("system", messages[1].role)
    assert.matches("### find\nDescription: Finds lines.\n\nParameters: {", messages[1].content, 1, true)
    assert.matches("<｜tool▁call▁begin｜>tool_name<｜tool▁sep｜>", messages[1].content, 1, true)
    messages = tools.inject({ { role = "system", content = "Be brief." } }, { FIND }, TEMPLATES["deepseek-v3.1"])
    assert.matches("^Be brief%.\n\n## Tools", messages[1].content)
    assert.is_false((select(2, tools.inject({}, { FIND }, "{{ tools }}" .. TEMPLATES["deepseek-v3.1"]))))
  end)
end)

describe("replies in the families' forms", function()
  local model

  setup(function() model = tiny.load() end)
  teardown(function() model:close() end)

  local function saying(text) return tiny.saying(model, text) end

  for _, name in ipairs(NAMES) do
    it("hold text and calls: " .. name, function()
      model.tokenizer.chat_templates = { default = TEMPLATES[name] }
      local form, opening = forms.named(name), forms.named(name).says or ""
      local empty = form.arguments == "json" and "{}" or ""
      local call = form.first .. form.call:gsub("{(%l+)}", { name = "now", arguments = empty }) .. form.last
      local message = { { role = "user", content = "Hi" } }
      local function reply(text, opts)
        local all = { tools = { FIND, NOW }, logits_processor = saying(text), details = true, max_tokens = 200 }
        for key, value in pairs(opts or {}) do all[key] = value end
        return assert(model:generate(message, all))
      end
      local result = reply(opening .. "Hello.")
      assert.same({ "Hello.", "eos" }, { result.text, result.stop })
      result = reply(call)
      assert.same({ "", "tool_calls", "now", "{}" },
        { result.text, result.stop, result.tool_calls[1]["function"].name, result.tool_calls[1]["function"].arguments })
      result = reply("Never.", { tool_choice = "now" })
      assert.same({ "", "now" }, { result.text, result.tool_calls[1]["function"].name })
      for seed = 1, 2 do
        result = reply("?", { tool_choice = "required", temperature = 1.5, seed = seed, max_tokens = 120 })
        for _, one in ipairs(result.tool_calls or {}) do assert.is_table(ane.tools.arguments(one)) end
      end
    end)
  end
end)
