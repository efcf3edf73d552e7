--- Configuration from config.json and generation_config.json, as the transformers library writes them.
-- Needs ane.core, ane.model.config.ceilings, ane.recipe.rope, ane.util.failure, ane.util.json_value, ane.util.keys and
-- ane.util.paths.
-- Usage: `local cfg = require("ane.model.config.hf").read(source)`; raises {message, code}.
--
-- Keys come in two generations. Old: rope_theta, rope_scaling (null or a dict whose type is under `type` or `rope_type`),
-- torch_dtype. New: rope_parameters (one dict, or one for each word of layer_types), dtype. If both exist, the new one is used, but
-- rope_scaling counts before a single rope_parameters, as in transformers. An unknown key that would change the result is an error.

local ceilings = require "ane.model.config.ceilings"
local core = require "ane.core"
local failure = require "ane.util.failure"
local json_value = require "ane.util.json_value"
local keys = require "ane.util.keys"
local paths = require "ane.util.paths"
local magnitude = require("ane.recipe.rope").yarn_magnitude

local is_array, is_object, shown = json_value.is_array, json_value.is_object, json_value.shown

local M = {}

-- Reader of one config.json: path (for messages), folder, raw (the decoded object).
local Reader = {}
Reader.__index = Reader

function Reader:fail(code, fmt, ...) failure.raise(code, "%s: %s", self.path, fmt:format(...)) end

