-- Pools: replies that are computed together are those computed alone, whatever the schedule.
local ane = require "ane"
local core = require "ane.core"
local draws = require "support.draws"
local tiny = require "support.tiny"

-- Every architecture: rings of sliding windows, states of convolutions, mixtures, longrope.
local MODELS = {
  "gguf/llama-kquants.gguf", "gguf/llama-mixed.gguf", "gguf/qwen2-bf16.gguf", "gguf/gemma3-odd.gguf", "hf/gemma3_softcap",
  "hf/hunyuan_v1_dense", "hf/lfm2-odd", "hf/lfm2_moe-odd", "hf/phi3", "hf/qwen2_moe_window-odd", "hf/qwen3-odd", "hf/smollm3-odd",
  "hf/zaya-odd", "gguf/olmo2-odd.gguf",
}

-- A processor that writes down all logits it sees, to the bit.
local function recorder()
  local seen = {}
  return seen, function(logits)
    local list = logits:totable()
    seen[#seen + 1] = string.pack(("f"):rep(math.min(#list, 200)), table.unpack(list, 1, math.min(#list, 200)))
  end
end

-- A random request: prompt and options, without those that only say when.
local function random_request(random, vocab, starts)
  local ids = {}
  if random(2) == 0 and #starts > 0 then table.move(starts[1 + random(#starts)], 1, 40, 1, ids) end
  local tail = draws.ids(random, 1 + random(70), vocab)
  table.move(tail, 1, #tail, #ids + 1, ids)
  local opts = { max_tokens = 1 + random(12), ignore_eos = true }
  if random(2) == 0 then opts.temperature, opts.seed, opts.top_k = 0.9, random(1000), 20 end
  if random(3) == 0 then opts.speculate = true end
  return { ids = ids, opts = opts, record = random(3) == 0 }
end

local function with_recorder(request)
  local opts = {}
  for key, value in pairs(request.opts) do opts[key] = value end
  local seen
  if request.record then seen, opts.logits_processor = recorder() end
  opts.details = nil
  return opts, seen
end

-- What each request gives alone: ids and logits.
local function alone(model, requests)
  local want = {}
  for i, r in ipairs(requests) do
    local opts, seen = with_recorder(r)
    opts.details = true
    local result = assert(model:generate(r.ids, opts))
    want[i] = { ids = result.ids, logits = seen and table.concat(seen) }
  end
  return want
end

describe("a pool", function()
  for at, name in ipairs(MODELS) do
    it("gives each reply that it has alone, whatever the schedule: " .. name, function()
      local random = draws.numbers(at)
      local kv = ({ "int16", "fp16", "int8", "fp32" })[1 + at % 4]
      local model <close> = assert(ane.load("spec/fixtures/" .. name, { context = 256, threads = 1 + at % 2, kv = kv }))
      local vocab = model.vocab
      local starts = { draws.ids(random, 40, vocab), draws.ids(random, 40, vocab) }
      local requests = {}
      for i = 1, 9 do requests[i] = random_request(random, vocab, starts) end
      local want = alone(model, requests)
      for _, limits in ipairs { { sessions = 4, step_tokens = 16 }, { sessions = 3, step_tokens = 64, memory = 40000 } } do
        local pool <close> = model:pool(limits)
        local made, logits, cancelled = {}, {}, {}
        local next_one = 1
        while next_one <= #requests or not pool:idle() do
          if next_one <= #requests and random(2) == 0 then
            local opts, seen = with_recorder(requests[next_one])
            opts.priority = random(3)
            made[next_one], logits[next_one] = assert(pool:add(requests[next_one].ids, opts)), seen
            next_one = next_one + 1
          end
          if next_one > 4 and random(30) == 0 then
            local i = 1 + random(next_one - 1)
            if not made[i].done then
              made[i]:stop()
              cancelled[i] = true
            end
          end
          pool:step()
        end
        for i, r in ipairs(made) do
          assert.is_nil(r.message)
          local got = r.result.ids
          if cancelled[i] then
            assert.is_true(r.result.stop == "stopped" or r.result.stop == "length")
            assert.same(table.move(want[i].ids, 1, #got, 1, {}), got)
          else
            assert.same(want[i].ids, got)
            if logits[i] then assert.is_true(table.concat(logits[i]) == want[i].logits, "logits of request " .. i) end
          end
        end
      end
    end)
  end

  it("preempts the newest reply if states take too much memory, and loses nothing", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local random = draws.numbers(5)
    local prompts, want = {}, {}
    for i = 1, 4 do
      prompts[i] = draws.ids(random, 100 + 30 * i, model.vocab)
      want[i] = model:generate(prompts[i], { max_tokens = 20, ignore_eos = true, details = true }).ids
    end
    local s <close> = assert(model:session())
    assert(s:feed(prompts[4]))
    local pool <close> = model:pool { sessions = 4, memory = 2 * s:kv_bytes() }
    local made = {}
    for i, ids in ipairs(prompts) do made[i] = assert(pool:add(ids, { max_tokens = 20, ignore_eos = true })) end
    pool:run()
    for i, r in ipairs(made) do assert.same(want[i], r.result.ids) end
    assert.is_true(pool:stats().preempted > 0 and pool:stats().replayed_tokens > 0)
  end)

  it("preempts the newest reply if the system has no memory, and loses nothing", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local random = draws.numbers(6)
    local prompts, want = {}, {}
    for i = 1, 4 do
      prompts[i] = draws.ids(random, 60 + 30 * i, model.vocab)
      want[i] = model:generate(prompts[i], { max_tokens = 20, ignore_eos = true, details = true }).ids
    end
    local pool <close> = model:pool { sessions = 4, step_tokens = 64 }
    local program = getmetatable(pool._engine.program).__index
    local session <close> = assert(model:session())
    local raw = getmetatable(session:_raw()).__index
    local run, feed, full = program.run, raw.feed, 0
    -- While more than two sessions hold a state, a batch finds no memory.
    local function short()
      local held = 0
      for _, r in ipairs(pool._running) do held = held + (r.preempted and 0 or 1) end
      if pool:stats().steps < 6 or held <= 2 then return false end
      full = full + 1
      return true
    end
    local function none() return nil, "no memory for 1 page", "memory" end
    program.run = function(...)
      if short() then return none() end
      return run(...)
    end
    raw.feed = function(...)
      if short() then return none() end
      return feed(...)
    end
    local made = {}
    for i, ids in ipairs(prompts) do made[i] = assert(pool:add(ids, { max_tokens = 20, ignore_eos = true })) end
    local ok, message = pcall(pool.run, pool)
    program.run, raw.feed = run, feed
    assert(ok, message)
    for i, r in ipairs(made) do assert.same(want[i], r.result.ids) end
    assert.is_true(full > 0)
    assert.is_true(pool:stats().preempted >= 2)
  end)

  it("fails the one reply for which there is no memory, and goes on", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local pool <close> = model:pool { sessions = 2 }
    local program = getmetatable(pool._engine.program).__index
    local session <close> = assert(model:session())
    local raw = getmetatable(session:_raw()).__index
    local run, feed = program.run, raw.feed
    local function none() return nil, "no memory for 1 page", "memory" end
    program.run, raw.feed = none, none
    local request = assert(pool:add({ 1, 2, 3 }, { max_tokens = 4, ignore_eos = true }))
    local ok, message = pcall(pool.run, pool)
    program.run, raw.feed = run, feed
    assert(ok, message)
    assert.equal("memory", request.code)
    local other = assert(pool:add({ 1, 2, 3 }, { max_tokens = 4, ignore_eos = true }))
    pool:run()
    assert.equal(4, #other.result.ids)
  end)

  it("is closed with its model: what is not complete ends as closed, and any use raises", function()
    for steps = 0, 3 do
      local model = tiny.load(nil, { context = 128 })
      local pool = model:pool { sessions = 2 }
      local made = {}
      for i = 1, 3 do made[i] = assert(pool:add({ 1, 2, i + 2 }, { max_tokens = i == 1 and 2 or 20, ignore_eos = true })) end
      for _ = 1, steps do pool:step() end
      local ended = made[1].done
      model:close()
      for i, r in ipairs(made) do
        assert.is_true(r.done)
        assert.equal(i == 1 and ended and "length" or "closed", r.result.stop)
        assert.is_string(r.result.text)
      end
      assert.equal("pool (closed)", tostring(pool))
      assert.error_matches(function() pool:step() end, "^pool is closed$")
      assert.error_matches(function() pool:add { 1 } end, "^pool is closed$")
      assert.equal(made[3].result, made[3]:finish())
      pool:close()
    end
  end)

  it("may lose its model in a callback", function()
    local model = tiny.load(nil, { context = 128 })
    local pool = model:pool { sessions = 2 }
    local one = assert(pool:add({ 1, 2, 3 }, { max_tokens = 9, ignore_eos = true, progress = function() model:close() end }))
    local two = assert(pool:add({ 1, 2, 4 }, { max_tokens = 9, ignore_eos = true }))
    pcall(pool.run, pool)
    assert.same({ "closed", "closed", true, true }, { one.result.stop, two.result.stop, one.done, two.done })
  end)

  it("begins after the longest prefix that a session holds", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local random = draws.numbers(9)
    local start = draws.ids(random, 200, model.vocab)
    local pool <close> = model:pool { sessions = 4 }
    local results = {}
    for i = 1, 4 do
      local ids = table.move(start, 1, #start, 1, {})
      ids[#ids + 1] = i
      local r = assert(pool:add(ids, { max_tokens = 6, ignore_eos = true }))
      if i == 1 then assert(r:finish()) end -- the others begin together, while its session is idle
      results[i] = r
    end
    pool:run()
    for i = 2, 4 do
      assert.equal(200, results[i].result.timings.cached_tokens)
      local ids = table.move(start, 1, #start, 1, {})
      ids[#ids + 1] = i
      assert.same(model:generate(ids, { max_tokens = 6, ignore_eos = true, details = true }).ids, results[i].result.ids)
    end
    assert.equal(600, pool:stats().cached_tokens)
  end)

  it("does not let a long prompt hold up a short one", function()
    local model <close> = tiny.load(nil, { context = 1024 })
    local random = draws.numbers(3)
    local pool <close> = model:pool { sessions = 4, step_tokens = 32 }
    local long = assert(pool:add(draws.ids(random, 900, model.vocab), { max_tokens = 1 }))
    pool:step()
    pool:step()
    local short = assert(pool:add(draws.ids(random, 10, model.vocab), { max_tokens = 1, ignore_eos = true }))
    pool:step()
    assert.is_true(short.done or (pool:step() and short.done))
    assert.is_false(long.done)
    -- And running replies go on beside a prompt, whatever is being read.
    local reply = assert(pool:add({ 1, 2 }, { max_tokens = 50, ignore_eos = true }))
    pool:step()
    local before = #reply.result.ids
    for _ = 1, 3 do pool:step() end
    assert.equal(before + 3, #reply.result.ids)
    long:close()
    reply:close()
  end)

  it("serves higher priorities first", function()
    local model <close> = tiny.load()
    local pool <close> = model:pool { sessions = 1 }
    local order = {}
    local function note(name) return function() order[#order + 1] = name end end
    for i, name in ipairs { "first", "low", "high" } do
      assert(pool:add({ i }, { max_tokens = 1, ignore_eos = true, priority = ({ 0, -1, 5 })[i], logits_processor = note(name) }))
    end
    pool:run()
    assert.same({ "high", "first", "low" }, order)
  end)

  it("computes the log probabilities of prompts in steps of any size, beside other replies", function()
    local model <close> = tiny.load()
    local ids = {}
    for i = 1, 70 do ids[i] = 5 * i % 200 + 1 end
    local opts = { max_tokens = 3, prompt_logprobs = 0, ignore_eos = true }
    opts.details = true
    local want = assert(model:generate(ids, opts))
    opts.details = nil
    for _, step_tokens in ipairs { 16, 20, 32, 64, 256 } do
      local pool <close> = model:pool { sessions = 12, step_tokens = step_tokens }
      local busy = assert(pool:add({ 1 }, { max_tokens = 600, ignore_eos = true }))
      pool:step()
      local list = {}
      for i = 1, 9 do list[i] = assert(pool:add(ids, opts)) end
      for _, r in ipairs(list) do
        local result = assert(r:finish())
        assert.equal(want.text, result.text)
        for i = 2, #ids do assert.equal(want.prompt_logprobs[i].logprob, result.prompt_logprobs[i].logprob) end
      end
      assert.is_false(busy.done)
      assert.is_true(pool:stats().largest_step <= step_tokens)
    end
  end)

  it("ends a reply at its time limit, when it is stopped and when it is closed", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local pool <close> = model:pool { sessions = 2 }
    local late = assert(pool:add({ 1 }, { max_tokens = 400, ignore_eos = true, time_limit = 1e-9 }))
    local stopped = assert(pool:add({ 1 }, { max_tokens = 400, ignore_eos = true }))
    local closed = assert(pool:add({ 1 }, { max_tokens = 400, ignore_eos = true }))
    local waiting = assert(pool:add({ 1 }, { max_tokens = 400, ignore_eos = true }))
    pool:step()
    pool:step()
    stopped:stop()
    closed:close()
    waiting:stop()
    pool:run()
    assert.equal("time", late.result.stop)
    assert.same({ "", 1, 0 }, { late.result.text, late.result.timings.prompt_tokens, late.result.timings.tokens })
    assert.equal("stopped", stopped.result.stop)
    assert.is_true(#stopped.result.ids > 0)
    assert.equal("closed", closed.result.stop)
    assert.equal("stopped", waiting.result.stop)
    assert.equal(0, pool:stats().running)
  end)

  it("ends its replies when the model is stopped", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local pool <close> = model:pool { sessions = 1 }
    local made = {}
    for i = 1, 3 do made[i] = assert(pool:add({ i }, { max_tokens = 40, ignore_eos = true })) end
    for _ = 1, 4 do pool:step() end
    model:stop()
    assert.is_false(made[1].done)
    pool:run()
    for i, request in ipairs(made) do
      assert.equal("stopped", request.result.stop)
      assert.equal(i == 1, #request.result.ids > 0)
    end
    assert.equal("length", assert(pool:add({ 1 }, { max_tokens = 2, ignore_eos = true })):finish().stop)
    local n = 0
    local opts = { max_tokens = 40, ignore_eos = true, details = true, sessions = 1, logits_processor = function()
      n = n + 1
      if n == 3 then model:stop() end
    end }
    for _, reply in ipairs(assert(model:generate_many({ { 1 }, { 2 } }, opts))) do assert.equal("stopped", reply.stop) end
    assert.is_true(n < 6)
  end)

  it("lets callbacks yield, and ends only the request whose callback raises", function()
    local model <close> = tiny.load()
    local pool <close> = model:pool { sessions = 3 }
    local paused = 0
    local yielding = assert(pool:add({ 1, 2 }, { max_tokens = 4, ignore_eos = true, logits_processor = function()
      paused = paused + 1
      coroutine.yield "anything"
    end }))
    local raising = assert(pool:add({ 1, 2 }, { max_tokens = 4, logits_processor = function() error("my own", 0) end }))
    local plain = assert(pool:add({ 1, 2 }, { max_tokens = 4, ignore_eos = true }))
    pool:run()
    assert.equal(4, paused)
    assert.same(model:generate({ 1, 2 }, { max_tokens = 4, ignore_eos = true, details = true }).ids, plain.result.ids)
    assert.same(plain.result.ids, yielding.result.ids)
    assert.has_error(function() raising:finish() end, "my own")
    local ok, message = pcall(function()
      local again
      again = assert(pool:add({ 1 }, { max_tokens = 2, logits_processor = function() pool:step() end }))
      again:finish()
    end)
    assert.is_false(ok)
    assert.matches("is already computing", message)
  end)

  it("takes turns with other code: an iterator, a coroutine, a call that is told of work", function()
    local model <close> = tiny.load()
    local woken = 0
    local pool <close> = model:pool { sessions = 2, on_work = function() woken = woken + 1 end }
    local a = assert(pool:add({ 3 }, { max_tokens = 5, ignore_eos = true }))
    local b = assert(pool:add({ 4 }, { max_tokens = 5, ignore_eos = true }))
    assert.equal(1, woken)
    local count = 0
    for piece in a do
      assert.is_not_nil(piece)
      count = count + 1
    end
    assert.is_true(count > 0)
    assert.is_true(#b.result.ids >= 4) -- computed beside it
    assert(b:finish())
    assert.is_nil(pool:step())
  end)

  it("gives every piece, however they are fetched", function()
    local model <close> = tiny.load()
    local pool <close> = model:pool()
    local opts = { max_tokens = 40, ignore_eos = true }
    local a, b = assert(pool:add({ 3 }, opts)), assert(pool:add({ 4 }, opts))
    local polled, iterated = {}, {}
    for piece in a do
      iterated[#iterated + 1] = piece
      for more in function() return b:poll() end do polled[#polled + 1] = more end
    end
    pool:run()
    for more in function() return b:poll() end do polled[#polled + 1] = more end
    assert.equal(a.result.text, table.concat(iterated))
    assert.equal(b.result.text, table.concat(polled))
  end)

  it("constrains replies by grammars as generate does, drafted or not", function()
    local model <close> = tiny.load()
    local pool <close> = model:pool { sessions = 4 }
    local grammars = { assert(ane.grammar.regex "[a-z ]{20,40}"), assert(ane.grammar.choice { "one two three four", "one two six" }) }
    local made = {}
    for i = 1, 8 do
      local opts = { grammar = grammars[1 + i % 2], max_tokens = 60, speculate = i > 4, temperature = i % 3 == 0 and 1 or 0, seed = i }
      made[i] = { assert(pool:add("Hello", opts)), opts }
    end
    pool:run()
    for _, one in ipairs(made) do
      one[2].details = true
      local want = assert(model:generate("Hello", one[2]))
      assert.same({ want.text, want.stop }, { one[1].result.text, one[1].result.stop })
    end
  end)

  it("refuses what it cannot do", function()
    local model <close> = tiny.load(nil, { context = 64 })
    local pool <close> = model:pool()
    local _, empty, code = pool:add({})
    assert.equal("invalid", code)
    assert.matches("the prompt is empty", empty)
    local r = assert(pool:add(draws.ids(draws.numbers(1), 65, model.vocab)))
    local _, message, why = r:finish()
    assert.equal("range", why)
    assert.matches("65 tokens, but the context has room for 64", message)
    assert.has_error(function() pool:add({ 1 }, { priorities = 1 }) end)
    assert.has_error(function() model:pool { memory = "lots" } end)
    pool:close()
    assert.has_error(function() pool:step() end)
  end)

  it("computes lists: model:generate_many", function()
    local model <close> = tiny.load()
    local prompts = { { 1, 2 }, { 3 }, { 99999999 }, { 4, 5, 6 } }
    local replies, failed = model:generate_many(prompts, { max_tokens = 4, ignore_eos = true, sessions = 2 })
    for i, ids in ipairs(prompts) do
      if i == 3 then
        assert.is_false(replies[i])
        assert.equal("range", failed[i][2])
      else
        assert.same(model:generate(ids, { max_tokens = 4, ignore_eos = true }), replies[i])
      end
    end
    assert.same({}, (model:generate_many({}, {})))
  end)

  it("serves the command: several prompts, and a file of them", function()
    local command = require "support.command"
    local one = command.json { "run", tiny.path(), "-p", "One", "-n", "3" }
    local two = command.json { "run", tiny.path(), "-p", "Two two", "-n", "3" }
    local both = command.json { "run", tiny.path(), "-p", "One", "-p", "Two two", "-n", "3" }
    assert.same({ one.ids, two.ids }, { both.replies[1].ids, both.replies[2].ids })
    local file = command.json({ "run", tiny.path(), "--prompts", "-", "-n", "3" }, "One\n\nTwo two\n")
    assert.same({ one.ids, two.ids }, { file.replies[1].ids, file.replies[2].ids })
    local status, _, message = command.run({ "run", tiny.path(), "--prompts", "-", "-n", "3" }, "\n")
    assert.equal(2, status)
    assert.matches("no line with a prompt", message)
  end)

  it("reads one of several prompts from standard input", function()
    local command = require "support.command"
    local want = command.json { "run", tiny.path(), "-p", "One", "-p", "Two two", "-n", "3" }
    local r = command.json({ "run", tiny.path(), "-p", "-", "-p", "Two two", "-n", "3" }, "One\n")
    assert.same({ want.replies[1].ids, want.replies[2].ids }, { r.replies[1].ids, r.replies[2].ids })
    local status, _, message = command.run({ "run", tiny.path(), "-p", "-", "-p", "-", "-n", "3" }, "One\n")
    assert.equal(2, status)
    assert.matches("standard input is one prompt", message)
  end)

  it("fails if one of several prompts fails, after writing the others", function()
    local command = require "support.command"
    local one = command.json { "run", tiny.path(), "-p", "One", "-n", "3" }
    local long = ("One, two. "):rep(40)
    local status, text, message = command.run { "run", tiny.path(), "-p", "One", "-p", long, "-n", "3", "-c", "16" }
    assert.equal(1, status)
    local why = text:match "^%-%- 1 of 2\n.-\n%-%- 2 of 2\n%((the prompt has %d+ tokens, but the context has room for 16)%)\n$"
    assert.equal("ane run: 1 of 2 prompts failed: 2: " .. why .. "\n", message)
    status, text = command.run { "run", tiny.path(), "-p", "One", "-p", long, "-n", "3", "-c", "16", "--json" }
    assert.equal(1, status)
    local replies = require("ane.core").json_decode(text).replies
    assert.same(one.ids, replies[1].ids)
    assert.equal("range", replies[2].code)
  end)

  it("says that replies of several prompts are cut off", function()
    local command = require "support.command"
    local status, _, message = command.run { "run", tiny.path(), "-p", "One", "-p", "Two two", "-c", "8", "--ignore-eos" }
    assert.equal(0, status)
    assert.matches("^ane run: 2 of 2 replies are cut off: the context of 8 tokens is full; [^\n]+\n$", message)
  end)

  it("names the caller of generate_many in an error about a prompt", function()
    local model <close> = tiny.load(nil, { context = 64 })
    local function fault(...)
      local _, message = pcall(function(...)
        local replies = model:generate_many(...) -- no tail call: the line is that of the caller
        return replies
      end, ...)
      return message
    end
    assert.matches("^spec/ane/pool/pool_spec.lua:%d+: the prompt must be", fault({ "One", 3 }, { max_tokens = 1 }))
    assert.matches("^spec/ane/pool/pool_spec.lua:%d+: generate_many: option max_tokens", fault({ "One" }, { max_tokens = -1 }))
    assert.matches("^spec/ane/pool/pool_spec.lua:%d+: generate_many: option sessions", fault({ "One" }, { sessions = 0 }))
  end)
end)

describe("prompts of a pool that begin alike", function()
  local function with(start, ...)
    local ids = table.move(start, 1, #start, 1, {})
    for _, id in ipairs { ... } do ids[#ids + 1] = id end
    return ids
  end

  it("are read once, also where all come at the same time", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local random = draws.numbers(19)
    local start = draws.ids(random, 300, model.vocab)
    local pool <close> = model:pool { sessions = 32, step_tokens = 64 }
    local made = {}
    for i = 1, 40 do made[i] = assert(pool:add(with(start, i, 2), { max_tokens = 3, ignore_eos = true })) end
    pool:run()
    for i, r in ipairs(made) do
      assert.same(model:generate(with(start, i, 2), { max_tokens = 3, ignore_eos = true, details = true }).ids, r.result.ids)
    end
    local stats = pool:stats()
    assert.is_true(stats.prompt_tokens <= 300 + 40 * 46, stats.prompt_tokens) -- the prefix once, its last 44 by some
    assert.is_true(stats.cached_tokens >= 39 * 256, stats.cached_tokens)
  end)

  it("take the memory of one prefix and of their tails", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local random = draws.numbers(23)
    local start = draws.ids(random, 320, model.vocab)
    local pool <close> = model:pool { sessions = 32 }
    assert(assert(pool:add(with(start, 1), { max_tokens = 1 })):finish())
    local page = pool:stats().prefix_bytes // 6
    assert.equal(6 * page, pool:stats().kv_bytes)
    for i = 1, 32 do assert(pool:add(with(start, i + 1), { max_tokens = 20, ignore_eos = true })) end
    for _ = 1, 4 do pool:step() end
    assert.equal(32, pool:stats().running)
    assert.equal((5 + 1 + 32) * page, pool:stats().kv_bytes) -- the prefix, the first tail, 32 tails
  end)

  it("give known prefixes up within the limit of their memory, the least recently used first", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local random = draws.numbers(29)
    local s <close> = assert(model:session())
    assert(s:feed(draws.ids(random, 64, model.vocab)))
    local pool <close> = model:pool { prefix_memory = 6 * s:kv_bytes() }
    for _ = 1, 8 do
      assert(assert(pool:add(draws.ids(random, 100, model.vocab), { max_tokens = 2 })):finish())
      assert.is_true(pool:stats().prefix_bytes <= 6 * s:kv_bytes())
    end
    assert.is_true(pool:stats().prefix_bytes >= 4 * s:kv_bytes())
  end)

  it("are not kept with a limit of 0", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local start = draws.ids(draws.numbers(31), 200, model.vocab)
    local single = model:generate(with(start, 5), { max_tokens = 4, ignore_eos = true, details = true }).ids
    for _, none in ipairs { 0, "0", "0M" } do
      local pool <close> = model:pool { prefix_memory = none }
      for _ = 1, 2 do
        local r = assert(pool:add(with(start, 5), { max_tokens = 4, ignore_eos = true }))
        assert(r:finish())
        assert.same({ 0, single }, { r.result.timings.cached_tokens, r.result.ids })
        assert.equal(0, pool:stats().prefix_bytes)
      end
    end
    assert.has_error(function() model:pool { prefix_memory = -1 } end)
    assert.has_error(function() model:pool { memory = 0 } end)
  end)

  it("are known in another process: save and load", function()
    local folder = os.tmpname()
    os.remove(folder)
    local model <close> = tiny.load(nil, { context = 512 })
    local start = draws.ids(draws.numbers(31), 200, model.vocab)
    do
      local pool <close> = model:pool()
      assert(assert(pool:add(start, { max_tokens = 2, ignore_eos = true })):finish())
      assert(pool:save(folder))
    end
    local pool <close> = model:pool()
    assert(pool:load(folder))
    local r = assert(pool:add(with(start, 5), { max_tokens = 4, ignore_eos = true }))
    assert(r:finish())
    assert.equal(200, r.result.timings.cached_tokens)
    assert.same(model:generate(with(start, 5), { max_tokens = 4, ignore_eos = true, details = true }).ids, r.result.ids)
    local path = folder .. "/prefixes.ane"
    local bytes = assert(core.read_file(path))
    core.write_file(path, bytes:sub(1, -2))
    local ok, message, code = pool:load(folder)
    assert.same({ nil, "format" }, { ok, code })
    assert.matches("damaged", message)
    os.remove(path)
    assert.equal("io", select(3, pool:load(folder)))
    os.remove(folder)
  end)

  it("are those of the turns before: a later turn begins behind them", function()
    local model <close> = tiny.load(nil, { context = 512 })
    local pool <close> = model:pool()
    local first = draws.ids(draws.numbers(37), 90, model.vocab)
    local r = assert(pool:add(first, { max_tokens = 30, ignore_eos = true }))
    assert(r:finish())
    local second = with(first, table.unpack(r.result.ids))
    local again = assert(pool:add(with(second, 1, 2, 3), { max_tokens = 2 }))
    assert(again:finish())
    assert.is_true(again.result.timings.cached_tokens >= 90 + 29)
  end)
end)
