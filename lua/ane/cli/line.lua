--- Lines from the user: with history and completion where a readline binding is installed, plain otherwise.
-- Needs readline (optional). Usage: `local read = line.reader {history = "repl"}; local text = read("> ")`

local M = {}

-- ~/.ane_history_<name>
local function history_file(name)
  local home = os.getenv "HOME"
  return home and home ~= "" and home .. "/.ane_history_" .. name or nil
end

local function plain(terminal)
  return function(prompt)
    if terminal then
      io.stdout:write(prompt)
      io.stdout:flush()
    end
    local text = io.stdin:read "l"
    if not text and terminal then io.stdout:write "\n" end
    return text
  end
end

--- A function(prompt) that gives the next line without its end, nil at the end of input.
-- @param opts terminal: whether standard input is one; history: name of the history file; complete: function(word) -> list
-- of words
function M.reader(opts)
  local ok, readline = pcall(require, "readline")
  if not opts.terminal or not ok then return plain(opts.terminal) end
  local file = history_file(opts.history)
  local saved = file and pcall(readline.set_options, { histfile = file, keeplines = 1000, completion = opts.complete ~= nil })
  if opts.complete then
    readline.set_complete_function(function(text, from, to)
      readline.set_completion_append_character("") -- readline sets it back to a space each time
      return opts.complete(text:sub(from, to))
    end)
  end
  return function(prompt)
    local text = readline.readline(prompt)
    if not text then
      if saved then pcall(readline.save_history) end
      io.stdout:write "\n"
    end
    return text
  end
end

return M
