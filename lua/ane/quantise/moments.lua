--- Second moments of the inputs of weights on a calibration text, for compensated rounding (GPTQ).
-- Needs ane.core, ane.model, ane.model.importance, ane.model.inputs, ane.model.trace, ane.model.weights, ane.model.windows,
-- ane.quantise.layout, ane.quantise.sinks, ane.util.failure and ane.util.schema. Usage:
--   local calibration <close> = assert(moments.open(model, text))
--   model:quantise("small.gguf", {weights = "q4_k", method = "gptq", calibration = calibration})
--
-- The moment of an input of c columns takes 4 c^2 bytes, so those of a whole model may not fit into memory. collect() reads the text
-- for as many inputs as its caller requests; several passes over the text then cover the model.

local core = require "ane.core"
local failure = require "ane.util.failure"
local importance = require "ane.model.importance"
local input_of = require "ane.model.inputs"
local layout = require "ane.quantise.layout"
local model_of = require "ane.model"
local schema = require "ane.util.schema"
local sinks = require "ane.quantise.sinks"
local trace = require "ane.model.trace"
local weights = require "ane.model.weights"
local windows = require "ane.model.windows"

local try = failure.try

local M = {}

--- Options of open.
--   tokens: most tokens to read; default 32768
--   further: tokens to keep after those, for tuning (field `further`, a list of windows); default 0
--   chunk: tokens of a window, which is read from an empty cache; default 512
--   threads: of the sums; default the physical cores
--   progress: function(stage, done, total)
M.rules = {
  tokens = { type = "integer", min = 1, max = importance.rules.tokens.max, default = 32768 },
  further = { type = "integer", min = 0, default = 0 },
  chunk = { type = "integer", min = 1, default = 512 },
  threads = { type = "integer", min = 1, max = 1024 },
  progress = { type = "callable" },
}

local Calibration = {}
Calibration.__index = Calibration
Calibration.__name = "ane.calibration"

--- What a weight is multiplied by.
-- @return name of the value, its columns; nil if it is unknown
function Calibration:input(name)
  local input = self.inputs[name]
  if input then return input.value, input.cols end
end

