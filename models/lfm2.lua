--- LFM2 and LFM2.5, dense and mixture of experts.
-- Liquid AI 2025, "LFM2 Technical Report".
--
-- Quirks: most layers are gated short convolutions; the others are attention with q and k normed before rope. The final norm is called
-- embedding_norm (token_embd_norm in GGUF) although it follows the last layer. Experts are chosen by sigmoid(router) + bias. Their weights
-- are the sigmoid alone, divided by the sum of the chosen ones + 1e-6.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"
local shortconv = require "ane.recipe.shortconv"

local M = { architectures = { "lfm2", "lfm2moe", "lfm2_moe" }, version = 1, whole_rope = true }

M.names = {
  gguf = { output_norm = "token_embd_norm", exp_probs_b = "exp_probs_b" },
  hf = {
    output_norm = "model.embedding_norm", attn_norm = "operator_norm", ffn_norm = "ffn_norm", attn_output = "self_attn.out_proj",
    attn_q_norm = "self_attn.q_layernorm", attn_k_norm = "self_attn.k_layernorm", ["shortconv.in_proj"] = "conv.in_proj",
    ["shortconv.conv"] = "conv.conv", ["shortconv.out_proj"] = "conv.out_proj", ffn_gate = "feed_forward.w1", ffn_up = "feed_forward.w3",
    ffn_down = "feed_forward.w2", ffn_gate_inp = "feed_forward.gate", exp_probs_b = "feed_forward.expert_bias",
    ffn_gate_exps = "feed_forward.experts.%d.w1", ffn_up_exps = "feed_forward.experts.%d.w3", ffn_down_exps = "feed_forward.experts.%d.w2",
  },
}

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  if architecture == "lfm2" then return { num_key_value_heads = 8 } end
  return { num_key_value_heads = 8, num_experts = 32, num_experts_per_tok = 4, num_dense_layers = 2, moe_intermediate_size = 1792 }
end

M.defaults = { hf = { norm_eps = 1e-5, rope = { theta = 1e6 } } }

-- Whether layer i is attention. GGUF: layers with kv heads. config.json: layer_types, or full_attn_idxs (if absent, all layers).
local function is_attention(cfg, i)
  if cfg.layer_types then return cfg.layer_types[i + 1] == "full_attention" end
  local kv = cfg.per_layer and cfg.per_layer.n_head_kv
  if kv then return kv[i + 1] > 0 end
  local list = cfg.meta("full_attn_idxs", "list")
  if not list then return true end
  for _, at in ipairs(list) do
    if at == i then return true end
  end
  return false
end

-- The settings of the experts: count, k, number of dense layers before them, whether weights are normalised, scale. nil for a dense model.
local function expert_settings(cfg)
  local gguf = cfg.format == "gguf"
  local count = cfg.meta(gguf and "expert_count" or "num_experts", "whole")
  if not count or count == 0 then return nil end
  return {
    count = count, k = cfg.meta(gguf and "expert_used_count" or "num_experts_per_tok", "count"),
    dense = cfg.meta(gguf and "leading_dense_block_count" or "num_dense_layers", "whole") or 0,
    norm = gguf or cfg.meta("norm_topk_prob", "flag") ~= false, scale = not gguf and cfg.meta("routed_scaling_factor", "number") or 1.0,
  }
end

local function sparse(b, x, e)
  local gguf = b.cfg.format == "gguf"
  local biased = gguf or b.cfg.meta("use_expert_bias", "flag") ~= false
  local bias = biased and b:weight("exp_probs_b", { suffix = gguf and ".bias" or "", optional = true })
  local logits = b:linear(x, "ffn_gate_inp")
  local route = moe.route(b, logits, { k = e.k, score = "sigmoid", bias = bias, norm = e.norm, norm_eps = 1e-6, scale = e.scale })
  local list = moe.list(b, e.count, { gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps" })
  return moe.experts(b, x, route, list, { act = "silu" })
end

-- The inner width of the dense layers, computed as transformers does for lfm2. Models with experts use the stored width.
local function dense_width(cfg)
  if cfg.meta("num_experts", "whole") then return cfg.d_ff end
  local f = cfg.meta("block_ff_dim", "count") or cfg.d_ff
  if cfg.meta("block_auto_adjust_ff_dim", "flag") == false then return f end
  f = 2 * f // 3
  local times, unit = cfg.meta("block_ffn_dim_multiplier", "number"), cfg.meta("block_multiple_of", "count") or 256
  if not times then return f end
  return (math.floor(times * f) + unit - 1) // unit * unit
end

function M.shapes(cfg)
  local d, f, e, inner = cfg.d_model, dense_width(cfg), cfg.meta("num_experts", "whole"), cfg.meta("moe_intermediate_size", "count")
  local bias, taps = cfg.meta("conv_bias", "flag"), cfg.meta("conv_L_cache", "count") or 3
  local expert_bias = e and cfg.meta("use_expert_bias", "flag") ~= false
  return {
    ["shortconv.in_proj"] = { 3 * d, d }, ["shortconv.conv"] = { d, 1, taps }, ["shortconv.out_proj"] = { d, d },
    ["shortconv.in_proj.bias"] = bias and { 3 * d }, ["shortconv.conv.bias"] = bias and { d }, ["shortconv.out_proj.bias"] = bias and { d },
    ffn_gate = { f, d }, ffn_up = { f, d }, ffn_down = { d, f }, ffn_gate_inp = e and { e, d },
    exp_probs_b = expert_bias and { e }, ffn_gate_exps = e and { inner, d }, ffn_up_exps = e and { inner, d },
    ffn_down_exps = e and { d, inner },
  }
end

function M.build(b, cfg)
  local experts = expert_settings(cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local h = b:rms_norm(x, "attn_norm")
      local y
      if is_attention(cfg, i) then y = attention.gqa(b, h, { rope = rope, qk_norm = "before_rope" })
      else y = shortconv.gated(b, h, { taps = cfg.meta("shortconv.l_cache", "count") or cfg.meta("conv_L_cache", "count") or 3 }) end
      x = b:add(x, y)
      h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, experts and i >= experts.dense and sparse(b, h, experts) or ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
