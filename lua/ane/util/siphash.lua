--- A keyed hash of byte strings: SipHash-2-4 (Aumasson, Bernstein: SipHash, a fast short-input PRF; 2012).
-- Needs nothing. Usage: `print(("%016x"):format(siphash.hash(siphash.key "secret", "text")))`

local M = {}

local function left(x, n) return x << n | x >> (64 - n) end

local function round(a, b, c, d)
  a, c = a + b, c + d
  b, d = left(b, 13) ~ a, left(d, 16) ~ c
  a = left(a, 32)
  c, a = c + b, a + d
  b, d = left(b, 17) ~ c, left(d, 21) ~ a
  return a, b, left(c, 32), d
end

--- Hash of a text: 64 bits, as an integer.
-- @param key 16 bytes
function M.hash(key, text)
  local k0, k1 = string.unpack("<i8i8", key)
  local a, b, c, d = k0 ~ 0x736f6d6570736575, k1 ~ 0x646f72616e646f6d, k0 ~ 0x6c7967656e657261, k1 ~ 0x7465646279746573
  local whole = #text & ~7
  local last = text:sub(whole + 1) .. ("\0"):rep(7 - (#text & 7)) .. string.char(#text & 0xFF)
  for at = 1, whole + 8, 8 do
    local m = string.unpack("<i8", at <= whole and text or last, at <= whole and at or 1)
    d = d ~ m
    a, b, c, d = round(a, b, c, d)
    a, b, c, d = round(a, b, c, d)
    a = a ~ m
  end
  c = c ~ 0xFF
  for _ = 1, 4 do a, b, c, d = round(a, b, c, d) end
  return a ~ b ~ c ~ d
end

--- The key of a password of any length. A password of 16 bytes is the key itself.
function M.key(password)
  if #password == 16 then return password end
  local zero = ("\0"):rep(16)
  return string.pack("<i8i8", M.hash(zero, "0" .. password), M.hash(zero, "1" .. password))
end

return M
