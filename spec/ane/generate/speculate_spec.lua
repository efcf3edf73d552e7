local ane = require "ane"
local generate = require "ane.generate"
local hf = require "support.hf"
local programs = require "support.programs"
local schema = require "ane.util.schema"
local scripted = require "support.scripted"
local speculate = require "ane.generate.speculate"
local tiny = require "support.tiny"

local ids = scripted.ids

local function text(list) return list and string.char(table.unpack(list)) end

describe("drafter", function()
  it("proposes what followed the longest agreement; of equal ones, the latest", function()
    local draft, agreed = speculate.drafter(ids "the cat sat. the dog ran. the c"):draft(6)
    assert.same({ "at sat", 5 }, { text(draft), agreed })
    assert.equal("2", text(speculate.drafter(ids "ab1 ab2 ab"):draft(1)))
    assert.equal("1", text(speculate.drafter(ids "xyab1 ab2 xyab"):draft(1)))
  end)

  it("proposes nothing if nothing agrees, or only a single token", function()
    assert.is_nil(speculate.drafter(ids "abcdef"):draft(3))
    assert.is_nil(speculate.drafter(ids "axbxc"):draft(3))
    assert.is_nil(speculate.drafter({}):draft(3))
    assert.is_nil(speculate.drafter({ 5 }):draft(1))
  end)

  it("goes on with what repeats beyond its own end", function()
    assert.equal("babab", text(speculate.drafter(ids "zababa"):draft(5)))
    assert.equal("aaaaaaa", text(speculate.drafter(ids "aaa"):draft(7)))
  end)

  it("learns token by token what it learns from a whole text", function()
    local said = programs.ids(600, 7, 3)
    local grown = speculate.drafter(programs.slice(said, 1, 5))
    for i = 6, #said do
      grown:push(said[i])
      local a, n = grown:draft(4)
      local b, m = speculate.drafter(programs.slice(said, 1, i)):draft(4)
      assert.same({ b or false, m }, { a or false, n })
    end
  end)

  it("agrees only on tokens that are equal, whatever the keys", function()
    local said = programs.ids(3000, 40, 9)
    local d = speculate.drafter(programs.slice(said, 1, 10))
    for i = 11, #said do
      local draft, agreed = d:draft(1)
      if draft then
        local found = false
        for at = agreed, i - 2 do
          local same = said[at + 1] == draft[1]
          for back = 0, agreed - 1 do same = same and said[at - back] == said[i - 1 - back] end
          found = found or same
        end
        assert.is_true(found)
      end
      d:push(said[i])
    end
  end)

  it("drafts from a corpus, and agrees no further back than the text's start", function()
    local d = speculate.drafter(ids "say hel", ids "hello world")
    local draft, agreed = d:draft(4)
    assert.same({ "lo w", 3 }, { text(draft), agreed })
    assert.is_nil(speculate.drafter(ids "l", ids "hello"):draft(2))
    assert.is_nil(speculate.drafter({}, ids "hello hello"):draft(2))
  end)
end)

