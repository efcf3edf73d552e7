--- The expressions of a template, from tokens to a tree. The methods belong to the parser of ane.jinja.parser.
-- Needs ane.jinja.grammar and value. Each node has tag, at (byte in the source), and by tag: const v; name; attr object, name;
-- item object, key; slice object, start, stop, step; call callee, args, kwargs, star, stars; filter and test with object, name
-- and the fields of a call; not, neg, pos with a; bin op, a, b; and, or, concat, list, tuple with items; dict with keys,
-- values; compare first, ops, rest; cond test, a, b; attr_target name, attr.
-- Usage: `local node = self:expression()` in a parser.

local grammar = require "ane.jinja.grammar"
local value = require "ane.jinja.value"

local M = {}

--- The maximum nesting of an expression, and the maximum operators in one chain. Python has similar limits.
M.MAX_DEPTH = 400
M.MAX_CHAIN = 1000

local Parser = {}
M.Parser = Parser

function Parser.fail(_, at, fmt, ...)
  grammar.fail(at, fmt, ...)
end

function Parser:advance()
  local i, tokens = self.index + 1, self.tokens
  self.index = i
  self.kind, self.value = tokens.kinds[i], tokens.values[i]
end

function Parser:position()
  return self.tokens.at[self.index]
end

local NAMES = {
  eof = "end of template", end_block = "end of statement block", end_print = "end of print statement", begin_print = "'{{'",
  begin_block = "'{%'", data = "template data", name = "name", string = "string", number = "number",
}

function Parser:describe()
  if self.kind == "name" then return "'" .. self.value .. "'" end
  return NAMES[self.kind] or "'" .. self.kind .. "'"
end

function Parser:expect(kind)
  local v = self.value
  if self.kind ~= kind then
    self:fail(self:position(), "expected %s, got %s", NAMES[kind] or "'" .. kind .. "'", self:describe())
  end
  self:advance()
  return v
end

function Parser:skip(kind)
  if self.kind ~= kind then return false end
  self:advance()
  return true
end

function Parser:is_word(word)
  return self.kind == "name" and self.value == word
end

function Parser:skip_word(word)
  if not self:is_word(word) then return false end
  self:advance()
  return true
end

function Parser:expect_word(word)
  if not self:skip_word(word) then self:fail(self:position(), "expected '%s', got %s", word, self:describe()) end
end

function Parser:enter(at)
  self.depth = self.depth + 1
  if self.depth > M.MAX_DEPTH then self:fail(at, "expression nested more than %d levels", M.MAX_DEPTH) end
end

function Parser:leave(node)
  self.depth = self.depth - 1
  return node
end

-- Counts one operator of a chain such as a + a + a. Each operator adds a level to the tree.
function Parser:link(count, at)
  if count >= M.MAX_CHAIN then self:fail(at, "more than %d operators in a row", M.MAX_CHAIN) end
  return count + 1
end

function Parser:expression()
  local at = self:position()
  self:enter(at)
  local node, count = self:disjunction(), 0
  while self:skip_word "if" do
    count = self:link(count, at)
    local test = self:disjunction()
    node = { tag = "cond", at = at, test = test, a = node, b = self:skip_word "else" and self:expression() or nil }
  end
  return self:leave(node)
end

