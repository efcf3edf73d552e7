--- LoRA adapters: they are added to the weights of a model at run time, or merged.
-- Needs ane.core, ane.adapter.experts, gguf, peft and places, ane.util.failure and shape. Hu et al. 2021, "LoRA: Low-Rank Adaptation of
-- Large Language Models"; Kalajdzievski 2023 (rank-stabilised scaling); Liu et al. 2024 (DoRA, merged only).
-- Usage: `local file <close> = assert(adapter.read("folder")); local handle = assert(adapter.load(file, program, places, source))`

local core = require "ane.core"
local elements = require("ane.util.shape").count
local failure = require "ane.util.failure"
local experts = require "ane.adapter.experts"
local gguf = require "ane.adapter.gguf"
local peft = require "ane.adapter.peft"
local places = require "ane.adapter.places"

local raise, try = failure.raise, failure.try

local M = {}

--- The places of a model, for load and merged: see ane.adapter.places.
M.places = places.of

local File = {}
File.__index = File
function File:close() self.source:close() end
File.__close = File.close

local MOST_SCALE = 3.4028234663852886e38 -- FLT_MAX: the kernels have the product of both scales as fp32

--- What is wrong with a scale for an adapter, or nil.
-- @param file with path and scale, the greatest of its modules (alpha / rank)
function M.scale_fault(file, scale)
  if math.abs(scale) * file.scale <= MOST_SCALE then return nil end
  return ("%s: scale %g times the adapter's own, %g, is not a finite fp32 number"):format(file.path, scale, file.scale)
end

--- Reads the description of an adapter. Its tensors stay in the file until they are needed.
-- @param path a folder with adapter_config.json and adapter_model.safetensors (PEFT), or a GGUF adapter
-- @return a file, to be closed; or nil, message, code
function M.read(path)
  if core.path_kind(path) == "folder" and not peft.find(path) then
    return nil, path .. ": the folder has no adapter_config.json, so it is not an adapter", "notfound"
  end
  local file, message, code = failure.border(path, peft.find(path) and peft.read or gguf.read, path)
  if not file then return nil, message, code end
  file.scale = 1
  for _, m in ipairs(file.modules) do
    local scale = math.abs(m.scale or 0)
    if scale > file.scale or scale ~= scale then file.scale = scale end -- a NaN stays
  end
  message = M.scale_fault(file, 1)
  if not message then return setmetatable(file, File) end
  file.source:close()
  return nil, message, "invalid"
end

-- ---- Tensors -----------------------------------------------------------------------------------------------------------

-- Transposes a matrix of float32 bytes [rows, cols].
local function transposed(bytes, rows, cols)
  local out, n = {}, 0
  for c = 0, cols - 1 do
    for r = 0, rows - 1 do
      n = n + 1
      out[n] = bytes:sub(4 * (r * cols + c) + 1, 4 * (r * cols + c) + 4)
    end
  end
  return table.concat(out)
end

