--- Qwen2 and Qwen2.5, dense.
-- Qwen team 2024, "Qwen2 Technical Report". As llama, with biases on q, k and v (used because the file has them), rope
-- that pairs i with i + r/2, and the embedding as head in the small sizes.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "qwen2" }, version = 1 }

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
