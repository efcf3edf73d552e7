--- A folder for the files of a target, in memory where the system has such a folder. It goes away when the Lua state closes.
-- Usage: `local path = scratch.write("model.gguf", data)`

local core = require "ane.core"

local M = {}

local function temporary()
  local shm = core.path_kind "/dev/shm" == "folder"
  local name = os.tmpname()
  os.remove(name)
  if shm then name = "/dev/shm/" .. name:match "[^/]*$" end
  return name
end

--- The folder.
M.path = temporary()
assert(os.execute(("mkdir -p '%s'"):format(M.path)))

local function remove() os.execute(("rm -rf '%s'"):format(M.path)) end
M.guard = setmetatable({}, { __gc = remove, __close = remove })

--- Writes a file; folders in its name must exist.
-- @return its path
function M.write(name, data)
  local path = M.path .. "/" .. name
  local file = assert(io.open(path, "wb"))
  assert(file:write(data))
  file:close()
  return path
end

--- Makes a folder and those above it.
-- @return its path
function M.folder(name)
  local path = M.path .. "/" .. name
  assert(os.execute(("mkdir -p '%s'"):format(path)))
  return path
end

--- Removes a file or a folder with all that is in it.
function M.remove(name)
  local path = M.path .. "/" .. name
  if core.path_kind(path) == "file" then os.remove(path)
  elseif core.path_kind(path) then os.execute(("rm -rf '%s'"):format(path)) end
end

--- The bytes of a file of the tree.
function M.read(path) return assert(core.read_file(path)) end

return M
