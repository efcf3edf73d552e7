--- `ane quantise`: a model file with its weights in other types.
-- Needs ane.cli.common, ane.cli.options, ane.cli.sweep, ane.cli.transforms, ane.core, ane.evaluate.sweep, ane.model.loader and
-- ane.quantise.

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local transforms = require "ane.cli.transforms"
local types = require "ane.quantise.types"

local M = {}

M.writes = "out"
M.summary = "Write a model as GGUF with its weights in another type, and show the error of each weight."
M.needs = { { "calibrate", "weights", "mixed", "size", "bits", "sweep" }, { "tokens", "calibrate" } }

local WEIGHT_TYPE = { type = "string", check = function(name) return types.fault(name) end }
local FALLBACK = { type = "string", check = types.fallback_fault }

-- Tokens below which the sensitivity of weights is uncertain.
local FEW_TOKENS = 128

local BITS = { type = "number", min = 0.5, max = 32 }

-- For options.add: bytes, with K, M or G for thousands of them.
local function size_of(text)
  local n, unit = text:upper():match "^([%d.]+)([KMG]?)B?$"
  n = tonumber(n)
  if not n or n <= 0 then return nil, ("'%s' is not a size like 90M"):format(text) end
  return math.max(1, math.floor(n * ({ [""] = 1, K = 1e3, M = 1e6, G = 1e9 })[unit]))
end

function M.options(parser)
  parser:argument("model", "GGUF file, or folder with safetensors and config.json.")
  options.file(parser, "out", "The GGUF file to write. It gets this name when it is complete. With --sweep: the SVG file to write.")
  options.add(parser, "--weights", "Type of the weights: " .. table.concat(types.names, ", ")
    .. "; or a scheme of Core ML packages, whose values the "
    .. "file then stores exactly: " .. table.concat(types.scheme_names, ", ") .. ". Vectors, norms and routers stay fp32.",
    WEIGHT_TYPE):argname "W"
  options.mixed(parser, "--mixed", types.fault)
  options.add(parser, "--fallback", "Type for weights whose rows are not whole blocks, such as q5_0 or q8_0; default: the nearest "
    .. "type of similar size (q4_k: q5_0).",
    FALLBACK):argname "W"
  options.add(parser, "--size", "Choose the types of weights so that the file has at most this size (90M, 1.2G). Sensitive weights get "
    .. "more bits; sensitivity is measured on the text of --calibrate.", size_of):argname "BYTES"
  options.add(parser, "--bits", "Choose the types of weights for this mean number of bits per weight, such as 4.25. With --size and "
    .. "--bits, the embedding table keeps its type if the head is another tensor; --bits does not count it.", BITS):argname "N"
  options.add(parser, "--calibrate", "Calibration text for q2_k .. q6_k, iq4_nl, iq4_xs, mxfp4, int4-block, int4-block64, uint4-block, "
    .. "lut2 .. lut8 and gptq. "
    .. "The model first runs on it with its stored weights. Lines of a .jsonl file are lists of messages, for the chat template. "
    .. "samples:N: N tokens that the model generates; FILE+samples:N: both, alternating. gptq completes a FILE of fewer than 32768 tokens "
    .. "with up to 16384 tokens of samples. If the command is interrupted, the same command resumes it.", options.calibration)
    :argname "FILE"
  options.tokens(parser)
  parser:option("--method", "rtn (default): round each number to the nearest value of the type; gptq: later columns compensate the errors "
    .. "of earlier ones. gptq needs --calibrate."):choices { "rtn", "gptq" }:argname "HOW"
  options.inputs(parser)
  options.add(parser, "--stages", "Old option: 1 means --inputs source, more means --inputs rounded.",
    { type = "integer", min = 1, max = 1024 }):argname "N"
  options.tune(parser, "the matrices have at most 5 bits per weight")
  options.transform(parser, "Transform of the weights before rounding:", true)
  options.add(parser, "--sweep", "Measure several types and methods instead of writing one file: TYPE[:METHOD[:TRANSFORM]],... Each file "
    .. "is written, compared with the model on the text of --on, and removed. OUT becomes a picture (SVG) of KL divergence against bits "
    .. "per weight.",
    require("ane.evaluate.sweep").parse):argname "LIST"
  options.add(parser, "--on", "Text on which --sweep measures. Do not use the text of --calibrate.", options.path):argname "FILE"
  options.adapters(parser, true)
  options.threads(parser)
  options.recipe(parser)
  options.progress(parser)
  options.json(parser)
