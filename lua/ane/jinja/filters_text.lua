--- The builtin filters of jinja2 on text.
-- Needs ane.jinja.call, format, limits, pretty, strings, text, value and wrap. The module is the table of their signatures.
-- Each filter pays for the bytes it reads before it reads them, and for its result before it builds it.
-- Usage: `call.apply(rt, require("ane.jinja.filters_text").upper, "abc", {}, 0)`

local call = require "ane.jinja.call"
local format = require "ane.jinja.format"
local limits = require "ane.jinja.limits"
local pretty = require "ane.jinja.pretty"
local strings = require "ane.jinja.strings"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"
local wrap = require "ane.jinja.wrap"

local fail, tick, grow, read, walk = limits.fail, limits.tick, limits.grow, limits.read, limits.walk

local M = {}

local function def(names, parameters, min, fn)
  for name in names:gmatch("%S+") do M[name] = call.signature(name, parameters, min, fn) end
end

-- The result s of a filter on v. It is Markup if v is Markup, like soft_str() of markupsafe.
local function like(rt, v, s)
  return value.kind(v) == "markup" and value.new_markup(rt, s) or s
end

for _, name in ipairs { "upper", "lower", "capitalize" } do
  local change = text[name]
  def(name, "", 0, function(rt, v)
    return like(rt, v, strings.change_case(rt, value.str(rt, v), change))
  end)
end

-- A word of the title filter starts after white space or one of these. str.title() also starts one after an apostrophe.
local TITLE_BREAK = { ["-"] = true, ["("] = true, ["{"] = true, ["["] = true, ["<"] = true }

local function title(s)
  local fresh = true
  return (s:gsub(text.CHARACTER, function(c)
    if TITLE_BREAK[c] or text.SPACE[c] then
      fresh = true
      return nil
    end
    local out = fresh and text.upper_one(c) or text.lower_one(c)
    fresh = false
    return out
  end))
end

def("title", "", 0, function(rt, v) return strings.change_case(rt, value.str(rt, v), title) end)

def("string", "", 0, function(rt, v)
  return value.kind(v) == "markup" and v or value.str(rt, v)
end)

def("safe", "", 0, function(rt, v)
  return value.kind(v) == "markup" and v or value.new_markup(rt, value.str(rt, v))
end)

def("escape e", "", 0, function(rt, v)
  if value.kind(v) == "markup" then return v end
  return value.new_markup(rt, value.escape(rt, value.str(rt, v)))
end)

def("forceescape", "", 0, function(rt, v)
  return value.new_markup(rt, value.escape(rt, value.str(rt, v)))
end)

