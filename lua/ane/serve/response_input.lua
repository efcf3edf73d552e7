--- The fields input, instructions and tools of POST /v1/responses, as messages and tools of chats.
-- Needs ane.serve.fields and messages. Items are messages, calls of functions, and what the functions gave.
-- Usage: `local list = input.messages(values)`

local fields = require "ane.serve.fields"
local messages = require "ane.serve.messages"

local M = {}

local MESSAGE = {
  type = {}, role = { required = true }, content = { required = true }, id = { unused = true }, status = { unused = true },
}

local CALL = {
  type = {}, call_id = { type = "string", required = true }, name = { type = "string", required = true },
  arguments = { type = "string", required = true }, id = { unused = true }, status = { unused = true },
}

local OUTPUT = {
  type = {}, call_id = { type = "string", required = true },
  output = { type = { "string", "table" }, wanted = "a string or a list", required = true },
  id = { unused = true }, status = { unused = true },
}

-- Handlers of items by type: function(item, at, list, names) adds to the list of messages. names: of the functions called, by
-- call_id.
local ITEMS = {}

function ITEMS.message(item, at, list)
  local checked = fields.check(MESSAGE, item, at)
  list[#list + 1] = messages.one({ role = checked.role, content = checked.content }, at)
end

-- Calls belong to the message of the assistant before them.
function ITEMS.function_call(item, at, list, names)
  local checked = fields.check(CALL, item, at)
  names[checked.call_id] = checked.name
  local last = list[#list]
  if not last or last.role ~= "assistant" then
    last = { role = "assistant", content = "" }
    list[#list + 1] = last
  end
  last.tool_calls = last.tool_calls or {}
  table.insert(last.tool_calls, {
    id = checked.call_id, type = "function", ["function"] = { name = checked.name, arguments = checked.arguments },
  })
end

function ITEMS.function_call_output(item, at, list, names)
  local checked = fields.check(OUTPUT, item, at)
  local name = names[checked.call_id]
  if not name then fields.wrong(at .. ".call_id", "is of no function_call before it") end
  list[#list + 1] = {
    role = "tool", tool_call_id = checked.call_id, name = name, content = messages.text_of(checked.output, at .. ".output"),
  }
end

--- The messages of a request.
-- @param values input, instructions: checked fields
-- @return list for the template
function M.messages(values)
  local list, names = {}, {}
  if values.instructions then list[1] = { role = "system", content = values.instructions } end
  if type(values.input) == "string" then
    list[#list + 1] = { role = "user", content = values.input }
    return list
  end
  if not fields.is_list(values.input) then fields.wrong("input", "must be a text or a list of items") end
  if #values.input == 0 then fields.wrong("input", "is empty") end
  for i, item in ipairs(values.input) do
    local at = ("input[%d]"):format(i - 1)
    if not fields.is_object(item) then fields.wrong(at, "must be an object") end
    local kind = fields.type_of(item, at) or "message"
    local read = ITEMS[kind]
    if not read then
      fields.unsupported(at .. ".type", "is %s: message, function_call and function_call_output are supported", kind)
    end
    read(item, at, list, names)
  end
  return list
end

local TOOL = {
  type = { type = "string", only = { "function" }, required = true }, name = { type = "string", required = true },
  description = { type = "string" }, parameters = { object = true }, strict = { type = "boolean", unused = true },
}

--- Tools in the form of chats.
-- @param list of JSON, or nil
-- @return list, or nil
function M.tools(list)
  if not list then return nil end
  local out = {}
  for i, tool in ipairs(list) do
    local checked = fields.check(TOOL, tool, ("tools[%d]"):format(i - 1))
    out[i] = {
      type = "function",
      ["function"] = { name = checked.name, description = checked.description, parameters = checked.parameters },
    }
  end
  return out
end

return M
