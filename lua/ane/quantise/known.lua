--- The architectures of llama.cpp that folders in Hugging Face layout are written as, by their model_type.
-- Needs ane.recipe.multipliers, names and rope, ane.model.config and ane.util.failure.
-- Usage: `local arch = known.of(cfg, recipe)`; nil: llama.cpp knows no such architecture
--
-- Facts are those of llama.cpp's converter (conversion/*.py) and of its graphs (src/models/*.cpp, 2026).

local failure = require "ane.util.failure"
local multipliers = require "ane.recipe.multipliers"
local names = require "ane.recipe.names"
local ropes = require "ane.recipe.rope"

local M = {}

-- A row has these fields, and functions of them take the configuration cfg and the recipe r:
--   name              of the architecture in GGUF
--   roles             rows instead of names.ROLES
--   biases            roles that may have one
--   act               the activation function that readers compute; default "silu"
--   values(set, cfg, gather)   sets the keys that only this architecture has
--   shared(set, cfg, gather)   sets keys without the architecture's name
--   tensors(add, cfg) adds tensors that are no weights
--   own               role -> function(gather, to, from, layer), which adds the tensors of a role that are not a weight and its bias
--   fault(cfg, r)     what readers of that architecture would compute otherwise, or nil
--   pair              roles whose rows are permuted
--   norm_add, norm_scale(role, cfg)   a number that is added to norms, and their factor
--   by(role, cfg, r)  the factor of the numbers of a role
--   norm_key          key of the norms' epsilon
--   kv(cfg, r)        heads of keys and values by layer; d_ff(cfg, r): width of the feed-forward; true: the configuration's
--   heads             false: there is no attention
--   head_dims         true: files always have the width of a head; false: `values` sets its keys
--   rope              false: positions do not use rope; dims: true: files always have the rotary dimensions
--   partial           true: readers rotate a part of a head (others of llama.cpp end the process)
--   divisors          true: readers take rope_freqs.weight (others refuse the file)
--   longrope, alpha   true: readers know these ropes; yarn_log: true: they know the mscale of YaRN
--   context           default of context_length
--   even_heads        true: a head has d_model / n_head dimensions
--   tied              true: the head is the embedding; untied: true: readers need a head of its own, even if it is the
--                     embedding; "by": where the factors of the two differ
--   ignores           true: what the recipe ignores is left out
local ALL_BIASES = {}
for _, row in ipairs(names.ROLES) do ALL_BIASES[row[1]] = row.bias ~= nil end
local QKV_BIASES = { attn_q = true, attn_k = true, attn_v = true }

local LLAMA = { name = "llama", biases = ALL_BIASES, pair = { attn_q = true, attn_k = true }, dims = true, divisors = true }

function LLAMA.values(set, cfg) set("vocab_size", "uint32", cfg.vocab_size) end

local function window_fault(cfg)
  local window = cfg.sliding_window
  if window and window < (cfg.context_length or math.huge) then return "layers with a sliding window" end
end

-- llama.cpp reads Mistral as Llama.
local MISTRAL = { name = "llama", pair = LLAMA.pair, dims = true, divisors = true, values = LLAMA.values, fault = window_fault }

local MIXTRAL = { name = "llama", pair = LLAMA.pair, dims = true, divisors = true, fault = window_fault }

function MIXTRAL.experts(cfg, r) return r.settings.mixture(cfg).count end

function MIXTRAL.values(set, cfg, gather)
  local e = gather.recipe.settings.mixture(cfg)
  LLAMA.values(set, cfg)
  set("expert_count", "uint32", e.count)
  set("expert_used_count", "uint32", e.k)
end

local MISTRAL3 = { name = "mistral3", pair = LLAMA.pair, dims = true, yarn_log = true }

function MISTRAL3.values(set, cfg)
  LLAMA.values(set, cfg)
  local rope = cfg.rope
  if rope.attn_factor then set("rope.scaling.yarn_log_multiplier", "fp32", rope.mscale_all_dim) end
  if not rope.growth then return end
  set("attention.temperature_scale", "fp32", rope.growth.beta)
  if rope.scaling ~= "yarn" then set("rope.scaling.original_context_length", "uint32", rope.growth.original) end
end

