--- The gated delta net of Qwen3-Next and Qwen3.5.
-- Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule".
-- Needs ane.recipe.options. Usage (in a recipe): `x = b:add(x, gated_delta.block(b, b:rms_norm(x, "attn_norm"), settings))`

local options = require "ane.recipe.options"

local M = {}

--- out(norm(delta(silu(conv(q | k | v)), a, b)) * silu(z)). The norm is applied per head.
-- Weights: attn_qkv (rows of q, then k, then v), attn_gate (z), ssm_alpha (a), ssm_beta (b), ssm_conv1d, ssm_dt (bias of a), ssm_a,
-- ssm_norm, ssm_out.
-- @param x normed input [1, d_model, T, 1]
-- @param s heads (number of value heads), key_heads, n (key width), width (value width), taps, log (true: ssm_a holds log(-A)),
-- interleaved (see delta_rule), act (activation function after the convolution; default "silu")
-- @return value [1, d_model, T, 1]
function M.block(b, x, s)
  s = options.check("gated_delta.block", s)
  local gguf = b.cfg.format == "gguf"
  local qkv = b:linear(x, "attn_qkv", { bias = false })
  local conv = b:conv_causal(qkv, { weight = b:weight "ssm_conv1d", groups = b:channels(qkv), taps = s.taps })
  local y = b:delta_rule(b:act(conv, s.act or "silu"), b:linear(x, "ssm_alpha"), b:linear(x, "ssm_beta"), {
    heads = s.heads, key_heads = s.key_heads, n = s.n, width = s.width, log = s.log, interleaved = s.interleaved,
    decay = b:weight("ssm_a", { suffix = "" }), dt_bias = b:weight("ssm_dt", { suffix = gguf and ".bias" or "" }),
  })
  y = b:rms_norm(y, "ssm_norm", { groups = s.heads, offset = 0 })
  return b:linear(b:glu(b:linear(x, "attn_gate", { bias = false }), y, "silu"), "ssm_out")
end

--- Attention with an output gate. attn_q gives each head's query followed by its gate. The attention output is multiplied by
-- sigmoid(gate) before attn_output. The weights are those of attention.gqa with q and k norms.
-- @param x normed input [1, d_model, T, 1]
-- @param rope table
-- @return value [1, d_model, T, 1]
function M.attention(b, x, rope)
  local cfg = b.cfg
  local heads, kv_heads, d, bias = cfg.n_head, cfg.n_head_kv, cfg.head_dim, { bias = cfg.attention_bias }
  local both = b:linear(x, "attn_q", bias) -- [1, heads * 2 d, T, 1]
  local q, gate = b:slice(both, 0, d, heads), b:slice(both, d, 2 * d, heads)
  q = b:rms_norm(q, "attn_q_norm", { groups = heads })
  local k = b:rms_norm(b:linear(x, "attn_k", bias), "attn_k_norm", { groups = kv_heads })
  q, k = b:rope(q, rope, "q_rope", { heads = heads }), b:rope(k, rope, "k_rope", { heads = kv_heads })
  local o = b:attention(q, k, b:linear(x, "attn_v", bias), { heads = heads, kv_heads = kv_heads, head_dim = d, scale = d ^ -0.5 })
  return b:linear(b:glu(gate, o, "sigmoid"), "attn_output", bias)
end

return M
