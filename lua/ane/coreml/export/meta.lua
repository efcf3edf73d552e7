--- runtime_meta.json of a package set. ane.coreml.set says what its keys mean.
-- Needs ane.core and ane.util.paths. Usage: `local object = meta.of(run, profiles, files)`
--
-- Besides what ane.coreml.set reads: d_ff, rangedim_max_t, argmax, layout, norm, rope (settings, for people), context,
-- tensors_between (values that cross each edge), layers, lm_head_shards and expert_packages (the packages by kind), hashes
-- (SHA-256 by path: of files, and of packages as ane.coreml.export measures them), functions ("one" or "many"), target
-- ("coreai-sharded": the packages are Core AI assets).

local core = require "ane.core"
local paths = require "ane.util.paths"

local M = {}

local function array(list) return core.json_array(list) end

-- Roles of the result of models that write no text.
local RESULTS = { token_classifier = "labels", embedding = "last_hidden_state", reranker = "scores" }

-- Ports of the core in the form that runtime_meta.json has.
local function ports(list, tables, kind)
  local out = {}
  for i, p in ipairs(list) do
    local port = { name = p.name, role = p.role, edge = p.edge, dtype = p.dtype, shape = array(p.shape) }
    if p.role == "rope_cos" or p.role == "rope_sin" then port.rope = p.index end
    if p.role == "mask" then
      local mask = tables.masks[p.index + 1]
      port.window, port.ahead = mask.window, mask.ahead
    end
    if p.role == "logits" then port.role = RESULTS[kind] or p.role end
    out[i] = port
  end
  return array(out)
end

-- The functions of a package with several, the default one first.
local function functions(entry, profile, kind)
  if not entry.functions then return nil end
  local list = {}
  for i, f in ipairs(entry.functions) do
    list[i] = {
      name = f.name, fixed_t = f.fixed_t, max_t = f.max_t, context = f.context, inputs = ports(f.inputs, profile.tables, kind),
      outputs = ports(f.outputs, profile.tables, kind), states = ports(f.states, profile.tables),
    }
  end
  return array(list)
end

-- d_model: rows of a head without a matrix, whose result is hidden states
local function package(name, shard, entry, profile, kind, d_model)
  local out = {
    path = name, kind = shard.kind, bytes = entry.bytes, sha256 = entry.sha256, weight_bytes = shard.bytes,
    specification_version = not profile.assets and entry.version or nil, fixed_t = profile.fixed_t, predicted = shard.finding.verdict,
    inputs = ports(entry.inputs, profile.tables, kind), outputs = ports(entry.outputs, profile.tables, kind),
    states = ports(entry.states, profile.tables), functions = functions(entry, profile, kind),
  }
  for _, f in ipairs(out.functions or {}) do out.default_function = out.default_function or f.name end
  if shard.kind == "layers" or shard.kind == "experts" then out.start, out["end"] = shard.first, shard.last end
  out.part, out.parts = shard.part, shard.parts
  if shard.kind == "experts" then out.experts, out.mixture = array { shard.from, shard.to }, shard.split end
  if shard.kind == "head" then out.vocab_start, out.vocab_end = shard.from or 0, shard.to or d_model end
  return out
end

local function packages(profile, kind, d_model)
  local list = {}
  for i, name in ipairs(profile.names) do
    list[i] = package(name, profile.partition.shards[i], profile.entries[i], profile, kind, d_model)
  end
  return array(list)
end

-- Rope tables are inputs, which the host makes. Long factors that the context never reaches are left out.
local function ropes(tables, context)
  local out = {}
  for i, r in ipairs(tables.ropes) do
    local long = r.long_freq and context > r.original
    out[i] = { inv_freq = array(r.inv_freq), magnitude = r.magnitude, long_freq = long and array(r.long_freq) or nil,
               original = long and r.original or nil }
  end
  return array(out)
end

-- The part of the configuration that can be written as JSON.
local function plain(t)
  if type(t) ~= "table" then return t end
  local out = {}
  for key, value in pairs(t) do
    if type(value) ~= "function" and type(key) ~= "userdata" then out[key] = plain(value) end
  end
  return out
end

