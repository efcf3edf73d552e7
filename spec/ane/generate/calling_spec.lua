-- Replies that may call tools, by a tiny model that is made to say what a text says, as far as it may.
local ane = require "ane"
local core = require "ane.core"
local tiny = require "support.tiny"

-- The template's form is that of Hermes.
local TEMPLATE = [[{% if tools %}{{ tools | tojson }}<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}
{%- for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}
{%- endfor %}
assistant:]]

local TOOLS = {
  { type = "function", ["function"] = { name = "add", parameters = { type = "object", required = { "a", "b" },
    properties = { a = { type = "integer", minimum = 0, maximum = 99 }, b = { type = "integer" } } } } },
  { type = "function", ["function"] = { name = "now", parameters = { type = "object", properties = {} } } },
}

local ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
local NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'

describe("replies with tools", function()
  local model

  setup(function()
    model = tiny.load()
    model.tokenizer.chat_templates = { default = TEMPLATE, plain = "{{ messages[0].content }}", other = "{{ tools }}" }
  end)
  teardown(function() model:close() end)

  local function saying(text) return tiny.saying(model, text) end

  local function reply(text, opts)
    local all = { tools = TOOLS, logits_processor = text and saying(text), details = true, max_tokens = 300 }
    for key, value in pairs(opts or {}) do all[key] = value end
    return assert(model:generate({ { role = "user", content = "Hi" } }, all))
  end

  local function called(result)
    local out = {}
    for i, call in ipairs(result.tool_calls or {}) do out[i] = call["function"].name .. call["function"].arguments end
    return table.concat(out, " ")
  end

  it("are text where no tool is called", function()
    local result = reply "A text with <tool> and {braces}."
    assert.same({ "A text with <tool> and {braces}.", "eos", true }, { result.text, result.stop, result.grammar_complete })
    assert.is_nil(result.tool_calls)
  end)

  it("list the calls, which are not part of the text", function()
    local result = reply("Let me see.\n" .. ADD)
    assert.same({ "Let me see.\n", "tool_calls", true }, { result.text, result.stop, result.grammar_complete })
    assert.equal('add{"a": 1, "b": 2}', called(result))
    assert.equal("function", result.tool_calls[1].type)
    result = reply(ADD .. "\n" .. NOW)
    assert.same({ "", 'add{"a": 1, "b": 2} now{}' }, { result.text, called(result) })
    assert.are_not.equal(result.tool_calls[1].id, result.tool_calls[2].id)
  end)

  it("keep to the schema from the call's beginning on", function()
    for seed = 1, 6 do -- the model knows nothing: what it says behind the tag is drawn
      local result = reply("<tool_call>", { temperature = 1.5, seed = seed, max_tokens = 200, logits_processor = saying "<tool_call>{" })
      for _, call in ipairs(result.tool_calls or {}) do
        local arguments = assert(core.json_decode(call["function"].arguments))
        if call["function"].name == "add" then
          assert.is_true(arguments.a >= 0 and arguments.a <= 99 and arguments.a % 1 == 0, call["function"].arguments)
          assert.equal(math.floor(arguments.b), arguments.b) -- of many digits a float
        else
          assert.is_nil(next(arguments))
        end
      end
    end
    local result = reply('<tool_call>\n{"name": "add", "arguments": {"a": 100, "b": 2}}\n</tool_call>')
    assert.are_not.equal(100, result.tool_calls and core.json_decode(result.tool_calls[1]["function"].arguments).a)
  end)

  it("call one tool at most where several are not wanted", function()
    local result = reply(ADD .. "\n" .. NOW, { parallel_tool_calls = false })
    assert.same({ "tool_calls", 'add{"a": 1, "b": 2}' }, { result.stop, called(result) })
  end)

  it("must call where calls are required", function()
    local result = reply("No.", { tool_choice = "now" })
    assert.same({ "tool_calls", "now{}", "" }, { result.stop, called(result), result.text })
    result = reply(NOW, { tool_choice = "required" })
    assert.same({ "tool_calls", "now{}" }, { result.stop, called(result) })
    result = reply(nil, { tool_choice = "required", parallel_tool_calls = false, temperature = 2, seed = 3, max_tokens = 400 })
    assert.equal(result.stop == "tool_calls", result.grammar_complete)
  end)

  it("see no tools where none may be called", function()
    local result = reply(NOW, { tool_choice = "none" })
    assert.same({ NOW, "eos" }, { result.text, result.stop })
    assert.is_nil(result.tool_calls)
    local with = reply("x").prompt_ids
    assert.is_true(#result.prompt_ids < #with)
  end)

  it("report calls as they come: the name, then the arguments", function()
    local told = {}
    reply("Hm. " .. ADD .. "\n" .. NOW, { on_tool_call = function(delta) told[#told + 1] = delta end })
    assert.same({ "add", 1 }, { told[1].name, told[1].index })
    local texts, names = { "", "" }, {}
    for _, d in ipairs(told) do
      if d.name then names[d.index] = d.name else texts[d.index] = texts[d.index] .. d.arguments end
    end
    assert.same({ { "add", "now" }, { '{"a": 1, "b": 2}', "{}" } }, { names, texts })
    assert.is_true(#told > 6)
  end)

  it("that end early contain no incomplete call", function()
    local result = reply(NOW .. "\n" .. ADD, { max_tokens = #model.tokenizer:encode(NOW, { bos = false }) + 20 })
    assert.equal("length", result.stop)
    assert.is_false(result.grammar_complete)
    assert.equal("now{}", called(result))
    assert.equal("add", result.tool_call_cut["function"].name)
    assert.matches('^\n<tool_call>\n{"name": "add"', result.text)
    assert.equal(result.text, result.tool_call_cut.text)
  end)

  it("that end early lose no text, whatever they end in", function()
    local whole = "Well. " .. NOW .. "\n" .. ADD
    local all = model.tokenizer:encode(whole, { bos = false })
    for n = 1, #all - 1, 3 do
      local written = model.tokenizer:decode(table.move(all, 1, n, 1, {}))
      local result = reply(whole, { max_tokens = n, stop = { '"a": 1' } })
      local first, last = written:find(NOW, 1, true)
      assert.same({ first and written:sub(1, first - 1) .. written:sub(last + 1) or written, first and "now{}" or "" },
        { result.text, called(result) })
      local pieces = {}
      local stream <close> = assert(model:stream({ { role = "user", content = "Hi" } },
        { tools = TOOLS, logits_processor = saying(whole), max_tokens = n }))
      for piece in stream do pieces[#pieces + 1] = piece end
      assert.equal(result.text, table.concat(pieces))
    end
  end)

  it("may be constrained besides: calls, or texts of the grammar", function()
    local grammar = assert(ane.grammar.choice { "yes", "no, never" })
    local result = reply("no, never", { grammar = grammar })
    assert.same({ "no, never", true }, { result.text, result.grammar_complete })
    result = reply("perhaps", { grammar = grammar })
    assert.is_true(grammar:matches(result.text) or result.tool_calls ~= nil)
    result = reply(NOW, { grammar = grammar })
    assert.same({ "tool_calls", "now{}", "" }, { result.stop, called(result), result.text })
  end)

  it("keep to the tools in calls that follow any number of blanks", function()
    for _, blanks in ipairs { 0, 60, 79, 80, 81, 120 } do
      local result = reply((" \n"):rep(blanks) .. '{"name": "nope", "arguments": {}}')
      for _, call in ipairs(result.tool_calls or {}) do assert.are_not.equal("nope", call["function"].name) end
      assert.is_true(result.tool_calls ~= nil or result.tool_call_cut ~= nil)
    end
    local result = reply(("x"):rep(90) .. ' {"name": "nope", "arguments": {}}')
    assert.same({ ("x"):rep(90) .. ' {"name": "nope", "arguments": {}}', "eos" }, { result.text, result.stop })
  end)

  it("are the same with drafts, and in a pool", function()
    local messages = { { role = "user", content = "Hi" } }
    local opts = { tools = TOOLS, tool_choice = "required", parallel_tool_calls = false, max_tokens = 120, details = true }
    local plain = assert(model:generate(messages, opts))
    opts.speculate = true
    assert.same(plain.ids, assert(model:generate(messages, opts)).ids)
    local pool <close> = assert(model:pool())
    opts.speculate, opts.details = nil, nil
    local request = assert(pool:add(messages, opts))
    pool:run()
    assert.same({ plain.ids, plain.stop, called(plain) }, { request.result.ids, request.result.stop, called(request.result) })
  end)

  it("make a conversation with results", function()
    local chat <close> = assert(model:chat { tools = TOOLS, max_tokens = 200 })
    local text, calls = chat:say("What is 1 + 2?", { logits_processor = saying(ADD) })
    assert.same({ "", "add" }, { text, calls[1]["function"].name })
    assert.same({ "assistant", calls }, { chat.messages[2].role, chat.messages[2].tool_calls })
    local result = { role = "tool", tool_call_id = calls[1].id, name = "add", content = "3" }
    assert.equal("3.", (chat:say(result, { logits_processor = saying "3." })))
    local prompt = assert(chat:render())
    assert.matches('assistant: <add {"a": 1, "b": 2}>tool: 3assistant: 3%.', prompt)
    assert.matches('"now", "parameters": {"type": "object", "properties": {}}', prompt)
    local pieces = {}
    for piece in chat:stream("And now?", { logits_processor = saying("It is: " .. NOW) }) do pieces[#pieces + 1] = piece end
    assert.equal("It is: ", table.concat(pieces))
    assert.equal("now{}", called(chat.last))
  end)

  it("fail if the template has no form of calls, or a tool cannot be called", function()
    local function fault(opts)
      opts.max_tokens = 1
      local got, message, code = model:generate({ { role = "user", content = "Hi" } }, opts)
      assert.is_nil(got)
      return message, code
    end
    assert.same({ "the model's chat template does not support tools", "unsupported" }, { fault { tools = TOOLS, template = "plain" } })
    local message, code = fault { tools = TOOLS, template = "other" }
    assert.equal("unsupported", code)
    assert.matches("tool_form", message)
    assert.is_truthy(model:generate({ { role = "user", content = "Hi" } },
      { tools = TOOLS, template = "other", tool_form = "llama3", max_tokens = 1 }))
    assert.matches("entry 1 has no name", (fault { tools = { {} } }))
    local text, why_not, kind = model:generate("Hi", { tools = TOOLS, max_tokens = 1 })
    assert.same({ nil, "invalid" }, { text, kind })
    assert.matches("^option tools needs a list of messages", why_not)
    assert.is_truthy(model:generate("Hi", { tools = {}, max_tokens = 1 }))
    assert.matches("tool_choice must be", (fault { tools = TOOLS, tool_choice = "sub" }))
    assert.matches("entry 1 has no name", (select(2, model:chat { tools = { {} } })))
    local chat <close> = assert(model:chat())
    local said, why = chat:say("Hi", { tools = { {} } })
    assert.is_nil(said)
    assert.matches("entry 1 has no name", why)
    assert.equal(0, #chat.messages)
    assert.has_error(function() model:generate({ { role = "user", content = "Hi" } }, { tools = TOOLS, tool_form = "x" }) end)
  end)
end)
