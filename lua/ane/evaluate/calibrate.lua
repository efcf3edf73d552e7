--- Importance (imatrix): the mean square of each input column of a weight, on a text. It guides int4-block, uint4-block and lut4 at load,
-- q2_k .. q6_k, iq4_nl, iq4_xs and mxfp4 in files, and the schemes of exported packages.
-- Needs ane.core, ane.model, ane.model.inputs, ane.model.trace, ane.model.windows, ane.util.failure, keys and schema. Usage:
--   local importance = assert(calibrate.run(model, text)); model:close()
--   local small = ane.load(path, {weights = "lut4", importance = importance})
--
-- With W rounded to W + E, the mean square error of W x is the sum over columns c of mean(x_c^2) E_rc^2, if correlations of x are
-- ignored (the diagonal of the second moment: Hassibi and Stork 1993).

local core = require "ane.core"
local failure = require "ane.util.failure"
local inputs = require "ane.model.inputs"
local keys = require "ane.util.keys"
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
  tokens = { type = "integer", min = 1, default = 2048 },
  chunk = { type = "integer", min = 1, default = 256 },
  progress = { type = "callable" },
}

--- Splits an input into runs of ids, each for an empty cache. See ane.model.windows.
M.runs = windows.split

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
  for value, list in pairs(weights) do
    for _, name in ipairs(list) do
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
    local texts = try(inputs.resolve(model, input, opts.progress))
    return collect(bundle, model.kv, try(M.runs(model, texts, chunk, opts.tokens)), opts)
  end)
end

--- Writes importance to a file, as a whole or not at all. Format: a first line, then for each tensor a line "name count" and
-- count float32.
function M.save(importance, path)
  local parts = { "ane importance 1\n" }
  for _, name in ipairs(keys(importance)) do
    local bytes = importance[name]:tostring()
    parts[#parts + 1] = ("%s %d\n"):format(name, #bytes // 4) .. bytes
  end
  return core.write_file(path, table.concat(parts))
end

--- Reads a file of importance.
-- @return name -> tensor; or nil, message, code
function M.load(path)
  local text, message, code = core.read_file(path)
  if not text then return nil, message, code end
  local at = #"ane importance 1\n" + 1
  if text:sub(1, at - 1) ~= "ane importance 1\n" then return nil, path .. ": is not a file of importance", "format" end
  local importance = {}
  while at <= #text do
    local name, count, from = text:match("^(%g+) (%d+)\n()", at)
    local n = count and math.tointeger(tonumber(count))
    if not n or n < 1 or n > (#text - from + 1) // 4 then return nil, ("%s: damaged at byte %d"):format(path, at), "format" end
    importance[name] = core.tensor({ n }, text:sub(from, from + 4 * n - 1))
    at = from + 4 * n
  end
  return importance
end

return M
