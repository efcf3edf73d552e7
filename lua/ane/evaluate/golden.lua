--- Reference outputs of a model: golden.json with token ids and greedy tokens, and tensors in the safetensors file beside it.
-- examples/make_golden.py makes one from any transformers model.
-- Needs ane.core and ane.util.schema.
-- Usage: `local g = assert(golden.open "golden.json"); print(g.prompts[1].name, g:tensor "short.logits")`
--
-- golden.json: prompts = list of {name, input_ids, greedy (tokens that follow, the best each time; optional)}; labels
-- (list, token classifiers). Tensors, float32, <prompt>.<what>:
--   logits            [N, V] at the last N <= T positions
--   hidden.0          [T, C] input of layer 0, after any scaling of the embedding
--   hidden.<i>        [T, C] output of layer i - 1
--   hidden.final      [T, C] after the last norm
--   <value>           [T, C'] any value as model:values() names it: layers.3.attn_q

local core = require "ane.core"
local schema = require "ane.util.schema"

local M = {}

local Golden = {}
Golden.__index = Golden
Golden.__name = "ane.golden"

local function fault(path, what) return nil, path .. ": " .. what, "format" end

-- A list of Lua integers; nil if the value is something else.
local function integers(list)
  if type(list) ~= "table" then return nil end
  local out = {}
  for i, v in ipairs(list) do
    out[i] = math.tointeger(v)
    if not out[i] or out[i] < 0 then return nil end
  end
  return out
end

-- The prompts of decoded JSON; nil, message, code.
local function read_prompts(path, json, only)
  if type(json) ~= "table" or type(json.prompts) ~= "table" then return fault(path, "no list \"prompts\": this is not a golden") end
  local prompts, names = {}, {}
  for i, p in ipairs(json.prompts) do
    local ids = type(p) == "table" and integers(p.input_ids)
    if not ids or #ids == 0 then return fault(path, ("prompt %d has no list of token ids \"input_ids\""):format(i)) end
    local name = type(p.name) == "string" and p.name or tostring(i)
    names[i] = name
    if not only or only == name then
      prompts[#prompts + 1] = { name = name, ids = ids, greedy = integers(p.greedy_full_recompute or p.greedy) }
    end
  end
  if #prompts == 0 then
    return nil, ("%s: no prompt %s; there are: %s"):format(path, only or "", table.concat(names, ", ")), "notfound"
  end
  return prompts
end

--- Opens a golden.
-- @param path golden.json, or a folder that holds one
-- @param only name of the only prompt to use; default all
-- @return golden: path, prompts = list of {name, ids, greedy}, labels; or nil, message, code
function M.open(path, only)
  if core.path_kind(path) == "folder" then path = path .. "/golden.json" end
  local text, message, code = core.read_file(path)
  if not text then return nil, message, code end
  local json
  json, message = core.json_decode(text)
  if type(json) ~= "table" then return fault(path, message or "must be an object") end
  local self = setmetatable({ path = path, labels = json.labels, _tensors = {} }, Golden)
  self.prompts, message, code = read_prompts(path, json, only)
  if not self.prompts then return nil, message, code end
  self._source, message, code = core.open(M.beside(path))
  if not self._source then return nil, message, code end
  return self
end

--- The file that holds the tensors of a golden.json.
function M.beside(path) return (path:gsub("%.json$", "")) .. ".safetensors" end

--- A tensor of the golden; nil if it has none of this name. Raises if it cannot be read.
function Golden:tensor(name)
  local info = self._source:tensor(name)
  if not info then return nil end
  self._tensors[name] = self._tensors[name] or core.tensor(info.shape, assert(self._source:read(name)))
  return self._tensors[name]
end

--- Names of all its tensors.
function Golden:names()
  local names = {}
  for i, t in ipairs(self._source:tensors()) do names[i] = t.name end
  return names
end

function Golden:close()
  self._source:close()
end

Golden.__close = Golden.close

-- A NumPy file (numpy.lib.format, versions 1 to 3), little-endian floats or integers in C order.
local NPY = { ["<f4"] = { "<f", 4 }, ["<f8"] = { "<d", 8 }, ["<i4"] = { "<i4", 4 }, ["<i8"] = { "<i8", 8 } }

local function read_npy(path)
  local bytes, message, code = core.read_file(path)
  if not bytes then return nil, message, code end
  local major = bytes:byte(7)
  if bytes:sub(1, 6) ~= "\147NUMPY" or #bytes < 12 or major > 3 then return fault(path, "no NumPy file") end
  local length, from = string.unpack(major == 1 and "<I2" or "<I4", bytes, 9)
  local head, at = bytes:sub(from, from + length - 1), from + length
  local how = NPY[head:match "'descr':%s*'([^']*)'"]
  local dims = head:match "'shape':%s*%(([%d,%s]*)%)"
  if not how or not dims or not head:find "'fortran_order':%s*False" then
    return nil, path .. ": must be little-endian float32, float64, int32 or int64 in C order", "unsupported"
  end
  local shape, count = {}, 1
  for n in dims:gmatch "%d+" do
    shape[#shape + 1] = math.tointeger(tonumber(n))
    count = count * shape[#shape]
  end
  local size = #bytes - at + 1
  if size ~= count * how[2] then return fault(path, ("%d bytes of data, but the shape needs %d"):format(size, count * how[2])) end
  if how[1] == "<f" then return core.tensor(shape, bytes:sub(at)) end
  local values = {}
  for i = 1, count do values[i], at = string.unpack(how[1], bytes, at) end
  return core.tensor(shape, values)
end

--- Reads tensors from a file.
-- @param path .npy gives a tensor; any file of weights (safetensors, GGUF) a table name -> tensor
-- @return it, as float32; or nil, message, code
function M.tensors(path)
  schema.argument({ type = "path" }, path, "tensors: path", 2)
  if path:find "%.npy$" then return read_npy(path) end
  local source <close>, message, code = core.open(path)
  if not source then return nil, message, code end
  local out = {}
  for _, info in ipairs(source:tensors()) do
    local raw
    raw, message, code = source:read(info.name)
    if not raw then return nil, message, code end
    out[info.name] = core.tensor(info.shape, raw)
  end
  return out
end

return M
