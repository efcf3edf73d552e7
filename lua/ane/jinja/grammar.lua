--- The tokens of a template: LPeg patterns for the inside of tags, and the white space rules for the text between tags.
-- Needs LPeg, ane.jinja.number, text and value. The tokens are three arrays of equal length: kinds, values and byte positions.
-- The kinds are data, begin_print, end_print, begin_block, end_block, name, string, number, eof, and each operator itself.
-- The rules are those of jinja2/lexer.py of Jinja 3.1 with trim_blocks, lstrip_blocks and no keep_trailing_newline.
-- Usage: `local tokens = grammar.tokens(grammar.normalise(source))`

local lpeg = require "lpeg"

local number = require "ane.jinja.number"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local P, R, S, B, C, Cc, Cp, Ct = lpeg.P, lpeg.R, lpeg.S, lpeg.B, lpeg.C, lpeg.Cc, lpeg.Cp, lpeg.Ct

local M = {}

-- Raises a syntax fault at a byte of the source.
local function stop(at, fmt, ...)
  local message = select("#", ...) > 0 and fmt:format(...) or fmt
  error({ code = "syntax", message = message, at = at }, 0)
end

local wide_space = P(false)
for c in pairs(text.SPACE) do
  if #c > 1 then wide_space = wide_space + P(c) end
end
local space = S(text.ASCII_SPACE) + wide_space
local spaces = space ^ 0

local digits = R "09" * (P "_" ^ -1 * R "09") ^ 0
local exponent = S "eE" * S "+-" ^ -1 * digits
local float = -B(P ".") * digits * (P "." * digits * exponent ^ -1 + exponent)
local integer = P "0" * S "bB" * (P "_" ^ -1 * S "01") ^ 1
  + P "0" * S "oO" * (P "_" ^ -1 * R "07") ^ 1
  + P "0" * S "xX" * (P "_" ^ -1 * R("09", "af", "AF")) ^ 1
  + R "19" * (P "_" ^ -1 * R "09") ^ 0
  + P "0" * (P "_" ^ -1 * P "0") ^ 0
local wide_char = R "\192\255" * R "\128\191" ^ 0
local name = (R("az", "AZ", "09") + P "_" + wide_char - wide_space) ^ 1
local string = P "'" * (P "\\" * 1 + (1 - S "'\\")) ^ 0 * "'" + P '"' * (P "\\" * 1 + (1 - S '"\\')) ^ 0 * '"'
local operator = P "//" + "**" + "==" + "!=" + ">=" + "<=" + S "+-/*%~><=.:|,;"

local function token(kind, pattern)
  return Cc(kind) * Cp() * C(pattern)
end

-- A pattern for the tokens up to the next bracket or the end of the tag. ending: the end of the tag; nil within brackets.
local function run(ending)
  local op = ending and operator - ending or operator
  return Ct((space + token("float", float) + token("integer", integer) + token("name", name) + token("string", string)
    + token("op", op)) ^ 0 * Cp())
end

local BLOCK_END = P "-%}" + "+%}" + "%}"
local PRINT_END = P "-}}" + "}}"
local ENDING = { block = C(BLOCK_END), print = C(PRINT_END) }
local RUN = { block = run(BLOCK_END), print = run(PRINT_END), inside = run(nil) }
local SKIP_SPACE = spaces * Cp()
local RAW_BEGIN = P "{%" * C(S "+-" ^ -1) * spaces * "raw" * spaces * (P "-%}" * spaces + "%}") * Cp()
local RAW_END = P "{%" * C(S "+-" ^ -1) * spaces * "endraw" * spaces * C(BLOCK_END) * Cp()

local SIMPLE_ESCAPE = {
  n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "",
}
local HEX_ESCAPE = { x = 2, u = 4, U = 8 }

