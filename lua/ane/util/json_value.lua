--- What values of decoded JSON are.
-- Needs ane.core. Usage: `json_value.shown(core.null) --> "null"`

local core = require "ane.core"

local M = {}

local function type_of(table)
  local mt = getmetatable(table)
  return type(mt) == "table" and mt.__jsontype or nil
end

--- Is a table an array? One without entries is, if the text had an array there.
function M.is_array(table) return #table > 0 or type_of(table) == "array" end

--- Is a table an object? One without members is, if the text had an object there.
function M.is_object(table) return #table == 0 and (next(table) ~= nil or type_of(table) == "object") end

--- A value for messages: a number, the first 60 bytes of a text, null, "a list" or "an object".
function M.shown(value)
  if value == core.null then return "null" end
  if type(value) == "string" then return ("'%s'"):format(#value > 60 and value:sub(1, 60) .. "..." or value) end
  return type(value) ~= "table" and tostring(value) or M.is_array(value) and "a list" or "an object"
end

return M
