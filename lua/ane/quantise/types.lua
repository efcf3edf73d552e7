--- The types that GGUF weights can be written in, and which tensors of a model take them.
-- Needs ane.core. Usage: `local row = types.known.q4_k; print(row.block, types.stays("blk.0.attn_norm.weight", {576}))`

local core = require "ane.core"

local M = {}

--- Types by name: block (columns), bits (an element), file_type (llama.cpp's LLAMA_FTYPE of a file that is mostly this; `mixed` where
-- some tensors have more bits). They are the rows of dtype.def that have a file type.
M.known = {}

--- Their names, largest first.
M.names = {}

for order, row in ipairs(core.dtypes()) do
  if row.file_type then
    row.order = order
    M.known[row.name] = row
    M.names[#M.names + 1] = row.name
  end
end
table.sort(M.names, function(a, b)
  a, b = M.known[a], M.known[b]
  if a.bits ~= b.bits then return a.bits > b.bits end
  return a.order < b.order
end)

-- The nearest type with blocks of 32, for rows that are not whole blocks of 256. As llama.cpp chooses (llama-quant.cpp, 2025), but
-- q4_0 where it takes iq4_nl: both have 4.5 bits, and no file is written with iq4_nl here.
local NEAREST = { q2_k = "q4_0", q3_k = "q4_0", q4_k = "q5_0", q5_k = "q5_1", q6_k = "q8_0" }

--- The type for rows of so many columns where `name` is asked for.
-- @param fallback a type by name, instead of the nearest one; or nil
-- @return name where rows are whole blocks of it; else the fallback; fp16 where that does not fit either
function M.fit(name, columns, fallback)
  if columns % M.known[name].block == 0 then return name end
  local other = fallback or NEAREST[name] or "fp16"
  return columns % M.known[other].block == 0 and other or "fp16"
end

-- Schemes of weights in memory or in Core ML packages, where a message should say more than "unknown".
local ELSEWHERE = {
  int8 = "a scheme of weights in memory", ["int8-channel"] = "a scheme of weights in memory",
  ["int4-block"] = "a scheme of weights in memory", lut4 = "a scheme of weights in Core ML packages",
}

--- What is wrong with `name` as a type of GGUF weights; nil: nothing.
function M.fault(name)
  if M.known[name] then return nil end
  local what = ELSEWHERE[name] and (", %s, not of GGUF files"):format(ELSEWHERE[name]) or ""
  return ("is %q%s: choose %s"):format(name, what, table.concat(M.names, ", "))
end

-- Of names as GGUF has them: small, and what every token's result hangs on, or read by code that knows no blocks.
local STAYS = {
  "norm", "^rope_", "ffn_gate_inp", "exp_probs_b", "shortconv%.conv", "ssm_conv", "attn_sinks", "position_embd", "token_types",
  "attn_rel_b",
  -- Names of Hugging Face files: of models that GGUF has no architecture for.
  "router", "conv_qk", "conv%.conv", "mlp%.gate%.", "feed_forward%.gate%.", "shared_expert_gate", "balancing", "sinks", "bias$",
}

--- Does a tensor stay fp32 whatever is asked for: vectors, norms, routers, kernels of convolutions?
-- @param name of the tensor
-- @param shape its dimensions, outermost first
function M.stays(name, shape)
  if #shape < 2 then return true end
  for _, pattern in ipairs(STAYS) do
    if name:find(pattern) then return true end
  end
  return false
end

-- Integers and booleans are data, not weights.
--- Is this stored type no weight at all?
function M.is_data(dtype) return dtype == "bool" or dtype:find "^u?int%d+$" ~= nil end

--- Why a tensor cannot be written in blocks, or nil.
-- @param architecture as it stands in the GGUF
function M.plain(architecture, shape)
  if architecture:find "^ane%-.*privacy_filter$" and #shape == 3 then return "experts that are stored [in, out]" end
end

return M
