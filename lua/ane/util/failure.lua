--- Failures that end several calls at once: raised as {message, code} inside a module, given as nil, message, code at its border.
-- Needs nothing. Usage:
--   local function read(path) return parse(failure.try(core.read_file(path))) or failure.raise("format", "%s: no object", path) end
--   function M.read(path) return failure.catch(read, path) end

local M = {}

local Failure = { __tostring = function(self) return self.message end }

--- Raises a failure.
-- @param code one of the error codes: "io", "format", ...
-- @param format as string.format takes it, with its arguments
function M.raise(code, format, ...)
  error(setmetatable({ message = format:format(...), code = code }, Failure), 0)
end

--- The results of a function that gives nil, message, code where it fails; raises the failure.
function M.try(value, message, code, ...)
  if value == nil then error(setmetatable({ message = message, code = code }, Failure), 0) end
  return value, message, code, ...
end

local function results(ok, value, ...)
  if ok then return value, ... end
  if type(value) == "table" and (value.code or getmetatable(value) == Failure) then return nil, value.message, value.code end
  error(value, 0)
end

--- Calls a function.
-- @return what it returns; or nil, message, code of the failure that it raises
-- @raise any other error, unchanged
function M.catch(fn, ...)
  return results(pcall(fn, ...))
end

return M
