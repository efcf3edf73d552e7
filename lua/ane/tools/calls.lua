--- The grammar of calls: a family's form, filled with the schemas of the tools.
-- Needs ane.core, ane.grammar, ane.grammar.objects, ane.tools.literals, ane.tools.reader, ane.tools.tagged, ane.util.failure and keys.
-- Usage: `local g = assert(calls.grammar(form, {{name = "f", parameters = {type = "object"}}}, {many = true}))`

local core = require "ane.core"
local failure = require "ane.util.failure"
local grammar = require "ane.grammar"
local keys = require "ane.util.keys"
local literals = require "ane.tools.literals"
local objects = require "ane.grammar.objects"
local reader = require "ane.tools.reader"
local tagged = require "ane.tools.tagged"

local M = {}

-- ---- Schemas -------------------------------------------------------------------------------------------------------------

local function empty_object() return core.json_decode "{}" end

-- Keywords that allow members beyond those in `properties`.
local OPEN = {
  "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "allOf", "anyOf", "oneOf", "if", "not", "$ref",
  "dependentSchemas", "minProperties",
}

local function is_open(schema)
  for _, key in ipairs(OPEN) do
    if schema[key] ~= nil then return true end
  end
  return false
end

--- The schema of a tool's arguments, an object. Unless it says otherwise, only the listed members are allowed.
-- @param parameters of the tool: a schema, or nil for a tool without parameters
-- @return a table; or nil, message, code
function M.schema_of(parameters)
  if parameters == nil or parameters == core.null then parameters = {} end
  if type(parameters) ~= "table" then return nil, "parameters must be a schema of an object, but is a " .. type(parameters), "invalid" end
  local schema = objects.with(parameters, empty_object)
  if schema.type == nil then schema.type = "object" end
  if schema.type ~= "object" then
    return nil, ('parameters must be a schema of an object, but has the type %s'):format(core.json_encode(schema.type)), "invalid"
  end
  if not is_open(schema) then schema.additionalProperties = false end
  if schema.properties == nil and not is_open(parameters) then schema.properties = empty_object() end
  return schema
end

-- ---- Parts ---------------------------------------------------------------------------------------------------------------

-- Schemas keep their numbers as they are given.
local EXACT = { exact = true }

local Builder = {}
Builder.__index = Builder

-- Maximum states (as in the core) and edges of a grammar. The edges of optional members grow with the square of their number, and a list
-- of lists needs twice as many as the inner list.
local MOST_STATES, MOST_EDGES = 1 << 16, 1 << 17

-- The number of a new state of the grammar. Too many are a failure of ane.util.failure.
function Builder:state()
  if self.states == MOST_STATES then failure.raise("range", "the grammar is too large") end
  self.states = self.states + 1
  return self.states
end

