--- Mamba-2.
-- Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality".
--
-- Quirks: there is no attention and no feed-forward. GGUF stores A = -exp(A_log) and no limits of the time step. The original files have
-- neither num_attention_heads nor a context length.

local head = require "ane.recipe.head"
local mamba2 = require "ane.recipe.mamba2"

local M = { architectures = { "mamba2" }, version = 1 }

M.names = {
  hf = function(_, common)
    local own = mamba2.names "mixer"
    own.attn_norm = "norm"
    local names = common(own)
    return function(role, layer)
      if role == "token_embd" then return "backbone.embeddings" end
      if role == "output_norm" then return "backbone.norm_f" end
      return (names(role, layer):gsub("^model%.", "backbone."))
    end
  end,
}
M.defaults = { hf = { norm_eps = 1e-5, tied = false } }

local function settings(cfg)
  if cfg.format == "gguf" then return mamba2.of_gguf(cfg) end
  local low, high = mamba2.limits(cfg)
  return {
    heads = cfg.meta("num_heads", "count"), width = cfg.head_dim, groups = cfg.meta("n_groups", "count") or 8,
    n = cfg.meta("state_size", "count") or 128, taps = cfg.meta("conv_kernel", "count") or 4, low = low, high = high,
    act = cfg.act, bias = cfg.meta("use_bias", "flag"), conv_bias = cfg.meta("use_conv_bias", "flag"),
  }
end

M.settings = { state_space = settings }

function M.shapes(cfg) return mamba2.shapes(cfg, settings(cfg)) end

function M.build(b, cfg)
  local s = settings(cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function() x = b:add(x, mamba2.block(b, b:rms_norm(x, "attn_norm"), s)) end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
