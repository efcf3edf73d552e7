--- The plan of a Hugging Face folder written as GGUF, as llama.cpp's converter does it (conversion/*.py, 2025).
-- Needs ane.model.config, ane.core, ane.embed.modules, ane.util.failure, ane.quantise.gguf, ane.quantise.types, ane.quantise.vocabulary,
-- ane.recipe, ane.recipe.names, ane.recipe.same, ane.util.paths and ane.util.weight_type. ane.quantise.gguf says what a plan is.
--
-- If llama.cpp knows the architecture, the file is one that llama.cpp computes correctly. Other architectures, and configurations that
-- its metadata cannot express, get general.architecture "ane-<model_type>", the text of config.json as ane.model.config, and tensors by
-- the folder's names without the leading "model.": ane.model.config reads these files as it reads the folder.
-- Usage: `local plan = require("ane.quantise.hf").plan(source, out)`; raises {message, code}

local config = require "ane.model.config"
local core = require "ane.core"
local failure = require "ane.util.failure"
local gguf = require "ane.quantise.gguf"
local modules = require "ane.embed.modules"
local names = require "ane.recipe.names"
local paths = require "ane.util.paths"
local recipe = require "ane.recipe"
local same = require "ane.recipe.same"
local types = require "ane.quantise.types"
local vocabulary = require "ane.quantise.vocabulary"
local weight_type = require "ane.util.weight_type"

local M = {}

local try = failure.try

-- ---- Differences between architectures ------------------------------------------------------------------------------

-- Each: name in GGUF; biases = roles that may have one; act; values(set, cfg, source, name); tensors(add, cfg); fault(cfg) ->
-- what readers of that architecture would compute otherwise, or nil; pair = roles whose rows are permuted; norm_add; roles = rows
-- instead of names.ROLES; norm_key = the key of the norms' epsilon; rope = false: positions do not use rope; dims = true: files always have
-- the rotary dimensions; partial = true: readers rotate a part of a head (others of llama.cpp end the process); divisors = true: readers
-- take rope_freqs.weight (others refuse the file); shared(set, cfg, self) sets keys without the architecture's name; ignores = true: what
-- the recipe ignores is left out.
local ALL_BIASES = {}
for _, row in ipairs(names.ROLES) do ALL_BIASES[row[1]] = row.bias ~= nil end
local QKV_BIASES = { attn_q = true, attn_k = true, attn_v = true }

local function floats(list)
  local parts = {}
  for i, v in ipairs(list) do parts[i] = string.pack("<f", v) end
  return table.concat(parts)
end

