--- Importance (imatrix): the mean square of each input column of a weight, on a text. It guides int4-block, uint4-block and lut4 at load,
-- q2_k .. q6_k, iq4_nl, iq4_xs and mxfp4 in files, and the schemes of exported packages.
-- Needs ane.model, ane.model.inputs, ane.model.trace, ane.model.windows, ane.util.failure and ane.util.schema. Usage:
--   local importance = assert(measure.run(model, text)); model:close()
--   local small = ane.load(path, {weights = "lut4", importance = importance})
--
-- With W rounded to W + E, the mean square error of W x is the sum over columns c of mean(x_c^2) E_rc^2, if correlations of x are
-- ignored (the diagonal of the second moment: Hassibi and Stork 1993).

local failure = require "ane.util.failure"
local inputs = require "ane.model.inputs"
local model_of = require "ane.model"
local schema = require "ane.util.schema"
local trace = require "ane.model.trace"
local windows = require "ane.model.windows"

local try = failure.try

local M = {}

--- Options of run.
--   tokens: maximum tokens to read; default 2048
--   chunk: tokens read from an empty cache at a time; default 256
--   progress: function(stage, done, total)
M.rules = {
  tokens = { type = "integer", min = 1, max = 1 << 30, default = 2048 },
  chunk = { type = "integer", min = 1, default = 256 },
  progress = { type = "callable" },
}

-- The input values of matrices, each once; and value -> names of the matrices that take it.
local function inputs_of(program)
  local names, weights = {}, {}
  for _, m in ipairs(program:info().matrices) do
    if m.input then
      if not weights[m.input] then
        weights[m.input] = {}
        names[#names + 1] = m.input
      end
      table.insert(weights[m.input], m.name)
    end
  end
  return names, weights
end

-- Adds mean squares of n tokens to `sums`: value -> tensor.
local function add(sums, squares, n)
  for name, t in pairs(squares) do
    local part = t * n
    sums[name] = sums[name] and sums[name] + part or part
  end
end

local function collect(bundle, kv, runs, opts)
  local program = try(trace.program(bundle))
  local names, weights = inputs_of(program)
  local sums, tokens, total, longest, most = {}, 0, 0, 0, program:max_chunk()
  for _, ids in ipairs(runs) do total, longest = total + #ids, math.max(longest, #ids) end
  local session <close> = try(program:session { context = longest, kv = kv })
  for _, ids in ipairs(runs) do
    try(session:rewind(0))
    for from = 1, #ids, most do -- parts that the program takes
      local part = table.move(ids, from, math.min(from + most - 1, #ids), 1, {})
      add(sums, try(session:squares(part, names)), #part)
    end
    tokens = tokens + #ids
    if opts.progress then opts.progress("calibrate", tokens, total) end
  end
  local importance = {}
  for _, value in ipairs(names) do
    for _, name in ipairs(weights[value]) do
      local squares = sums[value] and sums[value] / tokens
      importance[name] = squares
      importance[name:match "^[^%[]+"] = squares -- a view (rows, or an expert) of a tensor of this name
    end
  end
  return importance
end

--- Feeds a text and collects the mean square of each input column.
-- @param model built by a recipe
-- @param input a text, a list of token ids, a list of texts and lists, {samples = N} or {chats = list} (ane.model.inputs)
-- @param opts see rules
-- @return tensor name (and name of a view, as weights_report has it) -> tensor [columns]; without weights whose input has no name (the
-- second matrix of an expert); or nil, message, code
function M.run(model, input, opts)
  opts = schema.check(M.rules, opts, "calibrate", 2)
  schema.argument({ type = { "string", "table" } }, input, "calibrate: input", 2)
  local bundle = model_of.bundle(model, 2)
  return failure.catch(function()
    local chunk = math.min(opts.chunk, model.context)
    local texts = try(inputs.resolve(model, input, opts.progress, opts.tokens))
    return collect(bundle, model.kv, try(windows.split(model, texts, chunk, opts.tokens)), opts)
  end)
end

return M
