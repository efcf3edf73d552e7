--- Tunes the norm weights of a rounded model, so that its predictions come closer to those of its source.
-- Needs ane.core, ane.model.loader, ane.quantise.gradient, ane.quantise.overlay and ane.util.failure. Usage:
--   local changes = tune.run({path = "small.gguf", calibration = c, threads = 2})
--
-- Rounding layer by layer minimises the error of each product. The remaining errors add up over the layers, and other scales of
-- channels correct a large part of the sum (Li et al. 2023, "Norm Tweaking", arXiv 2309.02784). The loss is the KL divergence of the
-- predictions from those of the source on windows of the calibration text, and for a small share the negative log probability of the
-- text's own tokens (distillation with soft and hard targets: Hinton et al. 2015, arXiv 1503.02531, section 2). Adam (Kingma and Ba
-- 2015, arXiv 1412.6980) follows its gradient with respect to all norm weights (ane.quantise.gradient), in relative changes of the
-- weights. Some windows are held out: the weights change only if the perplexity of these comes closer to the source's, and their
-- divergence does not rise by more than 5 %; or, where the own tokens do not count (text_of), if their divergence falls.

local core = require "ane.core"
local failure = require "ane.util.failure"
local gradient = require "ane.quantise.gradient"
local loader = require "ane.model.loader"
local overlay = require "ane.quantise.overlay"

local try = failure.try

local M = {}

--- Most tokens of a window, as chats may be shorter; full windows of a step, and most that are read; one of HELD windows is held out.
M.WINDOW, M.BATCH, M.MOST, M.HELD = 256, 3, 160, 8

--- Maximum windows with the option auto, and numbers of weights times windows: then tuning a small model takes less time than rounding it.
M.MOST_AUTO, M.WORK_AUTO = 40, 5e10

--- Maximum bits per weight with the option auto. Models with more are near enough to their source.
M.BITS_AUTO = 5

--- Maximum tokens of the text after the calibration that are read. A rounded model is closer to its source on its calibration text than on
-- other text, so other text shows the errors better.
M.FURTHER = M.MOST * M.WINDOW

--- The text must have the tokens of this number of full windows.
M.LEAST = 16

--- How much the divergence of the held-out windows may rise.
M.SLACK = 1.05

--- Share of the text's own tokens in the loss. It lowers the perplexity and raises the divergence: SmolLM2 in int4-block, 35 windows, on
-- held-out text +3.7 % and 0.0781 nats with 0, +2.1 % and 0.0784 with 0.1, +1.1 % and 0.0797 with 0.2.
M.SHARE = 0.1

--- Largest change of a weight in a step, relative; it falls to 0 by a half cosine. Decay of the means of Adam.
M.RATE, M.FIRST, M.SECOND = 0.001, 0.9, 0.95

--- Most tokens that tuning reads.
-- @param how option tune of quantise: "auto", "norms" or "none"
function M.tokens(how)
  local most = { auto = M.MOST_AUTO, norms = M.MOST, none = 0 }
  return most[how] * M.WINDOW
end

