--- Python numbers as Lua numbers: ints are integers, floats are floats. A result beyond 64 bits is a fault, never a wrap.
-- Needs ane.jinja.limits. The parsers take time in proportion to the text.
-- Usage: `number.text(1.0) --> "1.0"`, `number.parse_int("0x1f", 16) --> 31`

local limits = require "ane.jinja.limits"

local fail = limits.fail
local mtype = math.type

local M = {}

local function overflow()
  fail("limit", "integers beyond 64 bits are not supported in arithmetic")
end

-- The smallest normal float.
local SMALLEST_NORMAL = 2.0 ^ -1022

--- The shortest text that reads back as the same float, in the layout of Python's repr(). A normal float whose shortest text
-- has at most 15 digits prints these digits and zeros at a precision of 15, so only 15, 16 and 17 digits are tried. A subnormal
-- float tries every precision.
function M.float_text(x)
  if x ~= x then return "nan" end
  if x == math.huge then return "inf" elseif x == -math.huge then return "-inf" end
  local digits, exponent
  for precision = math.abs(x) >= SMALLEST_NORMAL and 14 or 0, 16 do
    local s = ("%." .. precision .. "e"):format(x)
    if precision == 16 or tonumber(s) == x then
      local sign, whole, fraction, e = s:match("^(%-?)(%d)%D?(%d*)e([+-]%d+)$")
      digits, exponent = whole .. fraction:gsub("0+$", ""), tonumber(e)
      local body
      if exponent < -4 or exponent >= 16 then
        body = digits:sub(1, 1) .. (#digits > 1 and "." .. digits:sub(2) or "") .. ("e%+03d"):format(exponent)
      elseif exponent < 0 then
        body = "0." .. ("0"):rep(-exponent - 1) .. digits
      elseif #digits <= exponent + 1 then
        body = digits .. ("0"):rep(exponent + 1 - #digits) .. ".0"
      else
        body = digits:sub(1, exponent + 1) .. "." .. digits:sub(exponent + 2)
      end
      return sign .. body
    end
  end
end

--- str() of an int or a float.
function M.text(x)
  if mtype(x) == "integer" then return ("%d"):format(x) end
  return M.float_text(x)
end

function M.add(a, b)
  local r = a + b
  if mtype(r) == "integer" and ((a ~ r) & (b ~ r)) < 0 then overflow() end
  return r
end

function M.sub(a, b)
  local r = a - b
  if mtype(r) == "integer" and ((a ~ b) & (a ~ r)) < 0 then overflow() end
  return r
end

function M.mul(a, b)
  local r = a * b
  if mtype(r) == "integer" and a ~= 0 then
    local wrapped = r % a ~= 0 or r // a ~= b or a == -1 and b == math.mininteger
    if wrapped then overflow() end
  end
  return r
end

function M.div(a, b)
  if b == 0 then fail("value", "division by zero") end
  return a / b
end

function M.floordiv(a, b)
  if b == 0 then fail("value", "integer division or modulo by zero") end
  if mtype(a) == "integer" and mtype(b) == "integer" then
    if a == math.mininteger and b == -1 then overflow() end
    return a // b
  end
  -- As float_floor_div of CPython: from the exact remainder. The quotient may be rounded up to a whole number: 1.0 // 0.1 is 9.0.
  local rest = math.fmod(a + 0.0, b + 0.0)
  local quotient = (a - rest) / b
  if rest ~= 0 and (rest < 0) ~= (b < 0) then quotient = quotient - 1 end
  if quotient == 0 then return 0.0 * (a / b) end -- a zero with the sign of a / b
  local low = math.floor(quotient + 0.0)
  if quotient - low > 0.5 then low = low + 1 end
  return low + 0.0
end

function M.mod(a, b)
  if b == 0 then fail("value", "integer modulo by zero") end
  if mtype(a) == "integer" and mtype(b) == "integer" then return a % b end
  local r = math.fmod(a, b)
  if r ~= 0 then
    if (r < 0) ~= (b < 0) then r = r + b end
    return r
  end
  return b < 0 and -0.0 or 0.0 -- Python: a zero remainder has the sign of the divisor
end

local function int_pow(base, exponent)
  if base == 0 or base == 1 then return exponent == 0 and 1 or base end
  if base == -1 then return exponent % 2 == 0 and 1 or -1 end
  if exponent > 63 then overflow() end
  local r = 1
  for _ = 1, exponent do r = M.mul(r, base) end
  return r
end

function M.pow(a, b)
  if mtype(a) == "integer" and mtype(b) == "integer" and b >= 0 then return int_pow(a, b) end
  if a == 0 and b < 0 then fail("value", "0.0 cannot be raised to a negative power") end
  if a < 0 and b ~= math.floor(b) then fail("unsupported", "complex numbers are not supported") end
  local r = (a + 0.0) ^ b
  if r - r ~= 0 and a - a == 0 and b - b == 0 then fail("value", "Numerical result out of range") end
  return r
end

function M.neg(a)
  if a == math.mininteger and mtype(a) == "integer" then overflow() end
  return -a
end

--- int(x) of a float: rounded towards zero.
function M.truncate(x)
  if mtype(x) == "integer" then return x end
  if x ~= x then fail("value", "cannot convert float NaN to integer") end
  if x - x ~= 0 then fail("value", "cannot convert float infinity to integer") end
  return math.tointeger(x < 0 and math.ceil(x) or math.floor(x)) or overflow()
end

local function half_even(x)
  local low = math.floor(x)
  local rest = x - low
  if rest > 0.5 or rest == 0.5 and low % 2 == 1 then return low + 1 end
  return low
end

--- round(x, places): ties go to the even neighbour. A tie is one in the exact binary value, as in C's printf.
function M.round(x, places)
  if x - x ~= 0 then return x end
  if mtype(x) == "integer" then
    if places >= 0 then return x end
    if places < -18 then return 0 end
    local unit = int_pow(10, -places)
    local low, rest = x // unit, x % unit
    if rest * 2 > unit or rest * 2 == unit and low % 2 == 1 then low = low + 1 end
    return M.mul(low, unit)
  end
  if places >= 0 then
    if places > 22 then return x end
    return tonumber(("%." .. places .. "f"):format(x) .. (places == 0 and ".0" or ""))
  end
  if places < -308 then return 0.0 * x end
  local unit = 10.0 ^ -places
  return half_even(x / unit) * unit
end

local BASE_PREFIX = { [2] = "[bB]", [8] = "[oO]", [16] = "[xX]" }

-- "1_000" is a number, "_1" and "1__0" are not.
local function without_underscores(s)
  if not s:find("_", 1, true) then return s end
  if s:find("^_") or s:find("_$") or s:find("__", 1, true) then return nil end
  return (s:gsub("_", ""))
end

-- The value of digits in a base; nil when one is not a digit; nil and true beyond 64 bits.
local function digits_value(digits, base)
  local value, big = 0, false
  for i = 1, #digits do
    local d = tonumber(digits:sub(i, i), 36)
    if not d or d >= base then return nil end
    big = big or value > (math.maxinteger - d) // base
    if not big then value = value * base + d end
  end
  if big then return nil, true end
  return value
end

--- int(text, base): the value; nil when there is none; nil and the decimal digits with their sign beyond 64 bits.
function M.parse_int(text, base)
  local sign, body = text:match("^%s*([+-]?)(%w[%w_]*)%s*$")
  if not body then return nil end
  if base == 0 then
    base = 10
    for b, prefix in pairs(BASE_PREFIX) do
      if body:find("^0" .. prefix) then base = b end
    end
    if base == 10 and body:find("^0[_0]*[1-9]") then return nil end
  end
  if BASE_PREFIX[base] then body = body:gsub("^0" .. BASE_PREFIX[base] .. "_?", "", 1) end
  local digits = without_underscores(body)
  if not digits or digits == "" then return nil end
  local value, big = digits_value(digits, base)
  if value then return sign == "-" and -value or value end
  if big and base == 10 and not digits:find("%D") then
    if sign == "-" and digits:match("^0*(.*)$") == "9223372036854775808" then return math.mininteger end
    return nil, (sign == "-" and "-" or "") .. digits:match("^0*(.*)$")
  end
  if big then overflow() end
  return nil
end

-- Does float() accept a text without a sign as digits with an optional fraction and exponent? No pattern here backtracks.
local function is_decimal(s)
  local at = #s:match("^%d*") + 1
  local digits = at - 1
  if s:sub(at, at) == "." then
    local fraction = s:match("^%d*", at + 1)
    digits, at = digits + #fraction, at + 1 + #fraction
  end
  if digits == 0 then return false end
  local e = s:match("^[eE][+-]?", at)
  if not e then return at > #s end
  local exponent = s:match("^%d*", at + #e)
  return exponent ~= "" and at + #e + #exponent > #s
end

--- float(text), or nil.
function M.parse_float(text)
  local sign, body = text:match("^%s*([+-]?)(%S+)%s*$")
  if not body then return nil end
  local word = body:lower()
  local value
  if word == "inf" or word == "infinity" then
    value = math.huge
  elseif word == "nan" then
    value = 0.0 / 0.0
  else
    if body:find("^_") or body:find("_$") or body:find("_[_.eE+-]") or body:find("[.eE+-]_") then return nil end
    local plain = body:gsub("_", "")
    if not is_decimal(plain) then return nil end
    value = tonumber(plain) + 0.0
  end
  return sign == "-" and -value or value
end

return M
