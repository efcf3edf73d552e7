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
-- @param close the bracket that ends the arguments and is not part of them; nil: they begin with a bracket, and end with it
local function brackets(form, quotes, close)
  local special = "[()%[%]{}" .. quotes .. (form.quote and form.quote:sub(1, 1) or "") .. "]"
  return setmetatable({ open = { close }, outer = close ~= nil, quote = form.quote, quotes = quotes, special = special }, Brackets)
end

-- Reads the inside of a quoted text. Returns the position after it, or after what is known of it.
local function inside(self, text, at)
  if self.mark == self.quote then
    local first, last = text:find(self.mark, at, true)
    if first then
      self.mark = nil
      return last + 1
    end
    local _, _, held = marks.find(text:sub(math.max(at, #text - #self.mark + 2)), { self.mark })
    return #text - held + 1, true
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

-- Handles a bracket or the beginning of a quoted text. Returns the position after it; true: the arguments end there; or nil: it may be
-- the beginning of the form's quotation mark.
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
  end
  return at + 1
end

function Brackets:take(text, at)
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
      if done then return stop, true end
    end
    at = stop
  end
  return at
end

-- ---- JSON ----------------------------------------------------------------------------------------------------------------

local function json() return brackets({}, '"') end

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
  local first, last = text:find(mark, at, true)
  if first then
    self.parts[#self.parts + 1] = text:sub(at, first - 1)
    local whole = table.concat(self.parts)
    self.parts = {}
    return last + 1, whole
  end
  local _, _, held = marks.find(text:sub(math.max(at, #text - #mark + 2)), { mark })
  self.parts[#self.parts + 1] = text:sub(at, #text - held)
  return #text - held + 1
end

function STATES.name(self, text, at)
  local stop, name = up_to(self, text, at, self.texts[2])
  if not name then return stop, "held" end
  self.name, self.state = name, "value"
  return stop
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
