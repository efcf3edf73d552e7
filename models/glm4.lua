--- GLM-4 (GLM-4-9B-0414, GLM-4-32B-0414, GLM-Z1).
-- GLM team 2024, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools".
--
-- Quirks: each branch is normed before and after. Rope rotates neighbouring pairs (2i, 2i + 1) of the first half of each head. gate and up
-- are the rows of one weight (ffn_up in GGUF).

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "glm4" }, version = 1 }

M.names = { hf = {
  ffn_up = "mlp.gate_up_proj", post_attention_norm = "post_self_attn_layernorm", post_ffw_norm = "post_mlp_layernorm",
} }
M.config = { num_key_value_heads = 2, head_dim = 128, partial_rotary_factor = 0.5 }
M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = { norm_eps = 1.5625e-7, tied = false, head_dim = 128, attention_bias = false, rope = { layout = "interleaved" } },
}

-- q, k and v have biases if attention_bias is set; the output projection has none.
function M.shapes(cfg, t)
  if cfg.attention_bias then
    for _, role in ipairs { "attn_q", "attn_k", "attn_v" } do t[role .. ".bias"] = { t[role][1] } end
  end
  return { ffn_up = { 2 * cfg.d_ff, cfg.d_model }, ["attn_output.bias"] = false }
end

function M.build(b, cfg)
  cfg.attention_bias = nil -- biases are used if the file has them
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local a = attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope })
      x = b:add(x, b:rms_norm(a, "post_attention_norm"))
      local m = ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu", { fused = true })
      x = b:add(x, b:rms_norm(m, "post_ffw_norm"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
