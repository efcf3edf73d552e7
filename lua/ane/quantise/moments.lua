--- Second moments of the inputs of weights on a calibration text, for compensated rounding (GPTQ).
-- Needs ane.core, ane.model, ane.model.inputs, ane.model.trace, ane.model.windows, ane.util.failure and ane.util.schema. Usage:
--   local calibration <close> = assert(moments.open(model, text))
--   model:quantise("small.gguf", {weights = "q4_k", method = "gptq", calibration = calibration})
--
-- The moment of an input of c columns takes 4 c^2 bytes, so those of a whole model may not fit into memory. collect() reads the text
-- for as many inputs as its caller asks for; several passes over the text then cover the model.

local core = require "ane.core"
local failure = require "ane.util.failure"
local input_of = require "ane.model.inputs"
local model_of = require "ane.model"
local schema = require "ane.util.schema"
local trace = require "ane.model.trace"
local windows = require "ane.model.windows"

local try = failure.try

local M = {}

--- Options of open.
--   tokens: most tokens to read; default 16384
--   chunk: tokens of a window, which is read from an empty cache; default 512
--   threads: of the sums; default the physical cores
--   progress: function(stage, done, total)
M.rules = {
  tokens = { type = "integer", min = 1, default = 16384 },
  chunk = { type = "integer", min = 1, default = 512 },
  threads = { type = "integer", min = 1, max = 1024 },
  progress = { type = "callable" },
}

-- Weights and views of them -> {value, cols}: what they are multiplied by. A tensor whose views take different values has none. Then
-- the value of the head, and the inputs in the order of the program.
local function inputs_of(program)
  local inputs, mixed, order, head = {}, {}, {}, nil
  for _, m in ipairs(program:info().matrices) do
    local name = m.name:match "^[^%[]+"
    local known = inputs[name]
    if not m.input or (known and known.value ~= m.input) then mixed[name] = true end
    inputs[name] = { value = m.input, cols = m.cols }
    if m.input then order[#order + 1] = inputs[name] end
    head = m.input or head
  end
  for name in pairs(mixed) do inputs[name] = nil end
  return inputs, head, order
end

local Calibration = {}
Calibration.__index = Calibration

--- What a weight is multiplied by.
-- @return name of the value, its columns; nil where it is unknown
function Calibration:input(name)
  local input = self.inputs[name]
  if input then return input.value, input.cols end
end

-- Reads a window in parts that the program takes.
-- @param changed a session of the changed model, whose values are summed up with their differences; or nil
local function read_window(self, session, changed, ids, names, last)
  local most = self.program:max_chunk()
  try(session:rewind(0))
  if changed then try(changed:rewind(0)) end
  for from = 1, #ids, most do
    local part = table.move(ids, from, math.min(from + most - 1, #ids), 1, {})
    local own = try(session:trace(part, names, last))
    local values = changed and try(changed:trace(part, names, last)) or own
    for _, name in ipairs(names) do try(self.moments:add(name, values[name], changed and own[name])) end
  end
end

-- Reads the text.
local function read(self, changed, values)
  local last = true
  for _, value in ipairs(values) do last = last and value ~= self.head end
  local opts = { context = self.chunk, kv = self.kv }
  local session <close> = try(self.program:session(opts))
  local other <close> = changed and try(changed:session(opts))
  local done, progress = 0, self.progress
  for _, ids in ipairs(self.runs) do
    read_window(self, session, other, ids, values, last)
    done = done + #ids
    if progress then progress("calibrate", done, self.tokens) end
  end
end

-- The bundle with some of its weights replaced.
local function changed_bundle(self, written)
  local own = {}
  for key, value in pairs(self.bundle) do own[key] = value end
  own.source = try(core.merged(self.bundle.source, written))
  return own
end

--- Reads the text and sums up the moments of some values. Those of earlier calls are forgotten.
-- @param values list of names
-- @param written list of {name, dtype, bytes}: weights that are rounded already. Then the moments are those of the model with these
-- weights, and contain how its values differ from those of the model; nil or empty: the moments of the model
-- @return moments of ane.core, by value; it is closed with the calibration. Raises as ane.util.failure does
function Calibration:collect(values, written)
  self.moments:clear()
  if not (written and written[1]) then
    read(self, nil, values)
    return self.moments
  end
  local bundle = changed_bundle(self, written)
  local source <close> = bundle.source -- luacheck: ignore 211
  local program <close> = try(trace.plan(bundle))
  read(self, program, values)
  return self.moments
end

--- A text that identifies what is read.
function Calibration:digest()
  local parts = {}
  for i, ids in ipairs(self.runs) do parts[i] = table.concat(ids, ",") end
  return core.sha256(table.concat(parts, ";"))
end

--- Frees the sums, and the model where the calibration owns it (field `model`).
function Calibration:close()
  self.moments:close()
  if self.model then self.model:close() end
end

Calibration.__close = Calibration.close

--- Prepares to read a text.
-- @param model built by a recipe; it must stay open
-- @param input a text, a list of token ids, a list of texts and lists, {samples = N} or {chats = list} (ane.model.inputs)
-- @param opts see rules
-- @param level as error()'s, for wrong arguments
-- @return calibration: tokens, order (list of {value, cols}), input(), collect(), digest(), close(); or nil, message, code
function M.open(model, input, opts, level)
  level = (level or 1) + 1
  opts = schema.check(M.rules, opts, "calibrate", level)
  schema.argument({ type = { "string", "table" } }, input, "calibrate: input", level)
  local bundle = model_of.bundle(model, level)
  return failure.catch(function()
    local self = setmetatable({ kv = model.kv, progress = opts.progress, tokens = 0, bundle = bundle }, Calibration)
    self.program = try(trace.program(bundle))
    self.chunk = math.min(opts.chunk, model.context, self.program:context())
    self.runs = try(windows.split(model, try(input_of.resolve(model, input, opts.progress)), self.chunk, opts.tokens))
    for _, ids in ipairs(self.runs) do self.tokens = self.tokens + #ids end
    self.inputs, self.head, self.order = inputs_of(self.program)
    self.moments = try(core.moments(opts.threads or core.cpu_cores()))
    return self
  end)
end

--- Removes the options calibrate and tokens from a copy of the options, and opens the calibration that they describe.
-- @param opts any value; other options are not checked
-- @return a table of options, with calibration where there was a text; the calibration, or nil; or nil, message, code
function M.from_options(model, opts, level)
  if opts == nil then return {} end
  if type(opts) ~= "table" or opts.calibrate == nil then return opts end
  local own = {}
  for key, value in pairs(opts) do own[key] = value end
  local calibration, message, code = M.open(model, own.calibrate, {
    tokens = own.tokens, threads = own.threads, progress = own.progress ~= true and own.progress or nil,
  }, (level or 1) + 1)
  if not calibration then return nil, message, code end
  own.calibrate, own.tokens, own.calibration = nil, nil, calibration
  return own, calibration
end

return M
