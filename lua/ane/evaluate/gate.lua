--- The quality gate of a quantised model: its hidden states, logits and best tokens against those of its source.
-- Needs ane.core, ane.evaluate.calibrate, ane.model, ane.model.trace, ane.util.failure and ane.util.schema. Usage:
--   local report = assert(gate.run(reference, small, {"The sky is", "Once upon"})); print(report); assert(report.ok)
--
-- Experience on the Neural Engine: a correct int8 conversion has cosines above 0.999. A cosine of 0.92 to 0.97 is a bug, not noise:
-- the norm convention, the scale of the embedding or the position of the soft cap.

local calibrate = require "ane.evaluate.calibrate"
local core = require "ane.core"
local failure = require "ane.util.failure"
local model_of = require "ane.model"
local schema = require "ane.util.schema"
local trace = require "ane.model.trace"

local try = failure.try

local M = {}

--- Least cosine for `ok`, and the one below which there is a warning.
M.OK, M.WARNING = 0.97, 0.999

--- Options of run.
--   chunk: tokens read from an empty cache at a time; default 256
--   tokens: maximum tokens to read
--   hidden: function(model, ids) -> tensor [tokens, channels], the final hidden states, or nil if a model has none to show;
--     default M.hidden, for models that a recipe built
--   progress: function(stage, done, total)
M.rules = {
  chunk = { type = "integer", min = 1, default = 256 },
  tokens = { type = "integer", min = 1 },
  hidden = { type = "callable" },
  progress = { type = "callable" },
}

-- A best token counts as clear if its logit exceeds the next one by this.
local CLEAR = 0.5

-- The head, the last matrix, as program:info() shows it; nil if there is none.
local function head_of(program)
  local matrices = program:info().matrices
  for i = #matrices, 1, -1 do
    if matrices[i].input then return matrices[i] end
  end
end

