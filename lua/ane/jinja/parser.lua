--- A recursive-descent parser from tokens to a tree. The grammar follows jinja2/parser.py of Jinja 3.1.
-- Needs ane.jinja.expression and grammar. A node is a table with `tag`, `at` (byte in the source) and fields by tag, which the
-- function that makes it lists. Usage: `local body = parser.parse(source)` with a normalised source; raises syntax and
-- unsupported faults.

local expression = require "ane.jinja.expression"
local grammar = require "ane.jinja.grammar"

local M = {}

--- Deepest nesting of statements.
M.MAX_NESTING = 60

local Parser = setmetatable({}, { __index = expression.Parser })
Parser.__index = Parser

-- Tags of jinja2 that a stand-alone chat template does not need.
local UNSUPPORTED = { extends = 1, include = 1, import = 1, from = 1, block = 1, autoescape = 1, trans = 1, debug = 1 }

local STATEMENTS = {}

-- The statements up to one of the end tags, which becomes the current token.
function Parser:body(...)
  self:skip ":"
  self:expect "end_block"
  return self:statements(...)
end

-- The statements up to the end tag, which is consumed.
function Parser:last_body(end_tag)
  local body = self:body(end_tag)
  self:advance()
  return body
end

local function describe_ends(ends)
  local quoted = {}
  for i, tag in ipairs(ends) do quoted[i] = "'" .. tag .. "'" end
  return table.concat(quoted, " or ")
end

function Parser:statement(opened, ends)
  local at, tag = self:position(), self.value
  if self.kind ~= "name" then self:fail(at, "tag name expected") end
  if UNSUPPORTED[tag] then grammar.unsupported(at, "the tag '%s' is not supported", tag) end
  local parse = STATEMENTS[tag]
  if not parse then
    local looking = #ends > 0 and ", looking for " .. describe_ends(ends) or ""
    self:fail(at, "Encountered unknown tag '%s'%s", tag, looking)
  end
  self.nesting = self.nesting + 1
  if self.nesting > M.MAX_NESTING then self:fail(opened, "statements nested more than %d levels", M.MAX_NESTING) end
  self:advance()
  local node = parse(self, at)
  self.nesting = self.nesting - 1
  return node
end

-- The statements up to one of the end tags, or up to the end of the source when there are no end tags.
function Parser:statements(...)
  local ends, body = { ... }, {}
  while true do
    local at = self:position()
    if self.kind == "data" then
      body[#body + 1] = { tag = "data", at = at, text = self.value }
      self:advance()
    elseif self.kind == "begin_print" then
      self:advance()
      body[#body + 1] = { tag = "print", at = at, value = self:tuple { conditional = true } }
      self:expect "end_print"
    elseif self.kind == "begin_block" then
      self:advance()
      for _, tag in ipairs(ends) do
        if self.kind == "name" and self.value == tag then return body end
      end
      body[#body + 1] = self:statement(at, ends)
      self:expect "end_block"
    elseif #ends > 0 then
      self:fail(at, "Unexpected end of template, looking for %s", describe_ends(ends))
    else
      return body
    end
  end
end

STATEMENTS["if"] = function(self, at)
  local node = { tag = "if", at = at, tests = {}, bodies = {} }
  while true do
    node.tests[#node.tests + 1] = self:tuple { conditional = false }
    node.bodies[#node.bodies + 1] = self:body("elif", "else", "endif")
    local word = self.value
    self:advance()
    if word == "endif" then return node end
    if word == "else" then
      node.otherwise = self:last_body "endif"
      return node
    end
  end
end

STATEMENTS["for"] = function(self, at)
  local node = { tag = "for", at = at }
  node.target = self:target({ "in" }, false)
  self:expect_word "in"
  node.iterable = self:tuple { conditional = false, until_words = { recursive = true } }
  if self:skip_word "if" then node.test = self:expression() end
  node.recursive = self:skip_word "recursive"
  node.body = self:body("endfor", "else")
  local word = self.value
  self:advance()
  if word == "else" then node.otherwise = self:last_body "endfor" end
  return node
end

STATEMENTS["set"] = function(self, at)
  local target = self:target(nil, true)
  if self:skip "=" then
    return { tag = "set", at = at, target = target, value = self:tuple { conditional = true } }
  end
  local filter = self:filters(nil)
  return { tag = "set_block", at = at, target = target, filter = filter, body = self:last_body "endset" }
end

-- The parameters of a macro or call block, with their defaults by position.
function Parser:parameters(node)
  node.parameters, node.defaults = {}, {}
  self:expect "("
  while self.kind ~= ")" do
    if #node.parameters > 0 then self:expect "," end
    local at = self:position()
    local name = self:expect "name"
    node.parameters[#node.parameters + 1] = name
    if self:skip "=" then
      node.defaults[#node.parameters] = self:expression()
    elseif next(node.defaults) then
      self:fail(at, "non-default argument follows default argument")
    end
  end
  self:expect ")"
end

STATEMENTS["macro"] = function(self, at)
  local node = { tag = "macro", at = at, name = self:expect "name" }
  self:parameters(node)
  node.body = self:last_body "endmacro"
  return node
end

STATEMENTS["call"] = function(self, at)
  local node = { tag = "call_block", at = at, parameters = {}, defaults = {} }
  if self.kind == "(" then self:parameters(node) end
  node.call = self:expression()
  if node.call.tag ~= "call" then self:fail(at, "expected call") end
  node.body = self:last_body "endcall"
  return node
end

STATEMENTS["filter"] = function(self, at)
  local node = { tag = "filter_block", at = at, filter = self:filters(nil, true) }
  node.body = self:last_body "endfilter"
  return node
end

STATEMENTS["with"] = function(self, at)
  local node = { tag = "with", at = at, targets = {}, values = {} }
  while self.kind ~= "end_block" and self.kind ~= ":" do
    if #node.targets > 0 then self:expect "," end
    node.targets[#node.targets + 1] = self:target(nil, false)
    self:expect "="
    node.values[#node.values + 1] = self:expression()
  end
  node.body = self:last_body "endwith"
  return node
end

-- transformers' AssistantTracker marks an assistant's text. Here the block only renders its body.
STATEMENTS["generation"] = function(self, at)
  return { tag = "generation", at = at, parameters = {}, defaults = {}, body = self:last_body "endgeneration" }
end

STATEMENTS["print"] = function(self, at)
  local node = { tag = "print_list", at = at, values = {} }
  while self.kind ~= "end_block" do
    if #node.values > 0 then self:expect "," end
    node.values[#node.values + 1] = self:expression()
  end
  return node
end

STATEMENTS["do"] = function(self, at)
  return { tag = "do", at = at, value = self:tuple { conditional = true } }
end

STATEMENTS["break"] = function(_, at) return { tag = "break", at = at } end
STATEMENTS["continue"] = function(_, at) return { tag = "continue", at = at } end

--- The statements of a template.
function M.parse(source)
  local self = setmetatable({ tokens = grammar.tokens(source), index = 0, depth = 0, nesting = 0 }, Parser)
  self:advance()
  return self:statements()
end

return M
