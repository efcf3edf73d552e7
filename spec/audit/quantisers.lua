--- Quantisers: what was encoded decodes to the nearest it can, and more bits leave no larger error.
local core = require "ane.core"
local floats = require "support.floats"

local T = core.testing
local M = { cases = 4 }

-- Of each list, a later type leaves no larger a root mean square error than an earlier one, but for the slack of a search.
local ORDERS = {
  { "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "fp16", "fp32" }, { "q4_0", "q5_0", "q8_0", "fp16", "fp32" }, { "q4_1", "q5_1", "fp16" },
  { "q4_0", "q4_k", "q5_k" }, { "iq4_nl", "q5_k" }, { "bf16", "fp16" },
}
local FORMS = { { "int4-block", "uint4-block", "int8-block" }, { "int8", "int8-channel" }, { "lut4", "lut4-g32", "lut4-g16", "lut4-g8" } }
-- How much larger an error may be by chance: of types that search, and of forms with one scale more or less.
local SLACK, FORM_SLACK = 1.02, 1.15

-- How much more numbers that were decoded may move when they are encoded again: a search may find another place.
local AGAIN = 1.5

local function rms(a, b)
  local x, y, sum = floats.unpack(a), floats.unpack(b), 0
  for i = 1, #x do sum = sum + (x[i] - y[i]) ^ 2 end
  return math.sqrt(sum / #x)
end

-- The error of a type, after checks of the type by itself.
local function error_of(dtype, x, what)
  local encoded = T.encode(dtype, x)
  if not encoded then return nil end
  local y = T.decode(dtype, encoded)
  assert(#y == #x, what)
  local first = rms(x, y)
  -- Once more: what the type can say, it says again, or something about as near.
  local again = rms(y, T.decode(dtype, T.encode(dtype, y)))
  assert(again <= first * AGAIN + 1e-12, ("%s: encoded again it moves by %g, at first by %g"):format(what, again, first))
  -- Blocks do not know of their neighbours.
  local half = #x // 2
  assert(T.encode(dtype, x:sub(1, half)) .. T.encode(dtype, x:sub(half + 1)) == encoded, what .. ": a half has other bytes")
  return first
end

-- Values that one type's steps hit exactly may lie between those of a finer one.
local function descends(list, errors, what, slack)
  if what == "few values" then return end
  local last, name
  for _, dtype in ipairs(list) do
    local e = errors[dtype]
    if e then
      assert(not last or e <= last * slack + 1e-9, ("%s: %s is %g off, %s %s"):format(what, dtype, e, name, last))
      last, name = e, dtype
    end
  end
end

local function forms(d, x, kind)
  local rows, cols, errors = 8, #x // 4 // 8, {}
  for _, list in ipairs(FORMS) do
    for _, form in ipairs(list) do
      local one = assert(T.encode_weights(form, "fp32", x, rows, cols, 1))
      local many = assert(T.encode_weights(form, "fp32", x, rows, cols, d.between(2, 4)))
      assert(one.payload == many.payload and one.values == many.values, form .. ": threads change the bytes")
      errors[form] = rms(x, one.values)
    end
    descends(list, errors, kind, FORM_SLACK)
  end
end

function M.case(d)
  local x, kind = d.floats(2048)
  local errors = {}
  for _, list in ipairs(ORDERS) do
    for _, dtype in ipairs(list) do errors[dtype] = errors[dtype] or error_of(dtype, x, dtype .. ", " .. kind) end
    descends(list, errors, kind, SLACK)
  end
  forms(d, x, kind)
end

return M
