--- Lifts the computation of an ONNX graph to the ops of recipes: embed, linear, rms_norm, rope, attention ...
-- Needs ane.onnx.graph; the ops are in lift_math, lift_move, lift_attention and lift_moe.
--
-- A lifted value is {e = expression, dims = list of dimensions}. The expression {op, node, channels, x, ...} says what is
-- computed for each token, over channels. The dimensions give the layout of the ONNX tensor: each is a list of atoms {kind, size,
-- stride}, outermost first. Kinds: "c" (channels; stride is their distance in the expression's channels), "s" (tokens of this
-- call), "t" (all tokens, cached ones first), "rep" (repeated). The sizes of s and t are M.TOKENS and M.TOTAL.
-- Usage: `local lift = lift.new(graph); local logits = lift:value(number)`

local graph = require "ane.onnx.graph"

local Lift = {}
Lift.__index = Lift

local M = { refuse = graph.refuse }

-- The lengths for which shapes are evaluated. They are primes, so that no number of channels is a multiple of them by accident.
M.PAST, M.TOKENS = 1013, 1009
M.TOTAL = M.PAST + M.TOKENS

-- op -> function(lift, node) -> lifted value of the first output, or a list of them by output number
local RULES = {}
for _, name in ipairs { "lift_math", "lift_move", "lift_attention", "lift_moe" } do require("ane.onnx." .. name)(RULES, M) end

--- A lift of a graph. Its `context` (tokens) and `head_dim` may be set before values are lifted.
function M.new(g)
  local self = setmetatable({ graph = g, done = {}, ropes = {} }, Lift)
  g.shape = function(v, past, tokens) return self:shape(v, past, tokens) end
  return self
end

-- Upper limit of an attribute that counts heads, channels or blocks.
local MOST = 1 << 20

--- The attributes of these names of a node, which must be integers of at least 1.
function M.whole(node, ...)
  local list = {}
  for i, name in ipairs { ... } do
    local v = node.attrs[name]
    if math.type(v) ~= "integer" or v < 1 or v > MOST then
      M.refuse(node, "has %s %s, but must have a whole number from 1 to %d", name, tostring(v), MOST)
    end
    list[i] = v
  end
  return table.unpack(list)
end

--- The axes of a node: an attribute in old opsets, an input in new ones. nil if the node has neither.
function M.axes_of(lift, node)
  return node.attrs.axes or (node.inputs[2] or 0) > 0 and lift.graph:numbers(node.inputs[2]) or nil
end

function M.atom(kind, size, stride) return { kind = kind, size = size, stride = stride or 1 } end

--- [1, S, C], the layout of most results.
function M.columns(e) return { e = e, dims = { {}, { M.atom("s", M.TOKENS) }, { M.atom("c", e.channels) } } } end

function M.dim_size(dim)
  local n = 1
  for _, a in ipairs(dim) do n = n * a.size end
  return n
end

