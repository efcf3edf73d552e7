--- Factors of second moments for weights, in passes over a calibration text.
-- Needs ane.core, ane.quantise.overlay, ane.quantise.sequence and ane.util.failure. Usage:
--   local factors = compensate.new(calibration, order, 2 << 30)
--   local factor = factors:of(compensate.wanted(calibration, {"blk.0.attn_q.weight"}, "q4_0", 576))
--
-- The moments of all inputs may not fit in memory together. If the moment of an input is missing, a pass reads the text for it and
-- for as many of the inputs that follow it in `order` as the limit allows.

local core = require "ane.core"
local failure = require "ane.util.failure"
local overlay = require "ane.quantise.overlay"
local sequence_of = require "ane.quantise.sequence"

local try = failure.try

local M = {}

--- Damping of the factors, as a multiple of the mean of the diagonal: 0.01, as in GPTQ.
M.DAMP = 0.01

--- The same for an embedding table that is also the head. Its rows are also added to the residual stream, and compensation for the inputs
-- of the head alone makes these errors larger.
M.TABLE_DAMP = 0.3

--- Fraction of the drift that weights follow (alpha of QEP, which csrc/quant/compensate.h names).
M.STRENGTH = 0.5

--- Tokens of the prior of a moment, of each of its columns (csrc/quant/compensate.h).
M.PRIOR = 1.5

-- Factors that are kept. Projections of one input follow each other, with those of other inputs between them.
local KEPT = 3

-- Memory of the moment and the factor of an input, in bytes: float32 sums; while factoring double precision, the strips and a copy.
local function moment_bytes(cols) return 4 * cols * cols end
local function factor_bytes(cols) return (8 + KEPT * 6) * cols * cols end

local Factors = {}
Factors.__index = Factors

