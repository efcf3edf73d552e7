local ane = require "ane"
local core = require "ane.core"
local tiny = require "support.tiny"

describe("load", function()
  it("gives nil, a message and a code for runtime failures", function()
    local cases = { { "/nonexistent.gguf", "io" }, { "spec", "io" }, { "Makefile", "format" } }
    for _, case in ipairs(cases) do
      local model, message, code = ane.load(case[1])
      assert.is_nil(model)
      assert.matches(case[1], message, 1, true)
      assert.is_string(code)
    end
  end)

  it("says where the context is longer than the model's own", function()
    local model <close> = tiny.load(nil, { context = 64 })
    assert.same({}, model.warnings)
    local own = model.config.context_length
    local long <close> = tiny.load(nil, { context = own + 1 })
    local want = "a context of %d tokens is longer than the %d that the model was made for: text beyond those may be wrong"
    assert.same({ want:format(own + 1, own) }, long.warnings)
  end)

  it("raises on misuse, naming the option, at the caller's line", function()
    local cases = {
      { { thread = 1 }, 'unknown option "thread"; the options are activations, adapters, backend, context,' },
      { { threads = 0 }, "threads must be 1 .. 1024, but is 0" },
      { { weights = "int9" }, 'weights is "int9": choose file, int8' },
      { { activations = "fp16" }, "choose int8, fp32" },
      { { kv = 8 }, "kv must be a string" },
      { { context = "big" }, "context must be an integer" },
      { { progress = 1 }, "progress must be a function or true or false" },
    }
    for _, case in ipairs(cases) do
      local ok, message = pcall(function() local m = ane.load(tiny.path(), case[1]) return m end)
      assert.is_false(ok)
      assert.matches(case[2], message)
      assert.matches("model_spec.lua:%d+:", message)
    end
    assert.error_matches(function() ane.load(nil) end, "path must be a string")
  end)

  it("refuses kernel levels that are not there", function()
    local model, message, code = ane.load(tiny.path(), { isa = "sse9" })
    assert.is_nil(model)
    assert.matches("sse9.*ref", message)
    assert.equal("invalid", code)
  end)

  it("reports its progress", function()
    local stages = {}
    local model <close> = tiny.load(nil, { progress = function(stage, done, total)
      stages[stage] = (stages[stage] or 0) + 1
      assert.is_true(done <= total)
    end })
    assert.truthy(stages.load)
    assert.is_false(model.closed)
  end)
end)

