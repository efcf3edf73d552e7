--- Lark's grammars as patterns: rules and terminals, "text", "text"i, /pattern/i, ranges, groups, [optional], | * + ? ~ n..m {n,m},
-- priorities and aliases (which change no text), %ignore, and %import of what is usual in `common`. Rules are lower case, the whole text is
-- `start`. Terminals match in any way that fits: they need not be the longest. Needs ane.grammar.cursor and rules.
-- Usage: `local pattern = lark.read 'start: WORD ("," WORD)*\n%import common.WORD'`

local cursor = require "ane.grammar.cursor"
local rules = require "ane.grammar.rules"

local M = {}

local fail, take = cursor.fail, cursor.take

--- Terminals of Lark's common.lark.
local COMMON = {
  DIGIT = "[0-9]", HEXDIGIT = "[a-fA-F0-9]", INT = "[0-9]+", SIGNED_INT = "[+-]?[0-9]+", DECIMAL = "[0-9]+\\.[0-9]*|\\.[0-9]+",
  FLOAT = "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
  NUMBER = "(?:[0-9]+\\.[0-9]*|\\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?",
  SIGNED_NUMBER = "[+-]?(?:[0-9]+\\.[0-9]*|\\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?", LCASE_LETTER = "[a-z]", UCASE_LETTER = "[A-Z]",
  LETTER = "[a-zA-Z]", WORD = "[a-zA-Z]+", CNAME = "[_a-zA-Z][_a-zA-Z0-9]*", WS_INLINE = "[ \\t]+", WS = "[ \\t\\f\\r\\n]+", CR = "\\r",
  LF = "\\n", NEWLINE = "(?:\\r?\\n)+", ESCAPED_STRING = '"(?:[^"\\\\\\n]|\\\\.)*"', SH_COMMENT = "#[^\\n]*", CPP_COMMENT = "//[^\\n]*",
}

-- Skips blanks and comments; line ends too if `lines` is set.
local function skip(self, lines)
  while true do
    local to = self.text:match(lines and "^[ \t\r\n]+()" or "^[ \t\r]+()", self.at) or self.text:match("^//[^\n]*()", self.at)
      or self.text:match("^#[^\n]*()", self.at)
      or self.text:match("^\n%s*()|", self.at) -- an alternative on a line of its own
    if not to then return end
    self.at = to
  end
end

local ESCAPES = { n = "\n", t = "\t", r = "\r", f = "\f", ["\\"] = "\\", ['"'] = '"', ["/"] = "/" }

