--- Qwen3.5, text, dense and mixture of experts.
-- Qwen team 2026, "Qwen3.5". One layer in four is gated attention; the other three are gated delta nets.
--
-- Quirks: norms multiply by 1 + w, except the output norm of the delta net, which multiplies by w. Rope rotates the first quarter of each
-- head; its sections (mrope) concern images and have no effect on text. GGUF (qwen35) stores 1 + w, A = -exp(A_log), and the value heads
-- in an order in which head h uses key head h modulo the number of key heads. Every full_attention_interval-th layer is attention.
-- With experts, the weights of the chosen ones are divided by their sum, and a gated shared expert is added. Files hold the experts
-- stacked, with gate and up as the rows of one tensor, or each by itself.

local ffn = require "ane.recipe.ffn"
local gated_delta = require "ane.recipe.gated_delta"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"

local M = { architectures = {
  "qwen3_5", "qwen3_5_text", "qwen35", "qwen3_5_moe", "qwen3_5_moe_text", "qwen35moe",
}, version = 1 }

local NAMES = {
  attn_qkv = "linear_attn.in_proj_qkv", attn_gate = "linear_attn.in_proj_z", ssm_alpha = "linear_attn.in_proj_a",
  ssm_beta = "linear_attn.in_proj_b", ssm_conv1d = "linear_attn.conv1d", ssm_dt = "linear_attn.dt_bias", ssm_a = "linear_attn.A_log",
  ssm_norm = "linear_attn.norm", ssm_out = "linear_attn.out_proj", ffn_gate_inp = "mlp.gate", ffn_gate_exps = "mlp.experts.%d.gate_proj",
  ffn_up_exps = "mlp.experts.%d.up_proj", ffn_down_exps = "mlp.experts.%d.down_proj", ffn_gate_inp_shexp = "mlp.shared_expert_gate",
  ffn_gate_shexp = "mlp.shared_expert.gate_proj", ffn_up_shexp = "mlp.shared_expert.up_proj",
  ffn_down_shexp = "mlp.shared_expert.down_proj", gate_up = "mlp.experts.gate_up_proj", stacked_down = "mlp.experts.down_proj",
}
M.names = { gguf = { ffn_norm = "post_attention_norm" }, hf = NAMES }
M.defaults = { hf = { norm_eps = 1e-6, norm_offset = 1, tied = false, attention_bias = false } }

-- The values, in transformers, of keys that config.json may lack.
function M.config(architecture)
  if not architecture:find "moe" then return { num_key_value_heads = 4, head_dim = 256, partial_rotary_factor = 0.25 } end
  return {
    num_key_value_heads = 2, head_dim = 256, partial_rotary_factor = 0.25, num_experts = 256, moe_intermediate_size = 512,
    shared_expert_intermediate_size = 512,
  }
end

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

-- With as many key heads as value heads, these are in the same order.
function M.gguf_differs(place, cfg)
  local role = place.role
  if role:find "norm" and role ~= "ssm_norm" then return "has 1 + w for each weight w of a norm" end
  local is_delta = role == "attn_qkv" or role == "attn_gate" or role:find "^ssm_" and role ~= "ssm_norm"
  local s = is_delta and settings(cfg)
  return s and s.heads ~= s.key_heads and "has the value heads in another order" or nil
end

-- The settings of the experts: count, k, inner; nil for a dense model.
local function mixture(cfg)
  local gguf = cfg.format == "gguf"
  local count = cfg.meta(gguf and "expert_count" or "num_experts", "whole") or 0
  if count == 0 and not cfg.architecture:find "moe" then return nil end
  return {
    count = count, k = cfg.meta(gguf and "expert_used_count" or "num_experts_per_tok", "count") or not gguf and 8 or nil,
    inner = cfg.meta(gguf and "expert_feed_forward_length" or "moe_intermediate_size", "count"),
  }
end

local function feed_forward(b, x, e)
  if not e then return ffn.gated(b, x, "silu") end
  local roles = { gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps" }
  if b.cfg.format == "hf" and b:has("gate_up", "") then roles = { gate_up = "gate_up", down = "stacked_down" } end
  return moe.beside_shared(b, x, roles, { count = e.count, k = e.k, norm = true, act = b.cfg.act, inner = e.inner })
end

local function is_delta(cfg, i)
  local word = cfg.layer_types and cfg.layer_types[i + 1]
  if word then return word == "linear_attention" end
  return (i + 1) % (cfg.meta("full_attention_interval", "count") or 4) ~= 0
end

function M.shapes(cfg, t)
  local s, d = settings(cfg), cfg.d_model
  local keys, values, e = s.key_heads * s.n, s.heads * s.width, mixture(cfg) or {}
  local inner, shared = e.inner, cfg.meta("shared_expert_intermediate_size", "count")
  return {
    attn_qkv = { 2 * keys + values, d }, attn_gate = { values, d }, ssm_alpha = { s.heads, d }, ssm_beta = { s.heads, d },
    ssm_conv1d = { 2 * keys + values, 1, s.taps }, ssm_dt = { s.heads }, ssm_a = { s.heads }, ssm_norm = { s.width },
    ssm_out = { d, values }, attn_q = { 2 * t.attn_q[1], d },
    ffn_gate_inp = inner and { e.count, d }, ffn_gate_exps = inner and { inner, d }, ffn_up_exps = inner and { inner, d },
    ffn_down_exps = inner and { d, inner }, ffn_gate_inp_shexp = inner and { 1, d }, ffn_gate_shexp = shared and { shared, d },
    ffn_up_shexp = shared and { shared, d }, ffn_down_shexp = shared and { d, shared },
  }
end

function M.build(b, cfg)
  if cfg.meta("attn_output_gate", "flag") == false then error("attn_output_gate false is not computed", 0) end
  local s, e = settings(cfg), mixture(cfg)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local h = b:rms_norm(x, "attn_norm")
      x = b:add(x, is_delta(cfg, i) and gated_delta.block(b, h, s) or gated_delta.attention(b, h, rope))
      x = b:add(x, feed_forward(b, b:rms_norm(x, "ffn_norm"), e))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
