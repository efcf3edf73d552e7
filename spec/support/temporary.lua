--- Removes the temporary files of specs.
-- Needs lua-filesystem. Usage: `local temporary = require "support.temporary"` before the specs run, `temporary.remove()` after them.
--
-- os.tmpname creates a file. Specs also make files and folders whose names begin with that name. What a spec leaves of them is removed
-- when all specs of the process have run, so that many runs do not fill the folder.

local lfs = require "lfs"

local M = {}

local names = {}

local tmpname = os.tmpname
function os.tmpname() -- luacheck: ignore 122
  local name = tmpname()
  names[#names + 1] = name
  return name
end

--- Removes all files and folders whose names begin with one that os.tmpname has returned.
function M.remove()
  local there = {} -- list of names by folder
  for _, name in ipairs(names) do
    local folder, base = name:match "^(.*)/([^/]*)$"
    if not there[folder] then
      there[folder] = {}
      for entry in lfs.dir(folder) do table.insert(there[folder], entry) end
    end
    for _, entry in ipairs(there[folder]) do
      local path = folder .. "/" .. entry
      if entry:sub(1, #base) == base and not os.remove(path) then os.execute(("rm -rf '%s'"):format(path)) end
    end
  end
  names = {}
end

return M
