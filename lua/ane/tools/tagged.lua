--- Arguments that are written one by one between tags, as Qwen3-Coder and GLM do: <parameter=NAME>\nVALUE\n</parameter>\n.
-- A form's `member` lists the three texts around name and value. Values whose schema is a string are written as they are; all others
-- are JSON. Needs ane.core.
-- Usage: `tagged.to_json({ { "a", "1" } }, schema) --> {"a": 1}`

local core = require "ane.core"

local M = {}

local NOTES = {
  type = true, description = true, title = true, default = true, examples = true, ["$schema"] = true, ["$comment"] = true,
}
local STRING = { minLength = true, maxLength = true, enum = true, const = true }

-- References followed in a row before a schema is taken for one without a type.
local MOST_REFERENCES = 16

-- The schema that a local reference names. Schemas with other keywords beside $ref stay.
local function resolved(schema, root)
  for _ = 1, MOST_REFERENCES do
    if type(schema) ~= "table" or type(schema["$ref"]) ~= "string" then return schema end
    for key in pairs(schema) do
      if key ~= "$ref" and not NOTES[key] then return schema end
    end
    local place, name = schema["$ref"]:match "^#/(%$?%w+)/([^/~%%]+)$"
    local found = place and type(root[place]) == "table" and root[place][name]
    if not found then return schema end
    schema = found
  end
  return schema
end

-- The types that a schema names: a list; nil if it names none.
local function types_of(schema)
  if type(schema.type) == "table" then return schema.type end
  if schema.type then return { schema.type } end
  for _, value in ipairs(schema.enum or { schema.const }) do
    if type(value) ~= "string" then return nil end
  end
  return (schema.enum or schema.const ~= nil) and { "string" } or nil
end

local function is_null(schema) return type(schema) == "table" and schema.type == "null" end

--- Is a value of this schema written without quotation marks? That holds for schemas of strings, and of strings or null.
-- @param schema of the value
-- @param root the schema of all arguments
-- @return the schema of the string, or nil if values are written as JSON; whether null is allowed, too
function M.text_schema(schema, root)
  schema = resolved(schema, root)
  if type(schema) ~= "table" then return nil end
  local either = schema.anyOf or schema.oneOf
  if either and #either == 2 and schema.type == nil and (is_null(either[1]) or is_null(either[2])) then
    local other = M.text_schema(either[is_null(either[1]) and 2 or 1], root)
    return other, other ~= nil
  end
  local types, texts, null = types_of(schema), false, false
  for _, name in ipairs(types or {}) do
    if name == "string" then texts = true elseif name == "null" then null = true else return nil end
  end
  return texts and schema or nil, null
end

-- ---- Grammar -------------------------------------------------------------------------------------------------------------

-- A text as a pattern.
local function quoted(text)
  return (text:gsub("[%^%$%(%)%[%]%.%*%+%?{}|\\/]", "\\%0"):gsub("\n", "\\n"))
end

-- Adds the value of a string and the text after it.
-- @return the state after it; or nil, message, code
local function add_text(builder, from, schema, null, close, path)
  for key in pairs(schema) do
    if not NOTES[key] and not STRING[key] then
      return nil, ("%s: %s/%s cannot be enforced in this model's form of tool calls"):format(key, path, key), "unsupported"
    end
  end
  local after = builder:state()
  local choices = schema.enum or schema.const ~= nil and { schema.const } or nil
  if not choices then
    local most = schema.maxLength and math.tointeger(schema.maxLength) or ""
    local least = math.tointeger(schema.minLength or 0)
    local null_too = null and (least > 4 or most ~= "" and most < 4) and "|null" or ""
    builder:add(from, after, "pattern", ("(?:(?:(?!%s)[^]){%d,%s}%s)%s"):format(quoted(close), least, most, null_too, quoted(close)))
    return after
  end
  local seen = {}
  for _, value in ipairs(choices) do
    if value == core.null then value = "null" end
    if type(value) ~= "string" or value:find(close, 1, true) then
      return nil, ("enum: %s/enum cannot be enforced in this model's form of tool calls"):format(path), "unsupported"
    end
    if not seen[value] then builder:add(from, after, "literal", value .. close) end
    seen[value] = true
  end
  if null and not seen.null then builder:add(from, after, "literal", "null" .. close) end
  return after
end

--- Adds the value of an argument and the text after it to a grammar of parts.
-- @param builder of ane.tools.calls
-- @param from state
-- @param schema of the value
-- @param root the schema of all arguments
-- @param json the value's schema as JSON text, complete with its definitions
-- @param path of the schema, for messages
-- @return the state after it; or nil, message, code
function M.add_value(builder, from, schema, root, json, path)
  local close = builder.form.member[3]
  local text, null = M.text_schema(schema, root)
  if text then return add_text(builder, from, text, null, close, path) end
  local after = builder:state()
  builder:add(from, after, "json", json)
  return builder:literal(after, close)
end

--- Returns whether an argument can have this name: it must not be empty, nor contain <, > or line ends, of which tags are made, nor the
-- text that ends a name.
function M.can_name(name, form) return name ~= "" and not name:find("[<>\n]") and not name:find(form.member[2], 1, true) end

-- ---- Reading -------------------------------------------------------------------------------------------------------------

local WORDS = { True = "true", False = "false", None = "null" }

-- The value of an argument as JSON. Without a schema, a text that is JSON is taken as such.
local function json_of(text, schema, root)
  local kind, null
  if schema ~= nil then kind, null = M.text_schema(schema, root) end
  if kind and not (null and text == "null") then return core.json_encode(text) end
  local word = WORDS[text] or text
  local list = core.json_decode("[" .. word .. "]", { exact = true })
  if list and #list == 1 then return word end
  return core.json_encode(text)
end

--- Converts arguments to a JSON object, in their order.
-- @param members list of {name, value}, as ane.tools.scan finds them
-- @param schema of the arguments, or nil
-- @return JSON text
function M.to_json(members, schema)
  local list, properties = {}, schema and schema.properties or {}
  for i, member in ipairs(members) do
    list[i] = core.json_encode(member[1]) .. ": " .. json_of(member[2], properties[member[1]], schema)
  end
  return "{" .. table.concat(list, ", ") .. "}"
end

return M
