--- Attention blocks.
-- Usage (in a recipe): `x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), {rope = table}))`

local M = {}

--- Grouped-query attention with rotary positions (Ainslie et al. 2023).
-- Weights: attn_q, attn_k, attn_v, attn_output, each with its bias where the file has one; with qk_norm also attn_q_norm,
-- attn_k_norm [head_dim].
-- @param x normed input [1, d_model, T, 1]
-- @param opts rope (a table from b:rope_table; nil: none), layout ("half" | "interleaved"), qk_norm (nil |
-- "before_rope" | "after_rope"), norm_offset (added to the q and k norm weights), scale (default head_dim^-0.5), window
-- (keys seen, its own included; nil: all), softcap
-- @return [1, d_model, T, 1]
function M.gqa(b, x, opts)
  local cfg = b.cfg
  local heads, kv_heads = cfg.n_head, cfg.n_head_kv
  local q, k, v = b:linear(x, "attn_q"), b:linear(x, "attn_k"), b:linear(x, "attn_v")
  local function norm()
    q = b:rms_norm(q, "attn_q_norm", { groups = heads, offset = opts.norm_offset })
    k = b:rms_norm(k, "attn_k_norm", { groups = kv_heads, offset = opts.norm_offset })
  end
  if opts.qk_norm == "before_rope" then norm() end
  if opts.rope then
    q = b:rope(q, opts.rope, "q_rope", { heads = heads, layout = opts.layout })
    k = b:rope(k, opts.rope, "k_rope", { heads = kv_heads, layout = opts.layout })
  end
  if opts.qk_norm == "after_rope" then norm() end
  local o = b:attention(q, k, v, {
    heads = heads, kv_heads = kv_heads, head_dim = cfg.head_dim, scale = opts.scale or cfg.head_dim ^ -0.5, window = opts.window,
    softcap = opts.softcap,
  })
  return b:linear(o, "attn_output")
end

return M
