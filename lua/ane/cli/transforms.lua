--- Chooses what --transform auto stands for.
-- Needs ane.cli.common, ane.core, ane.model.loader and ane.quantise.types.
-- Usage: `transforms.choose(args, can_rotate)` before the model is loaded

local common = require "ane.cli.common"
local core = require "ane.core"
local types = require "ane.quantise.types"

local M = {}

-- Most bytes of rotated weights in fp32, if they are in memory together.
local MOST = 4 << 30

-- Bytes of all tensors in fp32.
local function size_of(source)
  local bytes = 0
  for _, t in ipairs(source:tensors()) do bytes = bytes + 4 * types.elements(t.shape) end
  return bytes
end

-- Can the weights of a model be rotated? Returns true; or false and why not, if that is known. Other faults of the model are reported
-- when it is loaded.
local function rotates(args, by_layer)
  local loader = require "ane.model.loader"
  local source <close> = core.open(args.model)
  if not source or (source:format() ~= "gguf" and source:format() ~= "safetensors") then return false end
  local r, cfg = loader.identify(source, args.model, { recipe = args.recipe })
  if not r then return false end
  local bytes = size_of(source)
  if bytes > MOST and not by_layer then return false, ("its weights take %s in fp32"):format(common.bytes(bytes)) end
  local rotated, message, code = loader.transformed(r, cfg, source, "rotate", true)
  if rotated then
    rotated:close()
    return true
  end
  return false, code == "unsupported" and message or nil
end

--- Sets args.transform to "rotate" or nil (none). If weights that would profit cannot be rotated, it says on standard error why. auto
-- rotates where a scheme of Core ML packages is written with gptq: its scales cover more columns or rows than those of GGUF types, and
-- its files have a separate head in any case.
-- @param args options of the command: model, recipe, transform, method
-- @param can_rotate true: weights of this scheme are rotated by default (ane.quantise.types.rotates)
-- @param by_layer true: rotated weights are not in memory together
-- @return true; or nil, message, code
function M.choose(args, can_rotate, by_layer)
  local given, can, why = args.transform or "auto", false, nil
  if given == "auto" and can_rotate and args.method == "gptq" then can, why = rotates(args, by_layer) end
  if given == "rotate" and args.calibrate then -- says so before the text is read
    local fine, fault = rotates(args, true)
    if not fine and fault then return nil, fault, "unsupported" end
  end
  args.transform = (can or given == "rotate") and "rotate" or nil
  if why then common.remark(args, "the weights are not rotated: %s", why) end
  return true
end

return M
