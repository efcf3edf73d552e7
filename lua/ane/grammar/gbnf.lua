--- GBNF, llama.cpp's form of EBNF, as patterns: rules `name ::= ...`, the first is `root`; "text", [a-z], ., groups, |, * + ? {n,m},
-- # comments.
-- Needs ane.grammar.cursor and rules. Usage: `local pattern = gbnf.read 'root ::= "yes" | "no"'`

local cursor = require "ane.grammar.cursor"
local rules = require "ane.grammar.rules"

local M = {}

local fail, take = cursor.fail, cursor.take

local function skip(self)
  while true do
    local to = self.text:match("^[ \t\r\n]+()", self.at) or self.text:match("^#[^\n]*()", self.at)
    if not to then return end
    self.at = to
  end
end

local SIMPLE = { n = "\n", t = "\t", r = "\r", ["\\"] = "\\", ['"'] = '"', ["["] = "[", ["]"] = "]", ["-"] = "-", ["^"] = "^", ["/"] = "/" }

-- Reads one character, escaped or not, as UTF-8.
local function character(self)
  if not take(self, "\\") then
    local c = take(self, utf8.charpattern)
    return c and utf8.len(c) == 1 and c or fail(self, "the text is not UTF-8")
  end
  local digits = take(self, "x%x%x") or take(self, "u%x%x%x%x") or take(self, "U%x%x%x%x%x%x%x%x")
  if digits then return cursor.character(self, digits:sub(2)) end
  local c = take(self, ".")
  return SIMPLE[c] or fail(self, "an unknown escape")
end

local function literal(self)
  local parts = {}
  while not take(self, '"') do
    if self.at > #self.text then fail(self, 'a " is not closed') end
    parts[#parts + 1] = character(self)
  end
  return rules.literal(table.concat(parts))
end

local function class(self)
  local parts = { take(self, "%^") and "[^" or "[" }
  while not take(self, "]") do
    if self.at > #self.text then fail(self, "a [ is not closed") end
    parts[#parts + 1] = ("\\u{%x}"):format(utf8.codepoint(character(self)))
    if self.text:match("^%-[^%]]", self.at) then
      self.at = self.at + 1
      parts[#parts + 1] = "-" .. ("\\u{%x}"):format(utf8.codepoint(character(self)))
    end
  end
  return rules.regex(table.concat(parts) .. "]")
end

local alternatives

local function atom(self)
  if take(self, '"') then return literal(self) end
  if take(self, "%[") then return class(self) end
  if take(self, "%.") then return rules.regex "[\\s\\S]" end
  if take(self, "%(") then
    local p = alternatives(self)
    skip(self)
    return take(self, "%)") and p or fail(self, "a ( is not closed")
  end
  local at, name = self.at, take(self, "[%a][%w_-]*")
  if not name then return nil end
  skip(self)
  if self.text:match("^::=", self.at) then -- the next rule
    self.at = at
    return nil
  end
  return rules.reference(name)
end

local function repeated(self)
  local p = atom(self)
  while p do
    skip(self)
    if take(self, "%*") then p = rules.times(p, 0)
    elseif take(self, "%+") then p = rules.times(p, 1)
    elseif take(self, "%?") then p = rules.times(p, 0, 1)
    elseif take(self, "{") then
      local low, comma, high = self.text:match("^%s*(%d+)%s*(,?)%s*(%d*)%s*}", self.at)
      if not low then fail(self, "expected {n}, {n,} or {n,m}") end
      if tonumber(high) and tonumber(high) < tonumber(low) then fail(self, "the minimum count is above the maximum") end
      take(self, "[^}]*}")
      p = rules.times(p, tonumber(low), comma == "" and tonumber(low) or tonumber(high))
    else return p end
  end
end

function alternatives(self)
  local list, sequence = {}, {}
  cursor.enter(self)
  while true do
    skip(self)
    if take(self, "|") then
      list[#list + 1] = rules.sequence(sequence)
      sequence = {}
    else
      local p = repeated(self)
      if not p then break end
      sequence[#sequence + 1] = p
    end
  end
  self.depth = self.depth - 1
  list[#list + 1] = rules.sequence(sequence)
  return rules.choice(list)
end

--- Reads a grammar.
-- @return a pattern; or nil, message, code: the message gives the position
function M.read(text)
  local self = { text = text, at = 1, depth = 0 }
  local all = { "root" }
  local ok, why = pcall(function()
    skip(self)
    while self.at <= #self.text do
      local name = take(self, "[%a][%w_-]*") or fail(self, "expected the name of a rule")
      skip(self)
      if not take(self, "::=") then fail(self, "expected ::=") end
      if all[name] then fail(self, "the rule " .. name .. " is defined twice") end
      all[name] = alternatives(self)
      skip(self)
    end
    if not all.root then fail(self, "there is no rule root") end
  end)
  if ok then return rules.P(all) end
  if type(why) ~= "table" then error(why, 0) end
  return nil, why.message, "format"
end

return M
