local generate = require "ane.generate"
local schema = require "ane.util.schema"
local scripted = require "support.scripted"

local ids = scripted.ids

-- Runs to the end: result, pieces, the session.
local function run(script, opts, more)
  more = more or {}
  local session = more.session or scripted.session(script, { context = more.context, prompt = more.prompt })
  opts = schema.check(generate.rules, opts, "generate", 2)
  local tokenizer = scripted.tokenizer(more.words)
  if more.bare then tokenizer = nil end
  local r = assert(generate.start(session, tokenizer, ids(more.text or "prompt"), opts))
  local pieces = {}
  while true do
    local piece, message, code = r:next()
    if not piece then return r.result, pieces, session, message, code end
    pieces[#pieces + 1] = piece
  end
end

describe("generate", function()
  it("ends at an end token, which is no part of the reply", function()
    local result, pieces = run("hello", {})
    assert.equal("hello", result.text)
    assert.equal("eos", result.stop)
    assert.equal(scripted.EOS, result.eos_id)
    assert.same(ids "hello", result.ids)
    assert.equal("hello", table.concat(pieces))
    assert.same({ 6, 5 }, { result.timings.prompt_tokens, result.timings.tokens })
  end)

  it("continues after end tokens if asked to, or ends at others", function()
    local script = { 97, scripted.EOS, 98, 99 }
    assert.same(script, run(script, { ignore_eos = true, max_tokens = 4 }).ids)
    local result = run(script, { eos = { 99 } })
    assert.same({ 97, scripted.EOS, 98 }, result.ids)
    assert.equal(99, result.eos_id)
  end)

  it("ends after max_tokens without computing more", function()
    local result, _, session = run("hello", { max_tokens = 2 })
    assert.same({ "he", "length" }, { result.text, result.stop })
    assert.equal(7, session.length) -- the prompt and the first token; the second was not needed
    result = run("hello", { max_tokens = 0 })
    assert.same({ "", "length", 0 }, { result.text, result.stop, #result.ids })
  end)

  it("ends when the context is full", function()
    local result = run("hello", {}, { context = 8 })
    assert.same({ "hel", "context" }, { result.text, result.stop })
  end)

  it("refuses a prompt that does not fit, or is empty", function()
    local opts = schema.check(generate.rules, {}, "generate", 2)
    local session = scripted.session("x", { context = 3 })
    local r, message, code = generate.start(session, nil, { 1, 2, 3, 4 }, opts)
    assert.is_nil(r)
    assert.equal("the prompt has 4 tokens, but the context has room for 3", message)
    assert.equal("range", code)
    assert.same({ nil, "invalid" }, { (generate.start(session, nil, {}, opts)), (select(3, generate.start(session, nil, {}, opts))) })
  end)

  it("cuts at stop strings across tokens, and never shows a part of one", function()
    local result, pieces = run("abcSTOPdef", { stop = "STOP" })
    assert.same({ "abc", "stop", "STOP" }, { result.text, result.stop, result.stop_string })
    assert.equal("abc", table.concat(pieces))
    assert.same(ids "abcSTOP", result.ids)
    assert.equal("abcST", run("abcST", { stop = { "STOP", "x" } }).text)
    assert.equal("ab", run({ 97, 257, 100 }, { stop = "cd" }, { words = { "bc" } }).text)
    assert.equal("a", run({ 97, 257 }, { stop = "bc" }, { words = { "bcbc" } }).text)
  end)

  it("streams whole characters", function()
    local result, pieces = run("aé😀b", {})
    assert.equal("aé😀b", result.text)
    for _, piece in ipairs(pieces) do assert.truthy(utf8.len(piece)) end
    assert.equal("a\xC3", run("a\xC3", {}).text) -- what never became a character comes out at the end
    assert.same({ "a", "stop" }, { run("a\xC3", { stop = "\xC3" }).text, run("a\xC3", { stop = "\xC3" }).stop })
  end)

  it("ends at repeated n-grams only when asked to", function()
    local result = run("abababababab", { stop_ngram = { size = 2, times = 3 } })
    assert.same({ "ababab", "repeat" }, { result.text, result.stop })
    assert.equal("eos", run("abababababab", {}).stop)
    assert.equal("aaa", run("aaaaa", { stop_ngram = 1 }).text)
  end)

  it("gives log probabilities of each token, from raw logits", function()
    local result = run("ab", { logprobs = 2, logit_bias = { [97] = 3 } })
    assert.equal(2, #result.logprobs)
    local first = result.logprobs[1]
    assert.same({ 97, 97 }, { first.id, first.top[1][1] })
    -- one logit of 10, 299 of 0
    assert.near(10 - math.log(math.exp(10) + 299), first.logprob, 1e-5)
    assert.near(-math.log(math.exp(10) + 299), first.top[2][2], 1e-5)
  end)

  it("lets a processor change logits or return others", function()
    local seen = {}
    local result = run("abc", { max_tokens = 3, logprobs = 1, logits_processor = function(logits, all)
      seen[#seen + 1] = #all
      logits:set(121 + 1, 50) -- "y"
    end })
    assert.equal("yyy", result.text)
    assert.same({ 6, 7, 8 }, seen)
    assert.is_true(result.logprobs[1].logprob < -9) -- of "y" in the raw logits
    local core = require "ane.core"
    result = run("abc", { max_tokens = 2, logits_processor = function()
      local t = core.tensor { 300 }
      t:set(123, 1)
      return t
    end })
    assert.equal("zz", result.text)
  end)

  it("asks the session for no more rows than it needs", function()
    local _, _, session = run("ab", {})
    assert.same({ "last", "argmax", "argmax" }, { session.fed[1].want, session.fed[2].want, session.fed[3].want })
    _, _, session = run("ab", { temperature = 0.5, seed = 1 })
    assert.equal("last", session.fed[2].want)
  end)

  it("keeps the common start of what the session holds", function()
    local session = scripted.session("ab", { prompt = 6 })
    assert(session:feed(ids "promise", { want = "none" }))
    local result = run(nil, {}, { session = session })
    assert.equal(4, result.timings.cached_tokens)
    assert.equal(2, session.fed[2].n) -- "pt" behind "prom"
    assert.equal("ab", result.text)
    result = run(nil, {}, { session = session })
    assert.equal(5, result.timings.cached_tokens) -- the last token of the prompt is fed for its logits
    assert.equal("ab", result.text)
  end)

  it("gives ids where there is no tokenizer", function()
    local result, pieces = run("ab", {}, { bare = true })
    assert.same({ 97, 98, 256 }, { pieces[1], pieces[2], pieces[3] or 256 })
    assert.is_nil(result.text)
    result, pieces = run("abc", { max_tokens = 2 }, { bare = true })
    assert.same({ { 97, 98 }, "length" }, { pieces, result.stop })
  end)

  it("ends with what it has when stopped", function()
    local session = scripted.session("abcdef")
    local opts = schema.check(generate.rules, {}, "generate", 2)
    local r = generate.start(session, scripted.tokenizer(), ids "p", opts)
    assert.equal("a", r:next())
    assert.equal("b", r:next())
    session:stop()
    assert.equal("", r:next())
    assert.is_nil(r:next())
    assert.same({ "ab", "stopped" }, { r.result.text, r.result.stop })
  end)

  it("passes on failures of the session", function()
    local session = scripted.session("abc")
    session.fail = "no memory"
    local result, _, _, message, code = run(nil, {}, { session = session })
    assert.same({ "no memory", "memory" }, { message, code })
    assert.is_nil(result.stop)
  end)

  it("fails where no logit is a number, as sampling does", function()
    local session = scripted.session "hello"
    local argmax = session.argmax
    function session.argmax(...)
      if session.length == 8 then return 0, -math.huge end
      return argmax(...)
    end
    local result, _, _, message, code = run(nil, {}, { session = session })
    assert.same({ "he", "invalid" }, { string.char(table.unpack(result.ids)), code })
    assert.matches("nothing to choose from", message)
  end)

  it("continues after a callback has raised", function()
    for at = 1, 4 do
      local calls, session = 0, scripted.session("hello", { prompt = 6 })
      local opts = schema.check(generate.rules, {
        logits_processor = function() calls = calls + 1 if calls == at then error "not now" end end,
        progress = function() if at == 1 and calls == 0 then calls = 1 error "not now" end end,
      }, "generate", 2)
      local r = assert(generate.start(session, scripted.tokenizer(), ids "prompt", opts))
      local raised = 0
      while not r.done do
        if not pcall(r.next, r) then raised = raised + 1 end
      end
      assert.same({ 1, "hello", "eos", 6 + 5 }, { raised, r.result.text, r.result.stop, session.length })
    end
  end)

  it("lets callbacks yield", function()
    local co = coroutine.wrap(function()
      return "done", run("abc", {
        progress = function(_, n) coroutine.yield("progress " .. n) end,
        logits_processor = function(_, all) coroutine.yield("logits " .. #all) end,
      }).text
    end)
    local got = {}
    for _ = 1, 5 do got[#got + 1] = co() end
    assert.same({ "progress 6", "logits 6", "logits 7", "logits 8", "logits 9" }, got)
    assert.same({ "done", "abc" }, { co() })
  end)

  it("gives the same text for a seed, and a seed to repeat a text with", function()
    local opts = { temperature = 5, max_tokens = 30, ignore_eos = true }
    local free = run("a", opts)
    assert.equal("integer", math.type(free.seed))
    assert.not_same(free.ids, run("a", opts).ids)
    opts.seed = free.seed
    assert.same(free.ids, run("a", opts).ids)
  end)

  it("refuses wrong options by name", function()
    local function wrong(opts) return function() run("a", opts) end end
    assert.error_matches(wrong { max_tokens = -1 }, "max_tokens")
    assert.error_matches(wrong { stop = "" }, "stop must be a string or a list of strings that are not empty")
    assert.error_matches(wrong { stop = { 1 } }, "stop")
    assert.error_matches(wrong { stop_ngram = { sise = 1 } }, "choose size, times")
    assert.error_matches(wrong { stop_ngram = 0 }, "stop_ngram must be an integer of 1 or more, but is 0")
    assert.error_matches(wrong { logit_bias = { a = 1 } }, "logit_bias")
    assert.error_matches(wrong { temprature = 1 }, "unknown option")
    assert.error_matches(wrong { logits_processor = 1 }, "logits_processor must be a function")
    for _, value in ipairs { 3, "x", {}, true, setmetatable({}, { __metatable = 5 }) } do
      assert.error_matches(wrong { logits_processor = function() return value end }, "must return a tensor or nothing, but has returned a")
    end
    for _, length in ipairs { 0, 3, 301 } do
      local processor = function() return require("ane.core").tensor { length } end
      assert.error_matches(wrong { logits_processor = processor },
        "logits_processor must return a tensor of 300 numbers or nothing, but has returned one of " .. length .. "$")
    end
  end)
end)
