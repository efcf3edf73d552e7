--- Tensor names by role, for each file format.
-- Roles are the standardised tensor names of the GGUF specification.
-- Usage: `local name = names.of("hf", {attn_q_norm = "self_attn.query_layernorm"}); name("attn_q", 3)`

local M = {}

--- Every role that recipes share, once, in the order in which llama.cpp's converter writes the tensors of a layer. A row:
--   [1]      the role
--   outside  true: the weight belongs to no layer
--   hf       its name in checkpoints of transformers, below model.layers.i for a layer's. nil: each recipe gives its own
--   bias     the key of the configuration that says whether the weight has a bias: attention_bias or mlp_bias
--   suffix   what follows the name in GGUF files; default ".weight"
--   fp32     true: quantised files keep it as fp32
M.ROLES = {
  { "token_embd", outside = true, hf = "model.embed_tokens" },
  { "output_norm", outside = true, hf = "model.norm", fp32 = true },
  { "output", outside = true, hf = "lm_head" },
  { "attn_norm", hf = "input_layernorm", fp32 = true },
  { "attn_q", hf = "self_attn.q_proj", bias = "attention_bias" },
  { "attn_q_norm", hf = "self_attn.q_norm", fp32 = true },
  { "attn_k", hf = "self_attn.k_proj", bias = "attention_bias" },
  { "attn_k_norm", hf = "self_attn.k_norm", fp32 = true },
  { "attn_v", hf = "self_attn.v_proj", bias = "attention_bias" },
  { "attn_qkv", hf = "self_attn.qkv_proj", bias = "attention_bias" },
  { "attn_sinks", fp32 = true },
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

--- The roles whose biases depend on a key of the configuration.
-- @param key "attention_bias" or "mlp_bias"
-- @return list of roles
function M.with_bias(key)
  local list = {}
  for _, row in ipairs(M.ROLES) do
    if row.bias == key then list[#list + 1] = row[1] end
  end
  return list
end

-- Patterns of names that stay fp32, besides the roles that say so: all norms; roles of models that have no recipe here; names in
-- Hugging Face files, which architectures without a GGUF form keep (ane.quantise.hf).
local FP32 = {
  "norm", "^rope_", "ssm_conv", "position_embd", "token_types", "attn_rel_b",
  "router", "conv_qk", "conv%.conv", "mlp%.gate%.", "feed_forward%.gate%.", "shared_expert_gate", "balancing", "sinks", "bias$",
}
for _, row in ipairs(M.ROLES) do
  if row.fp32 then FP32[#FP32 + 1] = (row[1]:gsub("%.", "%%.")) end
end

--- Does a tensor of this name stay fp32 in quantised files? Such tensors are small, and every token's result depends on them, or code
-- reads them that knows no blocks.
-- @param name as it stands in a GGUF file
-- @return boolean
function M.keeps_fp32(name)
  for _, pattern in ipairs(FP32) do
    if name:find(pattern) then return true end
  end
  return false
end

local FORMATS = {}

-- "attn_q" of layer 3 is blk.3.attn_q; outside a layer the role is the name.
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

-- Names in ONNX graphs mean nothing. A weight found in one is named by its role, layers.3.attn_q; each expert has its own.
function FORMATS.onnx(own)
  return function(role, layer)
    local name = own[role] or role
    if name:find "_exps$" then name = name .. ".%d" end
    return layer and ("layers.%d."):format(layer) .. name or name
  end
end

--- The names of one format.
-- @param format "gguf", "hf" or "onnx" (cfg.format)
-- @param own role -> name, which wins over the common ones (a recipe's names[format]), without the prefix of the layer; or
-- function(cfg, common) -> function(role, layer), where common(own) gives the names of the format
-- @param cfg the configuration (for such a function)
-- @return function(role, layer): layer is 0-based, nil outside layers; the name lacks ".weight" or ".bias"
function M.of(format, own, cfg)
  if type(own) == "function" then return own(cfg, FORMATS[format]) end
  return FORMATS[format](own or {})
end

--- The names of a recipe's weights in a source: those of its format, without the leading "model." where cfg.bare_names says so (GGUF
-- has 63 bytes for a name).
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

--- A name of a Hugging Face file without its leading "model.".
function M.bare(name) return (name:gsub("^model%.", "")) end

return M