-- Pieces of at most WINDOW tokens of some runs, and the number of their tokens. A piece of one token predicts nothing.
-- @param least tokens of a piece, 2 or more
local function pieces_of(runs, least)
  local pieces, tokens = {}, 0
  for _, ids in ipairs(runs) do
    for from = 1, #ids - least + 1, M.WINDOW do
      local piece = table.move(ids, from, math.min(from + M.WINDOW - 1, #ids), 1, {})
      pieces[#pieces + 1], tokens = piece, tokens + #piece
    end
  end
  return pieces, tokens
end

-- The text that tuning reads, as pieces, the number of its tokens, and the share of these in the loss: full windows of the text after the
-- calibration; where there are too few, full ones of the calibration; and where there are too few of those, all of its pieces, such as
-- short chats. In a piece of a chat many tokens are those of the template, the same ones in each piece. A model that learned to predict
-- them would be further from its source (SmolLM2, 160 chats of some 60 tokens, share 0.1: a perplexity of -42 % on other chats).
local function text_of(calibration)
  for _, runs in ipairs { calibration.further, calibration.runs } do
    local pieces, tokens = pieces_of(runs, M.WINDOW)
    if #pieces >= M.LEAST then return pieces, tokens, M.SHARE end
  end
  local pieces, tokens = pieces_of(calibration.runs, 2)
  return pieces, tokens, 0
end

-- Windows with the tokens of `most` full ones, spread evenly over the text; the held-out ones apart. Also the number of tokens in the text,
-- and their share in the loss.
local function windows_of(calibration, most)
  local all, tokens, share = text_of(calibration)
  local read, held = {}, {}
  local count = math.min(#all, #all * most * M.WINDOW // math.max(tokens, 1))
  for i = 1, count do
    local list = i % M.HELD == 0 and held or read
    list[#list + 1] = all[1 + (i - 1) * #all // count]
  end
  return read, held, tokens, share
end

--- The windows that tuning reads, those that are held out, and the share of their own tokens in the loss; or nil, why nothing is tuned.
-- @param job calibration, auto, count and bits, as run takes them
function M.windows(job)
  local auto = job.auto
  if auto and job.bits > M.BITS_AUTO then
    return nil, ("the matrices have %.3g bits per weight, more than %g"):format(job.bits, M.BITS_AUTO)
  end
  local most = auto and math.min(M.MOST_AUTO, M.WORK_AUTO // job.count) or M.MOST
  if most < M.LEAST then
    return nil, ("the model has %.0f weights, more than %.0f"):format(job.count, M.WORK_AUTO / M.LEAST)
  end
  local windows, held, tokens, share = windows_of(job.calibration, most)
  if tokens >= M.LEAST * M.WINDOW then return windows, held, share end
  return nil, ("the text has %d tokens, but must have %d or more"):format(tokens, M.LEAST * M.WINDOW)
end

--- Why the norms of a model cannot be tuned, which is known before it is rounded; nil: they can.
-- @param job calibration, auto, count, bits and threads, as run takes them
function M.fault(job)
  local windows, why = M.windows(job)
  if not windows then return why end
  local bundle, own = job.calibration.bundle
  own, why = gradient.new(bundle.recipe, bundle.config, overlay.base(bundle.source), job.threads)
  if not own then return why end
  own:close()
end

local Tuner = {}
Tuner.__index = Tuner

-- A session of a graph, which keeps all values, and its program.
local function session_of(self, graph)
  local program = try(core.program(graph, {
    threads = self.threads, int8 = self.int8, head = "full", context = M.WINDOW, chunk = M.WINDOW,
  }))
  return try(program:session { context = M.WINDOW, kv = "fp32" }), program
end

-- Gives the rounded model its present norm weights, and plans it.
local function plan(self)
  for name, p in pairs(self.params) do
    local values = {}
    for i, w in ipairs(p.base) do values[i] = w * (1 + p.change[i]) end
    self.vectors[name] = core.tensor({ #values }, values)
    self.overlay:put(name, self.vectors[name]:tostring())
  end
  return session_of(self, self.graph)
end

-- Reads windows with the present norm weights. Returns the mean divergence from the source, and without `sums`, to which gradients are
-- added, the logarithm of the perplexity relative to the source's.
local function read(self, windows, sums)
  local session, program = plan(self)
  local kl, apart, n, predicted = 0.0, 0.0, 0, 0
  for _, ids in ipairs(windows) do
    try(self.wanted:rewind(0))
    try(session:rewind(0))
    try(self.wanted:feed(ids, "all"))
    if sums then
      kl = kl + self.gradient:run(session, self.wanted, ids, self.vectors, sums, self.share)
    else
      local more, log, log_wanted = self.gradient:divergence(session, self.wanted, ids)
      kl, apart = kl + more, apart + log_wanted - log
    end
    n, predicted = n + #ids, predicted + #ids - 1
    collectgarbage()
    self.done = self.done + 1
    if self.progress then self.progress("tune", self.done, self.total) end
  end
  session:close()
  program:close()
  return kl / n, apart / predicted
end

-- Without the last bits, in which C libraries differ.
local function rounded(x) return math.floor(x * 1e9 + 0.5) / 1e9 end

-- One step of Adam.
local function follow(self, sums, tokens, step, steps)
  local rate = M.RATE * rounded(0.5 * (1 + math.cos(math.pi * (step - 1) / steps)))
  local scale_first, scale_second = 1 / rounded(1 - M.FIRST ^ step), 1 / rounded(1 - M.SECOND ^ step)
  for name, dw in pairs(sums) do
    local p, d = self.params[name], dw:totable()
    for i, w in ipairs(p.base) do
      local slope = d[i] * w / tokens
      p.first[i] = M.FIRST * p.first[i] + (1 - M.FIRST) * slope
      p.second[i] = M.SECOND * p.second[i] + (1 - M.SECOND) * slope * slope
      p.change[i] = p.change[i] - rate * p.first[i] * scale_first / (math.sqrt(p.second[i] * scale_second) + 1e-12)
    end
  end
end

-- Divides windows into those of the steps: each has at most the tokens of BATCH full windows. A list of {windows, tokens}.
local function steps_of(windows)
  local steps = {}
  for _, ids in ipairs(windows) do
    local last = steps[#steps]
    if not last or last.tokens + #ids > M.BATCH * M.WINDOW then
      last = { windows = {}, tokens = 0 }
      steps[#steps + 1] = last
    end
    last.windows[#last.windows + 1], last.tokens = ids, last.tokens + #ids
  end
  return steps
end

local function descend(self, windows)
  local steps = steps_of(windows)
  for i, step in ipairs(steps) do
    local sums = {}
    read(self, step.windows, sums)
    follow(self, sums, step.tokens, i, #steps)
  end
end

local function zeros(n)
  local list = {}
  for i = 1, n do list[i] = 0.0 end
  return list
end

-- The norm weights of the rounded model: name -> {base, change, first, second}; and the edits that replace them. nil, why, where one
-- is not a list of fp32 numbers.
local function params_of(source, names)
  local params, edits = {}, {}
  for i, name in ipairs(names) do
    local dtype = source:tensor(name).dtype
    if dtype ~= "fp32" then return nil, ("norm weight %s is stored as %s"):format(name, dtype) end
    local bytes = try(source:read(name))
    local n = #bytes // 4
    params[name] = { base = core.tensor({ n }, bytes):totable(), change = zeros(n), first = zeros(n), second = zeros(n) }
    edits[i] = { name = name, dtype = "fp32" }
  end
  return params, edits
end

-- Opens both models. Returns the tuner; or nil, why there is none.
local function open(job)
  local bundle = job.calibration.bundle
  local source = try(core.open(job.path))
  local r, cfg, code = loader.identify(source, job.path, { recipe = bundle.options and bundle.options.recipe })
  try(r, cfg, code)
  local own, why = gradient.new(r, cfg, source, job.threads)
  local params, edits
  if own then params, edits = params_of(source, own.weights) end
  if not params then
    if own then own:close() end
    source:close()
    return nil, why or edits
  end
  local self = setmetatable({
    source = source, gradient = own, threads = job.threads, progress = job.progress, vectors = {}, done = 0,
    int8 = (bundle.options or {}).activations ~= "fp32",
  }, Tuner)
  self.params = params
  self.overlay = overlay.new(source, edits)
  self.graph = require("ane.quantise.layout").of(r, cfg, self.overlay.source).graph
  self.teacher = job.calibration:layout(overlay.base(bundle.source)).graph
  self.wanted, self.wanted_program = session_of(self, self.teacher)
  return self
end

function Tuner:close()
  self.wanted:close()
  self.wanted_program:close()
  self.teacher:close()
  self.graph:close()
  self.gradient:close()
  self.source:close()
end

Tuner.__close = Tuner.close

--- Tunes the norms of a file.
-- @param job path (of the rounded model), calibration (of ane.quantise.moments), threads, progress (function or nil), auto (true: only
-- if it takes little time), count (of the model's weights) and bits (per weight of the matrices): for auto
-- @return {weights = name -> bytes (fp32), before, after = {kl (nats), perplexity (relative to the source's)} of the windows that are
-- held out, windows}; weights is empty where nothing is to be changed; or nil, why the model cannot be tuned. Raises as
-- ane.util.failure does
function M.run(job)
  local windows, held, share = M.windows(job)
  if not windows then return nil, held end
  local tuner, why = open(job)
  if not tuner then return nil, why end
  local self <close> = tuner
  self.share = share
  self.total = #windows + 2 * #held
  local result = { weights = {}, windows = #windows }
  local function measured()
    local kl, apart = read(self, held)
    return { kl = kl, perplexity = math.exp(apart) }, math.abs(apart)
  end
  local apart_before, apart_after
  result.before, apart_before = measured()
  descend(self, windows)
  result.after, apart_after = measured()
  local closer = apart_after < apart_before and result.after.kl < M.SLACK * result.before.kl
  if share == 0 then closer = result.after.kl < result.before.kl end
  if closer then
    for name, vector in pairs(self.vectors) do result.weights[name] = vector:tostring() end
  end
  return result
end

return M
