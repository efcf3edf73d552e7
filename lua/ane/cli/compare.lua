--- `ane compare`: the cost of a changed model against its source.
-- Needs ane.cli.common, ane.cli.options, ane.core, ane.evaluate.compare, ane.evaluate.gate, ane.model and ane.model.weights.

local common = require "ane.cli.common"
local compare = require "ane.evaluate.compare"
local model = require "ane.model"
local options = require "ane.cli.options"
local weights = require "ane.model.weights"

local M = {}

local LIMIT = { type = "number", min = 0 }

M.summary = "Compare the predictions of two models on a text: KL divergence, top-1 agreement, perplexity."
M.needs = { { "calibrate", "weights_b", "mixed_b" } }

function M.options(parser)
  options.file(parser, "a", "The reference model.")
  options.file(parser, "b", "The changed model. It may be the same file with --weights-b.")
  options.file(parser, "text", "Text file; - is standard input.")
  options.add(parser, "--chunk", "Tokens in a window; each window starts with an empty cache; default 512.",
    compare.rules.chunk):argname "N"
  options.add(parser, "--weights-a", "Weights of A in memory: file (as stored, default), int8, fp16, ...", model.rules.weights):argname "W"
  options.add(parser, "--weights-b", "Weights of B in memory.", model.rules.weights):argname "W"
  options.mixed(parser, "--mixed-b", weights.fault)
  options.add(parser, "--calibrate", "Calibration text for int4-block, uint4-block and lut4 of B.", options.calibration):argname "FILE"
  parser:flag("--gate", "Also apply the quality gate to final hidden states, logits and best tokens: fail below a cosine of 0.97.")
  options.add(parser, "--max-kl", "Fail if the mean KL divergence is above this many nats.", LIMIT):argname "N"
  options.add(parser, "--max-perplexity", "Fail if the perplexity of B is more than this many per cent above that of A.",
    LIMIT):argname "P"
  options.add(parser, "--than", "Output of --json for another B, with the same A, text and chunk. The command then also shows the "
    .. "difference of the two B with its interval.", options.path):argname "FILE"
  options.activations(parser)
  options.recipe(parser)
  options.threads(parser)
  options.progress(parser)
  options.json(parser)
end

-- Returns the limits of the options and whether the report is within them; nil: there are none.
local function limits_of(args, r)
  if not (args.max_kl or args.max_perplexity) then return nil end
  local faults = {}
  local function check(value, most, what)
    local kept = not most or value <= most -- a NaN is not
    if not kept then faults[#faults + 1] = what:format(most, value) end
  end
  check(r.kl.mean, args.max_kl, "the mean KL must be at most %g, but is %.6f")
  check(100 * (r.perplexity.ratio - 1), args.max_perplexity, "the perplexity must be at most %+g %%, but is %+.2f %%")
  local message = faults[1] and table.concat(faults, "; ")
  return { ok = message == nil, max_kl = args.max_kl, max_perplexity = args.max_perplexity, message = message }
end

-- Loads a model. compare.run reports a chunk that is too long, so one that no context of the model can hold is not asked for.
local function load(args, path, held, mixed, calibrate)
  local own = {
    command = args.command, model = path, weights = held, mixed = mixed, calibrate = calibrate, activations = args.activations,
    recipe = args.recipe, threads = args.threads, no_progress = args.no_progress, json = args.json,
  }
  local loaded, message = common.load(own, { context = args.chunk and args.chunk + 1 }, true)
  if not loaded and message:find("option context ", 1, true) then loaded, message = common.load(own, nil, true) end
  if not loaded then error(mixed and message:gsub("option mixed", "--mixed-b") or message, 0) end
  for _, warning in ipairs(weights.unfit(model.bundle(loaded).program:info().matrices)) do common.remark(args, "%s: %s", path, warning) end
  return loaded
end

-- Writes the line of the 95 % intervals, if there are enough windows.
local function show_intervals(r)
  local kl, top1, ratio = r.kl.ci, r.top1_ci, r.perplexity.ratio_ci
  if not kl then return end
  io.stdout:write(("95 %% over %d windows  KL %.6f .. %.6f  same best %.2f .. %.2f %%  perplexity B / A %.4f .. %.4f\n"):format(
    r.windows, kl[1], kl[2], 100 * top1[1], 100 * top1[2], ratio[1], ratio[2]))
end

local function show(r)
  io.stdout:write(("%d of %d tokens scored, windows of %d\n"):format(r.scored, r.tokens, r.chunk))
  local kl = r.kl
  io.stdout:write(("KL(A || B), nats     mean %.6f  median %.6f  99%% %.6f  max %.4f%s\n"):format(kl.mean, kl.median, kl.p99, kl.max,
    kl.max_at and (" (token %d)"):format(kl.max_at) or ""))
  io.stdout:write(("same best token      %.2f %%\n"):format(100 * r.top1))
  show_intervals(r)
  io.stdout:write(("perplexity           A %.4f  B %.4f (%+.2f %%)\n"):format(r.perplexity.a, r.perplexity.b,
    100 * (r.perplexity.b / r.perplexity.a - 1)))
  if r.than then
    local d = r.than
    io.stdout:write(("than the other B     KL %+.6f%s  perplexity x %.4f\n"):format(d.kl.mean,
      d.kl.ci and (" (95 %% %+.6f .. %+.6f)"):format(d.kl.ci[1], d.kl.ci[2]) or "", d.perplexity.ratio))
  end
  if r.gate then io.stdout:write(tostring(r.gate), "\n") end
end

-- true; or nil and why the comparison fails.
local function verdict(r)
  if r.gate and not r.gate.ok then return nil, "the quality gate fails" end
  if r.limits and not r.limits.ok then return nil, r.limits.message end
  return true
end

-- Reads the report of --than; or returns nil, message, code.
local function earlier(path)
  local text, message, code = common.read(path)
  if not text then return nil, message, code end
  local value
  value, message = require("ane.core").json_decode(text)
  if type(value) == "table" then return value end
  return nil, path .. ": " .. (message or "must be a JSON object"), "format"
end

--- A gate that is not passed, or a limit that is exceeded, is a failure, whose exit code is 1. With --json the report is written too:
-- `gate.ok` is the verdict of the quality gate, `limits.ok` that of --max-kl and --max-perplexity, and `ok` that of both.
function M.run(args)
  local text, message = common.read(args.text)
  if not text then return nil, message end
  local other
  if args.than then
    other, message = earlier(args.than)
    if not other then return nil, message end
  end
  local a <close> = load(args, args.a, args.weights_a)
  local b <close> = load(args, args.b, args.weights_b, args.mixed_b, args.calibrate)
  local report, code
  report, message, code = compare.run(a, b, text, { chunk = args.chunk, progress = common.progress(args) })
  if not report then return nil, code == "invalid" and common.name_of(args.text) .. ": " .. message or message end
  if other then
    report.than, message = compare.difference(report, other)
    if not report.than then return nil, args.than .. ": " .. message end
  end
  report.limits = limits_of(args, report)
  common.check_context(args, report.chunk, a.config.context_length)
  if args.gate then
    report.gate, message = require("ane.evaluate.gate").run(a, b, text, { progress = common.progress(args) })
    if not report.gate then return nil, message end
  end
  local ok, why = verdict(report)
  if report.gate or report.limits then report.ok = ok or false end
  if args.json then common.print_json(report) else show(report) end
  return ok, why
end

return M
