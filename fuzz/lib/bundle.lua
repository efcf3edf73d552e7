--- Several files in one input: "=== NAME\n" before each part. A part ends before the next such line, so damaged inputs split as well.
-- Usage: `for name, bytes in pairs(bundle.split(data)) do ... end`

local M = {}

local MARK = "\n=== "

--- The parts by name, and the list of the names in order. The bytes before the first mark are the part "".
function M.split(data)
  local parts, names = {}, {}
  local function add(name, bytes)
    if not parts[name] then names[#names + 1] = name end
    parts[name] = bytes
  end
  local at, name = 1, ""
  data = "\n" .. data
  while true do
    local first, last, found = data:find("\n=== ([^\n]*)\n", at)
    local bytes = data:sub(math.max(at, 2), (first or #data + 1) - 1)
    if name ~= "" or bytes ~= "" then add(name, bytes) end
    if not first then return parts, names end
    name, at = found, last + 1
  end
end

--- An input of parts.
-- @param list of {name, bytes}
function M.join(list)
  local out = {}
  for i, part in ipairs(list) do out[i] = MARK:sub(i == 1 and 2 or 1) .. part[1] .. "\n" .. part[2] end
  return table.concat(out)
end

--- A mutator that changes one part.
-- @param change function(name, bytes, most, random, bytes_of) -> bytes; or a table of these by name, [1]: of all other names
function M.mutator(change)
  return function(data, most, random, bytes)
    local parts, names = M.split(data)
    if #names == 0 then return bytes(data, most) end
    local name = names[1 + random(#names)]
    local fn = type(change) == "table" and (change[name] or change[1]) or change
    local room = most - (#data - #parts[name])
    if room < 1 then return bytes(data, most) end
    parts[name] = fn(parts[name], room, random, bytes)
    local list = {}
    for i, n in ipairs(names) do list[i] = { n, parts[n] } end
    return M.join(list)
  end
end

return M
