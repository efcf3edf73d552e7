--- The record of an export in OUT.partial: what was finished before an interruption, and of which export it is.
-- Needs ane.core, ane.coreml.files, ane.util.digest and ane.util.failure.
-- Usage: `local done = record.read(folder, record.fingerprint(bundle, graph, options))`; read and save raise {message, code}
--
-- The record is a table: fingerprint; done = {name of a finished package = {bytes, sha256, ...}}.

local core = require "ane.core"
local digest = require "ane.util.digest"
local failure = require "ane.util.failure"
local package_files = require "ane.coreml.files"

local M = {}

--- Name of the file.
M.NAME = "export.json"

local try, refuse = failure.try, failure.raise

--- A text that identifies the result: options, tensors of the source, their first and last rows. Those of a package set, which runs by a
-- recipe, are its weights.
function M.fingerprint(bundle, graph, options)
  local source = bundle.source.weights or bundle.source
  return core.sha256(core.json_encode(options, { sort = true }) .. "\n" .. graph:dump() .. "\n" .. digest.of(source))
end

--- The record of OUT.partial. If it belongs to another export, the folder is emptied.
-- @param foreign nil, or function(path) -> a name that no export has left there; such a folder is refused
function M.read(folder, fingerprint, foreign)
  local path = folder:path()
  local text = core.read_file(path .. "/" .. M.NAME)
  local record = text and core.json_decode(text)
  if type(record) == "table" and record.fingerprint == fingerprint and type(record.done) == "table" then return record end
  local other = foreign and foreign(path)
  if other then
    refuse("invalid", "%s: holds %s, which no broken-off export left there; name another output, or move that folder away", path, other)
  end
  for _, name in ipairs(try(core.list_dir(path))) do try(folder:remove(name)) end
  return { fingerprint = fingerprint, done = {} }
end

function M.save(folder, record)
  try(core.write_file(folder:path() .. "/" .. M.NAME, core.json_encode(record, { sort = true })))
end

--- The entry of a finished package that is there with the same bytes; else nil.
function M.find(folder, record, name)
  local entry = record.done[name]
  if type(entry) ~= "table" or core.path_kind(folder:path() .. "/" .. name) ~= "folder" then return nil end
  local bytes, hash = package_files.measure(folder:path() .. "/" .. name)
  return bytes and bytes == entry.bytes and hash == entry.sha256 and entry or nil
end

return M
