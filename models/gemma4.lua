--- Gemma 4, text (E2B, E4B, the dense models and those with experts).
-- Gemma team 2026, "Gemma 4".
--
-- Quirks: norms multiply by w. Each branch is normed before and after. Full layers have wider heads (global_head_dim, or per_layer_config
-- in newer files), and their rope rotates only the first pairs of a head. Scores are not scaled. q and k are normed per head, v without a
-- weight. The last layers reuse the keys and values of the last earlier layer of their kind that computes its own. Each layer adds a gated
-- projection of its slice of a second embedding. The layer's output is multiplied by a stored number, layer_scalar. Logits are
-- soft-capped. With enable_moe_block, experts run beside the feed-forward. The experts and their router read the input of the layer's
-- second half, each through a norm of its own. The weights of the chosen experts sum to 1 and are then multiplied by per_expert_scale.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"
local per_layer = require "ane.recipe.per_layer"

local M = { architectures = { "gemma4", "gemma4_text" }, version = 1 }

M.names = { hf = {
  post_attention_norm = "post_attention_layernorm", ffn_norm = "pre_feedforward_layernorm", post_ffw_norm = "post_feedforward_layernorm",
  per_layer_token_embd = "model.embed_tokens_per_layer", per_layer_model_proj = "model.per_layer_model_projection",
  per_layer_proj_norm = "model.per_layer_projection_norm", inp_gate = "per_layer_input_gate", proj = "per_layer_projection",
  post_norm = "post_per_layer_input_norm", layer_output_scale = "layer_scalar",
  router_norm = "router.scale", ffn_gate_inp = "router.proj", expert_scale = "router.per_expert_scale",
  gate_up = "experts.gate_up_proj", ffn_down_exps = "experts.down_proj", post_ffw_norm_1 = "post_feedforward_layernorm_1",
  pre_ffw_norm_2 = "pre_feedforward_layernorm_2", post_ffw_norm_2 = "post_feedforward_layernorm_2",
} }
M.config = {
  num_key_value_heads = 4, head_dim = 256, hidden_size_per_layer_input = 256, sliding_window = 512,
  rope_parameters = {
    sliding_attention = { rope_theta = 1e4 },
    full_attention = { rope_type = "proportional", partial_rotary_factor = 0.25, rope_theta = 1e6 },
  },
}
M.defaults = { hf = { norm_eps = 1e-6, tied = true, attention_bias = false, act = "gelu_tanh" } }

local OVERRIDES = { head_dim = true, num_key_value_heads = true } -- the keys that an entry of per_layer_config may have

-- The entry of per_layer_config for layer i; empty if there is none. Keys are numbers, padded with zeros in models of 10 layers or more.
local function entry_of(cfg, i)
  for key, entry in pairs(cfg.meta("per_layer_config", "object") or {}) do
    if math.tointeger(tonumber(key)) == i then
      if type(entry) ~= "table" then error(("key per_layer_config.%s must be an object, but is %s"):format(key, type(entry)), 0) end
      for what, count in pairs(entry) do
        local name = ("per_layer_config.%s.%s"):format(key, what)
        if not OVERRIDES[what] then error(name .. " is not computed", 0) end
        if math.type(count) ~= "integer" or count < 1 then
          error(("key %s must be a whole number of at least 1, but is %s"):format(name, tostring(count)), 0)
        end
      end
      return entry
    end
  end
  return {}
end

-- The kind of attention of layer i, as layer_types names it. The last layer always has full attention.
local function word_of(cfg, i)
  if i == cfg.n_layer - 1 then return "full_attention" end
  if cfg.layer_types then return cfg.layer_types[i + 1] end
  return (i + 1) % 6 == 0 and "full_attention" or "sliding_attention"
end

-- The width of the heads of full layers, where per_layer_config does not give it. Files have one of the two keys.
local function full_width(cfg)
  return cfg.meta("global_head_dim", "count") or cfg.meta "per_layer_config" == nil and 512 or cfg.head_dim
end

-- The settings of layer i, options of attention.sharing: kind ("full" or "near"), head_dim, kv_heads, window, k_eq_v. M.build adds rope and
-- reuses.
local function layer_of(cfg, i)
  local word, own = word_of(cfg, i), entry_of(cfg, i)
  if word == "sliding_attention" then
    if next(own) then error(("per_layer_config.%d of a layer with sliding attention is not computed"):format(i), 0) end
    return { kind = "near", head_dim = cfg.head_dim, kv_heads = cfg.n_head_kv, window = attention.window(cfg, i, true) }
  end
  if word ~= "full_attention" then error(("layer_types[%d] is %s"):format(i, tostring(word)), 0) end
  local same = cfg.meta("attention_k_eq_v", "flag")
  return {
    kind = "full", k_eq_v = same, head_dim = own.head_dim or full_width(cfg),
    kv_heads = own.num_key_value_heads or same and cfg.meta("num_global_key_value_heads", "count") or cfg.n_head_kv,
  }
end

-- The settings of the experts: count, k, inner; nil for a model without experts.
local function mixture(cfg)
  if not cfg.meta("enable_moe_block", "flag") then return nil end
  local function count(key) return cfg.meta(key, "count") or error(("key %s is missing: enable_moe_block needs it"):format(key), 0) end
  return { count = count "num_experts", k = count "top_k_experts", inner = count "moe_intermediate_size" }
