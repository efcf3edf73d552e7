--- `ane quantise --sweep`: writes a model by several recipes, measures each, and draws them.
-- Needs ane.cli.common, ane.core, ane.evaluate.compare, ane.evaluate.sweep and ane.model.

local common = require "ane.cli.common"
local compare = require "ane.evaluate.compare"
local core = require "ane.core"
local load = require("ane.model").load
local sweep = require "ane.evaluate.sweep"

local M = {}

-- The options of one recipe. They are a copy, since writing sets some of them.
local function options_of(args, recipe, out)
  local own = {}
  for key, value in pairs(args) do own[key] = value end
  own.weights, own.out = recipe.weights, out
  own.method, own.transform = recipe.method or args.method, recipe.transform or args.transform
  if own.method ~= "gptq" then own.inputs, own.stages, own.tune = nil, nil, nil end
  return own
end

-- Measures the file of a recipe. Returns its row; or nil, message, code.
local function measure(reference, text, args, path)
  local model <close>, message, code = load(path, { threads = args.threads, recipe = args.recipe, activations = "fp32" })
  if not model then return nil, message, code end
  return compare.run(reference, model, text, { progress = common.progress(args) })
end

-- The path of the file of a recipe.
local function candidate_of(args) return args.out .. ".part.gguf" end

-- Writes and measures one recipe. The file is removed in any case.
local function row_of(reference, text, args, recipe, write)
  local out = candidate_of(args)
  local own = options_of(args, recipe, out)
  local report, message, code = write(own)
  if not report then return nil, message, code end
  local _ <close> = setmetatable({}, { __close = function() os.remove(out) end }) -- also after Ctrl-C
  local r
  r, message, code = measure(reference, text, args, out)
  if not r then return nil, message, code end
  return {
    recipe = recipe.name, weights = recipe.weights, method = report.method, transform = report.transform, bits = report.bits,
    bytes = report.bytes_after, seconds = report.seconds, kl = r.kl, top1 = r.top1, perplexity = r.perplexity,
  }, r
end

-- Scored tokens below which differences are mostly chance (docs/quantising.md, "Measuring").
local FEW_TOKENS = 8000

local function show(report)
  io.stdout:write(("%-28s %-5s %-7s %7s %10s %9s %19s %8s %10s\n"):format("recipe", "", "", "bits", "file", "KL", "95 %", "same",
    "perplexity"))
  for _, row in ipairs(report.rows) do
    local ci = row.kl.ci and ("%.4f .. %.4f"):format(row.kl.ci[1], row.kl.ci[2]) or ""
    io.stdout:write(("%-28s %-5s %-7s %7.3f %10s %9.4f %19s %6.2f %% %+8.2f %%\n"):format(row.recipe, row.method, row.transform, row.bits,
      common.bytes(row.bytes), row.kl.mean, ci, 100 * row.top1, 100 * (row.perplexity.ratio - 1)))
  end
  local few = report.scored < FEW_TOKENS and (", fewer than %d: the figures are uncertain"):format(FEW_TOKENS) or ""
  io.stdout:write(("%s: %d tokens scored%s\n"):format(report.picture, report.scored, few))
  return true
end

-- Writes the picture and shows the rows.
local function finish(args, report)
  local written, message, code = core.write_file(args.out, sweep.svg(report))
  if not written then return nil, message, code end
  report.rows = common.list(report.rows)
  if args.json then return common.print_json(report) end
  return show(report)
end

--- Runs a sweep. Where a recipe fails, the rows before it are shown and drawn.
-- @param args options of the command: model, out (the SVG file), sweep (list of recipes), on (path of a text), those of writing. Field
-- samples_of is set: samples that the model writes for one recipe calibrate those after it too
-- @param write function(args) -> the report of quantise; or nil, message, code
-- @return true; or nil, message, code
function M.run(args, write)
  local candidate = candidate_of(args)
  if core.path_kind(candidate) then
    return nil, candidate .. ": exists, but each recipe is written there and then removed; remove it, or name another picture", "invalid"
  end
  local text, message, code = common.read(args.on)
  if not text then return nil, message, code end
  local loaded
  loaded, message, code = load(args.model, {
    threads = args.threads, recipe = args.recipe, activations = "fp32", adapters = args.adapter[1] and args.adapter or nil,
  })
  if not loaded then return nil, message, code end
  local reference <close> = loaded
  local ok
  ok, message, code = compare.check(reference, text)
  if not ok then return nil, ("%s: %s"):format(args.on, message), code end
  local report, fault = { path = args.model, picture = args.out, rows = {} }, nil
  args.samples_of = {}
  for i, recipe in ipairs(args.sweep) do
    local row, r
    row, r, code = row_of(reference, text, args, recipe, write)
    if not row then
      fault = ("recipe %s: %s"):format(recipe.name, r)
      break
    end
    report.rows[i], report.tokens, report.scored = row, r.tokens, r.scored
  end
  if fault and #report.rows == 0 then return nil, fault, code end
  local shown, why, other = finish(args, report)
  if not shown then return nil, why, other end
  if fault then return nil, ("%s; %s has the %d rows before it"):format(fault, args.out, #report.rows), code end
  return true
end

return M
