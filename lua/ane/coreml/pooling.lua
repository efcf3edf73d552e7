--- Pooling of a package set of an embedding model: the section `pooling` of runtime_meta.json and the files of its dense layers.
-- Needs ane.core, ane.embed.modules, ane.util.failure and ane.util.paths. Usage: `meta.pooling = pooling.write(modules, folder, try)`
--
-- The section has the fields that ane.embed.modules gives: poolings, include_prompt, normalise, prompts, default_prompt, max_length,
-- similarity and truncate. dense is a list of {path, rows, columns, bias, act}. Each file holds fp32 numbers, little-endian: the weight
-- [rows, columns], then the bias [rows] where `bias` is true.

local core = require "ane.core"
local embed_modules = require "ane.embed.modules"
local failure = require "ane.util.failure"
local paths = require "ane.util.paths"

local M = {}

local refuse = failure.raise

local POOLINGS = { cls = true, last = true, mean = true, max = true, mean_sqrt = true, weighted_mean = true }
-- Names of activations in the section -> those of ane.embed.steps.
local ACTIVATIONS = { identity = "Identity", tanh = "Tanh" }

-- Most rows or columns of a dense layer.
local MOST = 1 << 16

--- Returns whether this is the name of a file that write may make.
function M.is_own(name) return name:find "^dense_%d+%.bin$" ~= nil end

--- Writes the dense layers.
-- @param modules of ane.embed.modules
-- @param folder of the set (core.folder)
-- @param try raises the core's errors
-- @return the section, names of the files
function M.write(modules, folder, try)
  local section, names = {}, {}
  for key, value in pairs(modules) do section[key] = value end
  section.poolings, section.dense, section.steps = core.json_array(modules.poolings), core.json_array {}, nil
  for i, layer in ipairs(try(embed_modules.dense(modules))) do
    local shape, name = layer.weight:shape(), ("dense_%d.bin"):format(i - 1)
    local bytes = layer.weight:tostring() .. (layer.bias and layer.bias:tostring() or "")
    try(core.write_file(folder:path() .. "/" .. name, bytes))
    section.dense[i] = { path = name, rows = shape[1], columns = shape[2], bias = layer.bias ~= nil, act = layer.act:lower() }
    names[i] = name
  end
  return section, names
end

local function dimension(layer, key, where)
  local n = type(layer[key]) == "number" and math.tointeger(layer[key])
  return n and n >= 1 and n <= MOST and n or refuse("format", "%s: %s must be 1 .. %d, but is %s", where, key, MOST, tostring(layer[key]))
end

-- Reads a dense layer of the section.
local function read_dense(folder, layer, where)
  if type(layer) ~= "table" then refuse("format", "%s must be an object, but is %s", where, tostring(layer)) end
  if not paths.is_inside(layer.path) then refuse("format", "%s: path %q leaves the folder", where, tostring(layer.path)) end
  if not ACTIVATIONS[layer.act] then refuse("format", "%s: act is %s", where, tostring(layer.act)) end
  local rows, columns = dimension(layer, "rows", where), dimension(layer, "columns", where)
  local bytes, message, code = core.read_file(folder .. layer.path)
  if not bytes then refuse(code, "%s", message) end
  local wanted = 4 * rows * (columns + (layer.bias and 1 or 0))
  if #bytes ~= wanted then refuse("format", "%s: %s has %d bytes, but must have %d", where, layer.path, #bytes, wanted) end
  return {
    weight = core.tensor({ rows, columns }, bytes:sub(1, 4 * rows * columns)), act = ACTIVATIONS[layer.act], kind = "dense",
    bias = layer.bias and core.tensor({ rows }, bytes:sub(4 * rows * columns + 1)) or nil,
  }
end

-- A field of the section of a type, or its default.
local function field(section, key, kind, default)
  local value = section[key]
  if value == nil then return default end
  if type(value) ~= kind then refuse("format", "pooling: %s must be a %s, but is %s", key, kind, tostring(value)) end
  return value
end

local function prompts_of(section)
  local prompts = field(section, "prompts", "table", {})
  for name, text in pairs(prompts) do
    if type(name) ~= "string" or type(text) ~= "string" then refuse("format", "pooling: prompt %s is not text", tostring(name)) end
  end
  return prompts
end

--- The settings of a set's embeddings.
-- @param folder with a trailing slash
-- @param section of runtime_meta.json
-- @return as ane.embed.modules gives them
-- @raise {message, code}
function M.read(folder, section)
  if type(section) ~= "table" then refuse("format", "pooling must be an object, but is %s", tostring(section)) end
  local poolings, dense = field(section, "poolings", "table", {}), {}
  if #poolings == 0 then refuse("format", "pooling: poolings is empty") end
  for _, how in ipairs(poolings) do
    if not POOLINGS[how] then refuse("format", "pooling: there is no pooling %s", tostring(how)) end
  end
  for i, layer in ipairs(field(section, "dense", "table", {})) do
    dense[i] = read_dense(folder, layer, ("pooling: dense layer %d"):format(i))
  end
  local length, truncate = field(section, "max_length", "number"), field(section, "truncate", "number")
  if truncate and not (math.tointeger(truncate) and truncate >= 1) then
    refuse("format", "pooling: truncate must be an integer of 1 or more, but is %s", tostring(truncate))
  end
  return {
    poolings = poolings, steps = dense, include_prompt = field(section, "include_prompt", "boolean", true),
    normalise = field(section, "normalise", "boolean", false), prompts = prompts_of(section),
    default_prompt = field(section, "default_prompt", "string"), max_length = length and math.tointeger(length),
    similarity = field(section, "similarity", "string"), truncate = truncate and math.tointeger(truncate),
  }
end

return M
