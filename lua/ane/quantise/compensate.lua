--- Factors of second moments for the tensors of a plan, in passes over a calibration text.
-- Needs ane.core and ane.util.failure. Usage:
--   local factors = compensate.new(calibration, wanted, {memory = 2 << 30}); local factor = factors:of(i)
--
-- The moments of all inputs may not fit into memory together. Tensors are asked for in order; where the moment of the next one is
-- missing, a pass reads the text for as many of the following tensors as the limit allows.

local core = require "ane.core"
local failure = require "ane.util.failure"

local try = failure.try

local M = {}

--- Damping of the factors, in means of the diagonal: 0.01, as GPTQ has it.
M.DAMP = 0.01

-- Factors that are kept. Projections of one input follow each other, with those of other inputs between them.
local KEPT = 3

-- Memory of the moment and the factor of an input, in bytes: float32 sums; while factoring double precision and the strips.
local function moment_bytes(cols) return 4 * cols * cols end
local function factor_bytes(cols) return (8 + KEPT * 2) * cols * cols end

local Factors = {}
Factors.__index = Factors

-- The values of the wanted tensors from the i-th on whose moments fit.
local function values_from(self, i)
  local values, seen, bytes, largest = {}, {}, 0, 0
  for k = i, self.n do
    local w = self.wanted[k]
    if w and not seen[w.value] then
      bytes, largest = bytes + moment_bytes(w.cols), math.max(largest, factor_bytes(w.cols))
      if #values > 0 and bytes + largest > self.memory then break end
      seen[w.value] = true
      values[#values + 1] = w.value
    end
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

--- The factor for the i-th tensor. Raises as ane.util.failure does.
-- @return factor of ane.core; nil: the tensor is rounded without compensation
function Factors:of(i)
  local w = self.wanted[i]
  if not w then return nil end
  if not self.present[w.value] then
    local values
    values, self.present = values_from(self, i)
    self.moments = self.calibration:collect(values)
    self.passes = self.passes + 1
  end
  local key = ("%s %d %d"):format(w.value, w.group, w.sub)
  local factor = kept(self, key)
  if factor then return factor end
  if #self.cache == KEPT then table.remove(self.cache).factor:close() end
  factor = try(self.moments:factor(w.value, w.group, w.sub, M.DAMP))
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

--- Factors for a list of tensors.
-- @param wanted index -> wanted(), with holes
-- @param n the last index
-- @param memory bytes that moments and factors may take
function M.new(calibration, wanted, n, memory)
  return setmetatable({
    calibration = calibration, wanted = wanted, n = n, memory = memory, present = {}, cache = {}, passes = 0,
  }, Factors)
end

return M