-- A parser of an associative operator: all operands become items of one node.
local function flat(tag, matches, operand)
  return function(self)
    local at = self:position()
    local first = self[operand](self)
    if not matches(self) then return first end
    local node = { tag = tag, at = at, items = { first } }
    while matches(self) do
      self:advance()
      node.items[#node.items + 1] = self[operand](self)
    end
    return node
  end
end

-- A parser of left-associative operators of one precedence.
local function left(operators, operand)
  return function(self)
    local node, count = self[operand](self), 0
    while operators[self.kind] do
      local op, at = self.kind, self:position()
      count = self:link(count, at)
      self:advance()
      node = { tag = "bin", at = at, op = op, a = node, b = self[operand](self) }
    end
    return node
  end
end

Parser.disjunction = flat("or", function(self) return self:is_word "or" end, "conjunction")
Parser.conjunction = flat("and", function(self) return self:is_word "and" end, "negation")

function Parser:negation()
  local at = self:position()
  if not self:skip_word "not" then return self:comparison() end
  self:enter(at)
  return self:leave { tag = "not", at = at, a = self:negation() }
end

local COMPARE = { ["=="] = true, ["!="] = true, ["<"] = true, ["<="] = true, [">"] = true, [">="] = true }

-- Consumes and returns the comparison operator at the current token; nil when there is none.
function Parser:comparison_operator()
  local op = self.kind
  if COMPARE[op] then
    self:advance()
    return op
  end
  if self:skip_word "in" then return "in" end
  local tokens, after = self.tokens, self.index + 1
  if self:is_word "not" and tokens.kinds[after] == "name" and tokens.values[after] == "in" then
    self:advance()
    self:advance()
    return "not in"
  end
  return nil
end

function Parser:comparison()
  local first = self:sum()
  local at = self:position()
  local op = self:comparison_operator()
  if not op then return first end
  local node = { tag = "compare", at = at, first = first, ops = {}, rest = {} }
  while op do
    node.ops[#node.ops + 1] = op
    node.rest[#node.rest + 1] = self:sum()
    op = self:comparison_operator()
  end
  return node
end

Parser.sum = left({ ["+"] = true, ["-"] = true }, "concatenation")
Parser.concatenation = flat("concat", function(self) return self.kind == "~" end, "product")
Parser.product = left({ ["*"] = true, ["/"] = true, ["//"] = true, ["%"] = true }, "power")
Parser.power = left({ ["**"] = true }, "unary")

-- Filters and tests bind weaker than a sign: -1|abs is (-1)|abs. without_filters: for the operand of a sign.
function Parser:unary(without_filters)
  local at = self:position()
  local node
  self:enter(at)
  if self:skip "-" then
    node = { tag = "neg", at = at, a = self:unary(true) }
  elseif self:skip "+" then
    node = { tag = "pos", at = at, a = self:unary(true) }
  else
    node = self:primary(false)
  end
  node = self:postfix(node)
  if not without_filters then node = self:filter_expression(node) end
  return self:leave(node)
end

local CONSTANTS = {
  ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false, none = value.NONE, None = value.NONE,
}

function Parser:name_or_constant(with_namespace)
  local at, name = self:position(), self.value
  self:advance()
  if CONSTANTS[name] ~= nil then return { tag = "const", at = at, v = CONSTANTS[name] } end
  if with_namespace and self:skip "." then
    return { tag = "attr_target", at = at, name = name, attr = self:expect "name" }
  end
  return { tag = "name", at = at, name = name }
end

function Parser:primary(with_namespace)
  local at, kind = self:position(), self.kind
  if kind == "name" then
    return self:name_or_constant(with_namespace)
  elseif kind == "string" then
    local parts = {}
    while self.kind == "string" do
      parts[#parts + 1] = self.value
      self:advance()
    end
    return { tag = "const", at = at, v = table.concat(parts) }
  elseif kind == "number" then
    local v = self.value
    self:advance()
    return { tag = "const", at = at, v = v }
  elseif kind == "(" then
    self:advance()
    local node = self:tuple { conditional = true, in_parentheses = true }
    self:expect ")"
    return node
  elseif kind == "[" then
    return self:list_literal()
  elseif kind == "{" then
    return self:dict_literal()
  end
  self:fail(at, "unexpected %s", self:describe())
end

local TUPLE_END = { end_print = true, end_block = true, [")"] = true }

--- An expression, or a tuple when there are commas.
-- options: conditional (inline ifs are allowed), in_parentheses (it may be empty), until_words (set of names that end it),
-- target (names only), with_namespace (also ns.attr)
function Parser:tuple(options)
  local at, items, is_tuple = self:position(), {}, false
  while true do
    if #items > 0 then self:expect "," end
    local word = self.kind == "name" and options.until_words and options.until_words[self.value]
    if TUPLE_END[self.kind] or word then break end
    if options.target then
      self:enter(at)
      items[#items + 1] = self:leave(self:primary(options.with_namespace))
    else
      items[#items + 1] = options.conditional and self:expression() or self:disjunction()
    end
    if self.kind ~= "," then break end
    is_tuple = true
  end
  if not is_tuple then
    if items[1] then return items[1] end
    if not options.in_parentheses then self:fail(self:position(), "Expected an expression, got %s", self:describe()) end
  end
  return { tag = "tuple", at = at, items = items }
end

local function check_target(self, node)
  if node.tag == "tuple" then
    for _, item in ipairs(node.items) do check_target(self, item) end
  elseif node.tag ~= "name" and node.tag ~= "attr_target" then
    self:fail(node.at, "can't assign to '%s'", node.tag)
  end
end

--- The target of an assignment, a for or a with.
function Parser:target(until_words, with_namespace)
  local words = {}
  for _, word in ipairs(until_words or {}) do words[word] = true end
  local node = self:tuple { target = true, until_words = words, with_namespace = with_namespace }
  check_target(self, node)
  return node
end

function Parser:list_literal()
  local node = { tag = "list", at = self:position(), items = {} }
  self:expect "["
  while self.kind ~= "]" do
    if #node.items > 0 then self:expect "," end
    if self.kind == "]" then break end
    node.items[#node.items + 1] = self:expression()
  end
  self:expect "]"
  return node
end

function Parser:dict_literal()
  local node = { tag = "dict", at = self:position(), keys = {}, values = {} }
  self:expect "{"
  while self.kind ~= "}" do
    if #node.keys > 0 then self:expect "," end
    if self.kind == "}" then break end
    node.keys[#node.keys + 1] = self:expression()
    self:expect ":"
    node.values[#node.values + 1] = self:expression()
  end
  self:expect "}"
  return node
end

function Parser:postfix(node)
  local count = 0
  while true do
    local kind = self.kind
    count = self:link(count, self:position())
    if kind == "." then
      node = self:dotted(node)
    elseif kind == "[" then
      node = self:subscript(node)
    elseif kind == "(" then
      node = self:arguments { tag = "call", at = self:position(), callee = node }
    else
      return node
    end
  end
end

function Parser:filter_expression(node)
  local count = 0
  while true do
    count = self:link(count, self:position())
    if self.kind == "|" then
      node = self:filters(node)
    elseif self:is_word "is" then
      node = self:test(node)
    elseif self.kind == "(" then
      node = self:arguments { tag = "call", at = self:position(), callee = node }
    else
      return node
    end
  end
end

function Parser:dotted(node)
  local at = self:position()
  self:expect "."
  local name, kind = self.value, self.kind
  if kind == "name" then
    self:advance()
    return { tag = "attr", at = at, object = node, name = name }
  elseif kind == "number" and math.type(name) == "integer" then
    self:advance()
    return { tag = "item", at = at, object = node, key = { tag = "const", at = at, v = name } }
  end
  self:fail(self:position(), "expected name or number, got %s", self:describe())
end

-- One part of a subscript: an expression, or the start, stop and step of a slice.
function Parser:subscript_part()
  local at, parts, n = self:position(), {}, 1
  if self.kind ~= ":" then
    parts[1] = self:expression()
    if self.kind ~= ":" then return parts[1] end
  end
  while self.kind == ":" and n < 3 do
    self:advance()
    n = n + 1
    if self.kind ~= ":" and self.kind ~= "]" and self.kind ~= "," then parts[n] = self:expression() end
  end
  return { tag = "bounds", at = at, start = parts[1], stop = parts[2], step = parts[3] }
end

function Parser:subscript(node)
  local at, parts = self:position(), {}
  self:expect "["
  while self.kind ~= "]" do
    if #parts > 0 then self:expect "," end
    parts[#parts + 1] = self:subscript_part()
    if parts[#parts].tag == "bounds" and (#parts > 1 or self.kind == ",") then
      grammar.unsupported(at, "a slice in a tuple of subscripts is not supported")
    end
  end
  self:expect "]"
  if #parts == 1 and parts[1].tag == "bounds" then
    local bounds = parts[1]
    return { tag = "slice", at = at, object = node, start = bounds.start, stop = bounds.stop, step = bounds.step }
  end
  local key = #parts == 1 and parts[1] or { tag = "tuple", at = at, items = parts }
  return { tag = "item", at = at, object = node, key = key }
end

-- One argument of a call.
function Parser:argument(node)
  local function ensure(condition)
    if not condition then self:fail(node.at, "invalid syntax for function call expression") end
  end
  if self:skip "*" then
    ensure(not node.star and not node.stars)
    node.star = self:expression()
  elseif self:skip "**" then
    ensure(not node.stars)
    node.stars = self:expression()
  elseif self.kind == "name" and self.tokens.kinds[self.index + 1] == "=" then
    ensure(not node.stars)
    local key = self.value
    self:advance()
    self:advance()
    node.kwargs[#node.kwargs + 1] = { key = key, value = self:expression() }
  else
    ensure(not node.star and not node.stars and #node.kwargs == 0)
    node.args[#node.args + 1] = self:expression()
  end
end

-- Parses arguments in parentheses into a node.
function Parser:arguments(node)
  node.args, node.kwargs = {}, {}
  self:expect "("
  local first = true
  while self.kind ~= ")" do
    if not first then
      self:expect ","
      if self.kind == ")" then break end
    end
    self:argument(node)
    first = false
  end
  self:expect ")"
  return node
end

function Parser:dotted_name()
  local name, count = self:expect "name", 0
  while self:skip "." do
    count = self:link(count, self:position())
    name = name .. "." .. self:expect "name"
  end
  return name
end

--- A chain of filters on a node, or on the text of a block (nil). inline: the first filter has no "|" before it.
function Parser:filters(node, inline)
  local count = 0
  while inline or self.kind == "|" do
    if not inline then self:advance() end
    count = self:link(count, self:position())
    inline = false
    node = { tag = "filter", at = self:position(), object = node, name = self:dotted_name(), args = {}, kwargs = {} }
    if self.kind == "(" then self:arguments(node) end
  end
  return node
end

local STARTS_ARGUMENT = { name = true, string = true, number = true, ["["] = true, ["{"] = true }

--- A test. The current token is its "is".
function Parser:test(object)
  local at = self:position()
  self:advance()
  local negated = self:skip_word "not"
  local node = { tag = "test", at = at, object = object, name = self:dotted_name(), args = {}, kwargs = {} }
  if self.kind == "(" then
    self:arguments(node)
  elseif STARTS_ARGUMENT[self.kind] and not (self:is_word "else" or self:is_word "or" or self:is_word "and") then
    if self:is_word "is" then self:fail(self:position(), "You cannot chain multiple tests with is") end
    node.args[1] = self:postfix(self:primary(false))
  end
  return negated and { tag = "not", at = at, a = node } or node
end

return M
