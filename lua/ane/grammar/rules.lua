--- Patterns that combine as in LPeg, and their conversion to rules of the core.
-- Needs ane.util.failure and list. A pattern is a tree; lower() turns a table of named ones into lists of alternatives of symbols, as
-- core.grammar takes them. Repetition is left recursion, which the core reads in constant time a step.
-- Usage: `local P, S, V = rules.P, rules.S, rules.V; local g = rules.lower({ "list", list = P "[" * V "list"^0 * P "]" })`

local failure = require "ane.util.failure"
local list_of = require "ane.util.list"

local M = {}

local Pattern = {}
Pattern.__index = Pattern
Pattern.__name = "ane.grammar.pattern"

local function node(kind, fields)
  fields.kind = kind
  return setmetatable(fields, Pattern)
end

local function is(v) return getmetatable(v) == Pattern end

--- The kinds of patterns: literal(text), regex(text, no_case), reference(name), sequence(list), choice(list), times(of, low, high).
function M.literal(text) return node("literal", { text = text }) end

function M.regex(text, no_case) return node("regex", { text = text, no_case = no_case }) end

function M.reference(name) return node("reference", { name = name }) end

function M.sequence(list) return #list == 1 and list[1] or node("sequence", { list = list }) end

function M.choice(list) return #list == 1 and list[1] or node("choice", { list = list }) end

function M.times(of, low, high)
  if low == 1 and high == 1 then return of end
  return node("times", { of = of, low = low, high = high })
end

-- The pattern that a value stands for. what: for messages; level: of errors, as error()'s.
local function pattern_of(v, what, level)
  if is(v) then return v end
  if type(v) == "string" then return M.literal(v) end
  if math.type(v) == "integer" and v >= 0 then return M.regex(("[\\s\\S]{%d}"):format(v)) end
  if type(v) == "table" then return node("grammar", { rules = v }) end
  local found = type(v) == "number" and ("%.14g"):format(v) or list_of.kind(v)
  error(("%s: must be a string, a number of characters, a pattern or a table of rules, but is %s"):format(what, found), level)
end

--- As LPeg's P: a text matches itself, n matches any n characters, a table is a grammar (its first entry names the first rule).
function M.P(v) return pattern_of(v, "P", 2) end

-- Escapes a character for use inside [...] of a pattern.
local function class_character(c) return ("\\u{%x}"):format(utf8.codepoint(c)) end

local function found_of(v) return type(v) == "string" and ("%q"):format(v) or list_of.kind(v) end

