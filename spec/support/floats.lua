-- Strings of little-endian float32 for kernel specs: made from a seed, taken apart, compared.
local M = {}

-- A generator of doubles in [0, 1): the same sequence on every machine.
function M.random(seed)
  local x = seed * 2654435761 & 0xFFFFFFFF
  return function()
    x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
    local y = x
    y = (y ~ y >> 15) * 2246822519 & 0xFFFFFFFF
    return (y ~ y >> 13) / 4294967296
  end
end

-- Formats of so many numbers at once, and of the rest.
local CHUNK = 128
local format = {}
for n = 1, CHUNK do format[n] = "<" .. ("f"):rep(n) end

function M.pack(values)
  local parts, pack, unpack = {}, string.pack, table.unpack
  for i = 1, #values, CHUNK do
    local n = math.min(CHUNK, #values - i + 1)
    parts[#parts + 1] = pack(format[n], unpack(values, i, i + n - 1))
  end
  return table.concat(parts)
end

function M.unpack(s)
  local values, n, unpack, move = {}, #s // 4, string.unpack, table.move
  for i = 1, n, CHUNK do
    local count = math.min(CHUNK, n - i + 1)
    move({ unpack(format[count], s, 4 * i - 3) }, 1, count, i, values)
  end
  return values
end

-- n numbers in [-limit, limit), as a string.
function M.uniform(n, seed, limit)
  local x, values = seed * 2654435761 & 0xFFFFFFFF, {}
  limit = limit or 1
  for i = 1, n do -- M.random, inline: specs make millions of these
    x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
    local y = (x ~ x >> 15) * 2246822519 & 0xFFFFFFFF
    values[i] = (2 * ((y ~ y >> 13) / 4294967296) - 1) * limit
  end
  return M.pack(values)
end

-- Nil where two strings hold the same bits (any nan equals any nan), else a text that names the first difference.
function M.difference(a, b)
  if a == b then return nil end
  if #a ~= #b then return ("%d bytes against %d"):format(#a, #b) end
  for i = 1, #a, 4 do
    local x, y = a:sub(i, i + 3), b:sub(i, i + 3)
    if x ~= y then
      local u, v = string.unpack("<f", x), string.unpack("<f", y)
      if u == u or v == v then return ("float %d: %a against %a"):format(i // 4, u, v) end
    end
  end
end

-- Distance in units of the last place of the float32 nearest to `want`; 0 where both are nan or the same infinity.
function M.ulps(got, want)
  if want ~= want then return got ~= got and 0 or math.huge end
  local nearest = string.unpack("<f", string.pack("<f", want))
  if got == nearest then return 0 end
  if math.abs(nearest) == math.huge or math.abs(got) == math.huge then
    local bits = function(x) return string.unpack("<I4", string.pack("<f", math.abs(x))) end
    return math.abs(bits(got) - bits(nearest))
  end
  local a, e = math.abs(want), -126
  while a >= 2.0 ^ (e + 1) do e = e + 1 end
  return math.abs(got - want) / 2.0 ^ (e - 23)
end

return M
