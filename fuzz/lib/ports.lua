--- Inputs for a graph or function by its declared ports: every byte 1 (integers: the number 1), unknown dimensions 2.
-- Usage: `local inputs = ports.inputs(list); if inputs then graph:run(inputs) end`

local M = {}

-- One element that is 1, by type; other types are left out.
local ONE = {
  fp32 = ("<f"):pack(1), fp16 = "\0\60", bf16 = "\128\63", fp64 = ("<d"):pack(1), int64 = ("<i8"):pack(1), uint64 = ("<i8"):pack(1),
  int32 = ("<i4"):pack(1), uint32 = ("<i4"):pack(1), int16 = "\1\0", uint16 = "\1\0", int8 = "\1", uint8 = "\1", bool = "\1",
}

-- Maximum elements of an input.
local MOST = 1 << 16

--- name -> {dtype, shape, data}; nil: one of them is too large or of an unknown type.
-- @param list of {name, dtype, shape}; a dimension is a number, or negative or a symbol where it is unknown
function M.inputs(list)
  local out = {}
  for _, port in ipairs(list) do
    local shape, count = {}, 1
    for i, d in ipairs(port.shape or {}) do
      shape[i] = math.type(d) == "integer" and d >= 0 and d or 2
      if shape[i] > MOST then return nil end
      count = count * shape[i]
      if count > MOST then return nil end
    end
    local one = ONE[port.dtype or "fp32"]
    if not one then return nil end
    out[port.name] = { dtype = port.dtype or "fp32", shape = shape, data = one:rep(count) }
  end
  return out
end

return M
