--- Arguments of calls, in the notations of model families and as JSON. Needs ane.core and lpeg.
-- "python": name=value, as in a call of Python; the text ends before the closing bracket. "gemma": {name:value}, with texts between
-- the form's `quote`. Both may contain values of JSON.
-- Usage: `literals.to_json('city="Rom", days=[1, 2]', {arguments = "python"}) --> {"city": "Rom", "days": [1, 2]}`

local core = require "ane.core"
local lpeg = require "lpeg"

local M = {}

-- Arguments keep their numbers as they are written.
local EXACT = { exact = true }

local MAX_DEPTH = 512 -- as core.json_decode

-- The last byte of the quoted text that begins at `at`; nil if it is incomplete.
local function text_end(text, at, form)
  if form.quote and text:sub(at, at + #form.quote - 1) == form.quote then
    local _, stop = text:find(form.quote, at + #form.quote, true)
    return stop
  end
  local mark = text:sub(at, at)
  local i = at + 1
  while i <= #text do
    local c = text:sub(i, i)
    if c == "\\" then i = i + 1 elseif c == mark then return i end
    i = i + 1
  end
end

local function is_quote(text, at, form)
  local c = text:sub(at, at)
  return c == '"' or c == "'" and form.arguments == "python" or form.quote and text:sub(at, at + #form.quote - 1) == form.quote
end

-- ---- To JSON -------------------------------------------------------------------------------------------------------------

local WORDS = { True = "true", False = "false", None = "null", ["true"] = "true", ["false"] = "false", null = "null" }

local ESCAPES = {
  n = "\n", t = "\t", r = "\r", b = "\b", f = "\f", a = "\a", v = "\v", ["\\"] = "\\", ["'"] = "'", ['"'] = '"', ["\n"] = "",
}

-- The character of a code point; U+FFFD for half of a surrogate pair and beyond Unicode, as texts of calls must be UTF-8.
local function character(digits)
  local code = tonumber(digits, 16)
  local is_valid = code < 0xd800 or (code > 0xdfff and code < 0x110000)
  return utf8.char(is_valid and code or 0xfffd)
end

local function of_pair(high, low)
  return utf8.char(0x10000 + ((tonumber(high, 16) & 0x3ff) << 10 | tonumber(low, 16) & 0x3ff))
end

-- The text that the inside of a quoted text stands for, by the rules of string literals (Python Language Reference, 2.4.1), and with the
-- surrogate pairs of JSON (RFC 8259, 7). A backslash before another character stands for itself.
local unescape
do
  local hex = lpeg.R("09", "af", "AF")
  local high, low = lpeg.C(lpeg.S "dD" * lpeg.S "89abAB" * hex * hex), lpeg.C(lpeg.S "dD" * lpeg.R("cf", "CF") * hex * hex)
  local code = lpeg.P "\\u" * lpeg.C(hex * hex * hex * hex) + lpeg.P "\\x" * lpeg.C(hex * hex)
    + lpeg.P "\\U" * lpeg.C(hex * hex * hex * hex * hex * hex * hex * hex)
  local digit = lpeg.R "07"
  local octal = lpeg.P "\\" * lpeg.C(digit * (digit * digit ^ -1) ^ -1) / function(digits) return utf8.char(tonumber(digits, 8)) end
  local letter = lpeg.P "\\" * lpeg.C(1) / ESCAPES -- no capture where there is none: the text stays
  local text = lpeg.Cs((lpeg.P "\\u" * high * "\\u" * low / of_pair + code / character + octal + letter + 1) ^ 0)
  unescape = function(raw) return text:match(raw) end
end

local Parser = {}
Parser.__index = Parser

function Parser:blank() self.at = self.text:match("^%s*()", self.at) end

function Parser:take(word)
  self:blank()
  if self.text:sub(self.at, self.at + #word - 1) ~= word then return false end
  self.at = self.at + #word
  return true
end

function Parser:string()
  local stop = text_end(self.text, self.at, self.form)
  if not stop then return nil end
  local quote = self.form.quote
  local plain = quote and self.text:sub(self.at, self.at + #quote - 1) == quote
  local raw = plain and self.text:sub(self.at + #quote, stop - #quote) or self.text:sub(self.at + 1, stop - 1)
  local double = self.text:sub(self.at, self.at) == '"'
  local whole = self.text:sub(self.at, stop)
  self.at = stop + 1
  if plain then return core.json_encode(raw) end
  if double and core.json_decode("[" .. whole .. "]") then return whole end
  return core.json_encode(unescape(raw))
end

-- Reads values up to a closing bracket, with commas between them. A comma may follow the last one.
function Parser:list(close, item, depth)
  local out = {}
  while not self:take(close) do
    local one = item(self, depth)
    if not one then return nil end
    out[#out + 1] = one
    if not self:take "," then return self:take(close) and out or nil end
  end
  return out
end

-- The name of an argument.
local NAME = "^([^%s%c=:,(){}%[%]<>|\"']+)"

--- Returns whether an argument can have this name.
function M.can_name(name) return name:find(NAME .. "$") ~= nil end

function Parser:pair(depth)
  self:blank()
  local name
  if is_quote(self.text, self.at, self.form) then
    name = self:string()
  else
    local word, stop = self.text:match(NAME .. "()", self.at)
    if not word then return nil end
    name, self.at = core.json_encode(word), stop
  end
  if not name or not (self:take ":" or self:take "=") then return nil end
  local value = self:value(depth)
  return value and name .. ": " .. value
end

function Parser:value(depth)
  depth = (depth or 0) + 1
  if depth > MAX_DEPTH then return nil end
  self:blank()
  if is_quote(self.text, self.at, self.form) then return self:string() end
  if self:take "[" then
    local list = self:list("]", Parser.value, depth)
    return list and "[" .. table.concat(list, ", ") .. "]"
  end
  if self:take "{" then
    local list = self:list("}", Parser.pair, depth)
    return list and "{" .. table.concat(list, ", ") .. "}"
  end
  local word, stop = self.text:match("^([%w_.+-]+)()", self.at)
  if not word then return nil end
  self.at = stop
  if WORDS[word] then return WORDS[word] end
  return core.json_decode("[" .. word .. "]", EXACT) and word or nil
end

--- Converts arguments to a JSON object, in their order.
-- @param text the arguments, as ane.tools.scan finds them
-- @return JSON text; nil if they cannot be parsed
function M.to_json(text, form)
  local parser = setmetatable({ text = text, at = 1, form = form }, Parser)
  local json
  if form.arguments == "gemma" then json = parser:value() else
    parser.text = text .. ")"
    local list = parser:list(")", Parser.pair, 0)
    json = list and "{" .. table.concat(list, ", ") .. "}"
  end
  return json and parser.at > #parser.text and json or nil
end

-- ---- From JSON -----------------------------------------------------------------------------------------------------------

local function python_value(v)
  if v == true then return "True" end
  if v == false then return "False" end
  if v == core.null then return "None" end
  return core.json_encode(v, EXACT)
end

--- Writes a call's arguments in the family's form, for turns that a template does not write itself.
-- @param arguments JSON text of an object, or a table
-- @return text; or nil, message
function M.from_json(arguments, form)
  if form.arguments == "json" then
    return type(arguments) == "string" and arguments or core.json_encode(arguments, EXACT)
  end
  local value, message = arguments, nil
  if type(arguments) == "string" then value, message = core.json_decode(arguments, EXACT) end
  local is_list = type(value) == "table" and (#value > 0 or getmetatable(value) == getmetatable(core.json_decode "[]"))
  if type(value) ~= "table" or is_list then return nil, message or "arguments must be an object" end
  local names, list = {}, {}
  for name in pairs(value) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for i, name in ipairs(names) do list[i] = name .. "=" .. python_value(value[name]) end
  return table.concat(list, ", ")
end

return M
