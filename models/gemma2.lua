--- Gemma 2.
-- Gemma team 2024, "Gemma 2: Improving Open Language Models at a Practical Size".
--
-- Quirks: the embedding is multiplied by sqrt(d_model); the tied head is not. Each branch is normed before and after
-- (post_attention_norm, post_ffw_norm). Norms multiply by 1 + w; GGUF stores 1 + w. Scores and logits are capped: c tanh(x / c). Unless
-- layer_types says otherwise, the layers 0, 2, 4, ... have sliding attention and the others full attention. The score scale is
-- query_pre_attn_scalar^-0.5. GGUF does not store it: it is head_dim^-0.5, or (d_model / n_head)^-0.5 in the 27B model (46 layers).
-- llama.cpp reads no head from GGUF: it is the embedding.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "gemma2" }, version = 1, whole_rope = true }

M.names = { hf = {
  post_attention_norm = "post_attention_layernorm", ffn_norm = "pre_feedforward_layernorm", post_ffw_norm = "post_feedforward_layernorm",
} }
M.defaults = {
  gguf = { act = "gelu_tanh", sliding_window = 4096, keys = { attn_logit_softcapping = 50.0, final_logit_softcapping = 30.0 } },
  hf = { norm_eps = 1e-6, norm_offset = 1, tied = true, attention_bias = false },
}

function M.gguf_differs(place) return place.role:find "norm" and "has 1 + w for each weight w of a norm" or nil end

-- The values, in transformers, of keys that config.json may lack. A cap that is null is none. hidden_act has no effect.
M.config = {
  num_key_value_heads = 4, head_dim = 256, hidden_activation = "gelu_pytorch_tanh", sliding_window = 4096, query_pre_attn_scalar = 256,
  attn_logit_softcapping = 50.0, final_logit_softcapping = 30.0,
}

-- The number whose inverse square root is the score scale, for GGUF files, which do not store it.
local function usual_scalar(cfg) return cfg.n_layer == 46 and cfg.d_model // cfg.n_head or cfg.head_dim end

local function scalar_of(cfg)
  if cfg.format == "gguf" then return usual_scalar(cfg) end
  return cfg.meta("query_pre_attn_scalar", "positive") or error("key query_pre_attn_scalar is null, but must be a number above 0", 0)
end

local function window_of(cfg, i) return attention.window(cfg, i, i % 2 == 0) end

M.settings = { usual_scalar = usual_scalar, slides = function(cfg, i) return window_of(cfg, i) ~= nil end }

function M.build(b, cfg)
  local rope, scale = b:rope_table(cfg.rope), scalar_of(cfg) ^ -0.5
  local score_cap = cfg.meta("attn_logit_softcapping", "positive")
  local x = b:scale(b:embed "token_embd", math.sqrt(cfg.d_model)) -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local a = attention.gqa(b, b:rms_norm(x, "attn_norm"), {
        rope = rope, scale = scale, softcap = score_cap, window = window_of(cfg, i),
      })
      x = b:add(x, b:rms_norm(a, "post_attention_norm"))
      local m = ffn.gated(b, b:rms_norm(x, "ffn_norm"), "gelu_tanh")
      x = b:add(x, b:rms_norm(m, "post_ffw_norm"))
    end)
  end
  return head.lm(b, x, { softcap = cfg.meta("final_logit_softcapping", "positive") }) -- [1, n_vocab, W, 1]
end

return M
