--- `ane chat`: a conversation in the terminal.
-- Needs ane.cli, ane.cli.common, ane.cli.line and ane.core.

local common = require "ane.cli.common"
local core = require "ane.core"
local line = require "ane.cli.line"

local M = {}

M.summary = "Talk with a model."

local HELP = [[
/clear   forget the conversation (the system text stays)
/undo    forget the last question and its reply
/prompt  show the prompt as the template makes it
/quit    end (as Ctrl-D does); Ctrl-C ends a reply
A line that ends with a backslash goes on in the next one.
]]

function M.options(parser)
  common.model_options(parser)
  parser:option("-s --system", "System message."):argname "TEXT"
  parser:option("-p --prompt", "Say this, print the reply and end."):argname "TEXT"
  parser:option("-n --max-tokens", "Most tokens of a reply."):convert(common.natural):argname "N"
  common.sampling_options(parser)
  parser:flag("--timings --stats", "Show speed on standard error after each reply.")
end

-- One reply, written as it comes. Ctrl-C ends the reply; a second one, while nothing is computed, the program.
local function answer(chat, said, args)
  local pieces, message
  core.catch_interrupts(true)
  local ok, raised = pcall(function()
    pieces, message = chat:stream(said)
    if not pieces then return end
    for piece in pieces do
      io.stdout:write(piece)
      io.stdout:flush()
    end
  end)
  core.catch_interrupts(false)
  if pieces then
    pieces:close()
    io.stdout:write "\n"
    io.stdout:flush() -- before what standard error says
  end
  if not ok then
    if args.prompt or not require("ane.cli").interrupted(raised) then error(raised, 0) end
    return true
  end
  if not pieces then return nil, message end
  if args.timings then io.stderr:write("[", common.speed(pieces.result.timings, pieces.result.stop), "]\n") end
  return true
end

-- Removes the last question and what came after it.
local function undo(messages)
  while #messages > 0 and messages[#messages].role ~= "system" do
    if table.remove(messages).role == "user" then return end
  end
end

local function clear(messages)
  local first = messages[1] and messages[1].role == "system" and 2 or 1
  for i = #messages, first, -1 do messages[i] = nil end
end

-- true where the line was a command, "quit" where it ends the program.
local function command(chat, text)
  if text == "/quit" or text == "/exit" then return "quit" end
  if text == "/help" then io.stdout:write(HELP)
  elseif text == "/clear" then clear(chat.messages)
  elseif text == "/undo" then undo(chat.messages)
  elseif text == "/prompt" then io.stdout:write(chat:render() or "", "\n")
  else return false end
  return true
end

local function read_turn(reader)
  local text = reader("> ")
  while text and text:sub(-1) == "\\" do
    local more = reader(". ")
    text = text:sub(1, -2) .. "\n" .. (more or "")
  end
  return text
end

function M.run(args)
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local opts = common.sampling(args)
  opts.system, opts.max_tokens = args.system, args.max_tokens
  local chat
  chat, message = model:chat(opts)
  if not chat then return nil, message end
  if args.prompt then return answer(chat, args.prompt, args) end
  local terminal = core.isatty(0)
  if terminal then io.stdout:write(tostring(model), ", /help for help\n") end
  local reader = line.reader { history = "chat", terminal = terminal }
  for text in function() return read_turn(reader) end do
    local done = text:match "^%s*$" and true or text:sub(1, 1) == "/" and command(chat, text)
    if done == "quit" then break end
    if not done then
      local ok, failed = answer(chat, text, args)
      if not ok then
        if not terminal then return nil, failed end
        io.stderr:write(failed, "\n")
      end
    end
  end
  return true
end

return M
