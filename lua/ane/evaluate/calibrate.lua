--- Importance (imatrix) on a text: how it is measured (ane.model.importance), and files of it.
-- Needs ane.core, ane.model.importance, ane.model.windows and ane.util.keys. Usage:
--   local importance = assert(calibrate.run(model, text)); assert(calibrate.save(importance, "importance.bin"))

local core = require "ane.core"
local importance_of = require "ane.model.importance"
local keys = require "ane.util.keys"

local M = {}

--- Options of run; and run, which feeds a text to a model and collects the mean square of each input column: see ane.model.importance.
M.rules, M.run = importance_of.rules, importance_of.run

--- Splits an input into runs of ids, each for an empty cache. See ane.model.windows.
M.runs = require("ane.model.windows").split

--- Writes importance to a file, as a whole or not at all. Format: a first line, then for each tensor a line "name count" and
-- count float32.
function M.save(importance, path)
  local parts = { "ane importance 1\n" }
  for _, name in ipairs(keys(importance)) do
    local bytes = importance[name]:tostring()
    parts[#parts + 1] = ("%s %d\n"):format(name, #bytes // 4) .. bytes
  end
  return core.write_file(path, table.concat(parts))
end

--- Reads a file of importance.
-- @return name -> tensor; or nil, message, code
function M.load(path)
  local text, message, code = core.read_file(path)
  if not text then return nil, message, code end
  local at = #"ane importance 1\n" + 1
  if text:sub(1, at - 1) ~= "ane importance 1\n" then return nil, path .. ": is not a file of importance", "format" end
  local importance = {}
  while at <= #text do
    local name, count, from = text:match("^(%g+) (%d+)\n()", at)
    local n = count and math.tointeger(tonumber(count))
    if not n or n < 1 or n > (#text - from + 1) // 4 then return nil, ("%s: damaged at byte %d"):format(path, at), "format" end
    importance[name] = core.tensor({ n }, text:sub(from, from + 4 * n - 1))
    at = from + 4 * n
  end
  return importance
end

return M
