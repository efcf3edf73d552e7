--- Gemma 3n, text.
-- Gemma team 2025, "Gemma 3n"; AltUp: Baykal et al. 2023; LAuReL: Menghani et al. 2024.
--
-- Quirks: norms multiply by w. There are several residual streams (AltUp), one of which is active. A low-rank branch (LAuReL) runs beside
-- attention; their sum is divided by sqrt(2). v is normed without a weight; scores are not scaled. Some layers keep only gate values far
-- above the token's mean (activation_sparsity_pattern). The last layers reuse the keys and values of the last earlier layer of their kind
-- that computes its own; files may hold weights for them, which are not used. Each layer adds a gated projection of its slice of a second
-- embedding to all streams but the first.

local altup = require "ane.recipe.altup"
local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local lists = require "ane.recipe.lists"
local per_layer = require "ane.recipe.per_layer"

local M = { architectures = { "gemma3n", "gemma3n_text" }, version = 1, whole_rope = true }

local NAMES = {
  post_attention_norm = "post_attention_layernorm", ffn_norm = "pre_feedforward_layernorm", post_ffw_norm = "post_feedforward_layernorm",
  per_layer_token_embd = "model.embed_tokens_per_layer", per_layer_model_proj = "model.per_layer_model_projection",
  per_layer_proj_norm = "model.per_layer_projection_norm", inp_gate = "per_layer_input_gate", proj = "per_layer_projection",
  post_norm = "post_per_layer_input_norm", laurel_l = "laurel.linear_left", laurel_r = "laurel.linear_right",
  laurel_post_norm = "laurel.post_laurel_norm", altup_router_norm = "altup.router_norm", altup_router = "altup.modality_router",
  altup_predict_coef = "altup.prediction_coefs", altup_correct_coef = "altup.correction_coefs",
  altup_correct_scale = "altup.correct_output_scale",
}
local MOST_STREAMS = 8
for i = 1, MOST_STREAMS - 1 do
  NAMES["altup_proj." .. i] = ("model.altup_projections.%d"):format(i - 1)
  NAMES["altup_unembd_proj." .. i] = ("model.altup_unembed_projections.%d"):format(i - 1)
end
M.names = { hf = NAMES }
M.config = { num_key_value_heads = 2, head_dim = 256, sliding_window = 512 }
M.defaults = { hf = {
  norm_eps = 1e-6, tied = true, attention_bias = false, act = "gelu_tanh", rope = { theta = 1e6 },
  keys = { altup_num_inputs = 4, hidden_size_per_layer_input = 256, num_kv_shared_layers = 15, final_logit_softcapping = 30.0 },
} }

-- The number of residual streams.
local function stream_count(cfg)
  local n = cfg.meta("altup_num_inputs", "count")
  if n > MOST_STREAMS then error(("key altup_num_inputs must be at most %d, but is %d"):format(MOST_STREAMS, n), 0) end
  return n
end

function M.shapes(cfg, t)
  local d, n, width = cfg.d_model, stream_count(cfg), cfg.meta("hidden_size_per_layer_input", "count")
  local widths, rank = cfg.meta "intermediate_size", cfg.meta("laurel_rank", "count") or 64
  local function feed(i) return type(widths) == "table" and widths[i + 1] or cfg.d_ff end
  t.ffn_gate, t.ffn_down = function(i) return { feed(i), d } end, function(i) return { d, feed(i) } end
  t.ffn_up = t.ffn_gate
  for i = 1, n - 1 do t["altup_proj." .. i], t["altup_unembd_proj." .. i] = { d, d }, { d, d } end
  return {
    per_layer_token_embd = { cfg.meta("vocab_size_per_layer_input", "count") or cfg.vocab_size, cfg.n_layer * width },
    per_layer_model_proj = { cfg.n_layer * width, d }, per_layer_proj_norm = { width }, inp_gate = { width, d }, proj = { d, width },
    post_norm = { d }, laurel_l = { rank, d }, laurel_r = { d, rank }, laurel_post_norm = { d }, altup_router_norm = { d },
    altup_router = { n, d }, altup_predict_coef = { n * n, n }, altup_correct_coef = { n, n }, altup_correct_scale = { d },
  }
end

-- The share of gate values that layer i drops. Where the configuration has no list, the first ten of more than ten layers drop them.
local function sparsities(cfg)
  local list = lists.per_layer(cfg, "activation_sparsity_pattern")
  return function(i)
    if list then return list[i + 1] end
    return cfg.n_layer > 10 and i < 10 and 0.95 or 0
  end
end

local quantiles = {} -- by p: most layers have the same