-- Reads a window in parts that the program takes.
local function read_window(self, program, session, ids, names, last, first)
  local most = program:max_chunk()
  try(session:rewind(0))
  for from = 1, #ids, most do
    local part = table.move(ids, from, math.min(from + most - 1, #ids), 1, {})
    local values = try(session:trace(part, names, last))
    for _, name in ipairs(names) do
      try(self.moments:add(name, values[name]))
      if from == 1 then first:note(name, values[name]) end
    end
  end
end

--- Reads the text and sums up the moments of some values, which the model as it is gives. Those of earlier calls are forgotten.
-- @param values list of names
-- @return moments of ane.core, by value; it is closed with the calibration. Raises as ane.util.failure does
function Calibration:collect(values)
  local program, last = try(trace.program(self.bundle)), true
  self.moments:clear()
  for _, value in ipairs(values) do last = last and value ~= self.head end
  local session <close> = try(program:session { context = self.longest, kv = self.kv })
  local done, progress, first = 0, self.progress, sinks.new(self.keyed)
  for _, ids in ipairs(self.runs) do
    read_window(self, program, session, ids, values, last, first)
    done = done + #ids
    if progress then progress("calibrate", done, self.tokens) end
  end
  for _, value in ipairs(values) do try(first:add(self.moments, value, self.tokens)) end
  return self.moments
end

--- The graph of the model with weights of a source: see ane.quantise.layout. The caller closes it.
function Calibration:layout(source) return layout.of(self.bundle.recipe, self.bundle.config, source) end

--- Can the model run in stages (ane.quantise.sequence)? Not with adapters that are not merged.
function Calibration:has_stages() return not (self.bundle.options.adapters and not self.bundle.options.merge) end

--- A text that identifies what is read.
-- @param runs windows; default those that calibrate
function Calibration:digest(runs)
  local parts = {}
  for i, ids in ipairs(runs or self.runs) do parts[i] = table.concat(ids, ",") end
  return core.sha256(table.concat(parts, ";"))
end

--- How the model computes the inputs: the options of its load on which their numbers depend, as values that JSON can hold.
-- @param inputs "source": those of the loaded program; "rounded": those of stages, which have weights and states of their own
function Calibration:arithmetic(inputs)
  local options = self.bundle.options
  local own = { activations = options.activations }
  if inputs == "source" then
    local rules = {}
    for i, rule in ipairs(weights.rules(options.mixed)) do rules[i] = { rule[1], rule[2] } end
    own.kv, own.loaded_weights, own.loaded_mixed = self.kv, options.weights, rules[1] and rules
    own.loaded_adapters = self.bundle.adapters_key
  end
  return own
end

--- Frees the sums, and the model where the calibration owns it (field `model`).
function Calibration:close()
  self.moments:close()
  if self.model then self.model:close() end
end

Calibration.__close = Calibration.close

-- Divides windows: those of the first `most` tokens, and the others.
local function parted(runs, most)
  local first, rest = {}, {}
  for _, ids in ipairs(runs) do
    local n = math.min(#ids, most)
    if n > 0 then first[#first + 1] = table.move(ids, 1, n, 1, {}) end
    if n < #ids then rest[#rest + 1] = table.move(ids, n + 1, #ids, 1, {}) end
    most = most - n
  end
  return first, rest
end

--- Prepares to read a text.
-- @param model built by a recipe; it must stay open
-- @param input a text, a list of token ids, a list of texts and lists, {samples = N} or {chats = list} (ane.model.inputs)
-- @param opts see rules
-- @param level as error()'s, for wrong arguments
-- @return calibration: tokens, graph (hash of the model's), order (list of {value, cols}), input(), collect(), layout(), has_stages(),
-- digest(), arithmetic(), close(); or nil, message, code
function M.open(model, input, opts, level)
  level = (level or 1) + 1
  opts = schema.check(M.rules, opts, "calibrate", level)
  schema.argument({ type = { "string", "table" } }, input, "calibrate: input", level)
  local bundle = model_of.bundle(model, level)
  return failure.catch(function()
    local self = setmetatable({ kv = model.kv, progress = opts.progress, tokens = 0, bundle = bundle }, Calibration)
    try(trace.check(bundle))
    local chunk = math.min(opts.chunk, model.context, bundle.context)
    local runs = try(windows.split(model, try(input_of.resolve(model, input, opts.progress)), chunk, opts.tokens + opts.further))
    self.runs, self.further = parted(runs, opts.tokens)
    self.longest = 0
    for _, ids in ipairs(self.runs) do self.tokens, self.longest = self.tokens + #ids, math.max(self.longest, #ids) end
    local found = self:layout(bundle.source)
    self.graph = core.sha256(found.graph:dump())
    found.graph:close()
    self.inputs, self.head, self.order, self.keyed = found.inputs, found.head, found.order, found.keyed
    self.moments = try(core.moments(opts.threads or core.cpu_cores()))
    return self
  end)
end

--- The option `further` of open for an option `tune` of quantise.
function M.further(tune) return tune ~= "none" and require("ane.quantise.tune").FURTHER or nil end

--- Removes the options calibrate and tokens from a copy of the options, and opens the calibration that they describe; without method
-- gptq it computes the importance of columns on the text instead.
-- @param opts any value; other options are not checked
-- @param what the function's name, for messages
-- @param check nil, or function(options without calibrate and tokens) -> true; or nil, message, code. It is called before the text is
-- read
-- @return a table of options, with calibration or importance where there was a text; the calibration, or nil; or nil, message, code
function M.from_options(model, opts, what, level, check)
  if opts == nil then return {} end
  schema.plain(opts, what, (level or 1) + 1)
  if opts.calibration ~= nil and getmetatable(opts.calibration) ~= Calibration then
    error(what .. ": unknown option \"calibration\"; the text is option calibrate", (level or 1) + 1)
  end
  if opts.calibrate == nil then
    if opts.tokens ~= nil then error(what .. ": option tokens needs option calibrate", (level or 1) + 1) end
    return opts
  end
  local own = {}
  for key, value in pairs(opts) do own[key] = value end
  own.calibrate, own.tokens = nil, nil
  schema.argument({ type = { "string", "table" } }, opts.calibrate, what .. ": option calibrate", (level or 1) + 1)
  if opts.tokens ~= nil then schema.argument(M.rules.tokens, opts.tokens, what .. ": option tokens", (level or 1) + 1) end
  local is_gptq, progress = own.method == "gptq", own.progress ~= true and own.progress or nil
  if not is_gptq and own.importance ~= nil then
    error(what .. ": option calibrate cannot be combined with option importance without method gptq", (level or 1) + 1)
  end
  local calibration, message, code
  if check then
    calibration, message, code = check(own)
    if not calibration then return nil, message, code end
  end
  if is_gptq then
    own.calibration, message, code = M.open(model, opts.calibrate, {
      tokens = opts.tokens, threads = own.threads, progress = progress, further = M.further(own.tune),
    }, (level or 1) + 1)
  else
    own.importance, message, code = importance.run(model, opts.calibrate, { tokens = opts.tokens, progress = progress })
  end
  if not (own.calibration or own.importance) then
    local of_text = code == "invalid" or code == "range"
    return nil, of_text and "option calibrate: " .. message or message, code
  end
  return own, own.calibration
end

return M
