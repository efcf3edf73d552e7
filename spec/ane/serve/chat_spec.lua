-- The server's endpoints of generated text, over real sockets.
local ane = require "ane"
local core = require "ane.core"
local http = require "support.http"
local tiny = require "support.tiny"

if not http.available then
  describe("the server", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

local HELLO = { { role = "user", content = "Hello" } }

local model, server

setup(function()
  model = tiny.load()
  server = assert(ane.serve(model, { port = 0, sessions = 2, queue = 4 }))
end)

teardown(function()
  server:close()
  model:close()
end)

-- What the model answers without a server.
local function alone(prompt, opts)
  opts.details = true
  return assert(model:generate(prompt, opts))
end

-- A body of a chat, with more fields.
local function chat(fields)
  local body = { messages = HELLO, max_tokens = 12, temperature = 0 }
  for key, value in pairs(fields or {}) do body[key] = value end
  return body
end

describe("POST /v1/chat/completions", function()
  it("gives the reply that the model gives", function()
    local want = alone(HELLO, { max_tokens = 12 })
    local answer = http.post(server, "/v1/chat/completions", chat())
    assert.equal(200, answer.status)
    local value = answer.json
    assert.equal("chat.completion", value.object)
    assert.equal("llama-q8_0", value.model)
    assert.matches("^chatcmpl%-%x+$", value.id)
    assert.equal(1, #value.choices)
    assert.equal("assistant", value.choices[1].message.role)
    assert.equal((want.text:gsub("[\x80-\xff]+", "?")), (value.choices[1].message.content:gsub("[\x80-\xff]+", "?")))
    assert.equal("length", value.choices[1].finish_reason)
    assert.equal(#want.prompt_ids, value.usage.prompt_tokens)
    assert.equal(12, value.usage.completion_tokens)
    assert.equal(#want.prompt_ids + 12, value.usage.total_tokens)
  end)

  it("names the fields and values that it does not take", function()
    local error = http.post(server, "/v1/chat/completions", chat { stream_options = { include_usage = true } }).json.error
    assert.same({ "stream_options", "field stream_options needs stream" }, { error.param, error.message })
    local message = http.post(server, "/v1/chat/completions", chat { wrong = 1 }).json.error.message
    assert.matches("^unknown field wrong; the fields are .*temperature", message)
    for _, name in ipairs { "functions", "function_call", "prediction", "verbosity" } do assert.is_nil(message:find(name, 1, true)) end
    assert.equal('field messages must be a list, but is "hi"',
      http.post(server, "/v1/chat/completions", { messages = "hi" }).json.error.message)
    assert.equal("field prompt must be a text, a list of texts or a list of token ids, but is an object",
      http.post(server, "/v1/completions", { prompt = { a = 1 } }).json.error.message)
    for text, body in pairs {
      ["field prompt must be a string or a list, but is 5"] = { prompt = 5 },
      ["field stop must be a string or a list, but is 5"] = { prompt = "a", stop = 5 },
      ["field model must be a string, but is an object"] = { prompt = "a", model = { x = 1 } },
      ["field model must be a string, but is a list"] = { prompt = "a", model = { 1 } },
    } do
      assert.equal(text, http.post(server, "/v1/completions", body).json.error.message)
    end
    local tool = { type = "function", ["function"] = { name = "a b" } }
    assert.equal('tools: the name of a tool must be 1 .. 64 letters, digits, _, - and ., but is "a b"',
      http.post(server, "/v1/chat/completions", chat { tools = { tool } }).json.error.message)
    assert.equal("field tool_choice must be a string or an object, but is 5",
      http.post(server, "/v1/chat/completions", chat { tool_choice = 5 }).json.error.message)
    error = http.post(server, "/v1/completions", { prompt = ("a "):rep(5000) }).json.error
    assert.equal("context_length_exceeded", error.code)
    assert.matches("^this model's maximum context length is %d+ tokens, the prompt has %d+$", error.message)
  end)

  it("tells a grammar that is too large from a prompt beyond the context", function()
    local rules = { 'root ::= "b"' }
    for i = 2, (1 << 16) + 1 do rules[i] = ("r%d::=[a]"):format(i) end
    local error = http.post(server, "/v1/completions", { prompt = "a", grammar = table.concat(rules, "\n") }).json.error
    assert.matches("^%d+ rules: 1 to 65536 are possible$", error.message)
    assert.same({ "grammar", "unsupported" }, { error.param, error.code })
  end)

  it("takes token ids in one spelling as keys of logit_bias", function()
    local function bias(key) return http.post(server, "/v1/completions", { prompt = "a", max_tokens = 1, logit_bias = { [key] = 1 } }) end
    assert.equal(200, bias("5").status)
    for _, key in ipairs { "5.0", "0x5", " 5", "05", "5e0", "-1", "1024", "x", "" } do
      assert.equal(("field logit_bias has the key %s: keys are token ids, 0 .. 1023"):format(key), bias(key).json.error.message)
    end
  end)

  it("lists the chosen token beside the best ones, in completions", function()
    local probabilities = http.post(server, "/v1/completions", { prompt = "a", max_tokens = 4, logprobs = 0 }).json.choices[1].logprobs
    for i, token in ipairs(probabilities.tokens) do
      assert.same({ [token] = probabilities.token_logprobs[i] }, setmetatable(probabilities.top_logprobs[i], nil))
    end
  end)

  it("streams the same", function()
    local whole = http.post(server, "/v1/chat/completions", chat()).json
    local answer = http.post(server, "/v1/chat/completions", chat { stream = true, stream_options = { include_usage = true } })
    assert.equal("text/event-stream; charset=utf-8", answer.headers["content-type"])
    local events = http.events(answer.body)
    assert.equal("[DONE]", events[#events])
    assert.equal("assistant", events[1].choices[1].delta.role)
    local text, reason = "", nil
    for i = 1, #events - 1 do
      local event = events[i]
      assert.equal("chat.completion.chunk", event.object)
      assert.equal(events[1].id, event.id)
      local choice = event.choices[1]
      if choice then
        text = text .. (choice.delta.content or "")
        reason = choice.finish_reason ~= ane.null and choice.finish_reason or reason
      end
    end
    assert.equal("length", reason)
    assert.equal(whole.choices[1].message.content, text)
    assert.equal(12, events[#events - 1].usage.completion_tokens)
    assert.same({}, { table.unpack(events[#events - 1].choices) })
  end)

  it("samples with a seed as the model does, n times", function()
    local body = chat { temperature = 0.9, seed = 5, n = 2, top_p = 0.95 }
    local choices = http.post(server, "/v1/chat/completions", body).json.choices
    assert.equal(2, #choices)
    for i, choice in ipairs(choices) do
      local want = alone(HELLO, { max_tokens = 12, temperature = 0.9, seed = 4 + i, top_p = 0.95 })
      assert.equal((want.text:gsub("[\x80-\xff]+", "?")), (choice.message.content:gsub("[\x80-\xff]+", "?")))
      assert.equal(i - 1, choice.index)
    end
  end)

  it("gives log probabilities, whole and streamed", function()
    local want = alone(HELLO, { max_tokens = 12, logprobs = 2 }).logprobs
    local body = chat { logprobs = true, top_logprobs = 2 }
    local content = http.post(server, "/v1/chat/completions", body).json.choices[1].logprobs.content
    assert.equal(12, #content)
    for i, entry in ipairs(content) do
      assert.is_true(math.abs(entry.logprob - want[i].logprob) < 1e-9)
      assert.equal(2, #entry.top_logprobs)
      assert.equal(string.char(table.unpack(entry.bytes)), model.tokenizer:token(want[i].id))
    end
    body.stream = true
    local streamed = 0
    for _, event in ipairs(http.events(http.post(server, "/v1/chat/completions", body).body)) do
      local choice = event ~= "[DONE]" and event.choices[1]
      if choice and choice.logprobs ~= ane.null then streamed = streamed + #choice.logprobs.content end
    end
    assert.equal(12, streamed)
  end)

  it("stops at a string and takes a bias", function()
    local plain = http.post(server, "/v1/chat/completions", chat()).json.choices[1].message.content
    local stop = plain:match "%a%a+"
    local answer = http.post(server, "/v1/chat/completions", chat { stop = stop }).json.choices[1]
    assert.equal("stop", answer.finish_reason)
    assert.equal(plain:sub(1, plain:find(stop, 1, true) - 1), answer.message.content)
    local first = alone(HELLO, { max_tokens = 1 }).ids[1]
    local other = http.post(server, "/v1/chat/completions", chat { logit_bias = { [tostring(first)] = -100 } }).json
    assert.not_equal(plain, other.choices[1].message.content)
  end)

  it("keeps to a JSON schema", function()
    local schema = { type = "object", properties = { ok = { type = "boolean" } }, required = { "ok" }, additionalProperties = false }
    local answer = http.post(server, "/v1/chat/completions", chat {
      max_tokens = 60, response_format = { type = "json_schema", json_schema = { name = "x", schema = schema } },
    }).json.choices[1]
    assert.equal("stop", answer.finish_reason)
    assert.equal("boolean", type(core.json_decode(answer.message.content).ok))
    local refused = http.post(server, "/v1/chat/completions", chat {
      response_format = { type = "json_schema", json_schema = { name = "x", schema = { type = "object", ["$recursiveRef"] = "#" } } },
    })
    assert.equal(400, refused.status)
    assert.equal("response_format", refused.json.error.param)
  end)

  -- A spelling that numbers of one value share: the digits between zeros, and the power of ten.
  local function value_of(text)
    local sign, whole, part, power = text:match "^(-?)(%d+)%.?(%d*)[eE]?([+-]?%d*)$"
    local digits, zeros = (whole .. part):gsub("^0+", ""):match "^(.-)(0*)$"
    return ("%s%se%d"):format(sign, digits, (tonumber(power) or 0) - #part + #zeros)
  end

  it("keeps to the numbers of a schema as they are written", function()
    local function ask(schema)
      local text = core.json_encode(chat {
        max_tokens = 60, response_format = { type = "json_schema", json_schema = { name = "x", schema = "SCHEMA" } },
      })
      return http.request(server, "POST", "/v1/chat/completions", (text:gsub('"SCHEMA"', function() return schema end))).json
    end
    for _, number in ipairs { "18446744073709551617", "-9007199254740993", "0.1", "1234567890.12345678901234567" } do
      local content = ask('{"const":' .. number .. "}").choices[1].message.content
      assert.equal(value_of(number), value_of(content))
    end
    local tie = ask '{"type":"integer","minimum":18446744073709551616,"exclusiveMaximum":18446744073709551617}'
    assert.equal("18446744073709551616", tie.choices[1].message.content)
    assert.equal("response_format", ask('{"minimum":1e400,"maximum":1e399,"type":"integer"}').error.param)
  end)

  it("names the field that it does not take", function()
    for field, value in pairs {
      frobnicate = 1, max_tokens = 0, temperature = 3, n = 0, frequency_penalty = 1, store = true, functions = {}, tool_choice = "required",
      logit_bias = { x = 1 }, stop = { "" }, top_logprobs = 2, stream_options = 3,
    } do
      local answer = http.post(server, "/v1/chat/completions", chat { [field] = value })
      assert.equal(400, answer.status, field)
      assert.equal(field, answer.json.error.param)
      assert.equal("invalid_request_error", answer.json.error.type)
      assert.matches(field, answer.json.error.message, 1, true)
    end
    -- Only lists of strings are lists.
    local object = http.post(server, "/v1/chat/completions", chat { stop = core.json_object() })
    assert.same({ 400, "stop" }, { object.status, object.json.error.param })
    local image = { { role = "user", content = { { type = "image_url", image_url = { url = "x" } } } } }
    local answer = http.post(server, "/v1/chat/completions", chat { messages = image })
    assert.equal("messages[0].content[0].type", answer.json.error.param)
  end)

  it("refuses another model's name and a prompt beyond the context", function()
    local answer = http.post(server, "/v1/chat/completions", chat { model = "gpt-9" })
    assert.equal(404, answer.status)
    assert.equal("model_not_found", answer.json.error.code)
    answer = http.post(server, "/v1/chat/completions", chat { messages = { { role = "user", content = ("word "):rep(6000) } } })
    assert.equal(400, answer.status)
    assert.equal("context_length_exceeded", answer.json.error.code)
  end)

  it("refuses a chat of more messages than the context has tokens, without reading it", function()
    local count = model.context + 1
    local messages = {}
    for i = 1, count do messages[i] = { role = "user", content = "" } end
    local answer = http.post(server, "/v1/chat/completions", chat { messages = messages })
    assert.equal(400, answer.status)
    assert.equal("context_length_exceeded", answer.json.error.code)
    assert.equal(("this model's maximum context length is %d tokens, the chat has %d messages"):format(count - 1, count),
      answer.json.error.message)
  end)
end)

describe("tools", function()
  -- The template's form is that of Hermes.
  local TEMPLATE = [[{% if tools %}{{ tools | tojson }}<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}
{%- for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}
{%- endfor %}
assistant:]]

  local ADD = {
    type = "function", ["function"] = {
      name = "add", description = "Adds.", parameters = {
        type = "object", required = { "a", "b" }, additionalProperties = false,
        properties = { a = { type = "integer", minimum = 0, maximum = 99 }, b = { type = "boolean" } },
      },
    },
  }

  local other, served

  setup(function()
    other = tiny.load()
    other.tokenizer.chat_templates = { default = TEMPLATE }
    served = assert(ane.serve(other, { port = 0 }))
  end)

  teardown(function()
    served:close()
    other:close()
  end)

  local function check(call)
    assert.equal("function", call.type)
    assert.equal("add", call["function"].name)
    local arguments = core.json_decode(call["function"].arguments)
    assert.equal("integer", math.type(arguments.a))
    assert.equal("boolean", type(arguments.b))
  end

  it("leave the text of a call in which the reply ends, as a whole and as chunks", function()
    for n = 1, 25, 3 do
      local body = chat { tools = { ADD }, tool_choice = "required", max_tokens = n }
      local choice = http.post(served, "/v1/chat/completions", body).json.choices[1]
      assert.same({ "length" }, { choice.finish_reason, choice.message.tool_calls })
      assert.is_truthy(("<tool_call>\n"):find(choice.message.content, 1, true) or choice.message.content:find "^<tool_call>\n")
      body.stream = true
      local said = {}
      for _, event in ipairs(http.events(http.post(served, "/v1/chat/completions", body).body)) do
        local one = event.choices and event.choices[1]
        if one and type(one.delta.content) == "string" then said[#said + 1] = one.delta.content end
      end
      assert.equal(choice.message.content, table.concat(said))
    end
  end)

  it("are called, with arguments of their schema", function()
    local body = chat { tools = { ADD }, tool_choice = "required", parallel_tool_calls = false, max_tokens = 120 }
    local choice = http.post(served, "/v1/chat/completions", body).json.choices[1]
    assert.equal("tool_calls", choice.finish_reason)
    assert.equal(1, #choice.message.tool_calls)
    check(choice.message.tool_calls[1])
    -- The same as a stream.
    body.stream = true
    local name, id, arguments, reason
    for _, event in ipairs(http.events(http.post(served, "/v1/chat/completions", body).body)) do
      local one = event ~= "[DONE]" and event.choices[1]
      for _, part in ipairs(one and one.delta.tool_calls or {}) do
        id, name = part.id or id, part["function"].name or name
        arguments = (arguments or "") .. part["function"].arguments
      end
      if one and one.finish_reason ~= ane.null then reason = one.finish_reason end
    end
    assert.equal("tool_calls", reason)
    assert.is_string(id)
    check { type = "function", ["function"] = { name = name, arguments = arguments } }
    assert.equal(choice.message.tool_calls[1]["function"].arguments, arguments)
  end)

  it("give their results back as messages", function()
    local call = { id = "call_1", type = "function", ["function"] = { name = "add", arguments = '{"a": 1, "b": true}' } }
    local answer = http.post(served, "/v1/chat/completions", chat {
      tools = { ADD }, tool_choice = "none",
      messages = {
        { role = "user", content = "1 + true?" }, { role = "assistant", content = ane.null, tool_calls = { call } },
        { role = "tool", tool_call_id = "call_1", content = "2" },
      },
    })
    assert.equal(200, answer.status)
    assert.equal("length", answer.json.choices[1].finish_reason)
  end)

  it("may have null wherever OpenAI's API lets fields be left out", function()
    local null = ane.null
    local parameters = core.json_decode '{"type":"object","properties":{"a":{"enum":["x",null],"default":null}},"required":["a"]}'
    for _, f in ipairs { { name = "f", description = null, parameters = parameters, strict = null }, { name = "f", parameters = null } } do
      local answer = http.post(served, "/v1/chat/completions", chat {
        tools = { { type = null, ["function"] = f } }, tool_choice = "required", max_tokens = 80,
        chat_template_kwargs = { some = null, list = { 1, null } },
        messages = { { role = "user", content = "hi", name = null, of_a_later_version = null } },
      })
      assert.equal(200, answer.status, answer.body)
      assert.equal("f", answer.json.choices[1].message.tool_calls[1]["function"].name)
    end
  end)

  it("may be narrowed to some", function()
    local other_tool = { type = "function", ["function"] = { name = "sub", parameters = ADD["function"].parameters } }
    local function choose(names, mode)
      local list = {}
      for i, name in ipairs(names) do list[i] = { type = "function", ["function"] = { name = name } } end
      return http.post(served, "/v1/chat/completions", chat {
        tools = { ADD, other_tool }, parallel_tool_calls = false, max_tokens = 120,
        tool_choice = { type = "allowed_tools", allowed_tools = { mode = mode, tools = core.json_array(list) } },
      })
    end
    for _, name in ipairs { "add", "sub" } do
      assert.equal(name, choose({ name }, "required").json.choices[1].message.tool_calls[1]["function"].name)
    end
    assert.equal(200, choose({ "add", "sub" }, "auto").status)
    assert.equal("tool_choice.allowed_tools.tools[1]", choose({ "add", "mul" }, "required").json.error.param)
    assert.equal("tool_choice.allowed_tools.tools", choose({}, "required").json.error.param)
    assert.equal("tool_choice.allowed_tools.mode", choose({ "add" }, "some").json.error.param)
  end)

  it("that no form can call, or whose schema cannot be kept, are refused", function()
    local wrong = { type = "function", ["function"] = { name = "no good", parameters = { type = "object" } } }
    assert.equal(400, http.post(served, "/v1/chat/completions", chat { tools = { wrong } }).status)
    local strange = { type = "function", ["function"] = { name = "x", parameters = { type = "object", ["$recursiveRef"] = "#" } } }
    assert.equal("tools", http.post(served, "/v1/chat/completions", chat { tools = { strange } }).json.error.param)
    for param, tool in pairs {
      ["tools[0].function.colour"] = { type = "function", ["function"] = { name = "x", colour = 1 } },
      ["tools[0].type"] = { type = "custom", custom = { name = "x" } }, ["tools[0].function"] = { type = "function" },
      ["tools[0].function.name"] = { type = "function", ["function"] = { parameters = { type = "object" } } },
    } do
      assert.equal(param, http.post(served, "/v1/chat/completions", chat { tools = { tool } }).json.error.param)
    end
    assert.equal("tool_choice", http.post(served, "/v1/chat/completions", chat { tools = { ADD }, tool_choice = "other" }).json.error.param)
    assert.equal("tool_choice", http.post(served, "/v1/chat/completions", chat { tools = { ADD }, tool_choice = { type = "custom" } })
      .json.error.param)
    other.tokenizer.chat_templates = { default = "{{ messages[0].content }}" }
    assert.equal("tools", http.post(served, "/v1/chat/completions", chat { tools = { ADD } }).json.error.param)
    other.tokenizer.chat_templates = { default = TEMPLATE }
    assert.equal(400, http.post(served, "/v1/chat/completions", chat { tools = { ADD }, tool_choice = { type = "function",
      ["function"] = { name = "other" } } }).status)
  end)
end)

describe("POST /v1/completions", function()
  it("continues texts and lists of ids", function()
    local want = { alone("Once", { max_tokens = 6 }), alone({ 5, 6, 7 }, { max_tokens = 6 }) }
    local answer = http.post(server, "/v1/completions", { prompt = "Once", max_tokens = 6, temperature = 0, echo = true })
    assert.equal(200, answer.status)
    assert.equal("Once" .. want[1].text, answer.json.choices[1].text)
    answer = http.post(server, "/v1/completions", { prompt = { { 5, 6, 7 }, { 5, 6, 7 } }, max_tokens = 6, temperature = 0 })
    assert.equal(2, #answer.json.choices)
    assert.equal(6, answer.json.usage.prompt_tokens)
    assert.equal(12, answer.json.usage.completion_tokens)
    assert.equal((want[2].text:gsub("[\x80-\xff]+", "?")), (answer.json.choices[2].text:gsub("[\x80-\xff]+", "?")))
  end)

  it("counts the known tokens of each prompt", function()
    local one, other, usage = { 9, 8, 7, 6, 5 }, { 19, 18, 17, 16, 15, 14 }, nil
    for _ = 1, 2 do
      usage = http.post(server, "/v1/completions", { prompt = { one, other }, max_tokens = 1, temperature = 0, n = 2 }).json.usage
    end
    assert.equal(#one + #other, usage.prompt_tokens)
    assert.equal(#one - 1 + #other - 1, usage.prompt_tokens_details.cached_tokens)
  end)

  it("repeats the prompt with the log probabilities of its tokens", function()
    local prompt = "Once upon a time"
    local reply = alone(prompt, { max_tokens = 4, logprobs = 2, prompt_logprobs = 2 })
    -- The same from the logits of a session.
    local s <close> = assert(model:session())
    assert(s:feed(reply.prompt_ids, { want = "all" }))
    for i = 2, #reply.prompt_ids do
      local logits, sum = s:logits(i - 1), 0
      local most = select(2, logits:argmax())
      for id = 1, #logits do sum = sum + math.exp(logits:get(id) - most) end
      local entry = reply.prompt_logprobs[i]
      assert.equal(reply.prompt_ids[i], entry.id)
      assert.near(logits:get(entry.id + 1) - most - math.log(sum), entry.logprob, 1e-3)
      assert.equal(s:topk(1, i - 1)[1][1], entry.top[1][1])
    end
    local function plain(said) return (said:gsub("[\x80-\xff]+", "?")) end
    local first = model.tokenizer.add_bos and 2 or 1
    for _, stream in ipairs { false, true } do
      local body = { prompt = prompt, max_tokens = 4, temperature = 0, echo = true, logprobs = 2, stream = stream }
      local answer = http.post(server, "/v1/completions", body)
      local text, tokens, values, offsets = "", {}, {}, {}
      local function add(choice)
        text = text .. choice.text
        if choice.logprobs == ane.null then return end
        table.move(choice.logprobs.tokens, 1, #choice.logprobs.tokens, #tokens + 1, tokens)
        table.move(choice.logprobs.token_logprobs, 1, #choice.logprobs.tokens, #values + 1, values)
        table.move(choice.logprobs.text_offset, 1, #choice.logprobs.tokens, #offsets + 1, offsets)
      end
      if stream then
        local events = http.events(answer.body)
        for i = 1, #events - 1 do add(events[i].choices[1]) end
      else
        add(answer.json.choices[1])
      end
      assert.equal(plain(prompt .. reply.text), plain(text))
      assert.equal(#reply.prompt_ids - first + 1 + 4, #tokens)
      assert.equal(0, offsets[1])
      if first == 1 then assert.equal(ane.null, values[1]) end
      for i = 2, #reply.prompt_ids - first + 1 do assert.near(reply.prompt_logprobs[i + first - 1].logprob, values[i], 1e-4) end
      for i = 1, 4 do assert.near(reply.logprobs[i].logprob, values[#tokens - 4 + i], 1e-4) end
    end
    -- The prompt alone, as programs do that score texts.
    local answer = http.post(server, "/v1/completions", { prompt = { 5, 6, 7 }, max_tokens = 0, echo = true, logprobs = 0 })
    local choice = answer.json.choices[1]
    assert.same({ 3, "length" }, { #choice.logprobs.tokens, choice.finish_reason })
    assert.same({ ane.null, ane.null }, { choice.logprobs.token_logprobs[1], choice.logprobs.top_logprobs[1] })
    assert.equal(0, answer.json.usage.completion_tokens)
  end)

  it("gives the places of tokens in the text, in characters", function()
    -- Each letter of a text by its place from 0.
    local function letters(text)
      local list, n = {}, 0
      for _, code in utf8.codes(text) do list[n], n = utf8.char(code), n + 1 end
      return list, n
    end
    for _, prompt in ipairs { "h\u{1F600}\u{e9}llo", model.tokenizer:encode("a<|eot_id|>\u{e9}b", { special = true }) } do
      for _, echo in ipairs { true, false } do
        local body = { prompt = prompt, max_tokens = 60, temperature = 0, logprobs = 0, echo = echo, ignore_eos = true }
        local whole = http.post(server, "/v1/completions", body).json.choices[1]
        local list, n = letters(whole.text)
        local marks = whole.logprobs
        for i, token in ipairs(marks.tokens) do
          local at = marks.text_offset[i]
          local shown = token:find "^<|" and "" or token:find "^bytes:" and "" or token
          local said = {}
          for k = at, math.min(n, at + (utf8.len(shown) or 0)) - 1 do said[#said + 1] = list[k] end
          local after_part = i > 1 and marks.tokens[i - 1]:find "^bytes:" -- of a character, perhaps one that does not go on
          if not after_part and (type(prompt) == "string" or i > #prompt) then assert.equal(shown, table.concat(said)) end
        end
        body.stream = true
        local streamed = {}
        for _, event in ipairs(http.events(http.post(server, "/v1/completions", body).body)) do
          local choice = event ~= "[DONE]" and event.choices[1]
          local offsets = choice and choice.logprobs ~= ane.null and choice.logprobs.text_offset or {}
          table.move(offsets, 1, #offsets, #streamed + 1, streamed)
        end
        assert.same(setmetatable(marks.text_offset, nil), streamed)
        if echo and type(prompt) == "string" then
          assert.same({ 0, 1, 1, 1, 1, 2, 2, 3 }, { table.unpack(streamed, 1, 8) })
        end
      end
    end
  end)

  it("names tokens that are no UTF-8 by their bytes, so that all names differ", function()
    local logprobs = require "ane.serve.logprobs"
    local tokenizer = { token = function(_, id) return ({ "a", "\xf0\x9f", "\xf0" })[id] end }
    local entry = { id = 2, logprob = -1, top = { { 1, -2 }, { 2, -1 }, { 3, -math.huge } } }
    local form = logprobs.completion(tokenizer, { entry }, 1, { take = function() return 5 end })
    assert.same({ "bytes:\\xf0\\x9f", 5 }, { form.tokens[1], form.text_offset[1] })
    assert.same({ a = -2, ["bytes:\\xf0\\x9f"] = -1, ["bytes:\\xf0"] = -9999.0 }, setmetatable(form.top_logprobs[1], nil))
    local body = { prompt = "Once", max_tokens = 300, ignore_eos = true, temperature = 0, logprobs = 20 }
    local answer = http.post(server, "/v1/completions", body)
    assert.equal(300, #answer.json.choices[1].logprobs.tokens)
  end)

  it("streams with log probabilities", function()
    local body = { prompt = "Once", max_tokens = 6, temperature = 0, stream = true, logprobs = 1 }
    local events = http.events(http.post(server, "/v1/completions", body).body)
    local tokens, text = 0, ""
    for i = 1, #events - 1 do
      local choice = events[i].choices[1]
      text = text .. choice.text
      if choice.logprobs ~= ane.null then tokens = tokens + #choice.logprobs.tokens end
    end
    assert.equal(6, tokens)
    assert.equal(alone("Once", { max_tokens = 6 }).text, text)
  end)
end)

describe("what the server says of itself", function()
  it("is its health and its model", function()
    assert.equal("ok", http.get(server, "/health").json.status)
    local list = http.get(server, "/v1/models").json
    assert.equal("llama-q8_0", list.data[1].id)
    assert.equal("model", http.get(server, "/v1/models/llama-q8_0").json.object)
    assert.equal(404, http.get(server, "/v1/models/other").status)
    assert.equal(2, http.get(server, "/props").json.total_slots)
  end)

  it("has each name once", function()
    local named <close> = assert(ane.serve(model, { port = 0, names = { "llama-q8_0", "other", "other" } }))
    local ids = {}
    for i, one in ipairs(http.get(named, "/v1/models").json.data) do ids[i] = one.id end
    assert.same({ "llama-q8_0", "other" }, ids)
    local answer = http.post(named, "/v1/completions", { model = "none", prompt = "Once" })
    assert.equal('the model "none" does not exist; the server has llama-q8_0, other', answer.json.error.message)
  end)
end)
