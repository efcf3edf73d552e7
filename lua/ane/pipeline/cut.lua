--- Chooses where a model is cut into stages, and predicts what each takes.
-- Needs nothing. Usage: `local cuts = assert(cut.choose(costs, ranks, opts)); local stages = cut.describe(costs, cuts)`
--
-- The time of a stage is (bytes of its body + opts.tail * bytes of the tail) / speed of its rank. A decoded token reads all weights of
-- a stage once: tail = 1 gives that time. A token of a prompt is multiplied by the weights of the body only: tail = 0 gives that time. A
-- cut lies only where it sends no more values than a cut between two layers.

local M = {}

--- Default weight of the tail, between prompts and decoding.
M.TAIL = 0.5

-- The layer that a step's name contains; nil: the step belongs to none.
local function layer_of(name) return math.tointeger(tonumber(name:match "^layers%.(%d+)%f[%D]")) end

-- Cuts are considered only where they send no more values than any cut within this number of steps before and after.
local NEAR = 4

-- The candidates for a cut: the numbers of the body steps before which a cut may lie. Step 0 is not among them.
local function candidates(costs)
  local list = {}
  for i = 2, #costs - 1 do
    local least = math.huge
    for j = math.max(2, i - NEAR), math.min(#costs - 1, i + NEAR) do least = math.min(least, costs[j].crossing) end
    if costs[i].crossing == least then list[#list + 1] = i - 1 end
  end
  return list
end

-- Prefix sums of a field of the steps: sums[i + 1] is the sum over the first i.
local function sums_of(costs, field)
  local sums = { 0 }
  for i, c in ipairs(costs) do sums[i + 1] = sums[i] + c[field] end
  return sums
end

-- Rows of a group of the packed layouts. The part of each rank begins at a multiple of it.
local GROUP = 16

--- Divides the head over ranks, in proportion to their speeds.
-- @param head of graph:head(), or nil
-- @param ranks list of {speed}
-- @return list of the first row of each rank's part, and at its end the number of rows; nil: the head is not divided
function M.divide(head, ranks)
  if not head or #ranks == 1 then return nil end
  local total, sum, list = 0, 0, { 0 }
  for _, rank in ipairs(ranks) do total = total + rank.speed end
  for i, rank in ipairs(ranks) do
    sum = sum + rank.speed
    list[i + 1] = math.min(head.rows, math.floor(head.rows * sum / total / GROUP + 0.5) * GROUP)
  end
  list[#list] = head.rows
  return list
end

-- Rank i's share of an amount (bytes or values of the whole head), in proportion to its rows. The shares are integers and add up to
-- the amount.
local function part_of(head, i, amount)
  return amount * head.parts[i + 1] // head.rows - amount * head.parts[i] // head.rows
end

--- The body steps at which the layers of a list begin.
-- @param layers numbers of layers, ascending
-- @return list of body steps; or nil, message, code
function M.at_layers(costs, layers)
  local cuts = {}
  for i, layer in ipairs(layers) do
    for at = 1, #costs - 1 do
      if layer_of(costs[at].name) == layer then
        cuts[i] = at - 1
        break
      end
    end
    if not cuts[i] then return nil, ("option cut: the model has no layer %d"):format(layer), "invalid" end
    if cuts[i - 1] and cuts[i] < cuts[i - 1] then return nil, "option cut: the layers must ascend", "invalid" end
  end
  return cuts
end

--- Chooses the cuts that minimise the time of the slowest stage.
-- @param costs of graph:costs()
-- @param ranks list of {speed (relative), room (bytes for weights, or nil)}
-- @param opts cut (the layers that ranks 1, 2, ... begin with; nil: chosen here), tail
-- @param head of graph:head() if it is divided, with `parts` of divide(); else nil
-- @return list of the body steps with which ranks 1, 2, ... begin; or nil, message, code
function M.choose(costs, ranks, opts, head)
  local n = #ranks
  if opts.cut then
    if #opts.cut ~= n - 1 then return nil, ("option cut has %d layers, but %d ranks need %d"):format(#opts.cut, n, n - 1), "invalid" end
    return M.at_layers(costs, opts.cut)
  end
  local at, read, held = candidates(costs), sums_of(costs, "read"), sums_of(costs, "weights")
  table.insert(at, 1, 0)
  at[#at + 1] = #costs - 1 -- the end of the body, where only the last stage ends
  local divided, steps = head and head.weights or 0, #costs - 1
  local tail = (opts.tail or M.TAIL) * (costs[#costs].read - divided)
  -- Relative time of a rank whose stage is [a, b); infinite if the weights do not fit its room.
  local function time(rank, a, b)
    local bytes, stored = read[b + 1] - read[a + 1], held[b + 1] - held[a + 1]
    if b == steps then bytes, stored = bytes + tail, stored + costs[#costs].weights - divided end
    if head then stored = stored + part_of(head, rank, divided) end
    if ranks[rank].room and stored > ranks[rank].room then return math.huge end
    return bytes / ranks[rank].speed
  end
  -- best[j]: the time of the slowest stage so far, at the best of all divisions that end at candidate j. from[rank][j]: the candidate
  -- with which the stage of `rank` begins in that division. Only the last rank's stage ends at the end of the body.
  local best, from = {}, {}
  for rank = 1, n do
    local now = {}
    from[rank] = {}
    for j = 1, rank == n and #at or #at - 1 do
      if rank == n and j < #at then goto continue end
      for i = 1, rank == 1 and 1 or math.min(j, #at - 1) do
        local t = math.max(rank == 1 and 0 or best[i] or math.huge, time(rank, at[i], at[j]))
        if t < (now[j] or math.huge) then now[j], from[rank][j] = t, i end
      end
      ::continue::
    end
    best = now
  end
  if not best[#at] then
    local what = "the weights of the model (%.2f GB) do not fit the free memory of the ranks (%s GB)"
    local rooms = {}
    for i, one in ipairs(ranks) do rooms[i] = one.room and ("%.2f"):format(one.room / 1e9) or "?" end
    return nil, what:format(held[#held] / 1e9, table.concat(rooms, " + ")), "memory"
  end
  local cuts, j = {}, #at
  for rank = n, 2, -1 do
    j = from[rank][j]
    cuts[rank - 1] = at[j]
  end
  return cuts
end

-- The first and the last layer of the steps [a, b); nil: there are none.
local function layers_of(costs, a, b)
  local first, last
  for i = a + 1, b do
    local layer = layer_of(costs[i].name)
    if layer then first, last = math.min(first or layer, layer), math.max(last or layer, layer) end
  end
  return first, last
end

--- What each stage holds, reads and sends.
-- @param costs of graph:costs()
-- @param cuts list of body steps
-- @param head as for choose()
-- @return list of {from, to (body steps), first, last (layers; nil: none), head_rows (of the head, if it is divided), weights, read,
-- table (bytes), values, kv (numbers per token), sends (floats per token to the next; 0 of the last)}
function M.describe(costs, cuts, head)
  local stages, from = {}, 0
  for i = 1, #cuts + 1 do
    local to = cuts[i] or #costs - 1
    local s = { from = from, to = to, weights = 0, read = 0, values = 0, table = 0, kv = 0, sends = 0 }
    if cuts[i] then s.sends = costs[to + 1].crossing end
    for j = from + 1, cuts[i] and to or #costs do
      for _, field in ipairs { "weights", "read", "values", "table", "kv" } do s[field] = s[field] + costs[j][field] end
    end
    s.first, s.last = layers_of(costs, from, cuts[i] and to or #costs)
    if head then
      s.head_rows = head.parts[i + 1] - head.parts[i]
      local counted = cuts[i] and 0 or 1 -- the costs of the last stage already have the whole head
      local weights, values = head.weights, head.rows * head.cols
      s.weights = s.weights + part_of(head, i, weights) - counted * weights
      s.read = s.read + part_of(head, i, weights) - counted * weights
      s.values = s.values + part_of(head, i, values) - counted * values
    end
    stages[i], from = s, to
  end
  return stages
end

return M
