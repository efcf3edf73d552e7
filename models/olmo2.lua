--- OLMo 2 and OLMo 3.
-- OLMo team 2025, "2 OLMo 2 Furious" and "Olmo 3".
--
-- Quirks: the input of a branch is not normed; its output is normed before it is added to the residual stream. q and k are normed over
-- their whole width, all heads together, before rope. In OLMo 3, unless layer_types says otherwise, every fourth layer has full attention
-- and the others sliding attention; only layers with full attention have the scaled rope. GGUF calls both olmo2; a file with a sliding
-- window is OLMo 3.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "olmo2", "olmo3" }, version = 1, whole_rope = true }

M.names = { hf = { post_attention_norm = "post_attention_layernorm", post_ffw_norm = "post_feedforward_layernorm" } }
M.defaults = { hf = { norm_eps = 1e-5, tied = false, attention_bias = false, mlp_bias = false } }

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture) return architecture == "olmo3" and { rope_theta = 500000.0, sliding_window = 4096 } or nil end

local function slides(cfg, i) return attention.window(cfg, i, (i + 1) % 4 ~= 0) ~= nil end

M.settings = { slides = slides } -- of OLMo 3

function M.shapes(cfg)
  return { attn_q_norm = { cfg.n_head * cfg.head_dim }, attn_k_norm = { cfg.n_head_kv * cfg.head_dim } }
end

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local full = b:rope_table(cfg.rope)
  local is_olmo3 = cfg.architecture == "olmo3" or cfg.format == "gguf" and cfg.sliding_window ~= nil
  local plain = cfg.ropes and cfg.ropes.sliding_attention or { theta = cfg.rope.theta, dims = cfg.rope.dims }
  local near = is_olmo3 and b:rope_table(plain, "rope_sliding") or nil
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local window = attention.window(cfg, i, is_olmo3 and (i + 1) % 4 ~= 0)
      local a = attention.gqa(b, x, { rope = window and near or full, qk_norm = "whole", window = window })
      x = b:add(x, b:rms_norm(a, "post_attention_norm"))
      x = b:add(x, b:rms_norm(ffn.gated(b, x, "silu"), "post_ffw_norm"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
