--- Factors of second moments for weights, in passes over a calibration text.
-- Needs ane.core and ane.util.failure. Usage:
--   local factors = compensate.new(calibration, order, 2 << 30)
--   local factor = factors:of(compensate.wanted(calibration, {"blk.0.attn_q.weight"}, "q4_0", 576))
--
-- The moments of all inputs may not fit into memory together. Where the moment of an input is missing, a pass reads the text for it and
-- for as many of those that follow it in `order` as the limit allows.

local core = require "ane.core"
local failure = require "ane.util.failure"

local try = failure.try

local M = {}

--- Damping of the factors, in means of the diagonal: 0.01, as GPTQ has it.
M.DAMP = 0.01

--- Share of the drift that weights follow, of 1 (alpha of QEP, which csrc/quant/compensate.h names).
M.STRENGTH = 0.5

-- Factors that are kept. Projections of one input follow each other, with those of other inputs between them.
local KEPT = 3

-- Memory of the moment and the factor of an input, in bytes: float32 sums; while factoring double precision and the strips. The drift
-- is a full matrix in both.
local function moment_bytes(cols, drifts) return (drifts and 8 or 4) * cols * cols end
local function factor_bytes(cols, drifts) return (8 + KEPT * (drifts and 6 or 2)) * cols * cols end

local Factors = {}
Factors.__index = Factors

-- The input and those behind it in the order whose moments fit, at most those of a stage; also as a set.
local function values_from(self, input)
  local values, seen, bytes, largest, begun = {}, {}, 0, 0, false
  local function take(w)
    bytes, largest = bytes + moment_bytes(w.cols, self.stages > 1), math.max(largest, factor_bytes(w.cols, self.stages > 1))
    if #values > 0 and (bytes + largest > self.memory or #values == self.per_stage) then return false end
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

--- The factor for a weight. Raises as ane.util.failure does.
-- @param w of wanted()
-- @return factor of ane.core, valid until some more were asked for
function Factors:of(w)
  if not self.present[w.value] then
    local values
    values, self.present = values_from(self, w)
    self.moments = self.calibration:collect(values, self.written)
    self.passes = self.passes + 1
  end
  local key = ("%s %d %d"):format(w.value, w.group, w.sub)
  local factor = kept(self, key)
  if factor then return factor end
  if #self.cache == KEPT then table.remove(self.cache).factor:close() end
  factor = try(self.moments:factor(w.value, w.group, w.sub, M.DAMP, M.STRENGTH))
  table.insert(self.cache, 1, { key = key, factor = factor })
  return factor
end

--- What a tensor needs for compensated rounding.
-- @param calibration of ane.quantise.moments
-- @param names of the tensor, in both files
-- @param to type or scheme
-- @param cols its columns
-- @return {value, cols, group, sub}; or nil, why there is none
function M.wanted(calibration, names, to, cols)
  local group, sub = core.compensate_groups(to)
  if not group then return nil, ("%s is rounded without compensation"):format(to) end
  for _, name in ipairs(names) do
    local value, known = calibration:input(name)
    if value and known == cols then return { value = value, cols = cols, group = group, sub = sub } end
  end
  return nil, "its inputs are unknown: rounded without compensation"
end

--- Notes a weight that has been rounded, for the later stages.
-- @param weight {name, dtype, bytes}: of the source's tensor, as it was written
function Factors:wrote(weight) self.written[#self.written + 1] = weight end

--- Factors for weights.
-- @param order list of {value, cols}: the inputs in the order in which weights will be asked for
-- @param memory bytes that moments and factors may take
-- @param stages least number of passes over the text. Those behind the first read it with the weights that were noted by wrote()
function M.new(calibration, order, memory, stages)
  local seen, inputs = {}, 0
  for _, w in ipairs(order) do
    if not seen[w.value] then seen[w.value], inputs = true, inputs + 1 end
  end
  return setmetatable({
    calibration = calibration, order = order, memory = memory, stages = stages or 1, per_stage = math.ceil(inputs / (stages or 1)),
    written = {}, present = {}, cache = {}, passes = 0,
  }, Factors)
end

return M
