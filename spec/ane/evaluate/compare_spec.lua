local ane = require "ane"
local command = require "support.command"
local compare = require "ane.evaluate.compare"
local core = require "ane.core"
local tiny = require "support.tiny"

local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times. Ünïcödé too.\n"):rep(4)

local function load(opts) return tiny.load(nil, opts or { activations = "fp32" }) end

describe("core.divergence", function()
  it("is the Kullback-Leibler divergence of the softmaxes", function()
    local a, b = core.tensor({ 4 }, { 1, 2, 3, -1 }), core.tensor({ 4 }, { 2, 1, 0.5, 0 })
    local function probabilities(t)
      local sum, p = 0, {}
      for i = 1, 4 do sum = sum + math.exp(t:get(i)) end
      for i = 1, 4 do p[i] = math.exp(t:get(i)) / sum end
      return p
    end
    local p, q, want = probabilities(a), probabilities(b), 0
    for i = 1, 4 do want = want + p[i] * math.log(p[i] / q[i]) end
    local kl, best_a, best_b, log_a, log_b = core.divergence(a, b, 3)
    assert.near(want, kl, 1e-6)
    assert.same({ 2, 0 }, { best_a, best_b })
    assert.near(math.log(p[4]), log_a, 1e-6)
    assert.near(math.log(q[4]), log_b, 1e-6)
    assert.equal(3, select("#", core.divergence(a, b)))
  end)

  it("is 0 for equal rows, shifted ones too, and never below", function()
    local values = {}
    for i = 1, 1000 do values[i] = math.sin(i) * 10 end
    local a = core.tensor({ 1000 }, values)
    assert.equal(0.0, (core.divergence(a, a)))
    for i = 1, 1000 do values[i] = values[i] + 7 end
    local kl = core.divergence(a, core.tensor({ 1000 }, values))
    assert.is_true(kl >= 0 and kl < 1e-5)
  end)

  it("knows what one rules out", function()
    local inf = math.huge
    local a, b = core.tensor({ 2 }, { 0, -inf }), core.tensor({ 2 }, { -inf, 0 })
    assert.equal(inf, (core.divergence(a, b)))
    assert.equal(0.0, (core.divergence(a, core.tensor({ 2 }, { 5, -inf }))))
    local kl = core.divergence(core.tensor({ 2 }, { -inf, -inf }), b)
    assert.is_true(kl ~= kl)
    assert.error_matches(function() core.divergence(a, core.tensor({ 3 }, { 1, 2, 3 })) end, "rows of 2 and 3 logits")
    assert.error_matches(function() core.divergence(a, b, 2) end, "2 is not in 0 .. 1")
  end)
end)