-- The p-quantile of the standard normal distribution, by bisection.
local function quantile(p)
  if quantiles[p] then return quantiles[p] end
  local function below(x) -- the normal distribution function, by Simpson's rule from 0 to x
    local n, sum = 400, 0
    for i = 0, n do
      local t = x * i / n
      sum = sum + math.exp(-t * t / 2) * ((i == 0 or i == n) and 1 or i % 2 == 1 and 4 or 2)
    end
    return 0.5 + sum * x / n / 3 / math.sqrt(2 * math.pi)
  end
  local low, high = -10.0, 10.0
  for _ = 1, 60 do
    local mid = (low + high) / 2
    if below(mid) < p then low = mid else high = mid end
  end
  quantiles[p] = (low + high) / 2
  return quantiles[p]
end

-- relu(x - mean - k std) per token. std is rms(d) with d = x - mean. No op gives rms(d), so it is computed as the mean of d * d / rms(d).
local function far_above(b, x, k)
  local c = b:channels(x)
  local function spread(v) return b:repeat_heads(v, 1, c) end -- [1, 1, T, 1] to all channels
  local d = b:add(x, b:scale(spread(b:mean_heads(x, c, c)), -1))
  local std = b:mean_heads(b:mul(d, b:rms_norm(d, "unit", { weight = false, offset = 0, eps = 1e-30 })), c, c)
  return b:act(b:add(d, b:scale(spread(std), -k)), "relu")
end

-- sparsity: the share of the gate values that become 0, if they were normally distributed.
local function feed_forward(b, x, sparsity)
  if not (sparsity >= 0 and sparsity < 1) then -- also NaN
    error(("activation_sparsity_pattern has the entry %s, but must have numbers from 0 to below 1"):format(sparsity), 0)
  end
  if sparsity == 0 then return ffn.gated(b, x, "gelu_tanh") end
  local gate = far_above(b, b:linear(x, "ffn_gate", { bias = false }), quantile(sparsity))
  return b:linear(b:glu(gate, b:linear(x, "ffn_up", { bias = false }), b.cfg.act), "ffn_down", { bias = false })
end

-- The output of a layer for the active stream: attention and LAuReL, then the feed-forward. l: options of
-- attention.sharing; sparsity: see feed_forward.
local function active(b, x, l, sparsity, shared)
  local h = b:rms_norm(x, "attn_norm")
  local low = b:linear(b:linear(h, "laurel_l"), "laurel_r")
  low = b:add(h, b:rms_norm(low, "laurel_post_norm"))
  local a = b:rms_norm(attention.sharing(b, h, shared, l), "post_attention_norm")
  local y = b:scale(b:add(b:add(x, a), low), 2 ^ -0.5)
  return b:add(y, b:rms_norm(feed_forward(b, b:rms_norm(y, "ffn_norm"), sparsity), "post_ffw_norm"))
end

function M.build(b, cfg)
  if cfg.format ~= "hf" then error("GGUF files of Gemma 3n are not known here; known are folders", 0) end
  local n, at = stream_count(cfg), (cfg.meta("altup_active_idx", "whole") or 0) + 1
  if at > n then error(("key altup_active_idx must be less than altup_num_inputs (%d), but is %d"):format(n, at - 1), 0) end
  local full = b:rope_table(cfg.rope, "rope_full")
  local near = b:rope_table(cfg.ropes and cfg.ropes.sliding_attention or
    { theta = cfg.rope.local_theta or 10000.0, dims = cfg.rope.dims }, "rope_sliding")
  local own, shared = cfg.n_layer - cfg.meta("num_kv_shared_layers", "whole"), {}
  local sparsity = sparsities(cfg)
  local x = b:scale(b:embed "token_embd", math.sqrt(cfg.d_model)) -- [1, d_model, T, 1]
  local extra = per_layer.inputs(b, x, cfg.meta("hidden_size_per_layer_input", "count"))
  local streams = altup.streams(b, x, n)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local window = attention.window(cfg, i, (i + 1) % 5 ~= 0)
      local l = { kind = window and "near" or "full", window = window, rope = window and near or full, reuses = i >= own }
      local p = altup.predict(b, streams, at)
      streams = altup.correct(b, p, active(b, p[at], l, sparsity(i), shared), at)
      local own_stream = streams[at]
      local scale = b:weight("altup_correct_scale", { suffix = "", optional = true })
      if scale and cfg.meta("altup_correct_scale", "flag") ~= false then own_stream = b:affine(own_stream, false, scale) end
      local more = per_layer.branch(b, own_stream, extra(i))
      for k = 2, #streams do streams[k] = b:add(streams[k], more) end
    end)
  end
  return head.lm(b, altup.joined(b, streams), { softcap = cfg.meta("final_logit_softcapping", "positive") }) -- [1, n_vocab, W, 1]
end

return M
