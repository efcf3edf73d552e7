--- Configuration from GGUF metadata: "<architecture>.<key>" (ggml/docs/gguf.md).
-- Needs ane.model.config.ceilings and ane.util.failure.
-- Usage: `local cfg = require("ane.model.config.gguf").read(source)`; raises {message, code}.

local ceilings = require "ane.model.config.ceilings"
local failure = require "ane.util.failure"

local M = {}

local function fail(source, fmt, ...) failure.raise("format", "%s: %s", source:path(), fmt:format(...)) end

--- Returns general.architecture; raises if there is none.
function M.architecture(source)
  local arch = source:meta "general.architecture"
  if type(arch) ~= "string" or arch == "" then fail(source, "metadata key general.architecture is missing: this file holds no model") end
  return arch
end

-- The number under the metadata key "<arch>.<key>"; nil if it is absent and not required.
local function number(source, arch, key, required)
  local name = arch .. "." .. key
  local v = source:meta(name)
  if v == nil and required then fail(source, "metadata key %s is missing", name) end
  if v ~= nil and type(v) ~= "number" then fail(source, "metadata key %s must be a number, but is a %s", name, type(v)) end
  if v and not ceilings.fits(v) then fail(source, "metadata key %s must be a number that float32 holds, but is %s", name, v) end
  return v
end

-- Checks v, the value of the metadata key `name`. Its ceiling is that of the key after "<architecture>.".
local function check_whole(source, name, v, least)
  local i, most = type(v) == "number" and math.tointeger(v), ceilings.of(name:match "^[^.]*%.(.-)%[?%d*%]?$" or name)
  if not i or i < least or i > most then
    fail(source, "metadata key %s must be a whole number from %d to %d, but is %s", name, least, most, v)
  end
  return i
end

local function whole(source, arch, key, required, least)
  local v = number(source, arch, key, required)
  return v and check_whole(source, arch .. "." .. key, v, least)
end

-- A number greater than zero, or nil.
local function positive(source, arch, key)
  local v = number(source, arch, key)
  if v and v <= 0 then fail(source, "metadata key %s.%s must be a number above 0, but is %s", arch, key, v) end
  return v
end

-- Sets the number of layers. The last blocks of a file may draft tokens (multi-token prediction); the computation does not need them.
local function read_layers(source, cfg)
  local arch = cfg.architecture
  cfg.n_block = whole(source, arch, "block_count", true, 1)
  local drafting = whole(source, arch, "nextn_predict_layers", false, 0) or 0
  cfg.n_layer = cfg.n_block - drafting
  if cfg.n_layer < 1 then
    fail(source, "metadata key %s.nextn_predict_layers must be less than block_count (%d), but is %d", arch, cfg.n_block, drafting)
  end
  for _, t in ipairs(drafting > 0 and source:tensors() or {}) do
    local i = math.tointeger(t.name:match "^blk%.(%d+)%.")
    if i and i >= cfg.n_layer then cfg.tensors[t.name] = true end
  end
end

