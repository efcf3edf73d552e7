--- gpt-oss.
-- OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card"; attention sinks: Xiao et al. 2023.
--
-- Quirks: unless layer_types says otherwise, even layers have sliding attention and odd layers full attention. The softmax of each head
-- has a sink. YaRN rope is not truncated; it also applies to files that describe no rope. All projections have biases. The experts with
-- the k best logits are chosen and weighted by the softmax of these logits. The rows of gate and up alternate; gate is clamped from above,
-- up on both sides. Files hold experts in MXFP4 (stored [out, in]) or unpacked ([in, out]). In GGUF gate and up are separate tensors, and
-- ffn_norm is called post_attention_norm.

local attention = require "ane.recipe.attention"
local head = require "ane.recipe.head"
local moe = require "ane.recipe.moe"

local M = { architectures = { "gpt_oss", "gpt-oss" }, version = 1, whole_rope = true }

M.transposed_experts = true -- checkpoints of transformers store them [experts, in, out]
M.interleaved_experts = true -- in the parameters of transformers, the rows of gate and up alternate

M.names = {
  gguf = { ffn_norm = "post_attention_norm", sinks = "attn_sinks" },
  hf = {
    ffn_gate_inp = "mlp.router", gate_up = "mlp.experts.gate_up_proj", gate_up_bias = "mlp.experts.gate_up_proj_bias",
    ffn_down_exps = "mlp.experts.down_proj", down_bias = "mlp.experts.down_proj_bias", sinks = "self_attn.sinks",
  },
}
M.defaults = {
  gguf = { rope = { truncate = false } },
  hf = { norm_eps = 1e-5, tied = false, attention_bias = true, rope = { theta = 150000.0 } },
}

M.config = {
  num_key_value_heads = 8, head_dim = 64, sliding_window = 128,
  rope_parameters = {
    rope_type = "yarn", factor = 32.0, beta_fast = 32.0, beta_slow = 1.0, truncate = false, original_max_position_embeddings = 4096,
  },
}

-- The settings of the experts: count, k, limit, alpha.
local function settings(cfg)
  local gguf = cfg.format == "gguf"
  return {
    count = cfg.meta(gguf and "expert_count" or "num_local_experts", "count") or cfg.meta("num_experts", "count"),
    k = cfg.meta(gguf and "expert_used_count" or "num_experts_per_tok", "count") or cfg.meta("experts_per_token", "count") or 4,
    limit = cfg.meta("swiglu_limit", "number") or 7.0, alpha = cfg.meta("swiglu_alpha", "number") or 1.702,
  }
end

-- The weights of all experts. In unpacked files the stored tensor is as wide as gate and up together.
local function weights(b, s)
  if b.cfg.format == "gguf" then
    return moe.list(b, s.count, {
      gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps", gate_bias = "ffn_gate_exps", up_bias = "ffn_up_exps",
      down_bias = "ffn_down_exps",
    })
  end
  local roles = { gate_up = "gate_up", gate_up_bias = "gate_up_bias", down = "ffn_down_exps", down_bias = "down_bias" }
  local packed = b.cfg.quantised_as == "mxfp4" -- such files store [out, in], others [in, out]
  return moe.list(b, s.count, roles, { inner = b.cfg.d_ff, transposed = not packed, interleaved = true })
end

local function experts(b, x, s)
  local route = moe.route(b, b:linear(x, "ffn_gate_inp"), { k = s.k, score = "softmax_topk" })
  return moe.experts(b, x, route, weights(b, s), { act = "swiglu_oai", limit = s.limit, alpha = s.alpha })
end

function M.shapes(cfg)
  local s, d, inner, packed = settings(cfg), cfg.d_model, cfg.d_ff, cfg.quantised_as == "mxfp4"
  return {
    sinks = { cfg.n_head }, ffn_gate_inp = { s.count, d }, ["ffn_gate_inp.bias"] = { s.count },
    gate_up = packed and { s.count, 2 * inner, d } or { s.count, d, 2 * inner }, gate_up_bias = { s.count, 2 * inner },
    ffn_down_exps = packed and { s.count, d, inner } or { s.count, inner, d }, down_bias = { s.count, d },
  }
end

function M.build(b, cfg)
  local s = settings(cfg)
  if cfg.format == "gguf" then cfg.attention_bias = nil end
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local sinks = b:weight("sinks", { suffix = cfg.format == "hf" and "" or nil })
      local window = attention.window(cfg, i, i % 2 == 0)
      x = b:add(x, attention.gqa(b, b:rms_norm(x, "attn_norm"), { rope = rope, window = window, sinks = sinks }))
      x = b:add(x, experts(b, b:rms_norm(x, "ffn_norm"), s))
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
