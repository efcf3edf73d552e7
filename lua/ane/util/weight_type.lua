--- Which stored types are those of weights.
-- Needs ane.util.failure. Usage: `weight_type.check(source, name, info.dtype)`
--
-- Integers and booleans are data, not weights. Files of weights that are quantised to integers hold scales beside them; only the readers
-- of their scheme know what the integers stand for.

local failure = require "ane.util.failure"

local M = {}

--- Is this stored type not one of weights?
function M.is_data(dtype) return dtype == "bool" or dtype:find "^u?int%d+$" ~= nil end

--- Refuses a weight of such a type.
-- @param source that holds it
-- @param name of the tensor
-- @param dtype its stored type; nil: not known
-- @raise {message, code}
function M.check(source, name, dtype)
  if not dtype or not M.is_data(dtype) then return end
  local what = "%s: tensor %s must be floats or a quantised type, but is of type %s"
  failure.raise("unsupported", what, source:path(), name, dtype)
end

return M
