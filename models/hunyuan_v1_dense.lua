--- Hunyuan V1, dense (Hunyuan 0.5B to 7B, Hy-MT 1.5).
-- Tencent Hunyuan team 2025.
--
-- Quirks: q and k are normed per head after rope; other architectures norm them before it. The base of rope is theta * alpha^(r / (r - 2)).
-- GGUF stores this base in rope.freq_base; config.json has rope type "dynamic" with alpha. use_cla has no effect. ONNX Runtime GenAI
-- calls the architecture hunyuandensev1.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "hunyuan_v1_dense", "hunyuan-dense", "hunyuandensev1" }, version = 1, whole_rope = true }

M.names = { hf = { attn_q_norm = "self_attn.query_layernorm", attn_k_norm = "self_attn.key_layernorm" } }
M.defaults = { hf = { norm_eps = 1e-5, tied = false, attention_bias = false } }

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, qk_norm = "after_rope" }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
