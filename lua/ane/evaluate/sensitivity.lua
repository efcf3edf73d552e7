--- Measures the divergence that rounding a single weight causes, and chooses types for a given size.
-- Needs ane.core, ane.model, ane.model.inputs, ane.model.windows, ane.quantise, ane.quantise.types, ane.util.failure and
-- ane.util.schema. Usage:
--   local s = assert(sensitivity.run(model, text)); print(s)
--   local mixed = assert(s:mixed {bits = 4.25}); model:quantise("small.gguf", {weights = "q4_k", mixed = mixed})
--
-- A probe rounds one weight to the smallest type and measures the KL divergence of the predictions. The divergence of the other types is
-- estimated in proportion to the weight's squared error, which holds for small errors (a second-order expansion around the optimum:
-- LeCun, Denker, Solla 1990). Divergences of several weights are added, as in Chen et al. 2021 (arXiv 2105.08795).

local core = require "ane.core"
local failure = require "ane.util.failure"
local inputs = require "ane.model.inputs"
local model_of = require "ane.model"
local quantise = require "ane.quantise"
local schema = require "ane.util.schema"
local types = require "ane.quantise.types"
local windows = require "ane.model.windows"

local try = failure.try

local M = {}

local function check_types(list)
  if #list == 0 then return "must name at least one type" end
  for _, name in ipairs(list) do
    local fault = types.fault(name, true) or (types.known[name].block == 1 and name ~= "fp16" and ("has no use for %s"):format(name))
    if fault then return fault end
  end
end

--- Options of run.
--   types: list of types to choose from; default iq4_xs, q5_k, q6_k, q8_0. For a weight whose rows are not whole blocks, a type is
--     replaced by the nearest one that fits, as in quantise. The stored type of a weight is always a choice, without error
--   tokens: maximum tokens of the text per weight; default 512
--   chunk: tokens that are fed from an empty cache; default 256
--   threads: default the model's
--   progress: function(stage, done, total)
M.rules = {
  types = { type = "list", of = { type = "string" }, check = check_types },
  tokens = { type = "integer", min = 2, default = 512 },
  chunk = { type = "integer", min = 2, default = 256 },
  threads = { type = "integer", min = 1, max = 1024 },
  progress = { type = "callable" },
}

local DEFAULT = { "iq4_xs", "q5_k", "q6_k", "q8_0" }

-- ---- Weights ---------------------------------------------------------------------------------------------------------

-- Bytes of n elements.
local function bytes_of(dtype, n) return n * types.known[dtype].bits / 8 end

