--- Qwen3.5, dense text models.
-- Qwen team 2026, "Qwen3.5". One layer in four is gated attention; the other three are gated delta nets.
--
-- Quirks: norms multiply by 1 + w, except the output norm of the delta net, which multiplies by w. Rope rotates the first quarter of each
-- head; its sections (mrope) concern images and have no effect on text. GGUF (qwen35) stores 1 + w, A = -exp(A_log), and the value heads
-- in an order in which head h uses key head h modulo the number of key heads. Every full_attention_interval-th layer is attention.

local ffn = require "ane.recipe.ffn"
local gated_delta = require "ane.recipe.gated_delta"
local head = require "ane.recipe.head"

local M = { architectures = { "qwen3_5", "qwen3_5_text", "qwen35" }, version = 1 }

M.names = {
  gguf = { ffn_norm = "post_attention_norm" },
  hf = {
    attn_qkv = "linear_attn.in_proj_qkv", attn_gate = "linear_attn.in_proj_z", ssm_alpha = "linear_attn.in_proj_a",
    ssm_beta = "linear_attn.in_proj_b", ssm_conv1d = "linear_attn.conv1d", ssm_dt = "linear_attn.dt_bias", ssm_a = "linear_attn.A_log",
    ssm_norm = "linear_attn.norm", ssm_out = "linear_attn.out_proj",
  },
}
M.defaults = { hf = { norm_eps = 1e-6, norm_offset = 1, tied = false, attention_bias = false } }
M.ignore = { "^mtp%." } -- a head that drafts tokens

-- The settings of the delta nets.
local function settings(cfg)
  if cfg.format == "gguf" then
    local heads = cfg.meta("ssm.time_step_rank", "count")
    return {
      heads = heads, key_heads = cfg.meta("ssm.group_count", "count"), n = cfg.meta("ssm.state_size", "count"),
      width = cfg.meta("ssm.inner_size", "count") // heads, taps = cfg.meta("ssm.conv_kernel", "count"), log = false, interleaved = true,
    }
  end
  return {
    heads = cfg.meta("linear_num_value_heads", "count") or 32, key_heads = cfg.meta("linear_num_key_heads", "count") or 16,
    n = cfg.meta("linear_key_head_dim", "count") or 128, width = cfg.meta("linear_value_head_dim", "count") or 128,
    taps = cfg.meta("linear_conv_kernel_dim", "count") or 4, log = true, act = cfg.act,
  }
end

local function is_delta(cfg, i)
  local word = cfg.layer_types and cfg.layer_types[i + 1]
  if word then return word == "linear_attention" end
  return (i + 1) % (cfg.meta("full_attention_interval", "count") or 4) ~= 0
end

function M.shapes(cfg, t)
  local s, d = settings(cfg), cfg.d_model
  local keys, values = s.key_heads * s.n, s.heads * s.width
  return {
    attn_qkv = { 2 * keys + values, d }, attn_gate = { values, d }, ssm_alpha = { s.heads, d }, ssm_beta = { s.heads, d },
    ssm_conv1d = { 2 * keys + values, 1, s.taps }, ssm_dt = { s.heads }, ssm_a = { s.heads }, ssm_norm = { s.width },
    ssm_out = { d, values }, attn_q = { 2 * t.attn_q[1], d },
  }
end

function M.build(b, cfg)
  if cfg.meta("attn_output_gate", "flag") == false then error("attn_output_gate false is not computed", 0) end
  local s = settings(cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local h = b:rms_norm(x, "attn_norm")
      x = b:add(x, is_delta(cfg, i) and gated_delta.block(b, h, s) or gated_delta.attention(b, h, rope))
      x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
