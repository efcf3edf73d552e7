--- Runs the command `ane` inside the spec's own process.
-- Usage: `local code, out, err = command.run({"run", path, "--ids", "1,2"}, "standard input")`

local core = require "ane.core"

local M = {}

local function sink()
  local parts = {}
  local file = {}
  function file.write(self, ...)
    for i = 1, select("#", ...) do parts[#parts + 1] = tostring((select(i, ...))) end
    return self
  end
  function file.flush() end
  return file, function() return table.concat(parts) end
end

-- A standard input that holds a text. As a real file it refuses other formats.
local function source(text)
  local at = 1
  local file = {}
  function file.read(_, format)
    if format == "a" then
      local rest = text:sub(at)
      at = #text + 1
      return rest
    end
    if format ~= nil and format ~= "l" then error("bad argument #1 to 'read' (invalid format)") end
    if at > #text then return nil end
    local line, stop = text:match("^([^\n]*)\n?()", at)
    at = stop
    return line
  end
  return file
end

--- Runs a command line.
-- @param args list of arguments
-- @param input text on standard input
-- @return exit code, what it wrote to standard output, and to standard error
function M.run(args, input)
  local saved = { stdin = io.stdin, stdout = io.stdout, stderr = io.stderr, exit = os.exit, print = print }
  local out, out_text = sink()
  local err, err_text = sink()
  -- luacheck: push ignore 122 121
  io.stdin, io.stdout, io.stderr = source(input or ""), out, err
  os.exit = function(code) coroutine.yield(code == true and 0 or code or 0) end -- leaves the coroutine for good
  print = function(...) out:write(table.concat({ ... }, "\t"), "\n") end
  local ok, code = coroutine.resume(coroutine.create(require("ane.cli").main), args)
  io.stdin, io.stdout, io.stderr, os.exit, print = saved.stdin, saved.stdout, saved.stderr, saved.exit, saved.print
  -- luacheck: pop
  if not ok then error(code, 0) end
  return code, out_text(), err_text()
end

--- Runs a command line with --json.
-- @return the object; raises where the command failed
function M.json(args, input)
  local all = table.move(args, 1, #args, 1, {})
  all[#all + 1] = "--json"
  local code, out, err = M.run(all, input)
  if code ~= 0 then error(("exit %d: %s"):format(code, err), 2) end
  assert(err == "", err)
  return assert(core.json_decode(out))
end

--- Path of the built command.
function M.path()
  local so = package.searchpath("ane.core", package.cpath)
  return so:gsub("ane/core%.so$", "bin/ane")
end

return M