local function string_of(self)
  local parts = {}
  while not take(self, '"') do
    local escape = take(self, "\\.")
    local digits = escape == "\\x" and take(self, "%x%x") or escape == "\\u" and take(self, "%x%x%x%x")
    if digits then parts[#parts + 1] = cursor.character(self, digits)
    elseif escape then parts[#parts + 1] = ESCAPES[escape:sub(2)] or fail(self, "an unknown escape")
    else parts[#parts + 1] = take(self, '[^"\\\n]+') or fail(self, 'a " is not closed') end
  end
  return table.concat(parts)
end

local function escaped(text)
  return (text:gsub("[%^%$%(%)%[%]%.%*%+%-%?{}|\\/]", "\\%0"))
end

local function quoted(self)
  local text = string_of(self)
  if take(self, "%.%.") then
    if not take(self, '"') then fail(self, "expected the end of a range") end
    local last = string_of(self)
    if utf8.len(text) ~= 1 or utf8.len(last) ~= 1 then fail(self, "a range must have two characters") end
    if utf8.codepoint(text) > utf8.codepoint(last) then fail(self, "a range is reversed") end
    return rules.R(text .. last)
  end
  if take(self, "i") then return rules.regex(escaped(text), true) end
  return rules.literal(text)
end

-- Reads a regular expression after its first /.
local function pattern(self)
  local parts = {}
  while not take(self, "/") do
    parts[#parts + 1] = take(self, "\\.") or take(self, "[^/\\\n]+") or fail(self, "a / is not closed")
  end
  local flags = take(self, "[imslux]*")
  if flags:find "[mlx]" then fail(self, "flags other than i, s and u are not supported") end
  local text = table.concat(parts)
  if flags:find "s" then fail(self, "flag s is not supported: write [\\s\\S] for any character") end
  return rules.regex(text, flags:find "i" ~= nil)
end

local alternatives

-- Syntax of llguidance and of Lark itself that is not supported, by its beginning.
local FOREIGN = {
  { "^%%%a+", "is not supported here" }, { "^<", "special tokens are not supported" }, { "^~", "complements are not supported" },
  { "^&", "intersections are not supported" }, { "^@", "references to other grammars are not supported" },
}

local function refuse_foreign(self)
  for _, row in ipairs(FOREIGN) do
    local found = self.text:match(row[1], self.at)
    if found then fail(self, #found > 1 and found .. " " .. row[2] or row[2]) end
  end
end

local COUNTED = "^{%s*%d*%s*,?%s*%d*%s*}"

local function atom(self)
  if take(self, '"') then return quoted(self) end
  if self.text:match("^/[^/*]", self.at) then
    self.at = self.at + 1
    return pattern(self)
  end
  local open = take(self, "[%(%[]")
  if open then
    local p = alternatives(self, true)
    skip(self, true)
    if not take(self, open == "(" and "%)" or "%]") then fail(self, "a " .. open .. " is not closed") end
    return open == "[" and rules.times(p, 0, 1) or p
  end
  local name = take(self, "[%a_][%w_]*")
  if name and self.text:match("^{", self.at) and not self.text:match(COUNTED, self.at) then fail(self, "templates are not supported") end
  if not name then return refuse_foreign(self) end
  return rules.reference(name)
end

local function times(self, p, low, high)
  if high and high < low then fail(self, "the minimum count is above the maximum") end
  return rules.times(p, low, high)
end

local function repeated(self, lines)
  local p = atom(self)
  while p do
    skip(self, lines)
    if take(self, "%*") then p = rules.times(p, 0)
    elseif take(self, "%+") then p = rules.times(p, 1)
    elseif take(self, "%?") then p = rules.times(p, 0, 1)
    elseif take(self, "~") then
      skip(self, lines)
      local low, high = self.text:match("^(%d+)%s*%.%.%s*(%d+)", self.at)
      low = low or self.text:match("^%d+", self.at) or fail(self, "expected a count after ~")
      take(self, high and "%d+%s*%.%.%s*%d+" or "%d+")
      p = times(self, p, tonumber(low), tonumber(high or low))
    elseif self.text:match(COUNTED, self.at) then
      local low, comma, high = take(self, COUNTED:sub(2)):match "^{%s*(%d*)%s*(,?)%s*(%d*)%s*}$"
      if low == "" and high == "" then fail(self, "expected {n}, {n,}, {,m} or {n,m}") end
      p = times(self, p, tonumber(low) or 0, comma == "" and tonumber(low) or tonumber(high))
    else return p end
  end
end

-- @param lines true: a line end counts as a blank, as it does inside brackets
function alternatives(self, lines)
  local list, sequence = {}, {}
  cursor.enter(self)
  while true do
    skip(self, lines)
    if take(self, "|") then
      list[#list + 1] = rules.sequence(sequence)
      sequence = {}
      skip(self, true)
    elseif take(self, "%->") then
      skip(self)
      take(self, "[%a_][%w_]*")
    else
      local p = repeated(self, lines)
      if not p then break end
      sequence[#sequence + 1] = p
    end
  end
  self.depth = self.depth - 1
  list[#list + 1] = rules.sequence(sequence)
  return rules.choice(list)
end

local function common(self, name)
  if not COMMON[name] then fail(self, "common." .. name .. " is not known") end
  return rules.regex(COMMON[name])
end

local function directive(self, all)
  local word = take(self, "%a+")
  skip(self)
  if word == "ignore" then
    self.ignored[#self.ignored + 1] = alternatives(self)
  elseif word == "import" then
    if not take(self, "common%.?") then fail(self, "only common can be imported") end
    skip(self)
    if take(self, "%(") then
      while not take(self, "%s*%)") do
        local name = take(self, "[%s,]*[%a_]+") or fail(self, "expected a name")
        name = name:match "[%a_]+$"
        all[name] = common(self, name)
      end
    else
      local name = take(self, "[%a_]+") or fail(self, "expected a name")
      skip(self)
      local alias = take(self, "%->%s*[%a_][%w_]*")
      all[alias and alias:match "[%a_][%w_]*$" or name] = common(self, name)
    end
  else
    fail(self, "%" .. tostring(word) .. " is not supported")
  end
end

-- A copy of a rule's body in which ignored text may follow each terminal. Terminals themselves stay whole.
local function with_ignored(p, ignored)
  if p.kind == "literal" or p.kind == "regex" or p.kind == "reference" and p.name == p.name:upper() then
    return rules.sequence { p, ignored }
  end
  if p.kind == "reference" then return p end
  if p.kind == "times" then return rules.times(with_ignored(p.of, ignored), p.low, p.high) end
  local list = {}
  for i, part in ipairs(p.list) do list[i] = with_ignored(part, ignored) end
  return p.kind == "choice" and rules.choice(list) or rules.sequence(list)
end

local function read_all(self, all)
  skip(self, true)
  while self.at <= #self.text do
    if take(self, "%%") then directive(self, all)
    else
      local name = take(self, "[?!]*[%a_][%w_]*") or fail(self, "expected the name of a rule")
      name = name:match "[%a_].*$"
      if take(self, "{") then fail(self, "templates are not supported") end
      take(self, "%.%-?%d+")
      skip(self)
      if self.text:match("^%[", self.at) then fail(self, "attributes of rules are not supported") end
      if self.text:match("^::", self.at) then fail(self, "parameters of rules are not supported") end
      if not take(self, ":") then fail(self, "expected :") end
      if all[name] then fail(self, "the rule " .. name .. " is defined twice") end
      all[name] = alternatives(self)
    end
    skip(self)
    if self.at <= #self.text and not take(self, "\n") then fail(self, "expected the end of a line") end
    skip(self, true)
  end
  if not all.start then fail(self, "there is no rule start") end
end

--- Reads a grammar.
-- @return a pattern; or nil, message, code: the message gives the position
function M.read(text)
  local self = { text = text, at = 1, depth = 0, ignored = {} }
  local all = { "start" }
  local ok, why = pcall(read_all, self, all)
  if not ok then
    if type(why) ~= "table" then error(why, 0) end
    return nil, why.message, "format"
  end
  if #self.ignored == 0 then return rules.P(all) end
  all[" ignored"] = rules.times(rules.choice(self.ignored), 0)
  local ignored = rules.reference " ignored"
  for name, body in pairs(all) do
    if name ~= 1 and name ~= " ignored" and name ~= name:upper() then all[name] = with_ignored(body, ignored) end
  end
  all.start = rules.sequence { ignored, all.start }
  return rules.P(all)
end

return M
