--- Tensor names by role, for each file format.
-- Roles are the standardised tensor names of the GGUF specification.
-- Usage: `local name = names.of("hf", {attn_q_norm = "self_attn.query_layernorm"}); name("attn_q", 3)`

local M = {}

-- Names in the checkpoints of transformers; those of a layer stand below model.layers.i.
local HF = {
  token_embd = "model.embed_tokens", output_norm = "model.norm", output = "lm_head",
}
local HF_LAYER = {
  attn_norm = "input_layernorm", attn_q = "self_attn.q_proj", attn_k = "self_attn.k_proj", attn_v = "self_attn.v_proj",
  attn_qkv = "self_attn.qkv_proj", attn_output = "self_attn.o_proj", attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm",
  ffn_norm = "post_attention_layernorm", ffn_gate = "mlp.gate_proj", ffn_up = "mlp.up_proj", ffn_down = "mlp.down_proj",
}

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
  if not cfg.bare_names then return name end
  return function(role, layer) return M.bare(name(role, layer)) end
end

--- A name of a Hugging Face file without its leading "model.".
function M.bare(name) return (name:gsub("^model%.", "")) end

return M
