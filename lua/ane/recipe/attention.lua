--- Attention blocks.
-- Needs ane.recipe.options. Usage (in a recipe): `x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), {rope = table}))`

local options = require "ane.recipe.options"

local M = {}

--- Value of `ahead` that lets a query see all keys of the sequence.
M.ALL = 1 << 30

-- q [1, n_head * head_dim, T, 1], k and v [1, n_head_kv * head_dim, T, 1]
local function linear(b, x, fused)
  local cfg, bias = b.cfg, b.cfg.attention_bias
  if not fused then
    local opts = { bias = bias }
    return b:linear(x, "attn_q", opts), b:linear(x, "attn_k", opts), b:linear(x, "attn_v", opts)
  end
  local nq, nk = cfg.n_head * cfg.head_dim, cfg.n_head_kv * cfg.head_dim
  local rows = b:rows "attn_qkv"
  if rows ~= nq + 2 * nk then
    local heads = ("%d + 2 * %d heads of %d"):format(cfg.n_head, cfg.n_head_kv, cfg.head_dim)
    error(("attn_qkv has %d rows, but must have %d for %s"):format(rows, nq + 2 * nk, heads), 0)
  end
  local function part(name, from, n) return b:linear(x, "attn_qkv", { bias = bias, from = from, to = from + n, name = name }) end
  return part("attn_q", 0, nq), part("attn_k", nq, nk), part("attn_v", nq + nk, nk)
end

--- Grouped-query attention with rotary positions (Ainslie et al. 2023).
-- Weights: attn_q, attn_k, attn_v (or attn_qkv), attn_output. cfg.attention_bias says whether they have biases. With qk_norm also
-- attn_q_norm, attn_k_norm [head_dim].
-- @param x normed input [1, d_model, T, 1]
-- @param opts fused (true: q, k and v are the rows of one weight, attn_qkv), rope (a table from b:rope_table; nil: none),
-- layout (default: the configuration's), qk_norm (nil | "before_rope" | "after_rope" | "layer_norm": LayerNorm before rope with
-- attn_q_norm [n_head, head_dim] and attn_k_norm [n_head_kv, head_dim]; "whole": all heads are normed together, before rope, with
-- attn_q_norm [n_head * head_dim] and attn_k_norm [n_head_kv * head_dim]), norm_offset (added to the q and k norm
-- weights; default: the configuration's), scale (default head_dim^-0.5), window (number of keys that a query sees, including its own;
-- nil: all), softcap, ahead (number of keys after its own that a query sees; nil: none, ALL: the whole sequence), sinks and sink_scale
-- (see b:attention), growth ({beta, original}: q grows with the position, see b:position_scale), out_bias (whether attn_output has a bias;
-- default: cfg.attention_bias)
-- @return value [1, d_model, T, 1]
function M.gqa(b, x, opts)
  opts = options.check("attention.gqa", opts)
  local cfg = b.cfg
  local heads, kv_heads = cfg.n_head, cfg.n_head_kv
  local q, k, v = linear(b, x, opts.fused)
  local function norm()
    q = b:rms_norm(q, "attn_q_norm", { groups = heads, offset = opts.norm_offset })
    k = b:rms_norm(k, "attn_k_norm", { groups = kv_heads, offset = opts.norm_offset })
  end
  if opts.qk_norm == "before_rope" then norm() end
  if opts.qk_norm == "whole" then q, k = b:rms_norm(q, "attn_q_norm"), b:rms_norm(k, "attn_k_norm") end
  if opts.qk_norm == "layer_norm" then
    q, k = b:layer_norm(q, "attn_q_norm", { groups = heads }), b:layer_norm(k, "attn_k_norm", { groups = kv_heads })
  end
  if opts.growth then q = b:position_scale(q, opts.growth.beta, opts.growth.original) end
  if opts.rope then
    q = b:rope(q, opts.rope, "q_rope", { heads = heads, layout = opts.layout })
    k = b:rope(k, opts.rope, "k_rope", { heads = kv_heads, layout = opts.layout })
  end
  if opts.qk_norm == "after_rope" then norm() end
  local o = b:attention(q, k, v, {
    heads = heads, kv_heads = kv_heads, head_dim = cfg.head_dim, scale = opts.scale or cfg.head_dim ^ -0.5, window = opts.window,
    softcap = opts.softcap, ahead = opts.ahead, sinks = opts.sinks, sink_scale = opts.sink_scale,
  })
  local bias = opts.out_bias
  if bias == nil then bias = cfg.attention_bias end
  return b:linear(o, "attn_output", { bias = bias })
