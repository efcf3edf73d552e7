--- Cost of a change to a model: two models read the same text, and their distributions of the next token are compared.
-- Needs ane.core, ane.evaluate.interval and quantiles, ane.util.failure and ane.util.schema.
-- Usage: `local r = assert(compare.run(a, b, text)); print(r.kl.mean, r.kl.ci[1], r.kl.ci[2], r.top1)`
--
-- The text is split into windows, each read from an empty cache. Every token of a window but its first is scored: KL(A || B) of the
-- two predictions (nats), whether both have the same best token, and the probability that each gives to the token. Tokens of a window
-- depend on each other, so confidence intervals are taken over the means of windows (ane.evaluate.interval).

local core = require "ane.core"
local failure = require "ane.util.failure"
local interval = require "ane.evaluate.interval"
local median = require("ane.evaluate.quantiles").median
local schema = require "ane.util.schema"

local try = failure.try

local M = {}

--- Options of run.
--   chunk: tokens of a window; default 512, at most the shorter context
--   progress: function(stage, done, total)
M.rules = {
  chunk = { type = "integer", min = 2 },
  progress = { type = "callable" },
}

-- Limit in bytes of the logits of both models held at a time.
local MOST_BYTES = 16 << 20
-- Most divergences kept for the median. When it is reached, every other one is dropped, and the sampling step doubles.
local MOST_KEPT = 1 << 18

-- ---- Statistics ------------------------------------------------------------------------------------------------------

local function new_tally()
  return { count = 0, sum = 0.0, max = 0.0, max_at = nil, same = 0, log_a = 0.0, log_b = 0.0, kept = {}, stride = 1, windows = {} }
end

-- Sums of the tally, to take the share of one window from two of them.
local function sums(tally)
  return { count = tally.count, kl = tally.sum, same = tally.same, log_a = tally.log_a, log_b = tally.log_b }
end

