--- Gemma 3, text.
-- Gemma team 2025, "Gemma 3 Technical Report".
--
-- Quirks: the embedding is multiplied by sqrt(d_model); the tied head is not. Each branch is normed before and after
-- (post_attention_norm, post_ffw_norm); q and k are normed per head before rope. Norms multiply by 1 + w; GGUF stores 1 + w. Unless
-- layer_types says otherwise, every sixth layer has full attention and the others have sliding attention. Sliding layers have their own
-- rope base, without scaling. The score scale is query_pre_attn_scalar^-0.5. GGUF does not store it: it is head_dim^-0.5, or
-- (d_model / n_head)^-0.5 in the 27B model (62 layers). attn_logit_softcapping has no effect in this family.
-- EmbeddingGemma (use_bidirectional_attention; GGUF's gemma-embedding) sees tokens on both sides: all of them, or in sliding layers those
-- nearer than sliding_window / 2 + 1. GGUF files also hold the dense layers that follow its pooling.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "gemma3", "gemma3_text", "gemma-embedding" }, version = 1, whole_rope = true }

M.names = { hf = {
  post_attention_norm = "post_attention_layernorm", ffn_norm = "pre_feedforward_layernorm", post_ffw_norm = "post_feedforward_layernorm",
} }
M.defaults = { hf = {
  norm_eps = 1e-6, norm_offset = 1, tied = true, attention_bias = false, sliding_window = 4096, rope = { theta = 1e6 },
  keys = { query_pre_attn_scalar = 256 },
} }

function M.gguf_differs(place) return place.role:find "norm" and "has 1 + w for each weight w of a norm" or nil end

-- The text_config of published models that take images lacks these keys.
M.config = { num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256, vocab_size = 262208, max_position_embeddings = 131072 }

-- The number whose inverse square root is the score scale, for GGUF files, which do not store it.
local function usual_scalar(cfg) return cfg.n_layer == 62 and cfg.d_model / cfg.n_head or cfg.head_dim end

-- The rope of the sliding layers: their own if the file names one, else an unscaled rope with a base of its own.
local function near_rope(cfg)
  return cfg.ropes and cfg.ropes.sliding_attention or { theta = cfg.rope.local_theta or 10000.0, dims = cfg.rope.dims }
end

-- Whether a token sees later tokens. Marks the dense weights of embedding models, which ane.embed reads, as not needed here.
local function sees_both_sides(b, cfg)
  if cfg.architecture == "gemma-embedding" then
    for _, role in ipairs { "dense_2", "dense_3" } do b:ignore(role) end
    cfg.both_sides = true
  end
  cfg.both_sides = cfg.both_sides or cfg.meta("use_bidirectional_attention", "flag")
  return cfg.both_sides
end

-- The keys that a layer sees, as window and ahead of attention.gqa. A two-sided window counts a token's own key on both sides.
local function reach(window, both)
  if not both then return window end
  if not window then return nil, attention.ALL end
  return window // 2 + 1, window // 2
end

function M.build(b, cfg)
  local full = b:rope_table(cfg.rope, "rope_full")
  local near = b:rope_table(near_rope(cfg), "rope_sliding")
  local scalar = cfg.meta("query_pre_attn_scalar", "positive") or usual_scalar(cfg)
  local pattern = cfg.meta("sliding_window_pattern", "count") or 6 -- every sixth layer sees all keys
  local both = sees_both_sides(b, cfg)
  cfg.meta "attn_logit_softcapping" -- read so that the key counts as known: it has no effect
  local x = b:scale(b:embed "token_embd", math.sqrt(cfg.d_model)) -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local window = attention.window(cfg, i, (i + 1) % pattern ~= 0)
      local seen, ahead = reach(window, both)
      local a = attention.gqa(b, b:rms_norm(x, "attn_norm"), {
        rope = window and near or full, qk_norm = "before_rope", scale = scalar ^ -0.5, window = seen, ahead = ahead,
      })
      x = b:add(x, b:rms_norm(a, "post_attention_norm"))
      local m = ffn.gated(b, b:rms_norm(x, "ffn_norm"), "gelu_tanh")
      x = b:add(x, b:rms_norm(m, "post_ffw_norm"))
    end)
  end
  return head.lm(b, x, { softcap = cfg.meta("final_logit_softcapping", "positive") }) -- [1, n_vocab, W, 1]
end

return M