-- Python writes infinite numbers as Infinity, which is not JSON. They become null.
local function decode(path, text)
  text = text:gsub("([:%[,]%s*)%-?Infinity%f[%s,%]}]", "%1null")
  local raw, message, code = core.json_decode(text)
  if raw == nil then failure.raise(code, "%s: %s", path, message) end
  if type(raw) ~= "table" or (#raw > 0) then failure.raise("format", "%s: is not a JSON object", path) end
  return raw
end

-- Opens the configuration of a source: a folder, a file in one, or a GGUF that holds the texts of both files. A source without
-- weights gives the path of its configuration (config_path).
local function open(source)
  local path = source:path()
  if source:format() == "gguf" then
    local text, generation = source:meta "ane.config", source:meta "ane.generation_config"
    path = path .. ": ane.config"
    local pooling = source:meta(source:meta "general.architecture" .. ".pooling_type")
    return setmetatable({ path = path, raw = decode(path, text), generation = generation, pooling = pooling }, Reader)
  end
  local folder = path
  local text, message
  if source.config_path then
    path = source:config_path()
    text, message = core.read_file(path)
    if not text then failure.raise("io", "%s", message) end
    return setmetatable({ path = path, folder = paths.folder_of(path), raw = decode(path, text) }, Reader)
  end
  text, message = core.read_file(folder .. "/config.json")
  if not text and core.path_kind(folder .. "/config.json") == "file" then failure.raise("io", "%s", message) end
  if not text then
    folder = paths.folder_of(path)
    text = core.read_file(folder .. "/config.json")
  end
  if not text then
    failure.raise("notfound", "%s: no configuration (%s): a config.json must be beside the weights", path, message)
  end
  path = folder .. "/config.json"
  return setmetatable({ path = path, folder = folder, raw = decode(path, text) }, Reader)
end

-- ---- Values of a JSON object ---------------------------------------------------------------------------------------------
-- Each method returns the value of a key, or nil if it is absent or null; a value of another type or range is a fault.
-- @param from the object; default: the whole of config.json
-- @param where the object's path for messages ("rope_scaling."); default ""

local function present(v) if v ~= core.null then return v end end

function Reader:number(key, from, where)
  local v = present((from or self.raw)[key])
  if v ~= nil and type(v) ~= "number" then self:fail("format", "key %s%s must be a number, but is %s", where or "", key, shown(v)) end
  if v and not ceilings.fits(v) then
    self:fail("format", "key %s%s must be a number that float32 holds, but is %s", where or "", key, v)
  end
  return v
end

-- A whole number from `least` to the ceiling of the key.
function Reader:whole(key, least, from, where)
  local v = self:number(key, from, where)
  if v == nil then return nil end
  local i, most = math.tointeger(v), ceilings.of(key)
  if not i or i < least or i > most then
    self:fail("format", "key %s%s must be a whole number from %d to %d, but is %s", where or "", key, least, most, v)
  end
  return i
end

-- A number above 0 that fits float32; nil where absent.
function Reader:positive(key, from, where)
  local v = self:number(key, from, where)
  if v and v <= 0 then self:fail("format", "key %s%s must be a number above 0, but is %s", where or "", key, v) end
  return v
end

-- A whole number of at least 1; a fault if it is absent.
function Reader:required(key)
  return self:whole(key, 1) or self:fail("format", "key %s is missing", key)
end

function Reader:flag(key, from, where)
  local v = present((from or self.raw)[key])
  if v ~= nil and type(v) ~= "boolean" then self:fail("format", "key %s%s must be true or false, but is %s", where or "", key, shown(v)) end
  return v
end

function Reader:string(key, from, where)
  local v = present((from or self.raw)[key])
  if v ~= nil and type(v) ~= "string" then self:fail("format", "key %s%s must be a string, but is %s", where or "", key, shown(v)) end
  return v
end

-- A list whose entries are all of the type; nil where absent.
function Reader:list(key, of, from, where)
  local v = present((from or self.raw)[key])
  if v == nil then return nil end
  if type(v) ~= "table" or is_object(v) then
    self:fail("format", "key %s%s must be a list, but is %s", where or "", key, shown(v))
  end
  local out = {}
  for i, entry in ipairs(v) do
    if type(entry) ~= of or of == "number" and not ceilings.fits(entry) then
      self:fail("format", "key %s%s[%d] must be a %s, but is %s", where or "", key, i - 1, of, shown(entry))
    end
    out[i] = entry
  end
  return out
end

-- An object; nil where absent.
function Reader:object(key)
  local v = present(self.raw[key])
  if v ~= nil and (type(v) ~= "table" or is_array(v)) then self:fail("format", "key %s must be an object, but is %s", key, shown(v)) end
  return v
end

-- ---- Rope ----------------------------------------------------------------------------------------------------------------

-- Keys of each scaling type, read from its dict into the rope; the formulas are in ane.recipe.rope.
local SCALINGS = {}

local function factor_of(self, p, where)
  return self:positive("factor", p, where) or self:fail("format", "key %sfactor is missing", where)
end

-- The top-level key overrides a single dict for all layers, as in transformers.
local function original_of(self, p, where)
  local key = "original_max_position_embeddings"
  local nested = p ~= self.raw.rope_parameters and p ~= self.raw.rope_scaling
  return not nested and self:whole(key, 1) or self:whole(key, 1, p, where) or self:whole("max_position_embeddings", 1) or
    self:fail("format", "key %soriginal_max_position_embeddings is missing", where)
end

-- The factor of a rope whose dict has no key for it: the length of the context as a multiple of the original context, as in transformers.
local function stretch_of(self, rope) return (self:whole("max_position_embeddings", 1) or rope.original_context) / rope.original_context end

SCALINGS["default"] = function() end

function SCALINGS.linear(self, rope, p, where)
  rope.scaling, rope.factor = "linear", factor_of(self, p, where)
end

function SCALINGS.llama3(self, rope, p, where)
  rope.scaling, rope.factor, rope.original_context = "llama3", factor_of(self, p, where), original_of(self, p, where)
  for _, key in ipairs { "low_freq_factor", "high_freq_factor" } do
    rope[key] = self:positive(key, p, where) or self:fail("format", "key %s%s is missing", where, key)
  end
  if rope.low_freq_factor >= rope.high_freq_factor then
    local what = "key %slow_freq_factor must be less than high_freq_factor (%s), but is %s"
    self:fail("format", what, where, rope.high_freq_factor, rope.low_freq_factor)
  end
end

function SCALINGS.yarn(self, rope, p, where)
  if p.long_factor then return SCALINGS.longrope(self, rope, p, where) end -- the first files of Phi-3 call longrope "su" or "yarn"
  rope.scaling, rope.original_context = "yarn", original_of(self, p, where)
  rope.factor = self:positive("factor", p, where) or stretch_of(self, rope)
  rope.beta_fast, rope.beta_slow = self:positive("beta_fast", p, where), self:positive("beta_slow", p, where)
  rope.truncate = self:flag("truncate", p, where)
  if p.truncate == core.null then rope.truncate = false end -- as in transformers; an absent key is true
  rope.attn_factor = self:positive("attention_factor", p, where)
  local mscale, all = self:number("mscale", p, where), self:number("mscale_all_dim", p, where)
  if not rope.attn_factor and (mscale or 0) ~= 0 and (all or 0) ~= 0 then
    rope.attn_factor = magnitude(rope.factor, mscale, all)
  end
end

function SCALINGS.longrope(self, rope, p, where)
  rope.scaling, rope.original_context = "longrope", original_of(self, p, where)
  for field, key in pairs { short_factors = "short_factor", long_factors = "long_factor" } do
    rope[field] = self:list(key, "number", p, where) or self:fail("format", "key %s%s is missing", where, key)
    if #rope[field] ~= rope.dims // 2 then
      self:fail("format", "key %s%s has %d numbers, but must have %d: half the rotary dimensions", where, key, #rope[field], rope.dims // 2)
    end
  end
  rope.factor = self:positive("factor", p, where) or stretch_of(self, rope)
  rope.attn_factor = self:positive("attention_factor", p, where)
end

SCALINGS.su = SCALINGS.longrope

-- With alpha the base is a constant, and factor, mscale and beta_* have no effect (Hunyuan).
function SCALINGS.dynamic(self, rope, p, where)
  rope.scaling, rope.alpha = "dynamic", self:number("alpha", p, where)
  if rope.alpha == 0 then rope.alpha = nil end
  if rope.alpha then return end
  rope.factor, rope.limit = factor_of(self, p, where), self:whole("max_position_embeddings", 1)
  if not rope.limit then self:fail("format", "key max_position_embeddings is missing: rope type dynamic needs it") end
end

-- Only the first pairs of a head are rotated. The frequencies are those of the whole head, whose width the recipe may change.
function SCALINGS.proportional(self, rope, p, where, cfg)
  rope.scaling, rope.dims, rope.factor = "proportional", cfg.head_dim, self:positive("factor", p, where)
  rope.partial = self:positive("partial_rotary_factor", p, where)
end

-- The growth of q with the position (Ministral 3); nil: none.
local function growth_of(self, p, where)
  local beta = self:number("llama_4_scaling_beta", p, where)
  local original = self:whole("original_max_position_embeddings", 1, p, where) or self:whole("max_position_embeddings", 1)
  return beta and beta ~= 0 and { beta = beta, original = original } or nil
end

-- Converts one dict to a rope. In old files its missing keys are at the top level of config.json.
local function read_rope(self, cfg, p, where)
  local partial = self:positive("partial_rotary_factor", p, where) or self:positive "partial_rotary_factor" or 1
  if partial > 1 then self:fail("format", "key partial_rotary_factor must be at most 1, but is %s", partial) end
  local name = self:string("rope_type", p, where) or self:string("type", p, where) or "default"
  if self.whole_rope and name == "default" then partial = 1 end
  local rope = {
    theta = self:positive("rope_theta", p, where) or self:positive "rope_theta", dims = math.floor(cfg.head_dim * partial),
    local_theta = self:positive "rope_local_base_freq", mscale_all_dim = self:number("mscale_all_dim", p, where),
    growth = growth_of(self, p, where),
  }
  if self.whole_rope and partial < 1 then -- transformers stops at the first token
    local what = "%s: partial_rotary_factor %s with rope type '%s': heads of '%s' are rotated as a whole"
    rope.fault = { code = "unsupported", message = what:format(self.path, partial, name, cfg.architecture) }
  elseif name ~= "proportional" and (rope.dims < 2 or rope.dims % 2 ~= 0) then
    -- This is an error only in a model that rotates its heads; ane.recipe.builder raises it.
    local what = "%s: partial_rotary_factor %s of a head of %d gives %d rotary dimensions"
    rope.fault = { code = "format", message = what:format(self.path, partial, cfg.head_dim, rope.dims) }
  end
  local scaling = SCALINGS[name]
  if not scaling then
    local key = present(p.rope_type) and "rope_type" or "type"
    self:fail("unsupported", "key %s%s: rope type '%s' is not known; known are: %s", where, key, name, table.concat(keys(SCALINGS), ", "))
  end
  scaling(self, rope, p, where, cfg)
  return rope
end

-- Returns whether a dict holds one dict for each kind of layer.
local function is_nested(p)
  for _, v in pairs(p) do
    if type(v) == "table" and not is_array(v) then return true end
  end
  return false
end

-- Returns whether neither key describes a rope. An empty rope_scaling counts as null.
local function lacks_rope(raw)
  local scaling = present(raw.rope_scaling)
  return present(raw.rope_parameters) == nil and (scaling == nil or type(scaling) == "table" and next(scaling) == nil)
end

-- Keys that describe a rope.
local ROPE_KEYS = {}
for word in ([[rope_type type rope_theta factor attention_factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim
  truncate low_freq_factor high_freq_factor short_factor long_factor partial_rotary_factor alpha]]):gmatch "%S+" do
  ROPE_KEYS[word] = true
end

-- Is a key of rope_parameters the name of a kind of layers, as layer_types has it?
local function names_layers(cfg, word)
  for _, kind_of_layer in ipairs(cfg.layer_types or {}) do
    if kind_of_layer == word then return true end
  end
  return word == "full_attention" or word == "sliding_attention"
end

-- Does a key hold one rope?
local function holds_one(raw, key)
  local p = present(raw[key])
  return type(p) == "table" and not is_array(p) and next(p) ~= nil and not is_nested(p)
end

local function read_ropes(self, cfg)
  local raw = self.raw
  local key = present(raw.rope_parameters) and "rope_parameters" or "rope_scaling"
  if holds_one(raw, "rope_parameters") and holds_one(raw, "rope_scaling") then key = "rope_scaling" end
  local p = present(self.raw[key])
  if p == nil then p = {} end
  if type(p) ~= "table" or is_array(p) then self:fail("format", "key %s must be an object or null, but is %s", key, shown(p)) end
  for word, inner in pairs(p) do
    if type(inner) == "table" and is_array(inner) and names_layers(cfg, word) then
      self:fail("format", "key %s.%s must be an object, but is a list", key, word)
    end
  end
  if not is_nested(p) then
    cfg.rope = read_rope(self, cfg, p, key .. ".")
    return
  end
  cfg.ropes = {}
  for layer, inner in pairs(p) do
    -- Keys of a rope beside those of the kinds of layers have no meaning. The published ZAYA1 holds such keys, and transformers writes
    -- them when it saves an OLMo 3 that was made with a single rope.
    if inner ~= core.null and not ROPE_KEYS[layer] then
      if type(inner) ~= "table" then self:fail("format", "key %s.%s must be an object, but is %s", key, layer, shown(inner)) end
      cfg.ropes[layer] = read_rope(self, cfg, inner, ("%s.%s."):format(key, layer))
    end
  end
  cfg.rope = cfg.ropes.full_attention
end

-- ---- Other keys ------------------------------------------------------------------------------------------------------------

-- Names of transformers' ACT2FN -> ours.
local ACTS = {
  silu = "silu", swish = "silu", gelu = "gelu_erf", gelu_python = "gelu_erf", gelu_new = "gelu_tanh", gelu_fast = "gelu_tanh",
  gelu_pytorch_tanh = "gelu_tanh", relu = "relu",
}

local function read_act(self, key)
  local name = self:string(key)
  if name == nil then return nil end
  if not ACTS[name] then
    self:fail("unsupported", "key %s: activation '%s' is not known; known are: %s", key, name, table.concat(keys(ACTS), ", "))
  end
  return ACTS[name]
end

-- Returns the quantisation method of the weights: "mxfp4", or nil; fails on others.
local function quantised_as(self)
  for _, key in ipairs { "quantization_config", "compression_config" } do
    local q = present(self.raw[key])
    if q ~= nil then
      local method = type(q) == "table" and (present(q.quant_method) or present(q.format)) or "?"
      local what = "key %s: weights quantised by '%s' are not known; known are mxfp4 and plain weights (F32, F16, BF16, F8)"
      if method ~= "mxfp4" then self:fail("unsupported", what, key, method) end
      return method
    end
  end
end

-- Returns the ids of both files, in this order and without duplicates; nil if there are none.
local function read_ends(self)
  local ids, seen = {}, {}
  local function add(reader)
    local v = present(reader.raw.eos_token_id)
    if v == nil then return end
    local list = type(v) == "table" and reader:list("eos_token_id", "number") or { (reader:whole("eos_token_id", -1)) }
    for _, id in ipairs(list) do
      local i = math.tointeger(id) or reader:fail("format", "key eos_token_id has the entry %s, but must have whole numbers", id)
      if i >= 0 and not seen[i] then -- -1: none
        seen[i] = true
        ids[#ids + 1] = i
      end
    end
  end
  add(self)
  local path = (self.folder or "ane") .. "/generation_config.json"
  local text = self.generation or self.folder and core.read_file(path)
  if text then add(setmetatable({ path = path, folder = self.folder, raw = decode(path, text) }, Reader)) end
  return ids[1] and ids
end

-- Returns the inner width; the largest if a list has one for each layer.
local function read_width(self, cfg)
  local width = present(self.raw.intermediate_size)
  if type(width) ~= "table" then return self:whole("intermediate_size", 1) end
  local most
  local list = self:list("intermediate_size", "number")
  if #list ~= cfg.n_layer then
    self:fail("format", "key intermediate_size has %d numbers, but must have one for each of %d layers", #list, cfg.n_layer)
  end
  for i in ipairs(list) do
    local n = self:whole(i, 1, self.raw.intermediate_size, "intermediate_size.")
    most = math.max(most or 0, n)
  end
  return most
end

-- The number of layers: the length of a key that describes each of them, or else num_hidden_layers.
local function read_layers(self)
  local pattern = self:string "hybrid_override_pattern" -- one letter per layer
  local kinds = self:list("layers_block_type", "string")
  if not (pattern or kinds) then return self:required "num_hidden_layers" end
  local n, most = #(pattern or kinds), ceilings.of "num_hidden_layers"
  if n < 1 or n > most then
    local key = pattern and "hybrid_override_pattern" or "layers_block_type"
    self:fail("format", "key %s must describe 1 to %d layers, but describes %d", key, most, n)
  end
  return n
end

local function read_layer_types(self, cfg)
  local list = self:list("layer_types", "string")
  if list and #list ~= cfg.n_layer then
    self:fail("format", "key layer_types has %d words, but must have one for each of %d layers", #list, cfg.n_layer)
  end
  return list
end

-- Keys that change the result but add no tensor -> the neutral value. Absent, null and false are always neutral. A recipe that
-- computes one of them requests it with cfg.meta.
local SIGNIFICANT = {
  attn_logit_softcapping = false, final_logit_softcapping = false, logits_soft_cap = false, query_pre_attn_scalar = false,
  attention_multiplier = false, embedding_multiplier = 1, residual_multiplier = 1, logits_scaling = 1, logit_scale = 1, scale_emb = 1,
  scale_depth = false, clip_qkv = false, alibi = false, use_alibi = false, use_bidirectional_attention = false, is_causal = true,
  use_parallel_residual = false, parallel_attn = false, no_rope_layers = false, attention_chunk_size = false, rope_interleave = false,
  rope_interleaved = false, position_embedding_type = "rope", per_layer_config = false,
}

-- Kinds that cfg.meta can request.
local KINDS = {
  number = function(self, key) return self:number(key) end,
  positive = function(self, key) return self:positive(key) end,
  whole = function(self, key) return self:whole(key, 0) end,
  count = function(self, key) return self:whole(key, 1) end,
  flag = function(self, key) return self:flag(key) end,
  list = function(self, key) return self:list(key, "number") end,
  object = function(self, key) return self:object(key) end,
}

local function attach_keys(self, cfg)
  local asked, raw = {}, self.raw
  function cfg.meta(key, what)
    asked[key] = true
    if what then return KINDS[what](self, key) end
    return present(raw[key])
  end
  function cfg.unread()
    local found = {}
    for key, neutral in pairs(SIGNIFICANT) do
      local v = present(raw[key])
      local empty = type(v) == "table" and next(v) == nil
      local silent = v == nil or v == neutral or empty or (v == false and key ~= "is_causal")
      if not silent and not asked[key] then found[#found + 1] = key end
    end
    table.sort(found)
    if found[1] then return found[1], shown(raw[found[1]]), self.path end
  end
end

-- Returns "embedding" if a modules.json beside the weights, or the pooling type of a GGUF file, pools hidden states; otherwise nil.
local function task_of(self)
  if self.pooling then return "embedding" end
  local text = self.folder and core.read_file(self.folder .. "/modules.json")
  local modules, fault = nil, nil
  if text then modules, fault = core.json_decode(text) end
  if fault then failure.raise("format", "%s/modules.json: %s", self.folder, fault) end
  if text and (type(modules) ~= "table" or not is_array(modules)) then
    failure.raise("format", "%s/modules.json must be a list, but is %s", self.folder, shown(modules))
  end
  if text and not modules[1] then failure.raise("format", "%s/modules.json must be a list of modules, but is empty", self.folder) end
  for i, module in ipairs(modules or {}) do
    if type(module) ~= "table" or type(module.type) ~= "string" then
      failure.raise("format", "%s/modules.json[%d] must be an object with a type, but is %s", self.folder, i - 1, shown(module))
    end
    if module.type:find "Pooling$" then return "embedding" end
  end
end

-- Prefixes of the text model's tensors in files of multimodal models.
local PREFIXES = { "model.language_model.", "language_model.model.", "model.text_model." }

-- For a multimodal model: returns the keys of its text part, with the top-level keys that belong to no part, and the prefix of its
-- tensors. nil: no text part was found.
local function text_part(self, source)
  local text = present(self.raw.text_config)
  if type(text) ~= "table" or type(text.model_type) ~= "string" then return nil end
  for _, prefix in ipairs(PREFIXES) do
    if source:tensor(prefix .. "embed_tokens.weight") then
      local raw = {}
      for _, key in ipairs { "tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id", "dtype", "torch_dtype" } do
        raw[key] = present(self.raw[key])
      end
      for key, value in pairs(text) do raw[key] = value end
      local tied = present(self.raw.tie_word_embeddings) -- the head belongs to the whole model, so its key counts before the text part's
      if tied ~= nil then raw.tie_word_embeddings = tied end
      return raw, prefix
    end
  end
end

local function architecture_of(self)
  local name = self:string "model_type"
  return name or self:fail("format", "key model_type is missing: it must be the name of an architecture")
end

--- Returns model_type, that of the text part for a multimodal model; raises {message, code} if there is none.
function M.architecture(source)
  local self = open(source)
  self.raw = text_part(self, source) or self.raw
  return architecture_of(self)
end

--- The configuration (see ane.model.config); raises if a key is wrong or unknown.
-- @param defaults nil, or key -> value for keys that config.json lacks, or function(architecture) -> such a table. rope_parameters applies
-- where neither rope_parameters nor rope_scaling is set; other keys apply unless they are null.
-- @param whole_rope see ane.recipe
function M.read(source, defaults, whole_rope)
  local self = open(source)
  self.whole_rope = whole_rope
  local raw, prefix = text_part(self, source)
  local quantised = self.raw.quantization_config
  if raw then self.raw, raw.quantization_config = raw, raw.quantization_config or quantised end
  local architecture = architecture_of(self)
  if type(defaults) == "function" then defaults = defaults(architecture) end
  for key, value in pairs(defaults or {}) do
    local lacks = self.raw[key] == nil
    if key == "rope_parameters" then lacks = lacks_rope(self.raw) end
    if lacks then self.raw[key] = value end
  end
  local cfg = { format = "hf", architecture = architecture, folder = self.folder, bare_names = self.folder == nil, tensors = {},
                text_prefix = prefix }
  if present(self.raw.text_config) then
    self:fail("unsupported", "key text_config: '%s' takes more than text, which is not known here; known are text models", cfg.architecture)
  end
  cfg.quantised_as = quantised_as(self)
  function cfg.holds(name) return source:tensor(name) ~= nil end
  -- Some checkpoints hold the base model without its head.
  if cfg.holds "embed_tokens.weight" and not cfg.holds "model.embed_tokens.weight" then cfg.bare_names = true end
  cfg.task, cfg.pooling_type = task_of(self), self.pooling
  cfg.n_layer = read_layers(self)
  cfg.d_model = self:required "hidden_size"
  cfg.n_head = self:whole("num_attention_heads", 1) or self:whole("num_heads", 1) or self:required "num_attention_heads"
  cfg.n_head_kv = self:whole("num_key_value_heads", 1) or cfg.n_head
  if cfg.n_head % cfg.n_head_kv ~= 0 then
    self:fail("format", "key num_attention_heads must be a multiple of num_key_value_heads (%d), but is %d", cfg.n_head_kv, cfg.n_head)
  end
  -- With latent attention, rope rotates only a part of a head.
  cfg.head_dim = self:whole("qk_rope_head_dim", 1) or self:whole("head_dim", 1) or cfg.d_model // cfg.n_head
  if cfg.head_dim < 1 or cfg.head_dim > ceilings.of "head_dim" then
    self:fail("format", "hidden_size %d of %d heads gives head dimension %d, but it must be 1 to %d", cfg.d_model, cfg.n_head, cfg.head_dim,
      ceilings.of "head_dim")
  end
  cfg.d_ff, cfg.vocab_size = read_width(self, cfg), self:whole("vocab_size", 1)
  cfg.context_length = self:whole("max_position_embeddings", 1)
  cfg.norm_eps = self:positive "rms_norm_eps" or self:positive "norm_eps" or self:positive "norm_epsilon"
    or self:positive "layer_norm_eps" or self:positive "layer_norm_epsilon"
  if not cfg.norm_eps and self.raw.rms_norm_eps == core.null then
    self:fail("format", "key rms_norm_eps must be a number above 0, but is null")
  end
  cfg.act = read_act(self, present(self.raw.hidden_activation) and "hidden_activation" or "hidden_act")
  cfg.classifier_act = read_act(self, "classifier_activation")
  cfg.tied = self:flag "tie_word_embeddings"
  cfg.attention_bias, cfg.mlp_bias = self:flag "attention_bias", self:flag "mlp_bias"
  local window = self:whole("sliding_window", 0)
  cfg.sliding_window = window and window > 0 and window or nil -- 0: none
  cfg.layer_types = read_layer_types(self, cfg)
  cfg.bos_id, cfg.pad_id = self:whole("bos_token_id", -1), self:whole("pad_token_id", -1)
  cfg.eos_ids = read_ends(self)
  cfg.dtype = self:string "dtype" or self:string "torch_dtype"
  read_ropes(self, cfg)
  attach_keys(self, cfg)
  return cfg
end

return M
