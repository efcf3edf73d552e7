--- Nemotron-H and Nemotron 3 Nano. Each layer is one mixer: Mamba-2, attention, feed-forward or experts.
-- NVIDIA 2025, "Nemotron-H: A Family of Accurate and Efficient Hybrid Mamba-Transformer Models".
--
-- Quirks: hybrid_override_pattern has one letter per layer: M for Mamba-2, * for attention (without rope), - for feed-forward, E for
-- experts. Newer files name the layers in layers_block_type. In GGUF, Mamba-2 layers have no kv heads and no feed-forward width.
-- Feed-forward and experts are down(relu(up(x))^2). Experts are chosen by sigmoid(router) + bias and weighted by the sigmoid alone. The
-- time step is at least time_step_min. With moe_latent_size the experts read and write a narrower projection of the layer's input.
-- attention_bias has no effect.

local attention = require "ane.recipe.attention"
local head = require "ane.recipe.head"
local mamba2 = require "ane.recipe.mamba2"
local moe = require "ane.recipe.moe"
local shapes = require "ane.recipe.shapes"

local M = { architectures = { "nemotron_h", "nemotron_h_moe" }, version = 1 }

local NAMES = mamba2.names "mixer"
for role, name in pairs {
  attn_norm = "norm", attn_q = "mixer.q_proj", attn_k = "mixer.k_proj", attn_v = "mixer.v_proj", attn_output = "mixer.o_proj",
  ffn_up = "mixer.up_proj", ffn_down = "mixer.down_proj", ffn_gate_inp = "mixer.gate", exp_probs_b = "mixer.gate.e_score_correction_bias",
  ffn_up_exps = "mixer.experts.%d.up_proj", ffn_down_exps = "mixer.experts.%d.down_proj",
  ffn_up_shexp = "mixer.shared_experts.up_proj", ffn_down_shexp = "mixer.shared_experts.down_proj",
  ffn_latent_down = "mixer.fc1_latent_proj", ffn_latent_up = "mixer.fc2_latent_proj",
} do NAMES[role] = name end

-- The tensor names. Published files have the prefix "backbone", files that transformers saves have "model".
local function names_of(cfg, common)
  local names, top = common(NAMES), cfg.holds "backbone.embeddings.weight" and "backbone." or "model."
  return function(role, layer)
    if role == "token_embd" then return top .. "embeddings" end
    if role == "output_norm" then return top .. "norm_f" end
    return (names(role, layer):gsub("^model%.", top))
  end
end

M.names = { hf = names_of }
M.config = { num_key_value_heads = 8, head_dim = 128 }
M.defaults = { hf = {
  norm_eps = 1e-5, tied = false, attention_bias = false,
  keys = { norm_topk_prob = true, n_routed_experts = 8, num_experts_per_tok = 2, mlp_hidden_act = "relu2", mamba_hidden_act = "silu" },
} }

M.ignore = { "^mtp%." } -- a head that drafts tokens

local LETTERS = { M = "mamba", ["*"] = "attention", ["-"] = "mlp", E = "moe" }
local WORDS = { full_attention = "attention", linear_attention = "mamba" } -- in newer files

-- The kinds of the layers, as function(i): "mamba", "attention", "mlp" or "moe".
local function kinds(cfg)
  local list, pattern = cfg.meta "layers_block_type", cfg.meta "hybrid_override_pattern"
  if cfg.layer_types then list = cfg.layer_types end
  if type(pattern) == "string" then
    return function(i) return LETTERS[pattern:sub(i + 1, i + 1)] or error("hybrid_override_pattern: no letter for layer " .. i, 0) end
  end
  if list then return function(i) return WORDS[list[i + 1]] or list[i + 1] end end
  local kv, width = cfg.per_layer.n_head_kv, cfg.per_layer.d_ff
  return function(i)
    if kv and kv[i + 1] > 0 then return "attention" end
    if not width or width[i + 1] == 0 then return "mamba" end
    return cfg.holds(("blk.%d.ffn_gate_inp.weight"):format(i)) and "moe" or "mlp"
  end
end

local function state_space(cfg)
  if cfg.format == "gguf" then return mamba2.of_gguf(cfg) end
  -- Each key has an older name, which counts where both exist.
  local function get(old, key, kind)
    local v = cfg.meta(old, kind)
    if v == nil then v = cfg.meta(key, kind) end
    return v
  end
  return {
    heads = cfg.meta("mamba_num_heads", "count") or 128, width = cfg.meta("mamba_head_dim", "count") or 64,
    groups = get("mamba_n_groups", "n_groups", "count") or 8, n = cfg.meta("ssm_state_size", "count") or 128,
    bias = cfg.meta("use_bias", "flag"), conv_bias = get("mamba_conv_bias", "use_conv_bias", "flag"),
    taps = get("mamba_d_conv", "conv_kernel", "count") or 4, low = get("mamba_dt_min", "time_step_min", "number") or 0.001,
  }
