--- Fields of decoded JSON objects, checked; errors that carry a code.
-- Needs ane.core.
--
-- Functions raise; `fields.try` turns what they raise into nil, message, code. A path such as "model.vocab" in messages says
-- where in the file a fault is.
-- Usage: `local size = fields.get(object, "size", "integer", "model", 0)`

local core = require "ane.core"

local M = {}

local Fault = {}
Fault.__index = Fault

function Fault:__tostring() return self.message end

--- Raises an error with a code: "format", "unsupported", ...
function M.fail(code, message, ...)
  error(setmetatable({ code = code, message = message:format(...) }, Fault), 0)
end

--- Calls f(...); what it raised by M.fail becomes nil, message, code.
function M.try(f, ...)
  local results = table.pack(pcall(f, ...))
  if results[1] then return table.unpack(results, 2, results.n) end
  if getmetatable(results[2]) ~= Fault then error(results[2], 0) end
  return nil, results[2].message, results[2].code
end

local function is_array(value)
  local mt = getmetatable(value)
  return type(mt) == "table" and mt.__jsontype == "array"
end

local KINDS = {
  string = { "a string", function(v) return type(v) == "string" end },
  boolean = { "true or false", function(v) return type(v) == "boolean" end },
  number = { "a number", function(v) return type(v) == "number" end },
  integer = { "an integer", function(v) return math.type(v) == "integer" end },
  natural = { "an integer of 0 or more", function(v) return math.type(v) == "integer" and v >= 0 end },
  array = { "an array", function(v) return type(v) == "table" and is_array(v) end },
  object = { "an object", function(v) return type(v) == "table" and not is_array(v) end },
}

--- Raises unless a value is of a kind.
-- @return it
function M.check(value, kind, path)
  if not KINDS[kind][2](value) then M.fail("format", "%s: wanted %s", path, KINDS[kind][1]) end
  return value
end

--- A member of an object; null counts as missing.
-- @param path of the object
-- @param default what a missing one is; without it the member must be there. M.NONE: nil
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

--- A string of one character.
function M.character(object, key, path)
  local s = M.get(object, key, "string", path)
  if utf8.len(s) ~= 1 then M.fail("format", "%s.%s: wanted one character", path, key) end
  return s
end

--- The "type" of an object, of those that a table knows.
-- @return what the table has for it
function M.kind(known, object, path)
  M.check(object, "object", path)
  local name = M.get(object, "type", "string", path)
  if known[name] then return known[name] end
  local names = {}
  for key in pairs(known) do names[#names + 1] = key end
  table.sort(names)
  M.fail("unsupported", "%s: type '%s' is not supported; known are %s", path, name:sub(1, 60), table.concat(names, ", "))
end

--- A JSON file of a folder, or nil where there is none. Raises where it is none.
-- @param name for the message
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
