--- Tensor names by role, for each file format.
-- Roles are the standardised tensor names of the GGUF specification.
-- Needs ane.util.failure. Usage: `local name = names.of("hf", {attn_q_norm = "self_attn.query_layernorm"}); name("attn_q", 3)`

local failure = require "ane.util.failure"

local M = {}

--- All roles that recipes share, in the order in which llama.cpp's converter writes the tensors of a layer. The fields of a row:
--   [1]      the role
--   outside  true: the weight belongs to no layer
--   hf       its name in Hugging Face files, below model.layers.i if it belongs to a layer. nil: each recipe gives its own
--   bias     the configuration key that says whether the weight has a bias: attention_bias or mlp_bias
--   suffix   the ending of the name in GGUF files; default ".weight"
--   fp32     true: quantised files keep the weight as fp32
M.ROLES = {
  { "token_embd", outside = true, hf = "model.embed_tokens" },
  { "output_norm", outside = true, hf = "model.norm", fp32 = true },
  { "output", outside = true, hf = "lm_head" },
  { "score", outside = true, hf = "score" },
  { "attn_norm", hf = "input_layernorm", fp32 = true },
  { "attn_q", hf = "self_attn.q_proj", bias = "attention_bias" },
  { "attn_q_norm", hf = "self_attn.q_norm", fp32 = true },
  { "attn_k", hf = "self_attn.k_proj", bias = "attention_bias" },
  { "attn_k_norm", hf = "self_attn.k_norm", fp32 = true },
  { "attn_v", hf = "self_attn.v_proj", bias = "attention_bias" },
  { "attn_qkv", hf = "self_attn.qkv_proj", bias = "attention_bias" },
  { "attn_sinks", fp32 = true },
  { "attn_q_a" },
  { "attn_q_a_norm", fp32 = true },
  { "attn_q_b" },
  { "attn_kv_a_mqa" },
  { "attn_kv_a_norm", fp32 = true },
  { "attn_kv_b" },
  { "ssm_in" },
  { "ssm_conv1d", fp32 = true },
  { "ssm_dt" },
  { "ssm_a" },
  { "ssm_d" },
  { "ssm_norm", fp32 = true },
  { "ssm_out" },
  { "attn_output", hf = "self_attn.o_proj", bias = "attention_bias" },
  { "post_attention_norm", fp32 = true },
  { "shortconv.in_proj" },
  { "shortconv.conv", fp32 = true },
  { "shortconv.out_proj" },
  { "ffn_norm", hf = "post_attention_layernorm", fp32 = true },
  { "ffn_gate", hf = "mlp.gate_proj", bias = "mlp_bias" },
  { "ffn_up", hf = "mlp.up_proj", bias = "mlp_bias" },
  { "ffn_down", hf = "mlp.down_proj", bias = "mlp_bias" },
  { "post_ffw_norm", fp32 = true },
  { "ffn_gate_inp", fp32 = true },
  { "exp_probs_b", suffix = ".bias", fp32 = true },
  { "gate_up" },
  { "ffn_gate_exps" },
  { "ffn_up_exps" },
  { "ffn_down_exps" },
  { "ffn_gate_inp_shexp", fp32 = true },
  { "ffn_gate_shexp" },
  { "ffn_up_shexp" },
  { "ffn_down_shexp" },
}

local HF, HF_LAYER = {}, {} -- role -> name outside layers, and below a layer
for _, row in ipairs(M.ROLES) do (row.outside and HF or HF_LAYER)[row[1]] = row.hf end