-- One key has the original context of YaRN and that of the growth.
function MISTRAL3.fault(cfg)
  local rope = cfg.rope
  if rope.growth and rope.scaling == "yarn" and rope.growth.original ~= rope.original_context then return "two original contexts" end
  if rope.growth and rope.growth.beta < 0 then return "a growth of q below 0" end
  return window_fault(cfg)
end

local GRANITE = { name = "granite", biases = ALL_BIASES, pair = LLAMA.pair, dims = true, divisors = true }

local function granite_scales(set, cfg)
  local f = multipliers.of(cfg)
  set("embedding_scale", "fp32", f.embedding)
  set("residual_scale", "fp32", f.residual)
  set("attention.scale", "fp32", f.scores)
  set("logit_scale", "fp32", 1 / f.logits)
end

function GRANITE.values(set, cfg)
  LLAMA.values(set, cfg)
  granite_scales(set, cfg)
end

local STARCODER2 = { name = "starcoder2", act = "gelu_tanh", norm_key = "attention.layer_norm_epsilon", even_heads = true, biases = {} }
for _, role in ipairs { "output_norm", "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up", "ffn_down" } do
  STARCODER2.biases[role] = true
end

function STARCODER2.fault(cfg)
  if not cfg.meta("use_bias", "flag") then return "projections without biases" end
  return window_fault(cfg)
end

local GLM4 = { name = "glm4", biases = QKV_BIASES, partial = true, dims = true }

local COMMAND_R = { name = "command-r", biases = QKV_BIASES, norm_key = STARCODER2.norm_key, even_heads = true, tied = true }

function COMMAND_R.values(set, cfg) set("logit_scale", "fp32", cfg.meta("logit_scale", "positive")) end

-- Readers expect the norms of q and k in models of at least 64 layers, and no others.
function COMMAND_R.fault(cfg)
  local normed = cfg.meta("use_qk_norm", "flag") or false
  if normed ~= (cfg.n_layer >= 64) then return ("%s norms of q and k in %d layers"):format(normed and "the" or "no", cfg.n_layer) end
end

local COHERE2 = { name = "cohere2", biases = QKV_BIASES, norm_key = STARCODER2.norm_key, even_heads = true, tied = true, dims = true }

-- Readers end the process if the file has a window and no layer slides.
local function has_sliding(cfg, r)
  for i = 0, cfg.n_layer - 1 do
    if r.settings.slides(cfg, i) then return true end
  end
  return false
end

function COHERE2.fault(cfg, r)
  if not cfg.sliding_window or not has_sliding(cfg, r) then return "no layers with a sliding window" end
end

-- Readers assume that every n-th layer sees all keys. A list has one boolean for each layer.
local function sliding_layers(set, cfg, gather, n)
  local slides, usual = {}, true
  for i = 0, cfg.n_layer - 1 do
    slides[i + 1] = gather.recipe.settings.slides(cfg, i)
    usual = usual and slides[i + 1] == ((i + 1) % n ~= 0)
  end
  set("attention.sliding_window", "uint32", cfg.sliding_window)
  if not usual then set("attention.sliding_window_pattern", "bool[]", slides) end
end

function COHERE2.values(set, cfg, gather)
  COMMAND_R.values(set, cfg)
  LLAMA.values(set, cfg)
  sliding_layers(set, cfg, gather, 4)
end

-- Files with a window are OLMo 3. Its sliding layers have the plain rope.
local OLMO3 = { name = "olmo2", even_heads = true, untied = true }

function OLMO3.values(set, cfg, gather)
  if has_sliding(cfg, gather.recipe) then sliding_layers(set, cfg, gather, 4) end
end

function OLMO3.fault(cfg)
  local near = cfg.ropes and cfg.ropes.sliding_attention
  if near and (near.scaling or near.theta ~= cfg.rope.theta or near.dims ~= cfg.rope.dims) then return "another rope of sliding layers" end
end

-- ---- Mamba-2 ---------------------------------------------------------------------------------------------------------

local SSM = { own = {} }

function SSM.own.ssm_conv1d(gather, to, from)
  gather:take(to .. ".weight", from .. ".weight", {})
  gather:take(to .. ".bias", from .. ".bias", {})
end

function SSM.own.ssm_dt(gather, to, from) gather:take(to .. ".bias", from, {}) end

