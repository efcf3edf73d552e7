-- POST /v1/responses with tools: calls of functions as items, whole and streamed, and what the functions gave as input.
local ane = require "ane"
local core = require "ane.core"
local http = require "support.http"
local tiny = require "support.tiny"

if not http.available then
  describe("responses with tools", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

-- The template's form is that of Hermes.
local TEMPLATE = [[{% if tools %}{{ tools | tojson }}<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}
{%- for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}
{%- endfor %}
assistant:]]

local ADD = {
  type = "function", name = "add", description = "Adds.", strict = true, parameters = {
    type = "object", required = { "a", "b" }, additionalProperties = false,
    properties = { a = { type = "integer", minimum = 0, maximum = 99 }, b = { type = "boolean" } },
  },
}

describe("responses with tools", function()
  local model, server

  setup(function()
    model = tiny.load()
    model.tokenizer.chat_templates = { default = TEMPLATE }
    server = assert(ane.serve(model, { port = 0 }))
  end)

  teardown(function()
    server:close()
    model:close()
  end)

  local function body(more)
    local out = { input = "1 + true?", tools = { ADD }, temperature = 0, max_output_tokens = 150 }
    for key, value in pairs(more or {}) do out[key] = value end
    return out
  end

  local function post(more) return http.post(server, "/v1/responses", body(more)) end

  it("are calls, with arguments of their schema", function()
    local answer = post { tool_choice = "required", parallel_tool_calls = false }.json
    assert.same({ "completed", 1, "required", false }, { answer.status, #answer.output, answer.tool_choice, answer.parallel_tool_calls })
    assert.equal("add", answer.tools[1].name)
    local call = answer.output[1]
    assert.same({ "function_call", "completed", "add" }, { call.type, call.status, call.name })
    assert.matches("^fc_", call.id)
    local arguments = assert(core.json_decode(call.arguments))
    assert.same({ "integer", "boolean" }, { math.type(arguments.a), type(arguments.b) })
    local named = post { tool_choice = { type = "function", name = "add" } }.json
    assert.equal("add", named.output[1].name)
  end)

  it("are the same as events", function()
    local want = post { tool_choice = "required", parallel_tool_calls = false }.json
    local events = http.events(post { tool_choice = "required", parallel_tool_calls = false, stream = true }.body)
    local kinds, arguments = {}, ""
    for i, event in ipairs(events) do
      assert.equal(i - 1, event.sequence_number)
      if kinds[#kinds] ~= event.type then kinds[#kinds + 1] = event.type end
      if event.type == "response.function_call_arguments.delta" then
        arguments = arguments .. event.delta
        assert.same({ 0, events[3].item.id }, { event.output_index, event.item_id })
      end
    end
    assert.same({
      "response.created", "response.in_progress", "response.output_item.added", "response.function_call_arguments.delta",
      "response.function_call_arguments.done", "response.output_item.done", "response.completed",
    }, kinds)
    assert.equal(want.output[1].arguments, arguments)
    local last = events[#events].response
    assert.same({ arguments, "completed", 1 }, { last.output[1].arguments, last.output[1].status, #last.output })
  end)

  it("hold an incomplete call where the reply is cut", function()
    local function shape(response)
      local out = {}
      for i, item in ipairs(response.output) do
        out[i] = { item.type, item.status, item.name or false, item.arguments or false, item.content and item.content[1].text }
      end
      return out
    end
    for n = 1, 25, 2 do
      local answer = post { tool_choice = "required", max_output_tokens = n }.json
      assert.equal("incomplete", answer.status)
      local events = http.events(post { tool_choice = "required", max_output_tokens = n, stream = true }.body)
      local last = events[#events]
      assert.equal("response.incomplete", last.type)
      assert.same(shape(answer), shape(last.response))
      -- The text of the call is a message after it.
      local message, call = answer.output[#answer.output], answer.output[#answer.output - 1]
      assert.same({ "message", "incomplete" }, { message.type, message.status })
      if call then assert.same({ "function_call", "incomplete" }, { call.type, call.status }) end
      assert.is_truthy(("<tool_call>\n"):find(message.content[1].text, 1, true) or message.content[1].text:find "^<tool_call>\n")
    end
  end)

  it("take calls and what they gave as input", function()
    local arguments = '{"a": 1, "b": true}'
    local call = {
      type = "function_call", id = "fc_1", call_id = "call_1", name = "add", arguments = arguments, status = "completed",
    }
    local items = {
      { role = "user", content = "1 + true?" }, call, { type = "function_call_output", call_id = "call_1", output = "2" },
    }
    local answer = post { input = items, tool_choice = "none", max_output_tokens = 8 }
    assert.equal(200, answer.status)
    -- The prompt is that of the same chat.
    local same = http.post(server, "/v1/chat/completions", {
      temperature = 0, max_tokens = 8, messages = {
        { role = "user", content = "1 + true?" },
        { role = "assistant", tool_calls = {
          { id = "call_1", type = "function", ["function"] = { name = "add", arguments = arguments } },
        } },
        { role = "tool", tool_call_id = "call_1", name = "add", content = "2" },
      },
    }).json
    assert.equal(same.usage.prompt_tokens, answer.json.usage.input_tokens)
    assert.equal(same.choices[1].message.content, answer.json.output[1].content[1].text)
  end)

  it("take items back with all fields of the client's types, unused ones as null", function()
    local null = core.null
    local answer = post {
      input = {
        { role = "user", content = "Hello" },
        { type = "message", id = "msg_1", role = "assistant", status = "completed", phase = null, content = {
          { type = "output_text", text = "Hi", annotations = core.json_array {}, logprobs = null, later = null },
        } },
        { type = "function_call", call_id = "c", name = "add", arguments = "{}", id = null, namespace = null, caller = null },
        { type = "function_call_output", call_id = "c", output = "2", name = null },
      },
      reasoning = { effort = null, summary = null }, tool_choice = "none", max_output_tokens = 4,
    }
    assert.equal(200, answer.status, answer.body)
    local choice = post {
      input = "x", tool_choice = { type = "allowed_tools", mode = "required", tools = { { type = "function", name = "add" } } },
    }
    assert.equal("function_call", choice.json.output[1].type)
  end)

  it("take items whose type is null as messages, and name other types that are no strings", function()
    local said = { type = core.null, role = "user", content = "x" }
    assert.equal(200, post({ input = { said }, max_output_tokens = 1 }).status)
    for message, item in pairs {
      ["field input[0].type must be a string, but is {}"] = { type = core.json_object(), role = "user", content = "x" },
      ["field input[0].type must be a string, but is 5"] = { type = 5, role = "user", content = "x" },
      ["field input[0].content[0].type is missing"] = { role = "user", content = { { type = core.null, text = "x" } } },
      ["field input[0].content[0].type must be a string, but is false"] = { role = "user", content = { { type = false, text = "x" } } },
    } do
      assert.equal(message, post({ input = { item } }).json.error.message)
    end
  end)

  it("refuse what they do not support, by name", function()
    local function param(more)
      local answer = post(more)
      assert.equal(400, answer.status)
      return answer.json.error.param
    end
    assert.equal("tools[0].type", param { tools = { { type = "web_search" } } })
    assert.equal("tools[0].name", param { tools = { { type = "function" } } })
    assert.equal("input[0].type", param { input = { { type = "item_reference", id = "x" } } })
    assert.equal("input[0].call_id", param { input = { { type = "function_call_output", call_id = "x", output = "2" } } })
    assert.equal("input[0].arguments", param { input = { { type = "function_call", call_id = "x", name = "add" } } })
    assert.equal("input", param { input = core.json_array {} })
    assert.equal("text", param { text = 3 })
    assert.equal("reasoning.effort", param { reasoning = { effort = "low" } })
    assert.equal("input[0].phase", param { input = { { role = "user", content = "x", phase = "commentary" } } })
    assert.equal("tool_choice", param { tools = core.json_array {}, tool_choice = "required" })
  end)
end)
