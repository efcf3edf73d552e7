--- The progress of writing a model, in bytes of its file.
-- Needs ane.quantise.types. Usage: `local m = meter.new(tensors, size, factors, progress); m:begin(t); m:written(done)`
--
-- Where weights are rounded in the order of the model, running the model takes most of the time. Bytes then advance with the work: half
-- of what is due to the weights of an input is the stage of the model before it.

local types = require "ane.quantise.types"

local M = {}

-- Work of a number that is not compensated, beside one that is: it is copied or rounded to the nearest.
local PLAIN = 1 / 32

local Meter = {}
Meter.__index = Meter

-- Reports the work that was done before this tensor, and a share of a part of it.
local function show(self, before, share, of)
  self.progress("quantise", math.min(self.size, math.floor(self.size * (before + share * of) / self.total)), self.size)
end

--- Records the beginning of a tensor.
function Meter:begin(t)
  self.now, self.start = t, self.seen
  if not self.follows then return end
  self.done = self.done + self.due
  local value = t.wanted and t.wanted.value
  self.stage = value ~= self.value and self.stages[value] or 0 -- the first tensor of a value waits for it
  self.value = value
  self.due = self.stage + types.elements(t.shape) * (value and 1 or PLAIN)
end

--- Records that the file has `done` bytes.
function Meter:written(done)
  self.seen = done
  if not self.follows or done >= self.size then return self.progress("quantise", done, self.size) end
  local share = math.min(1, (done - self.start) / math.max(1, self.now.bytes_after))
  show(self, self.done + self.stage, share, self.due - self.stage)
end

--- Records that a part of `bytes` bytes was copied from an earlier run.
function Meter:skipped(bytes) self.seen = self.seen + bytes end

--- @param tensors of a plan, in order, with bytes_after and wanted
-- @param size of the file
-- @param factors of ane.quantise.compensate, or nil
-- @param progress function(stage, done, total)
function M.new(tensors, size, factors, progress)
  local self = setmetatable({ size = size, progress = progress, seen = 0, done = 0, due = 0, total = 0, stages = {} }, Meter)
  self.follows = factors ~= nil and factors.watch ~= nil
  if not self.follows then return self end
  for _, t in ipairs(tensors) do
    local n = types.elements(t.shape)
    if t.wanted then self.stages[t.wanted.value] = (self.stages[t.wanted.value] or 0) + n end
    self.total = self.total + n * (t.wanted and 2 or PLAIN)
  end
  factors:watch(function(share) show(self, self.done, share, self.stage) end)
  return self
end

return M
