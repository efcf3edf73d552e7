--- The planner of ranks: each step is on one rank, no rank has more than its memory, and no other cut is faster.
local cut = require "ane.pipeline.cut"

local M = { cases = 60 }

-- Steps of a random model; few numbers cross before each layer.
local function costs_of(d)
  local costs = { { name = "embed", weights = 0, read = 0, values = 0, table = 100, kv = 0, crossing = 0 } }
  for layer = 0, d.between(1, 7) do
    for i = 1, d.between(1, 3) do
      local bytes = d.between(1, 100)
      costs[#costs + 1] = {
        name = ("layers.%d.part%d"):format(layer, i), weights = bytes, read = d.between(0, bytes), values = bytes, table = 0,
        kv = d.below(3), crossing = i == 1 and 8 or 20,
      }
    end
  end
  local tail = d.below(300)
  costs[#costs + 1] = { name = "head", weights = tail, read = tail, values = tail, table = 0, kv = 0, crossing = 8 }
  return costs
end

local function ranks_of(d)
  local ranks = {}
  for i = 1, d.between(1, 4) do ranks[i] = { speed = d.between(1, 4), room = d.chance(0.5) and d.between(50, 900) or nil } end
  return ranks
end

-- The time of the slowest stage; infinite where one does not fit.
local function time_of(costs, cuts, ranks, tail)
  local slowest = 0
  for i, s in ipairs(cut.describe(costs, cuts)) do
    local last = i == #ranks
    local read = s.read - (last and (1 - tail) * costs[#costs].read or 0)
    if ranks[i].room and s.weights > ranks[i].room then return math.huge end
    slowest = math.max(slowest, read / ranks[i].speed)
  end
  return slowest
end

-- All cuts between layers for so many ranks: lists of body steps that do not descend, but for the first rank, which may be empty.
local function each_cut(costs, ranks, fn)
  local places = { 0 }
  for at = 3, #costs - 1 do
    if costs[at].name:find "part1$" then places[#places + 1] = at - 1 end
  end
  local function extend(list, from)
    if #list == ranks - 1 then return fn(list) end
    for i = from, #places do
      list[#list + 1] = places[i]
      extend(list, i)
      list[#list] = nil
    end
  end
  extend({}, 1)
end

function M.case(d)
  local costs, ranks, tail = costs_of(d), ranks_of(d), d.one_of { 0, 0.5, 1 }
  local cuts, message, code = cut.choose(costs, ranks, { tail = tail })
  local best = math.huge
  each_cut(costs, #ranks, function(list) best = math.min(best, time_of(costs, list, ranks, tail)) end)
  if not cuts then
    assert(code == "memory" and message:find "do not fit", message)
    assert(best == math.huge, "refused, although a cut fits")
    return
  end
  local stages, at, weights, all = cut.describe(costs, cuts), 0, 0, 0
  assert(#stages == #ranks, "a rank has no stage")
  for _, c in ipairs(costs) do all = all + c.weights end
  for _, s in ipairs(stages) do
    assert(s.from == at and s.to >= s.from, "steps are left out, or taken twice")
    at, weights = s.to, weights + s.weights
  end
  assert(at == #costs - 1 and weights == all, "the stages do not hold the whole")
  local taken = time_of(costs, cuts, ranks, tail)
  assert(taken <= best + 1e-9, ("the slowest stage takes %g, it could take %g"):format(taken, best))
end

return M
