--- The methods of Python's str.
-- Needs ane.jinja.call, format, limits, text and value. Each entry of the module is a signature of ane.jinja.call, except
-- replace_text. Each method pays for the bytes it reads before it reads them, and for its result before it builds it.
-- Usage: `call.apply(rt, strings.upper, "abc", {}, 0)`

local call = require "ane.jinja.call"
local format = require "ane.jinja.format"
local limits = require "ane.jinja.limits"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local fail, tick, grow, scan, read, walk = limits.fail, limits.tick, limits.grow, limits.scan, limits.read, limits.walk
local integer, string_of = call.integer, call.string

local M = {}

local function def(name, parameters, min, fn, keywords)
  M[name] = call.signature(name, parameters, min, fn, not keywords)
end

-- case and classes --------------------------------------------------------------------------------------------------------

--- s with its case changed; also for the filters. A character of two bytes may become three of two bytes each.
function M.change_case(rt, s, change)
  walk(rt, text.is_ascii(s) and #s or 3 * #s)
  limits.spare(rt, 8 * #s)
  local out = change(s)
  grow(rt, #out)
  return out
end

for _, name in ipairs { "upper", "lower", "capitalize", "title", "swapcase", "casefold" } do
  local change = text[name]
  def(name, "", 0, function(rt, s) return M.change_case(rt, s, change) end)
end

for method, class in pairs {
  isspace = "space", isalpha = "alpha", isdigit = "digit", isdecimal = "decimal", isnumeric = "numeric", isalnum = "alnum",
} do
  def(method, "", 0, function(rt, s)
    walk(rt, #s)
    return text.every(s, text.class[class])
  end)
end

for method, test in pairs {
  islower = text.is_lower,
  isupper = text.is_upper,
  istitle = text.is_title,
  isascii = text.is_ascii,
  isprintable = function(s) return s == "" or text.every(s, text.class.printable) end,
  isidentifier = function(s) return text.every(s, text.class.word) and not text.class.numeric(s:match("^" .. text.CHARACTER)) end,
} do
  def(method, "", 0, function(rt, s)
    walk(rt, #s)
    return test(s)
  end)
end

-- trimming and padding ----------------------------------------------------------------------------------------------------

for method, sides in pairs { strip = { true, true }, lstrip = { true, false }, rstrip = { false, true } } do
  def(method, "chars", 0, function(rt, s, chars)
    grow(rt, #s)
    return text.strip(rt, s, string_of(chars, true), sides[1], sides[2])
  end)
end

-- Returns the number of characters missing to a width, the fill character, and the width.
local function padding(rt, s, width, fill)
  width, fill = integer(width), fill == nil and " " or string_of(fill)
  read(rt, #s + #fill)
  if text.length(fill) ~= 1 then fail("type", "The fill character must be exactly one character long") end
  local length = text.length(s)
  if width <= length then return 0, fill, width end
  local missing = width - length
  grow(rt, #s + missing * (#fill + 0.0))
  return missing, fill, width
end

def("center", "width fillchar", 1, function(rt, s, width, fill)
  local missing
  missing, fill, width = padding(rt, s, width, fill)
  if missing == 0 then return s end
  local left = missing // 2 + (missing & width & 1) -- CPython puts the odd one on this side
  return fill:rep(left) .. s .. fill:rep(missing - left)
end)

def("ljust", "width fillchar", 1, function(rt, s, width, fill)
  local missing
  missing, fill = padding(rt, s, width, fill)
  return s .. fill:rep(missing)
end)

def("rjust", "width fillchar", 1, function(rt, s, width, fill)
  local missing
  missing, fill = padding(rt, s, width, fill)
  return fill:rep(missing) .. s
end)

def("zfill", "width", 1, function(rt, s, width)
  local missing = padding(rt, s, width)
  local sign = s:match("^[+-]?")
  return sign .. ("0"):rep(missing) .. s:sub(#sign + 1)
end)

def("expandtabs", "tabsize", 0, function(rt, s, tabsize)
  tabsize = integer(tabsize, 8)
  walk(rt, #s)
  local _, tabs = s:gsub("\t", "")
  grow(rt, #s + tabs * (math.max(tabsize, 0) + 0.0))
  local column = 0
  return (s:gsub(text.CHARACTER, function(c)
    if c == "\n" or c == "\r" then
      column = 0
    elseif c == "\t" then
      local width = tabsize > 0 and tabsize - column % tabsize or 0
      column = column + width
      return (" "):rep(width)
    else
      column = column + 1
    end
    return nil
  end))
end, true)

def("removeprefix", "prefix", 1, function(rt, s, prefix)
  prefix = string_of(prefix)
  scan(rt, #prefix)
  grow(rt, #s)
  return s:sub(1, #prefix) == prefix and s:sub(#prefix + 1) or s
end)

def("removesuffix", "suffix", 1, function(rt, s, suffix)
  suffix = string_of(suffix)
  scan(rt, #suffix)
  grow(rt, #s)
  return suffix ~= "" and s:sub(-#suffix) == suffix and s:sub(1, -#suffix - 1) or s
end)

-- finding -----------------------------------------------------------------------------------------------------------------

-- The part of s between two optional indices, and the number of characters before it; nil when it starts past the end.
local function part(rt, s, first, last)
  if (first == nil or first == value.NONE) and (last == nil or last == value.NONE) then return s, 0 end
  read(rt, 2 * #s)
  limits.spare(rt, #s)
  local n = text.length(s)
  first = first ~= value.NONE and integer(first, 0) or 0
  last = last ~= value.NONE and integer(last, n) or n
  if first < 0 then first = math.max(first + n, 0) end
  if last < 0 then last = math.max(last + n, 0) end
  last = math.min(last, n)
  if first > last then return nil end
  return text.slice(s, first, last), first
end

local function find(rt, s, sub, first, last)
  sub = string_of(sub)
  local within, offset = part(rt, s, first, last)
  if not within then return -1 end
  limits.search(rt, #within, #sub)
  read(rt, #within)
  local byte = within:find(sub, 1, true)
  return byte and offset + text.index_of(within, byte) or -1
end

-- Plain search in the reversed bytes is exact: valid UTF-8 matches only at character boundaries.
local function rfind(rt, s, sub, first, last)
  sub = string_of(sub)
  local within, offset = part(rt, s, first, last)
  if not within then return -1 end
  limits.search(rt, #within, #sub)
  read(rt, 2 * #within + #sub)
  limits.spare(rt, #within + #sub)
  local byte = within:reverse():find(sub:reverse(), 1, true)
  return byte and offset + text.index_of(within, #within - byte - #sub + 2) or -1
end

local function must(search)
  return function(...)
    local i = search(...)
    if i < 0 then fail("value", "substring not found") end
    return i
  end
end

def("find", "sub start end", 1, find)
def("rfind", "sub start end", 1, rfind)
def("index", "sub start end", 1, must(find))
def("rindex", "sub start end", 1, must(rfind))

-- The number of occurrences of sub that do not overlap, at most `most`.
local function count(rt, s, sub, most)
  if sub == "" then
    read(rt, #s)
    return text.length(s) + 1
  end
  limits.search(rt, #s, #sub)
  local n, at = 0, 1
  while n < most do
    local from, to = s:find(sub, at, true)
    if not from then break end
    tick(rt)
    n, at = n + 1, to + 1
  end
  return n
end

def("count", "sub start end", 1, function(rt, s, sub, first, last)
  sub = string_of(sub)
  local within = part(rt, s, first, last)
  return within and count(rt, within, sub, math.maxinteger) or 0
end)

local function affix(name, test)
  def(name, "prefix start end", 1, function(rt, s, wanted, first, last)
    local within = part(rt, s, first, last)
    local choices = value.kind(wanted) == "tuple" and wanted or { wanted }
    for _, choice in ipairs(choices) do
      if not value.as_string(choice) then
        if value.kind(choice) == "undefined" then value.use_undefined(choice) end
        fail("type", "%s first arg must be str or a tuple of str, not %s", name, value.typename(choice))
      end
      tick(rt, 1 + (math.min(#value.as_string(choice), within and #within or 0) >> 8))
      if within and test(within, value.as_string(choice)) then return true end
    end
    return false
  end)
end

affix("startswith", function(s, prefix) return #prefix <= #s and s:sub(1, #prefix) == prefix end)
affix("endswith", function(s, suffix) return suffix == "" or #suffix <= #s and s:sub(-#suffix) == suffix end)

-- taking apart and putting together ---------------------------------------------------------------------------------------

-- The pieces of s between separators that do not overlap, at most `most` cuts. Pays for each piece.
local function pieces(rt, s, sep, most)
  if sep == "" then fail("value", "empty separator") end
  limits.search(rt, #s, #sep)
  local out, at, n = {}, 1, 0
  while n < most do
    local from, to = s:find(sep, at, true)
    if not from then break end
    n = n + 1
    tick(rt)
    limits.make(rt, from - at + limits.OBJECT)
    out[n], at = s:sub(at, from - 1), to + 1
  end
  grow(rt, #s - at + 1)
  out[n + 1] = s:sub(at)
  return out
end

def("split", "sep maxsplit", 0, function(rt, s, sep, most)
  sep, most = string_of(sep, true), integer(most, -1)
  if not sep then
    walk(rt, #s)
    return value.new_list(rt, text.words(rt, s, most >= 0 and most or nil))
  end
  return value.new_list(rt, pieces(rt, s, sep, most >= 0 and most or math.maxinteger))
end, true)

-- "aaa".rsplit("aa") cuts at the end: the pieces of the reversed string, each reversed.
local function pieces_from_right(rt, s, sep, most)
  read(rt, 2 * #s)
  limits.spare(rt, 2 * #s + #sep)
  local backwards = pieces(rt, s:reverse(), sep:reverse(), most)
  local out, n = {}, #backwards
  for i = n, 1, -1 do out[#out + 1] = backwards[i]:reverse() end
  return out
end

def("rsplit", "sep maxsplit", 0, function(rt, s, sep, most)
  sep, most = string_of(sep, true), integer(most, -1)
  if not sep then
    walk(rt, #s)
    return value.new_list(rt, text.words_from_right(rt, s, most >= 0 and most or nil))
  end
  return value.new_list(rt, pieces_from_right(rt, s, sep, most >= 0 and most or math.maxinteger))
end, true)

def("splitlines", "keepends", 0, function(rt, s, keep)
  walk(rt, #s)
  return value.new_list(rt, text.lines(rt, s, keep ~= nil and value.truth(keep)))
end, true)

def("partition", "sep", 1, function(rt, s, sep)
  sep = string_of(sep)
  if sep == "" then fail("value", "empty separator") end
  limits.search(rt, #s, #sep)
  local from, to = s:find(sep, 1, true)
  if not from then return value.new_tuple(rt, { s, "", "" }) end
  grow(rt, #s)
  return value.new_tuple(rt, { s:sub(1, from - 1), sep, s:sub(to + 1) })
end)

def("rpartition", "sep", 1, function(rt, s, sep)
  sep = string_of(sep)
  local parts = pieces_from_right(rt, s, sep, 1)
  if #parts == 1 then return value.new_tuple(rt, { "", "", s }) end
  return value.new_tuple(rt, { parts[1], sep, parts[2] })
end)

def("join", "iterable", 1, function(rt, sep, iterable)
  local items = value.collect(rt, iterable)
  local parts, size = {}, 0
  tick(rt, 1 + (#items >> 1))
  limits.spare(rt, #items * limits.ITEM)
  for i, item in ipairs(items) do
    local s = value.as_string(item)
    if not s then fail("type", "sequence item %d: expected str instance, %s found", i - 1, value.typename(item)) end
    parts[i], size = s, size + #s + (i > 1 and #sep or 0)
  end
  grow(rt, size)
  return table.concat(parts, sep)
end)

local function as_pattern(s)
  return (s:gsub("%W", "%%%0"))
end

local function as_replacement(s)
  return (s:gsub("%%", "%%%%"))
end

-- The longest string to search for that becomes a Lua pattern. Pattern matching compares byte by byte.
local LONGEST_PATTERN = 8

-- s with the first n occurrences of old replaced. s has at least n of them, and the result is already paid for.
local function replace_occurrences(rt, s, old, new, n)
  if #old <= LONGEST_PATTERN then
    read(rt, 8 * #s)
    limits.spare(rt, 2 * #new)
    return (s:gsub(as_pattern(old), as_replacement(new), n))
  end
  limits.search(rt, #s, #old)
  tick(rt, n)
  limits.spare(rt, #s + n * (limits.OBJECT + 2 * limits.ITEM))
  local out, at = {}, 1
  for _ = 1, n do
    local from, to = s:find(old, at, true)
    out[#out + 1] = s:sub(at, from - 1)
    out[#out + 1], at = new, to + 1
  end
  out[#out + 1] = s:sub(at)
  return table.concat(out)
end

--- s.replace(old, new, most), a negative number for all occurrences; also the filter.
function M.replace_text(rt, s, old, new, most)
  if most < 0 then most = math.maxinteger end
  local n = math.min(count(rt, s, old, most), most)
  if n == 0 then return s end
  grow(rt, #s + n * (#new - #old + 0.0))
  if old ~= "" then return replace_occurrences(rt, s, old, new, n) end
  walk(rt, #s)
  limits.spare(rt, 2 * #new)
  local out, made = s:gsub(text.CHARACTER, as_replacement(new) .. "%0", n)
  return made < n and out .. new or out
end

def("replace", "old new count", 2, function(rt, s, old, new, most)
  return M.replace_text(rt, s, string_of(old), string_of(new), integer(most, -1))
end)

-- formatting --------------------------------------------------------------------------------------------------------------

M.format = call.raw("format", function(rt, s, args, n, kwargs)
  return format.braces(rt, s, args, n, kwargs)
end)

def("format_map", "mapping", 1, function(rt, s, mapping)
  if value.kind(mapping) ~= "dict" then fail("type", "format_map() expects a mapping") end
  return format.braces(rt, s, {}, 0, mapping)
end)

for _, name in ipairs { "encode", "translate", "maketrans" } do
  M[name] = call.raw(name, function()
    fail("unsupported", "str.%s() is not supported", name)
  end)
end

return M
