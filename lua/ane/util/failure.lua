--- Failures that unwind several calls: raised as {message, code} inside a module, returned as nil, message, code at its boundary.
-- Needs nothing. Usage:
--   local function read(path) return parse(failure.try(core.read_file(path))) or failure.raise("format", "%s: no object", path) end
--   function M.read(path) return failure.catch(read, path) end

local M = {}

--- The message of the code "state" where a function of the caller has closed the model that is in use.
M.CLOSED = "the model was closed by a callback"

local Failure = { __tostring = function(self) return self.message end }

--- Raises a failure.
-- @param code one of the error codes: "io", "format", ...
-- @param format as string.format takes it, with its arguments
function M.raise(code, format, ...)
  error(setmetatable({ message = format:format(...), code = code }, Failure), 0)
end

--- Returns the results of a function. If they are nil, message, code, the failure is raised.
function M.try(value, message, code, ...)
  if value == nil then error(setmetatable({ message = message, code = code }, Failure), 0) end
  return value, message, code, ...
end

--- Is a raised value an interrupt (Ctrl-C)? Whoever catches it raises it again.
function M.is_interrupt(raised)
  return type(raised) == "string" and (raised == "interrupted!" or raised:find ":%d+: interrupted!$" ~= nil)
end

-- Handles the results of pcall. Other errors become messages after `prefix`; without a prefix they are raised again.
local function results(prefix, ok, value, ...)
  if ok then return value, ... end
  if type(value) == "table" and (value.code or getmetatable(value) == Failure) then return nil, value.message, value.code end
  if not prefix or type(value) ~= "string" or M.is_interrupt(value) then error(value, 0) end
  if M.code(value) == "memory" then return nil, prefix .. ": out of memory", "memory" end
  return nil, ("%s: has unexpected contents (%s)"):format(prefix, value), "format"
end

--- Calls a function.
-- @return what it returns; or nil, message, code of the failure that it raises
-- @raise any other error, unchanged
function M.catch(fn, ...)
  return results(nil, pcall(fn, ...))
end

--- The code of an error that a function of Lua or of the core raised as a text.
-- @param raised the error
-- @param otherwise code of errors other than a lack of memory
-- @raise an interrupt, unchanged
function M.code(raised, otherwise)
  if M.is_interrupt(raised) then error(raised, 0) end
  return tostring(raised):find("not enough memory", 1, true) and "memory" or otherwise
end

--- Calls a function that reads a file and calls no code of the user. Its other errors mean a malformed file that no check caught.
-- @param prefix of the message: the path of the file
-- @return what it returns; or nil, message, code of the failure that it raises, or of any other error (code "format")
function M.border(prefix, fn, ...)
  return results(prefix, pcall(fn, ...))
end

return M
