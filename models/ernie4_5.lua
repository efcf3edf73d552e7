--- ERNIE 4.5, dense and mixture of experts, text.
-- Baidu ERNIE team 2025, "ERNIE 4.5 Technical Report". Attention is that of llama. Some leading layers are dense; the others sum the k
-- chosen experts and a shared expert without a gate.
--
-- Quirks: rope rotates neighbouring pairs (2i, 2i + 1), in files of both formats. With use_bias all projections but those of the experts
-- have biases. Experts are chosen by softmax(router) + bias, and weighted by the softmax divided by its sum over the chosen ones.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"
local names = require "ane.recipe.names"
local shapes = require "ane.recipe.shapes"

local M = { architectures = { "ernie4_5", "ernie4_5_moe", "ernie4_5-moe" }, version = 1, whole_rope = true }

M.names = { hf = { exp_probs_b = "mlp.moe_statics.e_score_correction_bias" } }
for role, name in pairs(moe.names) do M.names.hf[role] = M.names.hf[role] or name end
M.ignore = { "^model%.mtp_" } -- blocks that draft tokens

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  if architecture == "ernie4_5" then return { num_key_value_heads = 2, head_dim = 128, rms_norm_eps = 1e-5 } end
  return { num_key_value_heads = 4, rms_norm_eps = 1e-5, moe_intermediate_size = 1536, moe_norm_min = 1e-12 }
end

M.defaults = { gguf = { rope = { layout = "interleaved" } }, hf = { tied = true, rope = { layout = "interleaved", theta = 500000.0 } } }

-- The settings of the experts: count, k, shared (number of shared experts), first, last and step of the layers with experts. sparse(i)
-- says whether layer i has experts. nil: there are none.
local function mixture(cfg)
  if cfg.architecture == "ernie4_5" then return nil end
  local gguf = cfg.format == "gguf"
  local function get(hf, other, usual)
    local v = cfg.meta(gguf and other or hf, "whole")
    return v or not gguf and usual or nil
  end
  local last = not gguf and cfg.meta("moe_layer_end_index", "number") or -1
  local e = {
    count = cfg.meta("num_experts", "count") or get("moe_num_experts", "expert_count", 64),
    k = cfg.meta("num_experts_per_tok", "count") or get("moe_k", "expert_used_count", 6),
    shared = get("moe_num_shared_experts", "expert_shared_count", 2),
    first = get("moe_layer_start_index", "leading_dense_block_count", 1) or 0, last = last == -1 and cfg.n_layer - 1 or last,
    step = cfg.meta(gguf and "interleave_moe_layer_step" or "moe_layer_interval", "count") or 1,
  }
  function e.sparse(i) return i >= e.first and i <= e.last and (i + 1) % e.step == 0 end
  return e
end

M.settings = { mixture = mixture }

-- The divisor of the weights has a lower limit, which is added here: it must be too small to matter. GGUF does not store
-- it: then it is the default of transformers.
local function least_sum(cfg)
  if cfg.format == "gguf" then return 1e-12 end
  local least = cfg.meta("moe_norm_min", "number") or 0
  if least >= 0 and least <= 1e-9 then return least end
  error(("key moe_norm_min is %g, but must be from 0 to 1e-9"):format(least), 0)
end

local function experts(b, x, e)
  local gguf, shared = b.cfg.format == "gguf", nil
  if not gguf then shared = e.shared > 0 end
  return moe.plus_shared(b, x, {
    count = e.count, k = e.k, score = "softmax", bias = not gguf or nil, norm = true, norm_eps = least_sum(b.cfg), shared = shared,
    scale = gguf and b.cfg.meta("expert_weights_scale", "number"),
  })
end

-- Do all projections have biases? nil: as the file has them.
local function has_biases(cfg)
  if cfg.format == "gguf" then return nil end
  return cfg.meta("use_bias", "flag") or false
end

function M.shapes(cfg, t)
  local biases, e, own = has_biases(cfg), mixture(cfg), {}
  if e then
    own = moe.shapes(cfg, { count = e.count, shared = e.shared })
    own.exp_probs_b = { 1, e.count }
  end
  for _, key in ipairs { "attention_bias", "mlp_bias" } do
    local roles = names.with_bias(key)
    for _, role in ipairs(roles) do t[role .. ".bias"] = nil end
    if biases then shapes.biases(t, roles) end
  end
  return own
end

function M.build(b, cfg)
  local e, biases = mixture(cfg), has_biases(cfg)
  cfg.attention_bias, cfg.mlp_bias = biases, biases
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope }))
      local h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, e and e.sparse(i) and experts(b, h, e) or ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