-- Divisors of llama 3's rope frequencies (transformers, modeling_rope_utils.py).
local function llama3_divisors(rope)
  local list = {}
  local low, high = rope.original_context / rope.low_freq_factor, rope.original_context / rope.high_freq_factor
  for t = 0, rope.dims // 2 - 1 do
    local wave = 2 * math.pi * rope.theta ^ (2 * t / rope.dims)
    if wave < high then
      list[t + 1] = 1.0
    elseif wave > low then
      list[t + 1] = rope.factor
    else
      local s = (rope.original_context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
      list[t + 1] = 1 / ((1 - s) / rope.factor + s)
    end
  end
  return list
end

local LLAMA = { name = "llama", biases = ALL_BIASES, pair = { attn_q = true, attn_k = true }, dims = true, divisors = true }

function LLAMA.values(set, cfg) set("vocab_size", "uint32", cfg.vocab_size) end

local QWEN2 = { name = "qwen2", biases = QKV_BIASES }

local WINDOWS = "layers with a sliding window"

function QWEN2.fault(cfg) return cfg.meta("use_sliding_window", "flag") and WINDOWS or nil end

local QWEN3 = { name = "qwen3", fault = QWEN2.fault }

local OLMO2 = { name = "olmo2" }

-- Files do not list the layers without rope. Readers assume every fourth.
local SMOLLM3 = { name = "smollm3", pair = { attn_q = true, attn_k = true }, dims = true, values = LLAMA.values }

function SMOLLM3.fault(cfg)
  local list, interval = cfg.meta("no_rope_layers", "list"), cfg.meta("no_rope_layer_interval", "count") or 4
  for i = 1, cfg.n_layer do
    local rotates = i % interval ~= 0
    if list then rotates = list[i] ~= 0 end
    if rotates ~= (i % 4 ~= 0) then return "rope in other layers than three of four" end
  end
  for _, word in ipairs(cfg.layer_types or {}) do
    if word ~= "full_attention" then return WINDOWS end
  end
  return QWEN2.fault(cfg)
end

local function expert_count(cfg) return cfg.meta("num_experts", "count") or cfg.meta("num_local_experts", "count") end

local QWEN2MOE = { name = "qwen2moe", biases = QKV_BIASES }

function QWEN2MOE.values(set, cfg)
  set("expert_count", "uint32", expert_count(cfg))
  set("expert_used_count", "uint32", cfg.meta("num_experts_per_tok", "count"))
  set("expert_feed_forward_length", "uint32", cfg.meta("moe_intermediate_size", "count"))
  set("expert_shared_feed_forward_length", "uint32", cfg.meta("shared_expert_intermediate_size", "count"))
end

local function layers_fault(cfg)
  local dense, step = cfg.meta("mlp_only_layers", "list") or {}, cfg.meta("decoder_sparse_step", "count") or 1
  return QWEN2.fault(cfg) or (#dense > 0 or step ~= 1) and "layers without experts" or nil
end

function QWEN2MOE.fault(cfg)
  return cfg.meta("norm_topk_prob", "flag") and "weights of experts that are normalised" or layers_fault(cfg)
end

local QWEN3MOE = { name = "qwen3moe" }

function QWEN3MOE.values(set, cfg)
  set("expert_count", "uint32", expert_count(cfg))
  set("expert_used_count", "uint32", cfg.meta("num_experts_per_tok", "count") or 8)
  set("expert_feed_forward_length", "uint32", cfg.meta("moe_intermediate_size", "count"))
end

function QWEN3MOE.fault(cfg)
  return not cfg.meta("norm_topk_prob", "flag") and "weights of experts that are not normalised" or layers_fault(cfg)
end

local PHI3 = { name = "phi3", longrope = true, dims = true, partial = true }

local function longrope_magnitude(rope)
  if rope.attn_factor then return rope.attn_factor end
  return rope.factor > 1 and math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_context)) or 1.0
end

function PHI3.values(set, cfg)
  local rope, window = cfg.rope, cfg.sliding_window
  -- a window as long as the context has no effect
  set("attention.sliding_window", "uint32", window and window < (cfg.context_length or math.huge) and window or 0)
  if rope.scaling ~= "yarn" then set("rope.scaling.original_context_length", "uint32", rope.original_context or cfg.context_length) end
  if rope.scaling == "longrope" then set("rope.scaling.attn_factor", "fp32", longrope_magnitude(rope)) end
end

function PHI3.tensors(add, cfg)
  if not cfg.rope or cfg.rope.scaling ~= "longrope" then return end
  add("rope_factors_long.weight", cfg.rope.long_factors)
  add("rope_factors_short.weight", cfg.rope.short_factors)
end

local GEMMA3 = { name = "gemma3", act = "gelu_tanh", norm_add = 1, partial = true }

-- Every n-th layer sees all keys; nil: there is no such n. Readers assume six if the key is absent.
local function full_period(cfg)
  local pattern = cfg.meta("sliding_window_pattern", "count") or 6
  local function fits(n)
    for i = 0, cfg.n_layer - 1 do
      local full = (i + 1) % pattern == 0
      if cfg.layer_types then full = cfg.layer_types[i + 1] == "full_attention" end
      if full ~= ((i + 1) % n == 0) then return false end
    end
    return true
  end
  if fits(6) then return 6 end
  for n = 1, cfg.n_layer + 1 do
    if fits(n) then return n end
  end
end

function GEMMA3.values(set, cfg)
  set("attention.sliding_window", "uint32", cfg.sliding_window)
  local period, softcap = full_period(cfg), cfg.meta("final_logit_softcapping", "number")
  if period ~= 6 then set("attention.sliding_window_pattern", "uint32", period) end
  if softcap then set("final_logit_softcapping", "fp32", softcap) end
  local near = cfg.ropes and cfg.ropes.sliding_attention
  local base = near and near.theta or cfg.rope.local_theta or 10000.0
  if base ~= 10000.0 then set("rope.freq_base_swa", "fp32", base) end
end