end

-- The experts. They read x itself, not the normed input of the feed-forward.
local function experts(b, x, e)
  local h = b:scale(b:rms_norm(x, "router_norm", { weight = b:weight("router_norm", { suffix = "" }) }), b.cfg.d_model ^ -0.5)
  local route = moe.route(b, b:linear(h, "ffn_gate_inp"),
    { k = e.k, score = "softmax", norm = true, factors = b:weight("expert_scale", { suffix = "" }) })
  local list = moe.list(b, e.count, { gate_up = "gate_up", down = "ffn_down_exps" }, { inner = e.inner })
  return moe.experts(b, b:rms_norm(x, "pre_ffw_norm_2"), route, list, { act = b.cfg.act or "gelu_tanh" })
end

-- The second half of a layer.
local function feed_forward(b, x, e)
  local m = ffn.gated(b, b:rms_norm(x, "ffn_norm"), "gelu_tanh")
  if e then m = b:add(b:rms_norm(m, "post_ffw_norm_1"), b:rms_norm(experts(b, x, e), "post_ffw_norm_2")) end
  return b:add(x, b:rms_norm(m, "post_ffw_norm"))
end

function M.shapes(cfg, t)
  local d, width = cfg.d_model, cfg.meta("hidden_size_per_layer_input", "whole") or 0
  local own = cfg.n_layer - (cfg.meta("num_kv_shared_layers", "whole") or 0)
  local function feed(i) return cfg.d_ff * (cfg.meta("use_double_wide_mlp", "flag") and i >= own and 2 or 1) end
  local function by_heads(fn)
    return function(i)
      local l = layer_of(cfg, i)
      return fn(l.head_dim, l.kv_heads)
    end
  end
  t.attn_q = by_heads(function(h) return { cfg.n_head * h, d } end)
  t.attn_k = by_heads(function(h, kv) return { kv * h, d } end)
  t.attn_output = by_heads(function(h) return { d, cfg.n_head * h } end)
  t.attn_q_norm = by_heads(function(h) return { h } end)
  t.attn_v, t.attn_k_norm = t.attn_k, t.attn_q_norm
  t.ffn_gate, t.ffn_down = function(i) return { feed(i), d } end, function(i) return { d, feed(i) } end
  t.ffn_up = t.ffn_gate
  local e = mixture(cfg)
  if e then
    t.router_norm, t.ffn_gate_inp, t.expert_scale = { d }, { e.count, d }, { e.count }
    t.gate_up, t.ffn_down_exps = { e.count, 2 * e.inner, d }, { e.count, d, e.inner }
    t.post_ffw_norm_1, t.pre_ffw_norm_2, t.post_ffw_norm_2 = { d }, { d }, { d }
  end
  if width == 0 then return nil end
  return {
    per_layer_token_embd = { cfg.vocab_size, cfg.n_layer * width }, per_layer_model_proj = { cfg.n_layer * width, d },
    per_layer_proj_norm = { width }, inp_gate = { width, d }, proj = { d, width }, post_norm = { d },
  }
end

-- The rope of the full layers, whose heads are wider. Ropes with other scaling are not computed for wider heads.
local function full_rope(cfg)
  local r = cfg.rope
  for i = 0, cfg.n_layer - 1 do
    local l = layer_of(cfg, i)
    if l.kind == "full" and r then
      if r.scaling and r.scaling ~= "proportional" and l.head_dim ~= cfg.head_dim then
        error(("rope type '%s' in heads of global_head_dim is not computed"):format(r.scaling), 0)
      end
      r.dims = l.head_dim
    end
  end
  return r
end

function M.build(b, cfg)
  if cfg.format ~= "hf" then error("GGUF files of Gemma 4 are not known here; known are folders", 0) end
  local both = cfg.meta "use_bidirectional_attention" -- "vision" concerns images only
  if both and both ~= "vision" then error(("use_bidirectional_attention '%s' is not computed"):format(tostring(both)), 0) end
  local ropes = { near = cfg.ropes and cfg.ropes.sliding_attention or cfg.rope, full = full_rope(cfg) }
  local tables = { near = b:rope_table(ropes.near, "rope_sliding"), full = b:rope_table(ropes.full, "rope_full") }
  local e = mixture(cfg)
  local own, shared = cfg.n_layer - (cfg.meta("num_kv_shared_layers", "whole") or 0), {}
  local x = b:scale(b:embed "token_embd", math.sqrt(cfg.d_model)) -- [1, d_model, T, 1]
  local extra = per_layer.inputs(b, x, cfg.meta("hidden_size_per_layer_input", "whole") or 0)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local l = layer_of(cfg, i)
      l.rope, l.reuses = tables[l.kind], i >= own
      local a = attention.sharing(b, b:rms_norm(x, "attn_norm"), shared, l)
      x = b:add(x, b:rms_norm(a, "post_attention_norm"))
      x = feed_forward(b, x, e)
      if extra then x = b:add(x, per_layer.branch(b, x, extra(i))) end
      x = b:scale(x, b:number("layer_output_scale", "") or 1)
    end)
  end
  return head.lm(b, x, { softcap = cfg.meta("final_logit_softcapping", "positive") }) -- [1, n_vocab, W, 1]
end

return M
