--- Checks the files of a package set against its manifest: presence, size, and by option hashes.
-- Needs ane.core, ane.util.keys and ane.util.paths. Usage: `local ok, message, code = files.check(folder, meta, { verify = true })`
--
-- Sizes of the packages that are opened are always checked. Hashing reads all bytes of the set again (about a gigabyte a
-- second), so it is done on demand. The manifest itself has no hash.

local core = require "ane.core"
local keys = require "ane.util.keys"
local paths = require "ane.util.paths"

local M = {}

-- Calls fn(path, kind) for everything in a folder and below it, sorted by name. Returns true; or nil, message, code.
local function walk(folder, prefix, depth, fn)
  local names, message, code = core.list_dir(folder .. prefix)
  if not names then return nil, message, code or "io" end
  table.sort(names)
  for _, name in ipairs(names) do
    local path = prefix .. name
    local kind = core.path_kind(folder .. path)
    local ok = true
    if kind == "folder" and depth < 8 then ok, message, code = walk(folder, path .. "/", depth + 1, fn)
    elseif kind == "file" then ok, message, code = fn(path) end
    if not ok then return nil, message, code end
  end
  return true
end

local function size_of(path)
  local f <close>, why = io.open(path, "rb")
  if not f then return nil, why, "io" end
  return f:seek "end"
end

-- Do all packages exist, with as many bytes as were written?
local function check_sizes(folder, packages)
  for _, p in ipairs(packages) do
    if core.path_kind(folder .. p.path) ~= "folder" then return nil, p.path .. ": the package is not there", "notfound" end
    local bytes = 0
    local ok, message, code = walk(folder .. p.path .. "/", "", 0, function(path)
      local n, why, word = size_of(folder .. p.path .. "/" .. path)
      bytes = bytes + (n or 0)
      return n, why, word
    end)
    if not ok then return nil, message, code end
    if bytes ~= p.bytes then
      return nil, ("%s: the package has %d bytes, %d were written"):format(p.path, bytes, p.bytes), "format"
    end
  end
  return true
end

--- Bytes and hash of a folder: SHA-256 of lines "<SHA-256 of the file>  <path>\n", by path; and of each file {bytes, sha256}.
-- @return bytes, hash, {path = {bytes, sha256}}; or nil, message, code
function M.measure(folder)
  local lines, sum, files = {}, 0, {}
  local ok, message, code = walk(folder .. "/", "", 0, function(path)
    local hash, bytes, word = core.sha256_file(folder .. "/" .. path)
    if not hash then return nil, bytes, word or "io" end
    files[path], sum = { bytes = bytes, sha256 = hash }, sum + bytes
    return true
  end)
  if not ok then return nil, message, code end
  for i, path in ipairs(keys(files)) do lines[i] = ("%s  %s\n"):format(files[path].sha256, path) end
  return sum, core.sha256(table.concat(lines)), files
end

-- ---- Hashes -------------------------------------------------------------------------------------------------------------

-- Checks a file against {bytes, sha256}.
local function check_file(folder, path, want)
  if not paths.is_inside(path) then return nil, ("files: path %q leaves the folder"):format(tostring(path)), "format" end
  if type(want) ~= "table" or type(want.sha256) ~= "string" then return nil, ("files: %s has no hash"):format(path), "format" end
  if core.path_kind(folder .. path) ~= "file" then return nil, path .. ": the file is not there", "notfound" end
  local hash, bytes, code = core.sha256_file(folder .. path)
  if not hash then return nil, bytes, code or "io" end
  if hash ~= want.sha256 then
    local text = "%s: the file differs from the one that was written: its SHA-256 is %s, but must be %s"
    return nil, text:format(path, hash, want.sha256), "format"
  end
  return true
end

-- Checks every file that the manifest lists, and that packages hold no others.
local function check_listed(folder, meta, progress)
  local listed = keys(meta.files)
  for i, path in ipairs(listed) do
    local ok, message, code = check_file(folder, path, meta.files[path])
    if not ok then return nil, message, code end
    if progress then progress("verify", i, #listed) end
  end
  for _, p in ipairs(meta.packages) do
    local ok, message, code = walk(folder, p.path .. "/", 0, function(path)
      if meta.files[path] then return true end
      return nil, path .. ": is not listed under files of the manifest", "format"
    end)
    if not ok then return nil, message, code end
  end
  return true
end

-- Checks a manifest that has only hashes of whole packages, as measure gives them.
local function check_packages(folder, meta, progress)
  for i, p in ipairs(meta.packages) do
    if type(p.sha256) ~= "string" or p.sha256 == "" then
      return nil, ("packages[%d] (%s): sha256 is missing, so the package cannot be verified"):format(i, p.path), "unsupported"
    end
    local bytes, hash, code = M.measure(folder .. p.path)
    if not bytes then return nil, hash, code end
    if hash ~= p.sha256 then
      return nil, ("%s: the package differs from the one that was written: its hash must be %s, but is %s"):format(p.path, p.sha256, hash),
        "format"
    end
    if progress then progress("verify", i, #meta.packages) end
  end
  local embed = type(meta.hashes) == "table" and meta.embed_bin and meta.hashes[meta.embed_bin]
  if embed then return check_file(folder, meta.embed_bin, { sha256 = embed }) end
  return true
end

--- Checks the files of a set.
-- @param folder with a trailing slash
-- @param meta packages = list of {path, bytes, sha256}, files, hashes, embed_bin
-- @param opts verify (true: hashes too), progress
-- @return true; or nil, message (which file, what is wrong), code
function M.check(folder, meta, opts)
  local ok, message, code = check_sizes(folder, meta.packages)
  if not ok or not opts.verify then return ok, message, code end
  if type(meta.files) == "table" and next(meta.files) then return check_listed(folder, meta, opts.progress) end
  return check_packages(folder, meta, opts.progress)
end

return M
