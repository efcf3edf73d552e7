--- `ane bench`: speed of prefill and of decoding, as llama-bench measures them; of a token classifier, sentences a second.
-- Needs ane.classify, ane.cli.common and ane.core.

local common = require "ane.cli.common"
local core = require "ane.core"

local M = {}

M.summary = "Measure prefill and decode speed; of a token classifier, sentences a second."

function M.options(parser)
  common.model_options(parser)
  parser:option("-p --prompt-tokens", "Tokens of the prompt, 0 for none."):convert(common.natural):default "512":argname "N"
  parser:option("-n --gen-tokens", "Tokens to decode, 0 for none."):convert(common.natural):default "128":argname "N"
  parser:option("-r --repetitions", "Measurements, after one that does not count."):convert(common.positive):default "5":argname "R"
  parser:option("--sentence-tokens", "Token classifiers: tokens of a sentence."):convert(common.positive):default "32":argname "N"
  parser:option("-b --batch", "Token classifiers: sentences of one run."):convert(common.positive):default "16":argname "B"
  parser:flag("--json", "Write one JSON object.")
end

local function random_ids(n, vocab, seed)
  local ids = {}
  for i = 1, n do ids[i] = math.floor(core.random(seed, i) * vocab) end
  return ids
end

-- Each runs once from an empty cache and gives seconds; ids are new ones each time.
local KINDS = {
  pp = function(session, ids)
    local started = core.clock()
    assert(session:feed(ids, { want = "last" }))
    session:argmax()
    return core.clock() - started
  end,
  tg = function(session, ids)
    local started = core.clock()
    for i = 1, #ids do
      assert(session:feed(ids[i], { want = "argmax" }))
      session:argmax()
    end
    return core.clock() - started
  end,
}

-- Tokens per second of each repetition; the seconds of the warm-up.
local function measure(session, kind, n, vocab, repetitions)
  local rates, first = {}, nil
  if n == 0 then return rates end
  for r = 0, repetitions do
    assert(session:rewind(0))
    local seconds = KINDS[kind](session, random_ids(n, vocab, r))
    if r == 0 then first = seconds else rates[r] = n / seconds end
  end
  return rates, first
end

-- "61.2 +- 0.4"
local function mean_text(rates)
  local sum, squares = 0, 0
  for _, v in ipairs(rates) do sum = sum + v end
  local mean = sum / #rates
  for _, v in ipairs(rates) do squares = squares + (v - mean) ^ 2 end
  return ("%.2f +- %.2f"):format(mean, #rates > 1 and math.sqrt(squares / (#rates - 1)) or 0)
end

local function show(out, args)
  io.stdout:write(("%s, %d threads, %s; loaded in %.2f s, peak memory %.0f MB\n"):format(out.kernel, out.threads,
    common.bytes(out.model_bytes), out.load_s, out.peak_rss_mb))
  if #out.pp > 0 then io.stdout:write(("prefill of %d: %s tokens/s\n"):format(args.prompt_tokens, mean_text(out.pp))) end
  if #out.tg > 0 then io.stdout:write(("decode of %d: %s tokens/s\n"):format(args.gen_tokens, mean_text(out.tg))) end
  return true
end

-- Sentences per second of each repetition: labels, best legal paths and spans of eight batches of random ids.
local function classify(model, args)
  local n = 8 * args.batch
  local batch <close>, message = require("ane.classify").batch(model, args.batch)
  if not batch then return nil, message end
  local rates, vocab = {}, require("ane.model").bundle(model).program:n_ids()
  for r = 0, args.repetitions do
    local sentences = {}
    for i = 1, n do sentences[i] = random_ids(args.sentence_tokens, vocab, r * n + i) end
    local started = core.clock()
    local spans, failed = batch:spans(sentences)
    if not spans then return nil, failed end
    if r > 0 then rates[r] = n / (core.clock() - started) end
  end
  return rates
end

local function run_classifier(model, args)
  local rates, message = classify(model, args)
  if not rates then return nil, message end
  local info = model:info()
  if args.json then
    return common.print_json {
      sentences = common.list(rates), sentence_tokens = args.sentence_tokens, batch = args.batch, load_s = model.load_s,
      peak_rss_mb = core.memory().peak / 1e6, kernel = info.isa, model_bytes = info.bytes, threads = info.threads,
      weight_bytes = info.weight_bytes, activations = info.activations, kv = info.kv,
    }
  end
  io.stdout:write(("%s, %d threads, %s; loaded in %.2f s, peak memory %.0f MB\n"):format(info.isa, info.threads,
    common.bytes(info.bytes), model.load_s, core.memory().peak / 1e6))
  io.stdout:write(("sentences of %d tokens, %d a run: %s sentences/s\n"):format(args.sentence_tokens, args.batch, mean_text(rates)))
  return true
end

function M.run(args)
  local context = args.context or math.max(args.prompt_tokens, args.gen_tokens, 1)
  local model <close>, message = common.load(args, { context = context })
  if not model then return nil, message end
  if model.config.kind == "token_classifier" then return run_classifier(model, args) end
  local session <close>, failed = model:session()
  if not session then return nil, failed end
  local info = model:info()
  local pp, first = measure(session, "pp", args.prompt_tokens, model.vocab, args.repetitions)
  local tg, first_decode = measure(session, "tg", args.gen_tokens, model.vocab, args.repetitions)
  local out = {
    pp = common.list(pp), tg = common.list(tg), load_s = model.load_s, first_token_s = first or first_decode,
    peak_rss_mb = core.memory().peak / 1e6, kernel = info.isa, model_bytes = info.bytes, threads = info.threads,
    weight_bytes = info.weight_bytes, activations = info.activations, kv = info.kv,
  }
  if args.json then return common.print_json(out) end
  return show(out, args)
end

return M
