--- A request and its answer, as handlers use them: whole JSON answers and event streams.
-- Needs ane.core and ane.serve.errors.
-- Usage: `call:json(200, { status = "ok" })`, or `call:begin(); call:event { text = "a" }; call:flush(); call:finish "[DONE]"`

local core = require "ane.core"

local M = {}

local Call = {}
Call.__index = Call

-- Lines of an event stream that clients ignore.
local PROBE = ":\n\n"

local JSON = "application/json; charset=utf-8"

--- Wraps an exchange of core.http.
-- @param exchange which the call owns
-- @param on_end function(call), called once, when the call is answered or aborted
function M.new(exchange, on_end)
  local self = exchange:request()
  self.exchange, self.on_end, self.started, self.headers = exchange, on_end, core.clock(), {}
  self.events = {} -- texts of events that were added since the last flush
  return setmetatable(self, Call)
end

local function ended(self, status)
  if self.done then return end
  self.done, self.status = true, self.status or status
  self.exchange:close()
  self.on_end(self)
end

local function headers_of(self, type, more)
  local all = { ["Content-Type"] = type, ["X-Content-Type-Options"] = "nosniff", ["Cache-Control"] = "no-store" }
  for name, value in pairs(self.headers) do all[name] = value end
  for name, value in pairs(more or {}) do all[name] = value end
  return all
end

--- Answers with a text.
function Call:text(status, type, text, headers)
  if self.done then return end
  self.exchange:reply(status, headers_of(self, type, headers), text)
  ended(self, status)
end

--- Answers with a value as JSON.
function Call:json(status, value, headers) self:text(status, JSON, core.json_encode(value), headers) end

--- Answers with a failure of ane.serve.errors; in a stream, as its last event.
function Call:fail(failure)
  if self.done then return end
  if not self.streaming then return self:json(failure.status, failure:object(), failure.headers) end
  self.status = failure.status
  self:event(failure:object())
  self:finish()
end

--- Begins a stream of events.
function Call:begin()
  self.streaming = true
  self.status = 200
  self.exchange:begin(200, headers_of(self, "text/event-stream; charset=utf-8", { ["X-Accel-Buffering"] = "no" }), PROBE)
end

--- Adds an event. It is sent by the next flush() or finish(), together with others.
-- @param value for JSON
-- @param name of the event, or nil
function Call:event(value, name)
  self.events[#self.events + 1] = (name and "event: " .. name .. "\ndata: " or "data: ") .. core.json_encode(value) .. "\n\n"
end

--- Adds an event whose JSON is given.
function Call:encoded(json) self.events[#self.events + 1] = "data: " .. json .. "\n\n" end

-- The texts of the events to be sent, joined.
local function take_events(self)
  local text = table.concat(self.events)
  self.events = {}
  return text
end

--- Sends the events that were added.
function Call:flush()
  if self.done or #self.events == 0 then return end
  if not self.exchange:write(take_events(self)) then self.left = true end
end

--- Sends the events that were added and ends the stream.
-- @param last text of a last event, or nil
function Call:finish(last)
  if self.done then return end
  if last then self:encoded(last) end
  self.exchange:finish(take_events(self))
  ended(self, 200)
end

--- Has the client so many bytes to read that no more events should be added? They can be added later, joined.
function Call:full() return not self.done and self.exchange:full() end

--- Has the client disconnected?
function Call:gone() return not self.done and (self.left or self.exchange:gone()) end

--- Aborts the call and closes the connection.
function Call:drop() ended(self, 499) end

return M
