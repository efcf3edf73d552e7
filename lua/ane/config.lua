--- One normalised configuration, whatever the file format calls its keys.
-- Needs ane.core's sources only through their methods. Usage: `local cfg = config.read(source)`
--
-- Fields (architecture.md of a model's paper or config.json names in brackets):
--   architecture, name        general.architecture; general.name
--   n_layer, d_model, d_ff    layers; residual width (hidden_size); inner width (intermediate_size)
--   n_head, n_head_kv, head_dim
--   norm_eps, context_length, vocab_size (nil where the file does not say)
--   sliding_window            keys a sliding layer sees, its own included; nil: none
--   rope = {theta, dims, factor = nil|number, scaling = nil|"linear"|"yarn", divisors = nil|list, local_theta,
--           original_context, attn_factor, beta_fast, beta_slow}
--   meta(key)                 any other key of the architecture ("attention.scale"), or nil

local M = {}

-- A number under A.key; nil where absent and not required.
local function number(source, arch, key, required)
  local name = arch .. "." .. key
  local v = source:meta(name)
  if v == nil and required then error({ message = ("%s: metadata key %s is missing"):format(source:path(), name), code = "format" }, 0) end
  if v ~= nil and type(v) ~= "number" then
    error({ message = ("%s: metadata key %s is a %s, wanted a number"):format(source:path(), name, type(v)), code = "format" }, 0)
  end
  return v
end

local function whole(source, arch, key, required, least)
  local v = number(source, arch, key, required)
  if v == nil then return nil end
  local i = math.tointeger(v)
  if not i or i < least or i > 1 << 24 then
    error({ message = ("%s: metadata key %s.%s is %s, wanted a whole number from %d to %d"):format(source:path(), arch, key, v, least, 1 << 24),
            code = "format" }, 0)
  end
  return i
end

-- GGUF's rope keys; the tensor rope_freqs.weight holds divisors of the frequencies (llama 3 scaling, folded by the
-- converter). Scaling type "none" and factor 1 mean no scaling.
local function read_rope(source, arch, head_dim)
  local function get(key) return number(source, arch, "rope." .. key) end
  local rope = {
    theta = get "freq_base" or 10000.0, local_theta = get "freq_base_swa", dims = whole(source, arch, "rope.dimension_count", false, 2) or head_dim,
    factor = get "scaling.factor" or get "scale_linear", original_context = get "scaling.original_context_length",
    attn_factor = get "scaling.attn_factor", beta_fast = get "scaling.yarn_beta_fast", beta_slow = get "scaling.yarn_beta_slow",
  }
  local scaling = source:meta(arch .. ".rope.scaling.type") or (rope.factor and "linear") or nil
  if scaling ~= "none" and rope.factor ~= 1 then rope.scaling = scaling end
  local freqs = source:tensor "rope_freqs.weight"
  if freqs then
    local raw = assert(source:read "rope_freqs.weight")
    rope.divisors = {}
    for at = 1, #raw, 4 do rope.divisors[#rope.divisors + 1] = (string.unpack("<f", raw, at)) end
  end
  return rope
end

local function from_gguf(source)
  local arch = source:meta "general.architecture"
  if type(arch) ~= "string" or arch == "" then
    error({ message = source:path() .. ": metadata key general.architecture is missing: this file holds no model", code = "format" }, 0)
  end
  local cfg = { architecture = arch, name = source:meta "general.name" }
  cfg.n_layer = whole(source, arch, "block_count", true, 1)
  cfg.d_model = whole(source, arch, "embedding_length", true, 1)
  cfg.d_ff = whole(source, arch, "feed_forward_length", false, 1)
  cfg.n_head = whole(source, arch, "attention.head_count", true, 1)
  cfg.n_head_kv = whole(source, arch, "attention.head_count_kv", false, 1) or cfg.n_head
  cfg.head_dim = whole(source, arch, "attention.key_length", false, 1) or cfg.d_model // cfg.n_head
  cfg.norm_eps = number(source, arch, "attention.layer_norm_rms_epsilon") or 1e-5
  cfg.context_length = whole(source, arch, "context_length", false, 1)
  cfg.vocab_size = whole(source, arch, "vocab_size", false, 1)
  local window = whole(source, arch, "attention.sliding_window", false, 0)
  cfg.sliding_window = window and window > 0 and window or nil
  cfg.rope = read_rope(source, arch, cfg.head_dim)
  function cfg.meta(key) return source:meta(arch .. "." .. key) end
  return cfg
end

--- The configuration of a source.
-- @param source an open source (GGUF)
-- @return the table described above; or nil, message, code
function M.read(source)
  local ok, result = pcall(from_gguf, source)
  if ok then return result end
  if type(result) == "table" then return nil, result.message, result.code end
  error(result, 0)
end

return M
