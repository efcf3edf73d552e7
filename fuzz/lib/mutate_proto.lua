--- Changes protobuf messages by their fields, at any depth. The lengths of the enclosing messages are corrected.
-- Usage: `M.mutate = mutate_proto.mutate`

local numbers = require "lib.numbers"
local varint = require "support.varint"

local M = {}

local function read_varint(s, at)
  local v, shift = 0, 0
  repeat
    local b = s:byte(at)
    if not b or shift > 63 then return nil end
    v, shift, at = v | (b & 127) << shift, shift + 7, at + 1
  until b < 128
  return v, at
end

-- The fields of a message: list of {tag, value}, value an integer or bytes; nil where it is no message.
local function fields(s)
  local list, at = {}, 1
  while at <= #s do
    local tag, value
    tag, at = read_varint(s, at)
    if not tag or tag >> 3 == 0 then return nil end
    local wire = tag & 7
    if wire == 0 then
      value, at = read_varint(s, at)
      if not value then return nil end
    else
      local n = wire == 1 and 8 or wire == 5 and 4
      if wire == 2 then n, at = read_varint(s, at) end
      if not n or n < 0 or n > #s - at + 1 then return nil end
      value, at = s:sub(at, at + n - 1), at + n
    end
    list[#list + 1] = { tag, value }
    if #list > 20000 then return nil end
  end
  return list
end

local function encode(list)
  local out = {}
  for i, f in ipairs(list) do
    local tag, value = f[1], f[2]
    if type(value) == "number" then out[i] = varint(tag) .. varint(value)
    elseif tag & 7 == 2 then out[i] = varint(tag) .. varint(#value) .. value
    else out[i] = varint(tag) .. value end
  end
  return table.concat(out)
end

-- The bytes of a field somewhere in a message. Names and types of one place are put into another, so that they agree.
local function donor(s, random, depth)
  local list = depth < 24 and fields(s)
  local field = list and #list > 0 and list[1 + random(#list)]
  if not field or field[1] & 7 ~= 2 then return s end
  return random(4) > 0 and donor(field[2], random, depth + 1) or field[2]
end

local function change_value(field, room, random, bytes, all)
  local value, way = field[2], random(4)
  if type(value) == "string" and field[1] & 7 == 2 and random(4) == 0 then
    field[2] = donor(all, random, 0):sub(1, math.max(1, #value + room))
  elseif type(value) == "number" then
    field[2] = way == 0 and value + 1 or way == 1 and value - 1 or way == 2 and value ~ 1 << random(64) or numbers[1 + random(#numbers)]
  elseif field[1] & 7 == 2 then field[2] = bytes(value, math.max(1, math.min(#value + 16, room)))
  else field[2] = bytes(value, #value):sub(1, #value) .. ("\0"):rep(#value) field[2] = field[2]:sub(1, #value) end
end

local function change_list(list, random)
  local i, j = 1 + random(#list), 1 + random(#list)
  local way = random(4)
  if way == 0 then table.remove(list, i)
  elseif way == 1 then table.insert(list, j, list[i])
  elseif way == 2 then list[i], list[j] = list[j], list[i]
  else list[i] = { list[i][1] & ~0x78 | random(16) << 3, list[i][2] } end
end

-- Changes a message, which is nested `depth` deep. If it holds messages, one of them is changed instead in 4 of 5 cases, so that deep
-- messages are changed about as often as others.
local function change(s, room, random, bytes, depth, all)
  local list = depth < 24 and fields(s)
  if not list or #list == 0 then return bytes(s, math.max(1, room)) end
  local nested = {}
  for i, f in ipairs(list) do
    if f[1] & 7 == 2 and #f[2] > 1 and fields(f[2]) then nested[#nested + 1] = i end
  end
  if #nested > 0 and random(5) > 0 then
    local f = list[nested[1 + random(#nested)]]
    f[2] = change(f[2], room - (#s - #f[2]), random, bytes, depth + 1, all)
  elseif random(3) == 0 then change_list(list, random)
  else change_value(list[1 + random(#list)], room, random, bytes, all) end
  return encode(list)
end

--- A changed message.
function M.mutate(data, most, random, bytes)
  for _ = 1, 1 + random(3) do data = change(data, most, random, bytes, 0, data) end
  return data:sub(1, most)
end

return M