-- GGUF stores no score scale: readers take head_dim^-0.5 (the 27B: (d_model / n_head)^-0.5). What the model has besides goes
-- into the norm of q, to which scores are proportional.
function GEMMA3.norm_scale(role, cfg)
  if role ~= "attn_q_norm" then return 1 end
  local usual = cfg.n_layer == 62 and cfg.d_model / cfg.n_head or cfg.head_dim
  return (usual / (cfg.meta("query_pre_attn_scalar", "positive") or usual)) ^ 0.5
end

function GEMMA3.fault(cfg)
  local near = cfg.ropes and cfg.ropes.sliding_attention
  if near and near.scaling then return ("rope type %s of sliding layers"):format(near.scaling) end
  if near and near.dims ~= cfg.rope.dims then return ("ropes of %d and %d dimensions"):format(cfg.rope.dims, near.dims) end
  if not full_period(cfg) then return "full attention in layers without a period" end
end

-- The converter gives a context of 256k to a model whose base alpha has stretched.
local HUNYUAN = { name = "hunyuan-dense", alpha = true, context = 262144 }

local function lfm2_kv(cfg)
  local list = {}
  for i = 1, cfg.n_layer do list[i] = cfg.n_head_kv end
  if cfg.layer_types then
    for i, word in ipairs(cfg.layer_types) do list[i] = word == "full_attention" and cfg.n_head_kv or 0 end
  elseif cfg.meta("full_attn_idxs", "list") then
    for i = 1, cfg.n_layer do list[i] = 0 end
    for _, i in ipairs(cfg.meta("full_attn_idxs", "list")) do
      if not list[i + 1] then
        failure.raise("format", "key full_attn_idxs has the entry %s, but must have layers below %d", i, cfg.n_layer)
      end
      list[i + 1] = cfg.n_head_kv
    end
  end
  return list
end

local LFM2 = { name = "lfm2", kv = lfm2_kv, partial = true }

function LFM2.values(set, cfg)
  set("vocab_size", "uint32", cfg.vocab_size)
  set("shortconv.l_cache", "uint32", cfg.meta("conv_L_cache", "count") or 3)
end

function LFM2.fault(cfg)
  if cfg.meta("conv_bias", "flag") then return "biases of the convolutions" end
end

local LFM2MOE = { name = "lfm2moe", kv = lfm2_kv, d_ff = true, partial = true }

function LFM2MOE.values(set, cfg)
  LFM2.values(set, cfg)
  set("expert_count", "uint32", expert_count(cfg))
  set("expert_used_count", "uint32", cfg.meta("num_experts_per_tok", "count"))
  set("expert_feed_forward_length", "uint32", cfg.meta("moe_intermediate_size", "count"))
  set("leading_dense_block_count", "uint32", cfg.meta("num_dense_layers", "whole") or 0)
  set("expert_gating_func", "uint32", 2) -- sigmoid
end

function LFM2MOE.fault(cfg)
  if cfg.meta("norm_topk_prob", "flag") == false then return "weights of experts that are not normalised" end
  if (cfg.meta("routed_scaling_factor", "number") or 1) ~= 1 then return "routed_scaling_factor" end
  if cfg.meta("use_expert_bias", "flag") == false then return "experts without a bias" end
  return LFM2.fault(cfg)
end

-- Readers assume the exact gelu for bert; llama.cpp computes its approximation by tanh.
local BERT = { name = "bert", act = "gelu_erf", rope = false, norm_key = "attention.layer_norm_epsilon", biases = {}, roles = {},
  ignores = true }
for _, role in ipairs { "token_embd", "token_types", "position_embd", "token_embd_norm" } do
  table.insert(BERT.roles, { role, outside = true })
  BERT.biases[role] = role == "token_embd_norm"
end
for _, role in ipairs { "attn_q", "attn_k", "attn_v", "attn_output", "attn_output_norm", "ffn_up", "ffn_down", "layer_output_norm" } do
  table.insert(BERT.roles, { role })
  BERT.biases[role] = true
end

function BERT.values(set) set("attention.causal", "bool", false) end

function BERT.shared(set, _, self)
  local table_of_types = self.source:tensor(self.hf "token_types" .. ".weight")
  if table_of_types then set("tokenizer.ggml.token_type_count", "uint32", table_of_types.shape[1]) end
end

function BERT.fault(cfg)
  local kind = cfg.meta "position_embedding_type" or "absolute"
  if kind ~= "absolute" then return ("position_embedding_type %s"):format(tostring(kind)) end
  if cfg.holds "classifier.weight" then return "a classifier" end
end

