--- Qwen2 and Qwen2.5, dense.
-- Qwen team 2024, "Qwen2 Technical Report". Like Llama, with biases on q, k and v only (the file has them), rope that pairs i with
-- i + r/2, and a tied head in the small sizes.
--
-- Quirks: config.json has a sliding_window that released models do not use. It applies only with use_sliding_window, to the layers from
-- max_window_layers on or to those that layer_types names.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local shapes = require "ane.recipe.shapes"

local M = { architectures = { "qwen2" }, version = 1, whole_rope = true }

M.config = { num_key_value_heads = 32, sliding_window = 4096 }
M.defaults = { hf = { norm_eps = 1e-6, tied = false } }

function M.shapes(_, t)
  shapes.biases(t, { "attn_q", "attn_k", "attn_v" })
  return { ["attn_output.bias"] = false }
end

function M.build(b, cfg)
  cfg.attention_bias = nil -- the key has no effect: q, k and v have biases if the file has them
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, window = attention.late_window(cfg, i) }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