-- A string literal without its quotes and with its escapes decoded, as by Python's unicode-escape codec. Unknown escapes stay.
local function unescape(literal, at)
  local s = literal:sub(2, -2)
  if not s:find("\\", 1, true) then return s end
  local out, from = {}, 1
  while true do
    local i = s:find("\\", from, true)
    out[#out + 1] = s:sub(from, (i or 0) - 1)
    if not i then return table.concat(out) end
    local c = s:sub(i + 1, i + 1)
    local octal, width = s:match("^[0-7][0-7]?[0-7]?", i + 1), HEX_ESCAPE[c]
    from = i + 2
    if SIMPLE_ESCAPE[c] then
      out[#out + 1] = SIMPLE_ESCAPE[c]
    elseif octal then
      out[#out + 1], from = utf8.char(tonumber(octal, 8)), i + 1 + #octal
    elseif width then
      local hex = s:match("^%x+", i + 2) or ""
      local code = #hex >= width and tonumber(hex:sub(1, width), 16)
      if not code or code > 0x10FFFF or code >= 0xD800 and code < 0xE000 then stop(at + i, "no such character: \\%s escape", c) end
      out[#out + 1], from = utf8.char(code), i + 2 + width
    elseif c == "N" then
      stop(at + i, "\\N escapes are not supported")
    else
      out[#out + 1], from = "\\", i + 1
    end
  end
end

local function int_value(literal)
  local v, big = number.parse_int(literal, literal:find("^0[bBoOxX]") and 0 or 10)
  return v or value.new_bigint(nil, big)
end

local VALUE = {
  string = unescape,
  float = function(literal) return tonumber((literal:gsub("_", ""))) + 0.0 end,
  integer = int_value,
  name = function(literal, at)
    if not text.is_ascii(literal) and not text.every(literal, text.class.word) then stop(at, "unexpected character in '%s'", literal) end
    return literal
  end,
}
local KIND = { string = "string", float = "number", integer = "number", name = "name" }

local CLOSING = { ["("] = ")", ["["] = "]", ["{"] = "}" }

local Lexer = {}
Lexer.__index = Lexer

function Lexer:put(kind, v, at)
  local n = self.n + 1
  self.n, self.kinds[n], self.values[n], self.at[n] = n, kind, v, at
end

-- Appends the tokens that a pattern matches; returns the byte after them.
function Lexer:take_run(pattern, at)
  local found = pattern:match(self.src, at)
  for i = 1, #found - 1, 3 do
    local kind, position, literal = found[i], found[i + 1], found[i + 2]
    if kind == "op" then
      self:put(literal, literal, position)
    else
      self:put(KIND[kind], VALUE[kind](literal, position), position)
    end
  end
  return found[#found]
end

-- Appends the tokens of a tag that starts at a byte. Returns the text of its end, the first byte of that text and the byte after it.
function Lexer:take_tag(mode, at)
  local src, open = self.src, {}
  while true do
    at = self:take_run(#open > 0 and RUN.inside or RUN[mode], at)
    local mark = #open == 0 and ENDING[mode]:match(src, at)
    if mark then return mark, at, at + #mark end
    local c = src:sub(at, at)
    if c == "" then return nil, at, at end
    if CLOSING[c] then
      open[#open + 1] = CLOSING[c]
    elseif c == ")" or c == "]" or c == "}" then
      local wanted = table.remove(open)
      if not wanted then stop(at, "unexpected '%s'", c) end
      if wanted ~= c then stop(at, "unexpected '%s', expected '%s'", c, wanted) end
    else
      stop(at, "unexpected char '%s'", src:match(text.CHARACTER, at) or c)
    end
    self:put(c, c, at)
    at = at + 1
  end
end

-- Appends the text before a tag. The sign "-" removes white space at its end; without a sign, a block or comment removes the white
-- space before it when its line has nothing else.
function Lexer:put_data(from, to, sign, is_print)
  local data = self.src:sub(from, to)
  if sign == "-" then
    data = text.strip(nil, data, nil, false, true)
  elseif sign ~= "+" and not is_print then
    local line = data:match("^.*\n()") or 1
    if (line > 1 or self.at_line_start) and text.every(data:sub(line), text.class.space) then data = data:sub(1, line - 1) end
  end
  if data ~= "" then self:put("data", data, from) end
end

-- The byte where the text continues after a tag: "-" skips all white space, "+" none, a plain block or comment one newline.
function Lexer:after_end(mark, at)
  local after = at
  if mark:sub(1, 1) == "-" then
    after = SKIP_SPACE:match(self.src, at)
  elseif mark:sub(1, 1) ~= "+" and mark:sub(-2) ~= "}}" and self.src:sub(at, at) == "\n" then
    after = at + 1
  end
  self.at_line_start = self.src:sub(after - 1, after - 1) == "\n"
  return after
end

function Lexer:take_comment(begin)
  local sign = self.src:match("^[+-]", begin + 2) or ""
  local inside = begin + 2 + #sign
  local close = self.src:find("#}", inside, true)
  if not close then stop(begin, "Missing end of comment tag") end
  local mark = close > inside and self.src:match("^[+-]", close - 1) or ""
  return sign, mark .. "#}", close + 2
end

-- Appends the text between raw and endraw.
function Lexer:take_raw(begin, inside)
  self.at_line_start = self.src:sub(inside - 1, inside - 1) == "\n"
  local at = inside
  while true do
    at = self.src:find("{%", at, true)
    if not at then stop(begin, "Missing end of raw directive") end
    local sign, mark, after = RAW_END:match(self.src, at)
    if sign then
      self:put_data(inside, at - 1, sign, false)
      return self:after_end(mark, after)
    end
    at = at + 2
  end
end

-- Appends the text before a "{" and the tokens of the tag that begins there; returns the byte at which the text continues.
function Lexer:take_markup(from, begin)
  local src = self.src
  local c = src:sub(begin + 1, begin + 1)
  if c == "#" then
    local sign, mark, after = self:take_comment(begin)
    self:put_data(from, begin - 1, sign, false)
    return self:after_end(mark, after)
  end
  local raw_sign, inside = RAW_BEGIN:match(src, begin)
  if raw_sign then
    self:put_data(from, begin - 1, raw_sign, false)
    return self:take_raw(begin, inside)
  end
  local mode = c == "%" and "block" or "print"
  local sign = src:match("^[+-]", begin + 2) or ""
  self:put_data(from, begin - 1, sign, mode == "print")
  self:put("begin_" .. mode, nil, begin)
  local mark, at, after = self:take_tag(mode, begin + 2 + #sign)
  if not mark then return nil end
  self:put("end_" .. mode, nil, at)
  return self:after_end(mark, after)
end

--- A source with "\n" as line ends and without the last one.
function M.normalise(source)
  if source:find("\r", 1, true) then source = source:gsub("\r\n?", "\n") end
  if source:sub(-1) == "\n" then source = source:sub(1, -2) end
  return source
end

--- All tokens of a normalised source: { n, kinds, values, at }. Raises syntax faults with the byte in `at`.
function M.tokens(src)
  local lexer = setmetatable({ src = src, n = 0, kinds = {}, values = {}, at = {}, at_line_start = true }, Lexer)
  local from = 1
  while from do
    local begin = src:find("{[{%%#]", from)
    if not begin then
      if from <= #src then lexer:put("data", src:sub(from), from) end
      break
    end
    from = lexer:take_markup(from, begin)
  end
  lexer:put("eof", nil, #src + 1)
  return lexer
end

--- The line and column of a byte of a source, both from 1; columns count characters.
function M.position(src, at)
  local line, start = 1, 1
  while true do
    local newline = src:find("\n", start, true)
    if not newline or newline >= at then break end
    line, start = line + 1, newline + 1
  end
  return line, (utf8.len(src, start, math.min(at, #src + 1) - 1) or at - start) + 1
end

M.fail = stop

--- Raises a fault for a part of jinja2 that this engine leaves out.
function M.unsupported(at, fmt, ...)
  error({ code = "unsupported", message = fmt:format(...), at = at }, 0)
end

return M
