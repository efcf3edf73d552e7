--- The output of POST /v1/responses: a list of items, whole or as events. An item is a message with one part of text, or a call of a
-- function. A message is opened with its first text, so that a reply of calls alone has none.
-- Needs ane.core. The deltas of calls are those of ane.tools.
-- Usage: `local out = output.new(send, new_id); out:text "a"; out:call(delta); out:finish(result); out.items`

local core = require "ane.core"

local M = {}

local Output = {}
Output.__index = Output

--- An output without items.
-- @param send function(name, event), for the events of a stream
-- @param new_id function(prefix) -> an id
function M.new(send, new_id)
  return setmetatable({ send = send, new_id = new_id, items = core.json_array(), calls = {}, said = {} }, Output)
end

local function part(text) return { type = "output_text", text = text, annotations = core.json_array(), logprobs = core.json_array() } end

local function add(self, item)
  self.items[#self.items + 1] = item
  self.send("response.output_item.added", { output_index = #self.items - 1, item = item })
  return #self.items
end

-- An event of item i.
local function about(self, i, event)
  event.item_id, event.output_index = self.items[i].id, i - 1
  return event
end

-- An event of the text of item i.
local function of_part(self, i, event)
  event.content_index = 0
  return about(self, i, event)
end

local function open_message(self)
  local id = self.new_id "msg_"
  self.message = add(self, { id = id, type = "message", status = "in_progress", role = "assistant", content = core.json_array() })
  self.send("response.content_part.added", of_part(self, self.message, { part = part "" }))
end

local function close_message(self, status)
  local i, text = self.message, table.concat(self.said)
  if not i then return end
  self.message, self.said = nil, {}
  self.items[i] = {
    id = self.items[i].id, type = "message", status = status, role = "assistant", content = core.json_array { part(text) },
  }
  self.send("response.output_text.done", of_part(self, i, { text = text, logprobs = core.json_array() }))
  self.send("response.content_part.done", of_part(self, i, { part = part(text) }))
  self.send("response.output_item.done", { output_index = i - 1, item = self.items[i] })
end

local function call_item(id, status, call_id, name, arguments)
  return { id = id, type = "function_call", status = status, call_id = call_id, name = name, arguments = arguments }
end

local function close_call(self, call, status)
  if call.closed then return end
  call.closed = true
  local arguments = table.concat(call.arguments)
  self.items[call.item] = call_item(self.items[call.item].id, status, call.id, call.name, arguments)
  self.send("response.function_call_arguments.done", about(self, call.item, { arguments = arguments, name = call.name }))
  self.send("response.output_item.done", { output_index = call.item - 1, item = self.items[call.item] })
end

--- Adds text.
function Output:text(text)
  if not self.message then open_message(self) end
  self.said[#self.said + 1] = text
  self.send("response.output_text.delta", of_part(self, self.message, { delta = text, logprobs = core.json_array() }))
end

--- Adds a delta as on_tool_call receives it: the beginning of a call, or a part of its arguments.
function Output:call(delta)
  local call = self.calls[delta.index]
  if not call then
    close_message(self, "completed")
    if self.calls[delta.index - 1] then close_call(self, self.calls[delta.index - 1], "completed") end
    call = { id = delta.id, name = delta.name, arguments = {} }
    call.item = add(self, call_item(self.new_id "fc_", "in_progress", call.id, call.name, ""))
    self.calls[delta.index] = call
  end
  if not delta.arguments then return end
  call.arguments[#call.arguments + 1] = delta.arguments
  self.send("response.function_call_arguments.delta", about(self, call.item, { delta = delta.arguments }))
end

--- Ends the output. There is at least one item.
-- @param status of the response: "completed" or "incomplete"
-- @param whole true: the last call is complete
function Output:finish(status, whole)
  local last = self.calls[#self.calls]
  if last then close_call(self, last, whole and "completed" or "incomplete") end
  if #self.items == 0 then open_message(self) end
  close_message(self, status)
end

return M