end

local function mixture(cfg)
  local gguf = cfg.format == "gguf"
  local function get(hf, other, kind) return cfg.meta(gguf and other or hf, kind) end
  return {
    count = cfg.meta("num_local_experts", "count") or get("n_routed_experts", "expert_count", "count"),
    k = get("num_experts_per_tok", "expert_used_count", "count"),
    norm = get("norm_topk_prob", "expert_weights_norm", "flag"), scale = get("routed_scaling_factor", "expert_weights_scale", "number"),
    groups = get("n_group", "expert_group_count", "count") or 1, kept = get("topk_group", "expert_group_used_count", "count") or 1,
  }
end

-- down(relu(up(x))^2)
local function squared(b, x, up, down)
  local bias = { bias = b.cfg.mlp_bias }
  local y = b:linear(x, up, bias)
  return b:linear(b:glu(y, y, "relu"), down, bias)
end

local function experts(b, x, e)
  local gguf = b.cfg.format == "gguf"
  if not e.count then error(("metadata key %s.expert_count is missing"):format(b.cfg.architecture), 0) end
  local opts = { bias = b.cfg.mlp_bias }
  local bias = b:weight("exp_probs_b", { suffix = gguf and ".bias" or "", optional = gguf })
  local route = moe.route(b, b:linear(x, "ffn_gate_inp"), {
    k = e.k, score = "sigmoid", bias = bias, norm = e.norm, norm_eps = 1e-20, scale = e.scale, groups = e.groups, groups_kept = e.kept,
    group_best = math.min(2, e.count // e.groups),
  })
  local list = moe.list(b, e.count, { gate = "ffn_up_exps", up = "ffn_up_exps", down = "ffn_down_exps" })
  local narrow = b:has "ffn_latent_down"
  local y = moe.experts(b, narrow and b:linear(x, "ffn_latent_down", opts) or x, route, list, { act = "relu" }) -- relu(g) u with g = u
  if narrow then y = b:linear(y, "ffn_latent_up", opts) end
  if not b:has "ffn_up_shexp" then return y end
  return b:add(y, squared(b, x, "ffn_up_shexp", "ffn_down_shexp"))
end

function M.shapes(cfg)
  local t, d, e = mamba2.shapes(cfg, state_space(cfg)), cfg.d_model, mixture(cfg)
  local inner = cfg.meta("moe_intermediate_size", "count") or cfg.d_ff
  local shared = cfg.meta("moe_shared_expert_intermediate_size", "count") or inner
  t.ffn_gate_inp, t.exp_probs_b = e.count and { e.count, d }, e.count and { e.count }
  local narrow = cfg.meta("moe_latent_size", "count")
  t.ffn_up_exps, t.ffn_down_exps = { inner, narrow or d }, { narrow or d, inner }
  t.ffn_up_shexp, t.ffn_down_shexp = { shared, d }, { d, shared }
  t.ffn_latent_down, t.ffn_latent_up = narrow and { narrow, d }, narrow and { d, narrow }
  if not cfg.mlp_bias then return t end
  if narrow then shapes.biases(t, { "ffn_latent_down", "ffn_latent_up" }) end
  return shapes.biases(t, { "ffn_up_shexp", "ffn_down_shexp" })
end

-- Refuses activation functions that are not computed.
local function check_activations(cfg)
  for key, known in pairs { mlp_hidden_act = "relu2", mamba_hidden_act = "silu" } do
    local act = cfg.meta(key) or known
    if act ~= known then error(("%s '%s' is not computed; known is %s"):format(key, tostring(act), known), 0) end
  end
end

function M.build(b, cfg)
  cfg.attention_bias = false
  check_activations(cfg)
  local kind, s, e = kinds(cfg), state_space(cfg), mixture(cfg)
  local mixers = {
    mamba = function(h) return mamba2.block(b, h, s) end,
    attention = function(h) return attention.gqa(b, h, {}) end,
    mlp = function(h) return squared(b, h, "ffn_up", "ffn_down") end,
    moe = function(h) return experts(b, h, e) end,
  }
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local mixer = mixers[kind(i)] or error(("'%s' is not a kind of layer"):format(tostring(kind(i))), 0)
      x = b:add(x, mixer(b:rms_norm(x, "attn_norm")))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
