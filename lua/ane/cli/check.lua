--- `ane check`: compares a model with a golden, layer by layer.
-- Needs ane.cli.common, ane.cli.options, ane.coreml.set and ane.evaluate.check.

local common = require "ane.cli.common"
local options = require "ane.cli.options"

local M = {}

M.summary = "Compare a model with a golden, layer by layer, and show where and why it drifts."

function M.options(parser)
  options.model(parser)
  options.file(parser, "golden", "golden.json, or the folder that holds it. Its tensors are in the safetensors file beside it.")
  parser:option("--prompt", "Use only this prompt of the golden."):argname "NAME"
  parser:flag("--no-hints", "Do not search for causes.")
  options.json(parser)
end

--- A drift is a failure, whose exit code is 1. With --json the report is written too, and `ok` is its result.
function M.run(args)
  local by_op = require("ane.coreml.set").find(args.model) and not args.engine -- packages are checked as they are
  local model <close>, message, code = common.load(args, { activations = args.activations or "fp32", engine = by_op and "graph" or nil })
  if not model then return nil, message, code end
  local report
  report, message = require("ane.evaluate.check").check(model, args.golden, { prompt = args.prompt, hints = not args.no_hints })
  if not report then return nil, message end
  if args.json then
    local data = report:data()
    for _, key in ipairs { "layers", "blocks", "outputs", "hints" } do data[key] = common.list(data[key]) end
    common.print_json(data)
  else
    io.stdout:write(tostring(report), "\n")
  end
  if report.ok then return true end
  return nil, "the model drifts from the golden"
end

return M
