--- StarCoder2.
-- Lozhkov et al. 2024, "StarCoder 2 and The Stack v2: The Next Generation".
--
-- Quirks: it has LayerNorm with bias instead of RMSNorm, biases on all projections (use_bias), and a plain feed-forward,
-- down(gelu(up(x))). A sliding window applies to all layers; GGUF does not store it, and llama.cpp does not apply it.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local shapes = require "ane.recipe.shapes"

local M = { architectures = { "starcoder2" }, version = 1, whole_rope = true }

M.names = { hf = { ffn_up = "mlp.c_fc", ffn_down = "mlp.c_proj" } }
M.config = { num_key_value_heads = 2 }
M.defaults = { hf = { norm_eps = 1e-5, tied = true, act = "gelu_tanh", keys = { use_bias = true } } }

function M.shapes(cfg, t)
  local d = cfg.d_model
  for _, role in ipairs { "attn_norm", "ffn_norm", "output_norm" } do t[role .. ".bias"] = { d } end
  return cfg.meta("use_bias", "flag") and shapes.biases(t, { "attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down" }) or nil
end

function M.build(b, cfg)
  if cfg.format == "hf" then cfg.attention_bias, cfg.mlp_bias = cfg.meta("use_bias", "flag"), cfg.meta("use_bias", "flag") end
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:layer_norm(x, "attn_norm", { bias = true }), { rope = rope, window = cfg.sliding_window }))
      x = b:add(x, ffn.plain(b, b:layer_norm(x, "ffn_norm", { bias = true }), "gelu_tanh"))
    end)
  end
  if not b:has("output_norm", ".bias") then error(("no tensor %s.bias"):format(b.names "output_norm"), 0) end
  return head.lm(b, x, { layer_norm = true }) -- [1, n_vocab, W, 1]
end

return M
