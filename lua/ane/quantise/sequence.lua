--- Inputs of weights in the order of computation: those in the source, and those in the model whose earlier weights are rounded.
-- Needs ane.core, ane.quantise.overlay, ane.quantise.sinks, ane.quantise.types and ane.util.failure. Usage:
--   local s <close> = sequence.new(calibration, { "layers.0.attn_norm", ... }, replaced); s:advance(); s:put(name, bytes)
--
-- The model is cut after each of the values. A stage of it (csrc/exec/exec.h) runs from one cut to the next on all windows of the text:
-- once with the weights of the source, and once with those that have been put. The values that cross the cuts are kept. So the text
-- passes through the model only twice, and only the weights of one stage are in memory.

local core = require "ane.core"
local failure = require "ane.util.failure"
local overlay = require "ane.quantise.overlay"
local sinks = require "ane.quantise.sinks"
local types = require "ane.quantise.types"

local try = failure.try

local M = {}

-- The messages of the previous stage become garbage. Without collection it would grow to the size of all messages.
local GARBAGE <const> = 64 << 20

local Sequence = {}
Sequence.__index = Sequence

-- One of the two models: graph, layout, source of its weights, messages (of each window, at the last cut).
local function side_of(layout, source) return { graph = layout.graph, layout = layout, source = source, messages = {} } end

local FLOATS = { fp32 = true, fp16 = true, bf16 = true }

-- Rules that hold the matrices of steps [from, to) that are floats as q8_0, which int8 activations multiply several times as fast.
local function rules_of(self, side, from, to)
  local rules = {}
  for step = from, to - 1 do
    for _, name in ipairs(self.layout.weights[step] or {}) do
      local t = side.source:tensor(name)
      if t and FLOATS[t.dtype] and #t.shape > 1 then rules[#rules + 1] = { name .. "*", "q8_0" } end
    end
  end
  return rules
end

-- Plans the steps [from, to) of a side; the tail too, up to the input of the head, where `to` is after the body.
local function stage_of(self, side, from, to)
  local current = {}
  local n_body = self.layout.n_body
  local stage = {
    from = from, to = math.min(to, n_body), tail = "all",
    receive = function() return side.messages[current.window] end,
    send = function(bytes)
      current.message = bytes
      return true
    end,
  }
  if to > n_body and side.graph:head() then stage.tail = "no-head" end
  local chunk = self.chunk
  local program = try(core.program(side.graph, {
    threads = self.threads, int8 = self.int8, mixed = self.int8 and rules_of(self, side, from, to) or nil,
    head = "full", context = chunk, chunk = chunk, stage = stage,
  }))
  local session = try(program:session { context = chunk, kv = "fp32" })
  return { session = session, current = current, keeps = to <= n_body, close = function()
    session:close()
    program:close()
  end }
end

-- Runs a stage on a window. Returns the value after the cut.
local function run(side, stage, window, ids, value)
  stage.current.window, stage.current.message = window, nil
  try(stage.session:rewind(0))
  local traced = try(stage.session:trace(ids, { value }))
  local old = side.messages[window]
  if stage.keeps then side.messages[window] = stage.current.message end
  return traced[value] or failure.raise("invalid", "value %s is not in its stage", value), old and #old or 0
end

-- The tensors that steps [from, to] use before they have made a value.
local function tensors_of(layout, from, to, value)
  local names, seen = {}, {}
  for step = from, to do
    for _, name in ipairs(layout.weights[step] or {}) do
      local input = layout.inputs[name]
      if not seen[name] and not (input and input.value == value) then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  return names
end