describe("pace", function()
  it("drafts nothing before it knows a plain step, and no more than asked", function()
    local pace = speculate.pace(7)
    assert.equal(0, pace:length(9, 7))
    pace:stepped(0.01)
    assert.equal(3, pace:length(20, 3))
    assert.is_true(pace:length(20, 7) > 3)
  end)

  it("stops where drafts are wrong, and loses little until then", function()
    local pace, seconds, calls = speculate.pace(7), 0, 0
    for _ = 1, 400 do -- each step brings one token, whatever is drafted
      local k = pace:length(4, 7)
      local cost = 0.01 * (1 + 0.1 * k)
      seconds = seconds + cost
      if k > 0 then
        calls = calls + 1
        pace:checked(4, k, 0, cost)
      else
        pace:stepped(cost)
      end
    end
    assert.is_true(calls > 0 and calls < 60, calls)
    assert.is_true(seconds <= 400 * 0.01 / 0.97, seconds)
  end)

  it("stops where calls of several tokens take too long, though drafts are right", function()
    local pace, seconds, tokens = speculate.pace(7), 0, 0
    while tokens < 400 do
      local k = pace:length(12, 7)
      local cost = 0.01 * (1 + k)
      seconds, tokens = seconds + cost, tokens + 1 + (k > 0 and k - 1 or 0)
      if k > 0 then pace:checked(12, k, k - 1, cost) else pace:stepped(cost) end
    end
    assert.is_true(seconds <= tokens * 0.01 / 0.97, seconds)
  end)

  -- Decodes a text whose drafts agree by agreed(i) tokens at place i and are right from there on for right(i) tokens, where a
  -- call of T tokens takes cost(T) steps. Gives how many times faster than plain steps that was.
  local function decode(n, agreed, right, cost)
    local pace, i, steps = speculate.pace(7), 0, 0
    while i < n do
      local k = pace:length(agreed(i), math.min(7, n - i))
      steps = steps + cost(k + 1)
      if k == 0 then
        pace:stepped(0.01 * cost(1))
        pace:seen(agreed(i), right(i) > 0)
        i = i + 1
      else
        local accepted = math.min(k, right(i))
        pace:checked(agreed(i), k, accepted, 0.01 * cost(k + 1))
        i = i + accepted + 1
      end
    end
    return n / steps
  end

  local function dear(t) return t == 1 and 1 or 1.1 + 0.2 * (t - 1) end

  it("drafts again after a bad start, since it also counts drafts that it does not check", function()
    for bad = 1, 12 do
      local speed = decode(160, function() return 2 end, function(i) return i < bad and 0 or 7 end, dear)
      assert.is_true(speed > 1.8, ("%d wrong drafts: %.2f"):format(bad, speed))
    end
  end)

  it("loses at most two plain steps and a sixtieth of the time before anything is won", function()
    for slope = 1, 8 do
      local function cost(t) return 1 + slope * 0.05 * (t - 1) end
      for _, n in ipairs { 30, 100, 1000 } do
        for agreed = 2, 12 do
          local speed = decode(n, function() return agreed end, function() return 0 end, cost)
          local most = n * (1 + 1 / 60) + 2 + math.max(0, 7 * (slope * 0.05 - 0.15)) -- what was not known of a first call
          assert.is_true(n / speed <= most, ("slope %d, %d tokens, agreement %d: %.3f"):format(slope, n, agreed, speed))
        end
      end
    end
  end)

  it("spends little of what was won where nothing is won any more", function()
    local pace, lost = speculate.pace(7), 0
    pace:stepped(0.01)
    for _ = 1, 200 do pace:checked(6, 7, 7, 0.01 * dear(8)) end
    for _ = 1, 300 do
      local k = pace:length(6, 7)
      lost = lost + dear(k + 1) - 1
      if k > 0 then
        pace:checked(6, k, 0, 0.01 * dear(k + 1))
      else
        pace:stepped(0.01)
        for _ = 1, 20 do pace:seen(6, true) end -- the worst case: right whenever it is not checked
      end
    end
    assert.is_true(lost <= 2 + 3 + 0.015 * (200 * dear(8) + 300 + lost), lost)
  end)

  it("drafts long where drafts are right, and says what was won", function()
    local pace = speculate.pace(7)
    pace:stepped(0.01)
    for _ = 1, 50 do
      local k = pace:length(12, 7)
      assert.equal(7, k)
      pace:checked(12, k, k, 0.016)
    end
    local stats = pace:stats()
    assert.same({ 50, 350, 350 }, { stats.calls, stats.drafted, stats.accepted })
    assert.near((0.01 + 50 * 0.08) / (0.01 + 50 * 0.016), stats.speedup, 1e-9)
  end)
end)

-- A pace that drafts at every step, as long as there is room, whatever that costs.
local new_pace = speculate.pace
local function eager(most)
  local pace = new_pace(most)
  pace:stepped(1e-3)
  pace.length = function(_, _, room) return math.min(room, most) end
  return pace
end

-- A drafter that knows the reply; each drafted token is wrong with probability `wrong`. from: the number of ids.
local function oracle(reply, wrong, from)
  local at, n = 0, 0
  local d = { push = function() at = at + 1 end }
  function d.draft(_, most)
    local draft = {}
    for i = 1, most do
      n = n + 1
      local id = reply[at + i] or 0
      draft[i] = programs.ids(1, 1000, n * 31 + 7)[1] < wrong * 1000 and (id + 1) % from or id
    end
    return draft, 4
  end
  return d
end

