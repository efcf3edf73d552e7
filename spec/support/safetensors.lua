--- Reads float32 tensors of a .safetensors file of goldens.
--
--   local t = require("support.safetensors").open(path)
--   t["short.logits"]   -- {shape = {5, 1024}, data = string of little-endian floats}

local core = require "ane.core"

local M = {}

--- All tensors of the file by name; raises where one is not F32.
function M.open(path)
  local bytes = assert(core.read_file(path))
  local n = string.unpack("<I8", bytes)
  local head = assert(core.json_decode(bytes:sub(9, 8 + n)))
  local out = {}
  for name, t in pairs(head) do
    if name ~= "__metadata__" then
      assert(t.dtype == "F32", name .. " is " .. t.dtype)
      local from, to = math.tointeger(t.data_offsets[1]), math.tointeger(t.data_offsets[2])
      out[name] = { shape = t.shape, data = bytes:sub(9 + n + from, 8 + n + to) }
    end
  end
  return out
end

return M
