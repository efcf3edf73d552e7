--- `ane plan`: the Core ML packages that a model would become, before anything is written.
-- Needs ane.cli.common, ane.cli.options, ane.cli.packages, ane.coreml.plan, ane.pipeline.plan and ane.util.schema.

local common = require "ane.cli.common"
local options = require "ane.cli.options"
local packages = require "ane.cli.packages"
local pipeline = require "ane.pipeline.plan"
local schema = require "ane.util.schema"

local M = {}

M.summary = "Show the Core ML packages of a model and the device on which each is predicted to run; with --ranks, show how the model is "
  .. "divided among the ranks of mpirun."
M.needs, M.excludes = {}, {}
for i, name in ipairs { "network", "latency", "cut", "link", "tail", "kv", "sequences" } do M.needs[i] = { name, "ranks", "hosts" } end
for i, name in ipairs { "ranks", "hosts" } do
  M.excludes[i] = {
    name, "mixed", "max_t", "fixed_t", "functions", "tiers", "slices", "layers", "experts", "target", "size_limit", "law", "chip", "layout",
    "norm", "rope", "dot", "svg",
  }
end

-- Options of plans over ranks. --context and --weights are shared with plans of packages.
local function rank_options(parser)
  local rules = pipeline.rules
  options.add(parser, "--ranks", "Plan for N ranks of mpirun: the cut, bytes, and predicted speed.", rules.ranks):argname "N"
  options.add(parser, "--hosts", "Plan for the ranks of an mpirun host file. Each line has a name, slots=N and, for a rank on this host, "
    .. "read=GB/s, compute=GOPS, memory=GB. Default: hosts like this one.", options.path):argname "FILE"
  options.add(parser, "--network", "With --ranks: Gbit/s between hosts. Default 10.", rules.network):argname "G"
  options.add(parser, "--latency", "With --ranks: microseconds between hosts. Default 50.", rules.latency):argname "US"
  options.add(parser, "--cut", "With --ranks: first layers of ranks 1, 2, ...: 8,16.", options.integers("layer", 0))
    :argname "LIST"
  parser:option("--link", "With --ranks: type of activations between ranks."):choices { "fp32", "fp16" }
  options.add(parser, "--tail", "With --ranks: weight of the head's time in the choice of the cut, 0 .. 16, as for run.", rules.tail)
    :argname "X"
  parser:option("--kv", "With --ranks: type of cached keys and values."):choices(rules.kv.choices)
  options.add(parser, "--sequences", "With --ranks: number of sequences. Default: 8 for each rank.", rules.sequences):argname "N"
end

function M.options(parser)
  parser:argument("model", "Model file or folder, or a config.json without weights.")
  packages.options(parser)
  options.recipe(parser)
  rank_options(parser)
  options.add(parser, "--dot", "Write the plan as a Graphviz file.", options.path):argname "FILE"
  options.add(parser, "--svg", "Write the plan as an SVG picture.", options.path):argname "FILE"
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

local RANK_OPTIONS = { "ranks", "hosts", "network", "latency", "cut", "tail", "context", "kv", "sequences", "weights", "recipe" }

local function run_ranks(args)
  local opts = { fp16 = args.link == "fp16" }
  for _, name in ipairs(RANK_OPTIONS) do opts[name] = args[name] end
  local plan, message, code = pipeline.of_path(args.model, schema.check(pipeline.rules, opts, "plan", 2))
  if not plan then return nil, message, code end
  if args.json then return common.print_json(setmetatable(plan, nil)) end
  io.stdout:write(tostring(plan), "\n")
  return true
end

function M.run(args)
  if args.ranks or args.hosts then return run_ranks(args) end
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
