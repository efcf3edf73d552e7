--- Analysis of an ONNX graph: which node makes a value, what a value depends on, and values computed for made-up inputs.
-- Needs ane.core and ane.util.shape. A value is named by its number in the graph (1-based); 0 is an absent value. A value is "static" if
-- it depends on constants only, and "data" if it depends on the elements of ids or caches (not only on their shapes). All others depend on
-- lengths, masks and positions, and can be evaluated.
-- Usage: `local g = graph.new(source, roles); local node = g.maker[value]; local t = g:evaluate(value, past, tokens)`

local core = require "ane.core"
local elements = require("ane.util.shape").count

local Graph = {}
Graph.__index = Graph

local M = {}

--- Raises the reason why no recipe computes the graph. ane.onnx.rebuild catches it.
-- @param node where the graph differs, which the message names; or nil
-- @param ... what is wrong, as string.format takes it; with a node, a clause whose subject is the node: "has no mask"
function M.refuse(node, ...)
  local text = (...):format(select(2, ...))
  error({ uncovered = true, message = node and ("node %s (%s) %s"):format(node.name, node.op, text) or text }, 0)
end

-- Values of the outer graph that the subgraphs of a node use.
local function inner_inputs(node, out)
  for _, attr in pairs(node.attrs) do
    if type(attr) == "table" and attr.nodes then
      for _, n in ipairs(attr.nodes) do
        table.move(n.inputs, 1, #n.inputs, #out + 1, out)
        inner_inputs(n, out)
      end
      for _, io in ipairs(attr.outputs) do out[#out + 1] = io.value end
    end
  end
  return out
end

-- All values that a node depends on.
local function inputs_of(node)
  local has_graph = node.op == "If"
  if not has_graph then return node.inputs end
  return inner_inputs(node, table.move(node.inputs, 1, #node.inputs, 1, {}))
end

-- Marks each value as static or data, and notes its maker. Shape and Size nodes of data are noted in shape_of: their results are not data.
local function mark_values(self)
  local doc = self.doc
  for v, value in ipairs(doc.values) do self.static[v] = value.constant ~= nil or nil end
  for _, node in ipairs(doc.nodes) do
    local static, data = true, false
    for _, v in ipairs(inputs_of(node)) do
      if v > 0 and not self.inner[v] then static, data = static and self.static[v] == true, data or self.data[v] == true end
    end
    if data and (node.op == "Shape" or node.op == "Size") then
      data, static = false, false
      self.shape_of[node.outputs[1]] = node
    end
    for _, v in ipairs(node.outputs) do
      self.maker[v], self.static[v], self.data[v] = node, static or nil, data or nil
    end
  end
end

-- Values made inside the subgraphs of a node.
local function find_inner(self, nodes)
  for _, node in ipairs(nodes) do
    for _, attr in pairs(node.attrs) do
      if type(attr) == "table" and attr.nodes then
        for _, n in ipairs(attr.nodes) do
          for _, v in ipairs(n.outputs) do self.inner[v] = true end
        end
        find_inner(self, attr.nodes)
      end
    end
  end
end

--- Reads the graph of a source.
-- @param source an open ONNX source
-- @param roles names of inputs and outputs: ids, mask, positions, past_length, total_length, states (list of {past, present}), logits
-- @return graph; its `shape`, function(value, past, tokens) -> dimensions of data or nil, is set by ane.onnx.lift
function M.new(source, roles)
  local self = setmetatable({
    source = source, doc = core.onnx(source), roles = roles, maker = {}, static = {}, data = {}, shape_of = {}, inner = {}, inputs = {},
    past = {}, present = {}, parts = {}, shape = function() end,
  }, Graph)
  for _, io in ipairs(self.doc.inputs) do self.inputs[io.value] = io end
  for _, io in ipairs(self.doc.outputs) do
    self.outputs = self.outputs or {}
    self.outputs[io.name] = io.value
  end
  for _, state in ipairs(roles.states) do self.past[state.past], self.present[state.past] = state, self.outputs[state.present] end
  for v, io in pairs(self.inputs) do
    if io.name == roles.ids or self.past[io.name] then self.data[v] = true end
  end
  find_inner(self, self.doc.nodes)
  mark_values(self)
  return self
end

--- The constant {dtype, shape, data} that a value is, or nil.
function Graph:constant(v) return v > 0 and self.doc.values[v].constant or nil end

--- Follows a value back through nodes that change no numbers. @return value
function Graph:through(v)
  local node = self.maker[v]
  while node and (node.op == "Identity" or (node.op == "Cast" and self:is_float(v) and self:is_float(node.inputs[1]))) do
    v = node.inputs[1]
    node = self.maker[v]
  end
  return v
end

local FLOATS = { [1] = true, [10] = true, [11] = true, [16] = true } -- TensorProto.DataType: FLOAT, FLOAT16, DOUBLE, BFLOAT16
local FLOAT_NAMES = { fp32 = true, fp16 = true, bf16 = true, fp64 = true }

--- false if the value is known to be no float.
function Graph:is_float(v)
  local c, node, io = self:constant(v), self.maker[v], self.inputs[v]
  if c then return FLOAT_NAMES[c.dtype] == true end
  if io then return FLOAT_NAMES[io.dtype] == true end
  if node and node.op == "Cast" then return FLOATS[node.attrs.to] == true end
  return not (node and (node.op == "Shape" or node.op == "Size"))
end

-- ---- Evaluation ------------------------------------------------------------------------------------------------------

local FORMATS = {
  fp32 = "<f", fp64 = "<d", int64 = "<i8", int32 = "<i4", int16 = "<i2", int8 = "<i1", uint8 = "<I1", uint16 = "<I2", uint32 = "<I4",
  uint64 = "<i8", bool = "<I1",
}

-- The number of an fp16 code.
local function half(bits)
  local sign, e, m = bits >> 15 == 1 and -1 or 1, bits >> 10 & 31, bits & 1023
  if e == 0 then return sign * m * 2.0 ^ -24 end
  if e == 31 then return m == 0 and sign * math.huge or 0 / 0 end
  return sign * (1024 + m) * 2.0 ^ (e - 25)
end

--- The numbers of {dtype, data}: n of them, starting with number `first` (0-based); default all. nil if there are no bytes.
function M.numbers(t, first, n)
  if not t or not t.data then return nil end
  local out = {}
  local size = t.dtype == "fp16" and 2 or t.dtype == "bf16" and 2 or FORMATS[t.dtype] and FORMATS[t.dtype]:packsize()
  if not size then return nil end
  first = first or 0
  for i = first, first + (n or #t.data // size) - 1 do
    local at = 1 + i * size
    if t.dtype == "fp16" then
      out[#out + 1] = half(("<I2"):unpack(t.data, at))
    elseif t.dtype == "bf16" then
      out[#out + 1] = ("<f"):unpack("\0\0" .. t.data:sub(at, at + 1))
    else
      out[#out + 1] = FORMATS[t.dtype]:unpack(t.data, at)
    end
  end
  return out
end

-- A tensor of n integers fn(0), fn(1), ...; int64 where dtype is unknown.
local function integers(dtype, shape, fn, n)
  local format, list = FORMATS[dtype] or "<i8", {}
  for i = 0, n - 1 do list[i + 1] = format:pack(fn(i)) end
  return { dtype = FORMATS[dtype] and dtype or "int64", shape = shape, data = table.concat(list) }
end

-- The input `io` for `tokens` tokens after `past` cached ones.
local function feed(self, io, past, tokens)
  local roles, total = self.roles, past + tokens
  local rank = io.shape and #io.shape or 1
  local one = rank == 0 and {} or rank == 2 and { 1, 1 } or { 1 }
  if io.name == roles.ids then return integers(io.dtype, { 1, tokens }, function(i) return i % 2 end, tokens) end
  if io.name == roles.mask then return integers(io.dtype, { 1, total }, function() return 1 end, total) end
  if io.name == roles.positions then return integers(io.dtype, { 1, tokens }, function(i) return past + i end, tokens) end
  if io.name == roles.past_length then return integers(io.dtype, one, function() return past end, 1) end
  if io.name == roles.total_length then return integers(io.dtype, one, function() return total end, 1) end
  M.refuse(nil, "input %s is not known", io.name)
end

-- The Shape nodes of data that a value depends on.
local function shapes_under(self, v, seen, out)
  if v <= 0 or seen[v] then return out end
  seen[v] = true
  if self.shape_of[v] then
    out[#out + 1] = v
  elseif self.maker[v] then
    for _, input in ipairs(inputs_of(self.maker[v])) do shapes_under(self, input, seen, out) end
  end
  return out
end

-- The result of a Shape or Size node of data.
local function shape_tensor(self, v, past, tokens)
  local node = self.shape_of[v]
  local dims = self.shape(node.inputs[1], past, tokens) or M.refuse(node, "is the shape of an unknown value")
  if node.op == "Size" then
    local n = elements(dims)
    return integers("int64", {}, function() return n end, 1)
  end
  local from, to = node.attrs.start or 0, node.attrs["end"] or #dims
  if from < 0 then from = math.max(from + #dims, 0) end
  if to < 0 then to = to + #dims end
  local part = table.move(dims, from + 1, math.min(to, #dims), 1, {})
  return integers("int64", { #part }, function(i) return part[i + 1] end, #part)
end

--- Evaluates a value that is not data, for `tokens` tokens after `past` cached ones.
-- @return {dtype, shape, data}
function Graph:evaluate(v, past, tokens)
  local c = self:constant(v)
  if c and c.data then return c end
  local part = self.parts[v]
  if not part then
    local given = shapes_under(self, v, {}, {})
    local cut, message = core.onnx_part(self.source, { v }, given)
    if not cut then M.refuse(self.maker[v], "cannot be taken out: %s", message) end
    local run, why = core.interp(cut, { threads = 1 })
    if not run then M.refuse(self.maker[v], "cannot be tried out: %s", why) end
    part = { given = given, run = run }
    self.parts[v] = part
  end
  local inputs = {}
  for _, g in ipairs(part.given) do inputs["v" .. g - 1] = shape_tensor(self, g, past, tokens) end
  for _, io in ipairs(part.run:inputs()) do
    local value = math.tointeger(tonumber(io.name:sub(2))) + 1
    if not inputs[io.name] then inputs[io.name] = feed(self, self.inputs[value], past, tokens) end
  end
  local out, message = part.run:run(inputs)
  if not out then error({ uncovered = true, tried = true, message = "cannot be tried out: " .. message }, 0) end
  return out["v" .. v - 1]
end

--- The single number of a static value, or nil.
function Graph:number(v)
  if v <= 0 or not self.static[v] then return nil end
  local list = M.numbers(self:evaluate(v, 0, 1))
  return list and #list == 1 and list[1] or nil
end

--- The numbers of a value for these lengths; default: one token, none cached. nil if the value has no bytes or an unknown type.
function Graph:numbers(v, past, tokens) return M.numbers(self:evaluate(v, past or 0, tokens or 1)) end

--- Frees what evaluations have made. Later evaluations make it again.
function Graph:close()
  for _, part in pairs(self.parts) do part.run:close() end
  self.parts = {}
end

return M