end

-- The keys, normed and rotated, and the values, normed without a weight.
local function normed_keys(b, x, opts)
  local heads, bias = opts.kv_heads, { bias = b.cfg.attention_bias }
  local k = b:linear(x, "attn_k", bias)
  local v = opts.k_eq_v and k or b:linear(x, "attn_v", bias)
  k = b:rope(b:rms_norm(k, "attn_k_norm", { groups = heads }), opts.rope, "k_rope", { heads = heads })
  return k, b:rms_norm(v, "attn_v_norm", { groups = heads, weight = false })
end

--- Attention of layers that share keys and values (Gemma 3n, Gemma 4). q, k and v are normed per head, v without a weight; scores are not
-- scaled. A layer that reuses takes the keys and values of the last earlier layer of its kind that computed its own; files may hold
-- weights for them, which are not used.
-- Weights: attn_q, attn_k, attn_v, attn_q_norm, attn_k_norm [head_dim], attn_output. cfg.attention_bias says whether they have biases.
-- @param x normed input [1, d_model, T, 1]
-- @param shared table for all layers: kind -> {k, v}
-- @param opts kind (name), reuses (true: another layer's keys and values), rope (a table from b:rope_table), head_dim and kv_heads
-- (default: the configuration's), window (nil: all), k_eq_v (true: the values are the keys before their norm)
-- @return value [1, d_model, T, 1]
function M.sharing(b, x, shared, opts)
  opts = options.check("attention.sharing", opts)
  local cfg, heads = b.cfg, b.cfg.n_head
  local d, bias = opts.head_dim or cfg.head_dim, { bias = cfg.attention_bias }
  opts.kv_heads = opts.kv_heads or cfg.n_head_kv
  local q = b:rms_norm(b:linear(x, "attn_q", bias), "attn_q_norm", { groups = heads })
  q = b:rope(q, opts.rope, "q_rope", { heads = heads })
  if opts.reuses then
    for _, role in ipairs { "attn_k", "attn_v", "attn_k_norm" } do b:ignore(role) end
  else
    shared[opts.kind] = table.pack(normed_keys(b, x, opts))
  end
  local k, v = table.unpack(shared[opts.kind] or error("no earlier layer of this kind computes keys and values", 0))
  local o = b:attention(q, k, v, { heads = heads, kv_heads = opts.kv_heads, head_dim = d, scale = 1, window = opts.window })
  return b:linear(o, "attn_output", bias)
end

--- The attention window of layer i.
-- @param i layer, 0-based
-- @param sliding whether the layer uses sliding attention; applies where the configuration has no layer_types
-- @return cfg.sliding_window for a layer with sliding attention; nil (all keys) for one with full attention
function M.window(cfg, i, sliding)
  local word = cfg.layer_types and cfg.layer_types[i + 1]
  if word and word ~= "sliding_attention" and word ~= "full_attention" then
    error(("layer_types[%d] is '%s'; known are: full_attention, sliding_attention"):format(i, word), 0)
  end
  if word then sliding = word == "sliding_attention" end
  if not sliding then return nil end
  local window = cfg.sliding_window or error(("layer %d has sliding attention, but sliding_window is missing or 0"):format(i), 0)
  local key = cfg.format == "gguf" and "attention.sliding_window" or "sliding_window" -- the field may have a default of the recipe
  if cfg.meta(key, "whole") == 0 then
    error(("key sliding_window must be 1 or more, because layer %d has sliding attention, but is 0"):format(i), 0)
  end
  return window
end

--- The attention window of layer i of a model in which only use_sliding_window enables sliding attention (Qwen). If layer_types does not
-- say which layers slide, these are the layers from max_window_layers on, by default 28 as in transformers.
-- @param i layer, 0-based
-- @return cfg.sliding_window, or nil, as for `window`
function M.late_window(cfg, i)
  local slides = cfg.meta("use_sliding_window", "flag")
  local window = M.window(cfg, i, slides and i >= (cfg.meta("max_window_layers", "whole") or 28)) -- checks layer_types in any case
  return slides and window or nil
end

return M
