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

local NAMES = {
  ffn_gate_inp = "mlp.gate", exp_probs_b = "mlp.gate.e_score_correction_bias", ffn_gate_exps = "mlp.experts.%d.gate_proj",
  ffn_up_exps = "mlp.experts.%d.up_proj", ffn_down_exps = "mlp.experts.%d.down_proj", ffn_gate_shexp = "mlp.shared_experts.gate_proj",
  ffn_up_shexp = "mlp.shared_experts.up_proj", ffn_down_shexp = "mlp.shared_experts.down_proj",
}
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

-- The numbers that transformers assumes where config.json lacks them.
local USUAL = {
  deepseek_v3 = { k = 8, scale = 2.5, groups = 8, kept = 4, dense = 3 }, glm4_moe_lite = { k = 4, scale = 1.8, dense = 1 },
}

-- The settings of the experts. sparse(i) says whether layer i has experts.
local function mixture(cfg)
  local gguf, by_sigmoid = cfg.format == "gguf", USUAL[cfg.architecture] ~= nil
  local usual = USUAL[cfg.architecture] or {}
  local function get(hf, other, kind) return cfg.meta(gguf and other or hf, kind) end
  local sigmoid = by_sigmoid or gguf and cfg.meta("expert_gating_func", "count") == 2
  local method = not (by_sigmoid or gguf) and cfg.meta "topk_method" or "greedy"
  if method ~= "greedy" and method ~= "group_limited_greedy" then
    error(("topk_method is '%s', known are greedy and group_limited_greedy"):format(tostring(method)), 0)
  end
  local grouped = by_sigmoid or gguf or method == "group_limited_greedy"
  local dense, kinds = get("first_k_dense_replace", "leading_dense_block_count", "whole") or usual.dense or 0, cfg.meta "mlp_layer_types"
  local norm = gguf and cfg.meta("expert_weights_norm", "flag") or by_sigmoid and cfg.meta("norm_topk_prob", "flag") or false
  return {
    count = cfg.meta("num_local_experts", "whole") or cfg.meta("num_experts", "whole")
      or get("n_routed_experts", "expert_count", "whole") or 0,
    k = get("num_experts_per_tok", "expert_used_count", "whole") or usual.k,
    scale = get("routed_scaling_factor", "expert_weights_scale", "number") or usual.scale,
    score = sigmoid and "sigmoid" or "softmax", norm = norm,
    groups = grouped and get("n_group", "expert_group_count", "count") or usual.groups or 1,
    kept = grouped and get("topk_group", "expert_group_used_count", "count") or usual.kept or 1, best = sigmoid and 2 or 1,
    sparse = function(i)
      if type(kinds) == "table" and kinds[i + 1] then return kinds[i + 1] == "sparse" end
      return i >= dense
    end,
  }
end

M.settings = { sizes = attention_sizes, mixture = mixture }

local function experts(b, x, e)
  local act, gguf = b.cfg.act or "silu", b.cfg.format == "gguf"
  local bias = b:weight("exp_probs_b", { suffix = gguf and ".bias" or "", optional = gguf or e.score ~= "sigmoid" })
  local route = moe.route(b, b:linear(x, "ffn_gate_inp"), {
    k = e.k, score = e.score, bias = bias, norm = e.norm, norm_eps = 1e-20, scale = e.scale, groups = e.groups, groups_kept = e.kept,
    group_best = e.groups > 1 and e.best or 1,
  })
  local list = moe.list(b, e.count, { gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps" })
  local y = moe.experts(b, x, route, list, { act = act })
  if not b:has "ffn_gate_shexp" then return y end
  return b:add(y, b:linear(b:glu(b:linear(x, "ffn_gate_shexp"), b:linear(x, "ffn_up_shexp"), act), "ffn_down_shexp"))
end

function M.shapes(cfg)
  local t, e, d = latent.shapes(cfg, attention_sizes(cfg)), mixture(cfg), cfg.d_model
  local inner = cfg.meta("moe_intermediate_size", "count") or cfg.d_ff
  local shared = inner * (cfg.meta("n_shared_experts", "count") or 1)
  t.ffn_gate_inp, t.exp_probs_b = { e.count, d }, e.score == "sigmoid" and { e.count }
  t.ffn_gate_exps, t.ffn_up_exps, t.ffn_down_exps = { inner, d }, { inner, d }, { d, inner }
  t.ffn_gate_shexp, t.ffn_up_shexp, t.ffn_down_shexp = { shared, d }, { shared, d }, { d, shared }
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
