--- The types that GGUF weights can be written in, and which tensors of a model take them.
-- Needs nothing. Usage: `local row = types.known.q4_k; print(row.block, types.stays("blk.0.attn_norm.weight", {576}))`

local M = {}

--- Types by name: block (columns), file_type (llama.cpp's LLAMA_FTYPE of a file that is mostly this; `mixed` where some
-- tensors have more bits).
M.known = {
  fp32 = { block = 1, file_type = 0 }, fp16 = { block = 1, file_type = 1 }, bf16 = { block = 1, file_type = 32 },
  q8_0 = { block = 32, file_type = 7 }, q5_1 = { block = 32, file_type = 9 }, q5_0 = { block = 32, file_type = 8 },
  q4_1 = { block = 32, file_type = 3 }, q4_0 = { block = 32, file_type = 2 },
  q6_k = { block = 256, file_type = 18 }, q5_k = { block = 256, file_type = 16, mixed = 17 },
  q4_k = { block = 256, file_type = 14, mixed = 15 }, q3_k = { block = 256, file_type = 11, mixed = 12 },
  q2_k = { block = 256, file_type = 10 },
}

--- Their names, largest first.
M.names = { "fp32", "fp16", "bf16", "q8_0", "q6_k", "q5_1", "q5_0", "q5_k", "q4_1", "q4_0", "q4_k", "q3_k", "q2_k" }

-- Forms that weights have in memory or in Core ML packages, where a message should say more than "unknown".
local ELSEWHERE = {
  int8 = "a form of weights in memory", ["int8-channel"] = "a form of weights in memory",
  ["int4-block"] = "a form of weights in memory", lut4 = "a form of weights in Core ML packages",
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
