--- `ane chat`: a conversation in the terminal.
-- Needs ane.cli, ane.cli.common, ane.cli.line, ane.cli.options, ane.cli.prompt_cache and ane.core.

local common = require "ane.cli.common"
local core = require "ane.core"
local line = require "ane.cli.line"
local options = require "ane.cli.options"
local prompt_cache = require "ane.cli.prompt_cache"

local M = {}

M.summary = "Talk with a model."
M.ranks = true

function M.options(parser)
  options.model(parser)
  parser:option("-s --system", "System message."):argname "TEXT"
  parser:option("-p --prompt", "Send this message, print the reply and exit."):argname "TEXT"
  options.max_tokens(parser)
  options.sampling(parser)
  parser:option("--overflow", "When the context is full, drop removes the oldest turns (not the system message), and error ends with "
    .. "an error."):choices {
    "drop", "error" }:default "drop"
  prompt_cache.option(parser)
  parser:flag("--timings --stats", "Show speed on standard error after each reply.")
end

-- Writes one reply as it is generated. Ctrl-C ends the reply. Ctrl-C while nothing is computed ends the program.
local function answer(chat, said, args)
  local fault = common.utf8_fault(said, "the text")
  if fault then return nil, fault end
  local pieces, message
  local ok, raised = core.interruptible(function()
    pieces, message = chat:stream(said)
    if not pieces then return end
    for piece in pieces do
      io.stdout:write(piece)
      io.stdout:flush()
    end
  end)
  if pieces then
    pieces:close()
    io.stdout:write "\n"
    io.stdout:flush() -- before standard error is written
  end
  if not ok then
    if args.prompt or not require("ane.cli").interrupted(raised) then error(raised, 0) end
    return true
  end
  if not pieces then return nil, message end
  local dropped = pieces.result.dropped
  if dropped then common.remark(args, "the context is full: the oldest %d messages are forgotten", dropped) end
  common.check_cut(args, pieces.result, chat.model)
  if args.timings then io.stderr:write("[", common.speed(pieces.result.timings, pieces.result.stop), "]\n") end
  return true
end

-- ---- Commands of the conversation ------------------------------------------------------------------------------------------

-- Number of leading messages that /reset keeps: the system message.
local function kept(messages) return messages[1] and messages[1].role == "system" and 1 or 0 end

