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
    local wanted = ("%s: metadata key %s.%s is %s, wanted a whole number from %d to %d"):format(source:path(), arch, key, v, least, 1 << 24)
    error({ message = wanted, code = "format" }, 0)
  end
  return i
end

local function fail(source, ...) error({ message = source:path() .. ": " .. (...):format(select(2, ...)), code = "format" }, 0) end

-- A number greater than zero, where it is there.
local function positive(source, arch, key)
  local v = number(source, arch, key)
  if v and not (v > 0 and v < math.huge) then fail(source, "metadata key %s.%s is %s, wanted a number above 0", arch, key, v) end
  return v
end

-- Heads that share keys and values; a list (one number a layer) where all are equal is that number.
local function read_kv_heads(source, arch, n_head)
  local key = arch .. ".attention.head_count_kv"
  local list = source:meta(key)
  if type(list) ~= "table" then return whole(source, arch, "attention.head_count_kv", false, 1) or n_head end
  for i, n in ipairs(list) do
    if n ~= list[1] or math.type(n) ~= "integer" or n < 1 then
      fail(source, "metadata key %s differs from layer to layer (%s in layer 0, %s in layer %d)", key, list[1], n, i - 1)
    end
  end
  return list[1] or n_head
end

-- Sizes that must divide one another: a recipe would only say that shapes do not fit.
local function check_heads(source, arch, cfg)
  if cfg.n_head % cfg.n_head_kv ~= 0 then
    fail(source, "metadata key %s.attention.head_count is %d, no multiple of attention.head_count_kv, %d", arch, cfg.n_head, cfg.n_head_kv)
  end
  if cfg.head_dim then return end
  if cfg.d_model % cfg.n_head ~= 0 then
    fail(source, "metadata key %s.embedding_length is %d, no multiple of attention.head_count, %d, and attention.key_length is missing",
      arch, cfg.d_model, cfg.n_head)
  end
  cfg.head_dim = cfg.d_model // cfg.n_head
end

local function check_rope_dims(source, arch, rope, head_dim)
  if rope.dims % 2 == 0 and rope.dims <= head_dim then return end
  fail(source, "metadata key %s.rope.dimension_count is %d, wanted an even number up to the head's %d", arch, rope.dims, head_dim)
end

local function read_divisors(source)
  local raw, message = source:read "rope_freqs.weight"
  if not raw then fail(source, "tensor rope_freqs.weight: %s", message) end
  local list = {}
  for at = 1, #raw, 4 do
    local v = string.unpack("<f", raw, at)
    if not (v > 0 and v < math.huge) then fail(source, "tensor rope_freqs.weight holds %s: divisors are above 0", v) end
    list[#list + 1] = v
  end
  return list
end

-- GGUF's rope keys; the tensor rope_freqs.weight holds divisors of the frequencies (llama 3 scaling, folded by the
-- converter). Scaling type "none" and factor 1 mean no scaling.
local function read_rope(source, arch, head_dim)
  local function get(key) return positive(source, arch, "rope." .. key) end
  local rope = {
    theta = get "freq_base" or 10000.0, local_theta = get "freq_base_swa",
    dims = whole(source, arch, "rope.dimension_count", false, 2) or head_dim,
    factor = get "scaling.factor" or get "scale_linear", original_context = get "scaling.original_context_length",
    attn_factor = get "scaling.attn_factor", beta_fast = get "scaling.yarn_beta_fast", beta_slow = get "scaling.yarn_beta_slow",
  }
  local scaling = source:meta(arch .. ".rope.scaling.type") or (rope.factor and "linear") or nil
  if scaling ~= "none" and rope.factor ~= 1 then rope.scaling = scaling end
  check_rope_dims(source, arch, rope, head_dim)
  if source:tensor "rope_freqs.weight" then rope.divisors = read_divisors(source) end
  return rope
end

local function architecture(source)
  local arch = source:meta "general.architecture"
  if type(arch) == "string" and arch ~= "" then return arch end
  fail(source, "metadata key general.architecture is missing: this file holds no model")
end

local function from_gguf(source)
  local arch = architecture(source)
  local cfg = { architecture = arch, name = source:meta "general.name" }
  cfg.n_layer = whole(source, arch, "block_count", true, 1)
  cfg.d_model = whole(source, arch, "embedding_length", true, 1)
  cfg.d_ff = whole(source, arch, "feed_forward_length", false, 1)
  cfg.n_head = whole(source, arch, "attention.head_count", true, 1)
  cfg.n_head_kv = read_kv_heads(source, arch, cfg.n_head)
  cfg.head_dim = whole(source, arch, "attention.key_length", false, 1)
  check_heads(source, arch, cfg)
  cfg.norm_eps = positive(source, arch, "attention.layer_norm_rms_epsilon") or 1e-5
  cfg.context_length = whole(source, arch, "context_length", false, 1)
  cfg.vocab_size = whole(source, arch, "vocab_size", false, 1)
  local window = whole(source, arch, "attention.sliding_window", false, 0)
  cfg.sliding_window = window and window > 0 and window or nil
  cfg.rope = read_rope(source, arch, cfg.head_dim)
  function cfg.meta(key) return source:meta(arch .. "." .. key) end
  return cfg
end

-- fn's result; or nil, message, code where it raised one of the faults above.
local function try(fn, source)
  local ok, result = pcall(fn, source)
  if ok then return result end
  if type(result) == "table" then return nil, result.message, result.code end
  error(result, 0)
end

--- The name of a source's architecture, by which its recipe is found before anything else is asked of the file.
-- @return the name; or nil, message, code
function M.architecture(source) return try(architecture, source) end

--- The configuration of a source.
-- @param source an open source (GGUF)
-- @return the table described above; or nil, message, code
function M.read(source) return try(from_gguf, source) end

return M
