--- Gemma 3, text.
-- Gemma team 2025, "Gemma 3 Technical Report".
--
-- Quirks: the embedding is multiplied by sqrt(d_model), the tied head is not. Each branch is normed before and after
-- (post_attention_norm, post_ffw_norm) and q and k per head before rope; GGUF stores every norm weight with the 1 of
-- Gemma's (1 + w) added. Five sliding layers, then a full one: sliding layers turn by their own base without scaling.
-- The score scale is head_dim^-0.5, but (d_model / n_head)^-0.5 in the 27B (62 layers): GGUF does not store it.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "gemma3" }, version = 1 }

local PATTERN = 6 -- every sixth layer sees all keys

function M.build(b, cfg)
  local full = b:rope_table(cfg.rope, "rope_full")
  local near = b:rope_table({ theta = cfg.rope.local_theta or 10000.0, dims = cfg.rope.dims }, "rope_sliding")
  local scale = (cfg.n_layer == 62 and cfg.d_model / cfg.n_head or cfg.head_dim) ^ -0.5
  local x = b:scale(b:embed "token_embd", math.sqrt(cfg.d_model)) -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    local sliding = (i + 1) % PATTERN ~= 0
    b:layer(i, function()
      local a = attention.gqa(b, b:rms_norm(x, "attn_norm"), {
        rope = sliding and near or full, qk_norm = "before_rope", scale = scale, window = sliding and cfg.sliding_window or nil,
      })
      x = b:add(x, b:rms_norm(a, "post_attention_norm"))
      local m = ffn.gated(b, b:rms_norm(x, "ffn_norm"), "gelu_tanh")
      x = b:add(x, b:rms_norm(m, "post_ffw_norm"))
    end)
  end
  return head.lm(b, x, { softcap = cfg.meta "final_logit_softcapping" }) -- [1, n_vocab, W, 1]
end

return M
