--- `ane bench`: speed of prefill and decoding, as llama-bench measures them; for a token classifier, sentences per second.
-- Needs ane.classify, ane.cli.common, ane.cli.options, ane.cli.relations, ane.core, ane.coreml.set, ane.evaluate.bench,
-- ane.evaluate.bench_pool, ane.evaluate.bench_sequences, ane.model and ane.util.pool_rules.

local bench = require "ane.evaluate.bench"
local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local pool_rules = require "ane.util.pool_rules"
local relations = require "ane.cli.relations"

local M = {}

M.summary = "Measure the speed of prefill and decode; for a token classifier, sentences per second."
M.ranks = true
M.needs = { { "requests", "pool" }, { "rate", "pool" }, { "shared", "pool" }, { "pool_sessions", "pool" } }
M.excludes = { { "sequences", "pool" }, { "greedy", "pool", "sequences" }, { "depth", "pool", "sequences" }, { "repetitions", "pool" } }

-- Options that take lists of numbers, several times.
local LISTS = {
  { name = "prompt_tokens", flags = "-p --prompt-tokens", default = 512,
    help = "Tokens of the prompt: 16,512, or -p 16 -p 512; 0 for none; default 512." },
  { name = "gen_tokens", flags = "-n --gen-tokens", default = 128, help = "Tokens to decode; 0 for none; default 128." },
  { name = "depth", flags = "-d --depth", default = 0, help = "Tokens in the cache before each test: 0,2048; default 0." },
}

