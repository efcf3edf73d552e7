--- What functions promise for any input: a value; or nil, a message and a code other than "internal".
-- Usage: `local model = promise.keep("load", ane.load(path)); if not model then return end`

local M = {}

--- Raises unless the results are a value or nil, message, code.
-- @return the results
function M.keep(what, ...)
  local value, message, code = ...
  if value == nil or value == false and message ~= nil then
    if type(message) ~= "string" or message == "" then error(("%s: nil without a message"):format(what), 2) end
    if type(code) ~= "string" or code == "internal" then error(("%s: code %s: %s"):format(what, code, message), 2) end
  end
  return ...
end

--- Like keep, for calls that raise an error for misuse: fn may also raise a text that matches one of the patterns `allowed`.
function M.misuse(what, allowed, fn, ...)
  local result = table.pack(pcall(fn, ...))
  if result[1] then return M.keep(what, table.unpack(result, 2, result.n)) end
  for _, pattern in ipairs(allowed) do
    if tostring(result[2]):find(pattern) then return nil end
  end
  error(("%s raised: %s"):format(what, result[2]), 2)
end

return M
