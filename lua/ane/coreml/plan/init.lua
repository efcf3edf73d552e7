--- Plans a model for the Neural Engine: packages, bytes, and the predicted device of each operation, with the rule that predicts it.
-- Needs ane.core, ane.model.loader, ane.model.weights, ane.coreml.plan.*, ane.recipe.names, ane.recipe.shapes, ane.util.failure and
-- ane.util.schema.
-- Usage: `print(plan.of_path("model.gguf"))`
--
-- M.open reads a model or a configuration. M.graph builds its graph. M.parts lists what packages are written as a whole. The core
-- partitions the graph (csrc/mil/partition.h) and applies the residency rules to it (residency.def). summary adds up the parts. Bytes
-- are computed from the shapes of the weights. Nothing here was measured on a Neural Engine: every verdict is a prediction.

local coreai = require "ane.coreml.plan.coreai"
local core = require "ane.core"
local failure = require "ane.util.failure"
local loader = require "ane.model.loader"
local reported = require "ane.coreml.plan.reported"
local schema = require "ane.util.schema"
local shapes = require "ane.recipe.shapes"
local show = require "ane.coreml.plan.show"
local tensor_names = require "ane.recipe.names"
local weight_rules = require "ane.model.weights"

local M = {}

--- Ways to split a mixture -> number of slices; "auto": as few as the size limit allows.
M.experts = { auto = 0, whole = 1, halves = 2, each = 1 << 20 }

local function chip_names()
  local names = {}
  for i, c in ipairs(core.mil_chips()) do names[i] = c.name end
  return names
end

--- The fault of a scheme's name; nil: none.
function M.scheme_fault(name)
  for _, scheme in ipairs(core.mil_schemes()) do
    if scheme == name then return nil end
  end
  return ("is %s: choose %s"):format(schema.shown(name), table.concat(core.mil_schemes(), ", "))
end

local function mixed_fault(mixed) return weight_rules.rules_fault(mixed, M.scheme_fault) end

