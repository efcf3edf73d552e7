--- Failures of requests, in OpenAI's form: {"error": {"message", "type", "param", "code"}} and a status.
-- Needs ane.core. A handler throws one with raise(); the server answers with it.
-- Usage: `errors.raise(400, "field n must be 1 or more", { param = "n" })`

local core = require "ane.core"

local M = {}

local Failure = {}
Failure.__index = Failure
Failure.__tostring = function(self) return self.message end

-- The type of a failure, by its status.
local TYPES = { [401] = "authentication_error", [403] = "permission_error", [503] = "overloaded_error" }

local function type_of(status)
  return TYPES[status] or (status >= 500 and "server_error" or "invalid_request_error")
end

--- Makes a failure.
-- @param status of HTTP
-- @param message a sentence, without text from prompts
-- @param more param (the field), code (an identifier for programs), headers
function M.new(status, message, more)
  more = more or {}
  return setmetatable({ status = status, message = message, param = more.param, code = more.code, headers = more.headers }, Failure)
end

--- Throws a failure, for the server to answer with.
function M.raise(status, message, more) error(M.new(status, message, more), 0) end

--- Is this a failure?
function M.is(value) return getmetatable(value) == Failure end

-- HTTP status by error code, the third value after nil and a message.
local STATUS = { range = 400, unsupported = 400, invalid = 400, notfound = 400, template = 400, format = 400, memory = 503 }

-- Fields whose grammar may be too large: their range is not the context's.
local GRAMMARS = { grammar = true, tools = true, tool_choice = true }

--- Converts nil, message, code of a module to a failure.
function M.of(message, code, param)
  local status = STATUS[code] or 500
  local word = code == "range" and (GRAMMARS[param] and "unsupported" or "context_length_exceeded") or code
  return M.new(status, tostring(message), { param = param, code = word, headers = status == 503 and { ["Retry-After"] = "5" } or nil })
end

--- The object of a failure, ready for JSON.
function Failure:object()
  return {
    error = { message = self.message, type = type_of(self.status), param = self.param or core.null, code = self.code or core.null },
  }
end

return M
