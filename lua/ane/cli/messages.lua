--- Conversations in JSON files: a list of messages, or an object with `messages` and more.
-- Needs ane.jinja: its decoder keeps the order of keys, which templates that print tools and calls show.
-- Usage: `local c, message = messages.decode('[{"role": "user", "content": "Hi"}]')`

local M = {}

-- Returns what is wrong with a list of messages, or nil.
local function fault(list)
  if #list == 0 then return "has no message" end
  for i, one in ipairs(list) do
    if type(one) ~= "table" or one.kind ~= "dict" then return ("messages[%d] must be an object"):format(i) end
  end
end

--- Reads a JSON text.
-- @return {messages, tools, tools_text, documents, template_vars}; or nil, message. tools_text is the list of tools as JSON text:
-- schemas keep numbers that no float holds.
function M.decode(text)
  local jinja = require "ane.jinja"
  local value, message = jinja.decode(text)
  if value == nil then return nil, message end
  local kind = type(value) == "table" and value.kind
  if kind == "list" then
    message = fault(value)
    if message then return nil, message end
    return { messages = value }
  end
  local map = kind == "dict" and value.map or {}
  if type(map.messages) ~= "table" or map.messages.kind ~= "list" then
    return nil, "must be a list of messages, or an object with such a list as \"messages\""
  end
  message = fault(map.messages)
  if message then return nil, message end
  local out = { messages = map.messages, template_vars = {} }
  if type(map.tools) == "table" and map.tools.kind == "list" then out.tools_text = jinja.member(text, "tools") end
  for name, item in pairs(map) do
    if name == "tools" or name == "documents" then
      if item.kind == "list" then out[name] = item end
    elseif name ~= "messages" and type(name) == "string" then
      out.template_vars[name] = item
    end
  end
  return out
end

return M