--- One character of those in a text.
function M.S(set)
  if type(set) ~= "string" or not utf8.len(set) then error("S: must be a string of UTF-8, but is " .. found_of(set), 2) end
  local parts = {}
  for _, c in utf8.codes(set) do parts[#parts + 1] = class_character(utf8.char(c)) end
  return M.regex("[" .. table.concat(parts) .. "]")
end

--- One character in the ranges "az", "09", ...
function M.R(...)
  local parts = {}
  for i, range in ipairs { ... } do
    if type(range) ~= "string" or utf8.len(range) ~= 2 then
      error(('R: range %d must be a string of two characters, such as "az", is %s'):format(i, found_of(range)), 2)
    end
    local first, last = utf8.codepoint(range, 1), utf8.codepoint(range, utf8.offset(range, 2))
    if first > last then error(("R: range %d is reversed: %q"):format(i, range), 2) end
    parts[#parts + 1] = class_character(utf8.char(first)) .. "-" .. class_character(utf8.char(last))
  end
  return M.regex("[" .. table.concat(parts) .. "]")
end

--- A reference to the rule of that name.
function M.V(name)
  if type(name) ~= "string" and math.type(name) ~= "integer" then error("V: must be the name of a rule, but is " .. found_of(name), 2) end
  return M.reference(name)
end

function Pattern.__mul(a, b) return M.sequence { pattern_of(a, "operand of *", 3), pattern_of(b, "operand of *", 3) } end

function Pattern.__add(a, b) return M.choice { pattern_of(a, "operand of +", 3), pattern_of(b, "operand of +", 3) } end

local function no_operator(name)
  return function() error(("patterns have no operator %s: they combine with * + ^"):format(name), 2) end
end
Pattern.__sub, Pattern.__unm, Pattern.__div, Pattern.__len = no_operator "-", no_operator "-", no_operator "/", no_operator "#"

--- p^n: n or more; p^-n: at most n.
function Pattern.__pow(a, n)
  if math.type(n) ~= "integer" then
    error("a pattern's exponent must be an integer, but is " .. (type(n) == "number" and ("%.14g"):format(n) or found_of(n)), 2)
  end
  if n < 0 then return M.times(M.P(a), 0, -n) end
  return M.times(M.P(a), n, nil)
end

local MOST_COPIES = 10000 -- of a part with a repetition count

-- Rules under construction: rules[i] is a list of alternatives.
local Lowering = {}
Lowering.__index = Lowering

local function new_rule(self)
  self.rules[#self.rules + 1] = {}
  return #self.rules
end

function Lowering:grammar(p, names)
  if self.within[p.rules] then error("a table of rules contains itself", 0) end
  self.within[p.rules] = true
  local symbols = self:table(p, names)
  self.within[p.rules] = nil
  return symbols
end

function Lowering:table(p, names)
  local own, scope = p.rules, setmetatable({}, { __index = names })
  local first = own[1]
  if first == nil then error("a table of rules must have the name of its first rule as entry 1", 0) end
  for name in pairs(own) do
    if name ~= 1 then scope[name] = new_rule(self) end
  end
  if type(first) ~= "string" then
    scope[1] = new_rule(self)
    self:fill(scope[1], pattern_of(first, "entry 1", 0), scope)
    first = 1
  end
  for name, body in pairs(own) do
    if name ~= 1 then self:fill(scope[name], pattern_of(body, ("rule %s"):format(name), 0), scope) end
  end
  return { scope[first] or error(("rule %s is not defined"):format(first), 0) }
end

-- of{low, high}: copies; an open end becomes a left-recursive rule.
function Lowering:times(p, names)
  self.copies = self.copies + p.low + (p.high or 0)
  local negative = (p.high or 0) < 0 -- of p^math.mininteger, whose negative is itself
  if negative or self.copies > MOST_COPIES then error("repetitions of more than " .. MOST_COPIES .. " parts", 0) end
  local symbols = {}
  local part = new_rule(self)
  self:fill(part, p.of, names)
  for _ = 1, p.low do symbols[#symbols + 1] = part end
  if not p.high then
    local more = new_rule(self)
    self.rules[more] = { {}, { more, part } }
    symbols[#symbols + 1] = more
  else
    local last
    for _ = p.low + 1, p.high do
      local maybe = new_rule(self)
      self.rules[maybe] = { {}, { part, last } }
      last = maybe
    end
    symbols[#symbols + 1] = last
  end
  return symbols
end

local MOST_DEPTH = 150 -- of patterns in patterns: each level takes a few calls

-- The symbols of a pattern, in order.
function Lowering:symbols(p, names)
  self.depth = self.depth + 1
  if self.depth > MOST_DEPTH then error(("patterns nested deeper than %d"):format(MOST_DEPTH), 0) end
  local symbols = self:symbols_of(p, names)
  self.depth = self.depth - 1
  return symbols
end

function Lowering:symbols_of(p, names)
  if p.kind == "literal" then return p.text == "" and {} or { "=" .. p.text } end
  if p.kind == "regex" then return { (p.no_case and "~" or "/") .. p.text } end
  if p.kind == "reference" then return { names[p.name] or error(("rule %s is not defined"):format(p.name), 0) } end
  if p.kind == "grammar" then return self:grammar(p, names) end
  if p.kind == "times" then return self:times(p, names) end
  if p.kind == "choice" then
    local rule = new_rule(self)
    self:fill(rule, p, names)
    return { rule }
  end
  local all = {}
  for _, part in ipairs(p.list) do
    for _, symbol in ipairs(self:symbols(part, names)) do all[#all + 1] = symbol end
  end
  return all
end

-- Makes a pattern the body of a rule.
function Lowering:fill(rule, p, names)
  local alternatives = {}
  for _, part in ipairs(p.kind == "choice" and p.list or { p }) do alternatives[#alternatives + 1] = self:symbols(part, names) end
  self.rules[rule] = alternatives
end

--- Converts a pattern to rules for core.grammar.
-- @return list; or nil, message, code if a name is not defined or there is no memory
function M.lower(pattern)
  local self = setmetatable({ rules = {}, copies = 0, depth = 0, within = {} }, Lowering)
  local ok, message = pcall(function() self:fill(new_rule(self), pattern_of(pattern, "rules", 0), {}) end)
  if not ok then return nil, message, failure.code(message, "invalid") end
  return self.rules
end

return M
