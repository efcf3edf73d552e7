--- Python's two kinds of formatting: "%d" % x and "{:d}".format(x).
-- Needs ane.jinja.limits, number, text and value; str.format also reads attributes through ane.jinja.access.
-- Usage: `format.percent(rt, "%s!", v)`, `format.braces(rt, "{}!", args, n, kwargs)`

local limits = require "ane.jinja.limits"
local number = require "ane.jinja.number"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local fail = limits.fail

local M = {}

-- string.format accepts two digits of precision.
local MAX_PRECISION = 99

-- The longest format specification, as in "{:...}" or "%...". It is longer than all parts at their longest.
local MAX_SPEC = 64

-- Steps of one conversion. A float with 99 digits costs the most.
local CONVERSION = 32

local function pad(rt, s, width, align, fill)
  if not width or width <= 0 then return s end
  limits.read(rt, #s)
  local missing = width - text.length(s)
  if missing <= 0 then return s end
  limits.grow(rt, #s + missing * (#fill + 0.0))
  if align == "<" then return s .. fill:rep(missing) end
  if align == ">" then return fill:rep(missing) .. s end
  return fill:rep(missing // 2) .. s .. fill:rep(missing - missing // 2)
end

local function check_precision(precision)
  if precision and precision > MAX_PRECISION then fail("limit", "a precision of more than %d digits", MAX_PRECISION) end
  return precision
end

-- Digits of a float in a conversion of C, without a sign.
local function float_digits(x, conversion, precision, alternative)
  x = math.abs(x)
  if x ~= x then return conversion:find("%u") and "NAN" or "nan" end
  if x == math.huge then return conversion:find("%u") and "INF" or "inf" end
  return (("%%%s.%d%s"):format(alternative and "#" or "", check_precision(precision) or 6, conversion):format(x))
end

local RADIX = { b = 2, o = 8, x = 16, X = 16 }
local PREFIX = { b = "0b", o = "0o", x = "0x", X = "0X" }

local function int_digits(x, conversion)
  if conversion == "x" or conversion == "X" or conversion == "o" then
    if x >= 0 then return ("%" .. conversion):format(x) end
    if x == math.mininteger then fail("limit", "integers beyond 64 bits are not supported in arithmetic") end
    return ("%" .. conversion):format(-x)
  elseif conversion == "b" then
    if x == 0 then return "0" end
    local out = {}
    x = math.abs(x)
    while x ~= 0 do
      table.insert(out, 1, x & 1)
      x = x >> 1
    end
    return table.concat(out)
  end
  return (("%d"):format(x):gsub("^-", ""))
end

local function is_negative(x)
  return x < 0 or x == 0 and 1 / x < 0 and math.type(x) == "float"
end

-- Joins parts that are strings already: add(s) appends one, finish() returns the whole.
local function joiner(rt)
  local out, size = {}, 0
  local function add(s)
    if s == "" then return end
    out[#out + 1], size = s, size + #s
    limits.make(rt, limits.ITEM)
    if size > rt.max_string then limits.grow(rt, size) end
  end
  local function finish()
    limits.grow(rt, size)
    return table.concat(out)
  end
  return add, finish
end

-- The first `precision` characters of s.
local function shorten(rt, s, precision)
  if not precision or precision >= #s then return s end
  limits.read(rt, 3 * #s)
  return text.slice(s, 0, math.min(precision, text.length(s)))
end

-- percent formatting ------------------------------------------------------------------------------------------------------

local function percent_number(v, conversion)
  local x = value.as_number(v)
  if not x then
    if value.kind(v) == "undefined" then value.use_undefined(v) end
    fail("type", "%%%s format: a real number is required, not %s", conversion, value.typename(v))
  end
  return x
end

local function percent_int(rt, v, spec)
  local conversion = spec.conversion
  local x = percent_number(v, conversion)
  if math.type(x) == "float" then
    if conversion ~= "d" then fail("type", "%%%s format: an integer is required, not float", conversion) end
    x = number.truncate(x)
  end
  local digits = int_digits(x, conversion)
  if spec.precision then
    limits.grow(rt, spec.precision)
    digits = ("0"):rep(spec.precision - #digits) .. digits
  end
  return digits, x < 0, spec.alternative and PREFIX[conversion] or ""
end

-- The character of a code. A surrogate, which Python has, is a fault: it is no UTF-8.
local function character(code)
  if code < 0 or code > 0x10FFFF or code >= 0xD800 and code < 0xE000 then fail("value", "%c arg not in range(0x110000)") end
  return utf8.char(code)
end

local function percent_text(rt, v, spec)
  local s
  if spec.conversion == "c" then
    s = value.as_string(v)
    if s then limits.read(rt, #s) end
    if s and text.length(s) ~= 1 then fail("type", "%c requires int or char") end
    if not s then
      local code = value.as_integer(v)
      if not code then fail("type", "%c requires int or char") end
      return character(code)
    end
  else
    s = spec.conversion == "s" and value.str(rt, v) or value.repr(rt, v)
  end
  return shorten(rt, s, spec.precision)
end

local function percent_one(rt, v, spec)
  local c = spec.conversion
  if c == "s" or c == "r" or c == "a" or c == "c" then
    return pad(rt, percent_text(rt, v, spec), spec.width, spec.left and "<" or ">", " ")
  end
  local digits, negative, prefix
  if c == "d" or c == "x" or c == "X" or c == "o" then
    digits, negative, prefix = percent_int(rt, v, spec)
  else
    local x = percent_number(v, c) * 1.0
    digits, negative, prefix = float_digits(x, c, spec.precision, spec.alternative), is_negative(x), ""
  end
  local sign = negative and "-" or spec.plus and "+" or spec.space and " " or ""
  local head = sign .. prefix
  if spec.zero and not spec.left then return head .. pad(rt, digits, (spec.width or 0) - #head, ">", "0") end
  return pad(rt, head .. digits, spec.width, spec.left and "<" or ">", " ")
end

local CONVERSIONS = { d = "d", i = "d", u = "d", o = "o", x = "x", X = "X", e = "e", E = "E", f = "f", F = "F", g = "g", G = "G",
  c = "c", r = "r", s = "s", a = "a" }

-- One specification at the byte after its "%". next_arg() returns the argument of a "*".
local function percent_spec(fmt, at, next_arg)
  local spec = {}
  local key = fmt:match("^%((.-)%)", at)
  if key then
    spec.key, at = key, at + #key + 2
  end
  local flags = fmt:match("^[-+ #0]*", at)
  if #flags > MAX_SPEC then fail("limit", "more than %d flags", MAX_SPEC) end
  spec.left, spec.plus = flags:find("-", 1, true) ~= nil, flags:find("+", 1, true) ~= nil
  spec.space, spec.zero = flags:find(" ", 1, true) ~= nil, flags:find("0", 1, true) ~= nil
  spec.alternative = flags:find("#", 1, true) ~= nil
  at = at + #flags
  local function amount()
    local digits = fmt:sub(at, at + 10):match("^%d*")
    if fmt:sub(at, at) == "*" then
      at = at + 1
      local n = value.as_integer(next_arg())
      return n or fail("type", "* wants int")
    end
    at = at + #digits
    if #digits > 9 then fail("limit", "a width or precision of more than 9 digits") end
    return tonumber(digits)
  end
  spec.width = amount()
  if spec.width and spec.width < 0 then spec.left, spec.width = true, -spec.width end
  if fmt:sub(at, at) == "." then
    at = at + 1
    spec.precision = math.max(amount() or 0, 0)
  end
  at = at + #fmt:match("^[hlL]?", at)
  local c = fmt:sub(at, at)
  if c == "" then fail("value", "incomplete format") end
  spec.conversion = c == "%" and c or CONVERSIONS[c] or fail("value", "unsupported format character '%s'", fmt:match(text.CHARACTER, at))
  return spec, at + 1
end

-- The arguments of one percent operation.
local function percent_args(rt, v)
  local is_tuple = value.kind(v) == "tuple"
  local args, used = is_tuple and v or { v }, 0
  local source = {}
  function source.next()
    used = used + 1
    if args[used] == nil then fail("type", "not enough arguments for format string") end
    return args[used]
  end
  function source.key(key)
    if value.kind(v) ~= "dict" then fail("type", "format requires a mapping") end
    used = 1
    local item = value.get(rt, v, key)
    if item == nil then fail("value", "KeyError: %s", value.quote_brief(key)) end
    return item
  end
  function source.finish()
    local k = value.kind(v) -- types with subscripts, other than str and tuple, may be mappings: leftovers are not errors
    if args[used + 1] ~= nil and k ~= "dict" and k ~= "list" and k ~= "undefined" and k ~= "range" then
      fail("type", "not all arguments converted during string formatting")
    end
  end
  return source
end

--- fmt % v
function M.percent(rt, fmt, v)
  limits.read(rt, 2 * #fmt)
  limits.spare(rt, #fmt)
  local source, at = percent_args(rt, v), 1
  local add, finish = joiner(rt)
  while true do
    local i = fmt:find("%", at, true)
    add(fmt:sub(at, (i or 0) - 1))
    if not i then break end
    limits.tick(rt, CONVERSION)
    local spec
    spec, at = percent_spec(fmt, i + 1, source.next)
    if spec.conversion == "%" then
      add "%"
    else
      add(percent_one(rt, spec.key and source.key(spec.key) or source.next(), spec))
    end
  end
  source.finish()
  return finish()
end

-- brace formatting --------------------------------------------------------------------------------------------------------

local function parse_format_spec(spec)
  local s = {}
  if #spec > MAX_SPEC then fail("limit", "a format specifier of more than %d bytes", MAX_SPEC) end
  local rest = spec
  local fill, align = rest:match("^(" .. text.CHARACTER .. ")([<>=^])")
  if fill then
    rest = rest:sub(#fill + 2)
  else
    align = rest:match("^[<>=^]")
    if align then rest = rest:sub(2) end
  end
  local sign, alternative, zero, width, group, precision, kind = rest:match("^([-+ ]?)(#?)(0?)(%d*)([,_]?)%.?(%d*)([%a%%]?)$")
  if not sign then fail("value", "Invalid format specifier %s", text.quote(spec)) end
  if rest:find("%.%D") or rest:find("%.$") then fail("value", "Format specifier missing precision") end
  if not rest:find(".", 1, true) and precision ~= "" then precision, width = "", width .. precision end
  if #width > 9 or #precision > 9 then fail("limit", "a width or precision of more than 9 digits") end
  if zero == "0" and not align then fill, align = fill or "0", "=" end
  s.fill, s.align, s.sign, s.alternative = fill or (zero == "0" and "0") or " ", align, sign, alternative == "#"
  s.width, s.group, s.precision, s.type = tonumber(width), group, tonumber(precision), kind
  return s
end

local function group_digits(digits, mark, size)
  local whole, rest = digits:match("^(%x+)(.*)$")
  if mark == "" or not whole then return digits end
  local first = (#whole - 1) % size + 1
  local out = { whole:sub(1, first) }
  for i = first + 1, #whole, size do out[#out + 1] = whole:sub(i, i + size - 1) end
  return table.concat(out, mark) .. rest
end

local function float_by_spec(x, s)
  local kind = s.type
  if kind == "%" then return float_digits(x * 100, "f", s.precision, s.alternative) .. "%" end
  if kind == "n" then kind = "g" end
  if kind == "" then
    if not s.precision then return (number.float_text(math.abs(x))) end
    local digits = float_digits(x, "g", math.max(s.precision, 1), s.alternative)
    if not digits:find("[.en]") then digits = digits .. ".0" end
    return digits
  end
  return float_digits(x, kind, kind:find("[gG]") and s.precision == 0 and 1 or s.precision, s.alternative)
end

local function format_number(rt, x, s)
  local digits, prefix = nil, ""
  local kind = s.type
  if math.type(x) == "integer" and (kind == "" or kind:find("^[bdoxXnc]$")) then
    if s.precision then fail("value", "Precision not allowed in integer format specifier") end
    if kind == "c" then return pad(rt, character(x), s.width, s.align or "<", s.fill) end
    digits = int_digits(x, kind)
    if s.alternative then prefix = PREFIX[kind] or "" end
  elseif kind == "" or kind:find("^[eEfFgGn%%]$") then
    digits = float_by_spec(x * 1.0, s)
  else
    fail("value", "Unknown format code '%s' for object of type '%s'", kind, value.typename(x))
  end
  digits = group_digits(digits, s.group, RADIX[kind] and 4 or 3)
  local head = (is_negative(x) and "-" or s.sign ~= "-" and s.sign or "") .. prefix
  if s.align == "=" then
    if s.group ~= "" and s.fill == "0" then fail("unsupported", "zero padding with a thousands separator is not supported") end
    return head .. pad(rt, digits, (s.width or 0) - #head, ">", s.fill)
  end
  return pad(rt, head .. digits, s.width, s.align or ">", s.fill)
end

--- format(v, spec)
function M.one(rt, v, spec)
  if spec == "" then return value.str(rt, v) end
  local x, s = value.as_number(v), value.as_string(v)
  if x then return format_number(rt, x, parse_format_spec(spec)) end
  if not s then fail("type", "unsupported format string passed to %s.__format__", value.typename(v)) end
  local f = parse_format_spec(spec)
  if f.type ~= "" and f.type ~= "s" then fail("value", "Unknown format code '%s' for object of type 'str'", f.type) end
  if f.align == "=" or f.sign ~= "" or f.group ~= "" or f.alternative then
    fail("value", "not allowed in string format specifier: %s", spec)
  end
  return pad(rt, shorten(rt, s, f.precision), f.width, f.align or "<", f.fill)
end

local function braces_field(rt, name, state)
  local access = require "ane.jinja.access" -- lazily: access requires the str methods, which require this module
  local first = name:match("^[^.%[]*")
  local v
  if first == "" or first:find("^%d+$") then
    if state.numbered ~= nil and state.numbered ~= (first ~= "") then
      fail("value", "cannot switch between manual and automatic field numbering")
    end
    state.numbered = first ~= ""
    local i = math.tointeger(tonumber(first))
    if not i then
      if first ~= "" then fail("value", "Too many decimal digits in format string") end
      i, state.auto = state.auto, state.auto + 1
    end
    v = state.args[i + 1]
    if v == nil or i >= state.n then fail("value", "Replacement index %d out of range for positional args tuple", i) end
  else
    v = state.kwargs and value.get(rt, state.kwargs, first)
    if v == nil then fail("value", "KeyError: %s", value.quote_brief(first)) end
  end
  local at = #first + 1
  while at <= #name do
    limits.tick(rt, 2)
    local attribute, index = name:match("^%.([^.%[]+)", at), name:match("^%[([^%]]+)%]", at)
    if attribute then
      v, at = access.getattr(rt, v, attribute), at + #attribute + 1
    elseif index then
      v, at = access.getitem(rt, v, index:find("^%d+$") and math.tointeger(tonumber(index)) or index), at + #index + 2
    else
      fail("value", "invalid field name %s", value.quote_brief(name))
    end
  end
  return v
end

local function braces(rt, fmt, state, level)
  if level > 3 then fail("value", "Max string recursion exceeded") end
  limits.read(rt, 6 * #fmt)
  limits.spare(rt, 2 * #fmt)
  local add, finish = joiner(rt)
  local at = 1
  while true do
    local i = fmt:find("[{}]", at)
    add(fmt:sub(at, (i or 0) - 1))
    if not i then return finish() end
    limits.tick(rt)
    local c = fmt:sub(i, i)
    if fmt:sub(i + 1, i + 1) == c then
      add(c)
      at = i + 2
    else
      limits.tick(rt, CONVERSION)
      local inside = c == "{" and fmt:match("^%b{}", i)
      if not inside then fail("value", "Single '%s' encountered in format string", c) end
      at = i + #inside
      inside = inside:sub(2, -2)
      local name, conversion, spec = inside:match("^([^!:{}]*)!?([^:{}]?):?(.*)$")
      if not name or conversion ~= "" and not inside:find("!", 1, true) then
        fail("value", "invalid field %s", value.quote_brief(inside))
      end
      local v = braces_field(rt, name, state)
      if conversion == "r" or conversion == "a" then
        v = value.repr(rt, v)
      elseif conversion == "s" then
        v = value.str(rt, v)
      elseif conversion ~= "" then
        fail("value", "Unknown conversion specifier '%s'", conversion)
      end
      add(M.one(rt, v, braces(rt, spec, state, level + 1)))
    end
  end
end

--- fmt.format(*args, **kwargs)
function M.braces(rt, fmt, args, n, kwargs)
  return braces(rt, fmt, { args = args, n = n, kwargs = kwargs, auto = 0 }, 1)
end

return M
