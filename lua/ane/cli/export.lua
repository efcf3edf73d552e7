--- `ane export`: a model as Core ML packages.
-- Needs ane.cli.common, ane.cli.options, ane.cli.packages, ane.cli.transforms, ane.core, ane.coreml.export, ane.model.weights and
-- ane.quantise.types.

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local packages = require "ane.cli.packages"
local transforms = require "ane.cli.transforms"
local types = require "ane.quantise.types"
local weights = require "ane.model.weights"

local M = {}

M.writes = "out"
M.summary = "Write a model as Core ML packages or as Core AI assets for the Neural Engine. Needs no Mac and no Python."
M.needs = { { "calibrate", "weights", "mixed", "method" }, { "tokens", "calibrate" } }

function M.options(parser)
  parser:argument("model", "Model file or folder.")
  options.file(parser, "out", "The folder to write. An existing package set, set of assets or bundle is replaced when the new one is "
    .. "complete.")
  packages.options(parser)
  parser:flag("--argmax", "The head returns the best row and its value instead of logits.")
  options.add(parser, "--calibrate", "Calibration text for int4-block, int4-block64, uint4-block, lut2 .. lut8 and gptq. The model first "
    .. "runs on it with its stored weights. Lines of a .jsonl file are lists of messages, for the chat template. "
    .. "samples:N: N tokens that the model generates; FILE+samples:N: both, alternating. gptq completes a FILE of fewer than 32768 tokens "
    .. "with up to 16384 tokens of samples.",
    options.calibration)
    :argname "FILE"
  options.tokens(parser)
  parser:option("--method", "rtn (default): round each number to the nearest value of the scheme; gptq: later columns compensate the "
    .. "errors of earlier ones. gptq needs --calibrate."):choices { "rtn", "gptq" }:argname "HOW"
  options.inputs(parser)
  options.tune(parser, "the codes have at most 4 bits (int4-block and tables, without --mixed)")
  options.threads(parser)
  options.recipe(parser)
  options.transform(parser, "Transform of the weights before rounding:", true)
  options.adapters(parser, true)
  options.progress(parser)
  options.json(parser)
end

local function content(s)
  if s.rows then return ("rows %d-%d"):format(s.rows[1], s.rows[2] - 1) end
  if s.experts then return ("layer %d, experts %d-%d"):format(s.layers[1], s.experts[1], s.experts[2] - 1) end
  if s.part then return ("layer %d, part %d of %d"):format(s.layers[1], s.part[1] + 1, s.part[2]) end
  return s.layers and ("layers %d-%d"):format(s.layers[1], s.layers[2]) or s.kind
end

local function show(args, report)
  local sum, worst, speed = 0, nil, ""
  for _, s in ipairs(report.shards) do
    io.stdout:write(("%-36s %-26s %10s  predicted: %s\n"):format(s.path, content(s), common.bytes(s.bytes), s.verdict))
    sum = sum + s.bytes
  end
  for _, w in ipairs(report.weights) do
    if w.snr_db and (not worst or w.snr_db < worst.snr_db) then worst = w end
  end
  local things = report.target and "assets" or "packages"
  if not args.calibrate then speed = (" (%.0f MB/s of weights)"):format(report.weight_bytes / 1e6 / math.max(report.seconds, 1e-9)) end
  io.stdout:write(("%s: %d %s, %s, embedding %s, %.1f s%s\n"):format(report.path, #report.shards,
    things, common.bytes(sum), common.bytes(report.embed_bytes), report.seconds, speed))
  if report.kept > 0 then io.stdout:write(("%d %s of an earlier run were kept\n"):format(report.kept, things)) end
  if report.target then io.stdout:write "never compiled for or run on a Neural Engine\n" end
  if worst then io.stdout:write(("least exact weight: %s as %s, %.1f dB\n"):format(worst.name, worst.form, worst.snr_db)) end
  common.show_calibration(args, report)
  return true
end

-- Sets the importance, or the calibration of gptq, in the options. Returns an object to be closed; or nil, message, code.
local function calibrate(args, opts)
  if not args.calibrate then return true end
  if args.method ~= "gptq" then
    local message, code
    opts.importance, message, code = common.calibrate(args)
    return opts.importance and true, message, code
  end
  local by_layer = not require("ane.quantise").runs_whole { inputs = args.inputs }
  local calibration, message, code = common.moments(args, by_layer)
  opts.calibration = calibration
  return calibration, message, code
end

local function names(list)
  local out = {}
  for i, port in ipairs(list) do out[i] = port.name end
  return table.concat(out, ", ")
end

local function show_asset(args, report)
  for _, f in ipairs(report.functions) do
    io.stdout:write(("%-28s %s -> %s%s\n"):format(f.name, names(f.inputs), names(f.outputs),
      f.states[1] and "; states " .. names(f.states) or ""))
  end
  io.stdout:write(("%s: %s, %.1f s; never compiled for or run on a Neural Engine\n"):format(report.path,
    common.bytes(report.shards[1].bytes), report.seconds))
  if report.kept > 0 then io.stdout:write(("%d weights of an earlier run were kept\n"):format(report.kept)) end
  common.show_calibration(args, report)
  return true
end

--- What to say of an interruption (ane.cli).
function M.interrupted(args)
  local partial = args.out:gsub("/+$", "") .. ".partial"
  return core.path_kind(partial) == "folder" and "interrupted: the same command continues from here" or nil
end

function M.run(args)
  if args.method == "gptq" and not args.calibrate then return options.wrong "--method gptq needs a text: give --calibrate FILE" end
  for _, name in ipairs { "inputs", "tune" } do
    if args[name] and args.method ~= "gptq" then return options.wrong("--%s needs --method gptq", name) end
  end
  local unread = args.calibrate and args.method ~= "gptq" and weights.unread_text(args, "int8")
  if unread then common.remark(args, "--calibrate %s", unread) end
  local opts = packages.read(args)
  opts.inputs, opts.tune = args.inputs, args.tune
  opts.argmax, opts.threads, opts.recipe, opts.progress = args.argmax, args.threads, args.recipe, common.progress(args)
  opts.adapters = args.adapter[1] and args.adapter
  local able, cannot, kind = transforms.choose(args, types.rotates(args.weights or "int8"))
  if not able then return nil, cannot, kind end
  opts.transform = args.transform
  packages.check_context(args)
  local export, fine, message, started = require "ane.coreml.export", true, nil, core.clock()
  opts.method = args.method
  if args.calibrate then fine, message = export.check_path(args.model, args.out, opts) end -- before the text is read
  if not fine then return nil, message end
  local calibrated
  calibrated, message = calibrate(args, opts)
  if not calibrated then return nil, message end
  local _ <close> = opts.calibration
  local report
  report, message = export.of_path(args.model, args.out, opts)
  if not report then return nil, message end
  for _, warning in ipairs(report.warnings) do common.remark(args, "%s", warning) end
  report.seconds = core.clock() - started -- with the calibration
  report.transform, report.samples = args.transform or "none", opts.calibration and opts.calibration.samples
  if not args.json then return (report.target == "coreai" and show_asset or show)(args, report) end
  report.shards, report.weights = common.list(report.shards), common.list(report.weights)
  report.warnings = common.list(report.warnings)
  for _, f in ipairs(report.functions or {}) do
    f.inputs, f.outputs, f.states = common.list(f.inputs), common.list(f.outputs), common.list(f.states)
  end
  return common.print_json(report)
end

return M
