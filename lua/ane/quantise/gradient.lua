--- Gradients of a model's divergence from another one with respect to its norm weights.
-- Needs ane.core, ane.recipe and ane.util.failure. Usage:
--   local g <close> = gradient.new(r, cfg, source, threads); local kl, tokens = g:run(session, wanted, ids, sums)
--
-- The chain rule runs over the operations of the recipe's graph, from the logits back. A row of OPS tells the gradient of an operation:
-- keeps = numbers of the inputs whose values it needs, which are traced; back = function(g, node, dy, inputs), which calls g:add() for
-- each input. A model with an operation that has no row has no gradients here.

local core = require "ane.core"
local failure = require "ane.util.failure"
local recipe = require "ane.recipe"

local try = failure.try

local M = {}

local OPS = {}

OPS.embed = { keeps = {}, back = function() end }

OPS.conv1x1 = { keeps = {}, back = function(g, node, dy)
  g:add(node.inputs[1], try(g.core:product(g.graph, node.inputs[2], dy)))
end }

local function norm_row(centred)
  return { keeps = { 1 }, back = function(g, node, dy, x)
    local weight, attrs = node.inputs[2], node.attrs
    local opts = { groups = attrs.groups or 1, eps = attrs.eps, offset = attrs.offset or 0, centred = centred }
    local dx, dw = g.core:norm(opts, x, weight and g:vector(weight) or nil, dy)
    g:add(node.inputs[1], dx)
    if weight then g:add_weight(weight, dw) end
  end }
end

OPS.rms_norm, OPS.layer_norm = norm_row(false), norm_row(true)

OPS.rope = { keeps = { 2 }, back = function(g, node, dy, tab)
  g:add(node.inputs[1], g.core:rope(tab, node.attrs.heads, node.attrs.layout == "interleaved", dy))
end }

OPS.attention = {
  keeps = { 1, 2, 3 },
  takes = function(node) return (node.attrs.ahead or 0) == 0 and not node.inputs[6] end,
  back = function(g, node, dy, q, k, v)
    local dq, dk, dv = g.core:attention(node.attrs, q, k, v, dy)
    try(dq, dk, dv)
    g:add(node.inputs[1], dq)
    g:add(node.inputs[2], dk)
    g:add(node.inputs[3], dv)
  end,
}

OPS.glu = { keeps = { 1, 2 }, back = function(g, node, dy, x, u)
  local dx, du = g.core:glu(node.attrs.act, x, u, dy)
  g:add(node.inputs[1], dx)
  g:add(node.inputs[2], du)
end }

OPS.act = { keeps = { 1 }, back = function(g, node, dy, x)
  g:add(node.inputs[1], (g.core:glu(node.attrs.act, x, nil, dy)))
end }

OPS.add = { keeps = {}, back = function(g, node, dy)
  g:add(node.inputs[1], dy)
  g:add(node.inputs[2], dy)
end }

OPS.mul = { keeps = { 1, 2 }, back = function(g, node, dy, a, b)
  g:add(node.inputs[1], dy * b)
  g:add(node.inputs[2], dy * a)
end }

OPS.scale = { keeps = {}, back = function(g, node, dy) g:add(node.inputs[1], dy * node.attrs.by) end }

-- All tokens are output rows.
OPS.gather = { keeps = {}, back = function(g, node, dy) g:add(node.inputs[1], dy) end }

-- ---- The graph ---------------------------------------------------------------------------------------------------------

