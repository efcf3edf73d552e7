--- Finds causes of a drift from a golden: first from the numbers, then by trying known mistakes of porting one by one.
-- Needs ane.evaluate.check.places and variants, ane.model.trace, ane.recipe and ane.util.failure.
-- Usage: `report.hints = hints.find(report, bundle, g, kv)`

local failure = require "ane.util.failure"
local places = require "ane.evaluate.check.places"
local recipe = require "ane.recipe"
local trace = require "ane.model.trace"
local variants = require "ane.evaluate.check.variants"

local M = {}

-- ---- Numbers -----------------------------------------------------------------------------------------------------------

-- The factor r with golden = r * ours everywhere; nil if there is none.
local function ratio_of(row)
  if row.shapes or row.cosine ~= row.cosine or row.cosine <= 0.9999 then return nil end
  local r = row.golden:dot(row.ours) / row.ours:dot(row.ours)
  return math.abs(r - 1) > 1e-2 and r or nil
end

local function scale_hint(row, cfg)
  local r = ratio_of(row)
  if not r then return nil end
  local root = math.sqrt(cfg.d_model)
  local name = row.name == "logits" and "head scale" or row.name == "hidden.0" and "embedding scale" or "scale"
  local known = math.abs(r / root - 1) < 1e-2 and " = sqrt(d_model): multiply the embedding by it"
    or math.abs(r * root - 1) < 1e-2 and " = 1 / sqrt(d_model): the golden does not multiply by sqrt(d_model)" or ""
  if row.name ~= "hidden.0" then known = "" end
  return { kind = name == "embedding scale" and "embed" or name == "head scale" and "head" or "scale", certain = true,
           text = ("%s: the golden's %s is ours times %.5g%s"):format(name, row.name, r, known) }
end

-- The cap c for which y is c * tanh(x / c) everywhere; nil if there is none. x, y: lists.
local function cap_of(x, y)
  local function error_of(c)
    local worst = 0
    for i = 1, #x do worst = math.max(worst, math.abs(y[i] - c * (1 - 2 / (math.exp(2 * x[i] / c) + 1))) / (1 + math.abs(y[i]))) end
    return worst
  end
  local most = 0
  for i = 1, #y do most = math.max(most, math.abs(y[i])) end
  -- Golden-section search over log c: the error falls, then rises.
  local low, high, g = math.log(math.max(most, 1e-3)), math.log(math.max(most, 1e-3) * 1000), (math.sqrt(5) - 1) / 2
  for _ = 1, 60 do
    local a, b = high - g * (high - low), low + g * (high - low)
    if error_of(math.exp(a)) < error_of(math.exp(b)) then high = b else low = a end
  end
  local c = math.exp((low + high) / 2)
  return error_of(c) < 2e-3 and c or nil
end

-- Most elements of a tensor that a curve is fitted to.
local SAMPLE = 2000

