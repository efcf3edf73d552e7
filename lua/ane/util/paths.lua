--- Paths: those that files name, and their folders.
-- Needs ane.core. Usage: `if not paths.is_inside(path) then ... end`

local core = require "ane.core"

local M = {}

--- Returns whether a path is relative and has no parts that lead out of its folder.
function M.is_inside(path)
  if type(path) ~= "string" or path == "" or path:sub(1, 1) == "/" or path:find "[\\\0]" then return false end
  for part in path:gmatch "[^/]+" do
    if part == ".." or part == "." then return false end
  end
  return true
end

--- The folder of a path, "." if it names none; "" for the root.
function M.folder_of(path) return path:match "^(.*)/[^/]*$" or "." end

--- The last part of a path, whether or not slashes follow; nil: it has none.
function M.name_of(path) return path:match "([^/]+)/*$" end

--- Returns whether a path below a folder leads through a symbolic link.
-- @param folder path, without a slash at its end; it may be a link itself
-- @param path relative to the folder; each of its parts is checked
function M.is_linked(folder, path)
  for part in path:gmatch "[^/]+" do
    folder = folder .. "/" .. part
    if core.is_link(folder) then return true end
  end
  return false
end

return M
