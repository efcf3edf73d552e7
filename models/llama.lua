--- Llama, SmolLM2, Mistral, Mixtral and other models that are converted to GGUF as "llama".
-- Touvron et al. 2023, "LLaMA: Open and Efficient Foundation Language Models"; GQA as in Llama 2 and 3. Jiang et al. 2024, "Mixtral of
-- Experts": the feed-forward sums the k chosen experts, weighted by the softmax over their router logits.
--
-- Quirks: the GGUF converter permutes the rows of attn_q and attn_k (and their biases), so rope pairs 2i with 2i + 1 (layout
-- "interleaved"). Hugging Face files pair i with i + r/2. In GGUF, Llama 3's rope scaling is a tensor of divisors, rope_freqs.weight.
-- For GGUF, biases are used if the file has them. If there is no output.weight, the head is the embedding. A GGUF file with an
-- expert_count is a Mixtral. Folders of Mixtral call gate, down and up w1, w2 and w3; the sliding window applies to all layers, and GGUF
-- files cannot say it.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"

local M = { architectures = { "llama", "mixtral" }, version = 1, whole_rope = true }

M.names = { hf = {
  ffn_gate_inp = "block_sparse_moe.gate", ffn_gate_exps = "block_sparse_moe.experts.%d.w1", ffn_up_exps = "block_sparse_moe.experts.%d.w3",
  ffn_down_exps = "block_sparse_moe.experts.%d.w2",
} }
M.defaults = {
  gguf = { rope = { layout = "interleaved" } },
  hf = { norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false },
}

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  return architecture == "mixtral" and { num_key_value_heads = 8, rms_norm_eps = 1e-5, rope_theta = 1e6, num_experts_per_tok = 2 } or nil
end

-- The modules of transformers' class whose names are not those of its files.
function M.modules(place)
  local name = place.stack and "experts" or place.role == "ffn_gate_inp" and "gate"
  return name and ("layers.%d.mlp.%s"):format(place.layer, name) or nil
end

-- The experts: count (0: the model has none), k.
local function mixture(cfg)
  if cfg.format == "gguf" then return { count = cfg.meta("expert_count", "whole") or 0, k = cfg.meta("expert_used_count", "count") } end
  if cfg.architecture ~= "mixtral" then return { count = 0 } end
  local count = cfg.meta("num_local_experts", "count") or cfg.meta("num_experts", "count") or 8
  return { count = count, k = cfg.meta("num_experts_per_tok", "count") }
end

M.settings = { mixture = mixture }

function M.shapes(cfg)
  local count = mixture(cfg).count
  return count > 0 and moe.expert_shapes(cfg, count, cfg.d_ff) or nil
end

function M.build(b, cfg)
  local experts, window = mixture(cfg), nil
  if cfg.architecture == "mixtral" then -- whose class has no keys for biases
    cfg.attention_bias, cfg.mlp_bias, window = false, false, cfg.sliding_window
    if cfg.meta("sliding_window", "whole") == 0 then error("key sliding_window is 0, but must be a number above 0, or null", 0) end
  end
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, window = window }))
      local h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, experts.count > 0 and moe.weighted(b, h, { count = experts.count, k = experts.k, norm = true }) or
        ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