local function sampled(t)
  local list, out = t:totable(), {}
  local step = math.max(1, #list // SAMPLE)
  for i = 1, #list, step do out[#out + 1] = list[i] end
  return out
end

local function softcap_hint(row)
  if row.shapes or row.cosine ~= row.cosine or row.cosine <= 0.5 then return nil end
  local ours, want = sampled(row.ours), sampled(row.golden)
  local c = cap_of(ours, want)
  local text = "soft cap: the golden's logits are %.4g tanh(ours / %.4g): cap them after the head"
  if not c then
    c = cap_of(want, ours)
    text = "soft cap: our logits are %.4g tanh(golden / %.4g): the golden's are not capped"
  end
  return c and { kind = "softcap", certain = true, text = text:format(c, c) } or nil
end

-- A hint that golden - ours is the same for all tokens; nil if it is not.
local function bias_hint(row)
  if row.shapes or row.ours:shape()[1] < 2 then return nil end
  local d = row.golden - row.ours
  local first, spread = d[1], 0
  for i = 2, d:shape()[1] do spread = math.max(spread, d[i]:compare(first).max_abs) end
  if spread > 1e-2 * row.max_abs then return nil end
  local text = "%s: golden - ours is the same for every token: a bias is missing or too much"
  return { kind = "bias", certain = false, text = text:format(row.name) }
end

-- A hint that the error begins after the first token; nil if it does not.
local function position_hint(row)
  local n = row.ours:shape()[1]
  if row.shapes or n < 2 then return nil end
  local errors = {}
  for i = 1, n do errors[i] = row.ours[i]:compare(row.golden[i]).max_scaled end
  if errors[1] > 1e-3 or errors[1] > 0.01 * row.max_scaled then return nil end
  return { kind = "position", certain = false,
           text = ("%s agrees at the first token and not later (%.2g at the last): rope, mask or window"):format(row.name, errors[n]) }
end

-- ---- Experiments ---------------------------------------------------------------------------------------------------

-- The value that an experiment must correct: the first drifting row of the residual stream, else the logits.
local function target_of(report, g)
  if report.first then
    local row = report.first
    for _, prompt in ipairs(g.prompts) do
      if prompt.name == row.prompt then return { place = row.name, ids = prompt.ids, golden = row.golden } end
    end
  end
  for i, out in ipairs(report.outputs) do
    local row = out.logits
    if row and not row.ok and not row.shapes then return { place = "logits", ids = g.prompts[i].ids, golden = row.golden } end
  end
end

-- The configuration without the layers after the drifting one, to load less.
local function cut(cfg, place)
  local layer = math.tointeger(tonumber(place:match "^hidden%.(%d+)$"))
  if not layer or layer >= cfg.n_layer then return cfg end
  local out = {}
  for key, value in pairs(cfg) do out[key] = value end
  out.n_layer = math.max(layer, 1)
  return out
end

-- The target's value in a model built with these variants; nil if they change nothing or the model cannot be built.
local function rebuilt(chosen, target, bundle, kv)
  local cfg = cut(bundle.config, target.place)
  local changed = variants.recipe(bundle.recipe, chosen)
  local ok, program = pcall(trace.plan, bundle, changed, cfg)
  if not ok and failure.code(program) then error(program, 0) end
  if not ok or not program then return nil end
  local _ <close> = program
  local name = places.find(program:values(), cfg)[target.place]
  local values = name and trace.run(program, target.ids, { name }, kv)
  return values and values[name]
end

-- {scaled, cosine} of a rebuilt model against the golden; nil if they cannot be compared.
local function score(chosen, target, bundle, kv)
  local value = rebuilt(chosen, target, bundle, kv)
  if not value or #value ~= #target.golden then return nil end
  local d = value:compare(target.golden)
  return { chosen = chosen, scaled = d.max_scaled, cosine = d.cosine == d.cosine and d.cosine or -1, max_abs = d.max_abs }
end

local function is_good(result, limits)
  return limits.scaled and result.scaled <= limits.scaled or limits.cosine and result.cosine >= limits.cosine
end

local function texts(chosen)
  local list = {}
  for i, variant in ipairs(chosen) do list[i] = variant.text end
  return table.concat(list, "; and ")
end

-- Tries each variant in addition to `first`. Returns the results that correct the target, and the best one.
local function try_all(list, first, target, bundle, kv, limits)
  local good, best = {}, nil
  for _, variant in ipairs(list) do
    local chosen = table.move(first, 1, #first, 1, {})
    chosen[#chosen + 1] = variant
    local result = variant ~= first[1] and score(chosen, target, bundle, kv)
    if result then
      if is_good(result, limits) then good[#good + 1] = result end
      if not best or result.cosine > best.cosine then best = result end
    end
  end
  return good, best
end

local function result_hint(result, target, baseline)
  return { kind = result.chosen[1].kind, certain = true, text = ("%s. With it %s agrees (max |d| %.3g instead of %.3g)"):format(
    texts(result.chosen), target.place, result.max_abs, baseline.max_abs) }
end

-- Adds hints about weights of the file that the recipe does not request.
local function unused_hints(bundle, hints)
  local changed, seen = variants.recipe(bundle.recipe, {})
  local graph <close> = recipe.build(changed, bundle.config, bundle.source)
  local b = seen.b
  if not graph then return end
  local biases, others = {}, {}
  for _, t in ipairs(bundle.source:tensors()) do
    local known = b.used[t.name] or t.name == "rope_freqs.weight"
    if not known then table.insert(t.name:find "bias$" and biases or others, t.name) end
  end
  if #biases > 0 then
    hints[#hints + 1] = { kind = "bias", certain = true,
                          text = ("missing bias: the file has %s and %d more that the recipe does not use"):format(biases[1], #biases - 1) }
  end
  if #others > 0 then
    hints[#hints + 1] = { kind = "unused", certain = false,
                          text = ("the recipe does not use %s and %d more"):format(others[1], #others - 1) }
  end
end

local function experiment(report, bundle, g, kv, hints)
  local target = target_of(report, g)
  if not target then return end
  local baseline = score({}, target, bundle, kv)
  if not baseline then return end
  local list = variants.list(bundle.config)
  local good, best = try_all(list, {}, target, bundle, kv, report.limits)
  if #good == 0 and best and 1 - best.cosine < 0.5 * (1 - baseline.cosine) then
    local first = best
    good, best = try_all(list, first.chosen, target, bundle, kv, report.limits)
    if #good == 0 and (not best or best.cosine <= first.cosine) then best = first end
  end
  local known, of_kind = {}, {}
  for _, hint in ipairs(hints) do known[hint.kind] = hint.certain or nil end -- the numbers show it already
  for _, result in ipairs(good) do
    local kind = result.chosen[1].kind
    if not of_kind[kind] or result.scaled < of_kind[kind].scaled then of_kind[kind] = result end
  end
  for _, result in ipairs(good) do
    local kind = result.chosen[1].kind
    if of_kind[kind] == result and not known[kind] then hints[#hints + 1] = result_hint(result, target, baseline) end
  end
  if #good == 0 and best and 1 - best.cosine < 0.5 * (1 - baseline.cosine) then
    local text = "%s. With it %s is nearer (cosine %.5f instead of %.5f)"
    hints[#hints + 1] = { kind = best.chosen[1].kind, certain = false,
                          text = text:format(texts(best.chosen), target.place, best.cosine, baseline.cosine) }
  end
end

--- Finds the cause of a drift.
-- @param report of ane.evaluate.check, with its rows
-- @param bundle of the model
-- @param g the golden
-- @param kv type of the cached state
-- @return list of {kind, text, certain}; kinds: embed, norm, eps, rope, qk_norm, scale, softcap, window, activation, gate,
-- head, bias, unused, position
function M.find(report, bundle, g, kv)
  local hints = {}
  local function add(hint) hints[#hints + 1] = hint or nil end
  if not bundle.options then return hints end
  unused_hints(bundle, hints)
  for _, row in ipairs(report.blocks) do
    if not row.ok then
      add(bias_hint(row))
      break
    end
  end
  local row = report.first
  if row then
    add(scale_hint(row, bundle.config))
    add(position_hint(row))
  end
  for _, out in ipairs(report.outputs) do
    if not row and out.logits and not out.logits.ok then
      add(scale_hint(out.logits, bundle.config) or softcap_hint(out.logits))
      add(not hints[1] and position_hint(out.logits))
      break
    end
  end
  experiment(report, bundle, g, kv, hints)
  local sorted = {}
  for _, certain in ipairs { true, false } do
    for _, hint in ipairs(hints) do
      if hint.certain == certain then sorted[#sorted + 1] = hint end
    end
  end
  return sorted
end

return M
