--- SmolLM3.
-- Hugging Face 2025, "SmolLM3: smol, multilingual, long-context reasoner". Like Llama, but every fourth layer has no rope.
--
-- Quirks: no_rope_layers[i] = 1 means that layer i has rope. If the model has sliding attention (use_sliding_window, or layer_types), it
-- is in the layers without rope. GGUF does not store which layers have rope. As with Llama, it permutes q and k for neighbouring pairs.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local lists = require "ane.recipe.lists"

local M = { architectures = { "smollm3" }, version = 1, whole_rope = true }

M.config = { num_key_value_heads = 4 }
M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = { norm_eps = 1e-6, tied = true, attention_bias = false, mlp_bias = false, rope = { theta = 2e6 } },
}

-- Returns function(i) -> whether layer i has rope.
local function rotating(cfg)
  local list, interval = lists.per_layer(cfg, "no_rope_layers"), cfg.meta("no_rope_layer_interval", "count") or 4
  return function(i)
    if list then return list[i + 1] ~= 0 end
    return (i + 1) % interval ~= 0
  end
end

function M.build(b, cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope, rotates = b:rope_table(cfg.rope), rotating(cfg)
  local slides = cfg.meta("use_sliding_window", "flag") and cfg.sliding_window
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local window = attention.window(cfg, i, slides and not rotates(i))
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rotates(i) and rope or nil, window = window }))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
