--- Asks Python's libraries: spec/audit/reference.py, in a process of its own for each list of questions.
-- Usage: `if not reference.missing "jinja2" then local answers = reference.ask("templates", list) end`

local core = require "ane.core"

local M = {}

local python = os.getenv "PYTHON" or "python3"
local known = {}

--- Why a library cannot be asked; nil: it can.
function M.missing(library)
  if known[library] == nil then
    known[library] = os.execute(("%s -c 'import %s' >/dev/null 2>&1"):format(python, library)) and true or false
  end
  return not known[library] and ("%s has no %s"):format(python, library) or nil
end

--- Runs a script of Python; raises if it fails.
-- @param command the script and its arguments
function M.run(command) assert(os.execute(("%s %s >/dev/null 2>&1"):format(python, command)), python .. " failed: " .. command) end

--- The answers to a list of questions.
-- @param what the name of a function of reference.py
-- @param list of values that JSON can say
function M.ask(what, list)
  local from, to = os.tmpname(), os.tmpname()
  assert(core.write_file(from, assert(core.json_encode(list))))
  local ok = os.execute(("%s spec/audit/reference.py %s <%s >%s"):format(python, what, from, to))
  local text = assert(core.read_file(to))
  os.remove(from)
  os.remove(to)
  assert(ok, python .. " failed")
  return assert(core.json_decode(text))
end

return M
