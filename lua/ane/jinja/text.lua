--- Python strings: sequences of code points, stored as UTF-8.
-- Needs ane.jinja.limits and unicode. Every function takes valid UTF-8; `compile` and the conversion of variables check it.
-- Indices start at 0. Functions that take the budget `rt` pay for each piece they make; rt may be nil. The others leave it
-- to the caller to pay for the length of the string.
-- Usage: `text.length("né") --> 2`, `text.slice("né", 1, 2) --> "é"`

local limits = require "ane.jinja.limits"
local unicode = require "ane.jinja.unicode"

local M = {}

local CHARACTER = "[\0-\127\192-\255][\128-\191]*"
M.CHARACTER = CHARACTER

--- The characters of str.isspace(), as strings.
M.SPACE = {}
for _, code in ipairs {
  9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
  0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A,
} do
  M.SPACE[utf8.char(code)] = true
end
local SPACE = M.SPACE

--- Their ASCII part, as the inside of a Lua pattern set.
M.ASCII_SPACE = "\t\n\v\f\r\28\29\30\31 "
local NOT_SPACE = "[^" .. M.ASCII_SPACE .. "]"

local function is_ascii(s)
  return utf8.len(s) == #s
end
M.is_ascii = is_ascii

--- What is wrong with a text that must be UTF-8; nil: nothing.
-- @param name of the text: an option, a file, the path of a value
function M.fault(s, name)
  local _, bad = utf8.len(s)
  return bad and ("%s must be UTF-8, but has an invalid byte at %d"):format(name, bad) or nil
end

--- Number of code points.
function M.length(s)
  return utf8.len(s) or #s
end

--- All characters, as a table of strings: 16 to 32 bytes per character.
function M.characters(s)
  local t, n = {}, 0
  for c in s:gmatch(CHARACTER) do
    n = n + 1
    t[n] = c
  end
  return t
end

--- The characters from first up to, not including, last; both in 0..length.
function M.slice(s, first, last)
  if last <= first then return "" end
  if is_ascii(s) then return s:sub(first + 1, last) end
  local from = utf8.offset(s, first + 1)
  local to = utf8.offset(s, last - first + 1, from)
  return s:sub(from, to - 1)
end

--- Index of the character at a byte position.
function M.index_of(s, byte)
  return utf8.len(s, 1, byte - 1) or byte - 1
end

-- The first byte of the character that ends at byte i.
local function start_of(s, i)
  local byte = s:byte(i)
  while i > 1 and byte >= 128 and byte < 192 do
    i = i - 1
    byte = s:byte(i)
  end
  return i
end

local ASCII_SPACE_BYTE = { [9] = true, [10] = true, [11] = true, [12] = true, [13] = true, [28] = true, [29] = true, [30] = true,
  [31] = true, [32] = true }

local function pay(rt)
  if rt then limits.tick(rt) end
end