-- Adds an edge from one state to another, for a text of a kind ("literal", "pattern", "json"). Too many are a failure.
function Builder:add(from, to, kind, text)
  if #self.parts == MOST_EDGES then failure.raise("range", "the grammar is too large") end
  self.parts[#self.parts + 1] = { from, to, kind, text }
end

-- Adds an edge with a literal. An empty literal adds none: both states are then one.
function Builder:literal(from, text, to)
  to = to or (text == "" and from or self:state())
  if text ~= "" then self:add(from, to, "literal", text) end
  return to
end

local NOTES = {
  type = true, description = true, title = true, default = true, examples = true, ["$schema"] = true, ["$comment"] = true,
  ["$defs"] = true, definitions = true,
}

-- Checks the keywords of a schema. Returns nil if each is an annotation or in the list; else message, code.
local function refuse_others(schema, known, path)
  for key in pairs(schema) do
    if not NOTES[key] and not known[key] then
      return ("%s: %s cannot be enforced in this model's form of tool calls"):format(key, path .. "/" .. key), "unsupported"
    end
  end
end

local MEMBERS = { properties = true, required = true, additionalProperties = true }

-- Checks the names of the members of a schema. Returns nil if each can be written; else message, code.
local function refuse_names(schema, can_name, form)
  for _, name in ipairs(keys(schema.properties or {})) do
    if not can_name(name, form) then
      return ("properties: the name %q cannot be written in this model's form of tool calls"):format(name), "unsupported"
    end
  end
end

-- Members in sequence, ordered by name. Optional ones may be left out. member(from, name, schema) writes each one, after the
-- literal `before(name)`, and returns the state after it.
-- @param close literal after the last member, which leads to the state `to`
-- @param read bytes of the first literal that are part of the text before `from`; default 0
function Builder:members(from, schema, close, to, before, member, read)
  local required = {}
  for _, name in ipairs(schema.required or {}) do required[name] = true end
  local names = keys(schema.properties or {})
  -- The states at which the next member may begin, each with the separator needed there, and the bytes of it that were read.
  local open = { { from, "", read or 0 } }
  for _, name in ipairs(names) do
    local begins = self:state()
    for _, at in ipairs(open) do self:add(at[1], begins, "literal", (at[2] .. before(name)):sub(at[3] + 1)) end
    local after, message, code = member(begins, name, schema.properties[name])
    if not after then return nil, message, code end
    if required[name] then open = {} end
    open[#open + 1] = { after, self.comma, 0 }
  end
  for _, at in ipairs(open) do self:add(at[1], to, "literal", close:sub(at[3] + 1)) end
  return to
end

local ARGUMENTS = {}

function ARGUMENTS.json(self, from, tail, to, schema)
  local after = tail == "" and to or self:state()
  self:add(from, after, "json", core.json_encode(schema, EXACT))
  if tail ~= "" then self:add(after, to, "literal", tail) end
  return true
end

-- A value as JSON. References in its schema are resolved in the whole schema.
local function value_text(schema, root)
  if type(schema) ~= "table" then return core.json_encode(schema, EXACT) end
  local copy = {}
  for key, value in pairs(schema) do copy[key] = value end
  copy["$defs"], copy.definitions = copy["$defs"] or root["$defs"], copy.definitions or root.definitions
  if next(copy) == nil then return "true" end
  return core.json_encode(copy, EXACT)
end

function ARGUMENTS.python(self, from, tail, to, schema)
  local message, code = refuse_others(schema, MEMBERS, "")
  if not message then message, code = refuse_names(schema, literals.can_name) end
  if message then return nil, message, code end
  return self:members(from, schema, tail, to, function(name) return name .. "=" end, function(at, _, value)
    local after = self:state()
    self:add(at, after, "json", value_text(value, schema))
    return after
  end)
end

function ARGUMENTS.tagged(self, from, tail, to, schema)
  local message, code = refuse_others(schema, MEMBERS, "")
  if message then return nil, message, code end
  local member = self.form.member
  message, code = refuse_names(schema, tagged.can_name, self.form)
  if message then return nil, message, code end
  return self:members(from, schema, tail, to, function(name) return member[1] .. name .. member[2] end, function(at, name, value)
    return tagged.add_value(self, at, value, schema, value_text(value, schema), "/properties/" .. name)
  end, self.form.mark and #self.form.mark or 0)
end

-- Do JSON and the form write the values of a schema alike?
local function is_plain(schema)
  local kind = schema.type
  if kind == "array" then return type(schema.items) == "table" and is_plain(schema.items) end
  if kind == "integer" or kind == "number" or kind == "boolean" or kind == "null" then return true end
  for _, value in ipairs(schema.enum or {}) do
    if type(value) == "string" or type(value) == "table" then return false end
  end
  return schema.enum ~= nil
end

local STRING = { minLength = true, maxLength = true, enum = true, const = true }

-- A text between the form's quotation marks.
local function gemma_string(self, from, schema, path)
  local message, code = refuse_others(schema, STRING, path)
  if message then return nil, message, code end
  local quote, after = self.form.quote, self:state()
  for _, value in ipairs(schema.enum or { schema.const }) do
    if type(value) ~= "string" then return nil, "enum: " .. path .. "/enum mixes texts and other values", "unsupported" end
    self:add(from, after, "literal", quote .. value .. quote)
  end
  if schema.enum or schema.const then return after end
  local inside = self:literal(from, quote)
  local escaped = quote:gsub("[%p]", "\\%0"):gsub('\\([<>"])', "%1")
  local most = schema.maxLength and math.tointeger(schema.maxLength) or ""
  self:add(inside, after, "pattern", ("(?:(?!%s)[^]){%d,%s}%s"):format(escaped, schema.minLength or 0, most, escaped))
  return after
end

local gemma_value

-- @param from the state after the opening brace
local function gemma_object(self, from, to, schema, path, tail)
  local message, code = refuse_others(schema, MEMBERS, path)
  if not message then message, code = refuse_names(schema, literals.can_name) end
  if message then return nil, message, code end
  return self:members(from, schema, "}" .. tail, to, function(name) return name .. ":" end, function(at, name, value)
    return gemma_value(self, at, value, path .. "/properties/" .. name)
  end)
end

local function gemma_array(self, from, schema, path)
  local message, code = refuse_others(schema, { items = true }, path)
  if message then return nil, message, code end
  if type(schema.items) ~= "table" then return nil, "items: " .. path .. "/items is missing", "unsupported" end
  local open, after = self:literal(from, "["), self:state()
  local first, next_one
  first, message, code = gemma_value(self, open, schema.items, path .. "/items")
  if not first then return nil, message, code end
  self:add(open, after, "literal", "]")
  self:add(first, after, "literal", "]")
  next_one, message, code = gemma_value(self, self:literal(first, self.comma), schema.items, path .. "/items")
  if not next_one then return nil, message, code end
  self:add(next_one, after, "literal", "]")
  self:add(next_one, self:repeats(first), "literal", self.comma)
  return after
end

-- The state after the comma that follows the first element.
function Builder:repeats(first)
  for i = #self.parts, 1, -1 do
    local part = self.parts[i]
    if part[1] == first and part[4] == self.comma then return part[2] end
  end
end

function gemma_value(self, from, schema, path)
  if type(schema) ~= "table" then return nil, path .. ": a schema without a type", "unsupported" end
  if is_plain(schema) then
    local after = self:state()
    self:add(from, after, "json", core.json_encode(schema, EXACT))
    return after
  end
  if schema.type == "string" or schema.enum and schema.type == nil then return gemma_string(self, from, schema, path) end
  if schema.type == "object" then return gemma_object(self, self:literal(from, "{"), self:state(), schema, path, "") end
  if schema.type == "array" then return gemma_array(self, from, schema, path) end
  return nil, ("type: %s cannot be enforced in this model's form of tool calls"):format(path .. "/type"), "unsupported"
end

-- The brace is part of the name, so that no name is a prefix of another.
function ARGUMENTS.gemma(self, from, tail, to, schema) return gemma_object(self, from, to, schema, "", tail) end

-- ---- Calls ---------------------------------------------------------------------------------------------------------------

-- The rest of a call after the name of the tool.
function Builder:call(from, tool, to)
  local at, i = from, 1
  while i <= #self.layout do
    local part, tail = self.layout[i], self.layout[i + 1]
    if type(part) == "string" then
      at = self:literal(at, part, i == #self.layout and to or nil)
    elseif part[1] == "id" then
      local after = i == #self.layout and to or self:state()
      self:add(at, after, "pattern", ("[A-Za-z0-9]{%d}"):format(self.form.id_length))
      at = after
    elseif part[1] == "arguments" then
      local literal = type(tail) == "string" and tail or ""
      local after = i + (literal == "" and 0 or 1) >= #self.layout and to or self:state()
      local ok, message, code = ARGUMENTS[self.form.arguments](self, at, literal, after, tool.schema)
      if not ok then return nil, message, code end
      at = after
      if literal ~= "" then i = i + 1 end
    end
    i = i + 1
  end
  return true
end

-- Adds the calls of tools in a form, from state 1 on. Returns true; or nil, message, code. Raises where the grammar is too large.
function Builder:calls(form, tools, many)
  local layout, heads = reader.layout(form)
  table.remove(layout, 1) -- the name
  self.form, self.comma = form, form.arguments == "gemma" and "," or form.arguments == "tagged" and "" or ", "
  local done = self:state() -- the state after a call
  for _, tool in ipairs(tools) do
    -- The literal after the name is part of the name, so that no name is a prefix of another.
    local literal = type(layout[1]) == "string"
    local mark = literal and layout[1] or form.mark or ""
    local named = self:state()
    for _, head in ipairs(heads) do
      self:add(1, named, "literal", form.first .. head .. tool.name .. mark)
      if many and form.between then self:add(done, named, "literal", form.between .. head .. tool.name .. mark) end
    end
    self.layout = not literal and layout or table.move(layout, 2, #layout, 1, {})
    local ok, message, code = failure.catch(self.call, self, named, tool, done)
    if not ok then return nil, ("%s: parameters: %s"):format(tool.name, message), code end
  end
  table.insert(self.parts.ends, form.last == "" and done or self:literal(done, form.last))
  return true
end

-- Schemas that were checked, as JSON -> {message, code}, or {}: requests mostly have the tools of others.
local checked, n_checked = {}, 0
local MOST_CHECKED = 1024

-- Why a schema is refused: message, code; nil: it is not.
local function fault_of_schema(schema)
  local text = core.json_encode(schema, EXACT)
  if not checked[text] then
    if n_checked == MOST_CHECKED then checked, n_checked = {}, 0 end
    local _, message, code = grammar.json_schema(text, { strict = false }) -- of any depth
    if code == "memory" then return message, code end
    checked[text], n_checked = { message, code }, n_checked + 1
  end
  return checked[text][1], checked[text][2]
end

-- The fault of the first tool whose schema is refused: message, code; nil: none.
-- @param codes set of the codes that count; nil: all
local function fault_of(tools, codes)
  for _, tool in ipairs(tools) do
    local fault, code = fault_of_schema(tool.schema)
    if fault and (not codes or codes[code]) then return ("tools: %s: parameters: %s"):format(tool.name, fault), code end
  end
end

-- Codes of malformed schemas. Others say what the grammar of JSON cannot do, which may not concern a form.
local MALFORMED = { invalid = true, format = true }

--- The fault of the first tool with a malformed schema, or with one that no arguments fulfil.
-- @param tools list of {name, schema (see schema_of)}
-- @return message, code; nil: there is none
function M.malformed(tools) return fault_of(tools, MALFORMED) end

--- The grammar of one or several calls of tools.
-- @param form of ane.tools.forms
-- @param tools list of {name, schema (see schema_of)}
-- @param opts many: several calls may come
-- @return a grammar, whose texts begin with the form's `first`; or nil, message, code: the message names the tool
function M.grammar(form, tools, opts)
  if form.arguments ~= "json" then
    local fault, code = M.malformed(tools)
    if fault then return nil, fault, code end
  end
  local self = setmetatable({ parts = { ends = {} }, states = 1 }, Builder)
  for _, way in ipairs { form, form.bare } do
    local ok, message, code = failure.catch(self.calls, self, way, tools, opts.many)
    if not ok then return nil, "tools: " .. message, code end
  end
  local made, message, code = grammar.parts(self.parts, { strict = false })
  if made then return made end
  local fault, why = fault_of(tools) -- to find the tool at fault
  return nil, fault or "tools: " .. message, why or code
end

return M