--- The final hidden states, after the last norm.
-- @return tensor [tokens, channels]; nil if no recipe built the model; or nil, message, code
function M.hidden(model, ids)
  local bundle = model_of.bundle(model, 2)
  if not bundle.options or not bundle.recipe then return nil end
  local program, message, code = trace.program(bundle)
  if not program then return nil, message, code end
  local head = head_of(program)
  if not head then return nil end
  local name, most, parts, channels = head.input, program:max_chunk(), {}, 0
  local session <close>, why, word = program:session { context = #ids, kv = model.kv }
  if not session then return nil, why, word end
  for from = 1, #ids, most do -- parts that the program takes
    local values
    values, message, code = session:trace(table.move(ids, from, math.min(from + most - 1, #ids), 1, {}), { name })
    if not values then return nil, message, code end
    parts[#parts + 1], channels = values[name]:tostring(), values[name]:shape()[2]
  end
  return core.tensor({ #ids, channels }, table.concat(parts))
end

-- Where the stored head is, and its shape; nil if no recipe built the model or the head is not one tensor.
local function stored_head(model)
  local bundle = model_of.bundle(model, 2)
  local program = bundle.options and bundle.recipe and try(trace.program(bundle))
  local head = program and head_of(program)
  local info = head and bundle.source:tensor(head.name)
  return info and #info.shape == 2 and { source = bundle.source, name = head.name, rows = info.shape[1], cols = info.shape[2] } or nil
end

-- Are the hidden states of the models in different bases? A rotation of the weights (ane.quantise.rotate) multiplies the hidden states
-- and the rows of the head by an orthogonal matrix: logits stay, but rows of both heads have cosines near 0. Rounding to 2 bits leaves
-- cosines above 0.8. ROWS rows or more at equal distances are compared.
local ROWS = 32
local function rotated(a, b)
  local x, y = stored_head(a), stored_head(b)
  if not x or not y or x.rows ~= y.rows or x.cols ~= y.cols then return false end
  local sum, n = 0.0, 0
  for row = 1, x.rows, math.max(1, x.rows // ROWS) do
    local left = core.tensor({ x.cols }, try(x.source:read(x.name, row, row)))
    local cosine = left:compare(core.tensor({ y.cols }, try(y.source:read(y.name, row, row)))).cosine
    if cosine == cosine then sum, n = sum + cosine, n + 1 end -- a row of zeros has none
  end
  return n > 0 and sum / n < 0.5
end

-- ---- Cosines -----------------------------------------------------------------------------------------------------------

local function new_tally() return { n = 0, sum = 0.0, least = math.huge, max_abs = 0.0 } end

local function count(tally, a, b, at)
  local d = a:compare(b)
  tally.n, tally.sum = tally.n + 1, tally.sum + d.cosine
  tally.max_abs = d.max_abs > tally.max_abs and d.max_abs or tally.max_abs
  if d.cosine < tally.least or d.cosine ~= d.cosine then tally.least, tally.least_at = d.cosine, at end
end

local function result_of(tally)
  if tally.n == 0 then return nil end
  return { cosine = tally.sum / tally.n, least = tally.least, least_at = tally.least_at, max_abs = tally.max_abs, count = tally.n }
end

local function count_hidden(tally, a, b, offset)
  local x, y = a:shape(), b:shape()
  if x[1] ~= y[1] or x[2] ~= y[2] then
    failure.raise("shape", "hidden states are [%d, %d] and [%d, %d]", x[1], x[2], y[1], y[2])
  end
  for i = 1, x[1] do count(tally, a:slice(1, i, i), b:slice(1, i, i), offset + i) end
end

-- ---- Reading -----------------------------------------------------------------------------------------------------------

local function count_best(best, a, b)
  local top = a:topk(2)
  local same = top[1][1] == b:topk(1)[1][1]
  best.of, best.agree = best.of + 1, best.agree + (same and 1 or 0)
  if top[2] and top[1][2] - top[2][2] <= CLEAR then return end
  best.clear, best.clear_agree = best.clear + 1, best.clear_agree + (same and 1 or 0)
end

-- Runs both models on one list of ids.
local function read_run(left, right, ids, offset, logits, best)
  try(left:rewind(0))
  try(right:rewind(0))
  try(left:feed(ids, { want = "all" }))
  try(right:feed(ids, { want = "all" }))
  for i = 1, #ids do
    local a, b = left:logits(i), right:logits(i)
    count(logits, a, b, offset + i)
    count_best(best, a, b)
  end
end

local function verdict(report)
  local least = report.logits.cosine
  if report.hidden then least = math.min(least, report.hidden.cosine) end
  report.cosine = least
  report.ok = least >= M.OK -- false for NaN
  report.warning = least < M.WARNING or least ~= least
  report.verdict = not report.ok and "fail" or report.warning and "warning" or "ok"
end

local Report = { __name = "ane.gate_report" }

function Report:__tostring()
  local missing = self.rotated and "not compared: the weights of one model are rotated" or "not shown by these models"
  local function line(what, t)
    if not t then return ("%-8s %s\n"):format(what, missing) end
    return ("%-8s cosine %.6f, least %.6f (token %d), largest difference %.4g\n"):format(what, t.cosine, t.least, t.least_at, t.max_abs)
  end
  local best = self.argmax
  return line("hidden", self.hidden) .. line("logits", self.logits)
    .. ("%-8s %d of %d equal; %d of %d where the gap is above %.1f\n"):format("best", best.agree, best.of, best.clear_agree,
      best.clear, CLEAR)
    .. ("%s: %d tokens in %d runs"):format(self.verdict, self.tokens, self.runs)
end

-- Calls a function of the caller, which must not close the models.
local function called(a, b, fn, ...)
  local value, message, code = fn(...)
  if a.closed or b.closed then failure.raise("state", failure.CLOSED) end
  return value, message, code
end

-- The hidden states of a model, a matrix; or nil if it has none to show. Raises if they cannot be computed.
local function hidden(a, b, hidden_of, model, ids)
  local states, message, code = called(a, b, hidden_of, model, ids)
  if states == nil and message then failure.raise(code or "invalid", "%s", message) end
  local is_tensor = schema.type_name(states) == "ane.tensor"
  if states == nil or is_tensor and #states:shape() == 2 then return states end
  error("gate: option hidden must return a tensor [tokens, channels] or nothing, but has returned "
    .. (is_tensor and ("a tensor of %d dimensions"):format(#states:shape()) or "a " .. type(states)), 0)
end

local function gate(a, b, input, opts)
  if a.vocab ~= b.vocab then
    failure.raise("shape", "the models have vocabularies of %d and %d tokens", a.vocab, b.vocab)
  end
  local runs = try(calibrate.runs(a, input, math.min(opts.chunk, a.context, b.context), opts.tokens))
  local hidden_of = opts.hidden or M.hidden
  local turned = not opts.hidden and rotated(a, b)
  local logits, states, best = new_tally(), new_tally(), { of = 0, agree = 0, clear = 0, clear_agree = 0 }
  local left <close> = try(a:session())
  local right <close> = try(b:session())
  local tokens = 0
  for i, ids in ipairs(runs) do
    read_run(left, right, ids, tokens, logits, best)
    if not turned then
      local x, y = hidden(a, b, hidden_of, a, ids), hidden(a, b, hidden_of, b, ids)
      if x and y then count_hidden(states, x, y, tokens) end
    end
    tokens = tokens + #ids
    if opts.progress then called(a, b, opts.progress, "gate", i, #runs) end
  end
  local report = { runs = #runs, tokens = tokens, logits = result_of(logits), hidden = result_of(states), argmax = best }
  report.rotated = turned or nil
  verdict(report)
  return setmetatable(report, Report)
end

--- Compares a model with its source. With fp32 activations in both, the result is the cost of the weights alone.
-- @param a the source
-- @param b the changed model: loaded with other weights, or a package set
-- @param input a text, a list of token ids, or a list of texts and lists: each a prompt for an empty cache
-- @param opts see rules
-- @return report: ok (cosines of hidden states and logits >= 0.97), warning (below 0.999), verdict ("ok", "warning", "fail"),
-- cosine (the lower one), hidden (nil if a model shows none, or if the weights of one model are rotated: then `rotated` is true) and
-- logits = {cosine (mean over tokens), least, least_at (token, from 1), max_abs, count}, argmax = {agree, of, clear_agree, clear (gap
-- above 0.5)}, tokens, runs; it prints as lines; or nil, message, code
function M.run(a, b, input, opts)
  opts = schema.check(M.rules, opts, "gate", 2)
  model_of.bundle(a, 2)
  model_of.bundle(b, 2)
  schema.argument({ type = { "string", "table" } }, input, "gate: input", 2)
  return failure.catch(gate, a, b, input, opts)
end

return M
