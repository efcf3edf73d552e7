--- The types that GGUF weights can be written in, and which tensors of a model take them.
-- Needs ane.core, ane.model.weights, ane.recipe, ane.recipe.names, ane.util.schema, ane.util.shape and ane.util.weight_type.
-- Usage: `local row = types.known.q4_k; print(row.block, types.stays("blk.0.attn_norm.weight", {576}))`

local core = require "ane.core"
local held = require "ane.model.weights"
local names = require "ane.recipe.names"
local recipe = require "ane.recipe"
local schema = require "ane.util.schema"

local M = {}

--- The revision of the methods: one more with each change after which the same options give other numbers. A run does not go on with what
-- another revision has rounded.
M.REVISION = 1

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

--- Schemes of Core ML packages by name. A GGUF file holds their numbers in another type: int4-block in q4_0, uint4-block
-- in q4_1, int8 in q8_0, tables in fp16.
M.schemes = {}

--- Their names, as core has them.
M.scheme_names = {}
for _, name in ipairs(core.mil_schemes()) do
  if name ~= "fp16" then
    M.schemes[name] = true
    M.scheme_names[#M.scheme_names + 1] = name
  end
end

-- Bits of the header of files with numbers of a scheme: its file type is that of the container.
local CONTAINERS = { ["int4-block"] = "q4_0", ["int4-block64"] = "q4_0", ["uint4-block"] = "q4_1", int8 = "q8_0",
                     ["int8-channel"] = "q8_0", ["int8-block"] = "q8_0" }

-- Schemes that keep the numbers of sources whose blocks have offsets already. Rotated weights have no such numbers.
local KEEP_SOURCE = { ["uint4-block"] = true }

--- Returns whether gptq rotates weights by default if they get this scheme (nil or a type: it does not).
function M.rotates(name) return M.schemes[name] ~= nil and not KEEP_SOURCE[name] end

--- The row of M.known whose file type is that of `name`, a type or a scheme.
function M.row(name) return M.known[name] or M.known[CONTAINERS[name] or "fp16"] end

--- The fault of `name` as a type of GGUF weights; nil: none.
-- @param only_types true: a scheme is a fault too
function M.fault(name, only_types)
  if M.known[name] or (M.schemes[name] and not only_types) then return nil end
  if only_types then return ("is %s: choose %s"):format(schema.shown(name), table.concat(M.names, ", ")) end
  return ("is %s: choose %s; or a scheme of Core ML packages, %s"):format(schema.shown(name), table.concat(M.names, ", "),
    table.concat(M.scheme_names, ", "))
end

-- Schemes count: with a text a tied head becomes a tensor of its own (ane.quantise).
local function weighs(name) return M.schemes[name] or M.known[name].weighs end

--- Says that the calibration text of a file that is rounded without gptq has no effect; nil: it has one.
-- @param opts weights, mixed, fallback: names that M.fault has checked
function M.unread_text(opts)
  local wanted = {}
  for _, name in ipairs(M.names) do
    if M.known[name].weighs then wanted[#wanted + 1] = name end
  end
  return held.unread_text(opts, "q8_0", weighs, table.concat(wanted, ", ") .. ", schemes of Core ML packages, and method gptq")
end

--- The fault of `name` as a type for rows that are not whole blocks of another; nil: none. All blocks have at most 256 columns, so those
-- rows are never whole blocks of 256.
function M.fallback_fault(name)
  local fault = M.fault(name, true)
  if fault or M.known[name].block < 256 then return fault end
  local able = {}
  for _, other in ipairs(M.names) do
    if M.known[other].block < 256 then able[#able + 1] = other end
  end
  return ("is %s, whose blocks of %d columns fit no row that needs a fallback: choose %s"):format(schema.shown(name),
    M.known[name].block, table.concat(able, ", "))
end

--- The number of elements of a shape.
M.elements = require("ane.util.shape").count

--- Does a tensor always stay fp32? Vectors, norms, routers and kernels of convolutions do.
-- @param name of the tensor
-- @param shape its dimensions, outermost first
function M.stays(name, shape) return #shape < 2 or names.keeps_fp32(name) end

--- Is this stored type not one of weights?
M.is_data = require("ane.util.weight_type").is_data

--- Says why a tensor cannot be written in blocks.
-- @param architecture general.architecture of the written file; with "ane-" in front its tensors are those of the source
-- @param shape of the tensor
-- @param r the recipe; nil: that of the architecture
-- @return the reason, or nil
function M.plain(architecture, shape, r)
  local own = architecture:match "^ane%-(.*)"
  r = own and (r or recipe.find(own))
  if r and r.transposed_experts and #shape == 3 then return "experts that are stored [in, out]" end
end

return M
