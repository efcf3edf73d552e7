--- OpenAI privacy filter: a bidirectional mixture of experts that labels every token (BIOES over eight kinds of personal data).
-- It belongs to the gpt-oss family: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card"; attention sinks: Xiao et al. 2023.
--
-- Quirks: in all layers, token i sees token j iff |i - j| <= sliding_window. YaRN rope is not truncated and rotates neighbouring pairs.
-- The softmax of each head has a sink. q and k are each scaled by head_dim^-0.25. Experts are stored [in, out], gate before up, and are
-- clamped. In the original files sinks are in base 2, q, k and v are one matrix, and the head has no bias.

local attention = require "ane.recipe.attention"
local moe = require "ane.recipe.moe"
local names = require "ane.recipe.names"
local shapes = require "ane.recipe.shapes"

local M = { architectures = { "openai_privacy_filter", "privacy_filter" }, version = 1, whole_rope = true }

M.transposed_experts = true -- checkpoints of transformers store them [experts, in, out]

M.defaults = { hf = { norm_eps = 1e-5, rope = { theta = 150000 } } }

-- The values, in transformers, of keys that config.json may lack; the original files have all keys.
function M.config(architecture)
  if architecture ~= "openai_privacy_filter" then return nil end
  return { num_key_value_heads = 2, head_dim = 64, num_experts_per_tok = 4, sliding_window = 128 }
end

local NAMES = {
  ffn_gate_inp = "mlp.router", gate_up = "mlp.experts.gate_up_proj", gate_up_bias = "mlp.experts.gate_up_proj_bias",
  down = "mlp.experts.down_proj", down_bias = "mlp.experts.down_proj_bias", sinks = "self_attn.sinks", output = "score",
}

-- Tensor names in the original files.
local ORIGINAL = {
  token_embd = "embedding", output_norm = "norm", output = "unembedding", attn_norm = "attn.norm", attn_qkv = "attn.qkv",
  attn_output = "attn.out", sinks = "attn.sinks", ffn_norm = "mlp.norm", ffn_gate_inp = "mlp.gate", gate_up = "mlp.swiglu",
  gate_up_bias = "mlp.swiglu.bias", down = "mlp.out", down_bias = "mlp.out.bias",
}

local function is_original(cfg) return cfg.architecture == "privacy_filter" end

M.names = {
  hf = function(cfg, common)
    if not is_original(cfg) then return common(NAMES) end
    return function(role, layer)
      local name = ORIGINAL[role] or role
      return layer and ("block.%d.%s"):format(layer, name) or name
    end
  end,
}

local KINDS = {
  "account_number", "private_address", "private_date", "private_email", "private_person", "private_phone", "private_url", "secret",
}

-- The label names in class order: id2label, or the order of the published model.
local function labels(cfg)
  local list, map = {}, cfg.meta("id2label", "object")
  if map then
    local n = 0
    for key, name in pairs(map) do
      local i = math.tointeger(tonumber(key))
      if not i or i < 0 or type(name) ~= "string" then error(("id2label: entry %s is not a class and name"):format(tostring(key)), 0) end
      list[i + 1], n = name, n + 1
    end
    if #list ~= n then error("id2label: the classes have gaps", 0) end
    return list
  end
  list[1] = "O"
  for _, kind in ipairs(KINDS) do
    for _, mark in ipairs { "B", "I", "E", "S" } do list[#list + 1] = mark .. "-" .. kind end
  end
  return list
end

-- The settings, read from the config.json keys of both file layouts.
local function settings(cfg)
  local limit, alpha = cfg.meta("swiglu_limit", "number"), cfg.meta("swiglu_alpha", "number")
  if not is_original(cfg) then
    local rope = cfg.rope
    if not cfg.meta "rope_parameters" and not cfg.meta "rope_scaling" then -- the default of transformers
      rope = { theta = rope.theta, dims = rope.dims, scaling = "yarn", factor = 32, truncate = false, original_context = 4096 }
    end
    return {
      experts = cfg.meta("num_experts", "count") or cfg.meta("num_local_experts", "count") or 128,
      k = cfg.meta("num_experts_per_tok", "count"), window = cfg.sliding_window,
      rope = rope, limit = limit, alpha = alpha,
    }
  end
  return {
    experts = cfg.meta("num_experts", "count"), k = cfg.meta("experts_per_token", "count"), original = true,
    window = cfg.meta("bidirectional_left_context", "whole"), limit = limit, alpha = alpha,
    rope = {
      theta = cfg.rope.theta, dims = cfg.head_dim, scaling = "yarn", factor = cfg.meta("rope_scaling_factor", "number"), truncate = false,
      original_context = cfg.meta("initial_context_length", "count"), beta_fast = cfg.meta("rope_ntk_beta", "number"),
      beta_slow = cfg.meta("rope_ntk_alpha", "number"),
    },
  }
end

local function experts(b, x, s)
  local route = moe.route(b, b:linear(x, "ffn_gate_inp"), { k = s.k, score = "softmax_topk" })
  local list = moe.list(b, s.experts, { gate_up = "gate_up", gate_up_bias = "gate_up_bias", down = "down", down_bias = "down_bias" },
    { inner = b.cfg.d_ff, transposed = true })
  return moe.experts(b, x, route, list, { act = "swiglu_oai", limit = s.limit or 7.0, alpha = s.alpha or 1.702 })
end

function M.shapes(cfg, t)
  local s, d, inner = settings(cfg), cfg.d_model, cfg.d_ff
  shapes.biases(t, names.with_bias "attention_bias")
  local n = #labels(cfg)
  return {
    sinks = { cfg.n_head }, ffn_gate_inp = { s.experts, d }, ["ffn_gate_inp.bias"] = { s.experts }, gate_up = { s.experts, d, 2 * inner },
    gate_up_bias = { s.experts, 2 * inner }, down = { s.experts, inner, d }, down_bias = { s.experts, d }, output = { n, d },
    ["output.bias"] = not s.original and { n },
  }
end

-- RMSNorm by the weight of a role. The original files name this weight "scale".
local function norm(b, x, role, s)
  return b:rms_norm(x, role, { weight = b:weight(role, { suffix = s.original and ".scale" or nil }) })
end

function M.build(b, cfg)
  local s = settings(cfg)
  if not s.window then error("sliding_window is missing or 0: attention sees a window on both sides", 0) end
  cfg.kind, cfg.labels = "token_classifier", labels(cfg)
  cfg.reach = cfg.n_layer * s.window -- tokens on each side that a label depends on
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local rope = b:rope_table(s.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local a = attention.gqa(b, norm(b, x, "attn_norm", s), {
        rope = rope, layout = "interleaved", fused = s.original, window = s.window + 1, ahead = s.window,
        sinks = b:weight("sinks", { suffix = "" }), sink_scale = s.original and math.log(2) or 1.0,
      })
      x = b:add(x, a)
      x = b:add(x, experts(b, norm(b, x, "ffn_norm", s), s))
    end)
  end
  return b:linear(norm(b, b:gather(x), "output_norm", s), "output") -- [1, labels, W, 1]
end

return M
