--- Conversations as calibration: a JSONL file, each line one conversation, through the model's chat template.
-- Needs ane.cli.messages and ane.generate.chat. Usage:
--   local lists, message, code = conversations.encode(model.tokenizer, "chats.jsonl", text)

local chat = require "ane.generate.chat"
local messages = require "ane.cli.messages"

local M = {}

--- Returns whether a file holds conversations: its name ends with .jsonl.
function M.is_name(path) return path:match "%.jsonl$" ~= nil end

-- Returns the ids of one line; or nil, message, code.
local function encode_line(tokenizer, line)
  local value, message = messages.decode(line)
  if not value then return nil, message, "format" end
  return chat.encode(tokenizer, value.messages, {
    tools = value.tools, documents = value.documents, template_vars = value.template_vars, add_generation_prompt = false,
  })
end

--- Renders and encodes the conversations of a file. No prompt for a reply is added. Empty lines are skipped.
-- @param tokenizer of the model, or nil
-- @param path of the file, for messages
-- @param text of the file; a line is a list of messages, or an object with `messages` and, if wanted, tools, documents and variables
-- @return list of lists of ids, one list per conversation; or nil, message, code. The message names file and line
function M.encode(tokenizer, path, text)
  local lists, number = {}, 0
  for line in (text:gsub("\r\n", "\n") .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    if line:find "%S" then
      local ids, message, code = encode_line(tokenizer, line)
      if not ids then return nil, ("%s:%d: %s"):format(path, number, message), code end
      lists[#lists + 1] = ids
    end
  end
  if #lists == 0 then return nil, path .. ": has no conversation, but must have one in each line", "invalid" end
  return lists
end

return M
