--- Converts messages of OpenAI's API to those of the chat template.
-- Needs ane.serve.fields. Contents that are lists of texts become one text; images, sounds and files are refused by name.
-- Usage: `local list = messages.read(body.messages, "messages")`

local fields = require "ane.serve.fields"

local M = {}

local ROLES = { "system", "developer", "user", "assistant", "tool" }

local CALL = {
  id = { type = "string" },
  type = { type = "string", only = { "function" } },
  index = { type = "integer" },
  ["function"] = {
    object = true, required = true,
    fields = { name = { type = "string", required = true }, arguments = { type = "string", default = "{}" } },
  },
}

local MESSAGE = {
  role = { type = "string", choices = ROLES, required = true },
  content = { type = { "string", "table" }, wanted = "a string or a list" },
  name = { type = "string" },
  tool_call_id = { type = "string" },
  tool_calls = { list = true },
  reasoning_content = { type = "string" },
  refusal = { only = {} },
  audio = { only = {} },
  function_call = { only = {} },
  annotations = { list = true, unused = true },
}

-- Types of content parts that hold text.
local TEXTS = { text = true, input_text = true, output_text = true }

--- The text of a content: a string, or a list of parts.
function M.text_of(content, path)
  if type(content) == "string" then return content end
  if not fields.is_list(content) then fields.wrong(path, "must be a text or a list of parts") end
  local texts = {}
  for i, part in ipairs(content) do
    local at = ("%s[%d]"):format(path, i - 1)
    if not fields.is_object(part) then fields.wrong(at, "must be an object") end
    local kind = fields.type_of(part, at)
    if not kind then fields.wrong(at .. ".type", "is missing") end
    if not TEXTS[kind] then fields.unsupported(at .. ".type", "is %s: only texts are supported", kind) end
    local checked = fields.check({
      type = { type = "string" }, text = { type = "string", required = true }, annotations = { list = true, unused = true },
      logprobs = { list = true, unused = true },
    }, part, at)
    texts[i] = checked.text
  end
  return table.concat(texts)
end

local function calls_of(list, path)
  local out = {}
  for i, call in ipairs(list) do
    local checked = fields.check(CALL, call, ("%s[%d]"):format(path, i - 1))
    checked.type, checked.index = "function", nil
    out[i] = checked
  end
  return out
end

--- Checks a message.
-- @param message of JSON
-- @param at its path
-- @return a message for the template
function M.one(message, at)
  local checked = fields.check(MESSAGE, message, at)
  if checked.role == "developer" then checked.role = "system" end
  if checked.content then checked.content = M.text_of(checked.content, at .. ".content") end
  if checked.tool_calls then checked.tool_calls = calls_of(checked.tool_calls, at .. ".tool_calls") end
  if not checked.content and not checked.tool_calls then fields.wrong(at .. ".content", "is missing") end
  checked.content, checked.annotations = checked.content or "", nil
  return checked
end

--- Checks a list of messages.
-- @param list of JSON
-- @param path of the field
-- @return list for the template
function M.read(list, path)
  if #list == 0 then fields.wrong(path, "is empty") end
  local out = {}
  for i, message in ipairs(list) do out[i] = M.one(message, ("%s[%d]"):format(path, i - 1)) end
  return out
end

return M
