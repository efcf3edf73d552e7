--- Granite 3 and 4, dense.
-- IBM Granite team 2024, "Granite 3.0 Language Models". Like Llama, with four extra multipliers.
--
-- Quirks: the embedding is multiplied by embedding_multiplier, each branch by residual_multiplier, and scores by attention_multiplier
-- (instead of head_dim^-0.5). Logits are divided by logits_scaling. As with Llama, GGUF permutes q and k for neighbouring pairs.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local multipliers = require "ane.recipe.multipliers"

local M = { architectures = { "granite" }, version = 1, whole_rope = true }

M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = { norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false },
}

function M.build(b, cfg)
  local f = multipliers.of(cfg)
  local x = b:scale(b:embed "token_embd", f.embedding) -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local a = attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, scale = f.scores })
      x = b:add(x, b:scale(a, f.residual))
      x = b:add(x, b:scale(ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"), f.residual))
    end)
  end
  return head.lm(b, x, { scale = f.logits }) -- [1, n_vocab, W, 1]
end

return M
