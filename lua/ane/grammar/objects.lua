--- Schemas as Lua tables: an empty table stands for an object where JSON Schema expects one, and for a list elsewhere.
-- Needs nothing.
-- Usage: `objects.with({ type = "object", properties = {} }, function() return core.json_object() end)`

local M = {}

-- Keywords whose value is a schema, or an object of something else.
local OBJECTS = {
  "additionalItems", "additionalProperties", "contains", "contentSchema", "dependencies", "dependentRequired", "else", "if", "items", "not",
  "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
}

-- Keywords whose value is an object of schemas.
local MAPS = { "$defs", "definitions", "dependentSchemas", "patternProperties", "properties" }

-- Keywords whose value is a list of schemas.
local LISTS = { "allOf", "anyOf", "oneOf", "prefixItems" }

local function is_empty(v) return type(v) == "table" and next(v) == nil end

local copy_of

local function replace(copy, key, empty)
  if is_empty(copy[key]) then copy[key] = empty() end
end

local function replace_all(copy, key, empty)
  if type(copy[key]) ~= "table" then return end
  for name in pairs(copy[key]) do replace(copy[key], name, empty) end
end

-- path: set of the tables around this one. A table that contains itself is left as it is; JSON's encoder refuses it.
function copy_of(schema, empty, path)
  if type(schema) ~= "table" or path[schema] then return schema end
  path[schema] = true
  local mt = getmetatable(schema)
  local copy = setmetatable({}, type(mt) == "table" and mt or nil)
  for key, value in pairs(schema) do copy[key] = copy_of(value, empty, path) end
  path[schema] = nil
  for _, key in ipairs(OBJECTS) do replace(copy, key, empty) end
  for _, key in ipairs(MAPS) do
    replace_all(copy, key, empty)
    replace(copy, key, empty)
  end
  for _, key in ipairs(LISTS) do replace_all(copy, key, empty) end
  if type(copy.items) == "table" and #copy.items > 0 then replace_all(copy, "items", empty) end
  return copy
end

--- A copy of a schema, or of a list of tools with schemas in it, in which such empty tables are objects.
-- @param empty function that makes an empty object
function M.with(schema, empty) return copy_of(schema, empty, {}) end

return M