-- fn() with another drafter and pace.
local function with(drafter, pace, fn)
  local old = { speculate.drafter, speculate.pace }
  speculate.drafter, speculate.pace = function() return drafter end, pace or eager
  local done = table.pack(pcall(fn))
  speculate.drafter, speculate.pace = old[1], old[2]
  assert(done[1], done[2])
  return table.unpack(done, 2, done.n)
end

describe("generate with speculate", function()
  local function run(script, opts, reply, wrong, prepare)
    opts.speculate = true
    local session = scripted.session(script)
    if prepare then prepare(session) end
    return with(oracle(reply or ids(script), wrong or 0, 256), eager, function()
      local r = assert(generate.start(session, scripted.tokenizer(), ids "prompt", schema.check(generate.rules, opts, "generate", 2)))
      local pieces = {}
      while true do
        local piece, message, code = r:next()
        if not piece then return r.result, pieces, session, message, code end
        pieces[#pieces + 1] = piece
      end
    end)
  end

  it("feeds several tokens a call and says the same", function()
    for _, wrong in ipairs { 0, 0.2, 0.5, 1 } do
      local result, pieces, session = run("hello wonderful world", {}, nil, wrong)
      assert.equal("hello wonderful world", table.concat(pieces))
      assert.same({ "eos", 6 + 21 }, { result.stop, session.length })
      if wrong == 0 then assert.same({ 6, 8, 8, 8 }, { #session.fed == 4 and 6, session.fed[2].n, session.fed[3].n, session.fed[4].n }) end
    end
  end)

  it("leaves the session where plain decoding leaves it, wherever the reply ends", function()
    for n = 1, 9 do
      local result, _, session = run("hello wonderful world", { max_tokens = n })
      assert.same({ n, 6 + n - 1 }, { #result.ids, session.length })
    end
    local result, _, session = run("abcSTOPdef", { stop = "STOP" })
    assert.same({ "abc", "stop", 6 + 6 }, { result.text, result.stop, session.length })
    result, _, session = run("abababababab", { stop_ngram = { size = 2, times = 3 } })
    assert.same({ "ababab", "repeat", 6 + 5 }, { result.text, result.stop, session.length })
  end)

  it("ends at the next token when stopped within a checked draft", function()
    local session = scripted.session "hello wonderful world"
    with(oracle(ids "hello wonderful world", 0, 256), eager, function()
      local opts = schema.check(generate.rules, { speculate = true }, "generate", 2)
      local r = assert(generate.start(session, scripted.tokenizer(), ids "prompt", opts))
      for _ = 1, 4 do assert(r:next()) end
      session:stop()
      assert.equal("", r:next())
      assert.same({ "stopped", "hell", 6 + 3 }, { r.result.stop, r.result.text, session.length })
    end)
  end)

  it("passes on what fails", function()
    local result, _, _, message, code = run("hello", {}, nil, 0, function(session)
      local feed = session.feed
      session.feed = function(self, list, o)
        if #self.fed == 1 then return nil, "out of order", "memory" end
        return feed(self, list, o)
      end
    end)
    assert.same({ "out of order", "memory" }, { message, code })
    assert.same(ids "h", result.ids)
  end)

  it("is refused by an engine whose results depend on the cut, and for a corpus that cannot be read", function()
    local session = scripted.session "x"
    session.exact = false
    local opts = schema.check(generate.rules, { speculate = true }, "generate", 2)
    local r, message, code = generate.start(session, nil, ids "p", opts)
    assert.same({ nil, "unsupported" }, { r, code })
    assert.matches("option speculate: this engine", message)
    session.exact = nil
    opts.speculate = { corpus = "/nonexistent" }
    r, message = generate.start(session, nil, ids "p", opts)
    assert.is_nil(r)
    assert.matches("needs a tokenizer", message)
    r, message, code = generate.start(session, scripted.tokenizer(), ids "p", opts)
    assert.same({ nil, "io" }, { r, code })
    assert.matches("/nonexistent", message, 1, true)
    local cases = {
      { { max = 8 }, "1 .. 7" }, { { size = 1 }, "choose max, corpus" }, { { corpus = 1 }, "as corpus" },
      { { corpus = { 1, "a" } }, "token ids as corpus, its entry 2 is a" }, { { corpus = { 1.5 } }, "entry 1 is 1.5" },
      { { corpus = { 3, 4, -1 } }, "entry 3 is %-1" },
    }
    for _, case in ipairs(cases) do
      assert.error_matches(function() schema.check(generate.rules, { speculate = case[1] }, "generate", 2) end, case[2])
    end
  end)
end)

describe("a corpus", function()
  it("holds ids of the model only, since what is drafted is fed", function()
    local model <close> = tiny.load()
    local result, message, code = model:generate({ 1, 2, 3 }, { speculate = { corpus = { 7, model.vocab - 1, model.vocab } } })
    assert.same({ nil, "range" }, { result, code })
    assert.equal("option speculate: id 1024 at place 3 of the corpus is not in 0 .. 1023", message)
    assert.equal(4, #model:generate({ 1, 2, 3 }, { speculate = { corpus = { 7, model.vocab - 1 } }, max_tokens = 4, details = true }).ids)
  end)
end)

-- Each with options of load: attention, sliding windows, states of convolutions, experts, ropes that switch at length 32.
local MODELS = {
  { "llama", tiny.path() }, { "llama, one thread, fp32", tiny.path(), { threads = 1, activations = "fp32" } },
  { "llama, int8 KV", tiny.path "llama-kquants", { kv = "int8" } }, { "gemma3", tiny.path "gemma3-q8_0" },
  { "lfm2", hf.path "lfm2-odd" }, { "zaya", hf.path "zaya-odd" }, { "phi3", hf.path "phi3" },
  { "phi3 in int8", hf.path "phi3", { weights = "int8" } },
}
local REPLIES = {
  { "greedy", {} }, { "sampled", { temperature = 1.5, seed = 11 } },
  { "sampled with penalties", { temperature = 0.9, top_p = 0.95, repeat_penalty = 1.3, seed = 5 } }, { "with logprobs", { logprobs = 2 } },
}

for _, model_of in ipairs(MODELS) do
  describe("speculation of " .. model_of[1], function()
    local model, prompt
    setup(function()
      local opts = { context = 96 }
      for key, value in pairs(model_of[3] or {}) do opts[key] = value end
      model = assert(ane.load(model_of[2], opts))
      prompt = programs.ids(9, model.vocab, 4)
    end)
    teardown(function() model:close() end)

    local function reply(opts, more)
      local o = { max_tokens = 50, ignore_eos = true, details = true }
      for _, t in ipairs { opts, more or {} } do
        for key, value in pairs(t) do o[key] = value end
      end
      return assert(model:generate(prompt, o))
    end

    for _, how in ipairs(REPLIES) do
      it("gives the tokens of plain decoding, " .. how[1], function()
        local plain = reply(how[2])
        for _, wrong in ipairs { 0, 0.15, 0.6 } do
          local got = with(oracle(plain.ids, wrong, model.vocab), eager, function() return reply(how[2], { speculate = true }) end)
          assert.same(plain.ids, got.ids)
          assert.same(plain.logprobs, got.logprobs)
          local s = got.timings.speculation
          assert.is_true(s.calls > 0 and s.accepted <= s.drafted)
          if wrong == 0 then assert.equal(s.drafted, s.accepted) end
        end
        assert.same(plain.ids, reply(how[2], { speculate = { max = 3, corpus = plain.ids } }).ids)
      end)
    end
  end)
end

describe("speculation in a session that was restored", function()
  it("goes on as one that was not", function()
    local path = os.tmpname()
    local model <close> = assert(ane.load(hf.path "lfm2-odd", { context = 96 }))
    local a <close> = model:session()
    local b <close> = model:session()
    local prompt = programs.ids(20, model.vocab, 8)
    assert(a:feed(programs.slice(prompt, 1, 15)))
    assert(a:save(path))
    assert(b:restore(path))
    os.remove(path)
    local opts = schema.check(generate.rules, { max_tokens = 40 }, "generate", 2)
    local function run(session, o)
      local r = assert(generate.start(session, nil, prompt, o))
      repeat local id, message = r:next() until not id or message
      return r.result.ids
    end
    local plain = run(a, opts)
    opts.speculate = true
    assert.same(plain, with(oracle(plain, 0.3, model.vocab), eager, function() return run(b, opts) end))
    assert.equal(a.length, b.length)
  end)
end)
