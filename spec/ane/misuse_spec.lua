-- Misuse that has an effect only in a certain state: objects that are closed or changed during a reply, lists with holes, deep values, ids
-- beyond the vocabulary.
local ane = require "ane"
local tiny = require "support.tiny"

local PROMPT = { 1, 5, 7 }
local OPTS = { max_tokens = 4, ignore_eos = true }

local function opts(more)
  local out = { max_tokens = 4, ignore_eos = true }
  for key, value in pairs(more) do out[key] = value end
  return out
end

local model, want
setup(function()
  model = tiny.load("llama-q8_0", { context = 256, threads = 1 })
  want = assert(model:generate(PROMPT, OPTS))
end)

-- Steps a pool until it is idle; it must be so after few steps.
local function run(pool)
  for _ = 1, 100 do
    if not pool:step() then return end
  end
  error "the pool does not become idle"
end

describe("a pool", function()
  it("goes on after a callback has raised, closed its request, or closed another", function()
    for name, act in pairs {
      raise = function() error("mine", 0) end,
      close = function(r) r.one:close() end,
      stop = function(r) r.one:stop() end,
      other = function(r) r.three:close() end,
      add = function(r, pool) r.four = r.four or pool:add(PROMPT, OPTS) end,
      step = function(_, pool) pool:step() end,
      yield = function() coroutine.yield() end,
    } do
      local pool <close> = assert(model:pool())
      local r = {}
      r.one = pool:add(PROMPT, opts { logits_processor = function() act(r, pool) end })
      r.two, r.three = pool:add(PROMPT, OPTS), pool:add(PROMPT, OPTS)
      run(pool)
      assert.equal(want, r.two.result.text, name)
      assert.is_true(r.one.done and r.three.done, name)
      assert.equal(want, assert(pool:add(PROMPT, OPTS)):finish().text, name)
    end
  end)

  it("and its model may be closed by a callback", function()
    for _, name in ipairs { "logits_processor", "progress" } do
      for _, what in ipairs { "pool", "model" } do
        local own = tiny.load("llama-q8_0", { context = 256, threads = 1 })
        local pool = assert(own:pool())
        local one = pool:add(PROMPT, opts { [name] = function() (what == "pool" and pool or own):close() end })
        local two = pool:add(PROMPT, OPTS)
        pool:run()
        assert.equal("closed", one.result.stop)
        assert.equal("closed", two.result.stop)
        own:close()
      end
    end
  end)

  it("says that it is closed, and takes no step then", function()
    local pool = assert(model:pool())
    pool:close()
    for _, name in ipairs { "add", "step", "run", "idle", "stats", "save", "load" } do
      assert.error_matches(function() pool[name](pool, "x") end, "pool is closed", nil, name)
    end
    assert.error_matches(function() model.pool() end, "with a colon")
    assert.error_matches(function() pool.step() end, "step: called on nothing instead of a pool")
  end)

  it("keeps no request whose on_work raised", function()
    local pool <close> = assert(model:pool { on_work = function() error("mine", 0) end })
    assert.error_matches(function() pool:add(PROMPT, OPTS) end, "^mine$")
    assert.is_true(pool:idle())
  end)

  it("adds each of many requests in about the same time, and begins them by rank", function()
    local pool <close> = assert(model:pool { sessions = 1 })
    local before, list = os.clock(), {}
    for i = 1, 4000 do list[i] = pool:add(PROMPT, opts { priority = i % 7 }) end
    assert.is_true(os.clock() - before < 2) -- 8 s with a sorted list
    for i = 4000, 22, -1 do list[i]:close() end
    local order = {}
    for i = 1, 21 do list[i].opts.progress = function() order[#order + 1] = i end end
    run(pool)
    assert.same({ 6, 13, 20, 5, 12, 19, 4, 11, 18, 3, 10, 17, 2, 9, 16, 1, 8, 15, 7, 14, 21 }, order)
  end)
end)

describe("a session with a reply in progress", function()
  it("refuses what would change its tokens", function()
    local session <close> = assert(model:session())
    assert(session:feed(PROMPT))
    local pieces = assert(session:stream(OPTS))
    local text = pieces:next()
    for name, argument in pairs { feed = 9, rewind = 0, recall = "last", restore = "x", part = 0, generate = {}, stream = {} } do
      assert.error_matches(function() session[name](session, argument) end, "reply .*close its stream", nil, name)
    end
    for piece in pieces do text = text .. piece end
    assert.equal(want, text)
    assert(session:rewind(3))
    assert.equal(want, session:generate(OPTS))
  end)

  it("may be closed, which ends the reply with a message", function()
    for _, what in ipairs { "between", "logits_processor", "progress" } do
      local session = assert(model:session())
      assert(session:feed { 1, 5 })
      local pieces = assert(model:stream(PROMPT, opts { session = session, [what ~= "between" and what or "seed"] = what ~= "between" and
        function() session:close() end or 1 }))
      if what == "between" then
        pieces:next()
        session:close()
      end
      local result, message, code = pieces:finish()
      assert.same({ nil, "state" }, { result, code })
      assert.matches("^the session was closed ", message)
    end
  end)

  it("computes no piece within a callback of the reply", function()
    local pieces
    pieces = model:stream(PROMPT, opts { logits_processor = function() pieces:next() end })
    assert.error_matches(function() pieces:next() end, "the reply is already computing")
  end)
end)

describe("a model that a callback closes", function()
  local closed = { nil, "the model was closed by a callback", "state" }

  for name, act in pairs {
    quantise = function(own, close) return own:quantise(os.tmpname(), { weights = "q4_0", progress = close }) end,
    samples = function(own, close)
      return own:quantise(os.tmpname(), { weights = "q4_0", method = "gptq", calibrate = { samples = 4 }, progress = close })
    end,
    callable = function(own, close)
      local progress = setmetatable({}, { __call = close })
      return own:quantise(os.tmpname(), { weights = "q4_0", progress = progress })
    end,
    generate_many = function(own, close)
      return own:generate_many({ PROMPT, PROMPT }, opts { sessions = 1, on_reply = close })
    end,
  } do
    it("ends " .. name, function()
      local own = tiny.load("llama-q8_0", { context = 256, threads = 1 })
      assert.same(closed, { act(own, function() own:close() end) })
    end)
  end

  it("gives the replies that are complete", function()
    local own = tiny.load("llama-q8_0", { context = 256, threads = 1 })
    assert.same({ want }, assert(own:generate_many({ PROMPT }, opts { on_reply = function() own:close() end })))
  end)
end)

it("a server may be closed by a callback of it, which takes effect at the end of the turn", function()
  local http = require "support.http"
  if not http.available then return pending "no server, or no lua-socket" end
  for _, what in ipairs { "close", "turn" } do
    local server, told
    server = assert(ane.serve(model, { port = 0, complain = function(line) told = line end, log = function() server[what](server) end }))
    local client = http.open(server.port)
    client:send "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    local more, before = true, os.time()
    while more and not told and os.time() - before < 5 do
      local ok, got = pcall(server.turn, server, 0.05)
      if ok then more = got else told = got end -- by what the error of a callback reaches: the caller, or complain
    end
    if what == "close" then
      assert.is_false(more)
      for _, name in ipairs { "turn", "run", "stop", "stats" } do
        assert.error_matches(function() server[name](server) end, "server is closed", nil, name)
      end
    else
      assert.matches("turn: the server is already computing", told)
    end
    server:close()
  end
end)

it("a logits_processor cannot change the ids of the reply", function()
  local function spoil(_, ids)
    for i = 1, #ids do ids[i] = "x" end
    for i = #ids + 1, #ids + 9 do ids[i] = 99999 end
  end
  assert.equal(want, model:generate(PROMPT, opts { logits_processor = spoil }))
end)

describe("lists", function()
  it("with holes or other keys are refused", function()
    local holes = { 1, nil, 3 }
    local keyed = { 1, 5, x = 3 }
    assert.error_matches(function() model:generate(holes) end, "the prompt's entry 2 is nil, not a token id")
    assert.error_matches(function() model:generate(keyed) end, "the prompt must be a list, but has the key x")
    local session <close> = assert(model:session())
    assert.error_matches(function() session:feed(keyed) end, "feed: ids must be a list, but has the key x")
    assert.error_matches(function() model:generate(PROMPT, { stop = { "a", nil, "b" } }) end, "stop must be a list, but has no entry 2")
    assert.error_matches(function() model:generate_many { PROMPT, nil, PROMPT } end, "prompts must be a list, but has no entry 2")
    assert.error_matches(function() model.tokenizer:decode(keyed) end, "decode: ids must be a list")
    local said = { role = "user", content = "a" }
    for message, messages in pairs {
      ["messages must be a list, but has no entry 2"] = { said, nil, said },
      ["messages must be a list, but has the key x"] = { said, x = said },
      ["messages[2] must be a table with role and content, but is 5"] = { said, 5 },
      ["messages[1] must have a text as role, but has none"] = { { content = "a" } },
      ["messages[1] must have a text or a list of parts as content, but has 5"] = { { role = "user", content = 5 } },
      ["messages[1] has a content whose part 1 must be a text or a table, but is true"] = { { role = "user", content = { true } } },
    } do
      local text, why, code = model:generate(messages, OPTS)
      assert.same({ nil, message, "invalid" }, { text, why, code })
    end
  end)

  it("that contain themselves are refused at once", function()
    local cyclic, deep, wide = { role = "user", content = "a" }, {}, { 1 }
    cyclic.self = cyclic
    for _ = 1, 20000 do deep = { deep } end
    for _ = 1, 60 do wide = { wide, wide } end
    local before = os.clock()
    local _, why = model:generate({ cyclic }, OPTS)
    assert.equal("messages[1] contains itself", why)
    local cases = { ["contains itself"] = cyclic, ["is nested deeper than 256 tables"] = deep, ["has more than 10000000 values"] = wide }
    for message, v in pairs(cases) do
      for _, name in ipairs { "documents", "tools", "template_vars" } do
        local _, fault = model:generate({ { role = "user", content = "a" } }, opts { [name] = { v } })
        assert.matches(message, fault)
      end
      assert.error_matches(function() ane.grammar.json_schema(v) end, message)
    end
    local rules = { "a" }
    rules.a = rules
    assert.same({ nil, "a table of rules contains itself", "invalid" }, { ane.grammar.rules(rules) })
    assert.error_matches(function()
      local values = {}
      values[1] = values
      ane.tensor(values)
    end, "nested at most 5 deep")
    assert.is_true(os.clock() - before < 1)
  end)
end)

it("ids beyond the vocabulary are refused with its size", function()
  for name, value in pairs { eos = { 1024 }, logit_bias = { [1024] = 1 } } do
    local session <close> = assert(model:session())
    assert(session:feed(PROMPT))
    local chat <close> = assert(model:chat())
    local pool <close> = assert(model:pool())
    for _, results in ipairs {
      table.pack(model:generate(PROMPT, { [name] = value })), table.pack(session:generate { [name] = value }),
      table.pack(chat:say("a", { [name] = value })), table.pack(pool:add(PROMPT, { [name] = value })),
    } do
      assert.same({ nil, "range" }, { results[1], results[3] })
      assert.matches("option " .. name .. ": id 1024 .*is not in 0 .. 1023", results[2])
    end
  end
  assert.error_matches(function() model:generate(PROMPT, { eos = { 1.5 } }) end,
    "eos has the entry 1, which must be an integer, but is 1.5")
  assert.error_matches(function() model:generate(PROMPT, { eos = { -1 } }) end, "eos has the entry 1, which must be 0 or more, but is %-1")
end)

it("paths are not empty and hold no NUL byte", function()
  local session <close> = assert(model:session())
  local chat <close> = assert(model:chat())
  local pool <close> = assert(model:pool())
  for _, call in ipairs {
    ane.load, ane.tensors, ane.package, function(p) model:adapter(p) end, function(p) model:quantise(p, { weights = "q8_0" }) end,
    function(p) model:export(p) end, function(p) session:save(p) end, function(p) session:restore(p) end, function(p) chat:save(p) end,
    function(p) model:chat { restore = p } end, function(p) pool:save(p) end, function(p) pool:load(p) end,
    function(p) ane.batch(model, { input = p, output = p }) end, function(p) model:session { adapters = p } end,
    function(p) ane.load("x", { recipe = p }) end, function(p) ane.check(model, p) end,
  } do
    assert.error_matches(function() call "a\0b" end, "NUL byte")
    assert.error_matches(function() call "" end, "empty")
  end
end)

it("options that a metatable gives are refused", function()
  local given = setmetatable({}, { __index = { max_tokens = 1 } })
  for _, call in ipairs {
    function() model:generate(PROMPT, given) end, function() model:pool(given) end, function() model:generate_many({ PROMPT }, given) end,
    function() model:chat(given) end, function() model:pool():add(PROMPT, given) end, function() ane.load("x", given) end,
  } do
    assert.error_matches(call, "options must be a table of their own")
  end
end)

describe("adapters", function()
  it("of one path are closed one by one", function()
    local base <close> = assert(ane.load("spec/fixtures/hf/llama", { context = 64 }))
    local path = "spec/fixtures/hf/lora_llama"
    local a, b, scaled = assert(base:adapter(path)), assert(base:adapter(path)), assert(base:adapter(path, { scale = 2 }))
    local half = b:with(0.5)
    a:close()
    a:close()
    scaled:close()
    assert.same({ true, false, false, true }, { a.closed, b.closed, half.closed, scaled.closed })
    assert.equal(b.bytes, half.bytes)
    assert(base:session { adapters = { b } }):close()
    half:close()
    assert.is_false(b.closed)
    b:close()
    assert.same({ nil, ("adapter %s is closed"):format(path), "invalid" }, { base:session { adapters = { half } } })
    assert.is_false(assert(base:adapter(path)).closed)
  end)
end)

describe("encoders", function()
  it("refuse a max_length without room for the tokens around a text", function()
    local encoder <close> = assert(ane.load("spec/fixtures/hf/bert", { context = 64 }))
    local _, message, code = encoder:embed("a", { max_length = 1 })
    assert.same({ "option max_length is 1, but 2 tokens stand around each text", "range" }, { message, code })
    assert.is_nil((encoder.tokenizer:pair("a", "b", { max_length = 2 })))
    assert.equal(2, encoder:embed({ "hello world" }, { max_length = 2, details = true }).tokens[1])
  end)

  it("compare only finite vectors of the same length", function()
    local encoder <close> = assert(ane.load("spec/fixtures/hf/bert", { context = 64 }))
    local two = ane.tensor { 1, 2 }
    assert.error_matches(function() encoder:similarity(two, ane.tensor { 1, 2, 3 }) end, "have 2 and 3 numbers")
    assert.error_matches(function() encoder:similarity(two, ane.tensor { 1, 0 / 0 }) end, "finite numbers only")
  end)

  it("apply the threshold to ids as to texts", function()
    local classifier <close> = assert(ane.load("spec/fixtures/hf/privacy_filter", { context = 64 }))
    local ids = { 5, 9, 17, 33, 12, 60, 71 }
    assert.is_true(#assert(classifier:classify(ids)) > 0)
    assert.same({}, classifier:classify(ids, { threshold = 1 }))
    assert.same({ {} }, classifier:classify_many({ ids }, { threshold = 1 }))
    assert.error_matches(function() classifier:redact("x", { replace = 1 }) end, "must be a function")
  end)
end)

it("files whose keys contradict their tensors are refused by file and key", function()
  local tiny_llama = require "support.tiny_llama"
  for key, case in pairs {
    ["llama.feed_forward_length"] = { "uint32", 32, "is 32, but tensor blk.0.ffn_down.weight has 24 columns" },
    ["llama.attention.value_length"] = { "uint32", 8, "is 8, but tensor blk.0.attn_v.weight has 8 rows for 2 heads" },
    ["tokenizer.chat_template"] = { "uint32", 5, "must be a string, but is 5" },
  } do
    local path = tiny_llama.write(function(_, set)
      local tokens, types = {}, {}
      for i = 1, 20 do tokens[i], types[i] = string.char(96 + i), 1 end
      set("tokenizer.ggml.model", "string", "gpt2")
      set("tokenizer.ggml.pre", "string", "default")
      set("tokenizer.ggml.tokens", "array", { "string", tokens })
      set("tokenizer.ggml.token_type", "array", { "int32", types })
      set("tokenizer.ggml.merges", "array", { "string", { "a b" } })
      set(key, case[1], case[2])
    end)
    local nothing, message, code = ane.load(path)
    os.remove(path)
    assert.same({ nil, ("%s: metadata key %s %s"):format(path, key, case[3]), "format" }, { nothing, message, code })
  end
end)
