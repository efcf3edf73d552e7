--- Options that plan, size and export share.
-- Needs ane.cli.common. Usage: `packages.options(parser); local opts = packages.read(args)`

local common = require "ane.cli.common"
local core = require "ane.core"

local M = {}

-- For argparse: "*.ffn_down=fp16" to {pattern, form}.
local function rule(text)
  local pattern, form = text:match "^(.+)=([^=]*)$"
  if not pattern then return nil, ("'%s' is not PATTERN=FORM"):format(text) end
  return { pattern, form }
end

-- For argparse: megabytes to bytes.
local function megabytes(text)
  local n = tonumber(text)
  if not n or n <= 0 then return nil, ("'%s' is no number of megabytes"):format(text) end
  return math.max(1, math.floor(n * 1e6))
end

function M.options(parser)
  parser:option("--weights", "Form of the weights: " .. table.concat(core.mil_schemes(), ", ") .. "; default int8."):argname "W"
  parser:option("--mixed",
    "Another form for weights whose names fit PATTERN (* and ? stand for any characters, any one), or contain it; "
    .. "may be given several times, the longest counts."):count "*":convert(rule)
    :argname "PATTERN=FORM"
  parser:option("-c --context", "Positions that the states hold; default 512 or the model's."):convert(common.positive):argname "C"
  parser:option("--max-t", "Tokens of a call at most; default 4."):convert(common.positive):argname "T"
  parser:option("--fixed-t",
    "Fixed numbers of tokens, T1,T2,..., each with packages of its own (classifiers: 128,256,512)."):convert(common.counts)
    :argname "LIST"
  parser:option("--functions",
    "one: each T and context has packages of its own; many: functions of the same packages, sharing weights and states.")
    :choices { "one", "many" }
  parser:option("--tiers", "Smaller contexts to export too, C1,C2,...."):convert(common.counts):argname "LIST"
  parser:option("--slices", "Slices of the head; default as few as the laws allow."):convert(common.positive):argname "N"
  parser:option("--layers", "Most layers of a package."):convert(common.positive):argname "N"
  parser:option("--experts", "How mixtures are cut: auto (as few parts as the law allows), whole, halves, each."):argname "HOW"
  parser:option("--target", "Megabytes of weights a package is planned for."):convert(megabytes):argname "MB"
  parser:option("--law", "Megabytes of weights above which a layer is cut, at its experts or between its blocks."):convert(megabytes)
    :argname "MB"
  parser:option("--chip", "Chip whose limits hold (M1 .. M4 Max); default M4 Max."):argname "NAME"
  parser:option("--layout", "ct1: [1, C, T, 1]; c1t: [1, C, 1, T]."):choices { "ct1", "c1t" }
  parser:option("--norm", "RMSNorm as doubled LayerNorm, or in fp32."):choices { "doubled", "fp32" }
  parser:option("--rope", "Rope tables as inputs that the host makes, or as constants."):choices { "inputs", "constants" }
end

local PLAIN = {
  "weights", "context", "max_t", "fixed_t", "functions", "tiers", "slices", "layers", "experts", "target", "law", "chip", "layout", "norm",
  "rope",
}

--- The options that were given, as ane.coreml.plan takes them.
function M.read(args)
  local opts = {}
  for _, key in ipairs(PLAIN) do opts[key] = args[key] end
  for _, pair in ipairs(args.mixed or {}) do
    opts.mixed = opts.mixed or {}
    opts.mixed[pair[1]] = pair[2]
  end
  return opts
end

return M
