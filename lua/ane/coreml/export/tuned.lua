--- Exports with tuned norms. The rounded and tuned model is written as a GGUF file first, and that file is exported.
-- Needs ane.core, ane.coreml.export.record, ane.coreml.plan, ane.quantise, ane.quantise.tune, ane.quantise.types and ane.util.paths.
-- Usage: `if tuned.wanted(opts, out) then report = assert(tuned.export(bundle, out, opts, export)) end`
--
-- Tuning needs the whole model with its rounded weights (ane.quantise.tune). An export rounds a weight when it writes its package, so
-- it cannot tune. A GGUF file holds the numbers of a scheme exactly (ane.quantise.types), and the export of int4-block and of tables
-- finds the same codes, scales and tables in these numbers again. Other schemes are rounded anew, so their norms are not tuned.
--
-- The file stays in OUT.partial until the export is complete. Beside it, DONE has its hash, its report and all that its bytes depend on,
-- by which the next export recognises it after an interruption.

local core = require "ane.core"
local paths = require "ane.util.paths"
local planner = require "ane.coreml.plan"
local quantise = require "ane.quantise"
local record = require "ane.coreml.export.record"
local tune = require "ane.quantise.tune"
local types = require "ane.quantise.types"

local M = {}

-- The name in OUT.partial of what is known of the tuned file, and its version.
local DONE, VERSION = record.TUNED .. ".done", 1

-- Bits of the codes of a scheme whose numbers stay the same when they are rounded to it again; nil for other schemes.
local function stable_bits(scheme) return tonumber(scheme:match "^int(4)" or scheme:match "^lut(%d)") end

-- Number of weights of the matrices whose inputs are known.
local function count_of(calibration)
  local count = 0
  for name in pairs(calibration.inputs) do
    local t = calibration.bundle.source:tensor(name)
    count = count + (t and types.elements(t.shape) or 0)
  end
  return count
end

-- Options of ane.quantise for an export.
local function options_of(opts)
  return {
    weights = opts.weights, method = "gptq", calibration = opts.calibration, recipe = opts.calibration.bundle.recipe,
    transform = opts.calibration.bundle.options.transform, inputs = opts.inputs, tune = opts.tune, table = "fp16",
    threads = opts.threads, progress = opts.progress or nil,
  }
end

-- Why the options alone rule out that norms are tuned, or nil.
local function fault_of_options(opts)
  local scheme = opts.weights or "int8"
  if not stable_bits(scheme) then
    return ("the scheme is %s; norms are tuned with int4-block, int4-block64 and tables"):format(scheme)
  end
  if opts.mixed and next(opts.mixed) then return "option mixed is given, and norms are tuned only without it" end
  if opts.inputs == "source" then return "option inputs is source, and norms are tuned only with rounded" end
end

-- Why the norms of an export are not tuned, or nil; and the code of that error.
local function fault_of(opts, out)
  local fault = fault_of_options(opts)
  if fault then return fault, "unsupported" end
  local bits, auto = stable_bits(opts.weights), opts.tune == "auto"
  local windows, why = tune.windows {
    calibration = opts.calibration, auto = auto, count = math.max(1, count_of(opts.calibration)), bits = bits,
  }
  if not windows then return why, "invalid" end
  local size, message, code = quantise.size(opts.calibration.bundle.source, out .. ".tuned.gguf", options_of(opts))
  return not size and message or nil, code
end

--- Do the options ask for tuning that they rule out? wanted() says so too, but only with a calibration.
-- @return true; or nil, message, code
function M.check(opts)
  if opts.tune ~= "norms" then return true end
  if opts.method ~= "gptq" then return nil, "option tune: norms needs method gptq", "invalid" end
  local fault = fault_of_options(opts)
  if fault then return nil, "option tune: " .. fault, "unsupported" end
  return true
end

--- Whether an export tunes norms.
-- @param opts options of the export: method, calibration, tune, weights, mixed, inputs, threads, progress
-- @param out path of the export, beside which a temporary file can be written
-- @return true; or false, and why not if a text was given; or nil, message, code if the options ask for what cannot be done
function M.wanted(opts, out)
  if opts.method ~= "gptq" then
    if opts.tune == "norms" then return nil, "option tune: norms needs method gptq", "invalid" end
    return false
  end
  if opts.tune == "none" then return false end
  local why, code = fault_of(opts, out)
  if not why then return true end
  if opts.tune == "norms" then return nil, "option tune: " .. why, code end
  return false, why
