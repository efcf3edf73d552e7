--- The command `ane`: finds the subcommand, parses its options, and reports failures with one line and an exit code.
-- Needs ane.cli.ranks, ane.cli.relations, ane.core, ane.util.failure, argparse, later ane.cli.common, ane.cli.outputs and
-- ane.cli.sandbox, and the modules of the commands.
-- Usage: `os.exit(cli.main(arg))`
--
-- A command is a name in M.commands and a file of that name beside this one, which returns
--   summary           a sentence
--   options(parser)   adds arguments and options (ane.cli.options has those that several commands share)
--   run(args)         gives true; or nil, message, code. The code "usage" stands for wrong usage (options.wrong)
--   writes            name of the argument or option whose file it writes in pieces: if it is given, SIGTERM cleans up as Ctrl-C does
--   in_place          name of an argument whose file the output may replace (ane.cli.outputs)
--   loads(args)       gives false if args.model is another input than a model; without it: true
--   interrupted(args) gives what the command says after it was interrupted, or nil
--   needs, excludes   which options go together (ane.cli.relations)
--   ranks             true if its model may be divided among several ranks (ane.cli.ranks)
--   joins(args)       gives whether it joins the processes of a launcher, for a command that does so without `ranks`
-- To add one: the name, the file, its spec in spec/ane/cli, a line in README.md or docs/guide.md, and with --json a row in
-- docs/json.md. The help, the specs of all commands and `ane help NAME` take it from the list.
--
-- Exit codes: 0; 1 failure; 2 wrong usage; 130 interrupted; 143 terminated.

local argparse = require "argparse"
local core = require "ane.core"
local failures = require "ane.util.failure"
local ranks = require "ane.cli.ranks"
local relations = require "ane.cli.relations"

local M = {}

--- Subcommands in the order of the help.
M.commands = {
  "run", "chat", "repl", "info", "tokenize", "logits", "render", "classify", "redact", "check", "quantise", "compare",
  "plan", "size", "export", "bench", "predict", "grammar", "embed", "rerank", "batch", "serve", "pull",
}

local function module_of(name)
  return require("ane.cli." .. name)
end

-- Makes the parser of all commands.
-- @param show function(text), called for --help and --version, which end parsing
local function parser(show)
  -- argparse's own --help ends the process and does not see that a write fails.
  local function add_help(p)
    p:add_help { action = function() show(p:get_help()) end }
    return p
  end
  local summary = "Run language models on the CPU, quantise them, and write them for the Apple Neural Engine."
  local p = add_help(argparse("ane", summary, "Every command has --help."))
  p:flag("--version", "Show the version and exit."):action(function() show("ane " .. require("ane")._VERSION) end)
  p:require_command(true):command_target "command"
  for _, name in ipairs(M.commands) do
    local command = module_of(name)
    local sub = add_help(p:command(name):summary(command.summary):description(command.summary))
    sub:help_description_margin(32):help_max_width(120)
    command.options(sub)
    if command.ranks then ranks.options(sub) end
  end
  return p
end

-- Parses the words.
-- @return the options; false if a text was shown instead; nil, message if they are wrong
local function parse(argv)
  local shown
  local p = parser(function(text)
    shown = text
    error "shown"
  end)
  local called, ok, args = pcall(p.pparse, p, argv)
  if shown then
    io.stdout:write(shown, "\n")
    return false
  end
  if not called then error(ok, 0) end
  if not ok then return nil, args end
  return args
end

-- ---- The words of the command line ---------------------------------------------------------------------------------------

--- Returns whether this is the name of a command.
function M.has(name)
  for _, command in ipairs(M.commands) do
    if command == name then return true end
  end
  return false
end

-- Replaces "help run" by "run --help", and "help" by "--help".
local function as_option(argv)
  if argv[1] ~= "help" then return argv end
  return argv[2] and { argv[2], "--help" } or { "--help" }
end

