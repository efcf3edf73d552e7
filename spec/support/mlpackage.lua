--- Core ML packages for specs: protobuf bytes from Lua tables, weight files, temporary folders.
-- A message is a list of {number, value}: an integer is a varint, a string bytes, a table a message. Raw bytes may stand for
-- any part, so that each can be made wrong.
-- Usage: `local path = mlpackage.write(folder, mlpackage.tiny(function(t) t.version = 11 end))`

local tree = require "support.tree"

local M = {}

--- A varint of an integer of 64 bits.
function M.varint(n)
  local out = {}
  repeat
    local low = n & 0x7F
    n = n >> 7
    out[#out + 1] = string.char(n == 0 and low or low | 0x80)
  until n == 0
  return table.concat(out)
end

--- A field that holds bytes.
function M.bytes(number, s)
  return M.varint(number << 3 | 2) .. M.varint(#s) .. s
end

--- Bytes of a message.
function M.encode(message)
  if type(message) == "string" then return message end
  local out = {}
  for i, field in ipairs(message) do
    if type(field) == "string" then out[i] = field
    elseif math.type(field[2]) == "integer" then out[i] = M.varint(field[1] << 3) .. M.varint(field[2])
    else out[i] = M.bytes(field[1], M.encode(field[2])) end
  end
  return table.concat(out)
end

local DTYPE = { bool = 1, string = 2, fp16 = 10, fp32 = 11, int32 = 23, int4 = 25, uint16 = 32 }

--- TensorType as ValueType; dims: numbers, "?" for an unknown one.
function M.tensor(dtype, dims)
  local t = { { 1, DTYPE[dtype] or dtype }, { 2, #dims } }
  for _, d in ipairs(dims) do t[#t + 1] = { 3, d == "?" and { { 2, "" } } or { { 1, { { 1, d } } } } } end
  return { { 1, t } }
end

function M.state(dtype, dims) return { { 5, { { 1, M.tensor(dtype, dims) } } } } end

--- Values: a TensorValue by field number and bytes; a string; a blob.
function M.value(type, field, bytes) return { { 2, type }, { 3, { { 1, { { field, { { 1, bytes } } } } } } } } end

function M.text(s) return M.value(M.tensor("string", {}), 4, s) end

function M.blob(type, offset, file)
  return { { 2, type }, { 5, { { 1, file or "@model_path/weights/weight.bin" }, { 2, offset } } } }
end

--- A map entry.
function M.entry(key, value) return { { 1, key }, { 2, value } } end

--- An operation: inputs {parameter = name, list of names or a Binding}, in pairs; outputs {{name, type}}; attrs {{name, value}}.
function M.op(type, inputs, outputs, attrs, blocks)
  local op = { { 1, type } }
  for _, pair in ipairs(inputs or {}) do
    local bindings = {}
    for _, to in ipairs(pair[2] or {}) do bindings[#bindings + 1] = { 1, _G.type(to) == "string" and { { 1, to } } or to } end
    op[#op + 1] = { 2, M.entry(pair[1], bindings) }
  end
  for _, o in ipairs(outputs or {}) do op[#op + 1] = { 3, { { 1, o[1] }, { 2, o[2] } } } end
  for _, b in ipairs(blocks or {}) do op[#op + 1] = { 4, b } end
  for _, a in ipairs(attrs or {}) do op[#op + 1] = { 5, M.entry(a[1], a[2]) } end
  return op
end

function M.const(name, type, value)
  return M.op("const", nil, { { name, type } }, { { "name", M.text("op_" .. name) }, { "val", value } })
end

--- A FeatureDescription; kind 5: array, 8: state.
function M.feature(name, dtype, dims, more, kind)
  local a = { { 2, dtype } }
  for _, d in ipairs(dims) do a[#a + 1] = { 1, d } end
  for _, field in ipairs(more or {}) do a[#a + 1] = field end
  return { { 1, name }, { 3, { kind == 8 and { 8, { { 1, a } } } or { kind or 5, a } } } }
end

local FP16 = 65552

--- Bytes of a model after change(t): a function with an input x, a state s, a constant in the model, a blob, an output y.
function M.tiny(change)
  local vector = M.tensor("fp16", { 4 })
  local t = {
    version = 9, program_version = 1, opset = "CoreML8", key = "CoreML8", outputs = { "y" }, vector = vector,
    inputs = { { "x", vector }, { "s", M.state("fp16", { 4 }) } },
    ops = {
      M.const("w", vector, M.blob(vector, 64)),
      M.const("n", M.tensor("int32", { 2 }), M.value(M.tensor("int32", { 2 }), 2, "\1\2")),
      M.op("mul", { { "x", { "x" } }, { "y", { "w" } } }, { { "y", vector } }, { { "name", M.text "op_y" } }),
    },
    description = {
      { 1, M.feature("x", FP16, { 4 }) }, { 13, M.feature("s", FP16, { 4 }, nil, 8) }, { 10, M.feature("y", FP16, { 4 }) },
    },
    functions = {}, model = {}, attributes = {},
  }
  if change then change(t) end
  local body, f = {}, { { 2, t.opset } }
  for _, name in ipairs(t.outputs) do body[#body + 1] = { 2, name } end
  for _, op in ipairs(t.ops) do body[#body + 1] = { 3, op } end
  for _, i in ipairs(t.inputs) do f[#f + 1] = { 1, { { 1, i[1] }, { 2, i[2] } } } end
  f[#f + 1] = { 3, M.entry(t.key, body) }
  local program = { { 1, t.program_version }, { 2, M.entry("main", f) } }
  for _, entry in ipairs(t.functions) do program[#program + 1] = { 2, entry } end
  for _, entry in ipairs(t.attributes) do program[#program + 1] = { 4, entry } end
  local model = { { 1, t.version }, { 2, t.description }, { 502, program } }
  for _, field in ipairs(t.model) do model[#model + 1] = field end
  return M.encode(model)
end

--- A weight file. Blobs: {code, data, unused bits}; header: {count, version}; each blob may say sentinel, bytes, offset.
function M.weights(blobs, header)
  header = header or {}
  local out = { ("<I4I4"):pack(header[1] or #blobs, header[2] or 2) .. ("\0"):rep(56) }
  local at = 64
  for _, b in ipairs(blobs) do
    local pad = ("\0"):rep(-at % 64)
    at = at + #pad
    out[#out + 1] = pad .. ("<I4I4I8I8I8"):pack(b.sentinel or 0xDEADBEEF, b[1], b.bytes or #b[2], b.offset or at + 64, b[3] or 0) ..
      ("\0"):rep(32) .. b[2]
    at = at + 64 + #b[2]
  end
  return table.concat(out)
end

M.MANIFEST = [[{"fileFormatVersion": "1.0.0", "itemInfoEntries": {
  "m": {"author": "com.apple.CoreML", "description": "", "name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"},
  "w": {"author": "com.apple.CoreML", "description": "", "name": "weights", "path": "com.apple.CoreML/weights"}},
  "rootModelIdentifier": "m"}]]

local function save(path, bytes)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(bytes))
end

--- A new folder, in memory if the system has a file system there: packages are synced when they are written. For tree.remove.
function M.folder()
  local pipe = assert(io.popen "mktemp -d -p /dev/shm 2>/dev/null || mktemp -d")
  local path = pipe:read "l"
  pipe:close()
  return path
end

--- The files of a package by name.
M.files = { manifest = "/Manifest.json", model = "/Data/com.apple.CoreML/model.mlmodel",
  weights = "/Data/com.apple.CoreML/weights/weight.bin" }

--- Bytes of one of a package's files.
function M.read(path, which) return tree.read(path .. M.files[which]) end

--- Writes a package: model, weights, manifest are bytes; by default those of tiny().
-- @return path
function M.write(path, model, weights, manifest)
  assert(os.execute("mkdir -p '" .. path .. "/Data/com.apple.CoreML/weights'"))
  save(path .. M.files.manifest, manifest or M.MANIFEST)
  save(path .. M.files.model, model or M.tiny())
  save(path .. M.files.weights, weights or M.weights { { 1, ("\0\60"):rep(4) } })
  return path
end

return M
