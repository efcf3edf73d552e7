--- Scanners: where the arguments of a call end, in a text that comes piece by piece. Each byte is read once, however the text is divided.
-- Needs ane.util.marks.
-- Usage: `local s = scan.of(form, tail); local stop, done = s:take(buffer, 1)`
--
-- take(text, at) reads the arguments that go on at byte `at` and returns
--   the position after what it has read: the next call gets the text from there on, with what follows it
--   true: the arguments end there; false: these are not arguments; nil: more text is needed

local marks = require "ane.util.marks"

local M = {}

-- Returns whether a text has `word` at a position; nil if the text ends before that is known.
local function has(text, at, word)
  local part = text:sub(at, at + #word - 1)
  if part == word then return true end
  if #part < #word and word:sub(1, #part) == part then return nil end
  return false
end

-- ---- Brackets and quotation marks ----------------------------------------------------------------------------------------

local CLOSING = { ["("] = ")", ["["] = "]", ["{"] = "}" }

local Brackets = {}
Brackets.__index = Brackets

-- A scanner of values between brackets.
-- @param marked list of texts between which quoted text stands as it is
-- @param quotes set of quotation marks, in which a backslash escapes the next byte
-- @param close the bracket that ends the arguments and is not part of them; nil: they are an object between braces
local function brackets(form, quotes, close)
  local special = "[()%[%]{}" .. quotes .. (form.quote and form.quote:sub(1, 1) or "") .. "]"
  return setmetatable({ open = { close }, outer = close ~= nil, quote = form.quote, quotes = quotes, special = special }, Brackets)
end

-- Reads the inside of a quoted text. Returns the position after it, or after what is known of it.
local function inside(self, text, at)
  if self.mark == self.quote then
    local first, mark, held = marks.find(text, { self.mark }, at)
    if not first then return #text - held + 1, true end
    self.mark = nil
    return first + #mark
  end
  if self.escaped then
    self.escaped = false
    return at + 1
  end
  local found = text:find('[\\' .. self.mark .. ']', at)
  if not found then return #text + 1 end
  if text:sub(found, found) == "\\" then self.escaped = true else self.mark = nil end
  return found + 1
end

-- Handles a bracket or the beginning of a quoted text. Returns the position after it; true: the arguments end there, false: the bracket
-- closes none; or nil: it may be the beginning of the form's quotation mark.
local function special(self, text, at)
  local quoted = self.quote and has(text, at, self.quote)
  local c = text:sub(at, at)
  if quoted then
    self.mark = self.quote
    return at + #self.quote
  elseif quoted == nil and self.quote then
    return nil
  elseif self.quotes:find(c, 1, true) then
    self.mark = c
  elseif CLOSING[c] then
    self.open[#self.open + 1] = CLOSING[c]
  elseif c == self.open[#self.open] then
    self.open[#self.open] = nil
    if #self.open == 0 then return self.outer and at or at + 1, true end
  elseif c:find "[]})]" then
    return at, false
  end
  return at + 1
end

function Brackets:take(text, at)
  if #self.open == 0 and not self.mark then
    at = text:match("^%s*()", at)
    if at <= #text and text:sub(at, at) ~= "{" then return at, false end
  end
  while at <= #text do
    local stop, done
    if self.mark then
      stop, done = inside(self, text, at)
      if done then return stop end
    else
      at = text:find(self.special, at) or #text + 1
      if at > #text then break end
      stop, done = special(self, text, at)
      if not stop then return at end
      if done ~= nil then return stop, done end
    end
    at = stop
  end
  return at
end

-- ---- JSON ----------------------------------------------------------------------------------------------------------------

local Json = {}
Json.__index = Json

-- As core.json_decode.
local MAX_DEPTH = 512

-- What may come next. Each handler returns the position after what it has read; nil if that is not JSON (RFC 8259).
local JSON = {}

local BLANKS = "^[ \t\n\r]*()"

local function nest(self, close, state)
  if #self.open == MAX_DEPTH then return false end
  self.open[#self.open + 1], self.state = close, state
  return true
end

local function after_blanks(text, at)
  at = text:match(BLANKS, at)
  return at, text:sub(at, at)
end

-- Ends the innermost object or list.
local function leave(self, at)
  self.open[#self.open], self.state = nil, "after"
  self.done = #self.open == 0
  return at + 1
end

local function begin_string(self, at, after_string)
  self.state, self.after_string = "string", after_string
  return at + 1
end

function JSON.first(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "" then return at end
  return c == "{" and nest(self, "}", "key_or_end") and at + 1 or nil
end

local WORDS = { t = "rue", f = "alse", n = "ull" }

function JSON.value(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "" then return at end
  if c == '"' then return begin_string(self, at, "after") end
  if c == "{" then return nest(self, "}", "key_or_end") and at + 1 or nil end
  if c == "[" then return nest(self, "]", "value_or_end") and at + 1 or nil end
  if WORDS[c] then
    self.word, self.state = WORDS[c], "letters"
    return at + 1
  end
  self.state = c == "-" and "minus" or c == "0" and "zero" or c:find "[1-9]" and "int" or nil
  return self.state and at + 1
end

function JSON.value_or_end(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "]" then return leave(self, at) end
  if c ~= "" then self.state = "value" end
  return at
end

function JSON.key(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "" then return at end
  return c == '"' and begin_string(self, at, "colon") or nil
end

function JSON.key_or_end(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "}" then return leave(self, at) end
  if c ~= "" then self.state = "key" end
  return at
end

function JSON.colon(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "" then return at end
  self.state = "value"
  return c == ":" and at + 1 or nil
end

function JSON.after(self, text, at)
  local c
  at, c = after_blanks(text, at)
  if c == "" then return at end
  if c == self.open[#self.open] then return leave(self, at) end
  self.state = self.open[#self.open] == "}" and "key" or "value"
  return c == "," and at + 1 or nil
end

function JSON.string(self, text, at)
  local found = text:find('["\\\0-\31]', at)
  if not found then return #text + 1 end
  local c = text:sub(found, found)
  self.state = c == '"' and self.after_string or c == "\\" and "escape" or "control"
  return c:find "%c" and found or found + 1
end

-- A control character in a string.
function JSON.control() return nil end

function JSON.escape(self, text, at)
  local c = text:sub(at, at)
  self.state, self.digits = c == "u" and "hex" or "string", 4
  return c:find '["\\/bfnrtu]' and at + 1 or nil
end

function JSON.hex(self, text, at)
  self.digits = self.digits - 1
  if self.digits == 0 then self.state = "string" end
  return text:find("^%x", at) and at + 1 or nil
end

function JSON.letters(self, text, at)
  if text:sub(at, at) ~= self.word:sub(1, 1) then return nil end
  self.word = self.word:sub(2)
  if self.word == "" then self.state = "after" end
  return at + 1
end

-- Numbers: patterns of what may follow, each with the next state; ends: the number may end here.
local NUMBERS = {
  minus = { { "^0()", "zero" }, { "^[1-9]()", "int" } },
  zero = { { "^%.()", "point" }, { "^[eE]()", "e" }, ends = true },
  int = { { "^%d+()", "int" }, { "^%.()", "point" }, { "^[eE]()", "e" }, ends = true },
  point = { { "^%d+()", "fraction" } },
  fraction = { { "^%d+()", "fraction" }, { "^[eE]()", "e" }, ends = true },
  e = { { "^[+-]()", "sign" }, { "^%d+()", "exponent" } },
  sign = { { "^%d+()", "exponent" } },
  exponent = { { "^%d+()", "exponent" }, ends = true },
}

for name, row in pairs(NUMBERS) do
  JSON[name] = function(self, text, at)
    for _, step in ipairs(row) do
      local stop = text:match(step[1], at)
      if stop then
        self.state = step[2]
        return stop
      end
    end
    self.state = "after"
    return row.ends and at or nil
  end
end

function Json:take(text, at)
  while at <= #text do
    local stop = JSON[self.state](self, text, at)
    if not stop then return at, false end
    if self.done then return stop, true end
    at = stop
  end
  return at
end

-- A scanner of an object in JSON.
local function json() return setmetatable({ open = {}, state = "first" }, Json) end

-- ---- Tags ----------------------------------------------------------------------------------------------------------------

local Members = {}
Members.__index = Members

-- A scanner of arguments between tags. Its `list` has the members: {name, value}.
-- @param tail the text that ends the arguments and is not part of them
local function members(form, tail)
  return setmetatable({ list = {}, parts = {}, state = "between", texts = form.member, tail = tail }, Members)
end

-- The handlers of the states. They return the position after what they have read; true if the arguments end there, false if these are
-- none, nil to go on, "held" if more text is needed.
local STATES = {}

function STATES.between(self, text, at)
  local ends, opens = has(text, at, self.tail), has(text, at, self.texts[1])
  if ends then return at, true end
  if not opens then
    if ends == false and opens == false then return at, false end
    return at, "held"
  end
  self.state = "name"
  return at + #self.texts[1]
end

-- Reads up to a mark. Returns the position after it and what stands before it; if it is incomplete, a position and nil.
local function up_to(self, text, at, mark)
  local first, _, held = marks.find(text, { mark }, at)
  local stop = first or #text - held + 1
  self.parts[#self.parts + 1] = text:sub(at, stop - 1)
  if not first then return stop end
  local whole = table.concat(self.parts)
  self.parts = {}
  return stop + #mark, whole
end

-- Names are as ane.tools.tagged.can_name allows them.
function STATES.name(self, text, at)
  local stop = text:match("^[^<>\n]*()", at)
  self.parts[#self.parts + 1] = text:sub(at, stop - 1)
  if stop > #text then return stop end
  local ends = has(text, stop, self.texts[2])
  if ends == nil then return stop, "held" end
  self.name, self.parts, self.state = table.concat(self.parts), {}, "value"
  if not ends or self.name == "" then return stop, false end
  return stop + #self.texts[2]
end

function STATES.value(self, text, at)
  local stop, value = up_to(self, text, at, self.texts[3])
  if not value then return stop, "held" end
  self.list[#self.list + 1], self.state = { self.name, value }, "between"
  return stop
end

function Members:take(text, at)
  while at <= #text do
    local stop, done = STATES[self.state](self, text, at)
    if done == "held" then return stop end
    if done ~= nil then return stop, done end
    at = stop
  end
  return at
end

--- The scanner of a form's arguments.
-- @param form of ane.tools.forms
-- @param tail the text after the arguments, for arguments between tags
function M.of(form, tail)
  if form.arguments == "tagged" then return members(form, tail) end
  if form.arguments == "python" then return brackets(form, "\"'", ")") end
  if form.arguments == "gemma" then return brackets(form, '"') end
  return json()
end

return M