end

local function number(v) return ("%.3g"):format(v) end

local function show_row(t)
  local cells = { "", "", t.exact and "exact" or "" }
  if not t.exact and t.max_abs then cells = { number(t.max_abs), number(t.rms), ("%.1f dB"):format(t.snr_db) } end
  io.stdout:write(("%-36s %-6s %-6s %10s %10s %9s %9s %9s%s\n"):format(t.name, t.from, t.to, common.bytes(t.bytes_before or 0),
    common.bytes(t.bytes_after), cells[1], cells[2], cells[3], t.note and "  " .. t.note or ""))
end

local function show(args, report)
  io.stdout:write(("%-36s %-6s %-6s %10s %10s %9s %9s %9s\n"):format("tensor", "from", "to", "before", "after", "max error", "rms", "SNR"))
  local other = 0
  for _, t in ipairs(report.tensors) do
    show_row(t)
    if t.note and t.note:find("not whole blocks", 1, true) then other = other + 1 end
  end
  local turned = report.transform == "rotate" and " (rotated)" or ""
  io.stdout:write(("%s: weights %s%s, %s of tensors became a file of %s, %.1f s\n"):format(report.path,
    report.mixed and "of several types" or report.weights, turned,
    common.bytes(report.bytes_before), common.bytes(report.bytes_after), report.seconds))
  if report.mixed then
    io.stdout:write(("types chosen: %.3f bits per weight, expected KL %.4f\n"):format(report.expected.bits, report.expected.kl))
  end
  common.show_calibration(args, report)
  if report.kept > 0 then io.stdout:write(("%d tensors of an earlier run were kept\n"):format(report.kept)) end
  if other > 0 then io.stdout:write(("%d tensors have another type, since their rows are not whole blocks\n"):format(other)) end
  if report.warning then io.stderr:write("ane quantise: warning: ", report.warning, "\n") end
  if report.note then io.stdout:write(report.note, "\n") end
  return true
end

-- The source with the adapters of the options merged in, and transformed; or nil, message, code.
-- @param model loaded with the same transform, or nil
local function prepared(source, args, model)
  local loader = require "ane.model.loader"
  local rotates = args.transform == "rotate"
  if model and (rotates or args.adapter[1]) then return require("ane.model").bundle(model).source end
  if not (args.adapter[1] or rotates) then return source end
  local r, cfg, code = loader.identify(source, args.model, { recipe = args.recipe })
  if not r then return nil, cfg, code end
  local made, message = source, nil
  if args.adapter[1] then made, message, code = loader.merged(r, cfg, made, args.adapter) end
  if not made then return nil, message, code end
  made, message, code = loader.transformed(r, cfg, made, args.transform, true)
  return made, message, code
end