-- Replaces "--seed -1" by "--seed=-1", and "-n -1" by "-n-1": argparse takes a word that begins with "-" for an option.
local function join_negative(argv)
  local words = {}
  for i, word in ipairs(argv) do
    local before = words[#words]
    if i > 1 and word:find "^%-%.?%d" and before:find "^%-%-%l[%w-]*$" then
      words[#words] = before .. "=" .. word
    elseif i > 1 and word:find "^%-%.?%d" and before:find "^%-%a$" then
      words[#words] = before .. word
    else
      words[#words + 1] = word
    end
  end
  return words
end

-- ---- Failures ------------------------------------------------------------------------------------------------------------

-- Returns an error as one line, without the place of an unexpected error, and without argparse's list of options.
local function one_line(message)
  message = tostring(message):gsub("^(.*module '[^']+' not found):\n.*", "%1")
  message = message:gsub("^%S+%.lua:%d+: ", ""):gsub("%s*stack traceback:.*", ""):gsub("%s*\n%s*", " ")
  return message
end

local function complain(name, message)
  pcall(io.stdout.flush, io.stdout)
  io.stderr:write("ane", name and " " .. name or "", ": ", one_line(message), "\n")
end

--- Returns whether this error is the one that Lua raises after Ctrl-C, or one whose cause it is ("FILE: interrupted!").
function M.interrupted(raised)
  return failures.is_interrupt(raised) or type(raised) == "string" and raised:find ": interrupted!$" ~= nil
end

-- The help of a command, without that of the program.
local function help_of(name)
  local command, p = module_of(name), argparse(name)
  command.options(p)
  if command.ranks then ranks.options(p) end
  return p:get_help() .. "\n"
end

-- Options of the Lua API that a message names, as they are typed: "option top_p" is "--top-p". Those that the command does not have
-- stay.
local function as_typed(message, args)
  local help
  return (tostring(message):gsub("option ([%l_]+)", function(name)
    local typed = relations.spelling(name)
    help = help or help_of(args.command)
    return (args[name] ~= nil or help:find(typed:gsub("%-", "%%-") .. "[^%w-]")) and typed or nil
  end))
end

-- Returns whether this message is about an option that was typed. Messages of the modules begin with the option's name.
local function is_usage(message, args)
  local option = type(message) == "string" and message:match "^option ([%l_]+)[ :]"
  return option and args[option] ~= nil
end

-- Removes the place and the name of the function from a raised misuse of the Lua API: "x.lua:1: load: option context must be ...".
local function without_place(raised)
  return type(raised) == "string" and (raised:gsub("^%S+%.lua:%d+: ", ""):gsub("^%l+: ", "")) or nil
end

-- ---- Running -------------------------------------------------------------------------------------------------------------

-- Runs a command; a model that is named as one of a hub is fetched first. With --sandbox the process gives up its rights before the
-- command opens anything.
local function run_with_model(command, args)
  local path, message, code = require("ane.cli.common").path(args, args.model)
  if message then return nil, message, code end
  args.model = path
  local done
  done, message, code = require("ane.cli.outputs").check(command, args)
  if not done then return nil, message, code end
  done, message, code = require("ane.cli.sandbox").enter(args, true, ranks.joins(command, args))
  if not done then return nil, message, ranks.is_silent() and "told" or code end
  done, message, code = ranks.run(command, args)
  return done, message, code
end

-- What the command that ran last says of its interruption; nil: nothing.
local advice

-- Raises a message again. If it tells of an interruption, asks the command what to say of it.
local function raise(command, args, message)
  advice = M.interrupted(message) and command.interrupted and command.interrupted(args) or nil
  error(message, 0)
end

-- Runs a command and reports failures. Returns the exit code.
local function run_command(args)
  local command = module_of(args.command)
  local fault = relations.fault(command, args)
  if fault then
    if not ranks.is_silent() then complain(args.command, fault) end -- else rank 0 says it
    return 2
  end
  if command.writes and args[command.writes] then core.catch_termination(true) end
  local ran, done, message, code = pcall(run_with_model, command, args)
  if not ran then
    message = without_place(done)
    if not is_usage(message, args) then raise(command, args, done) end
  elseif done then
    return 0
  elseif M.interrupted(message) then
    raise(command, args, message) -- Ctrl-C in a function that the core or a recipe called
  end
  if code ~= "told" then complain(args.command, as_typed(message, args)) end -- else by rank 0
  return (code == "usage" or is_usage(message, args)) and 2 or 1
end

-- Reports failures. Returns the exit code.
local function dispatch(argv)
  argv = join_negative(as_option(argv))
  local args, message = parse(argv)
  if args then return run_command(args) end
  if not message then return 0 end
  if ranks.is_silent() then return 2 end -- rank 0 says it
  local name = M.has(argv[1]) and argv[1]
  complain(name, message .. (" (see ane %s--help)"):format(name and name .. " " or ""))
  return 2
end

-- A file whose failed writes raise: a full disk is a failure of the command, not of a line in its middle.
local function checked(file)
  local function sure(ok, message)
    if not ok and message then error("standard output: " .. message, 0) end
  end
  local out = {}
  function out.write(self, ...)
    sure(file:write(...))
    return self
  end
  function out.flush(self)
    sure(file:flush())
    return self
  end
  return out
end

-- Calls dispatch. All output is flushed when it returns.
local function run(argv)
  local plain = io.stdout
  io.stdout = checked(plain) -- luacheck: ignore 122
  local ok, result = pcall(dispatch, argv)
  if ok then ok, result = pcall(function() return io.stdout:flush() and result end) end
  io.stdout = plain -- luacheck: ignore 122
  return ok, result
end

--- Runs the command line.
-- @param argv list of arguments
-- @return the exit code
function M.main(argv)
  core.fill_standard_files()
  local ok, result = run(argv)
  core.catch_termination(false)
  if ok then return result end
  if M.interrupted(result) then
    io.stderr:write "\n"
    if advice then complain(argv[1], advice) end
    return core.terminated() and 143 or 130
  end
  complain(M.has(argv[1]) and argv[1], result)
  return 1
end

return M
