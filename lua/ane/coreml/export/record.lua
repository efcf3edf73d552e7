--- The record of an export in OUT.partial: what was finished before an interruption, and of which export it is.
-- Needs ane.core, ane.coreml.export.tokens, ane.coreml.files, ane.coreml.pooling, ane.quantise.types, ane.util.digest and
-- ane.util.failure.
-- Usage: `local done = record.read(folder, record.fingerprint(bundle, graph, options))`; read and save raise {message, code}
--
-- The record is a table: fingerprint; done = {name of a finished package = {bytes, sha256, ...}}.

local core = require "ane.core"
local digest = require "ane.util.digest"
local failure = require "ane.util.failure"
local package_files = require "ane.coreml.files"
local pooling = require "ane.coreml.pooling"
local tokens = require "ane.coreml.export.tokens"
local types = require "ane.quantise.types"

local M = {}

--- Name of the file; name of the tuned model (ane.coreml.export.tuned), beside which ane.quantise keeps the state of its run.
M.NAME, M.TUNED = "export.json", "tuned.gguf"

local try, refuse = failure.try, failure.raise

--- A text that identifies the result: options, tensors of the source, their first and last rows. Those of a package set, which runs by a
-- recipe, are its weights.
function M.fingerprint(bundle, graph, options)
  local source = bundle.source.weights or bundle.source
  return core.sha256(core.json_encode(options, { sort = true }) .. "\n" .. graph:dump() .. "\n" .. digest.of(source))
end

--- What of the method of an export the fingerprint holds; nil: rtn.
-- @param opts of ane.coreml.export
-- @param follows true: matrices follow what those before them have changed
function M.method_of(opts, follows)
  if opts.method == "rtn" then return nil end
  local calibration = opts.calibration
  return { opts.method, types.REVISION, calibration:digest(), opts.inputs, calibration:arithmetic(follows and "rounded" or "source") }
end

--- Is this a name that an export of a set writes?
function M.is_own(name)
  return name == M.NAME or name == "runtime_meta.json" or name == "embed.bin" or name:find "%.mlpackage$" or name:find "%.aimodel$"
    or name:find "%.tmp$" or tokens.is_own(name) or pooling.is_own(name)
end

-- Is it one that an export of a bundle writes?
local function is_of_bundle(name) return name == "metadata.json" or name == "tokenizer" or name:find "%.aimodel%.partial$" ~= nil end

--- Is it the tuned model, or a file beside it: what its quantisation keeps, or what is known of it?
function M.is_of_tuned(name) return name:sub(1, #M.TUNED) == M.TUNED end

--- What is wrong with OUT.partial if it holds a name that no export writes, which would be lost; else nil.
-- @param path of the folder
-- @param names in it
function M.fault(path, names)
  for _, name in ipairs(names) do
    if not (M.is_own(name) or is_of_bundle(name) or M.is_of_tuned(name) or name == ".DS_Store") then
      local what = "%s: holds %s, which no interrupted export left there; name another output, or move that folder away"
      return what:format(path, name)
    end
  end
end

--- The record of OUT.partial, which may also hold the rest of the old set if an export was killed at its end. If the record belongs to
-- another export, the folder is emptied. A folder with names that no export writes is refused: they would be lost.
-- @param is_tuned true: the tuned model in the folder is exported, so it stays
function M.read(folder, fingerprint, is_tuned)
  local path = folder:path()
  local text = core.read_file(path .. "/" .. M.NAME)
  local record, names = text and core.json_decode(text), try(core.list_dir(path))
  local fault = M.fault(path, names)
  if fault then refuse("invalid", "%s", fault) end
  if type(record) == "table" and record.fingerprint == fingerprint and type(record.done) == "table" then return record end
  for _, name in ipairs(names) do
    if not (is_tuned and M.is_of_tuned(name)) then try(folder:remove(name)) end
  end
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
