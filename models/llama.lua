--- Llama, SmolLM2, Mistral and other models that are converted to GGUF as "llama".
-- Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models"; GQA as in Llama 2 and 3.
--
-- Quirks: the GGUF converter permutes the rows of attn_q and attn_k (and their biases), so rope pairs 2i with 2i + 1 (layout
-- "interleaved"). Hugging Face files pair i with i + r/2. In GGUF, Llama 3's rope scaling is a tensor of divisors, rope_freqs.weight.
-- For GGUF, biases are used if the file has them. If there is no output.weight, the head is the embedding.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "llama" }, version = 1, whole_rope = true }

M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = { norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false },
}

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