describe("model", function()
  local model
  setup(function() model = tiny.load() end)
  teardown(function() model:close() end)

  it("continues a text", function()
    local text = model:generate("Hello", { max_tokens = 8, ignore_eos = true })
    assert.is_string(text)
    local result = model:generate("Hello", { max_tokens = 8, ignore_eos = true, details = true })
    assert.equal(text, result.text)
    assert.equal(8, #result.ids)
    assert.same(model.tokenizer:encode "Hello", result.prompt_ids)
    assert.equal("length", result.stop)
    assert.is_true(result.timings.prefill_s > 0 and result.timings.load_s > 0)
    local ids = model.tokenizer:encode "Hello"
    assert.same(result.ids, model:generate(ids, { max_tokens = 8, ignore_eos = true, details = true }).ids)
  end)

  it("tells how much of the head greedy decoding read", function()
    for head, pruned in pairs { pruned = true, full = false, auto = false } do -- auto: a head this small is read as a whole
      local loaded <close> = tiny.load(nil, { head = head })
      local function use_of(temperature)
        local opts = { max_tokens = 6, ignore_eos = true, details = true, temperature = temperature }
        return assert(loaded:generate("The sky", opts)).timings.head
      end
      local use = use_of(0)
      assert.equal(pruned, use ~= nil)
      if use then assert.is_true(use.searched >= 1 and use.searched <= 5 and use.share > 0.5) end
      assert.is_nil(use_of(1))
    end
  end)

  it("streams the same text", function()
    local opts = { max_tokens = 20, ignore_eos = true, temperature = 1, seed = 5 }
    local pieces = {}
    for piece in model:stream("Hello", opts) do pieces[#pieces + 1] = piece end
    assert.equal(model:generate("Hello", opts), table.concat(pieces))
    assert.is_true(#pieces > 1)
  end)

  it("gives the same tokens for a seed with a warm and a cold cache", function()
    local opts = { max_tokens = 12, ignore_eos = true, temperature = 1.5, seed = 9, details = true }
    local prompt = { 5, 6, 7, 8, 9, 10 }
    model:generate(prompt, opts)
    local warm = model:generate(prompt, opts)
    assert.is_true(warm.timings.cached_tokens > 0)
    local fresh <close> = tiny.load(nil, { threads = 1 })
    assert.same(warm.ids, fresh:generate(prompt, opts).ids)
  end)

  it("gives its session back when a loop is left or fails", function()
    for _ = 1, 3 do
      for piece in model:stream("Hello", { ignore_eos = true, max_tokens = 50 }) do
        if piece then break end
      end
    end
    pcall(function()
      for piece in model:stream("Hello", { ignore_eos = true, max_tokens = 50 }) do error(piece) end
    end)
    local held = model:stream("Hello", { ignore_eos = true, max_tokens = 50 })
    held()
    held:close()
    assert.equal("closed", held.result.stop)
    assert.is_nil(held())
    local open = 0
    for s in pairs(model._sessions) do open = open + (s.closed and 0 or 1) end
    assert.equal(1, open)
  end)

  it("runs several replies at once, each as if it were alone", function()
    local opts = { max_tokens = 10, ignore_eos = true, temperature = 1, seed = 1 }
    local alone = { model:generate("Hello", opts), model:generate("World and", opts) }
    local a, b = model:stream("Hello", opts), model:stream("World and", opts)
    local texts, live = { "", "" }, true
    while live do
      live = false
      for i, pieces in ipairs { a, b } do
        local piece = pieces()
        if piece then
          texts[i], live = texts[i] .. piece, true
        end
      end
    end
    assert.same(alone, texts)
  end)

  it("works in coroutines, with callbacks that yield", function()
    local co = coroutine.create(function()
      return model:generate("Hello", { max_tokens = 3, ignore_eos = true, logits_processor = function() coroutine.yield(1) end })
    end)
    local yields = 0
    local ok, value = coroutine.resume(co)
    while coroutine.status(co) ~= "dead" do
      yields = yields + 1
      ok, value = coroutine.resume(co)
    end
    assert.is_true(ok, value)
    assert.equal(3, yields)
    assert.equal(model:generate("Hello", { max_tokens = 3, ignore_eos = true }), value)
  end)

  it("stops when it is told to", function()
    local text, n = "", 0
    local pieces = model:stream("Hello", { ignore_eos = true, max_tokens = 100 })
    for piece in pieces do
      text, n = text .. piece, n + 1
      if n == 3 then model:stop() end
    end
    assert.equal("stopped", pieces.result.stop)
    assert.is_true(#pieces.result.ids < 10)
    assert.equal(text, pieces.result.text)
    assert.equal("length", model:generate("Hello", { max_tokens = 2, ignore_eos = true, details = true }).stop)
  end)

  it("reads control tokens that a user's text spells as text, unless asked", function()
    local word = model.tokenizer:piece(1003)
    assert.is_true(#model:generate(word, { max_tokens = 1, details = true }).prompt_ids > 2)
    assert.same({ 1000, 1003 }, model:generate(word, { max_tokens = 1, details = true, special = true }).prompt_ids)
  end)

  it("refuses values that are not prompts", function()
    assert.error_matches(function() model:generate(7) end, "must be a text, a list of token ids or a list of messages")
    assert.error_matches(function() model:generate { 1, "x" } end, "entry 2 is x, not a token id")
    assert.error_matches(function() model:generate("x", { max_token = 1 }) end, "unknown option")
    local text, message, code = model:generate({}, {})
    assert.same({ nil, "invalid" }, { text, code })
    assert.matches("empty", message)
    local long = {}
    for i = 1, 600 do long[i] = 1 end
    text, message, code = model:generate(long)
    assert.same({ nil, "range" }, { text, code })
    assert.equal("the prompt has 600 tokens, but the context has room for 512", message)
    assert.same({ nil, "range" }, { (model:stream(long)), (select(3, model:stream(long))) })
    text, message, code = model:generate { 5000 }
    assert.same({ nil, "range" }, { text, code })
    assert.matches("5000", message)
  end)

  it("tells what it is", function()
    local info = model:info()
    assert.equal("llama", info.architecture)
    assert.equal("gguf", info.format)
    assert.equal(290816, info.bytes)
    assert.equal(3, info.config.n_layer)
    assert.equal("q8_0", info.tensors[1].dtype)
    local tensors = 0
    for _, row in ipairs(info.tensors) do tensors = tensors + row.tensors end
    assert.equal(31, tensors)
    assert.same({ 512, 1024, "int16", "int8" }, { info.context, info.vocab, info.kv, info.activations })
    assert.is_true(#info.kernels >= 1 and info.kernels[1].bytes > 0)
    assert.is_string(core.json_encode(info))
    assert.matches("^model %(llama, .*llama%-q8_0.gguf%)$", tostring(model))
  end)
end)

describe("a closed model", function()
  it("closes its sessions and raises when used", function()
    local model = tiny.load()
    local s = model:session()
    local pieces = model:stream("Hello", { max_tokens = 5, ignore_eos = true })
    assert.is_string(pieces())
    model:close()
    model:close()
    assert.is_true(model.closed and s.closed)
    assert.equal("model (closed)", tostring(model))
    for _, method in ipairs { "generate", "stream", "session", "info", "chat", "stop" } do
      local _, raised = pcall(function() model[method](model, method == "chat" and {} or "x") end)
      assert.matches("model_spec.lua:%d+: model is closed", raised)
    end
    assert.error_matches(function() pieces() end, "closed")
    pieces:close()
  end)

  it("may be closed by a scope or by the collector, in any order", function()
    do
      local model <close> = tiny.load()
      model:generate("Hello", { max_tokens = 1 })
    end
    for _ = 1, 5 do
      local model = tiny.load()
      local s = model:session()
      s:feed(1)
      local _ = model:stream("Hello", { max_tokens = 5 })()
    end
    collectgarbage()
    collectgarbage()
  end)

  it("works under a collector that never rests", function()
    local pause = collectgarbage("setpause", 0)
    local step = collectgarbage("setstepmul", 1000)
    local model = tiny.load()
    local other = tiny.load(nil, { activations = "fp32" })
    for _ = 1, 3 do
      assert.is_string(model:generate("Hello", { max_tokens = 3, temperature = 1, logprobs = 2 }))
      assert.is_string(other:generate("Hello", { max_tokens = 3 }))
    end
    collectgarbage "generational"
    assert.is_string(model:generate("Hello", { max_tokens = 3 }))
    collectgarbage "incremental"
    collectgarbage("setpause", pause)
    collectgarbage("setstepmul", step)
    model:close()
    other:close()
  end)
end)
