--- Qwen1.5 and Qwen2, mixture of experts.
-- Qwen team 2024, "Qwen2 Technical Report". Attention is that of qwen2. The feed-forward sums the k chosen experts, weighted by the
-- softmax over all experts, and a shared expert, weighted by its own gate sigmoid(w x).

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"
local shapes = require "ane.recipe.shapes"

local M = {
  architectures = { "qwen2_moe", "qwen2moe" }, version = 1, whole_rope = true, defaults = { hf = { norm_eps = 1e-6, tied = false } },
}

M.names = {
  hf = {
    ffn_gate_inp = "mlp.gate", ffn_gate_exps = "mlp.experts.%d.gate_proj", ffn_up_exps = "mlp.experts.%d.up_proj",
    ffn_down_exps = "mlp.experts.%d.down_proj", ffn_gate_inp_shexp = "mlp.shared_expert_gate",
    ffn_gate_shexp = "mlp.shared_expert.gate_proj", ffn_up_shexp = "mlp.shared_expert.up_proj",
    ffn_down_shexp = "mlp.shared_expert.down_proj",
  },
}

-- The values, in transformers, of keys that config.json may lack.
M.config = {
  num_key_value_heads = 16, sliding_window = 4096, num_experts = 60, moe_intermediate_size = 1408, shared_expert_intermediate_size = 5632,
}

-- The settings of the experts: count, k, norm. sparse(i) says whether layer i has experts.
local function settings(cfg)
  local gguf = cfg.format == "gguf"
  return {
    count = cfg.meta(gguf and "expert_count" or "num_experts", "count"),
    k = cfg.meta(gguf and "expert_used_count" or "num_experts_per_tok", "count") or not gguf and 4 or nil,
    norm = not gguf and cfg.meta("norm_topk_prob", "flag") or false,
    sparse = moe.sparse(cfg),
  }
end

local function experts(b, x, s)
  local roles = { gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps" }
  return moe.beside_shared(b, x, roles, { count = s.count, k = s.k, norm = s.norm, act = b.cfg.act })
end

-- The attention window of layer i. Without layer_types, the layers 0, 2, 4, ... below max_window_layers have sliding attention.
local function window(cfg, i)
  if not cfg.meta("use_sliding_window", "flag") then return nil end
  return attention.window(cfg, i, i % 2 == 0 and i < (cfg.meta("max_window_layers", "whole") or 28))
end

function M.shapes(cfg, t)
  local d, inner = cfg.d_model, cfg.meta("moe_intermediate_size", "count")
  local shared = cfg.meta("shared_expert_intermediate_size", "count")
  if cfg.meta("qkv_bias", "flag") ~= false then
    shapes.biases(t, { "attn_q", "attn_k", "attn_v" })
  end
  return {
    ffn_gate_inp = { cfg.meta("num_experts", "count"), d },
    ffn_gate_exps = { inner, d }, ffn_up_exps = { inner, d }, ffn_down_exps = { d, inner },
    ffn_gate_inp_shexp = { 1, d }, ffn_gate_shexp = { shared, d }, ffn_up_shexp = { shared, d }, ffn_down_shexp = { d, shared },
  }
end

function M.build(b, cfg)
  local s = settings(cfg)
  -- attention_bias has no effect. Without qkv_bias, q, k and v have biases if the file has them.
  cfg.attention_bias = nil
  if cfg.format == "hf" and cfg.meta("qkv_bias", "flag") == false then cfg.attention_bias = false end
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, window = window(cfg, i) }))
      local h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, s.sparse(i) and experts(b, h, s) or ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