-- Reorders rows of `width` float32 to the order of the model's file. Rope pairs i with i + n / 2 of each head in transformers,
-- and 2i with 2i + 1 in GGUF.
local function permuted(bytes, width, heads, to_gguf)
  local size, out = 4 * width, {}
  local rows = #bytes // size
  local half = rows // heads // 2
  for head = 0, heads - 1 do
    local first = 2 * half * head
    for i = 0, 2 * half - 1 do
      local from = to_gguf and first + i // 2 + i % 2 * half or first + i % half * 2 + i // half
      out[#out + 1] = bytes:sub(from * size + 1, (from + 1) * size)
    end
  end
  return table.concat(out)
end

-- The values of a module's tensor whose rows are output features, in the order of the model's file.
local function rows_of(file, place, where, t, width)
  local bytes = try(file.source:read(t.name))
  if not place.heads or file.naming == where.format then return bytes end
  return permuted(bytes, width, place.heads, where.format == "gguf")
end

-- Checks the shape of a tensor against its weight.
local function check_shape(file, place, source, m)
  local weight = source:tensor(place.weight)
  local rows, cols = place.own and place.to - place.from or weight.shape[1], weight.shape[2] or 1
  if place.index then rows, cols = weight.shape[2], weight.shape[3] end
  if #weight.shape == 1 then rows, cols = 1, weight.shape[1] end
  if place.kind == "embedding" then rows, cols = cols, rows end
  if m.rank and (m.rows ~= rows or m.cols ~= cols) then
    raise("shape", "%s: tensors %s and %s are for a weight of [%d, %d], but %s of %s is [%d, %d]: the adapter is for another base",
      file.path, m.a.name, m.b.name, m.rows, m.cols, place.weight, source:path(), rows, cols)
  end
  for part, wanted in pairs { magnitude = rows, low_bias = rows, values = rows * cols } do
    local n = m[part] and elements(m[part].shape) or wanted
    if n ~= wanted then
      raise("shape", "%s: tensor %s has %d elements, but must have %d for %s of %s", file.path, m[part].name, n, wanted,
        place.weight, source:path())
    end
  end
end

local function first_tensor(m) return m.a or m.b or m.values or m.bias or m.magnitude or m.low_bias end

-- Returns the places of a module, checked; an empty list if the computation does not use it. Raises if the model has no such module.
local function find(file, where, source, m)
  if file.architecture and file.architecture ~= where.architecture then
    raise("invalid", "%s: is for the architecture %s, but the model has %s", file.path, file.architecture, where.architecture)
  end
  local found = places.find(where, file.naming, m.module)
  local list = {}
  for _, place in ipairs(found or {}) do
    if place.kind == "other" or (place.kind == "embedding") == m.embedding or not m.rank then list[#list + 1] = place end
  end
  if #list == 0 and places.is_unused(where, m.module) then return list end
  if #list == 0 then
    raise("notfound", "%s: tensor %s is for module %s, which %s (%s) does not have", file.path, first_tensor(m).name, m.module,
      source:path(), where.architecture)
  end
  for _, place in ipairs(list) do
    if place.differs and file.naming == "hf" then
      raise("unsupported", "%s: tensor %s is for %s of the folder, but %s %s: load the folder, or give the adapter as GGUF", file.path,
        first_tensor(m).name, m.module, source:path(), place.differs)
    end
    check_shape(file, place, source, m)
  end
  return list
end

-- Returns whether the file holds a whole weight that equals the model's.
local function unchanged(file, place, where, source, t)
  local width = source:tensor(place.weight).shape[2] or 1
  local old = place.own and try(source:read(place.weight, place.from + 1, place.to)) or try(source:read(place.weight))
  return rows_of(file, place, where, t, width) == old
end

-- The file's bias minus the model's, as float32 bytes; nil if there is none.
local function bias_of(file, place, where, source, m)
  if not m.bias then return nil end
  if not place.bias then
    raise("notfound", "%s: tensor %s is a bias, but %s of %s has none", file.path, m.bias.name, place.weight, source:path())
  end
  local new, old = core.tensor({ elements(m.bias.shape) }, rows_of(file, place, where, m.bias, 1)), try(source:read(place.bias))
  if #old ~= 4 * #new then
    raise("shape", "%s: tensor %s has %d elements, but %s of %s has %d", file.path, m.bias.name, #new, place.bias, source:path(), #old // 4)
  end
  return (new - core.tensor({ #new }, old)):tostring()
end

-- ---- At run time -------------------------------------------------------------------------------------------------------

local function refuse(file, tensor, why)
  raise("unsupported", "%s: tensor %s %s: load the model with merge = true", file.path, tensor.name, why)
end

-- Raises if a module cannot be added at run time.
local function check_unmerged(file, place, where, source, m)
  if m.magnitude then refuse(file, m.magnitude, "is a DoRA adapter, which must be merged") end
  if m.values and not unchanged(file, place, where, source, m.values) then refuse(file, m.values, "replaces a whole weight") end
  if place.kind == "other" then refuse(file, first_tensor(m), "is for a weight of a fused step or a norm") end
end

-- The product of a module, for the rows of the weight that a place has.
local function part_of(file, place, where, source, m)
  check_unmerged(file, place, where, source, m)
  local first, last = (place.from or 0) + 1, place.to
  if place.own then first, last = 1, place.to - place.from end
  local part = { weight = place.label, embedding = place.kind == "embedding", rank = m.rank or 0, scale = m.scale or 1, cols = m.cols }
  local bias = bias_of(file, place, where, source, m)
  if m.low_bias then
    local low = core.tensor({ m.rows }, rows_of(file, place, where, m.low_bias, 1)) * m.scale
    bias = (bias and core.tensor({ m.rows }, bias) + low or low):tostring()
  end
  local weight = source:tensor(place.weight)
  part.rows = (last or (part.embedding and weight.shape[2] or weight.shape[1])) - first + 1
  part.cols = part.cols or weight.shape[2]
  part.bias = bias and bias:sub(4 * first - 3, last and 4 * last or -1)
  if not m.rank then return part.bias and part end
  part.a = try(file.source:read(m.a.name))
  if part.embedding and not m.by_rows then part.a = transposed(part.a, m.rank, m.cols) end
  local b = rows_of(file, place, where, m.b, m.rank)
  part.b = b:sub(4 * m.rank * (first - 1) + 1, last and 4 * m.rank * last or -1)
  return part
end

--- Makes an adapter of a program.
-- @param file of read
-- @param program of ane.core
-- @param where the places of the model
-- @param source of the model's weights
-- @return adapter of ane.core, to be closed; or nil, message, code
function M.load(file, program, where, source)
  return failure.catch(function()
    local parts = {}
    for _, m in ipairs(file.modules) do
      if experts.are(m) then experts.refuse(file, m) end
      for _, place in ipairs(find(file, where, source, m)) do parts[#parts + 1] = part_of(file, place, where, source, m) or nil end
    end
    local made, message, code = program:adapter(parts, math.tointeger(tonumber("0x" .. file.sha256:sub(1, 16))))
    if not made then raise(code, "%s: %s", file.path, message) end
    return made
  end)
end

-- ---- Merged ------------------------------------------------------------------------------------------------------------

-- The change to rows place.from .. place.to of a weight, in the form of change_of; nil: none.
local function change_of_rows(file, place, where, source, m, blend)
  local t = m.magnitude or m.values
  if t and (m.magnitude or not unchanged(file, place, where, source, t)) then
    raise("unsupported", "%s: tensor %s is for rows %d to %d of %s: only products of these rows are merged", file.path, t.name, place.from,
      place.to - 1, place.weight)
  end
  if not m.rank then return nil end
  return {
    adapter = file.path, rank = m.rank, scale = m.scale, blend = blend, from = place.from, to = place.to,
    a = try(file.source:read(m.a.name)), b = rows_of(file, place, where, m.b, m.rank),
  }
end

-- The change to a weight, in the form that core.merged takes; nil: none.
local function change_of(file, place, where, source, m, blend)
  if place.own then return change_of_rows(file, place, where, source, m, blend) end
  local change = { adapter = file.path, rank = m.rank, scale = m.scale, blend = blend }
  local width = source:tensor(place.weight).shape[2] or 1
  if m.values then change.values = rows_of(file, place, where, m.values, width) end
  if m.magnitude then change.magnitude = rows_of(file, place, where, m.magnitude, 1) end
  if not m.rank then return change end
  if place.kind ~= "embedding" then
    change.a, change.b = try(file.source:read(m.a.name)), rows_of(file, place, where, m.b, m.rank)
    if place.index then change.from, change.to = place.index * m.rows, (place.index + 1) * m.rows end -- one of stacked experts
    return change
  end
  if m.magnitude then raise("unsupported", "%s: tensor %s is of DoRA of an embedding", file.path, m.magnitude.name) end
  local a = try(file.source:read(m.a.name))
  change.a = transposed(try(file.source:read(m.b.name)), m.rows, m.rank)
  change.b = m.by_rows and a or transposed(a, m.rank, m.cols)
  return change
end

-- The edits of all files, by the tensors that they change.
local function edits_of(files, where, source)
  local edits, order = {}, {}
  local function edit(name, from)
    if not edits[name] then
      edits[name] = { name = name, from = from, changes = {} }
      order[#order + 1] = edits[name]
    end
    return edits[name].changes
  end
  local function add(file, scale, place, m)
    if place.index and (file.naming ~= "hf" or not m.rank or m.magnitude) then
      raise("unsupported", "%s: tensor %s is for one of the experts that %s holds: only products of PEFT adapters are merged into these",
        file.path, first_tensor(m).name, place.weight)
    end
    local name = place.role == "output" and where.output or place.weight
    if m.rank or m.values then table.insert(edit(name, place.weight), change_of(file, place, where, source, m, scale)) end
    if m.bias or m.low_bias then
      if not place.bias then bias_of(file, place, where, source, { bias = m.bias or m.low_bias }) end
      local changes = edit(place.bias, place.bias)
      if m.bias then changes[#changes + 1] = { adapter = file.path, values = rows_of(file, place, where, m.bias, 1), blend = scale } end
      if m.low_bias then
        local low = core.tensor({ m.rows }, rows_of(file, place, where, m.low_bias, 1)) * m.scale
        changes[#changes + 1] = { adapter = file.path, rank = 1, a = low:tostring(), b = string.pack("<f", 1), blend = scale }
      end
    end
  end
  local function add_places(file, scale, m)
    local seen = {}
    for _, place in ipairs(find(file, where, source, m)) do
      if not seen[place.weight] then -- the parts of a fused weight change together
        seen[place.weight] = true
        add(file, scale, place, m)
      end
    end
  end
  for _, entry in ipairs(files) do
    for _, m in ipairs(entry.file.modules) do
      if experts.are(m) then
        experts.edits(entry.file, where, source, m, entry.scale, function(name, change) table.insert(edit(name, name), change) end)
      else
        add_places(entry.file, entry.scale, m)
      end
    end
  end
  -- A tied head stays unchanged if only the embedding changes.
  local head = where.head
  if head and head.weight ~= where.output and edits[head.weight] and not edits[where.output] then
    order[#order + 1] = { name = where.output, from = head.weight, alias = true }
  end
  return order
end

--- The weights of a model with adapters merged into them: changed tensors are fp32.
-- @param files list of {file, scale}
-- @param where, source as for load
-- @return a source, which keeps the given one open; or nil, message, code
function M.merged(files, where, source)
  return failure.catch(function() return try(core.merged(source, edits_of(files, where, source))) end)
end

return M
