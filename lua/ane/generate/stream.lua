--- A reply as an iterator, for loops. It gives the session back however the reply ends.
-- Needs ane.util.methods; drives a run of ane.generate. Usage: `for piece in stream.new(run, release) do io.write(piece) end`

local methods = require "ane.util.methods"

local M = {}

local Stream = {}
Stream.__index = Stream
Stream.__name = "ane.stream"

--- Wraps a run.
-- @param run of ane.generate
-- @param release function(stream, collected), called once, when the reply has ended, failed or was closed; collected: by the collector
-- @param registry table that holds the stream as a key until then
function M.new(run, release, registry)
  local self = setmetatable({ run = run, result = run.result, _release = release, _registry = registry }, Stream)
  if registry then registry[self] = true end
  return self
end

--- Returns the next non-empty piece; nil at the end; nil, message, code on failure.
function Stream:next()
  local run = self.run
  while not self._closed do
    if run.computing then error("stream: the reply is already computing (a callback asked for its next piece)", 2) end
    local piece, message, code = run:next()
    if not piece then
      self:close()
      return nil, message, code
    end
    if piece ~= "" then
      if run.done then self:close() end
      return piece
    end
  end
  return nil
end

function Stream:__call()
  local piece, message = self:next()
  if not piece and message then error(message, 2) end
  return piece
end

--- Reads the rest of the reply.
-- @return the result; or nil, message, code
function Stream:finish()
  while true do
    local piece, message, code = self:next()
    if message then return nil, message, code end
    if not piece then return self.result end
  end
end

--- Ends the reply at its next token or prefill chunk: result.stop is then "stopped".
function Stream:stop()
  if not self._closed then self.run.session:stop() end
end

--- Ends the reply now and gives its session back. A reply that was not complete has result.stop = "closed".
function Stream:close()
  return self:_end(false)
end

function Stream:_end(collected)
  if self._closed then return end
  self._closed = true
  if self._registry then self._registry[self] = nil end
  local result = self.result
  if not result.stop then
    self.run.done = true
    result.stop, result.text = "closed", self.run:text()
  end
  self._release(self, collected)
end

Stream.__close = Stream.close
function Stream:__gc() self:_end(true) end
methods.guard(Stream, Stream, "stream")

return M
