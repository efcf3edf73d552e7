--- GLM-4.5, GLM-4.5-Air, GLM-4.6 and GLM-4.7.
-- GLM team 2025, "GLM-4.5: Agentic, Reasoning, and Coding (ARC) Foundation Models". Attention is that of llama with biases of q, k and v,
-- and with norms of q and k in the large models. The experts are those of DeepSeek-V3, after some dense layers.
--
-- Quirks: rope rotates the first half of each head, and pairs i with i + r/2. Experts are chosen by sigmoid(router) + bias, and weighted
-- by the sigmoid. In GGUF, the norm before the feed-forward is post_attention_norm, and the last block drafts tokens.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"

local M = { architectures = { "glm4_moe", "glm4moe" }, version = 1 }

M.names = { hf = moe.names, gguf = { ffn_norm = "post_attention_norm" } }
M.ignore = { "^model%.layers%.46%.", "^model%.layers%.92%." } -- layers that draft tokens, in published files

-- The values, in transformers, of keys that config.json may lack.
M.config = {
  num_key_value_heads = 8, partial_rotary_factor = 0.5, rms_norm_eps = 1e-5, moe_intermediate_size = 1408, n_routed_experts = 128,
  num_experts_per_tok = 8, first_k_dense_replace = 1, norm_topk_prob = true,
}
M.defaults = { hf = { tied = false, attention_bias = false } }

-- The settings of the experts. sparse(i) says whether layer i has experts.
local function mixture(cfg)
  local e = moe.grouped(cfg, { score = "sigmoid" })
  function e.sparse(i) return i >= e.dense end
  return e
end

M.settings = { mixture = mixture }

local function experts(b, x, e)
  return moe.plus_shared(b, x, {
    count = e.count, k = e.k, score = e.score, bias = true, norm = e.norm, norm_eps = 1e-20, scale = e.scale, groups = e.groups,
    groups_kept = e.kept, group_best = e.groups > 1 and e.best or 1, shared = e.shared > 0,
  })
end

-- Whether q and k are normed per head. GGUF has no key for it.
local function has_qk_norm(b, cfg)
  if cfg.format == "gguf" then return b:has "attn_q_norm" end
  return cfg.meta("use_qk_norm", "flag")
end

function M.shapes(cfg)
  local e = mixture(cfg)
  local t = moe.shapes(cfg, { count = e.count, shared = e.shared, bias = true })
  t["attn_output.bias"] = false
  return t
end

function M.build(b, cfg)
  local e = mixture(cfg)
  cfg.mlp_bias = false -- has no effect
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope, qk_norm = b:rope_table(cfg.rope), nil
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      if i == 0 then qk_norm = has_qk_norm(b, cfg) and "before_rope" or nil end
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, qk_norm = qk_norm, out_bias = false }))
      local h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, e.sparse(i) and experts(b, h, e) or ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
