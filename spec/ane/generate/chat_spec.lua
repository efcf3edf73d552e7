local chat = require "ane.generate.chat"
local jinja = require "ane.jinja"
local scripted = require "support.scripted"
local tiny = require "support.tiny"

-- A tokenizer with these templates, and a control token <|x|> with id 300.
local function templates(list, fields)
  local tokenizer = setmetatable({ chat_templates = list }, { __index = scripted.tokenizer() })
  local function encode(text, special)
    local ids, spans, at = {}, {}, 1
    while at <= #text do
      local word = special and text:sub(at, at + 4) == "<|x|>"
      ids[#ids + 1] = word and 300 or text:byte(at)
      spans[#spans + 1], spans[#spans + 2] = at, word and at + 4 or at
      at = spans[#spans] + 1
    end
    return ids, spans
  end
  function tokenizer.encode(_, text, opts) return (encode(text, opts.special)) end
  function tokenizer._spans(_, text) return encode(text, true) end
  function tokenizer.piece(_, id) return id == 300 and "<|x|>" or string.char(id) end
  function tokenizer.token_type(_, id) return id == 300 and "control" or "normal" end
  for key, value in pairs(fields or {}) do tokenizer[key] = value end
  return tokenizer
end

local USER = { { role = "user", content = "Hi" } }

describe("rendering", function()
  it("passes what transformers passes", function()
    local t = templates({ default = "{{ bos_token }}|{{ unk_token is defined }}|{{ tools is none }}|{{ documents is none }}|"
      .. "{{ add_generation_prompt }}|{{ messages[0].content }}|{{ thinking }}" }, { bos = 65 })
    assert.equal("A|False|True|True|True|Hi|", (chat.render(t, USER)))
    assert.equal("A|False|True|True|False|Hi|no",
      (chat.render(t, USER, { add_generation_prompt = false, template_vars = { thinking = "no" } })))
    assert.equal("A|False|False|False|True|Hi|", (chat.render(t, USER, { tools = { { name = "f" } }, documents = { "d" } })))
  end)

  it("takes the template for tools where there are tools", function()
    local t = templates { default = "plain", tool_use = "tools" }
    assert.same({ "plain", "default" }, { chat.render(t, USER) })
    assert.same({ "tools", "tool_use" }, { chat.render(t, USER, { tools = { { name = "f" } } }) })
    assert.same({ "plain", "default" }, { chat.render(t, USER, { tools = {} }) })
    assert.same({ "tools", "tool_use" }, { chat.render(t, USER, { template = "tool_use" }) })
    assert.same({ "plain", "default" }, { chat.render(templates { default = "plain" }, USER, { tools = { { name = "f" } } }) })
  end)

  it("never takes another template in silence", function()
    local text, message, code = chat.render(templates {}, USER)
    assert.same({ nil, "unsupported" }, { text, code })
    assert.matches("no chat template", message)
    text, message = chat.render(templates { default = "x", rag = "y" }, USER, { template = "tools" })
    assert.is_nil(text)
    assert.matches('no chat template "tools": choose default, rag', message)
    text, message = chat.render(nil, USER)
    assert.is_nil(text)
    assert.matches("no tokenizer", message)
    text, message = chat.render(templates { default = "a\n{% foo %}" }, USER)
    assert.is_nil(text)
    assert.matches("chat template:2:", message)
    text, message = chat.render(templates { default = "{{ raise_exception('only users') }}" }, USER)
    assert.is_nil(text)
    assert.equal("chat template: only users", message)
  end)
end)

describe("a fault of a template", function()
  local MESSAGES = { { role = "user", content = "Hi" }, { role = "tool" }, { role = "user", content = "Ho" } }
  local LOOP = "{% for m in messages %}\n{{ m.content + 'x' }}{% endfor %}"

  local function fault(source, messages)
    local text, message, code = chat.render(templates { default = source }, messages or MESSAGES)
    assert.is_nil(text)
    return message, code
  end

  it("has one documented code, and names the message", function()
    assert.same({ "chat template:2:14: messages[2]: 'dict object' has no attribute 'content'", "template" }, { fault(LOOP) })
    local source = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
    assert.same({ "chat template: messages[2]: no tools", "template" }, { fault(source) })
    for _, body in ipairs {
      "{{ a.b }}", "{{ 1 + 'a' }}", "{{ 1 // 0 }}", "{{ ''.__class__.x }}", "{{ 'a' * 10**9 }}", "{{ 1", "{% foo %}", "{{ a | nope }}",
      "{% set a = 1 %}{% set a.b = 2 %}",
    } do
      local message, code = fault(body)
      assert.equal("template", code, message)
      assert.matches("^chat template:1:%d+: ", message)
    end
    assert.equal("unsupported", (select(2, fault "{% include 'x' %}")))
  end)

  it("differs from messages that no template can take", function()
    local message, code = fault(LOOP, { MESSAGES[1], { role = "user", content = print } })
    assert.same({ "messages[2].content: a function cannot be a template value", "invalid" }, { message, code })
    message, code = fault(LOOP, { { role = "user", content = "a\xff" } })
    assert.same({ "messages[1].content must be UTF-8, but has an invalid byte at 2", "invalid" }, { message, code })
    for _, without in ipairs { { role = "user", contents = "Hi" }, { role = "system", content = jinja.null }, { role = "developer" } } do
      assert.same({ "messages[2] has no content", "invalid" }, { fault(LOOP, { MESSAGES[1], without }) })
    end
  end)
end)

describe("the null of JSON in messages", function()
  it("is none for the template", function()
    local null = require("ane").null
    local t = templates { default = "{{ messages[0].name is none }}|{{ messages[0].parts[1].text is none }}|{{ messages[0].content }}" }
    local messages = { { role = "user", content = "Hi", name = null, parts = { 1, { text = null } } } }
    assert.same({ "True|True|Hi", "default" }, { chat.render(t, messages) })
    assert.equal(null, messages[1].name)
  end)
end)

describe("encoding", function()
  local t = templates { default = "<|x|>{{ messages[0].content }}<|x|>" }
  local X = 300

  local function encode(content, opts) return chat.encode(t, { { role = "user", content = content } }, opts) end

  it("knows the template's control tokens", function()
    assert.same({ X, 72, 105, X }, encode "Hi")
  end)

  it("reads control tokens that a message spells as text", function()
    assert.same({ X, 97, 60, 124, 120, 124, 62, 98, X }, encode "a<|x|>b")
    assert.same({ X, 60, 124, 120, 124, 62, 60, 124, 120, 124, 62, X }, encode "<|x|><|x|>")
    assert.same({ X, 97, X, 98, X }, encode("a<|x|>b", { special_in_messages = true }))
  end)

  it("does so in messages that came from JSON, and leaves them as they are", function()
    local messages = jinja.decode '[{"role": "user", "content": "a<|x|>", "n": null}]'
    assert.same({ X, 97, 60, 124, 120, 124, 62, X }, chat.encode(t, messages, {}))
    assert.equal("a<|x|>", messages[1].map.content)
    assert.equal(jinja.null, messages[1].map.n)
  end)
end)

describe("a conversation", function()
  local model
  setup(function() model = tiny.load() end)
  teardown(function() model:close() end)

  it("keeps what was said, and feeds only what is new", function()
    local c = assert(model:chat { system = "Be brief.", max_tokens = 6, ignore_eos = true })
    local first = assert(c:say "Hello")
    assert.same({ "system", "user", "assistant" }, { c.messages[1].role, c.messages[2].role, c.messages[3].role })
    assert.is_string(first)
    local second = assert(c:say "And now?")
    assert.equal(5, #c.messages)
    assert.equal(1, select("#", c:say "Once more"), "one value where nothing is called: print(chat:say(...)) shows a text only")
    assert.is_true(c.last.timings.cached_tokens > 20)
    assert.is_true(c.last.timings.cached_tokens < c.last.timings.prompt_tokens)
    -- the same without a cache
    local messages = table.move(c.messages, 1, 4, 1, {})
    assert.equal(second, model:generate(messages, { max_tokens = 6, ignore_eos = true }):gsub("[\x80-\xff]+", function(bytes)
      return utf8.len(bytes) and bytes or nil
    end))
    c:close()
    assert.error_matches(function() c:say "x" end, "chat is closed")
  end)

  it("streams, and remembers a reply that was cut short", function()
    local c = assert(model:chat { ignore_eos = true, max_tokens = 20 })
    local text = ""
    for piece in c:stream "Hello" do
      text = text .. piece
      if #text > 4 then break end
    end
    assert.equal(2, #c.messages)
    assert.equal("closed", c.last.stop)
    assert.equal(#c.last.ids > 0, true)
    assert.is_string(c:say "Go on")
    assert.equal(4, #c.messages)
    c:close()
  end)

  it("forgets what led to no reply", function()
    local c = assert(model:chat { max_tokens = 4 })
    local long = ("word "):rep(2000)
    local text, message, code = c:say(long)
    assert.same({ nil, "range" }, { text, code })
    assert.matches("but the context has room for 512", message)
    assert.same({}, c.messages)
    assert.is_string(c:say "Hello")
    c:close()
  end)

  it("forgets a reply that failed, but not one that was streamed so far", function()
    local c <close> = assert(model:chat { max_tokens = 9, ignore_eos = true })
    assert.is_string(c:say "Hello")
    local function fails_after(n, fail)
      return { logits_processor = function(logits)
        n = n - 1
        if n < 0 then return fail(logits) end
      end }
    end
    local function ban(logits) logits:fill(-math.huge) end
    local text, message, code = c:say("And now?", fails_after(4, ban))
    assert.same({ nil, "invalid" }, { text, code })
    assert.matches("every token is banned", message)
    assert.equal(2, #c.messages)
    assert.error_matches(function() c:say("And now?", fails_after(4, error)) end, "tensor")
    assert.equal(2, #c.messages)
    local pieces = assert(c:stream("And now?", fails_after(8, ban)))
    assert.is_nil(pieces:finish())
    assert.equal(4, #c.messages)
  end)

  it("takes messages, and options for one reply", function()
    local c = assert(model:chat { messages = { { role = "user", content = "A" }, { role = "assistant", content = "B" } } })
    assert(c:say({ role = "user", content = "C" }, { max_tokens = 2, ignore_eos = true }))
    assert.equal(2, #c.last.ids)
    assert.equal(4, #c.messages)
    assert.matches("A<|eot_id|>.*B<|eot_id|>.*C<|eot_id|>", c:render())
    assert.matches("^chat %(4 messages%)$", tostring(c))
    c:close()
  end)

  it("keeps its prompt valid if a reply is not UTF-8", function()
    local c = assert(model:chat {})
    assert(c:say("Hello", { max_tokens = 60, ignore_eos = true, temperature = 3, seed = 1 }))
    for _, m in ipairs(c.messages) do assert.truthy(utf8.len(m.content)) end
    assert.is_string(c:say("Hi", { max_tokens = 1 }))
    c:close()
  end)

  it("refuses misuse at the caller's line", function()
    local c = assert(model:chat { max_tokens = 2, ignore_eos = true })
    local cases = {
      { "unknown option \"sistem\"", function() local x = model:chat { sistem = "x" } return x end },
      { "unknown option", function() local x = c:say("Hi", { system = "x" }) return x end },
      { "must be a text, a message or a list", function() local x = c:say(7) return x end },
      { "message 1 has no role", function() local x = c:say { content = "x" } return x end },
      { "not complete", function()
        c:stream "Hi"
        local x = c:say "Hi"
        return x
      end },
    }
    for _, case in ipairs(cases) do
      local ok, message = pcall(case[2])
      assert.is_false(ok)
      assert.matches(case[1], message)
      assert.matches("chat_spec.lua:%d+:", message)
    end
  end)

  it("is not offered by a model without a template", function()
    local bare <close> = tiny.load "llama-kquants"
    local c, message, code = bare:chat {}
    assert.same({ nil, "unsupported" }, { c, code })
    assert.matches("no tokenizer", message)
    local text = bare:generate("Hello")
    assert.is_nil(text)
    assert.same({ "table", 3 }, { type(bare:generate({ 1, 2 }, { max_tokens = 3 })), #bare:generate({ 1, 2 }, { max_tokens = 3 }) })
    local ids = {}
    for id in bare:stream({ 1, 2 }, { max_tokens = 3 }) do ids[#ids + 1] = id end
    assert.same(bare:generate({ 1, 2 }, { max_tokens = 3 }), ids)
  end)
end)

describe("a saved conversation", function()
  local model
  local path = os.tmpname()
  setup(function() model = tiny.load() end)
  teardown(function()
    model:close()
    os.remove(path)
  end)

  it("goes on as if it had not been left, without computing anything again", function()
    local opts = { system = "Be brief.", max_tokens = 6, ignore_eos = true }
    local c <close> = assert(model:chat(opts))
    assert(c:say "Hello")
    assert.is_true(c:save(path))
    local cached = c.session.length
    local want = assert(c:say "And now?")
    local again <close> = assert(model:chat { restore = path, max_tokens = 6, ignore_eos = true })
    assert.equal(cached, again.session.length)
    assert.same({ "system", "user", "assistant" }, { again.messages[1].role, again.messages[2].role, again.messages[3].role })
    assert.equal(want, assert(again:say "And now?"))
    assert.equal(c.last.timings.cached_tokens, again.last.timings.cached_tokens)
    assert.same(c.messages, again.messages)
  end)

  it("has a session that computes one reply at a time", function()
    local c <close> = assert(model:chat { max_tokens = 4, ignore_eos = true })
    assert(c:say "Hello")
    do
      local pieces <close> = c:stream "And?"
      pieces:next()
      assert.error_matches(function() c.session:generate() end, "the previous reply is not complete")
    end
    do
      local pieces <close> = c.session:stream { max_tokens = 4 }
      pieces:next()
      assert.error_matches(function() c:say "x" end, "its session computes another reply")
    end
    assert.is_string(c:say "Go on")
  end)

  it("may hold messages only, with what tools said", function()
    local messages = {
      { role = "user", content = "\u{E9}", extra = { list = { 1, 2.5, "x" }, flag = true } },
      { role = "assistant", content = "y" },
    }
    local c <close> = assert(model:chat { messages = messages })
    assert(c:save(path))
    local again <close> = assert(model:chat { restore = path })
    assert.same("\u{E9}", again.messages[1].content)
    assert.equal(2.5, again.messages[1].extra.list[2])
    assert.equal(0, again.session.length)
    assert.equal(c:render(), again:render())
  end)

  it("is refused where the file holds none", function()
    local s <close> = assert(model:session())
    assert(s:feed { 1, 2, 3 })
    for _, note in ipairs { false, "text", '{"messages": 3}' } do
      assert(s:save(path, note or nil))
      assert.same({ nil, path .. " has a session without a conversation", "format" }, { model:chat { restore = path } })
    end
    local c, _, code = model:chat { restore = "/nowhere/at/all" }
    assert.same({ nil, "io" }, { c, code })
    assert.error_matches(function() model:chat { restore = path, system = "x" } end, "restore brings the messages")
  end)
end)

describe("the end of the context", function()
  local model
  setup(function() model = tiny.load(nil, { context = 300 }) end)
  teardown(function() model:close() end)

  local function ask(c, i) return c:say(("Question %d, which is not short."):format(i)) end

  it("is an error that says what to do", function()
    local c <close> = assert(model:chat { system = "Be brief.", max_tokens = 20, ignore_eos = true })
    local i, text, message, code = 0
    repeat
      i = i + 1
      text, message, code = ask(c, i)
    until not text
    assert.equal("range", code)
    assert.matches("the conversation has %d+ tokens, but the context has room for 300: remove messages, .* or set overflow = \"drop\"",
      message)
    assert.equal("assistant", c.messages[#c.messages].role)
    assert.is_string(c:say("Shorter?", { overflow = "drop" }))
    assert.is_true(c.last.dropped > 0)
  end)

  it("drops the oldest turns, and keeps the system message", function()
    local c <close> = assert(model:chat { system = "Be brief.", max_tokens = 20, ignore_eos = true, overflow = "drop" })
    local dropped = 0
    for i = 1, 20 do
      assert.is_string(ask(c, i))
      dropped = dropped + (c.last.dropped or 0)
      assert.same({ "system", "Be brief." }, { c.messages[1].role, c.messages[1].content })
      assert.equal("user", c.messages[2].role)
      assert.equal(1 + 2 * i - dropped, #c.messages)
      assert.equal("length", c.last.stop)
    end
    assert.is_true(dropped >= 10)
  end)

  it("forgets no turn for a reply that failed or never began", function()
    local c <close> = assert(model:chat { system = "Be brief.", max_tokens = 20, ignore_eos = true, overflow = "drop" })
    repeat ask(c, 1) until c.last.dropped
    repeat
      local before = table.move(c.messages, 1, #c.messages, 1, {})
      local text, _, code = c:say("Question 1, which is not short.", { logits_processor = function(logits) logits:fill(-math.huge) end })
      assert.same({ nil, "invalid" }, { text, code })
      local dropped = c.last.dropped
      assert.same(before, c.messages)
      c:stream("Question 1, which is not short."):close()
      assert.same(before, c.messages)
      assert.is_nil(dropped)
      ask(c, 1)
    until c.last.dropped
  end)

  it("refuses a turn that does not fit alone, and forgets nothing", function()
    local c <close> = assert(model:chat { system = "Be brief.", max_tokens = 20, ignore_eos = true, overflow = "drop" })
    assert(c:say "Hello")
    local text, message, code = c:say(("word "):rep(400))
    assert.same({ nil, "range" }, { text, code })
    assert.matches("its last turn alone does not fit", message)
    assert.same({ "Be brief.", "Hello" }, { c.messages[1].content, c.messages[2].content })
    assert.equal(3, #c.messages)
  end)
end)
