--- Qwen3, mixture of experts.
-- Qwen team 2025, "Qwen3 Technical Report". Attention is that of qwen3: q and k are normed per head before rope. The feed-forward sums
-- the k chosen experts, weighted by the softmax over all experts. There is no shared expert.
--
-- Quirks: with norm_topk_prob the weights are divided by their sum; GGUF does not store the key, and it is true for this architecture.
-- Layers in mlp_only_layers, and those that decoder_sparse_step skips, have a dense feed-forward. A sliding window applies to all layers.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"

local M = { architectures = { "qwen3_moe", "qwen3moe" }, version = 1, whole_rope = true }

M.names = {
  hf = {
    ffn_gate_inp = "mlp.gate", ffn_gate_exps = "mlp.experts.%d.gate_proj", ffn_up_exps = "mlp.experts.%d.up_proj",
    ffn_down_exps = "mlp.experts.%d.down_proj",
  },
}
M.config = { num_key_value_heads = 4, sliding_window = 4096, moe_intermediate_size = 768 }
M.defaults = { hf = { norm_eps = 1e-6, tied = false, attention_bias = false } }

-- The settings of the experts: count, k, norm. sparse(i) says whether layer i has experts.
local function settings(cfg)
  local gguf = cfg.format == "gguf"
  return {
    count = cfg.meta(gguf and "expert_count" or "num_experts", "count") or cfg.meta("num_local_experts", "count"),
    k = cfg.meta(gguf and "expert_used_count" or "num_experts_per_tok", "count") or not gguf and 8 or nil,
    norm = gguf or cfg.meta("norm_topk_prob", "flag") or false,
    sparse = moe.sparse(cfg),
  }
end

function M.shapes(cfg) return moe.expert_shapes(cfg, settings(cfg).count, cfg.meta("moe_intermediate_size", "count")) end

function M.build(b, cfg)
  local s = settings(cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  local window = cfg.meta("use_sliding_window", "flag") and cfg.sliding_window or nil
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, qk_norm = "before_rope", window = window }))
      local h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, s.sparse(i) and moe.weighted(b, h, { count = s.count, k = s.k, norm = s.norm }) or ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