-- Inputs of an operation through which gradients run: all values that are made by operations.
local function operands(record, node)
  local list = {}
  for _, input in ipairs(node.inputs) do
    if input and record[input] and record[input].op then list[#list + 1] = input end
  end
  return list
end

-- The values that the logits depend on, latest first.
local function path_to(record, result)
  local list, seen = {}, {}
  local function visit(value)
    if seen[value] then return end
    seen[value] = true
    list[#list + 1] = value
    for _, input in ipairs(operands(record, record[value])) do visit(input) end
  end
  visit(result)
  table.sort(list, function(a, b) return a > b end)
  return list
end

-- The weight of a norm; nil: the operation is none, or has none.
local function norm_weight(record, node)
  return (node.op == "rms_norm" or node.op == "layer_norm") and node.inputs[2] and record[node.inputs[2]] or nil
end

-- Is a norm's weight a part of a tensor? Only whole ones are tuned.
local function has_part(record, node)
  local w = norm_weight(record, node)
  return w and (w.from or w.to or w.index or w.step) ~= nil
end

-- The first operation without a gradient, or nil. Values after `last`, that of the head, are left out.
local function fault_of(record, path, last)
  for _, value in ipairs(path) do
    local node = record[value]
    local row = OPS[node.op]
    local has = node.op == "rope_table" or (row and (not row.takes or row.takes(node)) and not has_part(record, node))
    has = has or last ~= nil and value > last
    if not has then return ("%s (%s)"):format(node.name, node.op) end
  end
end

-- The value of the product that gives the logits, their factor, and the cap of the scaled logits or nil; nil: there is no such product.
local function head_of(record, result)
  local by, cap = 1.0, nil
  if record[result].op == "softcap" then cap, result = record[result].attrs.cap, record[result].inputs[1] end
  while record[result].op == "scale" do
    by = by * record[result].attrs.by
    result = record[result].inputs[1]
  end
  if record[result].op ~= "conv1x1" then return nil end
  return result, by, cap
end

local Gradient = {}
Gradient.__index = Gradient

--- A model whose gradients are computed.
-- @param r recipe, cfg configuration, source of the weights; it must stay open
-- @param threads of the computation
-- @return gradient: weights (names of the norm weights in the source), names (values to trace); or nil, why there is none
function M.new(r, cfg, source, threads)
  local record, result
  local graph = try(recipe.build(r, cfg, source, function(b, logits)
    record, result = b.record, logits
    return true
  end))
  local self = setmetatable({ graph = graph, record = record, source = source, names = {}, weights = {} }, Gradient)
  self.path = path_to(record, result)
  local head
  head, self.by, self.cap = head_of(record, result)
  self.head = record[head]
  local fault = fault_of(record, self.path, head)
  if fault or not head then
    graph:close()
    return nil, ("no gradient of %s"):format(fault or "the head")
  end
  local named = {}
  for _, value in ipairs(self.path) do
    local node = record[value]
    for _, i in ipairs(OPS[node.op] and OPS[node.op].keeps or {}) do
      local name = record[node.inputs[i]].name
      if not named[name] then self.names[#self.names + 1] = name end
      named[name] = true
    end
    local w = norm_weight(record, node)
    if w and not named[w.weight] then
      named[w.weight] = true
      self.weights[#self.weights + 1] = w.weight
    end
  end
  self.core = try(core.gradients(threads))
  return self
end

--- Adds to the gradient of a value.
function Gradient:add(value, dy)
  local old = self.adjoint[value]
  self.adjoint[value] = old and old + dy or dy
end

--- Adds to the gradient of a weight.
function Gradient:add_weight(value, dw)
  local name = self.record[value].weight
  self.sums[name] = self.sums[name] and self.sums[name] + dw or dw
end

--- The numbers of a vector.
function Gradient:vector(value) return self.vectors[self.record[value].weight] end

-- Tokens of a block of logits; capped logits need smaller blocks, because more copies of them are in memory.
local BLOCK <const>, CAPPED_BLOCK <const> = 128, 16

--- The sum of the divergences of a window in nats, and those of the log probabilities of its tokens but the first, by `session` and by
-- `wanted`.
-- @param session, wanted, ids as run takes them; both sessions are at their start but for the ids that `wanted` has just read
function Gradient:divergence(session, wanted, ids)
  try(session:feed(ids, "all"))
  local kl, log, log_wanted = 0.0, 0.0, 0.0
  for from = 1, #ids, BLOCK do
    local dy, more, own, other = self.core:divergence(wanted, session, from, math.min(BLOCK, #ids - from + 1), ids)
    try(dy, more, own)
    kl, log, log_wanted = kl + more, log + own, log_wanted + other
  end
  return kl, log, log_wanted
end

-- dy, the gradient of some rows of logits c tanh(x / c), becomes that of x: dy (1 - (logit / c)^2).
local function before_cap(cap, session, from, dy)
  local rows, n = {}, dy:shape()[1]
  for i = 1, n do rows[i] = session:logits(from + i - 1):tostring() end
  local logits = core.tensor(dy:shape(), table.concat(rows))
  return dy - dy * logits * logits * (1 / (cap * cap))
end

-- The gradient of the head's input, and the sum of the divergences.
-- @param ids, share as Gradient.run takes them
local function from_logits(self, session, wanted, ids, share)
  local n, kl, dx = #ids, 0.0, nil
  local block = self.cap and CAPPED_BLOCK or BLOCK
  for from = 1, n, block do
    local count = math.min(block, n - from + 1)
    local dy, sum, code = self.core:divergence(wanted, session, from, count, ids, share)
    try(dy, sum, code)
    kl = kl + sum
    if self.cap then dy = before_cap(self.cap, session, from, dy) end
    if self.by ~= 1 then dy = dy * self.by end
    dx = dx or core.tensor({ n, self.graph:shape(self.head.inputs[2])[2] })
    try(self.core:product(self.graph, self.head.inputs[2], dy, dx, from))
  end
  return dx, kl
end

--- Runs a window, and adds the gradients of the norm weights, of the sum of all tokens' losses. The loss of a token is (1 - share) times
-- the divergence of its prediction, minus share times the log probability of the next token; that of the last token is the divergence.
-- @param session of the model with these weights, at its start, whose program keeps values
-- @param wanted session of the other model, which has just read the ids, all logits wanted
-- @param ids the window
-- @param vectors name -> tensor: the norm weights of the session
-- @param sums name -> tensor: the gradients, which are added to
-- @param share 0 to 1
-- @return the sum of the divergences in nats
function Gradient:run(session, wanted, ids, vectors, sums, share)
  local values = try(session:trace(ids, self.names))
  self.adjoint, self.vectors, self.sums = {}, vectors, sums
  local dx, kl = from_logits(self, session, wanted, ids, share)
  self.adjoint[self.head.inputs[1]] = dx
  for _, value in ipairs(self.path) do
    local node, dy = self.record[value], self.adjoint[value]
    if dy then
      local inputs = {}
      for i, k in ipairs(OPS[node.op].keeps) do inputs[i] = values[self.record[node.inputs[k]].name] end
      OPS[node.op].back(self, node, dy, table.unpack(inputs))
      self.adjoint[value] = nil
    end
  end
  return kl
end

function Gradient:close()
  self.core:close()
  self.graph:close()
end

Gradient.__close = Gradient.close

return M
