--- Adapters of parameters that stack the matrices of all experts of a layer (target_parameters of PEFT): merged only.
-- Needs ane.adapter.places and ane.util.failure. Format: class ParamWrapper of PEFT (tuners/lora/layer.py).
-- Usage: `experts.edits(file, where, source, m, scale, function(name, change) ... end)`
--
-- The parameter is [experts, out, in]; classes of transformers that store [experts, in, out] say so to PEFT, so A [experts * r, in] and
-- B [out, r * experts] mean the same for both. The columns of B are ordered by rank, then by expert. A parameter gate_up_proj holds the
-- rows of gate and then those of up, or the rows of both alternate.

local failure = require "ane.util.failure"
local places = require "ane.adapter.places"

local raise, try = failure.raise, failure.try

local M = {}

-- Outputs and inputs of the matrix that the model's tensor stores for a place, before rows of it are selected.
local function matrix_size(source, place)
  local shape = source:tensor(place.weight).shape
  local out, inputs = shape[#shape - 1], shape[#shape]
  if place.transposed then return inputs, out end
  return out, inputs
end

-- Returns whether the model's tensor holds the rows of gate and of up, as the parameter does.
local function holds_both(place) return place.from ~= nil or place.step ~= nil end

-- Which rows of B belong to the tensor of a place: the number of B's rows, the first of the place's rows, and the step between them.
local function rows_of(source, where, place)
  local out = matrix_size(source, place)
  if place.stack.slot == "down" or place.stack.up_alone or holds_both(place) then return out, 0, 1 end
  local up = place.stack.slot == "up"
  if where.interleaved then return 2 * out, up and 1 or 0, 2 end
  return 2 * out, up and out or 0, 1
end

local function name_of(m) return places.bare(m.module) .. "." .. m.parameter end

--- Returns whether this module stacks the matrices of experts.
function M.are(m) return m.experts ~= nil end

-- Returns the places of a parameter, checked. Raises if the model has no such parameter.
local function find(file, where, source, m)
  local list = where.stacks[name_of(m)]
  if not list then
    raise("notfound", "%s: tensor %s is for parameter %s of module %s, which %s (%s) does not have", file.path, m.a.name, m.parameter,
      m.module, source:path(), where.architecture)
  end
  for _, place in ipairs(list) do
    local count, outputs, _, inputs = place.stack.count, (rows_of(source, where, place)), matrix_size(source, place)
    if m.experts ~= count or m.rows ~= outputs or m.cols ~= inputs then
      local form = "%s: tensors %s and %s are for %d experts of [%d, %d], but %s of %s has %d of [%d, %d]: the adapter is for another base"
      raise("shape", form, file.path, m.a.name, m.b.name, m.experts, m.rows, m.cols, m.parameter, source:path(), count, outputs, inputs)
    end
  end
  return list
end

--- The changes of a module to the tensors of a model.
-- @param file, where, source as of ane.adapter.load
-- @param m module of the file, with experts
-- @param blend scale of the adapter
-- @param add function(name, change): a change, as core.merged takes it, to a tensor
-- @raise failures
function M.edits(file, where, source, m, blend, add)
  local list, seen = find(file, where, source, m), {}
  local a, b = try(file.source:read(m.a.name)), try(file.source:read(m.b.name))
  for _, place in ipairs(list) do
    if not seen[place.weight] then -- one tensor may hold all experts, and gate beside up
      seen[place.weight] = true
      local outputs, first, step = rows_of(source, where, place)
      add(place.weight, {
        adapter = file.path, rank = m.rank, scale = m.scale, blend = blend, a = a, b = b,
        outputs = outputs, first = first, step = step, transposed = place.transposed or nil, experts = m.experts,
        expert = not place.index and place.stack.expert or nil,
      })
    end
  end
end

--- Raises the refusal of an adapter of experts that is not merged.
function M.refuse(file, m)
  raise("unsupported", "%s: tensor %s is for experts, whose adapters are computed merged only: load the model with merge = true", file.path,
    m.a.name)
end

return M