local function wrong_profiles(list)
  for i = 1, math.max(#list, 1) do
    if math.type(list[i]) ~= "integer" or list[i] < 1 or list[i] > 1 << 20 then return "must be a list of numbers of tokens" end
    if i > 1 and list[i] <= list[i - 1] then return "must ascend" end
  end
end

local function wrong_target(v)
  if type(v) == "string" and not M.targets[v] then return "must be coreml, coreai, coreai-sharded, both or bytes" end
  if type(v) == "number" and v < 1 then return "must be at least 1" end
end

--- Names of targets.
M.targets = { coreml = true, coreai = true, ["coreai-sharded"] = true, both = true }

--- Options of plan.
--   weights: scheme of the matrices (int8, int8-channel, int8-block, int4-block, uint4-block, lut4, ..., fp16); default int8, of
--   embedding models and rerankers int8-block: one scale per tensor costs them too much (docs/coreml.md)
--   mixed: {pattern = scheme}, or a list of {pattern, scheme}, of which the last match counts. A pattern matches anywhere in the name
--     of a weight; * matches any characters, ? any one
--   context: positions that the states hold; max_t: maximum tokens of a call (4, or the context if that is less)
--   fixed_t: list of fixed T, instead (classifiers, embedding models and rerankers)
--   functions: "one" (each T or context has packages of its own) or "many" (each package has a function for each T and context, on one
--   copy of the weights, over the same states; fixed_t then is { 1, 4, 128 } where neither it nor tiers are given)
--   tiers: list of smaller contexts that are exported too: attention over the first positions only
--   chip: whose limits hold
--   target: "coreml" (packages), "coreai" (one asset), "coreai-sharded" (a set of assets, partitioned as packages are) or, for
--   plans, "both"; or bytes of a package planned for
--   size_limit: bytes above which a layer is partitioned further (old name: law)
--   rows: rows of a slice of the head; slices: slices of the head; layers: maximum layers of a package; experts: auto,
--     whole, halves or each
--   layout: ct1 or c1t; norm: doubled or fp32; rope: tables as inputs, or as constants
M.rules = {
  weights = { type = "string", choices = core.mil_schemes() },
  mixed = { type = "table", check = mixed_fault },
  context = { type = "integer", min = 1, max = 1 << 24 },
  chip = { type = "string", choices = chip_names(), default = "M4 Max" },
  target = { type = { "integer", "string" }, check = wrong_target },
  size_limit = { type = "integer", min = 1 }, law = { type = "integer", min = 1 },
  rows = { type = "integer", min = 1, max = 1 << 30 },
  slices = { type = "integer", min = 1, max = 1 << 20 }, layers = { type = "integer", min = 1, max = 1 << 20 },
  experts = { type = "string", choices = { "auto", "whole", "halves", "each" }, default = "auto" },
  max_t = { type = "integer", min = 1, max = 1 << 20 },
  fixed_t = { type = "list", check = wrong_profiles },
  functions = { type = "string", choices = { "one", "many" }, default = "one" },
  tiers = { type = "list", check = wrong_profiles },
  layout = { type = "string", choices = { "ct1", "c1t" }, default = "ct1" },
  norm = { type = "string", choices = { "doubled", "fp32" }, default = "doubled" },
  rope = { type = "string", choices = { "inputs", "constants" }, default = "inputs" },
}

--- Fixed T of causal models with many functions, unless others are given: decoding, verifying, prefill.
M.many_t = { 1, 4, 128 }

--- Fixed T of causal models as sets of assets, unless others are given.
M.asset_t = { 1, 8, 64 }

--- Minimum rows of a slice of the head: a group.
M.SLICE_ROWS = 16

--- The largest context of an asset: its position_ids are uint16.
M.asset_context = 65535

-- Weights of an asset in a set: the target size as a share of the limit, and the limit in bytes, which is that of the rules for one asset
-- (ane.coreml.plan.coreai).
M.asset_share, M.asset_limit = 0.8, 1000000000

-- Options as a set of assets has them: a function for each T and context in every asset.
local function for_assets(own)
  own.assets, own.functions, own.layout, own.norm, own.rope = true, "many", "ct1", "fp32", "inputs"
  own.size_limit = own.size_limit or own.law or M.asset_limit
  own.target = math.max(1, math.floor(M.asset_share * own.size_limit))
  return own
end

-- What one Core AI asset settles itself: option -> the value it has, or false if the option is about packages only.
local SETTLED = {
  layout = "ct1", norm = "fp32", functions = "many", argmax = false, max_t = false, layers = false, size_limit = false, law = false,
  experts = false, rope = false,
}

--- Does the target take these options? A set of assets settles layout, norm, rope and functions, one asset much more.
-- @param given the options as they were given
-- @return true; or nil, message, "invalid"
function M.check_target(given)
  local one, set = given.target == "coreai", given.target == "coreai-sharded"
  local fixed = one and SETTLED or set and { layout = "ct1", norm = "fp32", functions = "many", rope = "inputs" } or {}
  for key, value in pairs(fixed) do
    if given[key] ~= nil and given[key] ~= value then
      local what = value and "must be " .. value .. ", but is " .. tostring(given[key]) or "has no effect"
      return nil, ("option %s %s with target %s"):format(key, what, given.target), "invalid"
    end
  end
  if one and (given.context or 0) > M.asset_context then
    return nil, ("option context is %d, but must be at most %d for Core AI's runner"):format(given.context, M.asset_context), "invalid"
  end
  return true
end

--- Takes the name of a target out of checked options: what is left has only bytes as its target, and for coreai-sharded `assets`.
-- @return options (a copy where there was a name), name ("coreml" where there was none)
function M.split_target(opts)
  if type(opts.target) ~= "string" then return opts, "coreml" end
  local own = {}
  for key, value in pairs(opts) do own[key] = value end
  own.target = nil
  return opts.target == "coreai-sharded" and for_assets(own) or own, opts.target
end

--- The chip of this name.
function M.chip(name)
  for _, c in ipairs(core.mil_chips()) do
    if c.name == name then return c end
  end
end

-- graph of M.graph -> the names of its weights in GGUF files.
local gguf_names = setmetatable({}, { __mode = "k" })

-- ---- From a path to a graph -----------------------------------------------------------------------------------------------

local function has_weights(folder)
  for _, name in ipairs(core.list_dir(folder) or {}) do
    if name:find "%.safetensors$" or name:find "%.safetensors%.index%.json$" or name:find "%.onnx$"
      or name:find "%.gguf$" then return true end
  end
  return false
end

-- The configuration at a path without weights: a JSON file, or a folder that holds only config.json.
local function config_only(path)
  if path:find "%.json$" and not path:find "%.index%.json$" then return path end
  local file = path:gsub("/+$", "") .. "/config.json"
  if core.read_file(file) and not has_weights(path) then return file end
end

--- Opens a model file or folder, or a configuration without weights, for planning.
-- @param opts recipe; adapters (list of {path, scale}, merged into the weights); transform (see ane.model.loader)
-- @return {source, config, recipe, blank (true: no weights)}; or nil, message, code
function M.open(path, opts)
  local file = config_only(path)
  local source, message, code = file and shapes.source(file), nil, nil
  if not file then source, message, code = core.open(path) end
  if not source then return nil, message, code end
  local r, cfg
  r, cfg, code = loader.identify(source, path, opts or {})
  if not r then return nil, cfg, code end
  if opts and opts.adapters then
    if file then return nil, path .. ": has no weights to merge adapters into", "unsupported" end
    source, message, code = loader.merged(r, cfg, source, opts.adapters)
    if not source then return nil, message, code end
  end
  local transform = opts and opts.transform
  if transform and transform ~= "none" then
    if file then return nil, path .. ": has no weights to transform", "unsupported" end
    source, message, code = loader.transformed(r, cfg, source, transform)
    if not source then return nil, message, code end
  end
  return { source = source, config = cfg, recipe = r, blank = file ~= nil }
end

--- The graph of a bundle, ready for partitioning.
-- @param examine nil, or what ane.recipe.build calls with the builder
-- @return graph; or nil, message, code
function M.graph(bundle, examine)
  if not bundle.recipe then return nil, "this model was not built by a recipe: it cannot become packages", "unsupported" end
  local found
  local graph, message, code = require("ane.recipe").build(bundle.recipe, bundle.config, bundle.source, function(b, ...)
    found = tensor_names.in_gguf(b, bundle.recipe)
    if examine then return examine(b, ...) end
    return true
  end)
  if not graph then return nil, message, code end
  gguf_names[graph] = found
  local ok
  ok, message, code = graph:pass "dead_code"
  if not ok then return nil, message, code end
  return graph
end

-- ---- Options for the core ------------------------------------------------------------------------------------------------

-- Weights whose names match a rule, each with its scheme; and the rules. Raises if two rules without an order disagree.
local function schemes_of(graph, mixed)
  local rules, schemes, other = weight_rules.rules(mixed), {}, gguf_names[graph] or {}
  for _, w in ipairs(rules[1] and graph:consts() or {}) do schemes[w.name] = weight_rules.ruled(rules, w.name, nil, other[w.name]) end
  return schemes, rules
end

--- What is wrong with the rules of the option mixed for this model, or nil.
-- @param graph of M.graph
function M.fault_of_mixed(graph, mixed)
  local schemes, rules = failure.catch(schemes_of, graph, mixed)
  if not schemes then return rules end -- a message
  for _, rule in ipairs(rules) do
    if not rule.used then return ("option mixed: no weight matches %q"):format(rule[1]) end
  end
end

--- Returns whether a call takes a whole sequence. Models that write no text keep nothing between calls.
function M.takes_whole(cfg) return cfg.kind ~= nil end

-- The default numbers of tokens of models that take whole sequences: 128, 256 and 512, as far as the model has positions.
local function whole_profiles(cfg)
  local most, list = cfg.max_positions or cfg.context_length or 512, {}
  for _, t in ipairs { 128, 256, 512 } do
    if t <= most then list[#list + 1] = t end
  end
  return list[1] and list or { most }
end

-- Do states take in every token of a call: the last inputs of causal convolutions and delays, recurrent states? They allow no padding,
-- so calls with a fixed number of tokens then need one of a single token.
local function takes_all(graph)
  local text = graph:dump()
  for _, op in ipairs { "conv_causal", "delay", "ssm_scan", "delta_rule" } do
    if text:find(op, 1, true) then return true end
  end
  return false
end

--- Numbers of tokens of a call, with 1 if the model has such states.
-- @param list ascending; not changed
function M.with_one(graph, list)
  if list[1] == 1 or not list[1] or not takes_all(graph) then return list end
  return table.move(list, 1, #list, 2, { 1 })
end

--- Profiles of fixed T: those asked for; for models that take whole sequences 128, 256 and 512; for others none, or those of
-- many_t that fit the context.
function M.profiles(cfg, opts)
  if opts.fixed_t then return opts.fixed_t end
  if M.takes_whole(cfg) then return whole_profiles(cfg) end
  local list = {}
  if opts.functions ~= "many" or opts.tiers and not opts.assets then return list end
  for _, t in ipairs(opts.assets and M.asset_t or M.many_t) do
    if t <= M.context(cfg, opts) then list[#list + 1] = t end
  end
  return list
end

--- Positions of the states. In a model without states, attention sees only the tokens of one call, so it is their number. The
-- default is 512, or the model's context if that is less.
-- @param fixed_t T of the profile, or nil
function M.context(cfg, opts, fixed_t)
  if fixed_t and M.takes_whole(cfg) then return fixed_t end
  return opts.context or math.min(512, cfg.context_length or 512)
end

--- All ways to call the model: each T with each context that holds it, the largest last.
-- @return list of {fixed_t (nil: 1 .. max_t), context, tiered (true: there are several contexts)}; or nil, message, code
function M.variants(cfg, opts)
  local whole, list = M.takes_whole(cfg), {}
  local profiles = M.profiles(cfg, opts)
  if opts.tiers and whole then
    return nil, "option tiers: this model sees only the tokens of one call, so option fixed_t sets its contexts", "unsupported"
  end
  for i = 1, math.max(#profiles, 1) do
    local full = M.context(cfg, opts, profiles[i])
    local contexts = table.move(opts.tiers or {}, 1, #(opts.tiers or {}), 1, {})
    if contexts[1] and contexts[#contexts] >= full then
      return nil, ("option tiers: %d must be below the context of %d"):format(contexts[#contexts], full), "invalid"
    end
    contexts[#contexts + 1] = full
    for _, context in ipairs(contexts) do
      if (profiles[i] or opts.max_t) <= context or context == full then
        list[#list + 1] = { fixed_t = profiles[i], context = context, tiered = opts.tiers ~= nil }
      end
    end
  end
  table.sort(list, function(a, b)
    if a.context ~= b.context then return a.context < b.context end
    return (a.fixed_t or 0) < (b.fixed_t or 0)
  end)
  if opts.tiers and opts.tiers[1] and list[1].context > opts.tiers[1] then
    return nil, ("option tiers: no call fits in a context of %d"):format(opts.tiers[1]), "invalid"
  end
  return list
end

-- Functions of a package. The default comes first: it can do all that the others can, with the smallest calls if there are
-- states.
local function functions_of(cfg, variants)
  local out, first = {}, #variants
  if not M.takes_whole(cfg) then
    while first > 1 and variants[first - 1].context == variants[#variants].context do first = first - 1 end
  end
  out[1] = variants[first]
  for i, v in ipairs(variants) do
    if i ~= first then out[#out + 1] = v end
  end
  return out
end

--- The target and the limit of a package's bytes: the chip's, unless options give others.
function M.limits(opts)
  local chip = M.chip(opts.chip)
  local limit = opts.size_limit or opts.law
  local target = math.type(opts.target) and opts.target or math.min(chip.target, limit or chip.target)
  return target, limit or math.max(chip.size_limit, target)
end

--- Options as core.mil_plan and core.mil_exporter take them.
-- @param opts checked options of plan
-- @param variant one of variants; or all of them, which become functions
function M.core_options(graph, cfg, opts, variant)
  local target, size_limit = M.limits(opts)
  local fixed_t, functions, context = variant.fixed_t, nil, variant.context
  if variant[1] then functions, context = functions_of(cfg, variant), variant[#variant].context end
  return {
    weights = opts.weights, schemes = (schemes_of(graph, opts.mixed)), target = target, size_limit = size_limit,
    rows = opts.rows, slices = opts.slices, layers = opts.layers,
    expert_parts = M.experts[opts.experts], context = context, max_t = opts.max_t, fixed_t = fixed_t, functions = functions,
    layout = opts.layout, norm = opts.norm, rope = opts.rope,
    stateless = M.takes_whole(cfg) and cfg.kind ~= "token_classifier" or nil, hidden = cfg.kind == "embedding" or nil,
  }
end

--- The scheme of the matrices if none is given.
function M.default_weights(cfg) return (cfg.kind == "embedding" or cfg.kind == "reranker") and "int8-block" or "int8" end

-- The defaults of weights and max_t; or nil, message, code if a call does not fit in the context.
local function settle(cfg, opts)
  opts.weights = opts.weights or M.default_weights(cfg)
  if M.takes_whole(cfg) then
    opts.max_t = opts.max_t or 4
    return true
  end
  local context = M.context(cfg, opts)
  for _, t in ipairs(opts.fixed_t or { opts.max_t }) do
    if t > context then
      local name = opts.fixed_t and "fixed_t" or "max_t"
      return nil, ("option %s: a call of %d tokens does not fit in a context of %d"):format(name, t, context), "invalid"
    end
  end
  opts.max_t = opts.max_t or math.min(4, context)
  return true
end

-- What is wrong with the number of slices for the head of this model, or nil. Each slice is a package, which a call runs and an export
-- syncs to the disk.
local function fault_of_slices(graph, cfg, opts)
  if not opts.slices or opts.slices == 1 then return nil end
  local rows = 0
  local options = M.core_options(graph, cfg, opts, { context = M.context(cfg, opts) })
  options.slices = 1
  local whole = core.mil_plan(graph, options)
  for _, p in ipairs(whole and whole.shards or {}) do rows = math.max(rows, p.kind == "head" and p.to or 0) end
  local most = math.max(1, rows // M.SLICE_ROWS)
  if rows == 0 or opts.slices <= most then return nil end
  return ("option slices must be at most %d for a head of %d rows, since a slice has %d rows or more, but is %d"):format(most, rows,
    M.SLICE_ROWS, opts.slices)
end

--- The parts that are written as a whole: with many functions all variants together, else each variant alone.
-- @param opts checked options; weights and max_t are set if absent
-- @param graph of the model
-- @return list of what core_options takes; or nil, message, code
function M.parts(cfg, opts, graph)
  if cfg.classifier then return nil, "a classifier that reads the mean of the states cannot be exported", "unsupported" end
  if cfg.score_at_end then return nil, "a decoder with a classifier cannot be exported", "unsupported" end
  local ok, why, word = settle(cfg, opts)
  if not ok then return nil, why, word end
  if opts.assets and not M.takes_whole(cfg) then opts.fixed_t = M.with_one(graph, M.profiles(cfg, opts)) end
  local fault = M.fault_of_mixed(graph, opts.mixed) or fault_of_slices(graph, cfg, opts)
  if fault then return nil, fault, "invalid" end
  local variants, message, code = M.variants(cfg, opts)
  if not variants then return nil, message, code end
  return opts.functions == "many" and { variants } or variants
end

-- The name of a shard's package. slice: number of the head's slice, 0-based; variant: as core_options takes it, may be nil.
local function package_name(shard, slice, variant, ending)
  local name
  if shard.kind == "layers" then
    name = shard.first == shard.last and ("layer_%02d"):format(shard.first) or ("layer_%02d-%02d"):format(shard.first, shard.last)
    if shard.parts then name = ("%s_part_%02d"):format(name, shard.part) end
  elseif shard.kind == "experts" then
    name = ("layer_%02d_experts_%03d-%03d"):format(shard.first, shard.from, shard.to - 1)
    if shard.mixture then name = name .. "_" .. shard.mixture end
  else
    name = ("lm_head_%02d"):format(slice)
  end
  local v = variant or {}
  if v.fixed_t then name = ("%s_t%d"):format(name, v.fixed_t) end
  if v.tiered and shard.reads_keys then name = ("%s_c%d"):format(name, v.context) end
  return name .. ending
end

--- Names of the packages of all shards, each once.
-- @param variant as core_options takes it, may be nil
-- @param assets true: they are assets of Core AI
function M.package_names(shards, variant, assets)
  local names, seen, slice, ending = {}, {}, 0, assets and ".aimodel" or ".mlpackage"
  for i, p in ipairs(shards) do
    names[i] = package_name(p, slice, variant, ending)
    if p.kind == "head" then slice = slice + 1 end
    if seen[names[i]] then -- a second mixture in a layer
      p.mixture = seen[names[i]]
      names[i] = package_name(p, slice, variant, ending)
    end
    seen[names[i]] = (seen[names[i]] or 0) + 1
  end
  return names
end

-- ---- The plan ------------------------------------------------------------------------------------------------------------

local WORSE = { engine = 1, risk = 2, cpu = 3 }

-- Adds up a shard: convolutions by predicted device, into it and the totals; the rules that apply, into `held` (id -> times).
local function count(shard, totals, held)
  local convs = { engine = 0, risk = 0, cpu = 0 }
  local worst = shard.finding.verdict
  local function note(finding)
    for _, id in ipairs(finding) do held[id] = (held[id] or 0) + 1 end
  end
  note(shard.finding)
  for _, n in ipairs(shard.nodes) do
    local v = shard.finding.verdict == "cpu" and "cpu" or n.finding.verdict
    convs[v] = convs[v] + n.convs
    if n.finding.verdict == "cpu" then worst = "cpu" end
    note(n.finding)
  end
  for v, n in pairs(convs) do totals[v] = totals[v] + n end
  shard.convs, shard.verdict = convs, worst
end

-- The rules that apply, the worst verdicts first.
local function rules_that_hold(held)
  local list = {}
  for _, rule in ipairs(core.mil_rules()) do
    if held[rule.id] then
      rule.times = held[rule.id]
      list[#list + 1] = rule
    end
  end
  table.sort(list, function(a, b) return WORSE[a.verdict] > WORSE[b.verdict] end)
  return list
end

local function report_of(cfg)
  for _, row in ipairs(reported) do
    local fits = true
    for key, value in pairs(row.match) do fits = fits and cfg[key] == value end
    if fits then return { name = row.name, reported = row.reported, why = row.why } end
  end
end

--- Bytes of all states, fp16. Each package has states of its own; in one asset (one = true) layers that share a state have it once.
function M.state_bytes(shards, context, one)
  local sum, counted = 0, {}
  for _, p in ipairs(shards) do
    for _, s in ipairs(p.states) do
      local n = 2
      for _, d in ipairs(s.shape) do n = n * (d == "context" and context or d) end
      if not (one and counted[s.name]) then sum = sum + n end
      counted[s.name] = true
    end
  end
  return sum
end

local meta = { __name = "ane.plan", __tostring = show.text, __index = {
  --- The plan as Graphviz DOT, as SVG.
  dot = function(self) return require("ane.coreml.plan.draw").dot(self) end,
  svg = function(self) return require("ane.coreml.plan.draw").svg(self) end,
} }

-- The shards of a variant, each with the name of its package.
local function partition(graph, cfg, opts, variant)
  local partitioned, message, code = core.mil_plan(graph, M.core_options(graph, cfg, opts, variant))
  if not partitioned then return nil, message, code end
  local names = M.package_names(partitioned.shards, variant, opts.assets)
  for i, p in ipairs(partitioned.shards) do p.name = names[i] end
  return partitioned
end

-- asked: the name of the target
local function summary(partitioned, bundle, opts, asked, profiles, copies)
  local cfg = bundle.config
  local out = {
    path = bundle.source:path(), architecture = cfg.architecture, kind = cfg.kind or "causal", weights = opts.weights, mixed = opts.mixed,
    chip = opts.chip, context = M.context(cfg, opts, profiles[#profiles]), max_t = opts.max_t, profiles = profiles,
    copies = copies, layout = opts.layout, norm = opts.norm, rope = opts.rope, functions = opts.functions, tiers = opts.tiers,
    layers = partitioned.layers, rows = partitioned.rows, packages = partitioned.shards, residency = { engine = 0, risk = 0, cpu = 0 },
    bytes = 0, largest = 0, predicted = true,
  }
  out.target, out.law = M.limits(opts)
  local embedding = partitioned.embedding
  out.embed_bytes, out.embeddings = embedding and embedding.bytes or 0, embedding and #embedding.tables or 0
  local held = {}
  for _, p in ipairs(partitioned.shards) do
    count(p, out.residency, held)
    out.bytes, out.largest = out.bytes + p.bytes, math.max(out.largest, p.bytes)
  end
  out.state_bytes = M.state_bytes(partitioned.shards, out.context, asked == "coreai" and not opts.assets)
  out.laws, out.reported = rules_that_hold(held), report_of(cfg)
  if asked ~= "coreml" then
    out.coreai = { facts = coreai.facts(out, opts), only = asked == "coreai", sharded = opts.assets }
    out.coreai.rules = coreai.judge(out.coreai.facts)
  end
  return setmetatable(out, meta)
end

--- Plans an open bundle (of ane.model.loader, or of M.open).
-- @param opts checked options
-- @return plan: prints as a table; fields bytes, largest, state_bytes, embed_bytes, embeddings (their number), layers, packages = list of
-- {name, kind, first, last, part, parts (of a layer above the size limit), from, to, bytes, verdict, convs, finding, ins, outs, states,
-- nodes, functions (list of {name, fixed_t or max_t, context})}, copies (sets of packages: one for each T and context where functions is
-- "one"), residency (convolutions by predicted device), laws (residency rules that hold: id, verdict, text, source, times), law (the size
-- limit), reported, coreai (with target coreai, coreai-sharded or both: facts and rules, see ane.coreml.plan.coreai); methods dot(),
-- svg(); or nil, message, code
function M.of(bundle, opts)
  local graph <close>, message, code = M.graph(bundle)
  if not graph then return nil, message, code end
  local parts, partitioned, asked
  opts, asked = M.split_target(opts)
  parts, message, code = M.parts(bundle.config, opts, graph)
  if not parts then return nil, message, code end
  partitioned, message, code = partition(graph, bundle.config, opts, parts[#parts])
  if not partitioned then return nil, message, code end
  return summary(partitioned, bundle, opts, asked, M.profiles(bundle.config, opts), #parts)
end

--- Calls a function with an open model file, folder, or configuration without weights.
-- @param opts see M.rules; also recipe
-- @param what name of the public function that calls this one; errors of options blame its caller
-- @param work function(bundle, opts) -> result; or nil, message, code
-- @return the result; or nil, message, code
function M.with_path(path, opts, what, work)
  local fits, fault, kind = M.check_target(type(opts) == "table" and opts or {})
  if not fits then return nil, fault, kind end
  opts = schema.check(schema.merge(M.rules, { recipe = { type = { "table", "string" } } }), opts, what, 3)
  local bundle, message, code = M.open(path, opts)
  if not bundle then return nil, message, code end
  local result
  result, message, code = work(bundle, opts)
  bundle.source:close()
  return result, message, code
end

--- Plans a model file, a folder, or a configuration without weights.
-- @param opts see M.rules; also recipe
-- @return plan; or nil, message, code
function M.of_path(path, opts)
  local plan, message, code = M.with_path(path, opts, "plan", M.of)
  return plan, message, code -- no tail call: error levels count this function
end

return M