-- The choices of types for a weight, smallest first: list of {type, bytes}.
-- @param stored its type in the source
local function choices_of(stored, list, columns, count)
  local seen, out = {}, {}
  local function add(name)
    if not name or seen[name] then return end
    seen[name] = true
    out[#out + 1] = { type = name, bytes = bytes_of(name, count) }
  end
  for _, name in ipairs(list) do add(types.fit(name, columns)) end
  if types.known[stored] and types.known[stored].block > 1 then add(stored) end
  table.sort(out, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes < b.bytes end
    return a.type < b.type
  end)
  return out
end

-- The tensors that quantise would write, by the names of a source; {} if it writes no file of this source.
-- @param r the recipe of the source
local function written(source, r)
  local by_name = {}
  for _, t in ipairs(quantise.tensors(source, r) or {}) do
    for _, part in ipairs(t.parts) do by_name[part.name or ""] = t end
  end
  return by_name
end

-- Returns the matrices of a source that quantise would change, in its order; the bytes of the other tensors; and a list of those among
-- them that a rule must keep. Experts that quantise stacks are one weight with several tensors, of the name that it gives them.
local function weights_of(source, list, matrices, r)
  local known, targets, stacked = {}, written(source, r), {}
  for _, m in ipairs(matrices) do known[m.name:match "^[^%[]+"] = true end
  local out, rest, kept = {}, 0, {}
  for _, t in ipairs(source:tensors()) do
    local target = targets[t.name] or (not next(targets) and t)
    local stays = not target or types.stays(target.name, target.shape)
    if not known[t.name] or types.is_data(t.dtype) or stays then
      rest = rest + t.bytes
      if types.known[t.dtype] and not stays then kept[#kept + 1] = { t.name, t.dtype } end
    elseif stacked[target] then
      table.insert(stacked[target].tensors, t.name)
    else
      local count, plain = types.elements(target.shape), target.plain -- what cannot be in blocks becomes fp16
      local choices = choices_of(t.dtype, plain and { "fp16" } or list, t.shape[#t.shape], count)
      local name = target.parts and #target.parts > 1 and target.name or t.name
      out[#out + 1] = { name = name, count = count, stored = t.dtype, choices = choices, tensors = { t.name } }
      stacked[target] = out[#out]
    end
  end
  return out, rest, kept
end

-- ---- Measurements --------------------------------------------------------------------------------------------------------

-- The logits of a model on each run: list of tensors.
local function logits_of(model, runs)
  local session <close> = try(model:session())
  local out = {}
  for _, ids in ipairs(runs) do
    try(session:rewind(0))
    try(session:feed(ids, { want = "all" }))
    for i = 1, #ids do out[#out + 1] = session:logits(i) end
  end
  return out
end

local function divergence(a, b)
  local sum = 0.0
  for i = 1, #a do sum = sum + core.divergence(a[i], b[i]) end
  return sum / #a
end

-- Sorts rules {name, type} so that each decides about the tensor of its name: a pattern matches anywhere in a name (output.weight in
-- blk.0.attn_output.weight), and the last match counts.
local function sorted_rules(rules)
  local position = {}
  for i, rule in ipairs(rules) do position[rule] = i end
  table.sort(rules, function(a, b)
    if #a[1] ~= #b[1] then return #a[1] < #b[1] end
    return position[a] < position[b]
  end)
  return rules
end

-- Rules that give a type to one weight alone.
local function only(run, w, type)
  local rules = {}
  for i, name in ipairs(w.tensors) do rules[i] = { name, type } end
  for _, other in ipairs(run.weights) do
    for _, name in ipairs(other ~= w and other.tensors or {}) do
      if name:find(w.tensors[1], 1, true) then rules[#rules + 1] = { name, "file" } end
    end
  end
  return sorted_rules(rules)
end

local function load(run, mixed)
  return try(model_of.load(run.path, {
    mixed = mixed, context = run.context, threads = run.threads, activations = run.activations, transform = run.transform,
    adapters = run.adapters, merge = run.merge, recipe = run.recipe,
  }))
end

-- The relative squared errors of a model's tensors: name -> {error (sum over its views), n}.
local function errors_of(model)
  local sums = {}
  for _, row in ipairs(model:weights_report()) do
    local name = row.name:match "^[^%[]+"
    local s = sums[name] or { error = 0.0, n = 0 }
    sums[name] = s
    s.error, s.n = s.error + (row.exact and 0.0 or 10 ^ (-(row.snr_db or 0) / 10)), s.n + 1
  end
  return sums
end

-- Relative squared errors of all weights, each in its r-th choice (or its last). One load of the model measures all weights.
local function measure_errors(run, r)
  local mixed, changes = {}, false
  for _, w in ipairs(run.weights) do
    local type = w.choices[math.min(r, #w.choices)].type
    changes = changes or type ~= w.stored
    for _, name in ipairs(w.tensors) do mixed[#mixed + 1] = { name, type == w.stored and "file" or type } end
  end
  local sums = {}
  if changes then
    local model <close> = load(run, sorted_rules(mixed))
    sums = errors_of(model)
  end
  for _, w in ipairs(run.weights) do
    local choice, error, n = w.choices[math.min(r, #w.choices)], 0.0, 0
    for _, name in ipairs(w.tensors) do
      local s = sums[name]
      if s then error, n = error + s.error, n + s.n end
    end
    if choice.type == w.stored then
      choice.error = 0.0
    elseif not choice.error then
      choice.error = n > 0 and error / n or 0.0
    end
  end
end

-- Measures the divergence of the smallest choice of each weight, and estimates that of its other choices in proportion.
local function probe(run, reference)
  for i, w in ipairs(run.weights) do
    local first = w.choices[1]
    local kl = 0.0
    if first.error > 0 then
      local model <close> = load(run, only(run, w, first.type))
      kl = divergence(reference, logits_of(model, run.runs))
    end
    for _, c in ipairs(w.choices) do c.kl = first.error > 0 and kl * c.error / first.error or 0.0 end
    if run.progress then run.progress("sensitivity", i, #run.weights) end
  end
end

-- ---- The choice ------------------------------------------------------------------------------------------------------

-- The choices on the lower convex hull of divergence over bytes.
local function hull(choices)
  local out = {}
  for _, c in ipairs(choices) do
    while #out > 0 and c.bytes == out[#out].bytes and c.kl < out[#out].kl do out[#out] = nil end
    if #out == 0 or c.kl < out[#out].kl then
      while #out > 1 do
        local a, b = out[#out - 1], out[#out]
        if (a.kl - b.kl) * (c.bytes - b.bytes) > (b.kl - c.kl) * (b.bytes - a.bytes) then break end
        out[#out] = nil
      end
      out[#out + 1] = c
    end
  end
  return out
end

-- The steps from each choice to the next, of all weights, by falling gain per byte.
local function steps_of(weights)
  local steps = {}
  for i, w in ipairs(weights) do
    local h = hull(w.choices)
    for k = 2, #h do
      steps[#steps + 1] = { weight = i, to = h[k], bytes = h[k].bytes - h[k - 1].bytes, rank = k,
                            worth = (h[k - 1].kl - h[k].kl) / (h[k].bytes - h[k - 1].bytes) }
    end
  end
  table.sort(steps, function(a, b)
    if a.worth ~= b.worth then return a.worth > b.worth end
    if a.weight ~= b.weight then return a.weight < b.weight end
    return a.rank < b.rank
  end)
  return steps
end

local Report = { __name = "ane.sensitivity_report" }
Report.__index = Report

-- The rules of the choices for all weights, and what they are expected to give.
local function rules_of(self, chosen)
  local mixed, bytes, kl = table.move(self.kept, 1, #self.kept, 1, {}), 0, 0.0
  for i, w in ipairs(self.weights) do
    mixed[#mixed + 1] = { w.name, chosen[i].type }
    bytes, kl = bytes + chosen[i].bytes, kl + chosen[i].kl
  end
  return sorted_rules(mixed), { bytes = math.floor(bytes + self.rest), bits = 8 * bytes / self.count, kl = kl }
end

local budget_rules = { size = { type = "integer", min = 1 }, bits = { type = "number", min = 0.5, max = 32 } }

--- Chooses types within a budget: takes the steps in order and skips those that exceed it.
-- @param opts size (bytes of all tensors of the file) or bits (mean per weight)
-- @return list of {name, type}, which quantise takes as `mixed`, and {bytes, bits, kl (expected)}; or nil, message, code
function Report:mixed(opts)
  opts = schema.check(budget_rules, opts, "mixed", 2)
  if (opts.size == nil) == (opts.bits == nil) then error("mixed: give one of the options size and bits", 2) end
  local budget = opts.size and opts.size - self.rest or opts.bits * self.count / 8
  local chosen, bytes = {}, 0
  for i, w in ipairs(self.weights) do
    chosen[i] = hull(w.choices)[1]
    bytes = bytes + chosen[i].bytes
  end
  if bytes > budget then
    if opts.bits then
      return nil, ("the smallest types take %.3f bits per weight, more than %g"):format(8 * bytes / self.count, opts.bits), "range"
    end
    return nil, ("the smallest types take %.0f bytes, more than %d"):format(bytes + self.rest, opts.size), "range"
  end
  local stopped = {}
  for _, step in ipairs(steps_of(self.weights)) do
    if not stopped[step.weight] and bytes + step.bytes <= budget then
      chosen[step.weight], bytes = step.to, bytes + step.bytes
    else
      stopped[step.weight] = true
    end
  end
  return rules_of(self, chosen)
end

--- The smallest type of each weight.
-- @return as mixed()
function Report:smallest()
  local chosen = {}
  for i, w in ipairs(self.weights) do chosen[i] = hull(w.choices)[1] end
  return rules_of(self, chosen)
end

-- A report without measurements: all divergences are 0.
local function unmeasured(bundle, model, opts)
  local self = { count = 0 }
  self.weights, self.rest, self.kept = weights_of(bundle.source, opts.types or DEFAULT, model:weights_report(), bundle.recipe)
  for _, w in ipairs(self.weights) do
    self.count = self.count + w.count
    for _, c in ipairs(w.choices) do c.kl = 0.0 end
  end
  return setmetatable(self, Report)
end

function Report:__tostring()
  local lines = {}
  for _, w in ipairs(self.weights) do
    local cells = {}
    for _, c in ipairs(w.choices) do cells[#cells + 1] = ("%s %.2e"):format(c.type, c.kl) end
    lines[#lines + 1] = ("%-36s %s"):format(w.name, table.concat(cells, "  "))
  end
  return table.concat(lines, "\n")
end

local function sensitivity(bundle, model, input, opts)
  if bundle.config.kind == "reranker" then
    failure.raise("unsupported", "%s gives one score, which has no divergence: choose the types yourself", tostring(model))
  end
  local run = {
    path = bundle.source:path(), transform = bundle.options and bundle.options.transform,
    adapters = bundle.options and bundle.options.adapters, merge = bundle.options and bundle.options.merge,
    recipe = bundle.options and bundle.options.recipe,
    threads = opts.threads, activations = model:info().activations, progress = opts.progress,
    context = math.min(opts.chunk, model.context),
  }
  run.runs = try(windows.split(model, try(inputs.resolve(model, input, opts.progress, opts.tokens)), run.context, opts.tokens))
  local report = unmeasured(bundle, model, opts)
  run.weights = report.weights
  local reference <close> = load(run)
  local logits, most = logits_of(reference, run.runs), 0
  for _, w in ipairs(run.weights) do most = math.max(most, #w.choices) end
  for r = 1, most do measure_errors(run, r) end
  probe(run, logits)
  report.tokens = #logits
  return report
end

--- What the smallest type of each weight gives. Measures nothing.
-- @param model, opts as run takes them
-- @return as mixed(), with kl = 0
function M.smallest(model, opts)
  opts = schema.check(M.rules, opts, "sensitivity", 2)
  local bundle = model_of.bundle(model, 2)
  return failure.catch(function() return unmeasured(bundle, model, opts):smallest() end)
end

--- Measures the weights of a model.
-- @param model built by a recipe, of one file or folder
-- @param input a text, a list of token ids, a list of texts and lists, {samples = N} or {chats = list} (ane.model.inputs)
-- @param opts see M.rules
-- @return report: weights = list of {name, count (elements), stored (type), tensors (names in the source), choices = list of
-- {type, bytes, error (squared, relative), kl (nats)}, smallest first}, rest (bytes of other tensors), kept (list of {name, type} of
-- those that are not vectors), count, tokens; mixed(), smallest(); it prints as lines; or nil, message, code
function M.run(model, input, opts)
  opts = schema.check(M.rules, opts, "sensitivity", 2)
  schema.argument({ type = { "string", "table" } }, input, "sensitivity: input", 2)
  local bundle = model_of.bundle(model, 2)
  return failure.catch(sensitivity, bundle, model, input, opts)
end

return M
