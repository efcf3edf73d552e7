--- Base64 (RFC 4648).
-- Needs nothing. Usage: `base64.encode "abc"` is "YWJj"

local M = {}

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

-- For each value of 12 bits, its two letters.
local PAIRS = {}
for high = 0, 63 do
  for low = 0, 63 do PAIRS[high << 6 | low] = ALPHABET:sub(high + 1, high + 1) .. ALPHABET:sub(low + 1, low + 1) end
end

--- Encodes bytes.
function M.encode(bytes)
  local out, n = {}, 0
  for i = 1, #bytes - 2, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    out[n + 1], out[n + 2] = PAIRS[a << 4 | b >> 4], PAIRS[(b & 15) << 8 | c]
    n = n + 2
  end
  local rest = #bytes % 3
  if rest > 0 then
    local a, b = bytes:byte(-rest, -1)
    out[n + 1] = PAIRS[a << 4 | (b or 0) >> 4]
    out[n + 2] = rest == 1 and "==" or PAIRS[((b or 0) & 15) << 8]:sub(1, 1) .. "="
  end
  return table.concat(out)
end

return M
