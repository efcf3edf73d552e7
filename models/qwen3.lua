--- Qwen3, dense.
-- Qwen team 2025, "Qwen3 Technical Report". Like qwen2 without biases. q and k are normed per head before rope. head_dim is not
-- d_model / n_head.
--
-- Quirks: the sliding_window of config.json applies only with use_sliding_window, to the layers from max_window_layers on or to those
-- that layer_types names.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "qwen3" }, version = 1, whole_rope = true }

M.config = { num_key_value_heads = 32, head_dim = 128, sliding_window = 4096 }
M.defaults = { hf = { norm_eps = 1e-6, tied = false, attention_bias = false } }

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local window = attention.late_window(cfg, i)
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, qk_norm = "before_rope", window = window }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