-- Replaces the messages of a conversation from index `first` on.
local function replace(messages, first, others)
  for i = #messages, first, -1 do messages[i] = nil end
  table.move(others, 1, #others, first, messages)
end

-- Removes the last message of the user and all after it.
local function undo(messages)
  while #messages > kept(messages) do
    if table.remove(messages).role == "user" then return end
  end
end

-- Messages of a JSON text: a list, or an object with `messages`.
local function read_messages(path, text)
  local value, message = core.json_decode(text)
  if value == nil then return nil, ("%s: %s"):format(path, message) end
  local list = type(value) == "table" and (value.messages or value)
  for i, m in ipairs(type(list) == "table" and list or { false }) do
    if type(m) ~= "table" or type(m.role) ~= "string" then
      return nil, ("%s: entry %d is not a message: the file must be a list of {\"role\": ..., \"content\": ...}"):format(path, i)
    end
  end
  return list
end

-- Writes the conversation: its messages as JSON if the name ends with .json; otherwise with its session, so that nothing is computed
-- again. A file with something else stays as it is.
local function save(talk, path)
  local chat, is_json = talk.chat, path:find "%.json$"
  if core.path_kind(path) == "file" then
    local is_foreign = prompt_cache.is_foreign(path)
    if is_json then
      local text = core.read_file(path)
      is_foreign = not (text and read_messages(path, text))
    end
    if is_foreign then return nil, path .. ": is not a conversation, and would be overwritten; name another file" end
  end
  if not is_json then return chat:save(path) end
  local text = core.json_encode({ messages = core.json_array(chat.messages) }, { sort = true })
  return core.write_file(path, text .. "\n")
end

-- Continues the conversation of a file that /save wrote, or messages in JSON.
local function load_file(talk, path)
  local text, message = core.read_file(path)
  if not text then return nil, message end
  if text:find "^%s*[%[{]" then
    local messages
    messages, message = read_messages(path, text)
    if messages then replace(talk.chat.messages, 1, messages) end
    return messages and true, message
  end
  local opts = { restore = path }
  for key, value in pairs(talk.opts) do
    if key ~= "system" then opts[key] = value end
  end
  local chat
  chat, message = talk.model:chat(opts)
  if not chat then return nil, message end
  talk.chat:close()
  talk.chat = chat
  return true
end

-- In the order of /help: name, argument, help, run(talk, argument) -> true; or nil, message; "quit" ends the program.
local COMMANDS
COMMANDS = {
  { "/help", nil, "show this", function()
    for _, row in ipairs(COMMANDS) do
      io.stdout:write(("%-12s %s\n"):format(row[1] .. (row[2] and " " .. row[2] or ""), row[3]))
    end
    io.stdout:write "A line that ends with a backslash continues on the next line; a line that begins with // is a text with one slash.\n"
    io.stdout:write "Ctrl-C ends a reply, or clears the line; a second one ends the program, as Ctrl-D does.\n"
    return true
  end },
  { "/reset", nil, "forget the conversation; the system message stays", function(talk)
    replace(talk.chat.messages, kept(talk.chat.messages) + 1, {})
    return true
  end },
  { "/undo", nil, "forget the last question and its reply", function(talk)
    undo(talk.chat.messages)
    return true
  end },
  { "/save", "FILE", "write the conversation to a file; with a name that ends with .json the messages only", save },
  { "/load", "FILE", "go on with the conversation of a file", load_file },
  { "/prompt", nil, "show the prompt as the template makes it", function(talk)
    local text, message = talk.chat:render()
    if not text then return nil, message end
    io.stdout:write(text, "\n")
    return true
  end },
  { "/quit", nil, "end", function() return "quit" end },
}

-- Old names of commands.
local ALIASES = { ["/clear"] = "/reset", ["/exit"] = "/quit" }

-- Runs a row of COMMANDS. Ctrl-C interrupts it, and the conversation continues.
local function run_command(row, talk, argument)
  local ok, done, message = core.interruptible(row[4], talk, argument)
  if ok then return done, message end
  if not require("ane.cli").interrupted(done) then error(done, 0) end
  return nil, row[1] .. ": interrupted"
end

-- Runs a line that begins with a slash: true, or "quit"; or nil, message.
local function command(talk, text)
  local name, argument = text:match "^(%S+)%s*(.-)%s*$"
  name = ALIASES[name] or name
  local names = {}
  for i, row in ipairs(COMMANDS) do
    names[i] = row[1]
    if row[1] == name then
      if row[2] and argument == "" then return nil, ("%s needs a %s"):format(name, row[2]) end
      if not row[2] and argument ~= "" then return nil, name .. " takes no argument" end
      return run_command(row, talk, argument)
    end
  end
  return nil, ("there is no command '%s': choose %s (a text that begins with a slash is written with two)"):format(name,
    table.concat(names, ", "))
end

-- ---- The conversation ----------------------------------------------------------------------------------------------------

-- Returns the next text of the user; nil at the end; false if Ctrl-C cleared the line.
local function read_turn(reader)
  local text = reader("> ")
  while text and text:sub(-1) == "\\" do
    local more = reader(". ")
    if more == false then return false end
    text = text:sub(1, -2) .. "\n" .. (more or "") -- nil: the input ends
  end
  return text
end

-- Takes one turn: true, or "quit"; or nil, message.
local function turn(talk, text, args)
  if text:match "^%s*$" then return true end
  if text:sub(1, 2) == "//" then return answer(talk.chat, text:sub(2), args) end
  if text:sub(1, 1) == "/" then return command(talk, text) end
  return answer(talk.chat, text, args)
end

-- Takes turns until the end of the input or /quit. If the input is not a terminal, a failure ends the conversation.
-- @param talk {model, opts (of the chat), chat}; /load replaces the chat
local function converse(talk, args)
  local terminal = core.isatty(0)
  if terminal then io.stdout:write(tostring(talk.model), ", /help for help\n") end
  local reader = line.reader { history = "chat", terminal = terminal }
  while true do
    local text = read_turn(reader)
    if text == nil then return true end
    local done, message = true, nil
    if text then done, message = turn(talk, text, args) end
    if done == "quit" then
      core.hold_interrupts(false)
      return true
    end
    if not done and not terminal then return nil, message end
    if not done then io.stderr:write(message, "\n") end
  end
end

function M.run(args)
  local fault = args.system and common.utf8_fault(args.system, "--system") or args.prompt and common.utf8_fault(args.prompt, "--prompt")
  if fault then return options.wrong("%s", fault) end
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local opts = options.generation(args)
  opts.system, opts.overflow, opts.progress = args.system, args.overflow, common.progress(args)
  local chat
  chat, message = model:chat(opts)
  if not chat then return nil, message end
  local session
  session, message = prompt_cache.open(args, model)
  if session == nil then return nil, message end
  if session then chat.session = session end
  local talk = { model = model, opts = opts, chat = chat }
  local ok, code
  if args.prompt then ok, message, code = answer(chat, args.prompt, args) else ok, message, code = converse(talk, args) end
  local saved, why, word = prompt_cache.save(args, talk.chat.session)
  if ok and not saved then return nil, why, word end
  return ok, message, code
end

return M