-- The input and those after it in the order whose moments fit; also as a set.
local function values_from(self, input)
  local values, seen, bytes, largest, begun = {}, {}, 0, 0, false
  local function take(w)
    bytes, largest = bytes + moment_bytes(w.cols), math.max(largest, factor_bytes(w.cols))
    if #values > 0 and bytes + largest > self.memory then return false end
    seen[w.value] = true
    values[#values + 1] = w.value
    return true
  end
  take(input)
  for _, w in ipairs(self.order) do
    begun = begun or w.value == input.value
    if begun and not seen[w.value] and not take(w) then break end
  end
  return values, seen
end

local function kept(self, key)
  for i, entry in ipairs(self.cache) do
    if entry.key == key then
      table.insert(self.cache, 1, table.remove(self.cache, i))
      return entry.factor
    end
  end
end

-- Closes the factors that are kept: the moments change.
local function drop_factors(self)
  for _, entry in ipairs(self.cache) do entry.factor:close() end
  self.cache = {}
end

-- The names of the inputs of an order, each once.
local function values_of(order)
  local values, seen = {}, {}
  for _, w in ipairs(order) do
    if not seen[w.value] then
      seen[w.value] = true
      values[#values + 1] = w.value
    end
  end
  return values
end

-- The factor for a weight whose moment is known.
local function factor_of(self, w, strength)
  local key = ("%s %d %d %s"):format(w.value, w.group, w.sub, w.is_table)
  local factor = kept(self, key)
  if factor then return factor end
  if #self.cache == KEPT then table.remove(self.cache).factor:close() end
  local damp = M.DAMP
  if w.is_table then damp, strength = M.TABLE_DAMP, 0 end -- a row that follows the drift is another row of the embedding
  factor = try(self.moments:factor(w.value, w.group, w.sub, damp, strength, M.PRIOR * w.cols))
  table.insert(self.cache, 1, { key = key, factor = factor })
  return factor
end

--- The factor for a weight. Raises as ane.util.failure does.
-- @param w of wanted()
-- @return factor of ane.core, valid until some more were asked for
function Factors:of(w)
  if not self.present[w.value] then
    local values
    values, self.present = values_from(self, w)
    self.moments = self.calibration:collect(values)
    self.passes = self.passes + 1
  end
  return factor_of(self, w, 0)
end

--- Returns whether put() must be called with the tensor of this name after it is rounded.
function Factors.takes() return false end

function Factors.close() end

Factors.__close = Factors.close

-- Factors for weights that are asked for in the order of the model.
local Following = {}
Following.__index = Following

-- As Factors:of. Weights with earlier inputs must have been given to put().
function Following:of(w)
  while self.value ~= w.value do
    drop_factors(self)
    if self.notes and self.sequence.at > 0 then self.notes:save(self.sequence) end
    self.value = self.sequence:advance(w.value)
  end
  return factor_of(self, w, M.STRENGTH)
end

function Following:takes(name) return self.sequence:takes(name) end

--- Goes on from the state that was saved last, and saves further ones.
-- @param notes of ane.quantise.resume
-- @param w of wanted(): the first weight that is still to be rounded; nil: none
function Following:resume(notes, w)
  self.notes = notes
  local state = w and notes:state()
  if not state then return end
  for i = 1, state.at do -- a state after the weight is of no use
    if self.sequence.values[i] == w.value then return end
  end
  self.sequence:restore(state)
end

--- Sets a function that is called with the share of a stage that has run.
function Following:watch(on_window) self.sequence.on_window = on_window end

--- Gives the bytes of a rounded tensor: see ane.quantise.sequence.
function Following:put(name, bytes, head) self.sequence:put(name, bytes, head) end

function Following:close() self.sequence:close() end

Following.__close = Following.close

-- Factors for the matrices of packages, which are rounded as they are written. What a matrix becomes is computed here too, for those
-- after it.
local Exported = {}
Exported.__index = Exported

local function begin(self)
  if self.sequence then self.sequence:close() end
  drop_factors(self)
  local calibration, edits = self.calibration, {}
  for name, input in pairs(calibration.inputs) do edits[#edits + 1] = { name = name, dtype = "fp32", value = input.value } end
  table.sort(edits, function(a, b) return a.name < b.name end)
  self.sequence = sequence_of.new(calibration, values_of(calibration.order), edits, { threads = self.threads, sparse = true })
  self.place = {}
  for i, value in ipairs(self.sequence.values) do self.place[value] = i end
  self.at, self.moments, self.passes = 0, calibration.moments, self.passes + 1
end

-- Rounds the matrices that were asked for at the present value, for the steps that follow.
local function round_asked(self)
  local names, source = {}, self.calibration.bundle.source
  for name, asked in pairs(self.asked) do
    if self.place[asked.w.value] == self.at and self.sequence:takes(name) then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local asked = self.asked[name]
    local options = { scheme = asked.scheme, factor = factor_of(self, asked.w, M.STRENGTH) }
    overlay.fill(source, { name })
    self.sequence:put(name, try(core.rounded(source, name, options, self.threads)))
    overlay.drop(source, { name })
  end
end

--- The factor for a matrix, which is rounded then. Matrices are asked for in the order of the model; to begin again with an earlier one
-- reads the text again.
-- @param name of the tensor
-- @param w of wanted()
function Exported:of(name, scheme, w)
  local place = self.place and self.place[w.value]
  if not place or place < self.at then
    begin(self)
    place = self.place[w.value]
  end
  self.asked[name] = { scheme = scheme, w = w }
  while self.at < place do
    round_asked(self)
    drop_factors(self)
    self.sequence:advance()
    self.at = self.at + 1
  end
  return factor_of(self, w, M.STRENGTH)
end

function Exported:close()
  if self.sequence then self.sequence:close() end
  self.sequence = nil
end

Exported.__close = Exported.close

--- Factors for matrices of packages, for the inputs that the matrices before them give when they are rounded.
function M.exported(calibration, threads)
  return setmetatable({ calibration = calibration, threads = threads, asked = {}, cache = {}, passes = 0 }, Exported)
end

--- What a tensor needs for compensated rounding.
-- @param calibration of ane.quantise.moments
-- @param names of the tensor, in both files
-- @param to type or scheme
-- @param cols its columns
-- @param is_table true: rows of it are also looked up by token id
-- @return {value, cols, group, sub, is_table}; or nil, why there is none
function M.wanted(calibration, names, to, cols, is_table)
  local group, sub = core.compensate_groups(to)
  if not group then return nil, ("%s is rounded without compensation"):format(to) end
  for _, name in ipairs(names) do
    local value, known = calibration:input(name)
    if value and known == cols then return { value = value, cols = cols, group = group, sub = sub, is_table = is_table } end
  end
  return nil, "its inputs are unknown: rounded without compensation"
end

--- Factors for weights and the inputs that the source gives them.
-- @param order list of {value, cols}: the inputs in the order in which weights will be asked for
-- @param memory bytes that moments and factors may take
function M.new(calibration, order, memory)
  return setmetatable({
    calibration = calibration, order = order, memory = memory, present = {}, cache = {}, passes = 0, inputs = "source",
  }, Factors)
end

--- Factors for weights and the inputs that the model gives them when the weights before them are rounded. They are asked for in the order
-- of the model.
-- @param order list of {value, cols}
-- @param replaced, opts as ane.quantise.sequence takes them
function M.following(calibration, order, replaced, opts)
  local sequence = sequence_of.new(calibration, values_of(order), replaced, opts)
  return setmetatable({ sequence = sequence, moments = calibration.moments, cache = {}, passes = 1, inputs = "rounded" },
    Following)
end

return M