local function close_window(tally, before)
  local window = sums(tally)
  for key, value in pairs(before) do window[key] = window[key] - value end
  if window.count > 0 then tally.windows[#tally.windows + 1] = window end
end

local function keep(tally, kl)
  if tally.count % tally.stride ~= 0 then return end
  tally.kept[#tally.kept + 1] = kl
  if #tally.kept < MOST_KEPT then return end
  local half = {}
  for i = 1, #tally.kept, 2 do half[#half + 1] = tally.kept[i] end
  tally.kept, tally.stride = half, 2 * tally.stride
end

-- Scores a token. a, b: logits of both models before it; id; at: its index in the text.
local function score(tally, a, b, id, at)
  local kl, best_a, best_b, log_a, log_b = core.divergence(a, b, id)
  keep(tally, kl)
  tally.count, tally.sum = tally.count + 1, tally.sum + kl
  if kl > tally.max or kl ~= kl then tally.max, tally.max_at = kl, at end
  if best_a == best_b then tally.same = tally.same + 1 end
  tally.log_a, tally.log_b = tally.log_a + log_a, tally.log_b + log_b
end

-- The smallest number of a sorted list that more than the share q of the numbers do not exceed; at most the last.
local function quantile(sorted, q)
  return sorted[math.min(#sorted, math.floor(q * #sorted) + 1)]
end

-- The interval of a mean over tokens. `map` is applied to its ends; it may be a falling function. The interval of numbers near a limit may
-- reach beyond it, so `map` cuts it there.
local function ci_of(windows, value, map)
  local lo, hi = interval.of(windows, value)
  if not lo then return nil end
  if map then lo, hi = map(lo), map(hi) end
  return { math.min(lo, hi), math.max(lo, hi) }
end

-- Sums of each window, for M.difference.
local function by_window(windows)
  local list = {}
  for i, w in ipairs(windows) do list[i] = { count = w.count, kl = w.kl, log_a = w.log_a, log_b = w.log_b } end
  return list
end

local function report_of(tally, tokens)
  table.sort(tally.kept)
  local n, windows = tally.count, tally.windows
  local function perplexity(mean) return math.exp(-mean) end
  local function share(mean) return math.min(math.max(mean, 0.0), 1.0) end
  local function divergence(mean) return math.max(mean, 0.0) end
  local function ci(key, map) return ci_of(windows, function(w) return w[key] end, map) end
  return {
    tokens = tokens, scored = n,
    kl = {
      mean = tally.sum / n, median = median(tally.kept), p99 = quantile(tally.kept, 0.99), max = tally.max, max_at = tally.max_at,
      ci = ci("kl", divergence),
    },
    top1 = tally.same / n, top1_ci = ci("same", share), windows = #windows, by_window = by_window(windows),
    perplexity = {
      a = math.exp(-tally.log_a / n), b = math.exp(-tally.log_b / n), a_ci = ci("log_a", perplexity), b_ci = ci("log_b", perplexity),
      ratio = math.exp((tally.log_a - tally.log_b) / n),
      ratio_ci = ci_of(windows, function(w) return w.log_b - w.log_a end, perplexity),
    },
  }
end

-- ---- Reading ---------------------------------------------------------------------------------------------------------

-- Scores ids[first .. last], a window, with `start` (an id or nil) before it.
local function read_window(a, b, vocab, ids, first, last, start, tally)
  try(a:rewind(0))
  try(b:rewind(0))
  if start then
    try(a:feed(start, { want = "none" }))
    try(b:feed(start, { want = "none" }))
  end
  local step = math.max(1, MOST_BYTES // (8 * vocab))
  for from = first, last - 1, step do -- the last token is not fed
    local to = math.min(from + step - 1, last - 1)
    local part = table.move(ids, from, to, 1, {})
    try(a:feed(part, { want = "all" }))
    try(b:feed(part, { want = "all" }))
    for i = 1, #part do score(tally, a:logits(i), b:logits(i), ids[from + i], from + i) end
  end
end

local function check_ids(ids, vocab)
  for i, id in ipairs(ids) do
    if math.type(id) ~= "integer" or id < 0 or id >= vocab then
      failure.raise("range", "id %s at place %d is not in 0 .. %d", tostring(id), i, vocab - 1)
    end
  end
  return ids
end

-- Ids of the text, which must be the same for both tokenizers, and the token that begins a text (or nil).
local function read_text(a, b, text)
  if type(text) == "table" then return check_ids(text, a.vocab) end
  if not a.tokenizer then failure.raise("unsupported", "the first model has no tokenizer: give token ids") end
  local ids = try(a.tokenizer:encode(text, { bos = false, eos = false }))
  if b.tokenizer then
    local others = try(b.tokenizer:encode(text, { bos = false, eos = false }))
    for i = 1, math.max(#ids, #others) do
      if ids[i] ~= others[i] then
        local what = "the tokenizers differ: token %d of the text is %s for the first model, %s for the second"
        failure.raise("unsupported", what, i, tostring(ids[i]), tostring(others[i]))
      end
    end
  end
  return ids, a.tokenizer.add_bos and a.tokenizer.bos or nil
end

local function check_kind(model)
  local kind = model.config.kind
  if kind then failure.raise("unsupported", "%s predicts no tokens: its kind is %s", tostring(model), (kind:gsub("_", " "))) end
end

local function check_length(ids)
  if #ids < 2 then failure.raise("invalid", "the text has %d tokens, but must have 2 or more", #ids) end
end

local function check(model, text)
  check_kind(model)
  check_length((read_text(model, model, text)))
  return true
end

local function compare(a, b, text, opts)
  check_kind(a)
  check_kind(b)
  if a.vocab ~= b.vocab then
    local what = "the models have vocabularies of %d and %d tokens: only equal ones can be compared"
    failure.raise("shape", what, a.vocab, b.vocab)
  end
  local ids, start = read_text(a, b, text)
  local most = math.min(a.context, b.context) - (start and 1 or 0)
  if most < 2 then failure.raise("range", "the models' contexts hold %d tokens of the text, but a window must have 2 or more", most) end
  local chunk = math.min(opts.chunk or 512, most)
  if opts.chunk and opts.chunk > most then
    failure.raise("range", "option chunk must be 2 .. %d, which the models' contexts hold, but is %d", most, opts.chunk)
  end
  check_length(ids)
  local left <close> = try(a:session())
  local right <close> = try(b:session())
  local tally = new_tally()
  for first = 1, #ids - 1, chunk do -- a last window of one token has nothing to score
    local last, before = math.min(first + chunk - 1, #ids), sums(tally)
    read_window(left, right, a.vocab, ids, first, last, start, tally)
    close_window(tally, before)
    if opts.progress then opts.progress("compare", last, #ids) end
  end
  local report = report_of(tally, #ids)
  report.chunk = chunk
  return report
end

--- Can other models be compared with this one on a text?
-- @param text a text, or a list of token ids
-- @return true; or nil, message, code
function M.check(model, text)
  schema.argument({ type = { "string", "table" } }, text, "compare: text", 2)
  return failure.catch(check, model, text)
end

--- Compares two loaded models on a text.
-- @param a the reference model
-- @param b the changed model, with an equal vocabulary
-- @param text a text, or a list of token ids
-- @param opts see rules
-- @return table: tokens, scored, chunk, windows, kl = {mean, median, p99, max, max_at (index of the token), ci}, top1 (share of
-- tokens with the same best one), top1_ci, perplexity = {a, b, ratio (b / a), a_ci, b_ci, ratio_ci}, by_window = list of
-- {count, kl, log_a, log_b} (tokens, and sums over them in nats); or nil, message, code. An interval is
-- {low, high}, 95 %; nil if there are fewer than two windows
function M.run(a, b, text, opts)
  opts = schema.check(M.rules, opts, "compare", 2)
  schema.argument({ type = { "string", "table" } }, text, "compare: text", 2)
  return failure.catch(compare, a, b, text, opts)
end

-- Windows of two reports side by side; or nil, message, code if they are not of the same reference and text.
local function pairs_of(report, other)
  local mine, theirs = report.by_window, other.by_window
  if type(theirs) ~= "table" or #theirs ~= #mine then
    return nil, ("the earlier report has %s windows, but this one has %d: compare with the same text and chunk"):format(
      type(theirs) == "table" and #theirs or "no", #mine), "invalid"
  end
  local list = {}
  for i, w in ipairs(mine) do
    local o = theirs[i]
    for _, key in ipairs { "count", "kl", "log_a", "log_b" } do
      if type(o) ~= "table" or type(o[key]) ~= "number" then
        return nil, ("window %d of the earlier report has no %s"):format(i, key), "format"
      end
    end
    if o.count ~= w.count or math.abs(o.log_a - w.log_a) > 1e-4 * w.count then
      return nil, ("window %d of the earlier report has another text or reference"):format(i), "invalid"
    end
    list[i] = { count = w.count, kl = w.kl - o.kl, log_b = w.log_b - o.log_b }
  end
  return list
end

--- Compares two changed models by their reports against the same reference on the same text. Differences are taken window by window, so
-- what makes a window hard for both is left out of the interval.
-- @param report of run
-- @param other of run: the model to compare with
-- @return {kl = {mean, ci}, perplexity = {ratio, ratio_ci}}: the KL of report less that of other (nats), and its perplexity divided by that
-- of other; intervals as run gives them; or nil, message, code
function M.difference(report, other)
  local windows, message, code = pairs_of(report, other)
  if not windows then return nil, message, code end
  local count, kl, log_b = 0, 0.0, 0.0
  for _, w in ipairs(windows) do count, kl, log_b = count + w.count, kl + w.kl, log_b + w.log_b end
  return {
    kl = { mean = kl / count, ci = ci_of(windows, function(w) return w.kl end) },
    perplexity = {
      ratio = math.exp(-log_b / count),
      ratio_ci = ci_of(windows, function(w) return w.log_b end, function(v) return math.exp(-v) end),
    },
  }
end

return M