--- The roles whose biases depend on a configuration key.
-- @param key "attention_bias" or "mlp_bias"
-- @return list of roles
function M.with_bias(key)
  local list = {}
  for _, row in ipairs(M.ROLES) do
    if row.bias == key then list[#list + 1] = row[1] end
  end
  return list
end

-- Patterns of names that stay fp32, in addition to the roles marked fp32: all norms, roles of models that have no recipe here, and names
-- from Hugging Face files, which architectures without a GGUF form keep (ane.quantise.hf).
local FP32 = {
  "norm", "^rope_", "ssm_conv", "ssm_a$", "ssm_d$", "position_embd", "token_types", "attn_rel_b",
  "router", "conv_qk", "conv%.conv", "mlp%.gate%.", "feed_forward%.gate%.", "shared_expert_gate", "balancing", "sinks", "bias$",
}
for _, row in ipairs(M.ROLES) do
  if row.fp32 then FP32[#FP32 + 1] = (row[1]:gsub("%.", "%%.")) end
end

--- Whether a tensor of this name stays fp32 in quantised files. Such tensors are small and affect the result of every token, or are read
-- by code that does not support quant types.
-- @param name as written in a GGUF file
-- @return boolean
function M.keeps_fp32(name)
  for _, pattern in ipairs(FP32) do
    if name:find(pattern) then return true end
  end
  return false
end

local FORMATS = {}

-- "attn_q" of layer 3 is blk.3.attn_q. Outside layers the role is the name.
function FORMATS.gguf(own)
  return function(role, layer)
    local name = own[role] or role
    return layer and ("blk.%d.%s"):format(layer, name) or name
  end
end

function FORMATS.hf(own)
  return function(role, layer)
    local name = own[role] or (layer and HF_LAYER or HF)[role]
    if not name then error(("role %s has no tensor name in Hugging Face files: the recipe's names.hf must give one"):format(role), 0) end
    return layer and ("model.layers.%d.%s"):format(layer, name) or name
  end
end

-- Tensor names in ONNX graphs carry no meaning, so weights found in a graph are named by role: layers.3.attn_q. Each expert has a name.
function FORMATS.onnx(own)
  return function(role, layer)
    local name = own[role] or role
    if name:find "_exps$" then name = name .. ".%d" end
    return layer and ("layers.%d."):format(layer) .. name or name
  end
end

--- The tensor names of one format.
-- @param format "gguf", "hf" or "onnx" (cfg.format)
-- @param own table role -> name that overrides the common names (a recipe's names[format]), without the layer prefix; or
-- function(cfg, common) -> function(role, layer), where common(own) gives the names of the format
-- @param cfg the configuration (passed to such a function)
-- @return function(role, layer) -> name without ".weight" or ".bias"; layer is 0-based, nil outside layers
function M.of(format, own, cfg)
  if type(own) == "function" then return own(cfg, FORMATS[format]) end
  return FORMATS[format](own or {})
end

--- The tensor names of a recipe's weights in a source. They lack the leading "model." if cfg.bare_names is set, since GGUF limits names
-- to 63 bytes.
function M.for_source(r, cfg)
  local name = M.of(cfg.format, r.names and r.names[cfg.format], cfg)
  local prefix = cfg.text_prefix
  if prefix then
    return function(role, layer)
      local full, n = name(role, layer):gsub("^model%.", (prefix:gsub("%%", "%%%%")))
      if n == 0 and cfg.holds("language_model." .. full .. ".weight") then return "language_model." .. full end
      return full
    end
  end
  if not cfg.bare_names then return name end
  return function(role, layer) return M.bare(name(role, layer)) end
end

--- The names that the weights of a graph have in GGUF files, by their roles.
-- @param b builder of the graph, which a recipe has used
-- @param r the recipe
-- @return table label of a constant -> name, where it is another one
function M.in_gguf(b, r)
  local name, out = M.of("gguf", r.names and r.names.gguf, b.cfg), {}
  for _, row in pairs(b.record) do
    if row.weight and row.role then
      local ok, stem = pcall(name, row.role, row.layer)
      if not ok and failure.code(stem) then error(stem, 0) end
      local suffix = row.weight:match "(%.%a+)$" or ".weight"
      local full = ok and stem .. suffix .. row.label:sub(#row.weight + 1)
      if full and full ~= row.label then out[row.label] = full end
    end
  end
  return out
end

--- Strips the leading "model." from a name of a Hugging Face file.
function M.bare(name) return (name:gsub("^model%.", "")) end

return M
