--- The operators of expressions. Each one pays for the bytes and items of its operands and its result.
-- Needs ane.jinja.format, limits, number and value. Usage: `operators.binary["+"](rt, a, b)`

local format = require "ane.jinja.format"
local limits = require "ane.jinja.limits"
local number = require "ane.jinja.number"
local value = require "ane.jinja.value"

local fail, grow = limits.fail, limits.grow
local kind, typename = value.kind, value.typename

local M = {}

local function unsupported(op, a, b)
  if kind(a) == "undefined" then value.use_undefined(a) end
  if kind(b) == "undefined" then value.use_undefined(b) end
  if kind(a) == "bigint" or kind(b) == "bigint" then
    fail("limit", "integers beyond 64 bits are not supported in arithmetic")
  end
  fail("type", "unsupported operand type(s) for %s: '%s' and '%s'", op, typename(a), typename(b))
end

local function arithmetic(op, compute)
  return function(rt, a, b)
    local x, y = value.as_number(a), value.as_number(b)
    if not x or not y then unsupported(op, a, b) end
    limits.tick(rt)
    return compute(x, y)
  end
end

-- str + str. A Markup operand escapes the other operand, as in markupsafe.
local function add_strings(rt, a, b)
  if type(a) == "string" and type(b) == "string" then
    grow(rt, #a + #b)
    return a .. b
  end
  local x = type(a) == "string" and value.escape(rt, a) or a.text
  local y = type(b) == "string" and value.escape(rt, b) or b.text
  grow(rt, #x + #y)
  return value.new_markup(rt, x .. y)
end

local function add(rt, a, b)
  local x, y = value.as_number(a), value.as_number(b)
  if x and y then return number.add(x, y) end
  local s, t = value.as_string(a), value.as_string(b)
  if s and t then return add_strings(rt, a, b) end
  local k = kind(a)
  if k == kind(b) and (k == "list" or k == "tuple") then
    if #a + #b > limits.MAX_ITEMS then limits.items(rt, #a + #b) end
    limits.tick(rt, 1 + (#a + #b >> 2))
    local items = table.move(a, 1, #a, 1, {})
    table.move(b, 1, #b, #a + 1, items)
    return k == "list" and value.new_list(rt, items) or value.new_tuple(rt, items)
  end
  if s and kind(b) ~= "undefined" then fail("type", 'can only concatenate str (not "%s") to str', typename(b)) end
  if (k == "list" or k == "tuple") and kind(b) ~= "undefined" then
    fail("type", 'can only concatenate %s (not "%s") to %s', k, typename(b), k)
  end
  unsupported("+", a, b)
end

local function repeated(rt, v, n)
  n = math.max(n, 0)
  local s = value.as_string(v)
  if s then
    grow(rt, #s * (n + 0.0))
    s = s == "" and s or s:rep(n) -- string.rep counts to n for an empty string too
    return type(v) == "string" and s or value.new_markup(rt, s)
  end
  local size = #v
  local total = math.tointeger(math.min(size * (n + 0.0), limits.MAX_ITEMS + 1))
  if total > limits.MAX_ITEMS then limits.items(rt, total) end
  limits.tick(rt, 1 + (total >> 2))
  local items = {}
  for i = 0, total - 1 do items[i + 1] = v[i % size + 1] end
  return kind(v) == "list" and value.new_list(rt, items) or value.new_tuple(rt, items)
end

local function is_sequence(v)
  local k = kind(v)
  return k == "str" or k == "list" or k == "tuple" or k == "markup"
end

local function multiply(rt, a, b)
  local x, y = value.as_number(a), value.as_number(b)
  if x and y then return number.mul(x, y) end
  local i, j = value.as_integer(a), value.as_integer(b)
  if is_sequence(a) and j then return repeated(rt, a, j) end
  if is_sequence(b) and i then return repeated(rt, b, i) end
  if is_sequence(a) and kind(b) ~= "undefined" then
    fail("type", "can't multiply sequence by non-int of type '%s'", typename(b))
  end
  unsupported("*", a, b)
end

local modulo = arithmetic("%", number.mod)

--- Operators of two operands: binary["+"](rt, a, b).
M.binary = {
  ["+"] = add,
  ["-"] = arithmetic("-", number.sub),
  ["*"] = multiply,
  ["/"] = arithmetic("/", number.div),
  ["//"] = arithmetic("//", number.floordiv),
  ["**"] = arithmetic("**", number.pow),
  ["%"] = function(rt, a, b)
    if type(a) == "string" then return format.percent(rt, a, b) end
    if kind(a) == "markup" then fail("unsupported", "% on a safe string is not supported") end
    return modulo(rt, a, b)
  end,
}

local function sign(name, compute)
  return function(_, a)
    local x = value.as_number(a)
    if x then return compute(x) end
    if kind(a) == "undefined" then value.use_undefined(a) end
    fail("type", "bad operand type for unary %s: '%s'", name, typename(a))
  end
end

local neg = sign("-", number.neg)

--- -a
function M.neg(rt, a)
  if kind(a) ~= "bigint" then return neg(rt, a) end
  if a.text == "9223372036854775808" then return math.mininteger end
  limits.scan(rt, #a.text)
  return value.new_bigint(rt, a.text:sub(1, 1) == "-" and a.text:sub(2) or "-" .. a.text)
end

--- +a
M.pos = sign("+", function(x) return x end)

local function ordered(op)
  return function(rt, a, b) return value.order(rt, op, a, b) end
end

--- Comparisons: compare["in"](rt, a, b).
M.compare = {
  ["=="] = value.eq,
  ["!="] = function(rt, a, b) return not value.eq(rt, a, b) end,
  ["<"] = ordered "<", ["<="] = ordered "<=", [">"] = ordered ">", [">="] = ordered ">=",
  ["in"] = function(rt, a, b) return value.contains(rt, b, a) end,
  ["not in"] = function(rt, a, b) return not value.contains(rt, b, a) end,
}

--- a ~ b ~ ...: the strings of n parts, joined. Changes the table of parts.
function M.concat(rt, parts, n)
  local size = 0
  for i = 1, n do
    parts[i] = value.str(rt, parts[i])
    size = size + #parts[i]
    if size > rt.max_string then grow(rt, size) end
  end
  grow(rt, size)
  return table.concat(parts, "", 1, n)
end

return M