-- Returns all numbers that were given for such an option.
local function numbers(args, list)
  local all = {}
  for _, some in ipairs(args[list.name]) do table.move(some, 1, #some, #all + 1, all) end
  return all[1] and all or { list.default }
end

function M.options(parser)
  options.model(parser)
  for _, list in ipairs(LISTS) do
    options.add(parser, list.flags, list.help, options.integers("number of tokens", 0)):count "*":argname "LIST"
  end
  options.add(parser, "-r --repetitions", "Number of measurements, after one that is not counted. Default 5.", options.positive):argname "R"
  parser:flag("--greedy", "Decode the model's own tokens instead of random ids.")
  parser:flag("--no-limits", "Do not measure the limits of the machine.")
  parser:mutex(
    parser:option("-o --output", "Format of the results; default text."):choices { "text", "md", "csv", "json" },
    parser:flag("--json", "Write one JSON object, like --output json."))
  options.add(parser, "--sequences", "Measure several sequences at once: 1,8,32. Each has -p prompt tokens, then -n "
    .. "tokens to decode.", options.integers("number of sequences", 1)):argname "LIST"
  parser:flag("--pool", "Measure a pool end to end: --requests of -p prompt tokens and -n tokens to decode, which arrive at --rate.")
  options.add(parser, "--requests", "With --pool: number of requests. Default 32.", options.positive):argname "N"
  options.add(parser, "--rate", "With --pool: requests per second on average; 0 (default): all at once.", { type = "number", min = 0 })
    :argname "R"
  options.add(parser, "--shared", "With --pool: tokens that all prompts have in common at their start. Default 0.", options.natural)
    :argname "N"
  options.add(parser, "--pool-sessions", "With --pool: replies computed at once. Default 32.",
    pool_rules.sessions()):argname "N"
  options.add(parser, "--sentence-tokens", "For token classifiers: tokens in a sentence. Default 32.", options.positive):argname "N"
  options.add(parser, "-b --batch", "For token classifiers: sentences in one run. Default 16.", options.positive):argname "B"
end

-- The parser has no defaults, so a value shows that the option was given.
local DEFAULTS = { repetitions = 5, requests = 32, rate = 0, shared = 0, pool_sessions = 32, sentence_tokens = 32, batch = 16 }

-- Options that apply to one kind of model only.
local OF_KIND = {
  ["a language model"] = { "prompt_tokens", "gen_tokens", "depth", "greedy", "sequences", "pool" },
  ["a token classifier"] = { "sentence_tokens", "batch" },
}

-- Refuses options that are for another kind of model; then sets those that were not given. Returns true; or nil, message, code.
local function settle(args, kind)
  for wanted, names in pairs(OF_KIND) do
    for _, name in ipairs(wanted ~= kind and names or {}) do
      if relations.given(args, name) then
        return options.wrong("%s is for %s, %s is %s", relations.spelling(name), wanted, args.model, kind)
      end
    end
  end
  for name, value in pairs(DEFAULTS) do args[name] = args[name] or value end
  return true
end

-- "61.2 +- 0.4"
local function mean_text(rates) return ("%.2f +- %.2f"):format(bench.mean(rates)) end

-- A value as a percentage of a limit; "" if one is unknown.
local function share(value, limit) return value and limit and ("%.0f %%"):format(100 * value / limit) or "" end

-- Returns the texts of one test: bytes read and operations computed per second, compared with the limits of the machine.
local function texts(row, limits)
  local rate = bench.mean(row.rates)
  local read = row.test == "tg" and row.bytes and row.bytes * rate or nil
  return {
    test = row.test .. row.tokens .. (row.depth > 0 and " @ d" .. row.depth or ""), rate = mean_text(row.rates),
    read = read and ("%.1f"):format(read / 1e9) or "", read_share = share(read, limits.read),
    ops = row.matrix_ops and ("%.0f"):format(row.matrix_ops / 1e9) or "",
    ops_share = row.test == "pp" and share(row.matrix_ops, limits.dot) or "",
  }
end

-- Writes the first line: the model, how it runs, and the time of loading.
local function write_head(out)
  io.stdout:write(("%s, %d threads, %s; loaded in %.2f s, peak memory %.0f MB\n"):format(out.kernel, out.threads,
    common.bytes(out.model_bytes), out.load_s, out.peak_rss_mb))
end

-- Writes the lines about ranks, after those of the tests.
local function write_ranks(out)
  for _, r in ipairs(out.ranks or {}) do
    io.stdout:write(("rank %d (%s): layers %s, weights %s, %s when loaded\n"):format(r.rank, r.host,
      r.first and ("%d .. %d"):format(r.first, r.last) or "none", common.bytes(r.weight_bytes), common.bytes(r.resident)))
  end
  for _, l in ipairs(out.links or {}) do
    io.stdout:write(("link from %s to %s: %.1f us, %.2f GB/s\n"):format(l.from, l.to, l.latency_s * 1e6, l.bytes_s / 1e9))
  end
end

local NAMES = { pp = "prefill", tg = "decode" }
local SHOW = {}

function SHOW.text(rows, out)
  write_head(out)
  for _, row in ipairs(rows) do
    local t = texts(row, out.limits or {})
    local at = row.depth > 0 and (" at depth %d"):format(row.depth) or ""
    io.stdout:write(("%s of %d%s: %s tokens/s"):format(NAMES[row.test], row.tokens, at, t.rate))
    local function beside(part, of) return part ~= "" and (" (%s of the %s)"):format(part, of) or "" end
    if t.read ~= "" then io.stdout:write(", reads ", t.read, " GB/s", beside(t.read_share, "limit")) end
    if row.test == "pp" and t.ops ~= "" then io.stdout:write(", matrices ", t.ops, " GOPS", beside(t.ops_share, "int8 limit")) end
    io.stdout:write "\n"
  end
  write_ranks(out)
  return true
end

-- Rows of cells as Markdown; the first are the names.
local function write_md(rows)
  for i, cells in ipairs(rows) do
    for at, v in ipairs(cells) do cells[at] = tostring(v):gsub("|", "\\|") end
    io.stdout:write("| ", table.concat(cells, " | "), " |\n", i == 1 and ("|---"):rep(#cells) .. "|\n" or "")
  end
  return true
end

function SHOW.md(rows, out)
  local lines = { { "model", "kernel", "threads", "test", "tokens/s", "read GB/s", "of limit", "matrices GOPS", "of int8 limit" } }
  for i, row in ipairs(rows) do
    local t = texts(row, out.limits or {})
    lines[i + 1] = { out.model, out.kernel, out.threads, t.test, t.rate, t.read, t.read_share, t.ops, t.ops_share }
  end
  return write_md(lines)
end

-- A field of CSV (RFC 4180).
local function field(v)
  local text = tostring(v)
  return text:find '[",\r\n]' and '"' .. text:gsub('"', '""') .. '"' or text
end

local function write_csv(rows)
  for _, cells in ipairs(rows) do
    for at, v in ipairs(cells) do cells[at] = field(v) end
    io.stdout:write(table.concat(cells, ","), "\n")
  end
  return true
end

function SHOW.csv(rows, out)
  local lines, limits = { {
    "model", "kernel", "threads", "test", "tokens", "depth", "mean", "stddev", "bytes_a_token", "ops_a_token", "matrix_ops_s",
    "read_limit", "dot_limit",
  } }, out.limits or {}
  for i, row in ipairs(rows) do
    local mean, deviation = bench.mean(row.rates)
    lines[i + 1] = {
      out.model, out.kernel, out.threads, row.test, row.tokens, row.depth, ("%.3f"):format(mean), ("%.3f"):format(deviation),
      row.bytes or "", row.ops or "", row.matrix_ops or "", limits.read or "", limits.dot or "",
    }
  end
  return write_csv(lines)
end

function SHOW.json(rows, out)
  local lists = { pp = {}, tg = {} }
  for _, row in ipairs(rows) do
    if row.depth == rows[1].depth and #lists[row.test] == 0 then lists[row.test] = row.rates end
  end
  out.pp, out.tg, out.tests = common.list(lists.pp), common.list(lists.tg), common.list(rows)
  return common.print_json(out)
end

-- Sentences per second of each repetition: labels, best legal paths and spans of eight batches of random ids.
local function classify(model, args)
  local n = 8 * args.batch
  local batch <close>, message = require("ane.classify").batch(model, args.batch)
  if not batch then return nil, message end
  local rates, vocab = {}, require("ane.model").bundle(model).program:n_ids()
  for r = 0, args.repetitions do
    local sentences = {}
    for i = 1, n do sentences[i] = bench.random_ids(args.sentence_tokens, vocab, r * n + i) end
    local started = core.clock()
    local spans, failed = batch:spans(sentences)
    if not spans then return nil, failed end
    if r > 0 then rates[r] = n / (core.clock() - started) end
  end
  return rates
end

-- Returns the facts of a model that every report has.
local function facts(model, args)
  local info = model:info()
  local out = {
    model = args.model:match "[^/]+/*$", load_s = model.load_s, peak_rss_mb = core.memory().peak / 1e6, kernel = info.isa,
    model_bytes = info.bytes, threads = info.threads, weight_bytes = info.weight_bytes, activations = info.activations, kv = info.kv,
  }
  if info.ranks then
    local program = require("ane.model").bundle(model).program
    out.ranks, out.links = common.list(info.ranks), common.list(assert(program:links()))
  end
  if not args.no_limits then out.limits = core.limits(info.threads, info.isa) end -- last: it takes memory of its own
  return out
end

local SEQUENCES = {}

function SEQUENCES.text(rows, out)
  write_head(out)
  for _, row in ipairs(rows) do
    io.stdout:write(("%d sequences of %d + %d tokens: prefill %.1f, decode %.1f tokens/s in all\n"):format(row.sequences, row.prompt,
      row.tokens, row.pp, row.tg))
  end
  write_ranks(out)
  return true
end

-- Cells of the table: names, then a row for each number of sequences.
local function sequence_cells(rows, out)
  local lines = { { "model", "kernel", "threads", "sequences", "prompt", "tokens", "prefill tokens/s", "decode tokens/s" } }
  for i, row in ipairs(rows) do
    local pp, tg = ("%.1f"):format(row.pp), ("%.1f"):format(row.tg)
    lines[i + 1] = { out.model, out.kernel, out.threads, row.sequences, row.prompt, row.tokens, pp, tg }
  end
  return lines
end

function SEQUENCES.md(rows, out) return write_md(sequence_cells(rows, out)) end
function SEQUENCES.csv(rows, out) return write_csv(sequence_cells(rows, out)) end

function SEQUENCES.json(rows, out)
  out.tests = common.list(rows)
  return common.print_json(out)
end

local function run_sequences(model, args, o, format)
  local rows, message, code = require("ane.evaluate.bench_sequences").run(model, {
    numbers = args.sequences, prompt = o.prompt, tokens = o.tokens, repetitions = args.repetitions,
  })
  if not rows then return nil, code == "range" and "--sequences: " .. message or message end
  return SEQUENCES[format](rows, facts(model, args))
end

-- ---- Pools ---------------------------------------------------------------------------------------------------------------

local POOLS = {}

local function ms(seconds) return seconds and ("%.1f"):format(1000 * seconds) or "" end

function POOLS.text(row, out)
  write_head(out)
  io.stdout:write(("%d requests of %d + %d tokens, %s: %.2f requests/s, %.1f reply tokens/s\n"):format(row.requests, row.prompt, row.tokens,
    row.rate > 0 and ("%.4g a second"):format(row.rate) or "all at once", row.requests_s, row.reply_s))
  io.stdout:write(("first token: median %s ms, p99 %s ms"):format(ms(row.first_median_s), ms(row.first_p99_s)))
  if row.between_median_s then
    io.stdout:write(("; between tokens: median %s ms, p99 %s ms"):format(ms(row.between_median_s), ms(row.between_p99_s)))
  end
  io.stdout:write "\n"
  if row.lua then io.stdout:write(("scheduling: %.1f %% of the time\n"):format(100 * row.lua)) end
  return true
end

-- Cells of the table: names, then the row.
local function pool_cells(row, out)
  return {
    { "model", "kernel", "threads", "requests", "a second", "prompt", "tokens", "shared", "requests/s", "reply tokens/s", "first ms",
      "first p99 ms", "between ms", "between p99 ms" },
    { out.model, out.kernel, out.threads, row.requests, row.rate, row.prompt, row.tokens, row.shared, ("%.3f"):format(row.requests_s),
      ("%.1f"):format(row.reply_s), ms(row.first_median_s), ms(row.first_p99_s), ms(row.between_median_s), ms(row.between_p99_s) },
  }
end

function POOLS.md(row, out) return write_md(pool_cells(row, out)) end
function POOLS.csv(row, out) return write_csv(pool_cells(row, out)) end

function POOLS.json(row, out)
  out.tests = common.list { row }
  return common.print_json(out)
end

local function run_pool(model, args, o, format)
  local row, message = require("ane.evaluate.bench_pool").run(model, {
    requests = args.requests, rate = args.rate, prompt = o.prompt, tokens = o.tokens, shared = args.shared, sessions = args.pool_sessions,
  })
  if not row then return nil, message end
  return POOLS[format](row, facts(model, args))
end

local SENTENCES = {}

function SENTENCES.text(out)
  write_head(out)
  io.stdout:write(("sentences of %d tokens, %d a run: %s sentences/s\n"):format(out.sentence_tokens, out.batch, mean_text(out.sentences)))
  return true
end

function SENTENCES.md(out)
  return write_md {
    { "model", "kernel", "threads", "tokens a sentence", "sentences a run", "sentences/s" },
    { out.model, out.kernel, out.threads, out.sentence_tokens, out.batch, mean_text(out.sentences) },
  }
end

function SENTENCES.csv(out)
  local mean, deviation = bench.mean(out.sentences)
  return write_csv {
    { "model", "kernel", "threads", "sentence_tokens", "batch", "mean", "stddev" },
    { out.model, out.kernel, out.threads, out.sentence_tokens, out.batch, ("%.3f"):format(mean), ("%.3f"):format(deviation) },
  }
end

function SENTENCES.json(out)
  out.sentences = common.list(out.sentences)
  return common.print_json(out)
end

local function run_classifier(model, args, format)
  local rates, message = classify(model, args)
  if not rates then return nil, message end
  local out = facts(model, args)
  out.sentences, out.sentence_tokens, out.batch = rates, args.sentence_tokens, args.batch
  return SENTENCES[format](out)
end

-- The largest number. It is a loop, because a list may be longer than a call may have arguments.
local function most(list)
  local n = list[1]
  for _, v in ipairs(list) do n = math.max(n, v) end
  return n
end

-- Tokens of the context that the tests need; nil for a package set, which has the context that it was written with.
local function context_of(args, o)
  if require("ane.coreml.set").find(args.model) then return nil end
  if args.sequences or args.pool then return o.prompts[1] + o.gens[1] end
  return math.max(most(o.depths) + math.max(o.longest, 1), args.sentence_tokens or 0)
end

-- A context above the model's own is measured only if --context asks for it: it may take minutes and gigabytes. One that is too small
-- for the tests is refused.
local function check_context(model, args, context)
  if args.context and context and args.context < context then
    return options.wrong("--context %d is too small: the tests need %d tokens", args.context, context)
  end
  local own = model.config.context_length
  if args.context or not context or not own or context <= own then return true end
  return options.wrong("the tests need a context of %d tokens, but the model's own is %d: give --context %d", context, own, context)
end

function M.run(args)
  local o = { prompts = numbers(args, LISTS[1]), gens = numbers(args, LISTS[2]), depths = numbers(args, LISTS[3]) }
  o.longest = math.max(most(o.prompts), most(o.gens))
  if (args.sequences or args.pool) and (o.prompts[1] < 1 or o.gens[1] < 1 or o.prompts[2] or o.gens[2]) then
    return options.wrong("%s needs one value of --prompt-tokens and one of --gen-tokens, each 1 or more",
      args.pool and "--pool" or "--sequences")
  end
  if args.shared and args.shared >= o.prompts[1] then
    return options.wrong("--shared must be below --prompt-tokens (%d), but is %d", o.prompts[1], args.shared)
  end
  local context = context_of(args, o)
  local format = args.json and "json" or args.output or "text"
  local model <close>, message = common.load(args, { context = args.context or context }, true)
  if not model then return nil, message end
  local classifier = model.config.kind == "token_classifier"
  local ok, code
  ok, message, code = settle(args, classifier and "a token classifier" or "a language model")
  if not ok then return nil, message, code end
  if classifier then return run_classifier(model, args, format) end
  if model.config.both_sides then
    return nil, ("%s: reads whole texts in both directions, but must be a language model or a token classifier"):format(args.model)
  end
  ok, message, code = check_context(model, args, context)
  if not ok then return nil, message, code end
  common.show_warnings(args, model)
  if args.sequences then return run_sequences(model, args, { prompt = o.prompts[1], tokens = o.gens[1] }, format) end
  if args.pool then return run_pool(model, args, { prompt = o.prompts[1], tokens = o.gens[1] }, format) end
  if o.longest == 0 then return options.wrong "nothing to measure: give one of --prompt-tokens, --gen-tokens" end
  local rows
  rows, message = bench.run(model, {
    prompts = o.prompts, gens = o.gens, depths = o.depths, repetitions = args.repetitions, greedy = args.greedy,
    progress = common.progress(args),
  })
  if not rows then return nil, message end
  local out = facts(model, args)
  out.first_token_s = rows.first_s
  return SHOW[format](rows, out)
end

return M