--- The atoms of all dimensions in order, without those of size 1.
function M.atoms(dims)
  local list = {}
  for _, dim in ipairs(dims) do
    for _, a in ipairs(dim) do
      if a.size > 1 then list[#list + 1] = a end
    end
  end
  return list
end

function M.same_dims(a, b)
  if #a ~= #b then return false end
  for i, dim in ipairs(a) do
    local x, y = M.atoms { dim }, M.atoms { b[i] }
    if #x ~= #y then return false end
    for k, atom in ipairs(x) do
      if atom.kind ~= y[k].kind or atom.size ~= y[k].size or atom.stride ~= y[k].stride then return false end
    end
  end
  return true
end

-- Do these atoms hold all n channels, in their order?
local function in_order(atoms, n)
  local left = n
  for _, a in ipairs(atoms) do
    if a.kind ~= "c" or a.stride * a.size ~= left then return false end
    left = a.stride
  end
  return left == 1
end

--- Returns whether the last dimension is all channels in order, and the others are the tokens.
function M.is_columns(v)
  local outer = {}
  for i = 1, #v.dims - 1 do
    for _, a in ipairs(M.atoms { v.dims[i] }) do outer[#outer + 1] = a end
  end
  local tokens = #outer == 1 and outer[1].kind == "s"
  return tokens and #v.dims > 0 and in_order(M.atoms { v.dims[#v.dims] }, v.e.channels)
end

--- The lifted value, which must have the layout [.., S, C].
-- @param number of the value
-- @param node that takes it, for the message
function Lift:columns(number, node)
  local v = self:value(number)
  if not M.is_columns(v) then M.refuse(node, "takes values that are not [tokens, channels]") end
  return v
end

--- Size of the last dimension if it holds only the innermost channels, in order; else nil.
function M.inner(v)
  local atoms = M.atoms { v.dims[#v.dims] }
  if #atoms == 0 then return 1 end
  if atoms[#atoms].stride ~= 1 then return nil end
  local n = 1
  for i = #atoms, 1, -1 do
    if atoms[i].kind ~= "c" or atoms[i].stride ~= n then return nil end
    n = n * atoms[i].size
  end
  return n
end

--- Shape of a value for a given number of tokens; nil if it is not known.
function Lift:shape(number, past, tokens)
  local g = self.graph
  local io = g.inputs[number]
  if io then
    if io.name == g.roles.ids then return { 1, tokens } end
    local state = g.past[io.name]
    if not state or not io.shape then return nil end
    local dims = { 1 }
    for i = 2, #io.shape do
      local d = io.shape[i]
      dims[i] = math.type(d) == "integer" and d >= 0 and d or i == 3 and past or i == 4 and self.head_dim or nil
    end
    return #dims == #io.shape and dims or nil
  end
  local v = self:value(number)
  local dims = {}
  for i, dim in ipairs(v.dims) do
    dims[i] = 1
    for _, a in ipairs(dim) do dims[i] = dims[i] * (a.kind == "s" and tokens or a.kind == "t" and past + tokens or a.size) end
  end
  return dims
end

-- The number of inputs that an op cannot do without, where it is more than one.
local NEEDED = {
  Add = 2, CausalConvWithState = 2, Div = 2, Expand = 2, Gather = 2, GatherBlockQuantized = 3, GatherElements = 2, Gemm = 2, MatMul = 2,
  MatMulNBits = 3, MoE = 3, Mul = 2, Pow = 2, QMoE = 3, RMSNormalization = 2, Reshape = 2, RotaryEmbedding = 3, ScatterElements = 3,
  SimplifiedLayerNormalization = 2, SkipSimplifiedLayerNormalization = 3, TopK = 2,
}

-- The results of one node, by output number.
local function lift_node(self, node)
  local rule = RULES[node.op]
  if not rule then M.refuse(node, "is not covered by any recipe") end
  for i = 1, NEEDED[node.op] or 1 do
    if (node.inputs[i] or 0) <= 0 then M.refuse(node, "lacks input %d", i) end
  end
  local out = rule(self, node)
  if out.dims then out = { out } end
  return out
end

--- The lifted value. Raises through refuse if the graph is not understood.
function Lift:value(number)
  local v = self.done[number]
  if v then return v end
  local node = self.graph.maker[number]
  if not node then
    local value = self.graph.doc.values[number]
    M.refuse(self.user, "takes %s, which is not made by a node", value and value.name or "?")
  end
  local user = self.user
  self.user = node
  local results = lift_node(self, node)
  self.user = user
  for i, made in pairs(results) do
    if made.e and not made.e.node then made.e.node = node end
    if (node.outputs[i] or 0) > 0 then self.done[node.outputs[i]] = made end
  end
  return self.done[number] or M.refuse(node, "has an output that no recipe computes")
end

--- The same expression in another layout.
function M.seen(v, dims) return { e = v.e, dims = dims } end

return M
