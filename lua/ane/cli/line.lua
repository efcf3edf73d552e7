--- Lines from the user, with history and completion if a readline binding is installed.
-- Needs ane.core; readline (optional). Usage: `local read = line.reader {history = "repl"}; local text = read("> ")`

local core = require "ane.core"

local M = {}

-- ~/.ane_history_<name>
local function history_file(name)
  local home = os.getenv "HOME"
  return home and home ~= "" and home .. "/.ane_history_" .. name or nil
end

-- A reader that Ctrl-C does not end at once: the first clears the line (false), a second one in a row ends (nil). A Ctrl-C that
-- comes between two lines, while nothing is computed, counts for the next line.
-- @param read function(prompt) -> text, or nil at the end
-- @param finish function(broken) called at the end; broken: Ctrl-C ended the last line
local function interruptible(read, finish)
  local interrupted = false
  core.hold_interrupts(true)
  return function(prompt)
    local ok, text = core.interruptible(read, prompt)
    if not ok and not require("ane.cli").interrupted(text) then error(text, 0) end
    local again = interrupted
    interrupted = not ok
    if ok and text then return text end
    if not ok then core.drop_input(0) end
    io.stdout:write "\n"
    if ok or again then
      core.hold_interrupts(false)
      finish(not ok)
      return nil
    end
    io.stdout:write "(Ctrl-C again or Ctrl-D ends)\n"
    return false
  end
end

-- Reads a line of standard input; nil at its end.
local function plain(prompt)
  io.stdout:write(prompt)
  io.stdout:flush()
  return io.stdin:read "l"
end

-- A function(prompt) that reads a line by readline, key by key, because readline's own loop would pass Ctrl-C to Lua only with the next
-- line. While readline reads a key it catches signals. So it is called only if a key is there, and with signals blocked.
-- The binding's handler_remove closes files that readline still uses, unless a line has just been completed. So a line that Ctrl-C
-- broke off is not removed: the next handler_install clears it.
local function edited(readline)
  local last
  local mode = core.terminal_mode(0)
  return function(prompt)
    local text
    io.stdout:flush()
    core.keep_input(0)
    readline.handler_install(prompt, function(line)
      text = line or false
      readline.handler_remove() -- else it prompts again
    end)
    while text == nil do
      if core.wait_input(0) then core.without_signals(readline.read_char) end
    end
    core.terminal_mode(0, mode)
    if text and text:find "%S" and text ~= last then readline.add_history(text) end
    last = text
    return text or nil
  end
end

--- A function(prompt) that gives the next line without its end; nil at the end of input. On a terminal, Ctrl-C clears the line, and the
-- function gives false; Ctrl-C twice in a row ends the input.
-- @param opts terminal: whether standard input is one; history: name of the history file; complete: function(word) -> list
-- of words
function M.reader(opts)
  if not opts.terminal then return function() return io.stdin:read "l" end end
  local ok, readline = pcall(require, "readline")
  if not ok then return interruptible(plain, function() end) end
  local file = history_file(opts.history)
  local saved = file and pcall(readline.set_options, { histfile = file, keeplines = 1000, completion = opts.complete ~= nil })
  if opts.complete then
    readline.set_complete_function(function(text, from, to)
      readline.set_completion_append_character("") -- readline sets it back to a space each time
      return opts.complete(text:sub(from, to))
    end)
  end
  local mode = core.terminal_mode(0)
  return interruptible(edited(readline), function(broken)
    if broken and mode then -- readline's own mode and its bracketed paste are still on
      core.terminal_mode(0, mode)
      io.stdout:write "\27[?2004l"
    end
    if saved then pcall(readline.save_history) end
  end)
end

return M
