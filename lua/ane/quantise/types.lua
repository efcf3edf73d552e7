--- The types that GGUF weights can be written in, and which tensors of a model take them.
-- Needs ane.model.weights, ane.recipe and ane.recipe.names.
-- Usage: `local row = types.known.q4_k; print(row.block, types.stays("blk.0.attn_norm.weight", {576}))`

local held = require "ane.model.weights"
local names = require "ane.recipe.names"
local recipe = require "ane.recipe"

local M = {}

--- Types by name: block (columns), bits (an element), file_type (llama.cpp's LLAMA_FTYPE of a file that is mostly this; `mixed` where
-- some tensors have more bits), nearest (see fit). They are the rows of dtype.def that have a file type.
M.known = {}

--- Their names, largest first.
M.names = {}

for i, row in ipairs(held.by_size(function(row) return row.file_type ~= nil end)) do
  M.known[row.name], M.names[i] = row, row.name
end

--- Chooses the type for rows of a given number of columns, if `name` is requested.
-- @param fallback a type by name, instead of the nearest one; or nil
-- @return `name` if rows consist of whole blocks of it; else the fallback; fp16 if that does not fit either
function M.fit(name, columns, fallback)
  if columns % M.known[name].block == 0 then return name end
  local other = fallback or M.known[name].nearest or "fp16"
  return columns % M.known[other].block == 0 and other or "fp16"
end

-- Schemes of weights in memory or in Core ML packages. Messages say so instead of "unknown".
local ELSEWHERE = {
  int8 = "a scheme of weights in memory", ["int8-channel"] = "a scheme of weights in memory",
  ["int4-block"] = "a scheme of weights in memory", lut4 = "a scheme of weights in Core ML packages",
}

--- The fault of `name` as a type of GGUF weights; nil: none.
function M.fault(name)
  if M.known[name] then return nil end
  local what = ELSEWHERE[name] and (", %s, not of GGUF files"):format(ELSEWHERE[name]) or ""
  return ("is %q%s: choose %s"):format(name, what, table.concat(M.names, ", "))
end

--- Does a tensor always stay fp32? Vectors, norms, routers and kernels of convolutions do.
-- @param name of the tensor
-- @param shape its dimensions, outermost first
function M.stays(name, shape) return #shape < 2 or names.keeps_fp32(name) end

-- Integers and booleans are data, not weights.
--- Is this stored type not one of weights?
function M.is_data(dtype) return dtype == "bool" or dtype:find "^u?int%d+$" ~= nil end

--- Says why a tensor cannot be written in blocks.
-- @param architecture general.architecture of the written file; with "ane-" in front its tensors are those of the source
-- @param shape of the tensor
-- @return the reason, or nil
function M.plain(architecture, shape)
  local own = architecture:match "^ane%-(.*)"
  local r = own and recipe.find(own)
  if r and r.transposed_experts and #shape == 3 then return "experts that are stored [in, out]" end
end

return M
