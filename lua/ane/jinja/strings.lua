--- The methods of Python's str.
-- Needs ane.jinja.call, format, limits, text and value. Each entry of the returned table is a signature of ane.jinja.call.
-- Usage: `call.apply(rt, strings.upper, "abc", {}, 0)`

local call = require "ane.jinja.call"
local format = require "ane.jinja.format"
local limits = require "ane.jinja.limits"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local fail, tick, grow, scan, walk = limits.fail, limits.tick, limits.grow, limits.scan, limits.walk
local integer, string_of = call.integer, call.string

local M = {}

local function def(name, parameters, min, fn, keywords)
  M[name] = call.signature(name, parameters, min, fn, not keywords)
end

-- case and classes --------------------------------------------------------------------------------------------------------

for _, name in ipairs { "upper", "lower", "capitalize", "title", "swapcase", "casefold" } do
  local change = text[name]
  def(name, "", 0, function(rt, s)
    walk(rt, #s)
    grow(rt, #s)
    return change(s)
  end)
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
    scan(rt, #s)
    chars = string_of(chars, true)
    if chars then walk(rt, #chars) end
    grow(rt, #s)
    local out = text.strip(s, chars, sides[1], sides[2])
    walk(rt, #s - #out)
    return out
  end)
end

-- How much is missing to a width, and what to fill with.
local function padding(rt, s, width, fill)
  width, fill = integer(width), fill == nil and " " or string_of(fill)
  scan(rt, #s)
  if text.length(fill) ~= 1 then fail("type", "The fill character must be exactly one character long") end
  local missing = width - text.length(s)
  if missing <= 0 then return 0, fill, width end
  grow(rt, #s + missing * #fill)
  return missing, fill, width
end

def("center", "width fillchar", 1, function(rt, s, width, fill)
  local missing
  missing, fill, width = padding(rt, s, width, fill)
  if missing == 0 then return s end
  local left = missing // 2 + (missing & width & 1) -- CPython's choice of the side that gets the odd one
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
  grow(rt, #s + tabs * math.max(tabsize, 0))
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
  grow(rt, #s)
  return s:sub(1, #prefix) == prefix and s:sub(#prefix + 1) or s
end)

def("removesuffix", "suffix", 1, function(rt, s, suffix)
  suffix = string_of(suffix)
  grow(rt, #s)
  return suffix ~= "" and s:sub(-#suffix) == suffix and s:sub(1, -#suffix - 1) or s
end)

-- finding -----------------------------------------------------------------------------------------------------------------

-- The part of s between two optional indices, and how many characters stand before it; nil when it starts past the end.
local function part(rt, s, first, last)
  scan(rt, #s)
  if (first == nil or first == value.NONE) and (last == nil or last == value.NONE) then return s, 0 end
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
  local byte = within:find(sub, 1, true)
  return byte and offset + text.index_of(within, byte) or -1
end

-- Reversing bytes keeps plain search right: UTF-8 can only match at the borders of characters.
local function rfind(rt, s, sub, first, last)
  sub = string_of(sub)
  local within, offset = part(rt, s, first, last)
  if not within then return -1 end
  limits.search(rt, #within, #sub)
  grow(rt, #within)
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

local function count(rt, s, sub)
  if sub == "" then return text.length(s) + 1 end
  limits.search(rt, #s, #sub)
  local n, at = 0, 1
  while true do
    local from, to = s:find(sub, at, true)
    if not from then return n end
    n, at = n + 1, to + 1
  end
end

def("count", "sub start end", 1, function(rt, s, sub, first, last)
  sub = string_of(sub)
  local within = part(rt, s, first, last)
  return within and count(rt, within, sub) or 0
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
      tick(rt)
      if within and test(within, value.as_string(choice)) then return true end
    end
    return false
  end)
end

affix("startswith", function(s, prefix) return s:sub(1, #prefix) == prefix end)
affix("endswith", function(s, suffix) return suffix == "" or s:sub(-#suffix) == suffix end)

-- taking apart and putting together ---------------------------------------------------------------------------------------

local function list_of(rt, items)
  tick(rt, 1 + (#items >> 1))
  return value.new_list(items)
end

-- Non-overlapping pieces of s between sep.
local function pieces(rt, s, sep)
  if sep == "" then fail("value", "empty separator") end
  limits.search(rt, #s, #sep)
  scan(rt, #s)
  local out, at = {}, 1
  while true do
    local from, to = s:find(sep, at, true)
    if not from then break end
    out[#out + 1], at = s:sub(at, from - 1), to + 1
  end
  out[#out + 1] = s:sub(at)
  return out
end

def("split", "sep maxsplit", 0, function(rt, s, sep, most)
  sep, most = string_of(sep, true), integer(most, -1)
  grow(rt, #s)
  if not sep then
    walk(rt, #s)
    return list_of(rt, text.words(s, most >= 0 and most or nil))
  end
  local out = pieces(rt, s, sep)
  if most >= 0 and #out > most + 1 then
    out = table.move(out, 1, #out, 1, {})
    out[most + 1] = table.concat(out, sep, most + 1)
    for i = #out, most + 2, -1 do out[i] = nil end
  end
  return list_of(rt, out)
end, true)

-- From the right, "aaa" is cut by "aa" at its end: the pieces of the reversed string, reversed.
local function pieces_from_right(rt, s, sep, most)
  local backwards = pieces(rt, s:reverse(), sep:reverse())
  local out, n = {}, #backwards
  local cuts = math.min(most, n - 1)
  out[1] = table.concat(backwards, sep:reverse(), cuts + 1, n):reverse()
  for i = cuts, 1, -1 do out[#out + 1] = backwards[i]:reverse() end
  return out
end

def("rsplit", "sep maxsplit", 0, function(rt, s, sep, most)
  sep, most = string_of(sep, true), integer(most, -1)
  grow(rt, 2 * #s)
  if not sep then
    walk(rt, #s)
    return list_of(rt, text.words_from_right(s, most >= 0 and most or nil))
  end
  return list_of(rt, pieces_from_right(rt, s, sep, most >= 0 and most or math.maxinteger))
end, true)

def("splitlines", "keepends", 0, function(rt, s, keep)
  walk(rt, #s)
  grow(rt, #s)
  return list_of(rt, text.lines(s, keep ~= nil and value.truth(keep)))
end, true)

def("partition", "sep", 1, function(rt, s, sep)
  sep = string_of(sep)
  if sep == "" then fail("value", "empty separator") end
  limits.search(rt, #s, #sep)
  grow(rt, #s)
  local from, to = s:find(sep, 1, true)
  if not from then return value.new_tuple { s, "", "" } end
  return value.new_tuple { s:sub(1, from - 1), sep, s:sub(to + 1) }
end)

def("rpartition", "sep", 1, function(rt, s, sep)
  sep = string_of(sep)
  local parts = pieces_from_right(rt, s, sep, 1)
  grow(rt, 2 * #s)
  if #parts == 1 then return value.new_tuple { "", "", s } end
  return value.new_tuple { parts[1], sep, parts[2] }
end)

def("join", "iterable", 1, function(rt, sep, iterable)
  local items = value.collect(rt, iterable)
  local parts, size = {}, 0
  tick(rt, 1 + (#items >> 1))
  for i, item in ipairs(items) do
    local s = value.as_string(item)
    if not s then fail("type", "sequence item %d: expected str instance, %s found", i - 1, value.typename(item)) end
    parts[i], size = s, size + #s + #sep
  end
  grow(rt, size)
  return table.concat(parts, sep)
end)

--- s.replace(old, new, most); also the filter.
function M.replace_text(rt, s, old, new, most)
  if most < 0 then most = math.maxinteger end
  if old == "" then
    walk(rt, #s)
    local n = math.min(text.length(s) + 1, most)
    grow(rt, #s + n * #new)
    local out = {}
    for i, c in ipairs(text.characters(s)) do out[i] = i <= n and new .. c or c end
    if n > #out then out[#out + 1] = new end
    return table.concat(out)
  end
  local parts = pieces(rt, s, old)
  local n = math.min(#parts - 1, most)
  if n == 0 then return s end
  grow(rt, #s + n * math.max(#new - #old, 0))
  local head = table.concat(parts, new, 1, n + 1)
  if n + 1 == #parts then return head end
  return head .. old .. table.concat(parts, old, n + 2)
end

def("replace", "old new count", 2, function(rt, s, old, new, most)
  return M.replace_text(rt, s, string_of(old), string_of(new), integer(most, -1))
end)

-- formatting --------------------------------------------------------------------------------------------------------------

M.format = call.raw("format", function(rt, s, args, n, kwargs)
  scan(rt, #s)
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