def("trim", "chars", 0, function(rt, v, chars)
  local s = value.str(rt, v)
  grow(rt, #s)
  return like(rt, v, text.strip(rt, s, call.string(chars, true), true, true))
end)

def("center", "width", 0, function(rt, v, width)
  return like(rt, v, call.apply(rt, strings.center, value.str(rt, v), { width == nil and 80 or width }, 1))
end)

def("replace", "old new count", 2, function(rt, v, old, new, count)
  local most = (count == nil or count == value.NONE) and -1 or call.integer(count)
  return strings.replace_text(rt, value.str(rt, v), value.str(rt, old), value.str(rt, new), most)
end)

M.format = call.raw("format", function(rt, v, args, n, kwargs)
  local named = kwargs and kwargs.keys[1] ~= nil
  if n > 0 and named then fail("type", "can't handle positional and keyword arguments at the same time") end
  return format.percent(rt, value.str(rt, v), named and kwargs or value.new_tuple(rt, table.move(args, 1, n, 1, {})))
end)

def("indent", "width first blank", 0, function(rt, v, width, first, blank)
  local s = call.string(v)
  local pad = width ~= nil and value.as_string(width)
  if not pad then
    local n = math.max(call.integer(width, 4), 0)
    grow(rt, n)
    pad = (" "):rep(n)
  end
  walk(rt, #s)
  local lines = text.lines(rt, s .. "\n")
  local size = #s + #pad * (#lines + 0.0)
  grow(rt, size)
  limits.spare(rt, size + #lines * limits.OBJECT)
  for i = 2, #lines do
    if lines[i] ~= "" or blank ~= nil and value.truth(blank) then lines[i] = pad .. lines[i] end
  end
  if first ~= nil and value.truth(first) then lines[1] = pad .. lines[1] end
  return like(rt, v, table.concat(lines, "\n"))
end)

def("truncate", "length killwords ending leeway", 0, function(rt, v, length, killwords, ending, leeway)
  length, ending = call.integer(length, 255), ending == nil and "..." or call.string(ending)
  read(rt, #ending)
  leeway = leeway ~= value.NONE and call.integer(leeway, 5) or 5
  local tail = text.length(ending)
  if length < tail then fail("value", "expected length >= %d, got %d", tail, length) end
  if leeway < 0 then fail("value", "expected leeway >= 0, got %d", leeway) end
  local size = value.length(rt, v) -- as in jinja2, a list within the limit passes too
  if size and size - leeway <= length then return v end
  local s = call.string(v)
  read(rt, 4 * #s)
  grow(rt, #s + #ending)
  local cut = text.slice(s, 0, length - tail)
  if not (killwords ~= nil and value.truth(killwords)) then cut = cut:match("^(.*) ") or cut end
  return cut .. ending
end)
M.truncate.names[3] = "end" -- `end` is a Lua keyword, so the signature above cannot name it

def("wordwrap", "width break_long_words wrapstring break_on_hyphens", 0, function(rt, v, width, long, wrapstring, hyphens)
  local s = call.string(v)
  width = call.integer(width, 79)
  if width <= 0 then fail("value", "invalid width %d (must be > 0)", width) end
  local joint = call.string(wrapstring, true) or "\n"
  walk(rt, #s)
  local out, size = {}, 0
  for _, line in ipairs(text.lines(rt, s)) do
    local wrapped = wrap.lines(rt, line, width, long == nil or value.truth(long), hyphens == nil or value.truth(hyphens))
    if #wrapped == 0 then wrapped[1] = "" end
    for _, part in ipairs(wrapped) do
      out[#out + 1], size = part, size + #part + #joint
      limits.make(rt, limits.ITEM)
      if size - #joint > rt.max_string then grow(rt, size - #joint) end -- raises
    end
  end
  grow(rt, math.max(size - #joint, 0))
  return table.concat(out, joint)
end)

def("wordcount", "", 0, function(rt, v)
  local s = value.str(rt, v)
  walk(rt, 2 * #s)
  local count, inside = 0, false
  for c in s:gmatch(text.CHARACTER) do
    local word = text.class.word(c)
    if word and not inside then count = count + 1 end
    inside = word
  end
  return count
end)

def("pprint", "", 0, function(rt, v) return pretty.format(rt, v) end)

local PERCENT = {}
for byte = 0, 255 do PERCENT[string.char(byte)] = ("%%%02X"):format(byte) end

local function url_quote(rt, v, for_query)
  local s = value.str(rt, v)
  walk(rt, #s)
  limits.spare(rt, 8 * #s)
  local out
  if for_query then
    out = s:gsub("[^A-Za-z0-9_.~ -]", PERCENT):gsub(" ", "+")
  else
    out = s:gsub("[^A-Za-z0-9_.~/-]", PERCENT)
  end
  grow(rt, #out)
  return out
end

def("urlencode", "", 0, function(rt, v)
  if value.as_string(v) or not (value.items(rt, v) or value.kind(v) == "iter") then return url_quote(rt, v, false) end
  local parts, size = {}, 0
  local is_dict = value.kind(v) == "dict"
  for item in value.iterate(rt, v) do
    tick(rt, 4)
    limits.make(rt, limits.ITEM)
    local pair = is_dict and { item, value.get(rt, v, item) } or value.collect(rt, item)
    if #pair ~= 2 then fail("value", "pairs of a key and a value expected") end
    local part = url_quote(rt, pair[1], true) .. "=" .. url_quote(rt, pair[2], true)
    parts[#parts + 1], size = part, size + #part + 1
    grow(rt, #part)
    if size > rt.max_string then grow(rt, size) end
  end
  grow(rt, size)
  return table.concat(parts, "&")
end)

local ENTITIES = { amp = "&", lt = "<", gt = ">", quot = '"', apos = "'", nbsp = "\u{a0}" }

local function entity(name)
  local code = name:match("^#(%d+)$")
  local hex = name:match("^#[xX](%x+)$")
  local n = code and #code < 8 and tonumber(code) or hex and #hex < 7 and tonumber(hex, 16)
  if n and n > 0 and n <= 0x10FFFF and not (n >= 0xD800 and n < 0xE000) then return utf8.char(n) end
  return ENTITIES[name]
end

-- s without each part from an opening mark to the next closing mark.
local function cut_out(rt, s, open, close)
  local out, at = {}, 1
  while true do
    local from = s:find(open, at, true)
    local to = from and select(2, s:find(close, from + #open, true))
    if not to then
      out[#out + 1] = s:sub(at)
      return table.concat(out)
    end
    tick(rt)
    limits.make(rt, from - at + limits.OBJECT)
    out[#out + 1], at = s:sub(at, from - 1), to + 1
  end
end

def("striptags", "", 0, function(rt, v)
  local s = value.str(rt, v)
  walk(rt, #s)
  limits.spare(rt, 4 * #s)
  s = cut_out(rt, cut_out(rt, s, "<!--", "-->"), "<", ">")
  s = table.concat(text.words(rt, s), " ")
  s = s:gsub("&(#?%w+);", entity)
  grow(rt, #s)
  return s
end)

local UNITS = { { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" }, { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" } }

def("filesizeformat", "binary", 0, function(rt, v, binary)
  local s = value.as_string(v)
  tick(rt, 4)
  if s then read(rt, #s) end
  local x = value.as_number(v) or s and tonumber(s)
  if value.kind(v) == "undefined" then value.use_undefined(v) end
  if not x then fail("type", "a number of bytes expected, got %s", value.typename(v)) end
  local is_binary = binary ~= nil and value.truth(binary)
  local base, units = is_binary and 1024 or 1000, UNITS[is_binary and 2 or 1]
  if x == 1 then return "1 Byte" end
  if x < base then return ("%.0f Bytes"):format(x < 0 and math.ceil(x) or math.floor(x)) end
  local size = x + 0.0
  for i, unit in ipairs(units) do
    size = size / base
    if size < base or i == #units then return ("%.1f %s"):format(size, unit) end
  end
end)

return M
