--- Cohere Command R and Command R7B, Aya.
-- Cohere 2024, "Command R7B"; Team Cohere 2025, "Command A: An Enterprise-Ready Large Language Model".
--
-- Quirks: each layer has one LayerNorm without bias. Attention and feed-forward both read its output, and both are added to the residual
-- stream. Rope rotates neighbouring pairs (2i, 2i + 1). In cohere2 only sliding layers have rope; every fourth layer has full attention
-- without rope. In cohere all layers have full attention with rope; with use_qk_norm (Command R+) each head of q and k has a LayerNorm
-- with weights of its own. GGUF files have no such key: their tensors attn_q_norm and attn_k_norm show it. Logits are multiplied by
-- logit_scale. The head is the embedding.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "cohere2", "cohere", "command-r" }, version = 1, whole_rope = true }

M.defaults = {
  gguf = { rope = { layout = "interleaved" }, keys = { logit_scale = 0.0625 } },
  hf = { norm_eps = 1e-5, tied = true, attention_bias = false, rope = { layout = "interleaved" }, keys = { logit_scale = 0.0625 } },
}

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  return architecture == "cohere" and { rope_theta = 500000.0 } or { sliding_window = 4096 }
end

-- For layer i: whether it has rope, and its attention window.
local function reach(cfg, i)
  if cfg.architecture ~= "cohere2" then return true, nil end
  local window = attention.window(cfg, i, (i + 1) % (cfg.meta("sliding_window_pattern", "count") or 4) ~= 0)
  return window ~= nil, window
end

M.settings = { slides = reach }

function M.shapes(cfg)
  return { attn_q_norm = { cfg.n_head, cfg.head_dim }, attn_k_norm = { cfg.n_head_kv, cfg.head_dim } }
end

function M.build(b, cfg)
  local normed = cfg.meta("use_qk_norm", "flag")
  cfg.meta "use_parallel_block" -- read so that the key counts as known: all models have parallel blocks
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local rotates, window = reach(cfg, i)
      local h = b:layer_norm(x, "attn_norm")
      if cfg.format == "gguf" then normed = b:has "attn_q_norm" end
      local a = attention.gqa(b, h, { rope = rotates and rope or nil, window = window, qk_norm = normed and "layer_norm" or nil })
      x = b:add(b:add(x, a), ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x, { layer_norm = true, scale = cfg.meta("logit_scale", "positive") }) -- [1, n_vocab, W, 1]
end

return M
