--- Granite 4, hybrid: Mamba-2 and attention layers, with or without experts.
-- IBM Granite team 2025, "Granite 4.0". It has the multipliers of granite (embedding, residual, scores, logits).
--
-- Quirks: layer_types, or layers_block_type, names "mamba" and "attention" layers (newer files: "linear_attention", "full_attention").
-- Without either key all layers are Mamba-2. In GGUF, Mamba-2 layers have no kv heads. A position_embedding_type other than "rope" means
-- that there is no rope. Experts are weighted by the softmax of the k chosen logits. A shared feed-forward is added to the experts, or is
-- the only one. gate and up are the rows of one weight. GGUF permutes q and k only in models with rope.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local mamba2 = require "ane.recipe.mamba2"
local moe = require "ane.recipe.moe"
local multipliers = require "ane.recipe.multipliers"

local M = { architectures = { "granitemoehybrid", "granitehybrid" }, version = 1, whole_rope = true }

local NAMES = mamba2.names "mamba"
for role, name in pairs {
  ffn_gate_inp = "block_sparse_moe.router.layer", gate_up = "block_sparse_moe.input_linear",
  ffn_down_exps = "block_sparse_moe.output_linear", ffn_up = "shared_mlp.input_linear", ffn_down = "shared_mlp.output_linear",
} do NAMES[role] = name end
M.names = { hf = NAMES }

-- The modules of transformers' class whose names are not those of its files.
function M.modules(place)
  local name = place.stack and "experts" or place.role == "ffn_gate_inp" and "router"
  return name and ("layers.%d.block_sparse_moe.%s"):format(place.layer, name) or nil
end

M.config = { num_local_experts = 8 }
M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = {
    norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false,
    keys = { position_embedding_type = "nope", num_experts_per_tok = 2 },
  },
}

-- The settings of the Mamba-2 layers.
local function state_space(cfg)
  if cfg.format == "gguf" then return mamba2.of_gguf(cfg) end
  local s = mamba2.of_config(cfg)
  s.width = cfg.meta("mamba_d_head", "count") or (cfg.meta("mamba_expand", "count") or 2) * cfg.d_model // s.heads
  return s
end

local function is_mamba(cfg, i)
  local words = cfg.layer_types or cfg.format == "hf" and cfg.meta "layers_block_type"
  local word = words and words[i + 1]
  if word then return word == "mamba" or word == "linear_attention" end
  local kv = cfg.per_layer and cfg.per_layer.n_head_kv
  return cfg.format == "hf" or kv ~= nil and kv[i + 1] == 0
end

-- The settings of the experts: count and k. A count of 0 means that there are none.
local function mixture(cfg)
  local gguf = cfg.format == "gguf"
  return {
    count = cfg.meta(gguf and "expert_count" or "num_local_experts", "whole") or 0,
    k = cfg.meta(gguf and "expert_used_count" or "num_experts_per_tok", "whole"),
  }
end

M.settings = { state_space = state_space, is_mamba = is_mamba, mixture = mixture }

local function experts(b, x, e)
  local gguf = b.cfg.format == "gguf"
  local roles = { gate_up = "gate_up", down = "ffn_down_exps" }
  if gguf then roles = { gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps" } end
  local list = moe.list(b, e.count, roles, { inner = not gguf and b:slices "gate_up" // 2 or nil })
  local route = moe.route(b, b:linear(x, "ffn_gate_inp"), { k = e.k, score = "softmax_topk" })
  return moe.experts(b, x, route, list, { act = b.cfg.act or "silu" })
end

local function feed_forward(b, x, e)
  local gguf = b.cfg.format == "gguf"
  if e.count == 0 then return ffn.gated(b, x, "silu", { fused = not gguf }) end
  if not gguf then return b:add(experts(b, x, e), ffn.gated(b, x, "silu", { fused = true })) end
  local act = b.cfg.act or "silu"
  local shared = b:linear(b:glu(b:linear(x, "ffn_gate_shexp"), b:linear(x, "ffn_up_shexp"), act), "ffn_down_shexp")
  return b:add(experts(b, x, e), shared)
end

function M.shapes(cfg)
  local t, d, e = mamba2.shapes(cfg, state_space(cfg)), cfg.d_model, mixture(cfg)
  local shared = cfg.meta("shared_intermediate_size", "count") or 1024
  t.ffn_up, t.ffn_down = { 2 * shared, d }, { d, shared }
  if e.count > 0 then
    t.ffn_gate_inp, t.gate_up, t.ffn_down_exps = { e.count, d }, { e.count, 2 * cfg.d_ff, d }, { e.count, d, cfg.d_ff }
  end
  return t
end

function M.build(b, cfg)
  local f, e, s = multipliers.of(cfg), mixture(cfg), state_space(cfg)
  local has_rope = cfg.meta "position_embedding_type" == "rope"
  if cfg.format == "gguf" then has_rope = cfg.meta "rope.dimension_count" ~= nil and cfg.meta "rope.scaling.finetuned" == true end
  local rope = has_rope and b:rope_table(cfg.rope) or nil
  local x = b:scale(b:embed "token_embd", f.embedding) -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local h = b:rms_norm(x, "attn_norm")
      local y = is_mamba(cfg, i) and mamba2.block(b, h, s) or attention.gqa(b, h, { rope = rope, scale = f.scores })
      x = b:add(x, b:scale(y, f.residual))
      x = b:add(x, b:scale(feed_forward(b, b:rms_norm(x, "ffn_norm"), e), f.residual))
    end)
  end
  return head.lm(b, x, { scale = f.logits }) -- [1, n_vocab, W, 1]
end

return M
