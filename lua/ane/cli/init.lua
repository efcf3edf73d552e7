--- The command `ane`: finds the subcommand, parses its options, turns failures into one line and an exit code.
-- Needs argparse; each command is a file beside this one that returns summary, options(parser) and run(args) -> true, or
-- nil, message. Exit codes: 0, 1 failure, 2 wrong usage, 130 interrupted. Usage: `os.exit(cli.main(arg))`

local argparse = require "argparse"

local M = {}

--- Subcommands in the order of the help.
M.commands = {
  "run", "chat", "repl", "info", "tokenize", "logits", "render", "classify", "redact", "check", "quantise", "compare",
  "plan", "size", "export", "bench", "predict", "grammar",
}

local function module_of(name)
  return require("ane.cli." .. name)
end

local function parser()
  local p = argparse("ane", "Language models on the CPU, from Lua.", "Every command has --help.")
  p:flag("--version", "Show the version and exit."):action(function()
    io.stdout:write("ane ", require("ane")._VERSION, "\n")
    os.exit(0)
  end)
  p:require_command(true):command_target "command"
  for _, name in ipairs(M.commands) do
    local command = module_of(name)
    local sub = p:command(name):summary(command.summary):description(command.summary)
    sub:help_description_margin(32):help_max_width(120)
    command.options(sub)
  end
  return p
end

-- One line of any error: the text of an unexpected one loses its place in our files, an argparse one its list of options.
local function one_line(message)
  message = tostring(message):gsub("^(.*module '[^']+' not found):\n.*", "%1")
  message = message:gsub("^%S+%.lua:%d+: ", ""):gsub("%s*stack traceback:.*", ""):gsub("%s*\n%s*", " ")
  return message
end

local function complain(name, message)
  pcall(io.stdout.flush, io.stdout)
  io.stderr:write("ane", name and " " .. name or "", ": ", one_line(message), "\n")
end

--- Was this error Lua's answer to Ctrl-C?
function M.interrupted(message)
  return type(message) == "string" and message:find("interrupted!", 1, true) ~= nil
end

--- Is this the name of a command?
function M.has(name)
  for _, command in ipairs(M.commands) do
    if command == name then return true end
  end
  return false
end

-- "help run" as "run --help", "help" as "--help".
local function as_option(argv)
  if argv[1] ~= "help" then return argv end
  return argv[2] and { argv[2], "--help" } or { "--help" }
end

-- The exit code; failures are reported.
local function dispatch(argv)
  argv = as_option(argv)
  local ok, args = parser():pparse(argv)
  if not ok then
    local name = M.has(argv[1]) and argv[1]
    complain(name, args .. (" (see ane %s--help)"):format(name and name .. " " or ""))
    return 2
  end
  local done, message = module_of(args.command).run(args)
  if done then return 0 end
  complain(args.command, message)
  return 1
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

-- dispatch, with all that it writes on its way to the disk when it returns.
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
  local ok, result = run(argv)
  if ok then return result end
  if M.interrupted(result) then
    io.stderr:write "\n"
    return 130
  end
  complain(M.has(argv[1]) and argv[1], result)
  return 1
end

return M