-- The norms alone have biases.
local NOMIC = { name = "nomic-bert", norm_key = BERT.norm_key, values = BERT.values, shared = BERT.shared, roles = {}, biases = {},
  ignores = true }
for _, role in ipairs { "token_embd", "token_types", "token_embd_norm" } do table.insert(NOMIC.roles, { role, outside = true }) end
for _, role in ipairs { "attn_qkv", "attn_output", "attn_output_norm", "ffn_up", "ffn_gate", "ffn_down", "layer_output_norm" } do
  table.insert(NOMIC.roles, { role })
end
for _, role in ipairs { "token_embd_norm", "attn_output_norm", "layer_output_norm" } do NOMIC.biases[role] = true end

function NOMIC.fault(cfg)
  if cfg.holds "classifier.weight" then return "a classifier" end
end

local KNOWN = {
  llama = LLAMA, qwen2 = QWEN2, qwen2_moe = QWEN2MOE, phi3 = PHI3, gemma3_text = GEMMA3, hunyuan_v1_dense = HUNYUAN, lfm2 = LFM2,
  lfm2_moe = LFM2MOE, qwen3 = QWEN3, qwen3_moe = QWEN3MOE, olmo2 = OLMO2, smollm3 = SMOLLM3, bert = BERT,
  nomic_bert = NOMIC,
}

-- ---- Rope --------------------------------------------------------------------------------------------------------------

-- Names a rope that no reader of this GGUF would compute; nil: none.
local function rope_fault(arch, cfg)
  local rope = cfg.rope
  local scaling = rope.scaling
  if not arch.partial and rope.dims ~= cfg.head_dim then return ("a rope of %d of %d dimensions"):format(rope.dims, cfg.head_dim) end
  if scaling == nil or scaling == "linear" then return nil end
  if scaling == "llama3" and arch.divisors then return nil end
  if scaling == "longrope" and arch.longrope then return nil end
  if scaling == "dynamic" and rope.alpha and arch.alpha then return nil end
  if scaling == "yarn" and not rope.attn_factor and rope.truncate ~= false then return nil end
  return ("rope type %s%s"):format(scaling, rope.alpha and " with alpha" or "")
end

local function rope_values(set, cfg, context)
  local rope = cfg.rope
  if rope.scaling == "dynamic" then -- Hunyuan: the base that alpha makes, and its 256k context
    set("rope.freq_base", "fp32", rope.theta * rope.alpha ^ (rope.dims / (rope.dims - 2)))
    set("rope.scaling.type", "string", "none")
    set("rope.scaling.factor", "fp32", 1)
    set("rope.scaling.original_context_length", "uint32", context)
    return
  end
  set("rope.freq_base", "fp32", rope.theta)
  if rope.scaling ~= "linear" and rope.scaling ~= "yarn" then return end
  set("rope.scaling.type", "string", rope.scaling)
  set("rope.scaling.factor", "fp32", rope.factor)
  if rope.scaling ~= "yarn" then return end
  set("rope.scaling.original_context_length", "uint32", rope.original_context)
  if rope.beta_fast then set("rope.scaling.yarn_beta_fast", "fp32", rope.beta_fast) end
  if rope.beta_slow then set("rope.scaling.yarn_beta_slow", "fp32", rope.beta_slow) end
end

-- ---- Tensors -----------------------------------------------------------------------------------------------------------

