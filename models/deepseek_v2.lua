--- DeepSeek-V2, V2-Lite and V3, and GLM-4.7-Flash (glm4_moe_lite): latent attention and experts.
-- DeepSeek-AI 2024, "DeepSeek-V2" and "DeepSeek-V3 Technical Report"; Z.ai 2026, "GLM-4.7-Flash".
--
-- Quirks: rope rotates neighbouring pairs of a part of each head. The latent norms have eps 1e-6, whatever rms_norm_eps says. With scaled
-- rope, scores are multiplied by mscale^2. The first layers are dense. DeepSeek-V2 weights experts by the softmax over all of them, times
-- a factor; norm_topk_prob has no effect. It may first choose expert groups, ranked by their best expert. V3 and GLM choose experts by
-- sigmoid(router) + bias, weight them by the normalised sigmoid, and rank groups by their two best experts. GGUF calls DeepSeek-V2 and
-- V3 deepseek2.

local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local latent = require "ane.recipe.latent"
local moe = require "ane.recipe.moe"

local M = { architectures = { "deepseek_v2", "deepseek_v3", "deepseek2", "glm4_moe_lite" }, version = 1 }

local NAMES = {}
for role, name in pairs(moe.names) do NAMES[role] = name end
for role, name in pairs(latent.names) do NAMES[role] = name end
M.names = { hf = NAMES }
M.ignore = { "^model%.layers%.47%.", "^model%.layers%.61%." } -- layers that draft tokens, in published GLM-4.7-Flash and V3
M.defaults = { hf = { norm_eps = 1e-6, tied = false, attention_bias = false, mlp_bias = false } }

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  if architecture == "deepseek_v2" then return { q_lora_rank = 1536, n_routed_experts = 64 } end
  local usual = { q_lora_rank = 1536, n_routed_experts = 256, norm_topk_prob = true, rope_interleave = true }
  if architecture == "deepseek_v3" then return usual end
  usual.q_lora_rank, usual.qk_nope_head_dim, usual.v_head_dim, usual.n_routed_experts, usual.rms_norm_eps = 768, 192, 256, 64, 1e-5
  return usual
end

-- The factor on attention scores that scaled rope requires: (1 + 0.1 mscale_all_dim ln(factor))^2. GGUF stores 0.1 mscale_all_dim.
local function score_factor(cfg)
  if not cfg.rope then error("key rope_parameters describes no rope for all layers, which latent attention needs", 0) end
  local all = cfg.rope.mscale_all_dim or 0
  if cfg.format == "gguf" then all = 10 * (cfg.meta("rope.scaling.yarn_log_multiplier", "number") or 0) end
  local factor = cfg.rope.scaling and cfg.rope.factor or 1
  return factor > 1 and all ~= 0 and (1 + 0.1 * all * math.log(factor)) ^ 2 or 1
end

-- The sizes of latent attention.
local function attention_sizes(cfg)
  local s
  if cfg.format == "gguf" then
    local rope = cfg.rope.dims
    s = {
      rank = cfg.meta("attention.kv_lora_rank", "count"), q_rank = cfg.meta("attention.q_lora_rank", "whole"), rope = rope,
      nope = (cfg.meta("attention.key_length_mla", "count") or cfg.head_dim) - rope,
      value = cfg.meta("attention.value_length_mla", "count") or cfg.meta("attention.value_length", "count"),
    }
    if s.q_rank == 0 then s.q_rank = nil end
  else
    s = {
      rank = cfg.meta("kv_lora_rank", "count") or 512, q_rank = cfg.meta("q_lora_rank", "count"),
      rope = cfg.meta("qk_rope_head_dim", "count") or 64, nope = cfg.meta("qk_nope_head_dim", "count") or 128,
      value = cfg.meta("v_head_dim", "count") or 128,
    }
  end
  s.scale, s.eps = (s.nope + s.rope) ^ -0.5 * score_factor(cfg), 1e-6
  local by_key = cfg.architecture == "deepseek_v3" or cfg.architecture == "glm4_moe_lite" -- DeepSeek-V2 does not have the key
  s.layout = (cfg.meta("rope_interleave", "flag") or not by_key) and "interleaved" or "half"
  return s
end

-- What files mean where they lack the keys.
local USUAL = {
  deepseek_v3 = { score = "sigmoid", k = 8, scale = 2.5, groups = 8, kept = 4, dense = 3 },
  glm4_moe_lite = { score = "sigmoid", k = 4, scale = 1.8, dense = 1 },
}

-- The settings of the experts. sparse(i) says whether layer i has experts.
local function mixture(cfg)
  local e, kinds = moe.grouped(cfg, USUAL[cfg.architecture] or {}), cfg.meta "mlp_layer_types"
  if cfg.architecture == "deepseek_v2" then
    local method = cfg.meta "topk_method" or "greedy"
    if method ~= "greedy" and method ~= "group_limited_greedy" then
      error(("topk_method is '%s', known are greedy and group_limited_greedy"):format(tostring(method)), 0)
    end
    if method == "greedy" then e.groups, e.kept = 1, 1 end
    e.norm = false
  end
  function e.sparse(i)
    if type(kinds) == "table" and kinds[i + 1] then return kinds[i + 1] == "sparse" end
    return i >= e.dense
  end
  return e
end

M.settings = { sizes = attention_sizes, mixture = mixture }

local function experts(b, x, e)
  local required = b.cfg.format ~= "gguf" and e.score == "sigmoid"
  return moe.plus_shared(b, x, {
    count = e.count, k = e.k, score = e.score, norm = e.norm, norm_eps = 1e-20, scale = e.scale, groups = e.groups, groups_kept = e.kept,
    group_best = e.groups > 1 and e.best or 1, bias = required or nil,
  })
end

function M.shapes(cfg)
  local t, e = latent.shapes(cfg, attention_sizes(cfg)), mixture(cfg)
  for role, shape in pairs(moe.shapes(cfg, { count = e.count, shared = math.max(e.shared, 1), bias = e.score == "sigmoid" })) do
    t[role] = shape
  end
  return t
end

function M.build(b, cfg)
  local s, e = attention_sizes(cfg), mixture(cfg)
  -- YaRN's factor on cosine and sine is a quotient, of mscale by mscale_all_dim. GGUF has one key for both, so the quotient is 1.
  local one_mscale = cfg.format == "gguf" and (cfg.meta("rope.scaling.yarn_log_multiplier", "number") or 0) ~= 0
  if one_mscale and cfg.rope.scaling == "yarn" then cfg.rope.attn_factor = 1 end
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      x = b:add(x, latent.attention(b, b:rms_norm(x, "attn_norm"), rope, s))
      local h = b:rms_norm(x, "ffn_norm")
      x = b:add(x, e.count > 0 and e.sparse(i) and experts(b, h, e) or ffn.gated(b, h, "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
