--- Mistral, Ministral and Ministral 3.
-- Jiang et al. 2023, "Mistral 7B"; Mistral AI 2026, "Ministral 3". Like Llama with a sliding window, in all layers or in those that
-- layer_types names.
--
-- Quirks: in Ministral 3, q at position p is multiplied by 1 + beta ln(1 + floor(p / original context)) (llama_4_scaling_beta). Its YaRN
-- has mscale = mscale_all_dim, so cosine and sine are not scaled, nor are the scores. As with Llama, GGUF permutes q and k for
-- neighbouring pairs. GGUF files of Mistral 7B name their architecture llama.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local ropes = require "ane.recipe.rope"

local M = { architectures = { "ministral3", "mistral3", "mistral", "ministral" }, version = 1, whole_rope = true }

M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = { norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false },
}

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  if architecture ~= "ministral3" then return { num_key_value_heads = 8, sliding_window = 4096 } end
  return {
    num_key_value_heads = 8, head_dim = 128, rms_norm_eps = 1e-5,
    rope_parameters = {
      rope_type = "yarn", rope_theta = 1e6, factor = 16.0, beta_fast = 32.0, beta_slow = 1.0, mscale = 1.0, mscale_all_dim = 1.0,
      original_max_position_embeddings = 16384, llama_4_scaling_beta = 0.1,
    },
  }
end

-- The growth of q with the position: {beta, original (context in tokens)}, or nil if there is none.
local function growth(cfg)
  if cfg.format == "gguf" then
    local beta = cfg.meta("attention.temperature_scale", "positive")
    local original = cfg.meta("rope.scaling.original_context_length", "count") or cfg.context_length
    return beta and { beta = beta, original = original } or nil
  end
  return cfg.rope and cfg.rope.growth
end

function M.build(b, cfg)
  if cfg.format == "hf" then cfg.attention_bias, cfg.mlp_bias = false, false end -- these keys have no effect
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local all = cfg.format == "gguf" and cfg.meta("rope.scaling.yarn_log_multiplier", "positive")
  if all then cfg.rope.attn_factor = ropes.yarn_magnitude(cfg.rope.factor, 1, all) end
  local rope, grows = b:rope_table(cfg.rope), growth(cfg)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local window = attention.window(cfg, i, cfg.sliding_window ~= nil)
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, window = window, growth = grows }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
