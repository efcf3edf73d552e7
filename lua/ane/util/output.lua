--- Outputs that are written in pieces. A regular file appears when it is complete; a device or a pipe has each piece at once.
-- Needs ane.core. Usage:
--   local out <close> = assert(output.open(path)); assert(out:write "text"); assert(out:commit())

local core = require "ane.core"

local M = {}

-- A device or a pipe, with the methods of core.create's writer.
local Device = {}
Device.__index = Device

local function result(self, ok, message)
  if ok then return true end
  return nil, ("%s: cannot write: %s"):format(self.path, message), "io"
end

function Device:write(text) return result(self, self.file:write(text)) end

function Device:commit() return result(self, self.file:flush()) end

function Device:close()
  if io.type(self.file) == "file" then self.file:close() end
end

Device.__close = Device.close

--- Opens an output.
-- @return writer with write(text) and commit(), which give true or nil, message, code, and close(), which removes a file that was not
-- committed; or nil, message, code
function M.open(path)
  if core.path_kind(path) ~= "other" then return core.create(path) end
  local file, message = io.open(path, "wb")
  if not file then return nil, message, "io" end
  file:setvbuf "no"
  return setmetatable({ path = path, file = file }, Device)
end

return M