local function by_kind(list)
  local layers, slices, experts, between = {}, {}, {}, {}
  for i, p in ipairs(list) do
    if p.kind == "layers" then layers[#layers + 1] = { start = p.start, ["end"] = p["end"], part = p.part, parts = p.parts,
      path = p.path }
    elseif p.kind == "head" then
      slices[#slices + 1] = { shard_idx = #slices, vocab_start = p.vocab_start, vocab_end = p.vocab_end, path = p.path }
    else experts[#experts + 1] = { layer = p.start, experts = p.experts, path = p.path } end
    local crossing = {}
    for _, port in ipairs(p.outputs) do crossing[#crossing + 1] = port.edge end
    if i < #list then between[#between + 1] = { from = p.path, values = array(crossing) } end
  end
  return layers, slices, experts, between
end

local function hashes(list, embedding)
  local out = { ["embed.bin"] = embedding and embedding.sha256 or nil }
  for _, profile in ipairs(list) do
    for i, name in ipairs(profile.names) do out[name] = profile.entries[i].sha256 end
  end
  return out
end

-- Bytes and SHA-256 of each file by its path. The manifest itself is left out.
local function files_of(list, embedding, files)
  local out = {}
  for path, entry in pairs(files.hashes) do out[path] = entry end
  if embedding then out["embed.bin"] = { bytes = embedding.bytes, sha256 = embedding.sha256 } end
  for _, profile in ipairs(list) do
    for i, name in ipairs(profile.names) do
      for path, entry in pairs(profile.entries[i].files) do out[name .. "/" .. path] = entry end
    end
  end
  return out
end

-- The largest T of a call.
local function most_t(run, profile)
  local most = profile.fixed_t or run.opts.max_t
  for i, v in ipairs(profile.many or {}) do most = math.max(i > 1 and most or 0, v.fixed_t or run.opts.max_t) end
  return most
end

-- The number of experts, if all mixtures have the same number.
local function expert_count(partition)
  local most = {}
  for _, p in ipairs(partition.shards) do
    if p.kind == "experts" then most[p.split] = math.max(most[p.split] or 0, p.to) end
  end
  local _, first = next(most)
  for _, n in pairs(most) do
    if n ~= first then return nil end
  end
  return first
end

--- The object.
-- @param run of ane.coreml.export: config, opts, bundle, embedding
-- @param profiles list of {fixed_t, context, many (all variants, where they are functions), partition, tables, names, entries}
-- @param files of ane.coreml.export.tokens; hashes
function M.of(run, profiles, files)
  local cfg, last = run.config, profiles[#profiles]
  local kind = cfg.kind
  local list = packages(last, kind, cfg.d_model)
  local layers, slices, experts, between = by_kind(list)
  local context = last.many and last.many[#last.many].context or last.context
  local states = {}
  for _, p in ipairs(list) do
    for _, s in ipairs(p.states) do states[#states + 1] = { name = s.name, shape = s.shape, role = s.role, path = p.path } end
  end
  local out = {
    format_version = 1, kind = kind or "causal", model_family = run.bundle.family or cfg.architecture,
    model_name = cfg.name or paths.name_of(run.bundle.source:path()), d_model = cfg.d_model, n_layers = last.partition.layers,
      n_heads = cfg.n_head,
    n_kv_heads = cfg.n_head_kv, d_head = cfg.head_dim, d_ff = cfg.d_ff, max_seq_len = context,
    vocab_size = run.embedding and run.embedding.rows or cfg.vocab_size,
    target = run.opts.assets and "coreai-sharded" or nil, functions = run.opts.functions,
    rangedim_max_t = most_t(run, last), argmax = run.opts.argmax,
    layout = run.opts.layout, norm = run.opts.norm, weights = run.opts.weights, mixed = run.opts.mixed,
    rope = plain(cfg.ropes or cfg.rope), ropes = ropes(last.tables, context), labels = cfg.labels and array(cfg.labels),
    n_scores = kind == "reranker" and last.partition.rows or nil, both_sides = cfg.both_sides, reach = cfg.reach,
    eos_ids = array(run.bundle.eos_ids or cfg.eos_ids or {}), bos_id = cfg.bos_id, tokenizer = files.tokenizer,
    embed_bin = run.embedding and "embed.bin" or nil,
    d_embed = run.embedding and run.embedding.columns ~= cfg.d_model and run.embedding.columns or nil,
    n_experts = expert_count(last.partition), packages = list, layers = array(layers),
    lm_head_shards = array(slices), expert_packages = array(experts), states = array(states), tensors_between = array(between),
    hashes = hashes(profiles, run.embedding), files = files_of(profiles, run.embedding, files),
  }
  if #profiles > 1 then
    local all = {}
    for i, profile in ipairs(profiles) do
      all[i] = { fixed_t = profile.fixed_t, max_seq_len = profile.context, packages = packages(profile, kind, cfg.d_model) }
    end
    out.profiles = array(all)
  end
  return out
end

return M
