--- Checked access to the fields of decoded JSON objects.
-- Needs ane.core, ane.util.failure, ane.util.json_value and ane.util.keys.
--
-- Functions raise failures; `fields.try` turns them into nil, message, code. Messages begin with the path of the field in the
-- file, such as "model.vocab".
-- Usage: `local size = fields.get(object, "size", "integer", "model", 0)`

local core = require "ane.core"
local failure = require "ane.util.failure"
local json_value = require "ane.util.json_value"
local keys = require "ane.util.keys"

local M = {}

--- fail(code, format, ...) raises; try(fn, ...) calls fn and turns its failure into nil, message, code.
M.fail, M.try = failure.raise, failure.catch

local KINDS = {
  string = { "a string", function(v) return type(v) == "string" end },
  boolean = { "true or false", function(v) return type(v) == "boolean" end },
  number = { "a number", function(v) return type(v) == "number" end },
  integer = { "an integer", function(v) return math.type(v) == "integer" end },
  natural = { "an integer of 0 or more", function(v) return math.type(v) == "integer" and v >= 0 end },
  array = { "an array", function(v) return type(v) == "table" and json_value.is_array(v) end },
  object = { "an object", function(v) return type(v) == "table" and not json_value.is_array(v) end },
}

--- Raises unless a value is of a kind of KINDS.
-- @return the value
function M.check(value, kind, path)
  if not KINDS[kind][2](value) then M.fail("format", "%s: must be %s, but is %s", path, KINDS[kind][1], json_value.shown(value)) end
  return value
end

--- A member of an object. null counts as missing.
-- @param path of the object, "" at the root
-- @param default for a missing member; nil: the member is required; M.NONE: a missing member is nil
function M.get(object, key, kind, path, default)
  local value = object[key]
  local place = path == "" and key or path .. "." .. key
  if value == nil or value == core.null then
    if default == nil then M.fail("format", "%s is missing", place) end
    if default == M.NONE then return nil end
    return default
  end
  return M.check(value, kind, place)
end

M.NONE = setmetatable({}, { __name = "none" })

--- A member that is a string of one character.
function M.character(object, key, path)
  local s = M.get(object, key, "string", path)
  if utf8.len(s) ~= 1 then M.fail("format", "%s.%s: must be one character", path, key) end
  return s
end

--- The entry of a table for the "type" of an object.
function M.kind(known, object, path)
  M.check(object, "object", path)
  local name = M.get(object, "type", "string", path)
  if known[name] then return known[name] end
  M.fail("unsupported", "%s: type '%s' is not supported; known are %s", path, name:sub(1, 60), table.concat(keys(known), ", "))
end

--- The object in a JSON file; nil when there is no such file.
-- @param name of the file in messages
-- @raise when the file is not a JSON object
function M.read_json(path, name)
  if core.path_kind(path) ~= "file" then return nil end
  local text, message, code = core.read_file(path)
  if not text then M.fail(code, "%s", message) end
  local value
  value, message, code = core.json_decode(text)
  if value == nil then M.fail(code, "%s: %s", name, message) end
  return M.check(value, "object", name)
end

return M
