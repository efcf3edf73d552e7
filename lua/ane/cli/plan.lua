--- `ane plan`: the Core ML packages that a model would become, before anything is written.
-- Needs ane.cli.common, ane.cli.options, ane.cli.packages and ane.coreml.plan.

local common = require "ane.cli.common"
local options = require "ane.cli.options"
local packages = require "ane.cli.packages"

local M = {}

M.summary = "Show the Core ML packages that a model is partitioned into, and where each is predicted to run."

function M.options(parser)
  parser:argument("model", "Model file or folder, or a config.json without weights.")
  packages.options(parser)
  options.recipe(parser)
  parser:option("--dot", "Write the plan as a Graphviz file."):argname "FILE"
  parser:option("--svg", "Write the plan as an SVG picture."):argname "FILE"
  options.json(parser)
end

local function json(plan)
  for _, p in ipairs(plan.packages) do
    for _, key in ipairs { "ins", "outs", "states", "ropes", "nodes" } do p[key] = common.list(p[key]) end
    p.laws, p.finding = common.list(table.move(p.finding, 1, #p.finding, 1, {})), nil
    for _, n in ipairs(p.nodes) do
      n.verdict, n.law, n.laws, n.finding = n.finding.verdict, n.finding.law, common.list(table.move(n.finding, 1, #n.finding, 1, {})), nil
    end
  end
  local out = {}
  for key, value in pairs(plan) do out[key] = value end
  out.packages, out.laws, out.profiles = common.list(plan.packages), common.list(plan.laws), common.list(plan.profiles)
  return common.print_json(out)
end

function M.run(args)
  local opts = packages.read(args)
  opts.recipe = args.recipe
  packages.check_context(args)
  local plan, message = require("ane.coreml.plan").of_path(args.model, opts)
  if not plan then return nil, message end
  for _, kind in ipairs { "dot", "svg" } do
    if args[kind] then
      local ok
      ok, message = require("ane.core").write_file(args[kind], plan[kind](plan))
      if not ok then return nil, message end
    end
  end
  if args.json then return json(plan) end
  io.stdout:write(tostring(plan), "\n")
  return true
end

return M