-- Returns an integer, or the largest of a list with one per layer. If the list's numbers differ, it becomes cfg.per_layer[field]. A
-- list may hold 0 for a layer without such heads (convolutions of lfm2). Returns nil if all numbers are 0 and `none` allows it.
local function per_layer(source, cfg, field, key, none)
  local name = cfg.architecture .. "." .. key
  local list = source:meta(name)
  if type(list) ~= "table" then return whole(source, cfg.architecture, key, false, 1) end
  if #list ~= cfg.n_block then
    fail(source, "metadata key %s has %d numbers, but must have one for each of %d layers", name, #list, cfg.n_block)
  end
  local most, out, differ = 0, {}, false
  for i = 1, cfg.n_layer do
    out[i] = check_whole(source, ("%s[%d]"):format(name, i - 1), list[i], 0)
    most, differ = math.max(most, out[i]), differ or out[i] ~= out[1]
  end
  if most == 0 and not none then fail(source, "metadata key %s is 0 for all layers", name) end
  if differ or most == 0 then cfg.per_layer[field] = out end
  return most > 0 and most or nil
end

-- Checks that sizes divide one another. A recipe could only report mismatched shapes.
local function check_heads(source, arch, cfg)
  if cfg.n_head % cfg.n_head_kv ~= 0 then
    fail(source, "metadata key %s.attention.head_count is %d, but must be a multiple of attention.head_count_kv (%d)", arch, cfg.n_head,
      cfg.n_head_kv)
  end
  if cfg.head_dim then return end
  if cfg.d_model % cfg.n_head ~= 0 then
    local what = "metadata key %s.embedding_length is %d, no multiple of attention.head_count, %d, and attention.key_length is missing"
    fail(source, what, arch, cfg.d_model, cfg.n_head)
  end
  cfg.head_dim = cfg.d_model // cfg.n_head
end

local function check_rope_dims(source, arch, rope, head_dim)
  if rope.dims % 2 == 0 and rope.dims <= head_dim then return end
  fail(source, "metadata key %s.rope.dimension_count must be an even number up to the head's %d, but is %d", arch, head_dim, rope.dims)
end

-- A small tensor of divisors; nil if there is none.
local function divisors(source, cfg, name)
  if not source:tensor(name) then return nil end
  local raw, message = source:read(name)
  if not raw then fail(source, "tensor %s: %s", name, message) end
  local list = {}
  for at = 1, #raw, 4 do
    local v = string.unpack("<f", raw, at)
    if not (v > 0 and v < math.huge) then fail(source, "tensor %s has the divisor %s, but divisors must be above 0", name, v) end
    list[#list + 1] = v
  end
  cfg.tensors[name] = true
  return list
end

-- The tensor rope_freqs.weight holds divisors of the frequencies (llama 3 scaling, folded by the converter), rope_factors_*
-- those of longrope. Scaling type "none" and factor 1 mean no scaling.
local function read_rope(source, cfg)
  local arch = cfg.architecture
  local function get(key) return positive(source, arch, "rope." .. key) end
  local rope = {
    theta = get "freq_base" or 10000.0, local_theta = get "freq_base_swa",
    dims = whole(source, arch, "rope.dimension_count", false, 2) or cfg.head_dim,
    factor = get "scaling.factor" or get "scale_linear", original_context = get "scaling.original_context_length",
    attn_factor = get "scaling.attn_factor", beta_fast = get "scaling.yarn_beta_fast", beta_slow = get "scaling.yarn_beta_slow",
  }
  local scaling = source:meta(arch .. ".rope.scaling.type") or (rope.factor and "linear") or nil
  if scaling ~= "none" and rope.factor ~= 1 then rope.scaling = scaling end
  if scaling == "yarn" then rope.attn_factor = get "scaling.yarn_attn_factor" or rope.attn_factor end -- attention_factor of config.json
  check_rope_dims(source, arch, rope, cfg.head_dim)
  rope.divisors = divisors(source, cfg, "rope_freqs.weight")
  rope.short_factors = divisors(source, cfg, "rope_factors_short.weight")
  rope.long_factors = divisors(source, cfg, "rope_factors_long.weight")
  if rope.short_factors or rope.long_factors then rope.scaling = "longrope" end
  return rope
end

-- Returns which layers slide, in the words of config.json: all but every n-th, or from a list of booleans. nil if the file does not say.
local function read_layer_types(source, cfg)
  local name = cfg.architecture .. ".attention.sliding_window_pattern"
  local v = source:meta(name)
  if v == nil then return nil end
  local list, period = {}, type(v) ~= "table" and check_whole(source, name, v, 0) or nil
  if not period and #v ~= cfg.n_block then
    fail(source, "metadata key %s has %d entries, but must have one for each of %d layers", name, #v, cfg.n_block)
  end
  for i = 1, cfg.n_layer do
    local slides
    if period then slides = period == 0 or i % period ~= 0 else slides = v[i] end
    if slides == 0 or slides == 1 then slides = slides == 1 end
    if type(slides) ~= "boolean" then
      fail(source, "metadata key %s[%d] must be true or false, but is %s", name, i - 1, tostring(slides))
    end
    list[i] = slides and "sliding_attention" or "full_attention"
  end
  return list
end

-- Returns the ids that the tokenizer's keys name. Returns nil if they name none, and if the file has a vocabulary: the tokenizer then
-- provides the ids that end a reply.
local function end_ids(source)
  if source:meta_len "tokenizer.ggml.tokens" then return nil end
  local ids = {}
  for _, key in ipairs { "eos", "eot", "eom" } do
    local id = source:meta(("tokenizer.ggml.%s_token_id"):format(key))
    if math.type(id) == "integer" then ids[#ids + 1] = id end
  end
  return ids[1] and ids
end

-- Maps llama.cpp's pooling types to tasks: 1 mean, 2 first token, 3 last token, 4 scores.
local function task_of(source, arch)
  local type = whole(source, arch, "pooling_type", false, 0) or 0
  if type > 4 then fail(source, "metadata key %s.pooling_type is %d, but must be 0 to 4", arch, type) end
  return type == 4 and "reranker" or type > 0 and "embedding" or nil
end

-- Checks sizes that no recipe needs, because the tensors have them, against the tensors: one of the two is wrong. Layers without these
-- matrices, such as mixtures of experts, are left out.
local function check_matrices(source, arch, cfg)
  local value = whole(source, arch, "attention.value_length", false, 1)
  if source:meta(arch .. ".attention.value_length_swa") ~= nil then value = nil end -- the layers have several
  local widths, heads = cfg.per_layer.d_ff or {}, cfg.per_layer.n_head_kv or {}
  for i = 0, cfg.n_layer - 1 do
    local down, v = source:tensor(("blk.%d.ffn_down.weight"):format(i)), source:tensor(("blk.%d.attn_v.weight"):format(i))
    local d_ff, n = widths[i + 1] or cfg.d_ff, heads[i + 1] or cfg.n_head_kv
    if down and d_ff and #down.shape == 2 and down.shape[2] ~= d_ff then
      local what = "metadata key %s.feed_forward_length is %d, but tensor blk.%d.ffn_down.weight has %d columns"
      fail(source, what, arch, d_ff, i, down.shape[2])
    end
    if v and value and #v.shape == 2 and v.shape[1] ~= n * value then
      local what = "metadata key %s.attention.value_length is %d, but tensor blk.%d.attn_v.weight has %d rows for %d heads"
      fail(source, what, arch, value, i, v.shape[1], n)
    end
  end
end

--- The configuration (see ane.model.config).
function M.read(source)
  local arch = M.architecture(source)
  local cfg = { format = "gguf", architecture = arch, name = source:meta "general.name", per_layer = {}, tensors = {} }
  read_layers(source, cfg)
  cfg.d_model = whole(source, arch, "embedding_length", true, 1)
  local scans = source:meta(arch .. ".ssm.inner_size") ~= nil -- may lack attention and feed-forward
  if not (scans and source:meta(arch .. ".feed_forward_length") == 0) then
    cfg.d_ff = per_layer(source, cfg, "d_ff", "feed_forward_length")
  end
  cfg.n_head = math.max(whole(source, arch, "attention.head_count", true, scans and 0 or 1), 1)
  cfg.n_head_kv = per_layer(source, cfg, "n_head_kv", "attention.head_count_kv", scans) or cfg.n_head
  cfg.head_dim = whole(source, arch, "attention.key_length", false, 1)
  check_heads(source, arch, cfg)
  cfg.norm_eps = positive(source, arch, "attention.layer_norm_rms_epsilon") or positive(source, arch, "attention.layer_norm_epsilon")
  if not cfg.norm_eps then
    fail(source, "metadata key %s.attention.layer_norm_rms_epsilon is missing (or, of LayerNorm, attention.layer_norm_epsilon)", arch)
  end
  check_matrices(source, arch, cfg)
  cfg.task = task_of(source, arch)
  function cfg.holds(name) return source:tensor(name) ~= nil end
  cfg.context_length = whole(source, arch, "context_length", false, 1)
  cfg.vocab_size = whole(source, arch, "vocab_size", false, 1)
  local window = whole(source, arch, "attention.sliding_window", false, 0)
  cfg.sliding_window = window and window > 0 and window or nil
  cfg.layer_types = read_layer_types(source, cfg)
  cfg.rope = read_rope(source, cfg)
  cfg.eos_ids = end_ids(source)
  function cfg.key_of(field) return arch .. (field == "d_ff" and ".feed_forward_length" or ".attention.head_count_kv") end
  function cfg.meta(key, kind)
    if kind == "number" then return number(source, arch, key) end
    if kind == "positive" then return positive(source, arch, key) end
    if kind == "whole" or kind == "count" then return whole(source, arch, key, false, kind == "count" and 1 or 0) end
    local v = source:meta(arch .. "." .. key)
    local wanted = kind == "flag" and "boolean" or kind == "list" and "table"
    if wanted and v ~= nil and type(v) ~= wanted then
      fail(source, "metadata key %s.%s must be a %s, but is %s", arch, key, kind, tostring(v))
    end
    return v
  end
  return cfg
end

return M
