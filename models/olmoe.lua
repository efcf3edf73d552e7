--- OLMoE.
-- Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts Language Models".
--
-- Quirks: q and k are normed over their whole width, all heads together, before rope. Each layer sums the k chosen experts, weighted by
-- the softmax over all experts; with norm_topk_prob the weights are divided by their sum. GGUF does not store that key, and it is false
-- for this architecture. clip_qkv, which no published model sets, is refused.

local attention = require "ane.recipe.attention"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"

local M = { architectures = { "olmoe" }, version = 1, whole_rope = true }

M.names = { hf = {
  ffn_gate_inp = "mlp.gate", ffn_gate_exps = "mlp.experts.%d.gate_proj", ffn_up_exps = "mlp.experts.%d.up_proj",
  ffn_down_exps = "mlp.experts.%d.down_proj",
} }
M.defaults = { hf = { norm_eps = 1e-5, tied = false, attention_bias = false } }
M.config = { num_experts_per_tok = 8 } -- the value, in transformers, of a key that config.json may lack

-- The experts: count, k, norm.
local function mixture(cfg)
  if cfg.format == "gguf" then
    return { count = cfg.meta("expert_count", "count"), k = cfg.meta("expert_used_count", "count"), norm = false }
  end
  return {
    count = cfg.meta("num_experts", "count") or cfg.meta("num_local_experts", "count") or 64, k = cfg.meta("num_experts_per_tok", "count"),
    norm = cfg.meta("norm_topk_prob", "flag") or false,
  }
end

M.settings = { mixture = mixture }

function M.shapes(cfg)
  local t = moe.expert_shapes(cfg, mixture(cfg).count, cfg.d_ff)
  t.attn_q_norm, t.attn_k_norm = { cfg.n_head * cfg.head_dim }, { cfg.n_head_kv * cfg.head_dim }
  return t
end

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope, experts = b:rope_table(cfg.rope), mixture(cfg)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, qk_norm = "whole" }))
      x = b:add(x, moe.weighted(b, b:rms_norm(x, "ffn_norm"), experts))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