local function squeeze(shape)
  local out = {}
  for _, n in ipairs(shape) do
    if n ~= 1 then out[#out + 1] = n end
  end
  return #out > 0 and out or { 1 }
end

-- Collects the tensors of a model; `used` has the names that were taken.
local Gather = {}
Gather.__index = Gather

-- The description of a weight of the folder; nil if there is none.
function Gather:find(name)
  local t = self.source:tensor(name)
  if t then weight_type.check(self.source, name, t.dtype) end
  return t
end

-- Adds one tensor of the file to the plan.
function Gather:take(name, from, opts)
  local t = self:find(from)
  if not t or self.used[from] then return false end -- used: roles of different architectures may share a name
  self.used[from] = true
  local part = { source = self.source, name = from, add = opts.add, head = opts.heads and t.shape[1] // opts.heads }
  self.list[#self.list + 1] = { name = name, shape = squeeze(t.shape), dtype = t.dtype, bytes = t.bytes, parts = { part } }
  return true
end

-- A vector of the file, each element plus `add`, times `by`.
function Gather:vector(name, from, add, by)
  local t = self:find(from)
  if not t then return end
  self.used[from] = true
  local list, raw = {}, try(self.source:read(from))
  for i = 1, #raw // 4 do list[i] = (string.unpack("<f", raw, 4 * i - 3) + add) * by end
  local part = { data = floats(list) }
  self.list[#self.list + 1] = { name = name, shape = squeeze(t.shape), dtype = "fp32", bytes = t.bytes, parts = { part } }
end

-- Stacks experts that the folder stores one by one, as [experts, out, in].
function Gather:stack(name, pattern, count)
  local parts, shape, bytes, dtype = {}, nil, 0, nil
  for e = 0, count - 1 do
    local from = pattern:format(e) .. ".weight"
    local t = self:find(from)
    if not t then return end
    self.used[from] = true
    parts[#parts + 1] = { source = self.source, name = from }
    shape, bytes, dtype = { count, t.shape[1], t.shape[2] }, bytes + t.bytes, t.dtype
  end
  if shape then self.list[#self.list + 1] = { name = name, shape = shape, dtype = dtype, bytes = bytes, parts = parts } end
end

-- The weight of a role, and its bias; row: of names.ROLES.
function Gather:role(row, layer)
  local role = row[1]
  local called, from = pcall(self.hf, role, layer)
  if not called then
    if failure.code(from) == "memory" then error(from, 0) end
    return -- this architecture lacks the role
  end
  local to, arch, cfg = self.gguf(role, layer), self.arch, self.cfg
  if from:find("%d", 1, true) then
    self:stack(to .. ".weight", from, expert_count(cfg) or 0)
  elseif row.suffix then
    self:take(to .. row.suffix, from, {})
  else
    local by = arch.norm_scale and arch.norm_scale(role, cfg) or 1
    if by ~= 1 then return self:vector(to .. ".weight", from .. ".weight", arch.norm_add, by) end
    local opts = { add = role:find "norm" and arch.norm_add or nil }
    if arch.pair and arch.pair[role] then opts.heads = role == "attn_k" and cfg.n_head_kv or cfg.n_head end
    self:take(to .. ".weight", from .. ".weight", opts)
    if arch.biases and arch.biases[role] then self:take(to .. ".bias", from .. ".bias", opts) end
  end
end

-- The names of the folder's tensors by role. The files of models without a head, such as Qwen3-Embedding, lack the leading "model.".
local function folder_names(r, cfg, source)
  local name = names.of("hf", r.names and r.names.hf, cfg)
  local first = name "token_embd" .. ".weight"
  if source:tensor(first) or not source:tensor(names.bare(first)) then return name end
  return function(role, layer) return names.bare(name(role, layer)) end
end

-- Is the head the table of the embedding? As recipes have it (ane.recipe.head): a head with other numbers is not tied, whatever
-- the configuration says. The head of a rotated model has other numbers.
local function is_tied(self)
  local head = self.cfg.tied and self.hf "output" .. ".weight"
  return head and (not self.source:tensor(head) or same(self.source, head, self.hf "token_embd" .. ".weight"))
end

local function gather(arch, r, cfg, source)
  local self = setmetatable({
    arch = arch, cfg = cfg, source = source, list = {}, used = {}, ignore = arch.ignores and r.ignore or {},
  }, Gather)
  self.hf = folder_names(r, cfg, source)
  self.gguf = names.of("gguf", r.names and r.names.gguf, cfg)
  local function add(name, values)
    local data = floats(values)
    self.list[#self.list + 1] = { name = name, shape = { #values }, dtype = "fp32", bytes = 0, parts = { { data = data } } }
  end
  if arch.tensors then arch.tensors(add, cfg) end
  if cfg.rope and cfg.rope.scaling == "llama3" then add("rope_freqs.weight", llama3_divisors(cfg.rope)) end
  local roles = arch.roles or names.ROLES
  for _, row in ipairs(roles) do
    if row.outside and not (row[1] == "output" and is_tied(self)) then self:role(row) end
  end
  for layer = 0, cfg.n_layer - 1 do
    for _, row in ipairs(roles) do
      if not row.outside then self:role(row, layer) end
    end
  end
  return self
end

-- Buffers of old files, and the head of a model whose head is its embedding.
local function is_idle(self, name)
  for _, pattern in ipairs(self.ignore) do
    if name:find(pattern) then return true end
  end
  return name:find "%.rotary_emb%.inv_freq$" or (self.cfg.tied and name == "lm_head.weight")
end

local function unnamed(self)
  for _, t in ipairs(self.source:tensors()) do
    if not self.used[t.name] and not is_idle(self, t.name) then return ("tensor %s"):format(t.name) end
  end
end

-- ---- Values ------------------------------------------------------------------------------------------------------------

local function folder_name(folder)
  local absolute = paths.name_of(folder)
  return absolute and absolute:find "%w" and absolute or nil
end

local function inner_size(self)
  if self.arch.d_ff then return self.cfg.d_ff end
  local gate = self.source:tensor(self.hf("ffn_gate", 0) .. ".weight")
  return gate and gate.shape[1] or self.cfg.d_ff
end

local function own_values(self, set)
  local cfg, arch = self.cfg, self.arch
  set("block_count", "uint32", cfg.n_layer)
  local context = cfg.rope and cfg.rope.scaling == "dynamic" and arch.context or cfg.context_length
  if context then set("context_length", "uint32", context) end
  set("embedding_length", "uint32", cfg.d_model)
  set("feed_forward_length", "uint32", inner_size(self))
  set("attention.head_count", "uint32", cfg.n_head)
  if arch.kv then set("attention.head_count_kv", "int32[]", arch.kv(cfg)) else set("attention.head_count_kv", "uint32", cfg.n_head_kv) end
  set(arch.norm_key or "attention.layer_norm_rms_epsilon", "fp32", cfg.norm_eps)
  if cfg.meta "head_dim" or cfg.head_dim * cfg.n_head ~= cfg.d_model then
    set("attention.key_length", "uint32", cfg.head_dim)
    set("attention.value_length", "uint32", cfg.head_dim)
  end
  if arch.rope ~= false then
    if arch.dims or cfg.rope.dims ~= cfg.head_dim then set("rope.dimension_count", "uint32", cfg.rope.dims) end
    rope_values(set, cfg, context)
  end
  if arch.values then arch.values(set, cfg, self) end
end

-- llama.cpp looks up <unk>, <s> and <|endoftext|> in a model whose name says Phi-3, and gives up where the vocabulary, such as
-- Phi-4's, lacks one (llama-vocab.cpp, 2025): then the name is left out.
local function is_trap(name, tokens)
  if not name:lower():find "phi%-?3" then return false end
  local left = { ["<unk>"] = true, ["<s>"] = true, ["<|endoftext|>"] = true }
  for _, v in ipairs(tokens or {}) do
    for _, token in ipairs(v[1] == "tokenizer.ggml.tokens" and v[3] or {}) do left[token] = nil end
  end
  return next(left) ~= nil
end

local function values_of(self, tokens)
  local arch = self.arch
  return function(set)
    set("general.architecture", "string", arch.name)
    local name = folder_name(self.cfg.folder)
    if name and not is_trap(name, tokens) then set("general.name", "string", name) end
    local function put(key, kind, value)
      local full = arch.name .. "." .. key
      if value == nil then failure.raise("format", "%s/config.json: says nothing for metadata key %s", self.cfg.folder, full) end
      set(full, kind, value)
    end
    own_values(self, put)
    if arch.shared then arch.shared(set, self.cfg, self) end
    for _, v in ipairs(tokens or { { "tokenizer.ggml.model", "string", "none" } }) do set(v[1], v[2], v[3]) end
    if not tokens and not (arch.values == LLAMA.values or arch.kv) then put("vocab_size", "uint32", self.cfg.vocab_size) end
  end
end

-- ---- The plan ----------------------------------------------------------------------------------------------------------

-- The reason why llama.cpp could not compute this model from a GGUF; nil: it can.
local function fault_of(arch, cfg)
  if not cfg.rope and arch.rope ~= false then return "ropes of kinds of layers without full_attention" end
  if cfg.holds "score.weight" then return "a head of scores" end
  if (cfg.act or "silu") ~= (arch.act or "silu") then return ("activation %s"):format(cfg.act) end
  return (arch.rope ~= false and rope_fault(arch, cfg)) or (arch.fault and arch.fault(cfg))
end

-- Stores config.json itself, for architectures that GGUF has no keys for. Only this program reads such files (ane.model.config).
local function whole_values(cfg, tokens)
  return function(set)
    set("general.architecture", "string", "ane-" .. cfg.architecture)
    local name = folder_name(cfg.folder)
    if name then set("general.name", "string", name) end
    set("ane.config", "string", try(core.read_file(cfg.folder .. "/config.json")))
    local generation = core.read_file(cfg.folder .. "/generation_config.json")
    if generation then set("ane.generation_config", "string", generation) end
    for _, v in ipairs(tokens or { { "tokenizer.ggml.model", "string", "none" } }) do set(v[1], v[2], v[3]) end
  end
end

local function whole_tensors(source, cfg, r)
  local list = {}
  for i, t in ipairs(source:tensors()) do
    list[i] = {
      name = names.bare(t.name), shape = #t.shape > 0 and t.shape or { 1 }, dtype = t.dtype, bytes = t.bytes,
      parts = { { source = source, name = t.name } }, plain = types.plain("ane-" .. cfg.architecture, t.shape, r),
    }
  end
  return list
end

-- Rows of the embedding: the number of ids.
local function n_ids(source, cfg, name)
  local t = source:tensor(name .. ".weight")
  return t and t.shape[1] or cfg.vocab_size
end

-- The pooling type of a folder of sentence-transformers, or nil; and what its GGUF file lacks, or nil.
local function pooling_of(cfg)
  local type, lacks = modules.for_gguf(cfg)
  if not type and _G.type(lacks) == "string" then failure.raise("format", "%s: %s", cfg.folder, lacks) end
  if not type and lacks[1] then
    return nil, ("GGUF has no key for %s of modules.json: the file gives other embeddings, or none"):format(lacks[1])
  end
  return type, lacks[1] and ("the file does not keep these settings of the folder's embeddings: %s"):format(table.concat(lacks, ", "))
end

local function with_pooling(values, architecture, type)
  if not type then return values end
  return function(set, ...)
    values(set, ...)
    set(architecture .. ".pooling_type", "uint32", type)
  end
end

-- What the files of a folder say: recipe, configuration, row of KNOWN (or nil), tensors by role (or nil), and what a file of that
-- architecture cannot say (or nil).
-- @param r the recipe; nil: that of the architecture
local function read(source, r)
  local architecture = try(config.architecture(source))
  r = r or try(recipe.find(architecture))
  local cfg = try(config.read(source, r.config))
  recipe.complete(r, cfg)
  local arch = KNOWN[cfg.architecture]
  local self = arch and gather(arch, r, cfg, source)
  return r, cfg, arch, self, not arch and "no architecture of GGUF is known for it here" or fault_of(arch, cfg) or unnamed(self)
end

--- The tensors of the plan of an open folder.
-- @param own its recipe; nil: that of its architecture
function M.tensors(source, own)
  local r, cfg, _, self, unsaid = read(source, own)
  return unsaid and whole_tensors(source, cfg, r) or self.list
end

--- The plan of an open folder.
-- @param source the folder's safetensors
-- @param out path of the new file; a scratch file is made beside it
-- @param own its recipe; nil: that of its architecture
function M.plan(source, out, own)
  local r, cfg, arch, self, unsaid = read(source, own)
  local name = folder_names(r, cfg, source)
  local tokens, why = vocabulary.read(cfg.folder, cfg.architecture, n_ids(source, cfg, name "token_embd"), out .. ".vocabulary.tmp")
  local notes = {}
  if unsaid then
    notes[1] = ("general.architecture is ane-%s, which only this program reads: %s"):format(cfg.architecture,
      arch and ("files of architecture %s cannot say %s"):format(arch.name, unsaid) or unsaid)
  end
  if not tokens then notes[#notes + 1] = "no tokenizer is in the file: " .. why end
  local architecture = unsaid and "ane-" .. cfg.architecture or arch.name
  local pooling, lacks = pooling_of(cfg)
  if lacks then notes[#notes + 1] = lacks end
  local values = unsaid and whole_values(cfg, tokens) or values_of(self, tokens)
  local written = unsaid and function(role) return names.bare(name(role)) end or self.gguf
  return {
    architecture = architecture, tensors = unsaid and whole_tensors(source, cfg, r) or self.list,
    table = written "token_embd" .. ".weight", head = written "output" .. ".weight",
    values = with_pooling(values, architecture, pooling),
    gguf_names = unsaid and function() return gguf.gguf_names(r, cfg, source) end or nil, note = notes[1] and table.concat(notes, "; "),
  }
end

return M