local function strip_space(rt, s, left, right)
  local first, last = 1, #s
  if left then
    while true do
      local at = s:find(NOT_SPACE, first)
      if rt then limits.read(rt, 2 * ((at or #s) - first)) end
      if not at then return "" end
      local c = s:match("^" .. CHARACTER, at)
      first = at
      if #c == 1 or not SPACE[c] then break end
      first = at + #c
      pay(rt)
    end
  end
  if right then
    while last >= first do
      local from = last
      if not ASCII_SPACE_BYTE[s:byte(last)] then
        from = start_of(s, last)
        if from == last or not SPACE[s:sub(from, last)] then break end
      end
      last = from - 1
      pay(rt)
    end
  end
  return s:sub(first, last)
end

--- strip, lstrip or rstrip of the characters in chars, or of white space when chars is nil.
function M.strip(rt, s, chars, left, right)
  if not chars then return strip_space(rt, s, left, right) end
  local set = {}
  for c in chars:gmatch(CHARACTER) do
    pay(rt)
    set[c] = true
  end
  local first, last = 1, #s
  while left and first <= last do
    local c = s:match("^" .. CHARACTER, first)
    if not set[c] then break end
    first = first + #c
    pay(rt)
  end
  while right and last >= first do
    local from = start_of(s, last)
    if not set[s:sub(from, last)] then break end
    last = from - 1
    pay(rt)
  end
  return s:sub(first, last)
end

local function upper_char(c)
  return unicode.upper[utf8.codepoint(c)]
end

local function lower_char(c)
  return unicode.lower[utf8.codepoint(c)]
end

local BEYOND_ASCII = "[\192-\255][\128-\191]*"

-- string.upper and string.lower depend on the C locale of the host, so the ASCII letters have tables.
local UPPER, LOWER = {}, {}
for code = 97, 122 do
  UPPER[string.char(code)] = string.char(code - 32)
  LOWER[string.char(code - 32)] = string.char(code)
end

-- One character in upper or lower case. A capital sigma on its own gets the form of the middle of a word.
local function upper_one(c)
  if #c == 1 then return UPPER[c] or c end
  return upper_char(c) or c
end
M.upper_one = upper_one

local function lower_one(c)
  if #c == 1 then return LOWER[c] or c end
  return lower_char(c) or c
end
M.lower_one = lower_one

function M.upper(s)
  s = s:gsub("[a-z]", UPPER)
  if is_ascii(s) then return s end
  return (s:gsub(BEYOND_ASCII, upper_char))
end

local function is_cased(c)
  if #c == 1 then return (UPPER[c] or LOWER[c]) ~= nil end
  local code = utf8.codepoint(c)
  return (unicode.upper[code] or unicode.lower[code]) ~= nil
end

-- A capital sigma at the end of a word has its own lower case (Unicode 3.13, Final_Sigma).
local function lower_sigma(s)
  return (s:gsub("()Σ()", function(at, after)
    local before = at > 1 and s:sub(start_of(s, at - 1), at - 1)
    local following = s:match("^" .. CHARACTER, after)
    local final = before and is_cased(before) and not (following and is_cased(following))
    return final and "ς" or "σ"
  end))
end

function M.lower(s)
  if s:find("Σ", 1, true) then s = lower_sigma(s) end
  s = s:gsub("[A-Z]", LOWER)
  if is_ascii(s) then return s end
  return (s:gsub(BEYOND_ASCII, lower_char))
end

--- str.casefold(): lower case plus the foldings of ß and ς. Other full foldings are not done.
function M.casefold(s)
  return (M.lower(s):gsub("ß", "ss"):gsub("ς", "σ"))
end

--- The title case of one character.
function M.title_char(c)
  if #c == 1 then return UPPER[c] or c end
  return unicode.title[utf8.codepoint(c)] or upper_one(c)
end

--- str.capitalize()
function M.capitalize(s)
  local first = s:match("^" .. CHARACTER)
  if not first then return s end
  return M.title_char(first) .. M.lower(s:sub(#first + 1))
end

--- str.title(): each run of cased letters is a word.
function M.title(s)
  local previous = false
  return (s:gsub(CHARACTER, function(c)
    local out = previous and lower_one(c) or M.title_char(c)
    previous = is_cased(c)
    return out
  end))
end

--- str.swapcase()
function M.swapcase(s)
  return (s:gsub(CHARACTER, function(c)
    local upper = upper_one(c)
    return upper ~= c and upper or lower_one(c)
  end))
end

-- Does a string have a cased character, and does change() leave all of them alone?
local function has_case(s, change)
  local cased = false
  for c in s:gmatch(CHARACTER) do
    if is_cased(c) then
      if change(c) ~= c then return false end
      cased = true
    end
  end
  return cased
end

function M.is_lower(s) return has_case(s, lower_one) end
function M.is_upper(s) return has_case(s, upper_one) end

--- str.istitle(): each word starts with its only capital.
function M.is_title(s)
  local previous, cased = false, false
  for c in s:gmatch(CHARACTER) do
    if is_cased(c) then
      local want = previous and lower_one(c) or M.title_char(c)
      if c ~= want then return false end
      previous, cased = true, true
    else
      previous = false
    end
  end
  return cased
end

--- One test per character class: `text.class.alpha(c)`.
M.class = {
  space = function(c) return SPACE[c] == true end,
  alpha = function(c)
    if #c == 1 then return c:find("^[A-Za-z]") ~= nil end
    return unicode.alpha[utf8.codepoint(c)] == true
  end,
  decimal = function(c)
    if #c == 1 then return c:find("^[0-9]") ~= nil end
    return unicode.decimal[utf8.codepoint(c)] == true
  end,
  digit = function(c)
    return M.class.decimal(c) or #c > 1 and unicode.digit[utf8.codepoint(c)] == true
  end,
  numeric = function(c)
    return M.class.digit(c) or #c > 1 and unicode.numeric[utf8.codepoint(c)] == true
  end,
  alnum = function(c)
    return M.class.alpha(c) or M.class.numeric(c)
  end,
  word = function(c) -- \w of Python's re
    return c == "_" or M.class.alnum(c)
  end,
  printable = function(c)
    if #c == 1 then return c:find("^[ -~]") ~= nil end
    return not unicode.unprintable[utf8.codepoint(c)]
  end,
}

--- Returns whether a string is not empty and every character passes the test.
function M.every(s, test)
  for c in s:gmatch(CHARACTER) do
    if not test(c) then return false end
  end
  return s ~= ""
end

local LINE_END = {
  ["\n"] = true, ["\r"] = true, ["\v"] = true, ["\f"] = true, ["\28"] = true, ["\29"] = true, ["\30"] = true,
  ["\u{85}"] = true, ["\u{2028}"] = true, ["\u{2029}"] = true,
}

local function put(rt, out, s)
  if rt then
    limits.tick(rt)
    limits.make(rt, #s + limits.OBJECT)
  end
  out[#out + 1] = s
end

--- str.splitlines(), a table of strings.
function M.lines(rt, s, keep_ends)
  local out, from, i = {}, 1, 1
  while true do
    i = s:find("[\n\r\v\f\28\29\30\194\226]", i)
    if not i then break end
    local stop = s:match("^" .. CHARACTER, i)
    if stop == "\r" and s:sub(i + 1, i + 1) == "\n" then stop = "\r\n" end
    local after = i + #stop
    if LINE_END[stop] or stop == "\r\n" then
      put(rt, out, s:sub(from, (keep_ends and after or i) - 1))
      from = after
    end
    i = after
  end
  if from <= #s then put(rt, out, s:sub(from)) end
  return out
end

local SPACE_CANDIDATE = "[" .. M.ASCII_SPACE .. "\194\225\226\227]" -- white space, or the first byte of some

-- The next run of white space at or after a byte position: its first byte, and the byte after it.
local function next_gap(s, position)
  local first = position
  while true do
    first = s:find(SPACE_CANDIDATE, first)
    if not first then return #s + 1, #s + 1 end
    local c = s:match("^" .. CHARACTER, first)
    if SPACE[c] then break end
    first = first + #c
  end
  local after = first
  while after <= #s do
    local c = s:match("^" .. CHARACTER, after)
    if not SPACE[c] then break end
    after = after + #c
  end
  return first, after
end

--- str.split() without a separator: words between white space, at most `most` cuts (nil: all).
function M.words(rt, s, most)
  local out = {}
  s = strip_space(rt, s, true, false)
  local position = 1
  while position <= #s do
    if most and #out >= most then
      put(rt, out, s:sub(position))
      break
    end
    local gap, after = next_gap(s, position)
    put(rt, out, s:sub(position, gap - 1))
    position = after
  end
  return out
end

--- str.rsplit() without a separator.
function M.words_from_right(rt, s, most)
  local words, starts, position = M.words(rt, s), {}, 1
  if not most or #words <= most + 1 then
    return words
  end
  if rt then limits.table(rt, #words) end
  for i, word in ipairs(words) do
    local from, to = s:find(word, position, true)
    starts[i], position = from, to + 1
  end
  local first = #words - most + 1
  local out = { strip_space(rt, s:sub(1, starts[first] - 1), false, true) }
  for i = first, #words do out[#out + 1] = words[i] end
  return out
end

local NAMED_ESCAPE = { ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape_unprintable(c)
  if M.class.printable(c) then return nil end
  local code = utf8.codepoint(c)
  if code < 0x100 then return ("\\x%02x"):format(code) end
  if code < 0x10000 then return ("\\u%04x"):format(code) end
  return ("\\U%08x"):format(code)
end

--- repr() of a string.
function M.quote(s)
  local mark = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  s = s:gsub("[\\\n\r\t]", NAMED_ESCAPE)
  if mark == "'" then s = s:gsub("'", "\\'") end
  s = s:gsub("[\0-\31\127]", escape_unprintable)
  if not is_ascii(s) then s = s:gsub(BEYOND_ASCII, escape_unprintable) end
  return mark .. s .. mark
end

local HTML = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }

--- markupsafe.escape()
function M.escape(s)
  return (s:gsub("[&<>'\"]", HTML))
end

--- Order of two strings by code point: -1, 0 or 1. Lua's own `<` depends on the C locale of the host.
function M.compare(a, b)
  if a == b then return 0 end
  local n = math.min(#a, #b)
  local i = 1
  while i <= n do
    local j = math.min(i + 63, n)
    if a:sub(i, j) ~= b:sub(i, j) then break end
    i = j + 1
  end
  while i <= n do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y and -1 or 1 end
    i = i + 1
  end
  return #a < #b and -1 or 1
end

return M
