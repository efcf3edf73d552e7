--- Phi-3 and Phi-4-mini.
-- Abdin et al. 2024, "Phi-3 Technical Report"; Microsoft 2025, "Phi-4-Mini Technical Report".
--
-- Quirks: q, k and v are the rows of one weight; gate and up are the rows of another (ffn_up in GGUF). Rope rotates only the first
-- partial_rotary_factor of each head. It has two sets of factors (longrope); the long ones apply if the sequence is longer than the
-- original context. A sliding window applies to all layers; that of Phi-4-mini is as long as its context.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "phi3" }, version = 1 }

M.names = { hf = { ffn_up = "mlp.gate_up_proj" } }
M.config = { original_max_position_embeddings = 4096 }
M.defaults = { hf = { norm_eps = 1e-5, tied = false } }

function M.shapes(cfg) return { ffn_up = { 2 * cfg.d_ff, cfg.d_model } } end

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, fused = true, window = cfg.sliding_window }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu", { fused = true }))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
