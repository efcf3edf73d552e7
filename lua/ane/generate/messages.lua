--- Checks messages before a chat template reads them. A template prints nothing for a key that it does not find, so it would not report a
-- wrong message.
-- Needs ane.core, ane.util.list, ane.util.nested and ane.util.schema. Values of ane.jinja are accepted like plain ones.
-- Usage: `local fault = messages.fault({ { role = "user", content = "hi" } })`

local core = require "ane.core"
local list_of = require "ane.util.list"
local nested = require "ane.util.nested"
local schema = require "ane.util.schema"

local M = {}

-- The kind of a value of ane.jinja, which its metatable names; nil for other values.
local function kind_of(v)
  local mt = getmetatable(v)
  return type(mt) == "table" and mt.kind or nil
end

local function get(t, key)
  if kind_of(t) == "dict" then return t.map[key] end
  return rawget(t, key)
end

local function is_null(v) return v == nil or v == core.null or kind_of(v) == "none" end

-- Roles whose content is a text, or a list of parts. The results of tools may be anything.
local SAYS = { user = true, system = true, developer = true, assistant = true }

local PLAIN = { number = true, boolean = true }

-- The fault of a list and its entries; nil: none. as_list, as_entry: formats of the fault of the list, and of entry %d with its fault.
local function entries_fault(list, as_list, as_entry, fault_of)
  local fault = list_of.fault(list)
  if fault then return as_list:format(fault) end
  for i, entry in ipairs(list) do
    fault = fault_of(entry)
    if fault then return as_entry:format(i, fault) end
  end
end

local function part_fault(part)
  if type(part) == "string" then return nil end
  if type(part) ~= "table" or kind_of(part) == "list" then return "must be a text or a table, but is " .. schema.shown(part) end
  local text = get(part, "text")
  if get(part, "type") == "text" and type(text) ~= "string" then return "must have a text as text, but has " .. schema.shown(text) end
end

-- The fault of a content, as the end of "messages[1] "; nil: none.
local function content_fault(content)
  local kind = type(content)
  if kind == "string" or is_null(content) or kind ~= "table" and not PLAIN[kind] then return nil end -- ane.jinja names the other kinds
  if kind ~= "table" then return "must have a text or a list of parts as content, but has " .. schema.shown(content) end
  if kind_of(content) == "dict" then return "must have a text or a list of parts as content, but has a table with keys" end
  return entries_fault(content, "has a content that %s", "has a content whose part %d %s", part_fault)
end

local function call_fault(call)
  if type(call) ~= "table" then return "must be a table, but is " .. schema.shown(call) end
end

local function calls_fault(calls)
  if type(calls) ~= "table" then return "must have a list as tool_calls, but has " .. schema.shown(calls) end
  return entries_fault(calls, "has tool_calls that %s", "has tool_calls whose entry %d %s", call_fault)
end

local function message_fault(message)
  if type(message) ~= "table" or kind_of(message) == "list" then
    return "must be a table with role and content, but is " .. schema.shown(message)
  end
  local fault = nested.fault(message)
  if fault then return fault end
  local role = get(message, "role")
  if type(role) ~= "string" then return "must have a text as role, but has " .. (role == nil and "none" or schema.shown(role)) end
  local calls = get(message, "tool_calls")
  fault = not is_null(calls) and calls_fault(calls)
  if fault then return fault end
  return SAYS[role] and content_fault(get(message, "content")) or nil
end

--- What is wrong with a list of messages.
-- @return a text such as "messages[2] must have a text as role, but has none"; nil: nothing
function M.fault(messages)
  if type(messages) ~= "table" then return "messages must be a list, but is " .. schema.shown(messages) end
  return entries_fault(messages, "messages %s", "messages[%d] %s", message_fault)
end

return M
