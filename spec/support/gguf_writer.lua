--- Writes GGUF files for specs: well formed by default, with one chosen error on request.
--
--   local gguf = require "support.gguf_writer"
--   gguf.write(path, {
--     version = 3,                                   -- 2 or 3
--     values = {
--       { "general.architecture", "string", "llama" },
--       { "llama.block_count", "uint32", 2 },
--       { "tokenizer.ggml.tokens", "array", { "string", { "a", "b" } } },   -- nested: { "array", { {"int8", {1}}, ... } }
--     },
--     tensors = {
--       { name = "output.weight", dtype = "fp32", shape = { 2, 3 }, data = gguf.f32 { 1, 2, 3, 4, 5, 6 } },
--     },
--   })
--
-- Shapes are outermost first (the file has them the other way round). `general.alignment` among the values is obeyed,
-- unless the file's own `alignment` says how its data lie.
-- Wrong on request: file { magic, n_tensors, n_values, tail = bytes after the data, data = replaces the data section };
-- value { type_id, key_len, raw = bytes for the value }; array { type_id, count }; tensor { n_dims, dims = as in the
-- file, type_id, offset, name_len }. A number written as a string ("\1\0...") goes into the file as it is.

local M = {}

M.value_types = {
  uint8 = 0, int8 = 1, uint16 = 2, int16 = 3, uint32 = 4, int32 = 5, float32 = 6, bool = 7, string = 8, array = 9,
  uint64 = 10, int64 = 11, float64 = 12,
}

local formats = {
  uint8 = "<I1", int8 = "<i1", uint16 = "<I2", int16 = "<i2", uint32 = "<I4", int32 = "<i4", float32 = "<f",
  uint64 = "<I8", int64 = "<i8", float64 = "<d",
}

--- Tensor types: id in the file, elements and bytes a block.
M.dtypes = {
  fp32 = { 0, 1, 4 }, fp16 = { 1, 1, 2 }, bf16 = { 30, 1, 2 }, fp64 = { 28, 1, 8 },
  int8 = { 24, 1, 1 }, int16 = { 25, 1, 2 }, int32 = { 26, 1, 4 }, int64 = { 27, 1, 8 },
  q4_0 = { 2, 32, 18 }, q4_1 = { 3, 32, 20 }, q5_0 = { 6, 32, 22 }, q5_1 = { 7, 32, 24 }, q8_0 = { 8, 32, 34 },
  q2_k = { 10, 256, 84 }, q3_k = { 11, 256, 110 }, q4_k = { 12, 256, 144 }, q5_k = { 13, 256, 176 }, q6_k = { 14, 256, 210 },
  iq2_xxs = { 16, 256, 66 }, iq2_xs = { 17, 256, 74 }, iq3_xxs = { 18, 256, 98 }, iq1_s = { 19, 256, 50 },
  iq4_nl = { 20, 32, 18 }, iq3_s = { 21, 256, 110 }, iq2_s = { 22, 256, 82 }, iq4_xs = { 23, 256, 136 }, iq1_m = { 29, 256, 56 },
  tq1_0 = { 34, 256, 54 }, tq2_0 = { 35, 256, 66 }, mxfp4 = { 39, 32, 17 }, nvfp4 = { 40, 64, 36 },
}

local function pack_list(format, list)
  local out = {}
  for i, v in ipairs(list) do out[i] = string.pack(format, v) end
  return table.concat(out)
end

--- Raw bytes of a list of numbers.
function M.f32(list) return pack_list("<f", list) end
function M.i32(list) return pack_list("<i4", list) end

--- The numbers in raw float32 bytes, as source:read gives them.
function M.floats(bytes)
  local out = {}
  for i = 1, #bytes // 4 do out[i] = string.unpack("<f", bytes, 4 * i - 3) end
  return out
end

local function int(format, v) return type(v) == "string" and v or string.pack(format, v) end

local function text(s, len) return int("<I8", len or #s) .. s end

local encode_array

local function encode(kind, v)
  if kind == "string" then return text(v) end
  if kind == "bool" then return string.char(v == true and 1 or v or 0) end
  if kind == "array" then return encode_array(v) end
  return string.pack(formats[kind], v)
end

function encode_array(array)
  local kind, list = array[1], array[2]
  local out = { int("<I4", array.type_id or M.value_types[kind]), int("<I8", array.count or #list) }
  for _, v in ipairs(list) do out[#out + 1] = encode(kind, v) end
  return table.concat(out)
end

local function encode_value(v)
  return text(v[1], v.key_len) .. int("<I4", v.type_id or M.value_types[v[2]]) .. (v.raw or encode(v[2], v[3]))
end

local function reversed(shape)
  local out = {}
  for i = #shape, 1, -1 do out[#out + 1] = shape[i] end
  return out
end

local function encode_info(t, offset)
  local dims = t.dims or reversed(t.shape)
  local out = { text(t.name, t.name_len), int("<I4", t.n_dims or #dims) }
  for _, dim in ipairs(dims) do out[#out + 1] = int("<I8", dim) end
  out[#out + 1] = int("<I4", t.type_id or M.dtypes[t.dtype][1])
  out[#out + 1] = int("<I8", t.offset or offset)
  return table.concat(out)
end

local function padding(n, alignment) return ("\0"):rep(-n % alignment) end

--- The bytes of a file, and the byte at which its data begins.
function M.bytes(file)
  local values, tensors, alignment = file.values or {}, file.tensors or {}, file.alignment or 32
  local head = {
    file.magic or "GGUF", int("<I4", file.version or 3), int("<I8", file.n_tensors or #tensors), int("<I8", file.n_values or #values),
  }
  for _, v in ipairs(values) do
    head[#head + 1] = encode_value(v)
    if not file.alignment and v[1] == "general.alignment" and v[2] == "uint32" and v[3] >= 1 then alignment = v[3] end
  end
  local data, at = {}, 0
  for _, t in ipairs(tensors) do
    local gap = padding(at, alignment)
    at = at + #gap
    head[#head + 1] = encode_info(t, at)
    data[#data + 1] = gap .. t.data
    at = at + #t.data
  end
  local bytes = table.concat(head)
  if #tensors == 0 then return bytes .. (file.tail or ""), #bytes end
  bytes = bytes .. padding(#bytes, alignment)
  return bytes .. (file.data or table.concat(data)) .. (file.tail or ""), #bytes
end

--- Writes `file` (a description, or bytes) to path; returns path.
function M.write(path, file)
  local f = assert(io.open(path, "wb"))
  assert(f:write(type(file) == "string" and file or (M.bytes(file))))
  f:close()
  return path
end

--- A new path in the system's folder for temporary files; the caller removes it.
function M.temp(suffix)
  local base = os.tmpname()
  os.remove(base)
  return base .. (suffix or ".gguf")
end

return M