function SSM.own.ssm_a(gather, to, from)
  gather:vector(to, from, function(v) return -math.exp(v) end, function(n) return { n, 1 } end)
end

function SSM.own.ssm_d(gather, to, from) gather:take(to, from, { shape = function(n) return { n, 1 } end }) end

function SSM.own.ssm_norm(gather, to, from)
  local groups = gather.recipe.settings.state_space(gather.cfg).groups
  gather:take(to .. ".weight", from .. ".weight", { shape = function(n) return { groups, n // groups } end })
end

function SSM.values(set, s)
  set("ssm.conv_kernel", "uint32", s.taps)
  set("ssm.inner_size", "uint32", s.heads * s.width)
  set("ssm.state_size", "uint32", s.n)
  set("ssm.time_step_rank", "uint32", s.heads)
  set("ssm.group_count", "uint32", s.groups)
end

-- Readers add the biases of the convolution even if the file has none.
function SSM.fault(s)
  if s.low and s.low > 0 or s.high and s.high < math.huge then return "limits of the time step" end
  if s.conv_bias == false then return "a convolution without biases" end
  if (s.act or "silu") ~= "silu" then return ("activation %s of the convolution"):format(s.act) end
  if s.norm_first and not s.plain then return "a norm before the gate" end
end

-- Of a model whose positions are not limited, the converter writes this context.
local MAMBA2 = { name = "mamba2", own = SSM.own, rope = false, heads = false, context = 1 << 20 }

function MAMBA2.d_ff() return 0 end

function MAMBA2.values(set, cfg, gather) SSM.values(set, gather.recipe.settings.state_space(cfg)) end

function MAMBA2.fault(cfg, r) return SSM.fault(r.settings.state_space(cfg)) end

local FALCON_H1 = { name = "falcon-h1", own = setmetatable({}, { __index = SSM.own }), untied = "by", head_dims = true }

function FALCON_H1.values(set, cfg, gather)
  LLAMA.values(set, cfg)
  SSM.values(set, gather.recipe.settings.state_space(cfg))
end

-- The multipliers of config.json are folded into the weights. A factor of 0 is no factor for writer:send.
function FALCON_H1.fault(cfg, r)
  local s = r.settings.state_space(cfg)
  for _, list in ipairs { r.settings.factors(cfg), s.factors or {} } do
    for _, factor in pairs(list) do
      if factor == 0 then return "multipliers of 0" end
    end
  end
  return SSM.fault(s)
end

function FALCON_H1.by(role, cfg, r)
  local f = r.settings.factors(cfg)
  local by = {
    token_embd = f.embedding, output = f.logits, attn_q = f.attention_in, attn_k = f.attention_in * f.key, attn_v = f.attention_in,
    attn_output = f.attention_out, ffn_gate = f.gate, ffn_down = f.down, ssm_out = f.ssm_out,
  }
  return by[role]
end

-- z, x, B, C and dt, each with its factor.
function FALCON_H1.own.ssm_in(gather, to, from)
  local s, f = gather.recipe.settings.state_space(gather.cfg), gather.recipe.settings.factors(gather.cfg)
  local inner, states, at, pieces = s.heads * s.width, s.groups * s.n, 0, {}
  for i, n in ipairs { inner, inner, states, states, s.heads } do
    pieces[i] = { first = at + 1, last = at + n, by = f.ssm_in * (s.factors and s.factors[i] or 1) }
    at = at + n
  end
  gather:take(to .. ".weight", from .. ".weight", { pieces = pieces })
end

function FALCON_H1.own.ffn_norm(gather, to, from) gather:take(to, from .. ".weight", {}) end

local HYBRID = {
  name = "granitehybrid", biases = ALL_BIASES, divisors = false, own = setmetatable({}, { __index = SSM.own }),
}

-- Layers of attention alone make a granite.
local GRANITE_DENSE = { name = "granite", biases = ALL_BIASES, pair = GRANITE.pair, dims = true, values = GRANITE.values, own = {} }

-- The halves of a weight with the rows of gate and up, of each expert.
local function halves(gather, gate, up, from, count)
  local t = gather:find(from)
  if not t then return end
  local rank = count and 3 or 2
  if #t.shape ~= rank then failure.raise("shape", "tensor %s has %d dimensions, but must have %d", from, #t.shape, rank) end
  local n = t.shape[rank - 1] // 2
  local function half(to, at)
    local pieces = {}
    for e = 0, (count or 1) - 1 do pieces[e + 1] = { first = 2 * n * e + at + 1, last = 2 * n * e + at + n } end
    local shape = count and { count, n, t.shape[3] } or { n, t.shape[2] }
    gather:take(to, from, { pieces = pieces, shape = function() return shape end, again = at > 0 })
  end
  half(gate, 0)
  half(up, n)
end

function HYBRID.own.gate_up(gather, to, from)
  local stem = to:gsub("gate_up$", "")
  local count = gather.recipe.settings.mixture(gather.cfg).count
  halves(gather, stem .. "ffn_gate_exps.weight", stem .. "ffn_up_exps.weight", from .. ".weight", count)
end

function HYBRID.own.ffn_down_exps(gather, to, from) gather:take(to .. ".weight", from .. ".weight", {}) end

function HYBRID.own.ffn_up(gather, to, from)
  local ending = gather.recipe.settings.mixture(gather.cfg).count > 0 and "_shexp.weight" or ".weight"
  halves(gather, to:gsub("up$", "gate") .. ending, to .. ending, from .. ".weight")
end

function HYBRID.own.ffn_down(gather, to, from)
  gather:take(to .. (gather.recipe.settings.mixture(gather.cfg).count > 0 and "_shexp.weight" or ".weight"), from .. ".weight", {})
end

for _, role in ipairs { "ffn_up", "ffn_down" } do GRANITE_DENSE.own[role] = HYBRID.own[role] end

local function shared_width(cfg) return cfg.meta("shared_intermediate_size", "count") or 1024 end

local function has_rope(cfg) return cfg.meta "position_embedding_type" == "rope" end

function GRANITE_DENSE.fault(cfg, r)
  if r.settings.mixture(cfg).count > 0 then return "experts in layers of attention alone" end
  if not has_rope(cfg) then return "layers without rope" end
end

GRANITE_DENSE.d_ff = shared_width

function HYBRID.kv(cfg, r)
  local list = {}
  for i = 1, cfg.n_layer do list[i] = r.settings.is_mamba(cfg, i - 1) and 0 or cfg.n_head_kv end
  return list
end

function HYBRID.d_ff(cfg, r) return r.settings.mixture(cfg).count > 0 and cfg.d_ff or shared_width(cfg) end

-- Without rope a permutation of q and k has no effect.
HYBRID.pair = GRANITE.pair

function HYBRID.values(set, cfg, gather)
  GRANITE.values(set, cfg)
  SSM.values(set, gather.recipe.settings.state_space(cfg))
  set("rope.dimension_count", "uint32", cfg.rope.dims)
  set("rope.scaling.finetuned", "bool", has_rope(cfg))
  local e = gather.recipe.settings.mixture(cfg)
  if e.count == 0 then return end
  set("expert_count", "uint32", e.count)
  set("expert_used_count", "uint32", e.k)
  set("expert_shared_feed_forward_length", "uint32", shared_width(cfg))
end

-- Readers end the process where no layer has attention.
function HYBRID.fault(cfg, r)
  local s, has_attention = r.settings.state_space(cfg), false
  for _, n in ipairs(HYBRID.kv(cfg, r)) do has_attention = has_attention or n > 0 end
  if not has_attention then return "no layers of attention" end
  if s.heads * s.width ~= 2 * cfg.d_model then return ("a scan of %d channels"):format(s.heads * s.width) end
  return SSM.fault(s)
end

local function granite_of(cfg, r)
  for i = 0, cfg.n_layer - 1 do
    if r.settings.is_mamba(cfg, i) then return HYBRID end
  end
  return GRANITE_DENSE
end

local QWEN2 = { name = "qwen2", biases = QKV_BIASES }

local WINDOWS = "layers with a sliding window"

function QWEN2.fault(cfg) return cfg.meta("use_sliding_window", "flag") and WINDOWS or nil end

local QWEN3 = { name = "qwen3", fault = QWEN2.fault }

local OLMO2 = { name = "olmo2", even_heads = true, untied = true }

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

local QWEN2MOE = { name = "qwen2moe", biases = QKV_BIASES, untied = true }

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

local OLMOE = { name = "olmoe", even_heads = true, untied = true, experts = MIXTRAL.experts, values = MIXTRAL.values }

-- llama.cpp expects a norm of k as long as that of q.
function OLMOE.fault(cfg)
  if cfg.n_head_kv ~= cfg.n_head then return "fewer heads of keys than of queries" end
  return cfg.meta("norm_topk_prob", "flag") and "weights of experts that are normalised" or nil
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

-- Readers have the score scale of the published models, and always cap.
local GEMMA2 = { name = "gemma2", act = "gelu_tanh", norm_add = 1, tied = true }

function GEMMA2.values(set, cfg, gather)
  for _, key in ipairs { "attn_logit_softcapping", "final_logit_softcapping" } do set(key, "fp32", cfg.meta(key, "positive")) end
  sliding_layers(set, cfg, gather, 2)
end

function GEMMA2.fault(cfg, r)
  local scalar = cfg.meta("query_pre_attn_scalar", "positive")
  if scalar ~= r.settings.usual_scalar(cfg) then return ("a query_pre_attn_scalar of %s"):format(scalar) end
  if not cfg.meta("attn_logit_softcapping", "positive") then return "scores without a cap" end
  if not cfg.meta("final_logit_softcapping", "positive") then return "logits without a cap" end
  if not has_sliding(cfg, r) then return "no layers with a sliding window" end
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
  local period = full_period(cfg)
  if not period then return "full attention in layers without a period" end
  if period == 1 then return "no layers with a sliding window" end -- readers end the process
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

-- Readers end the process where all layers are of one kind.
function LFM2.fault(cfg)
  if cfg.meta("conv_bias", "flag") then return "biases of the convolutions" end
  local convolves, attention = false, false
  for _, n in ipairs(lfm2_kv(cfg)) do convolves, attention = convolves or n == 0, attention or n > 0 end
  if not (convolves and attention) then return "layers of one kind alone" end
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

-- Latent attention. Readers have one epsilon for all norms, and one number for both mscale of YaRN. They take no latents of q in models
-- with these numbers of layers.
local DEEPSEEK2 = { name = "deepseek2", own = {}, dims = true, yarn_log = true, head_dims = false, ignores = true }
local LITE = { [26] = true, [27] = true }

function DEEPSEEK2.kv() return 1 end

function DEEPSEEK2.experts(cfg, r) return r.settings.mixture(cfg).count end

-- Rows of keys and values alternate by head. The matrices of the keys are transposed.
function DEEPSEEK2.own.attn_kv_b(gather, to, from)
  local cfg, s = gather.cfg, gather.recipe.settings.sizes(gather.cfg)
  local keys, values = {}, {}
  for h = 0, cfg.n_head - 1 do
    local at = h * (s.nope + s.value)
    keys[h + 1] = { first = at + 1, last = at + s.nope, transposed = true }
    values[h + 1] = { first = at + s.nope + 1, last = at + s.nope + s.value }
  end
  local function take(name, pieces, shape, again)
    local opts = { pieces = pieces, shape = function() return shape end, again = again }
    gather:take((to:gsub("kv_b$", name)) .. ".weight", from .. ".weight", opts)
  end
  take("k_b", keys, { cfg.n_head, s.rank, s.nope }, false)
  take("v_b", values, { cfg.n_head, s.value, s.rank }, true)
end

-- The leading layers without experts.
local function dense_layers(cfg, e)
  local n = 0
  while n < cfg.n_layer and not e.sparse(n) do n = n + 1 end
  return n
end

-- Readers end the process if the file has the keys of groups and all groups are kept.
local function is_grouped(e) return e.groups > 1 and e.kept < e.groups end

-- The keys of experts with the settings e of moe.grouped.
local function grouped_values(set, cfg, e)
  set("leading_dense_block_count", "uint32", dense_layers(cfg, e))
  set("expert_count", "uint32", e.count)
  set("expert_used_count", "uint32", e.k)
  set("expert_feed_forward_length", "uint32", cfg.meta("moe_intermediate_size", "count"))
  set("expert_shared_count", "uint32", cfg.meta("n_shared_experts", "count") or 1)
  set("expert_gating_func", "uint32", e.score == "sigmoid" and 2 or 1)
  if e.scale then set("expert_weights_scale", "fp32", e.scale) end
  set("expert_weights_norm", "bool", e.norm or false)
  if is_grouped(e) then
    set("expert_group_count", "uint32", e.groups)
    set("expert_group_used_count", "uint32", e.kept)
  end
end

-- Readers expect experts in all layers from `first` on.
local function gap_fault(cfg, e, first)
  for i = first, cfg.n_layer - 1 do
    if not e.sparse(i) then return "layers without experts behind others" end
  end
end

-- What readers compute otherwise of experts with these settings.
local function grouped_fault(cfg, e)
  local dense = dense_layers(cfg, e)
  local gap = gap_fault(cfg, e, dense)
  if gap then return gap end
  if e.count == 0 or dense == cfg.n_layer then return "layers without experts alone" end
  if e.shared == 0 then return "no shared experts" end
  if is_grouped(e) and (e.best ~= 2 or e.count // e.groups < 2) then return "groups of experts that are ranked by one of them" end
end

function DEEPSEEK2.values(set, cfg, gather)
  local s, e = gather.recipe.settings.sizes(cfg), gather.recipe.settings.mixture(cfg)
  LLAMA.values(set, cfg)
  set("attention.q_lora_rank", "uint32", s.q_rank or 0)
  set("attention.kv_lora_rank", "uint32", s.rank)
  set("attention.key_length", "uint32", s.rank + s.rope)
  set("attention.value_length", "uint32", s.rank)
  set("attention.key_length_mla", "uint32", s.nope + s.rope)
  set("attention.value_length_mla", "uint32", s.value)
  grouped_values(set, cfg, e)
  if cfg.rope.scaling then set("rope.scaling.yarn_log_multiplier", "fp32", 0.1 * cfg.rope.mscale_all_dim) end
end

function DEEPSEEK2.fault(cfg, r)
  local rope, s, e = cfg.rope, r.settings.sizes(cfg), r.settings.mixture(cfg)
  if cfg.norm_eps ~= s.eps then return ("norms with the epsilons %g and %g"):format(cfg.norm_eps, s.eps) end
  if s.q_rank and LITE[cfg.n_layer] then return ("latents of q in %d layers"):format(cfg.n_layer) end
  if s.layout ~= "interleaved" then return "a rope of halves" end
  if rope.scaling and not (rope.scaling == "yarn" and rope.attn_factor == 1 and (rope.mscale_all_dim or 0) > 0) then
    return "a scaled rope without one mscale"
  end
  return grouped_fault(cfg, e)
end

-- The last layer of published files drafts tokens; files without it are read.
local GLM4MOE = { name = "glm4moe", biases = QKV_BIASES, partial = true, dims = true, ignores = true, experts = DEEPSEEK2.experts }

function GLM4MOE.values(set, cfg, gather) grouped_values(set, cfg, gather.recipe.settings.mixture(cfg)) end

function GLM4MOE.fault(cfg, r) return grouped_fault(cfg, r.settings.mixture(cfg)) end

local ERNIE = { name = "ernie4_5", ignores = true }

-- Readers leave out some of the biases.
function ERNIE.fault(cfg) return cfg.meta("use_bias", "flag") and "biases of projections" or nil end

local ERNIE_MOE = { name = "ernie4_5-moe", ignores = true, experts = DEEPSEEK2.experts }

function ERNIE_MOE.values(set, cfg, gather)
  local e, inner = gather.recipe.settings.mixture(cfg), cfg.meta("moe_intermediate_size", "count")
  set("expert_count", "uint32", e.count)
  set("expert_used_count", "uint32", e.k)
  set("leading_dense_block_count", "uint32", e.first)
  set("interleave_moe_layer_step", "uint32", e.step)
  set("expert_feed_forward_length", "uint32", inner)
  set("expert_shared_count", "uint32", e.shared)
  if e.shared > 0 then set("expert_shared_feed_forward_length", "uint32", inner * e.shared) end
end

function ERNIE_MOE.fault(cfg, r)
  local e = r.settings.mixture(cfg)
  return gap_fault(cfg, e, e.first) or ERNIE.fault(cfg)
end

-- Readers leave out the other biases.
local SEED = { name = "seed_oss", biases = QKV_BIASES }

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

-- As for bert, readers assume the exact gelu, and llama.cpp computes its approximation by tanh.
local MODERN = { name = "modern-bert", act = "gelu_erf", norm_key = BERT.norm_key, roles = {}, biases = {}, ignores = true }
for _, role in ipairs { "token_embd", "token_embd_norm", "output_norm" } do table.insert(MODERN.roles, { role, outside = true }) end
for _, role in ipairs { "attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down" } do
  table.insert(MODERN.roles, { role })
end

-- The period of the layers that see all tokens; the first layer of each does. nil: there is none.
local function first_period(cfg, r)
  for n = 1, cfg.n_layer do
    local fits = true
    for i = 0, cfg.n_layer - 1 do fits = fits and r.settings.is_local(cfg, i) == (i % n ~= 0) end
    if fits then return n end
  end
end

function MODERN.values(set, cfg, gather)
  local settings = gather.recipe.settings
  local full, near = settings.ropes(cfg)
  BERT.values(set)
  LLAMA.values(set, cfg)
  set("rope.freq_base", "fp32", full.theta)
  set("rope.freq_base_swa", "fp32", near.theta)
  set("rope.scaling.type", "string", "none")
  set("attention.sliding_window", "uint32", 2 * settings.side(cfg))
  set("attention.sliding_window_pattern", "uint32", first_period(cfg, gather.recipe))
end

function MODERN.fault(cfg, r)
  local full, near = r.settings.ropes(cfg)
  if not full or not near then return "ropes of one kind of layers" end
  if full.scaling or near.scaling then return ("rope type %s"):format(full.scaling or near.scaling) end
  if full.dims ~= cfg.head_dim or near.dims ~= cfg.head_dim then return "ropes of a part of a head" end
  if not first_period(cfg, r) then return "full attention in layers without a period" end
  if cfg.holds "classifier.weight" then return "a classifier" end
end

MODERN.rope = false -- `values` sets both

local KNOWN = {
  llama = LLAMA, qwen2 = QWEN2, qwen2_moe = QWEN2MOE, phi3 = PHI3, gemma3_text = GEMMA3, hunyuan_v1_dense = HUNYUAN, lfm2 = LFM2,
  lfm2_moe = LFM2MOE, qwen3 = QWEN3, qwen3_moe = QWEN3MOE, olmo2 = OLMO2, olmo3 = OLMO3, smollm3 = SMOLLM3, bert = BERT,
  nomic_bert = NOMIC, modernbert = MODERN, granite = GRANITE, starcoder2 = STARCODER2, glm4 = GLM4, cohere = COMMAND_R, cohere2 = COHERE2,
  ministral3 = MISTRAL3, mistral = MISTRAL, ministral = MISTRAL, mamba2 = MAMBA2, falcon_h1 = FALCON_H1, granitemoehybrid = granite_of,
  deepseek_v2 = DEEPSEEK2, deepseek_v3 = DEEPSEEK2, glm4_moe_lite = DEEPSEEK2, glm4_moe = GLM4MOE,
  gemma2 = GEMMA2, mixtral = MIXTRAL, olmoe = OLMOE, ernie4_5 = ERNIE, ernie4_5_moe = ERNIE_MOE, seed_oss = SEED,
}

--- The row of an architecture.
-- @param cfg configuration of the folder
-- @param r its recipe
-- @return table; nil: llama.cpp does not know the architecture
function M.of(cfg, r)
  local arch = KNOWN[cfg.architecture]
  if type(arch) == "function" then return arch(cfg, r) end
  return arch
end

--- Does llama.cpp take the table of the embedding for the head of each file of an architecture?
-- @param name general.architecture
function M.has_no_head(name)
  for _, arch in pairs(KNOWN) do
    if type(arch) == "table" and arch.name == name and arch.tied then return true end
  end
  return false
end

--- The number of experts.
function M.experts(arch, cfg, r) return arch.experts and arch.experts(cfg, r) or expert_count(cfg) or 0 end

--- Can the keys of an architecture say YaRN's factor on cosine and sine?
-- @param rope with attn_factor
function M.says_magnitude(arch, rope)
  local all = rope.mscale_all_dim or 0
  if not arch.yarn_log or all <= 0 then return false end
  return arch == DEEPSEEK2 or math.abs(rope.attn_factor - ropes.yarn_magnitude(rope.factor, 1, all)) < 1e-6
end

return M

