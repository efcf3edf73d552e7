--- Reads float32 tensors of a .safetensors file of goldens.
--
--   local t = require("support.safetensors").open(path)
--   t["short.logits"]   -- {shape = {5, 1024}, data = string of little-endian floats}

local core = require "ane.core"

local M = {}

--- All tensors of the file by name, each {dtype (as the file calls it), shape, data}.
function M.all(path)
  local bytes = assert(core.read_file(path))
  local n = string.unpack("<I8", bytes)
  local out = {}
  for name, t in pairs(assert(core.json_decode(bytes:sub(9, 8 + n)))) do
    if name ~= "__metadata__" then
      local from, to = math.tointeger(t.data_offsets[1]), math.tointeger(t.data_offsets[2])
      for i, d in ipairs(t.shape) do t.shape[i] = math.tointeger(d) end
      out[name] = { dtype = t.dtype, shape = t.shape, data = bytes:sub(9 + n + from, 8 + n + to) }
    end
  end
  return out
end

--- The same of a file of goldens; raises where one is not F32.
function M.open(path)
  local out = M.all(path)
  for name, t in pairs(out) do assert(t.dtype == "F32", name .. " is " .. t.dtype) end
  return out
end

return M
