--- The graph of a model as calibration sees it: what each weight is multiplied by, and which steps use which weights.
-- Needs ane.recipe and ane.util.failure. Usage: `local l = layout.of(recipe, config, source); print(l.inputs["blk.0.attn_q.weight"].value)`

local failure = require "ane.util.failure"
local recipe = require "ane.recipe"

local try = failure.try

local M = {}

-- The indices of the inputs of a step that are matrices which its first input is multiplied by. The inputs of `experts` after the second
-- are gate, bias, up, bias, down, bias of each expert; what `down` is multiplied by has no name.
local function multiplied(node)
  if node.op == "conv1x1" then return { 2 } end
  local list = {}
  if node.op == "experts" then
    for i = 3, #node.inputs, 6 do
      list[#list + 1] = i
      list[#list + 1] = i + 2
    end
  end
  return list
end

-- Adds the weights of a step: inputs of those that are multiplied by a value with a name; others are mixed.
local function add_inputs(self, record, graph_of, node)
  local known = {}
  for _, i in ipairs(multiplied(node)) do known[node.inputs[i] or false] = true end
  local x = node.inputs[1] and record[node.inputs[1]]
  for _, input in ipairs(node.inputs) do
    local w = input and record[input]
    if w and w.weight and graph_of.is_matrix(input) then
      local value, old = known[input] and x and x.name or nil, self.inputs[w.weight]
      if not value or (old and old.value ~= value) then self.mixed[w.weight] = true end
      local entry = { value = value, cols = graph_of.columns(input) }
      self.inputs[w.weight] = entry
      if value then self.order[#self.order + 1] = entry end
    end
  end
end

-- Notes the inputs of the products that give a key or value, which the steps before an attention may change.
local function add_keyed(self, record, value, seen)
  local node = value and record[value]
  if not node or not node.op or seen[value] then return end
  seen[value] = true
  if node.op == "conv1x1" then
    local x = record[node.inputs[1]]
    if x and x.name then self.keyed[x.name] = true end
    return
  end
  for _, input in ipairs(node.inputs) do add_keyed(self, record, input, seen) end
end

-- Notes the tensors that a step uses.
local function add_uses(self, record, node, step)
  self.weights[step] = self.weights[step] or {}
  for _, input in ipairs(node.inputs) do
    local w = input and record[input]
    if w and w.weight then
      table.insert(self.weights[step], w.weight)
      local use = self.uses[w.weight] or { first = step, last = step }
      self.uses[w.weight] = { first = math.min(use.first, step), last = math.max(use.last, step) }
    end
  end
end

-- The number of each step of the body by its name, from 0, and n_body, the number that all steps of the tail have.
local function steps_of(graph)
  local costs, step = try(graph:costs()), {}
  for i = 1, #costs - 1 do step[costs[i].name] = i - 1 end
  return step, #costs - 1
end

-- The nodes of a record in the order of the graph.
local function nodes_of(record)
  local list = {}
  for value, node in pairs(record) do
    if node.op then list[#list + 1] = { value, node } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

--- The layout of a model.
-- @param r the recipe
-- @param cfg the configuration
-- @param source of the weights
-- @return graph (unfused, which the caller closes), n_body (steps before the tail), made (name of a value -> step), weights (step -> names
-- of the tensors that it uses), uses (tensor -> {first, last}: steps), inputs (tensor -> {value, cols}: what it is multiplied by; nil where
-- that is unknown or differs), order (inputs in the order of the model), keyed (set of the values
-- whose products are keys or values of attention), head (value of the last input). Raises as ane.util.failure does
function M.of(r, cfg, source)
  local record, shape
  local graph = try(recipe.build(r, cfg, source, function(b)
    record = b.record
    shape = function(value) return b.graph:shape(value) end
    return true
  end))
  local self = { graph = graph, made = {}, weights = {}, uses = {}, inputs = {}, mixed = {}, order = {}, keyed = {} }
  local shapes = {}
  for value, node in pairs(record) do shapes[value] = node.weight and shape(value) or nil end
  try(graph:passes "cpu-plain")
  local step
  step, self.n_body = steps_of(graph)
  local graph_of = {
    is_matrix = function(value) return shapes[value][2] ~= nil end,
    columns = function(value) return shapes[value][2] end,
  }
  for _, entry in ipairs(nodes_of(record)) do
    local node = entry[2]
    local at = step[node.name] or self.n_body
    self.made[node.name] = at
    if node.op == "attention" then
      local seen = {}
      add_keyed(self, record, node.inputs[2], seen)
      add_keyed(self, record, node.inputs[3], seen)
    end
    if node.op ~= "embed" then add_inputs(self, record, graph_of, node) end
    add_uses(self, record, node, at)
  end
  for name in pairs(self.mixed) do self.inputs[name] = nil end
  local last = self.order[#self.order]
  self.head = last and last.value
  return self
end

return M
