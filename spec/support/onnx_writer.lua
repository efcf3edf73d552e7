--- ONNX files of a few nodes, for specs of single ops and of graphs (onnx.proto of ONNX 1.17).
--
--   local bytes = onnx.model {
--     inputs = { { "x", "float", { 2, "n" } } }, outputs = { { "y", "float" } }, constants = { { "w", onnx.floats({ 3 }, { 1, 2, 3 }) } },
--     nodes = { { "Add", { "x", "w" }, { "y" }, attrs = { axis = 1 } } },   -- domain = "com.microsoft" for contrib ops
--     functions = { { name = "F", inputs = { "a" }, outputs = { "b" }, nodes = {}, attrs = { "axis" }, defaults = { axis = 1 } } },
--   }
-- An attribute is a number, a text, a list of integers, a tensor, a graph { nodes =, outputs = } or { ref = name of the attribute of
-- the function's caller }. Calls of functions have the domain "local".
--   local out = onnx.run("Add", { onnx.floats({ 2 }, { 1, 2 }), onnx.floats({ 2 }, { 3, 4 }) }, { attrs = {} })   -- {shape, numbers}

local core = require "ane.core"
local varint = require "support.varint"

local M = {}

local TYPES = { float = 1, uint8 = 2, int8 = 3, int32 = 6, int64 = 7, bool = 9, float16 = 10, double = 11, int4 = 22 }
local NAMES = { fp32 = "<f", int64 = "<i8", int32 = "<i4", bool = "B", uint8 = "B", int8 = "<i1" }

-- ---- Protobuf ------------------------------------------------------------------------------------------------------------

local function int(field, n) return varint(field << 3) .. varint(n) end
local function bytes(field, s) return varint(field << 3 | 2) .. varint(#s) .. s end
local function float(field, v) return varint(field << 3 | 5) .. string.pack("<f", v) end

local function each(field, list, fn)
  local out = {}
  for i, v in ipairs(list or {}) do out[i] = bytes(field, fn(v)) end
  return table.concat(out)
end

-- ---- Tensors -------------------------------------------------------------------------------------------------------------

local function tensor(dtype, format)
  return function(shape, values)
    local data = {}
    for i, v in ipairs(values) do data[i] = string.pack(format, v) end
    return { dtype = dtype, shape = shape, data = table.concat(data), values = values }
  end
end

--- A tensor: shape, list of numbers.
M.floats, M.ints, M.int32s = tensor("fp32", "<f"), tensor("int64", "<i8"), tensor("int32", "<i4")
M.bools, M.bytes = tensor("bool", "B"), tensor("uint8", "B")

local ONNX_TYPES = { fp32 = "float", int64 = "int64", int32 = "int32", bool = "bool", uint8 = "uint8", int8 = "int8",
  int4 = "int4" }

--- A tensor of int4, which is a constant: shape, bytes of two elements each.
function M.int4s(shape, data) return { dtype = "int4", shape = shape, data = data } end

local function tensor_proto(name, t)
  local out = {}
  for i, d in ipairs(t.shape) do out[i] = int(1, d) end
  return table.concat(out) .. int(2, TYPES[ONNX_TYPES[t.dtype]]) .. bytes(8, name) .. bytes(9, t.data)
end

-- ---- Models --------------------------------------------------------------------------------------------------------------

-- {name, type, shape (numbers and names), or none}
local function value_info(v)
  local shape = ""
  if not v[2] then return bytes(1, v[1]) end
  if v[3] then
    shape = bytes(2, each(1, v[3], function(d) return type(d) == "string" and bytes(2, d) or int(1, d) end))
  end
  return bytes(1, v[1]) .. bytes(2, bytes(1, int(1, TYPES[v[2]]) .. shape))
end

local graph_proto

local function attribute(name, v)
  local out = bytes(1, name)
  if type(v) == "table" and v.ref then return out .. bytes(21, v.ref) .. int(20, v.type or 5) end
  if type(v) == "table" and v.nodes then return out .. bytes(6, graph_proto(v)) .. int(20, 5) end
  if type(v) == "table" and v.data then return out .. bytes(5, tensor_proto("", v)) .. int(20, 4) end
  if type(v) == "string" then return out .. bytes(4, v) .. int(20, 3) end
  if math.type(v) == "integer" then return out .. int(3, v) .. int(20, 2) end
  if type(v) == "number" then return out .. float(2, v) .. int(20, 1) end
  for _, n in ipairs(v) do out = out .. int(8, n) end
  return out .. int(20, 7)
end

local function attributes(field, list)
  local out, names = {}, {}
  for name in pairs(list or {}) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do out[i] = bytes(field, attribute(name, list[name])) end
  return table.concat(out)
end

local function node_proto(n)
  local out = {}
  for _, name in ipairs(n[2]) do out[#out + 1] = bytes(1, name) end
  for _, name in ipairs(n[3]) do out[#out + 1] = bytes(2, name) end
  out[#out + 1] = bytes(3, n.name or n[3][1]) .. bytes(4, n[1])
  return table.concat(out) .. attributes(5, n.attrs) .. (n.domain and bytes(7, n.domain) or "")
end

local function text(s) return s end

function graph_proto(g)
  return each(1, g.nodes, node_proto) .. bytes(2, "graph") .. each(5, g.constants, function(c) return tensor_proto(c[1], c[2]) end) ..
    each(11, g.inputs, value_info) .. each(12, g.outputs, value_info)
end

local function function_proto(f)
  return bytes(1, f.name) .. each(4, f.inputs, text) .. each(5, f.outputs, text) .. each(6, f.attrs, text) ..
    each(7, f.nodes, node_proto) .. bytes(10, "local") .. attributes(11, f.defaults)
end

--- The bytes of a model file.
function M.model(m)
  local opsets = bytes(8, int(2, m.opset or 21)) .. bytes(8, bytes(1, "com.microsoft") .. int(2, 1))
  return int(1, 10) .. bytes(7, graph_proto(m)) .. opsets .. each(25, m.functions, function_proto)
end

--- Opens a model. @return source; a thing to close, which removes the file
function M.open(m)
  local path = os.tmpname()
  assert(core.write_file(path, M.model(m)))
  local source, message, code = core.open(path)
  return source, source and setmetatable({}, { __close = function()
    source:close()
    os.remove(path)
  end }) or message, code
end

-- ---- One op --------------------------------------------------------------------------------------------------------------

local function numbers(t)
  local format, out = assert(NAMES[t.dtype], t.dtype), {}
  for at = 1, #t.data, format:packsize() do out[#out + 1] = (format:unpack(t.data, at)) end
  return { shape = table.move(t.shape, 1, #t.shape, 1, {}), dtype = t.dtype, table.unpack(out) }
end

--- Runs one op on tensors (false: an absent input).
-- @param opts attrs, domain, outputs (how many, 1), constant (set of input numbers that are constants of the graph), opset
-- @return lists of numbers with shape and dtype, one an output; or nil, message, code
function M.run(op, inputs, opts)
  opts = opts or {}
  local model, names, given = { inputs = {}, outputs = {}, constants = {}, opset = opts.opset }, {}, {}
  for i, t in ipairs(inputs) do
    names[i] = t and "in" .. i or ""
    if t and opts.constant and opts.constant[i] then model.constants[#model.constants + 1] = { names[i], t }
    elseif t then
      given[names[i]] = t
      model.inputs[#model.inputs + 1] = { names[i], ONNX_TYPES[t.dtype] }
    end
  end
  local results = {}
  for i = 1, opts.outputs or 1 do results[i], model.outputs[i] = "out" .. i, { "out" .. i, "float" } end
  model.nodes = { { op, names, results, attrs = opts.attrs, domain = opts.domain, name = "node" } }
  local source, file <close> = M.open(model)
  if not source then return nil, file end
  local graph <close>, message, code = core.interp(source, { threads = opts.threads or 1 })
  if not graph then return nil, message, code end
  local out
  out, message, code = graph:run(given)
  if not out then return nil, message, code end
  local lists = {}
  for i, name in ipairs(results) do lists[i] = numbers(out[name]) end
  return table.unpack(lists)
end

return M