end

-- The errors of the tuned file for the weights of an export, which finds the same numbers in it.
local function add_errors(written, report)
  local rows = {}
  for _, row in ipairs(written.tensors) do rows[row.name] = row end
  for _, w in ipairs(report.weights) do
    local row = rows[w.name:match "^[^%[]+"]
    if row and row.scheme == w.form then w.max_abs, w.snr_db = row.max_abs, row.snr_db end
  end
  report.tuned, report.untuned = written.tuned, written.untuned
end

-- What the export needs of the report of a tuned file.
local function summary_of(report)
  local rows = {}
  for i, row in ipairs(report.tensors) do
    rows[i] = { name = row.name, scheme = row.scheme, max_abs = row.max_abs, snr_db = row.snr_db }
  end
  return { tensors = rows, tuned = report.tuned, untuned = report.untuned }
end

-- The summary of the tuned file that an earlier export has left, if it is complete and of the same identity; else nil.
local function find(folder, identity)
  local text = core.read_file(folder .. "/" .. DONE) or ""
  local check, body = text:match "^(%x+) (.*)$"
  if not body or core.sha256(body) ~= check then return nil end
  local done = core.json_decode(body)
  if done.version ~= VERSION or done.identity ~= identity then return nil end
  local hash, bytes = core.sha256_file(folder .. "/" .. record.TUNED)
  if hash ~= done.sha256 or bytes ~= done.bytes then return nil end
  if done.report.tuned then done.report.tuned.kept = true end
  return done.report
end

-- Notes that the tuned file is complete. Where there is no room for the note, the export goes on without.
local function note(folder, identity, report)
  local hash, bytes = core.sha256_file(folder .. "/" .. record.TUNED)
  local done = { version = VERSION, identity = identity, sha256 = hash, bytes = bytes, report = report }
  local body = core.json_encode(done, { sort = true })
  core.write_file(folder .. "/" .. DONE, core.sha256(body) .. " " .. body)
end

-- Writes the tuned model into a folder, unless an earlier export has left it there. Returns its summary; or nil, message, code.
local function made(folder, opts)
  local path, options, source = folder .. "/" .. record.TUNED, options_of(opts), opts.calibration.bundle.source
  options.resume = true
  local identity, message, code = quantise.identity(source, path, options)
  if not identity then return nil, message, code end
  local report = find(folder, identity)
  if report then return report end
  report, message, code = quantise.run(source, path, options)
  if not report then return nil, message, code end
  report = summary_of(report)
  note(folder, identity, report)
  return report
end

-- Writes or finds the tuned model in OUT.partial, and opens it. Returns its summary and the bundle; or nil, message, code.
local function write(bundle, out, opts)
  local folder <close>, message, code = core.folder(out)
  if not folder then return nil, message, code end
  local names, fault
  names, message, code = core.list_dir(folder:path())
  if not names then return nil, message, code end
  fault = record.fault(folder:path(), names)
  if fault then return nil, fault, "invalid" end
  local report, tuned
  report, message, code = made(folder:path(), opts)
  if not report then return nil, message, code end
  tuned, message, code = planner.open(folder:path() .. "/" .. record.TUNED, { recipe = bundle.recipe })
  if not tuned then return nil, message, code end
  tuned.is_tuned = true
  return report, tuned
end

--- Exports the tuned model.
-- @param bundle of the model as it is exported otherwise: the tokenizer, the name and the ids of the export are its own
-- @param out path of the export
-- @param opts options of the export, for which wanted() is true
-- @param export function(bundle) -> report; or nil, message, code; opts then say that nothing is left to be rounded
-- @return the report, with tuned or untuned; or nil, message, code
function M.export(bundle, out, opts, export)
  local written, tuned, code = write(bundle, out, opts)
  if not written then return nil, tuned, code end
  local _ <close> = tuned.source
  local config, own = tuned.config, bundle.config
  tuned.eos_ids, tuned.family = bundle.eos_ids, own.architecture
  config.folder, config.bos_id, config.name = own.folder, own.bos_id, own.name or paths.name_of(bundle.source:path())
  opts.method, opts.calibration = "rtn", nil -- the numbers are rounded already
  local report, message
  report, message, code = export(tuned)
  if not report then return nil, message, code end
  add_errors(written, report)
  return report
end

return M
