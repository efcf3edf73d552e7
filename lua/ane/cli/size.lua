--- `ane size`: bytes of a model in packages, and the speed that the bandwidth of chips allows.
-- Needs ane.cli.common, ane.cli.options, ane.cli.packages and ane.coreml.size.

local common = require "ane.cli.common"
local options = require "ane.cli.options"
local packages = require "ane.cli.packages"

local M = {}

M.summary = "Show the bytes of a model's weights and states in every scheme, and estimate how fast chips can read them."

function M.options(parser)
  parser:argument("model", "Model file or folder, or a config.json without weights.")
  packages.options(parser)
  options.recipe(parser)
  options.json(parser)
end

function M.run(args)
  local opts = packages.read(args)
  opts.recipe = args.recipe
  packages.check_context(args)
  local size, message = require("ane.coreml.size").of_path(args.model, opts)
  if not size then return nil, message end
  if args.json then
    local out = {}
    for key, value in pairs(size) do out[key] = value end
    out.contexts = common.list(size.contexts)
    return common.print_json(out)
  end
  io.stdout:write(tostring(size), "\n")
  return true
end

return M