-- The rules of --mixed after the others.
local function with_rules(args, rules)
  local all, own = table.move(rules, 1, #rules, 1, {}), args.mixed or {}
  return table.move(own, 1, #own, #all + 1, all)
end

-- Bytes of the file that is written with some rules before those of --mixed; or nil, message, code.
local function size_with(args, source, rules)
  return require("ane.quantise").size(source, args.out, {
    weights = args.weights, mixed = with_rules(args, rules), fallback = args.fallback, recipe = args.own_recipe,
  })
end

-- Is the budget enough for the smallest types? Says so before anything is measured. Returns true; or nil, message, code.
local function check_budget(args, source, model)
  local rules, least, code = require("ane.evaluate.sensitivity").smallest(model)
  if not rules then return nil, least, code end
  if args.bits then
    if args.bits >= least.bits then return true end
    local what = "--bits must be at least %.3f, the bits per weight of the smallest types, but is %g"
    return nil, what:format(least.bits, args.bits), "range"
  end
  local size, message
  size, message, code = size_with(args, source, rules)
  if not size then return nil, message, code end
  if size <= args.size then return true end
  local what = "--size must be at least %s, the size with the smallest types, but is %s"
  return nil, what:format(common.bytes(size), common.bytes(args.size)), "range"
end

-- Chooses types for --size. The file may have other bytes than the report expects: metadata, --mixed, and what a folder's tensors
-- become. The smallest types fit (check_budget).
local function choose_by_size(args, source, report)
  local tensors = 0
  for _, t in ipairs(source:tensors()) do tensors = tensors + t.bytes end
  local budget = args.size - (source:bytes() - tensors)
  while true do
    local mixed, expected = report:mixed { size = math.max(1, budget) }
    local is_least = not mixed
    if is_least then mixed, expected = report:smallest() end
    local size, message, code = size_with(args, source, mixed)
    if not size then return nil, message, code end
    if is_least or size <= args.size then return mixed, expected end
    budget = budget - (size - args.size)
  end
end

-- Types for --size or --bits: rules that come before those of --mixed, and what they were expected to give; or nil, message, code. The
-- model is in memory only here.
local function choose(args, source)
  local loaded, message, code = require("ane.model").load(args.model, {
    threads = args.threads, recipe = args.recipe, transform = args.transform, adapters = args.adapter[1] and args.adapter,
    merge = args.adapter[1] and true or nil,
  })
  if not loaded then return nil, message, code end
  local model <close> = loaded
  local enough
  enough, message, code = check_budget(args, source, model)
  if not enough then return nil, message, code end
  local input
  local sensitivity = require "ane.evaluate.sensitivity"
  input, message, code = common.calibration_input(args, model, sensitivity.rules.tokens.default)
  if not input then return nil, message, code end
  local report
  report, message, code = sensitivity.run(model, input, {
    threads = args.threads, progress = common.progress(args),
  })
  if not report then return nil, message, code end
  if report.tokens < FEW_TOKENS then
    common.remark(args, "the sensitivity is measured on %d tokens; with %d or more the types are chosen better", report.tokens, FEW_TOKENS)
  end
  local mixed
  if args.size then
    mixed, message, code = choose_by_size(args, source, report)
  else
    mixed, message, code = report:mixed { bits = args.bits }
  end
  return mixed, message, code -- no tail call: the model is closed here
end

-- Puts the chosen types into args.mixed. Returns what was chosen, and what it is expected to give; true: there is no budget; or nil,
-- message, code.
local function apply_budget(args, source)
  if not (args.size or args.bits) then return true end
  args.weights = args.weights or "q8_0"
  local chosen, expected, code = choose(args, source)
  if not chosen then return nil, expected, code end
  args.mixed = with_rules(args, chosen)
  return chosen, expected
end

-- What is wrong with the options of a sweep, or nil.
local function sweep_fault(args)
  if not args.sweep then return args.on and "--on needs --sweep" end
  if args.weights or args.size or args.bits then return "--sweep names the types: leave out --weights, --size and --bits" end
  if not args.out:find "%.svg$" then return ("--sweep writes a picture: %s does not end with .svg"):format(args.out) end
  if not args.on then return "--sweep measures on a text: give --on FILE" end
  for _, r in ipairs(args.sweep) do
    if (r.method or args.method) == "gptq" and not args.calibrate then
      return ("--sweep %s needs a text: give --calibrate FILE"):format(r.name)
    end
  end
end

-- Says that the text has no effect; nil: it has one, or there is none.
local function unread_text(args)
  if not args.calibrate or args.size or args.bits then return nil end
  local unread
  for _, r in ipairs(args.sweep or { args }) do
    if (r.method or args.method) == "gptq" then return nil end
    unread = types.unread_text { weights = r.weights, mixed = args.mixed, fallback = args.fallback }
    if not unread then return nil end
  end
  return unread
end

local function check_usage(args)
  local fault = sweep_fault(args)
  if fault then return options.wrong("%s", fault) end
  if args.sweep then return true end
  if args.size and args.bits then return options.wrong "--bits cannot be combined with --size" end
  if (args.size or args.bits) and not args.calibrate then return options.wrong "--size and --bits need a text: give --calibrate FILE" end
  if (args.size or args.bits) and args.transform == "rotate" then
    return options.wrong "--transform rotate needs --weights, and cannot be combined with --size or --bits"
  end
  if not args.weights and not args.size and not args.bits then
    return options.wrong("give --weights: %s", table.concat(types.names, ", "))
  end
  if args.inputs and args.stages then return options.wrong "--stages cannot be combined with --inputs: it is the old form" end
  for _, name in ipairs { "inputs", "stages", "tune" } do
    if args[name] and args.method ~= "gptq" then return options.wrong("--%s needs --method gptq", name) end
  end
  if args.method == "gptq" and not args.calibrate then return options.wrong "--method gptq needs a text: give --calibrate FILE" end
  return true
end

-- Says what is wrong with the output or --mixed before the text is read. Returns true; or nil, message, code.
local function check_target(args, source)
  if not args.calibrate then return true end
  local size, message, code = require("ane.quantise").size(source, args.out, {
    weights = args.weights or "q8_0", mixed = args.mixed, fallback = args.fallback, transform = args.transform,
    recipe = args.own_recipe, resume = not args.sweep,
  })
  return size and true, message, code
end

-- Locks the output while the text is read. Returns an object to be closed, or false: the run keeps no notes; or nil, message.
local function reserve(args)
  if not args.calibrate or args.sweep then return false end
  local reserved, message = require("ane.quantise").reserve(args.out)
  return reserved, message
end

-- Writes the file of args.out as the options say. Returns the report; or nil, message, code.
local function write(args)
  local started = core.clock()
  if args.recipe then
    local own, fault, word = require("ane.model.loader").find_recipe(nil, args.recipe)
    if not own then return nil, fault, word end
    args.own_recipe = own
  end
  local by_layer = args.method == "gptq" and not require("ane.quantise").runs_whole { inputs = args.inputs, stages = args.stages }
  local able, cannot, kind = transforms.choose(args, types.rotates(args.weights), by_layer)
  if not able then return nil, cannot, kind end
  local source <close>, message = core.open(args.model)
  if not source then return nil, message end
  local fine
  fine, message = check_target(args, source)
  if not fine then return nil, message end
  local reserved <close>, taken = reserve(args)
  if reserved == nil then return nil, taken end
  local chosen, expected = apply_budget(args, source)
  if not chosen then return nil, expected end
  local importance, report
  local calibration, code
  if args.method == "gptq" then
    calibration, message, code = common.moments(args, by_layer)
    if not calibration then return nil, message, code end
  end
  local _ <close> = calibration
  if args.calibrate and not calibration then
    importance, message, code = common.calibrate(args)
    if not importance then return nil, message, code end
  end
  local weights
  weights, message = prepared(source, args, calibration and calibration.model)
  if not weights then return nil, message end
  report, message = require("ane.quantise").run(weights, args.out, {
    weights = args.weights, mixed = args.mixed, fallback = args.fallback, transform = args.transform,
    importance = importance, method = args.method, inputs = args.inputs, stages = args.stages,
    tune = args.tune, recipe = args.own_recipe, calibration = calibration, threads = args.threads, progress = common.progress(args),
    resume = args.calibrate ~= nil and not args.sweep,
  })
  if not report then return nil, message end
  if report.reset then common.remark(args, "began anew: an interrupted run had other settings: %s", report.reset) end
  report.transform, report.samples = args.transform or "none", calibration and calibration.samples
  report.seconds = core.clock() - started -- with the calibration
  if chosen ~= true then report.mixed, report.expected = chosen, expected end
  return report
end

--- What to say of an interruption (ane.cli).
function M.interrupted(args)
  local resumes = args.calibrate and not args.sweep and require("ane.quantise.resume").exists(args.out)
  return resumes and "interrupted: the same command continues from here" or nil
end

function M.run(args)
  local fine, wrong, usage = check_usage(args)
  if not fine then return nil, wrong, usage end
  local unread = unread_text(args)
  if unread then common.remark(args, "--calibrate %s", unread) end
  if args.sweep then return require("ane.cli.sweep").run(args, write) end
  local report, message, code = write(args)
  if not report then return nil, message, code end
  if args.json then
    for _, t in ipairs(report.tensors) do t.shape = common.list(t.shape) end
    report.tensors = common.list(report.tensors)
    return common.print_json(report)
  end
  return show(args, report)
end

return M
