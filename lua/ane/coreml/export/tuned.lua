--- Exports with tuned norms. The rounded and tuned model is written as a GGUF file beside the output first, and that file is exported.
-- Needs ane.coreml.plan, ane.quantise, ane.quantise.tune and ane.quantise.types.
-- Usage: `local file <close> = assert(tuned.write(bundle, out, opts)); export(file.bundle)`
--
-- Tuning needs the whole model with its rounded weights (ane.quantise.tune). An export rounds a weight when it writes its package, so
-- it cannot tune. A GGUF file holds the numbers of a scheme exactly (ane.quantise.types), and the export of int4-block and of tables
-- finds the same codes, scales and tables in these numbers again. Other schemes are rounded anew, so their norms are not tuned.

local planner = require "ane.coreml.plan"
local quantise = require "ane.quantise"
local tune = require "ane.quantise.tune"
local types = require "ane.quantise.types"

local M = {}

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

-- Why the norms of an export are not tuned, or nil; and the code of that error.
local function fault_of(opts)
  local scheme, auto = opts.weights or "int8", opts.tune == "auto"
  local bits = stable_bits(scheme)
  if not bits then return ("the numbers of %s change when they are rounded again"):format(scheme), "unsupported" end
  if opts.mixed then return "options mixed and tune exclude each other", "unsupported" end
  if opts.inputs == "source" then return "the inputs are the source's", "unsupported" end
  return tune.fault(opts.calibration, auto, math.max(1, count_of(opts.calibration)), bits), "invalid"
end

--- Whether an export tunes norms.
-- @param opts options of the export: method, calibration, tune, weights, mixed, inputs
-- @return true; or false, and why not if a text was given; or nil, message, code if the options ask for what cannot be done
function M.wanted(opts)
  if opts.method ~= "gptq" or opts.tune == "none" then return false end
  local why, code = fault_of(opts)
  if not why then return true end
  if opts.tune == "norms" then return nil, "option tune: " .. why, code end
  return false, why
end

local File = {}
File.__index = File

--- Closes the file and removes it.
function File:close()
  if self.bundle then self.bundle.source:close() end
  os.remove(self.path)
end

File.__close = File.close

-- The errors of the tuned file for the weights of an export, which finds the same numbers in it.
function File:add_errors(report)
  local rows = {}
  for _, row in ipairs(self.report.tensors) do rows[row.name] = row end
  for _, w in ipairs(report.weights) do
    local row = rows[w.name:match "^[^%[]+"]
    if row and row.scheme == w.form then w.max_abs, w.snr_db = row.max_abs, row.snr_db end
  end
  report.tuned, report.untuned = self.report.tuned, self.report.untuned
end

--- Writes the rounded and tuned model.
-- @param bundle of the model as it is exported otherwise; its tokenizer and its name are those of the export
-- @param out path of the export
-- @param opts options of the export, for which wanted() is true
-- @return object with bundle (open, for the export), add_errors(report), close(); or nil, message, code
function M.write(bundle, out, opts)
  local path = out .. ".tuned.gguf"
  local source = opts.calibration.bundle.source
  local report, message, code = quantise.run(source, path, {
    weights = opts.weights, method = "gptq", calibration = opts.calibration, transform = opts.calibration.bundle.options.transform,
    inputs = opts.inputs, tune = opts.tune, table = "fp16", threads = opts.threads, progress = opts.progress or nil, resume = true,
  })
  if not report then return nil, message, code end
  local self = setmetatable({ path = path, report = report }, File)
  self.bundle, message, code = planner.open(path, { recipe = bundle.recipe })
  if not self.bundle then
    self:close()
    return nil, message, code
  end
  local config = self.bundle.config
  self.bundle.eos_ids, config.folder = bundle.eos_ids, bundle.config.folder
  config.name = bundle.config.name or bundle.source:path():match "([^/]+)/*$"
  return self
end

return M