describe("compare.run", function()
  it("finds no difference where there is none", function()
    local a <close> = load()
    local b <close> = load()
    local r = assert(compare.run(a, b, TEXT))
    r.kl.ci = nil
    assert.same({ mean = 0.0, median = 0.0, p99 = 0.0, max = 0.0 }, r.kl)
    assert.equal(1.0, r.top1)
    assert.equal(r.perplexity.a, r.perplexity.b)
    assert.equal(#a.tokenizer:encode(TEXT, { bos = false, eos = false }), r.tokens)
  end)

  it("gives the perplexity that logprobs give", function()
    local a <close> = load()
    local ids = a.tokenizer:encode(TEXT, { bos = false, eos = false })
    local chunk, sum, n = 16, 0, 0
    for first = 1, #ids, chunk do
      local s <close> = assert(a:session())
      local start = a.tokenizer.add_bos and a.tokenizer.bos
      if start then s:feed(start) end
      for i = first, math.min(first + chunk - 1, #ids) do
        if i > first then
          sum, n = sum + core.logprobs(s:logits(), ids[i]), n + 1
        end
        s:feed(ids[i])
      end
    end
    local r = assert(compare.run(a, a, TEXT, { chunk = chunk }))
    assert.same({ n, chunk }, { r.scored, r.chunk })
    assert.near(math.exp(-sum / n), r.perplexity.a, 1e-6 * r.perplexity.a)
  end)

  it("measures what coarser weights cost", function()
    local a <close> = load()
    local last = 0
    for _, weights in ipairs { "q8_0", "q5_0", "q4_0" } do
      local b <close> = load { activations = "fp32", weights = weights }
      local r = assert(compare.run(a, b, TEXT, { chunk = 32 }))
      assert.is_true(r.kl.mean >= last and r.kl.max >= r.kl.p99 and r.kl.p99 >= r.kl.median)
      assert.is_true(r.top1 > 0.1 and r.top1 <= 1)
      if weights ~= "q8_0" then assert.is_true(r.kl.mean > 0 and r.kl.max_at >= 2 and r.kl.max_at <= r.tokens) end
      last = r.kl.mean
    end
  end)

  it("gives intervals that stay within 0 and 1 for shares, and above 0 for KL", function()
    local a <close> = load()
    local b <close> = load { weights = "q8_0" }
    local outside = false
    for chunk = 4, 40, 4 do
      local r = assert(compare.run(a, b, TEXT, { chunk = chunk }))
      local ci = r.top1_ci
      assert.is_true(0 <= ci[1] and ci[1] <= r.top1 and r.top1 <= ci[2] and ci[2] <= 1)
      assert.is_true(r.kl.ci[1] >= 0)
      outside = outside or (r.top1 < 1 and ci[2] == 1)
    end
    assert.is_true(outside)
  end)

  it("gives intervals over windows that hold the means", function()
    local a <close> = load()
    local b <close> = load { activations = "fp32", weights = "q4_0" }
    local r = assert(compare.run(a, b, TEXT, { chunk = 32 }))
    assert.equal(math.ceil((r.tokens - 1) / 32), r.windows)
    local function holds(ci, mean) assert.is_true(ci[1] <= mean and mean <= ci[2] and ci[1] < ci[2]) end
    holds(r.kl.ci, r.kl.mean)
    holds(r.top1_ci, r.top1)
    holds(r.perplexity.a_ci, r.perplexity.a)
    holds(r.perplexity.b_ci, r.perplexity.b)
    holds(r.perplexity.ratio_ci, r.perplexity.b / r.perplexity.a)
    assert.near(r.perplexity.b / r.perplexity.a, r.perplexity.ratio, 1e-9)
    assert.is_nil(assert(compare.run(a, b, TEXT:sub(1, 20))).kl.ci)
  end)

  it("gives the difference of two changed models window by window", function()
    local a <close> = load()
    local b <close> = load { activations = "fp32", weights = "q4_0" }
    local c <close> = load { activations = "fp32", weights = "q8_0" }
    local coarse, fine = assert(compare.run(a, b, TEXT, { chunk = 32 })), assert(compare.run(a, c, TEXT, { chunk = 32 }))
    local d = assert(compare.difference(coarse, fine))
    assert.near(coarse.kl.mean - fine.kl.mean, d.kl.mean, 1e-9)
    assert.near(coarse.perplexity.b / fine.perplexity.b, d.perplexity.ratio, 1e-9)
    assert.is_true(0 < d.kl.ci[1] and d.kl.ci[1] < d.kl.mean and d.kl.mean < d.kl.ci[2])
    local none = assert(compare.difference(fine, fine))
    assert.same({ 0, { 0, 0 } }, { none.kl.mean, none.kl.ci })
    assert.matches("another text or reference", select(2, compare.difference(coarse, assert(compare.run(b, c, TEXT, { chunk = 32 })))))
    assert.matches("has no windows", select(2, compare.difference(coarse, {})))
    local path = os.tmpname()
    local text = command.json({ "compare", tiny.path(), tiny.path(), "-", "--weights-b", "q8_0", "--chunk", "32" }, TEXT)
    assert(core.write_file(path, core.json_encode(text)))
    local args = { "compare", tiny.path(), tiny.path(), "-", "--weights-b", "q4_0", "--chunk", "32", "--than", path }
    local code, out = command.run(args, TEXT)
    assert.is_number(command.json(args, TEXT).than.kl.mean)
    os.remove(path)
    assert.equal(0, code)
    assert.matches("\nthan the other B +KL %+[%d.]+ %(95 %% ", out)
  end)

  it("takes ids, and reports progress", function()
    local a <close> = tiny.load "llama-kquants"
    local ids, seen = {}, {}
    for i = 1, 33 do ids[i] = i end
    local function progress(...) seen[#seen + 1] = { ... } end
    local r = assert(compare.run(a, a, ids, { chunk = 16, progress = progress }))
    assert.same({ 33, 30 }, { r.tokens, r.scored })
    assert.same({ { "compare", 16, 33 }, { "compare", 32, 33 } }, seen)
  end)

  it("fails as a command where the gate is not passed", function()
    local path, text = tiny.path(), os.tmpname()
    assert(core.write_file(text, TEXT))
    local args = { "compare", path, path, text, "--weights-b", "lut4", "--gate" }
    local code, out, err = command.run(args)
    assert.equal(1, code)
    assert.matches("\nfail: ", out)
    assert.equal("ane compare: the quality gate fails\n", err)
    args[#args + 1] = "--json"
    code, out, err = command.run(args)
    assert.equal(1, code)
    local report = core.json_decode(out)
    assert.same({ false, false }, { report.ok, report.gate.ok })
    assert.equal("ane compare: the quality gate fails\n", err)
    assert.equal(0, (command.run { "compare", path, path, text, "--gate" }))
    assert.is_true(command.json({ "compare", path, path, text, "--gate" }).ok)
    assert.is_nil(command.json({ "compare", path, path, text }).ok)
    os.remove(text)
  end)

  it("says as a command which weights B cannot hold as asked", function()
    local path, text = tiny.path(), os.tmpname()
    assert(core.write_file(text, TEXT))
    local code, _, err = command.run { "compare", path, path, text, "--weights-b", "q4_k" }
    os.remove(text)
    assert.equal(0, code)
    assert.matches("^ane compare: [^\n]*: weights q4_k: %d+ of %d+ matrices have rows [^\n]* held as q5_0\n$", err)
  end)

  it("fails as a command where a limit is exceeded", function()
    local path, text = tiny.path(), os.tmpname()
    assert(core.write_file(text, TEXT))
    local function run(...) return command.run { "compare", path, path, text, ... } end
    local code, _, err = run("--weights-b", "lut4", "--max-kl", "1e-9", "--max-perplexity", "1e6")
    assert.equal(1, code)
    assert.matches("^ane compare: the mean KL must be at most 1e%-09, but is %d+%.%d+\n$", err)
    local out
    code, out = run("--weights-b", "lut4", "--max-kl", "1e-9", "--json")
    local json = core.json_decode(out)
    assert.same({ 1, false, false, 1e-9 }, { code, json.ok, json.limits.ok, json.limits.max_kl })
    assert.equal(0, (run("--max-kl", "1e-9", "--max-perplexity", "0.1")))
    code, _, err = run("--max-kl", "-1")
    assert.equal(2, code)
    assert.matches("%-%-max%-kl must be", err)
    os.remove(text)
  end)

  it("refuses what cannot be compared", function()
    local a <close> = load()
    local function refused(code, pattern, ...)
      local r, message, got = compare.run(...)
      assert.same({ nil, code }, { r, got })
      assert.matches(pattern, message)
    end
    local b <close> = tiny.load "llama-kquants"
    if a.vocab ~= b.vocab then refused("shape", "vocabularies of %d+ and %d+ tokens", a, b, TEXT) end
    refused("unsupported", "has no tokenizer: give token ids", b, b, TEXT)
    local encoder <close> = assert(ane.load "spec/fixtures/hf/bert")
    refused("unsupported", "bert%) predicts no tokens: its kind is embedding$", encoder, encoder, { 1, 2 })
    refused("invalid", "the text has 1 tokens, but must have 2", b, b, { 1 })
    refused("range", "id 99999999 at place 2 is not in 0 .. %d+$", b, b, { 1, 99999999, 3 })
    refused("range", "id table: %S+ at place 1 is not in", b, b, { { 1, 2 }, { 3 } })
    refused("range", "option chunk must be 2 .. %d+, which the models' contexts hold, but is 1000000", b, b, { 1, 2 }, { chunk = 1000000 })
    local narrow <close> = load { context = 1 }
    refused("range", "contexts hold 1 tokens? of the text, but a window must have 2 or more$", a, narrow, { 1, 2, 3 })
    assert.error_matches(function() compare.run(a, a, 3) end, "compare: text must be a string or a table")
    assert.error_matches(function() compare.run(a, a, TEXT, { chunks = 3 }) end, 'unknown option "chunks"')
    assert.error_matches(function() compare.run(a, a, TEXT, { chunk = 1 }) end, "option chunk must be 2 or more")
  end)
end)

describe("ane compare", function()
  it("writes one object, or shows people lines", function()
    local args = { "compare", tiny.path(), tiny.path(), "-", "--weights-b", "q4_0", "--chunk", "32" }
    local r = command.json(args, TEXT)
    for _, key in ipairs { "tokens", "scored", "chunk", "top1" } do assert.is_number(r[key]) end
    for _, key in ipairs { "mean", "median", "p99", "max" } do assert.is_number(r.kl[key]) end
    assert.is_true(r.perplexity.a > 1 and r.perplexity.b > 1)
    local code, out, err = command.run(args, TEXT)
    assert.same({ 0, "" }, { code, err })
    assert.matches("^%d+ of %d+ tokens scored, windows of 32\nKL%(A || B%), nats +mean .*\nsame best token .* %%\n", out)
    assert.matches("\nperplexity +A [%d.]+  B [%d.]+ %([+-][%d.]+ %%%)\n$", out)
  end)

  it("fails in one line", function()
    for _, case in ipairs {
      { "/nonexistent: No such file", { tiny.path(), tiny.path(), "/nonexistent" } },
      { "/nonexistent.gguf", { tiny.path(), "/nonexistent.gguf", "-" } },
      { "the text has 0 tokens", { tiny.path(), tiny.path(), "/dev/null" } },
      { "contexts hold", { tiny.path(), tiny.path(), "-", "--chunk", "100000" } },
    } do
      local code, out, err = command.run({ "compare", table.unpack(case[2]) }, "")
      assert.same({ 1, "" }, { code, out })
      assert.matches("^ane compare: [^\n]*\n$", err)
    end
  end)

  it("names --chunk where no context of a model holds it", function()
    local source <close>, set = assert(ane.load(tiny.path())), os.tmpname()
    os.remove(set)
    assert(source:export(set, { context = 32 }))
    local start = source.tokenizer.add_bos and 1 or 0
    for _, chunk in ipairs { 32 - start + 1, 500 } do
      local code, _, err = command.run({ "compare", tiny.path(), set, "-", "--chunk", tostring(chunk) }, TEXT)
      local want = "ane compare: --chunk must be 2 .. %d, which the models' contexts hold, but is %d\n"
      assert.same({ 2, want:format(32 - start, chunk) }, { code, err })
    end
    assert.equal(0, (command.run({ "compare", tiny.path(), set, "-", "--chunk", tostring(32 - start) }, TEXT)))
    os.execute("rm -r " .. set)
  end)

  it("needs equal models", function()
    local a <close> = assert(ane.load(tiny.path()))
    assert.equal(1.0, compare.run(a, a, "Hello there").top1)
  end)
end)
