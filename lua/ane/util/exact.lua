--- Numbers that core.json_decode keeps as text (its option `exact`), where a float is wanted after all.
-- Usage: `local exact = require "ane.util.exact"; local value = exact.plain(core.json_decode(text, { exact = true }))`

local M = {}

--- The text of a kept number; nil for other values.
function M.text(v)
  local mt = type(v) == "table" and getmetatable(v)
  return type(mt) == "table" and mt.__jsontype == "number" and v[1] or nil
end

--- The nearest float of a kept number, infinite beyond the range of floats; other values as they are.
function M.number(v)
  local text = M.text(v)
  return text and tonumber(text) + 0.0 or v
end

--- A copy of a value from JSON in which kept numbers are floats.
function M.plain(v)
  if type(v) ~= "table" or M.text(v) then return M.number(v) end
  local copy = {}
  for key, item in pairs(v) do copy[key] = M.plain(item) end
  return setmetatable(copy, getmetatable(v))
end

return M