-- Gives back what no later step needs.
local function forget(self, names, step)
  local done = {}
  for _, name in ipairs(names) do
    if self.layout.uses[name].last <= step then done[#done + 1] = name end
  end
  self.overlay:forget(done)
end

-- Runs both models from the last cut to the one after value i.
-- @param skips true: the moment of this value is not needed
local function run_stage(self, value, from, to, skips)
  local source, changed = stage_of(self, self.source, from, to), stage_of(self, self.changed, from, to)
  local garbage, first = 0, sinks.new(self.layout.keyed)
  for window, ids in ipairs(self.runs) do
    local own, old = run(self.source, source, window, ids, value)
    local other = run(self.changed, changed, window, ids, value)
    if not skips then
      try(self.moments:add(value, other, own))
      first:note(value, other, own)
    end
    if self.on_window then self.on_window(window / #self.runs) end
    garbage = garbage + 2 * old + 8 * #own
    if garbage > GARBAGE then
      collectgarbage()
      garbage = 0
    end
  end
  try(first:add(self.moments, value, self.tokens))
  source.close()
  changed.close()
end

-- Gives the rounded model the numbers of the source where nothing was put.
local function complete(self, names)
  for _, name in ipairs(names) do
    if self.overlay:changes(name) and not self.given[name] then self.overlay:put(name, try(self.base:read(name))) end
  end
end

--- Goes on to the next value. `moments` then holds its second moment and how it differs from the source's, and nothing else.
-- @param wanted the value for which the caller goes on: without the moments of those before it; nil: any
-- @return its name. Raises as ane.util.failure does
function Sequence:advance(wanted)
  local i = self.at + 1
  local value = self.values[i] or failure.raise("invalid", "weights are not rounded in the order of the model")
  local from, to = self.cut, self.layout.made[value] + 1
  local names = tensors_of(self.layout, from, to - 1, value)
  self.moments:clear()
  overlay.fill(self.base, names)
  if self.sparse then complete(self, names) end
  run_stage(self, value, from, to, wanted and wanted ~= value)
  overlay.drop(self.base, names)
  forget(self, names, to - 1)
  collectgarbage()
  self.at, self.cut = i, to <= self.layout.n_body and to or from -- all of the tail is one stage
  return value
end

--- Is the tensor among those that are put, and used after the last cut?
function Sequence:takes(name) return self.overlay:changes(name) and self.layout.uses[name].last >= self.cut end

--- The state: {at, cut, messages (of the source, then of the rounded model)}. Tensors that were put are not part of it.
function Sequence:state()
  local messages, n = {}, #self.runs
  for i = 1, n do messages[i], messages[n + i] = self.source.messages[i] or "", self.changed.messages[i] or "" end
  return { at = self.at, cut = self.cut, messages = messages }
end

--- Continues from the state of another sequence of the same model, text and options.
function Sequence:restore(state)
  local n = #self.runs
  for i = 1, n do self.source.messages[i], self.changed.messages[i] = state.messages[i], state.messages[n + i] end
  self.at, self.cut = state.at, state.cut
end

--- Replaces a tensor for the steps that follow.
-- @param bytes in its new type
-- @param head rows of a head that were written in pairs, or nil
function Sequence:put(name, bytes, head)
  self.overlay:put(name, bytes, head)
  self.given[name] = true
end

function Sequence:close()
  self.source.graph:close()
  self.changed.graph:close()
end

Sequence.__close = Sequence.close

-- The names in the order in which the model makes them.
local function sorted(layout, values)
  local list = table.move(values, 1, #values, 1, {})
  table.sort(list, function(a, b) return layout.made[a] < layout.made[b] end)
  return list
end

-- Those of the tensors to replace that no step uses before they are rounded.
local function in_time(layout, replaced)
  local list = {}
  for _, edit in ipairs(replaced) do
    local use = layout.uses[edit.name]
    if use and (not edit.value or use.first > layout.made[edit.value] or use.first == layout.n_body) then list[#list + 1] = edit end
  end
  return list
end

-- Do int8 activations, and q8_0 in place of floats, add little to the errors of the weights? Yes where all of these have about 4 bits:
-- KL of SmolLM2 in int4-block 0.0933 in fp32, 0.0936 with int8; rotated in int8 0.0055 and 0.0078 (bench/results/quantising.md).
local function computes_int8(bundle, replaced)
  if (bundle.options or {}).activations == "fp32" then return false end
  for _, edit in ipairs(replaced) do
    if edit.value and not (types.known[edit.dtype] and types.known[edit.dtype].bits <= 5) then return false end
  end
  return true
end

--- Prepares to run a model in stages.
-- @param calibration of ane.quantise.moments
-- @param values names of the inputs that are wanted
-- @param replaced list of {name, dtype, value}: tensors that are put, their types then, and the value for which they are rounded (nil: they
-- are put before the first). A tensor that a step uses before that value is known stays as it is
-- @param opts threads; sparse: tensors that nobody puts, all of type fp32,
-- stay as they are
-- @return sequence: values (in the order of the model), advance(), takes(), put(), state(), restore(), moments, close(); on_window, a
-- function of the share of a stage that has run, may be set. Raises as ane.util.failure does
function M.new(calibration, values, replaced, opts)
  local bundle = calibration.bundle
  local layout = calibration:layout(bundle.source)
  local over = overlay.new(bundle.source, in_time(layout, replaced))
  local self = setmetatable({
    layout = layout, runs = calibration.runs, tokens = calibration.tokens, chunk = calibration.longest, moments = calibration.moments,
    int8 = computes_int8(bundle, replaced),
    threads = opts.threads, sparse = opts.sparse, base = bundle.source, overlay = over, given = {}, at = 0, cut = 0,
  }, Sequence)
  self.values = sorted(layout, values)
  self.source = side_of(layout, bundle.source)
  self.changed = side_of(calibration:layout(over.source), over.source)
  if self.changed.layout.n_body ~= layout.n_body then failure.raise("invalid", "the graph depends on the types of weights") end
  return self
end

return M
