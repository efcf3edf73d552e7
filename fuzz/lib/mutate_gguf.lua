--- Changes GGUF files by their fields: counts, value types, array types and lengths, dimensions, types and offsets of tensors.
-- Usage: `M.mutate = mutate_gguf.mutate`

local numbers = require "lib.numbers"

local M = {}

-- Bytes of a value by its type; strings (8) and arrays (9) are read.
local SIZE = { [0] = 1, 1, 2, 2, 4, 4, 4, 1, [10] = 8, [11] = 8, [12] = 8 }

-- Where the fields are: list of {first byte, format}, and of the values and tensors as a whole {first, last}; as far as the file
-- can be read.
local function fields(data)
  local list, records, at = { { 5, "<I4" }, { 9, "<i8" }, { 17, "<i8" } }, {}, 25
  local function int(format)
    local v, next_at = string.unpack(format, data, at)
    list[#list + 1] = { at, format }
    at = next_at
    return v
  end
  local function text()
    local n = int "<i8"
    if n < 0 or n > #data - at + 1 then error "cut" end
    list[#list + 1] = { at, n }
    at = at + n
  end
  local function value(kind, depth)
    if kind == 8 then text()
    elseif kind == 9 and depth < 4 then
      local of, n = int "<I4", int "<i8"
      if n < 0 then error "cut" end
      if SIZE[of] then
        for i = 0, math.min(n, 8) - 1 do list[#list + 1] = { at + i * SIZE[of], "<i" .. SIZE[of] } end
        at = at + n * SIZE[of]
      else
        for _ = 1, math.min(n, 4096) do value(of, depth + 1) end
      end
    elseif SIZE[kind] then int("<i" .. SIZE[kind])
    else error "type" end
  end
  pcall(function()
    local tensors, values = string.unpack("<i8i8", data, 9)
    for _ = 1, math.min(values, 4096) do
      local first = at
      text()
      value(int "<I4", 0)
      records[#records + 1] = { first, at - 1 }
    end
    for _ = 1, math.min(tensors, 4096) do
      local first = at
      text()
      for _ = 1, math.min(int "<I4", 16) do int "<i8" end
      int "<I4"
      int "<i8"
      records[#records + 1] = { first, at - 1 }
    end
  end)
  return list, records
end

local function put(data, at, bytes) return data:sub(1, at - 1) .. bytes .. data:sub(at + #bytes) end

local function change_field(data, list, most, random, bytes)
  local at, format = table.unpack(list[1 + random(#list)])
  if type(format) == "number" then -- the text of a string of so many bytes: its length field stands before it
    local s = bytes(data:sub(at, at + format - 1), math.max(1, math.min(64, most - #data + format)))
    return data:sub(1, at - 9) .. string.pack("<i8", #s) .. s .. data:sub(at + format)
  end
  local size = string.packsize(format)
  if at + size - 1 > #data then return data end
  local v = string.unpack("<i" .. size, data, at)
  local way = random(4)
  if way == 0 then v = v + 1 elseif way == 1 then v = v - 1 elseif way == 2 then v = v ~ 1 << random(8 * size)
  else v = numbers[1 + random(#numbers)] end
  return put(data, at, string.pack("<i8", v):sub(1, size))
end

local function change_record(data, records, random)
  local first, last = table.unpack(records[1 + random(#records)])
  local way = random(3)
  if way == 0 then return data:sub(1, first - 1) .. data:sub(last + 1) end
  local other = records[1 + random(#records)]
  local text = data:sub(other[1], other[2])
  if way == 1 then return data:sub(1, first - 1) .. text .. data:sub(first) end
  return data:sub(1, first - 1) .. text .. data:sub(last + 1)
end

--- A changed file.
function M.mutate(data, most, random, bytes)
  if #data < 24 then return bytes(data, most) end
  for _ = 1, 1 + random(3) do
    local list, records = fields(data)
    if #records > 0 and random(6) == 0 then data = change_record(data, records, random)
    else data = change_field(data, list, most, random, bytes) end
  end
  return data:sub(1, most)
end

return M
