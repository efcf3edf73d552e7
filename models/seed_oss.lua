--- Seed-OSS.
-- ByteDance Seed team 2025, "Seed-OSS Open-Source Models". Attention and feed-forward are those of llama, with biases of q, k and v.
--
-- Quirks: attention_out_bias says whether the output projection has a bias. In GGUF, the norm before the feed-forward is
-- post_attention_norm.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "seed_oss" }, version = 1, whole_rope = true }

M.names = { gguf = { ffn_norm = "post_attention_norm" } }
M.config = { num_key_value_heads = 8, head_dim = 128, attention_bias = true } -- the values, in transformers, of keys that files may lack
M.defaults = { hf = { norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false, keys = { attention_out_bias = false } } }

function M.shapes(cfg, t)
  return { ["attn_output.bias"] = cfg.meta("attention_out_bias", "flag") and { t.attn_output[1] } }
end

function M.build(b, cfg)
  local out_bias = nil -- as the file has it
  if cfg.format ~= "gguf" then out_bias = cfg.meta("attention_out_bias", "flag") or false end
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, out_bias = out_bias }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
