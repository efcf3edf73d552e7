--- Multi-head latent attention.
-- DeepSeek-AI 2024, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model".
--
-- This is the absorbed form: queries meet the latents directly, since q (W_k c) = (W_k^T q) c. The cache holds the latents and the
-- rotated part of the keys, shared by all heads. Prompts use this form too, so the bits do not depend on how tokens are split into calls.
-- Needs ane.recipe.options. Usage (in a recipe): `x = b:add(x, latent.attention(b, b:rms_norm(x, "attn_norm"), rope, sizes))`

local options = require "ane.recipe.options"

local M = {}

-- The key matrices ([latent, nope] per head) and the value matrices ([value, latent] per head).
local function matrices(b, s)
  local keys, values = {}, {}
  local rows = b.cfg.n_head * (s.nope + s.value)
  for h = 0, b.cfg.n_head - 1 do
    if b.cfg.format == "gguf" and b:has "attn_k_b" then
      keys[h + 1], values[h + 1] = b:weight("attn_k_b", { index = h }), b:weight("attn_v_b", { index = h })
    else
      local at = h * (s.nope + s.value)
      keys[h + 1] = b:weight("attn_kv_b", { part = { at, s.nope }, transposed = true, rows = rows })
      values[h + 1] = b:weight("attn_kv_b", { part = { at + s.nope, s.value }, rows = rows })
    end
  end
  return keys, values
end

-- [1, n_head * (nope + rope), T, 1]
local function queries(b, x, s)
  local opts = { bias = false, rows = b.cfg.n_head * (s.nope + s.rope) }
  if not s.q_rank then return b:linear(x, "attn_q", opts) end
  local down = b:rms_norm(b:linear(x, "attn_q_a", { rows = s.q_rank }), "attn_q_a_norm", { eps = s.eps })
  return b:linear(down, "attn_q_b", opts)
end

--- Latent attention.
-- Weights: attn_q, or attn_q_a, attn_q_a_norm and attn_q_b; attn_kv_a_mqa, attn_kv_a_norm; attn_kv_b, or attn_k_b and attn_v_b;
-- attn_output.
-- @param x normed input [1, d_model, T, 1]
-- @param rope table
-- @param s rank (of the latents), q_rank (nil: queries have no latent), nope, rope, value (widths of the parts of a head), scale (of the
-- scores), layout (of rope), eps (of the latent norms)
-- @return value [1, d_model, T, 1]
function M.attention(b, x, rope, s)
  s = options.check("latent.attention", s)
  local heads, d = b.cfg.n_head, s.nope + s.rope
  local keys, values = matrices(b, s)
  local q = queries(b, x, s)
  local near = b:head_linear(b:slice(q, 0, s.nope, heads), keys, "q_latent")
  local rotated = b:rope(b:slice(q, s.nope, d, heads), rope, "q_rope", { heads = heads, layout = s.layout })
  local both = b:linear(x, "attn_kv_a_mqa", { rows = s.rank + s.rope })
  local c = b:rms_norm(b:slice(both, 0, s.rank), "attn_kv_a_norm", { eps = s.eps })
  local k = b:concat(c, b:rope(b:slice(both, s.rank, s.rank + s.rope), rope, "k_rope", { heads = 1, layout = s.layout }))
  local width = s.rank + s.rope
  local o = b:attention(b:concat(near, rotated, heads), k, k, { heads = heads, kv_heads = 1, head_dim = width, scale = s.scale })
  return b:linear(b:head_linear(b:slice(o, 0, s.rank, heads), values, "v_head"), "attn_output")
end

--- Names of the weights in Hugging Face files.
M.names = {
  attn_q_a = "self_attn.q_a_proj", attn_q_a_norm = "self_attn.q_a_layernorm", attn_q_b = "self_attn.q_b_proj",
  attn_kv_a_mqa = "self_attn.kv_a_proj_with_mqa", attn_kv_a_norm = "self_attn.kv_a_layernorm", attn_kv_b = "self_attn.kv_b_proj",
}

--- Shapes of the weights, used for plans without weights.
function M.shapes(cfg, s)
  local d, q = cfg.d_model, cfg.n_head * (s.nope + s.rope)
  return {
    attn_q = not s.q_rank and { q, d }, attn_q_a = s.q_rank and { s.q_rank, d }, attn_q_a_norm = s.q_rank and { s.q_rank },
    attn_q_b = s.q_rank and { q, s.q_rank }, attn_kv_a_mqa = { s.rank + s.rope, d }, attn_kv_a_norm = { s.rank },
    attn_kv_b = { cfg.n_head * (s.nope + s.value), s.rank }, attn_output = { d, cfg.n_head * s.value }, attn_k = false, attn_v = false,
  }
end

return M
