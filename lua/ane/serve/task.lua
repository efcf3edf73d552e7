--- A call whose answer is computed in parts, one in a turn of the server, so that others are answered meanwhile.
-- Needs ane.serve.errors. The work runs in a coroutine, which yields between the runs of the model.
-- Usage: `local task = tasks.new(call, function(pause) ... pause() ... return value end); while not task:advance() do end`

local errors = require "ane.serve.errors"

local M = {}

local Task = {}
Task.__index = Task

--- A task.
-- @param call that it answers
-- @param work function(pause) -> the value for JSON; pause() ends a part. It may raise a failure of ane.serve.errors
-- @param complain function(text), for faults of the server
function M.new(call, work, complain)
  local thread = coroutine.create(function() return work(coroutine.yield) end)
  return setmetatable({ call = call, thread = thread, complain = complain }, Task)
end

--- Computes the next part.
-- @return true when the call is answered
function Task:advance()
  local ok, value = coroutine.resume(self.thread)
  if ok and coroutine.status(self.thread) ~= "dead" then return false end
  if ok then
    self.call:json(200, value)
  elseif errors.is(value) then
    self.call:fail(value)
  else
    self.complain("a fault while computing: " .. tostring(value))
    self.call:fail(errors.new(500, "internal server error"))
  end
  coroutine.close(self.thread)
  return true
end

--- The client has disconnected, or the server ends: computes no more.
-- @param failure the answer; nil: none, the client has disconnected
function Task:cancel(failure)
  coroutine.close(self.thread)
  if failure then self.call:fail(failure) else self.call:drop() end
end

return M
