--- Options that plan, size and export share.
-- Needs ane.cli.common, ane.cli.options, ane.core and ane.coreml.plan. Usage: `packages.options(parser); local opts = packages.read(args)`

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local planner = require "ane.coreml.plan"

local M = {}

local rules = planner.rules

-- For options.add: megabytes as bytes.
local function megabytes(text)
  local n = tonumber(text)
  if not n or n <= 0 then return nil, ("'%s' is not a number of megabytes"):format(text) end
  return math.max(1, math.floor(n * 1e6))
end

-- For options.add: the name of a target, or megabytes.
local function target(text)
  if planner.targets[text] then return text end
  local n = megabytes(text)
  if n then return n end
  return nil, ("'%s' must be coreml, coreai, coreai-sharded, both or a number of megabytes"):format(text)
end

function M.options(parser)
  options.add(parser, "--weights", "Scheme of the weights: " .. table.concat(core.mil_schemes(), ", ")
    .. "; default int8, for embedding models and rerankers int8-block.", rules.weights)
    :argname "W"
  options.mixed(parser, "--mixed", planner.scheme_fault)
  options.add(parser, "-c --context", "Number of positions in the states; default: 512, or the model's own limit if that "
    .. "is less.", rules.context)
    :argname "C"
  options.add(parser, "--max-t", "Maximum tokens in a call of packages; default 4.", rules.max_t):argname "T"
  options.add(parser, "--fixed-t", "Fixed numbers of tokens per call: T1,T2,... Each gets its own packages or functions. Default for "
    .. "classifiers, embedding models and rerankers: 128,256,512; for other Core AI assets: 8,16,64; for sets of assets: 1,8,64; with "
    .. "--functions many and without --tiers: 1,4,128.",
    options.counts):argname "LIST"
  parser:option("--functions",
    "one (default): each T and context has its own packages; many: each T and context is a function of the same packages, with shared "
    .. "weights and states.")
    :choices(rules.functions.choices)
  options.add(parser, "--tiers", "Smaller contexts to export as well: C1,C2,... Default for a Core AI asset: 256, 512, 1024, ... below C.",
    options.counts):argname "LIST"
  options.add(parser, "--slices", "Number of slices of the head; default: as few as the residency rules allow.", rules.slices):argname "N"
  options.add(parser, "--layers", "Maximum layers of a package.", rules.layers):argname "N"
  options.add(parser, "--experts", "How mixtures of experts are partitioned: auto (default: as few shards as the size limit allows), whole "
    .. "(not), halves (two shards), each (one shard per expert).",
    rules.experts):argname "HOW"
  options.add(parser, "--target", "coreml: packages (default); coreai: one Core AI asset in a bundle; coreai-sharded: a set of assets, "
    .. "partitioned like packages; both: coreml and coreai (plan only). A number N: packages with about N megabytes of weights (default "
    .. "200).",
    target):argname "TARGET"
  options.add(parser, "--size-limit", "Megabytes of weights above which a layer is partitioned, by experts or between blocks; default: 250 "
    .. "for packages, 1000 for sets of assets.",
    megabytes):argname "MB"
  options.add(parser, "--law", "Old name of --size-limit.", megabytes):argname "MB"
  options.add(parser, "--chip", "Chip whose limits apply (M1 .. M4 Max); default M4 Max.", rules.chip):argname "NAME"
  parser:option("--layout", "Order of axes in packages: ct1 (default) is [1, C, T, 1], c1t is [1, C, 1, T]."):choices(rules.layout.choices)
  parser:option("--norm", "How RMSNorm is written in packages: doubled (default: as LayerNorm of doubled channels), or fp32 (in fp32 "
    .. "arithmetic)."):choices(rules.norm.choices)
  parser:option("--rope", "Rope tables of packages: inputs (default: the host computes them), or constants.")
    :choices(rules.rope.choices)
end

--- Warns if a context is longer than the one that the model was trained for.
function M.check_context(args)
  local longest = args.context
  for _, context in ipairs(args.tiers or {}) do longest = math.max(longest or 0, context) end
  if not longest then return end
  local bundle = planner.open(args.model, { recipe = args.recipe })
  if not bundle then return end -- what follows says why
  common.check_context(args, longest, bundle.config.context_length)
  bundle.source:close()
end

local PLAIN = {
  "weights", "context", "max_t", "fixed_t", "functions", "tiers", "slices", "layers", "experts", "target", "size_limit", "law", "chip",
  "layout", "norm", "rope",
}

--- The options that were given, as ane.coreml.plan takes them.
function M.read(args)
  local opts = {}
  for _, key in ipairs(PLAIN) do opts[key] = args[key] end
  opts.mixed = args.mixed and args.mixed[1] and args.mixed or nil
  return opts
end

return M
