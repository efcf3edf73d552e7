--- Joins the outputs of shards in the order of their rows.
-- Needs ane.core, ane.util.journal, ane.batch.output and ane.util.output. Memory does not depend on the number of rows.
-- Usage: `local summary = assert(merge.run({ "out1.jsonl", "out2.jsonl" }, "all.jsonl"))`

local core = require "ane.core"
local journal = require "ane.util.journal"
local output = require "ane.util.output"
local outputs = require "ane.batch.output"

local M = {}

local BLOCK = 1 << 20

-- The settings in the journal of a complete output; or nil, message, code.
local function complete(path)
  local names = outputs.names(path)
  local kind = core.path_kind(path)
  if not kind then return nil, ("%s: no such file"):format(path), "io" end
  if kind ~= "file" then
    local what = "%s: must be the output of a shard, but is %s"
    return nil, what:format(path, kind == "folder" and "a folder" or "not a regular file"), "io"
  end
  local reader, message, code = journal.read(names.journal, "batch")
  if message then return nil, message, code end
  if not reader then return nil, ("%s: no such file; a merge needs the journal of each output"):format(names.journal), "io" end
  local settings = reader.settings
  reader.close()
  if core.path_kind(names.part) and not settings.final then
    return nil, ("%s: the run is incomplete; resume it first"):format(path), "state"
  end
  return settings
end

-- The settings that all shards of a run share.
local function common(settings)
  local options = {}
  for name, value in pairs(settings.options or {}) do
    if name ~= "shard" then options[name] = value end
  end
  return { model = settings.model, options = options }
end

-- What is wrong with the settings of an output beside those of the first one; nil: nothing.
local function fault_of(path, settings, first, first_settings)
  local fault = outputs.version_fault(outputs.names(path).journal, settings)
  if fault then return fault .. "; begin the shard again with option restart" end
  local other = journal.difference(common(first_settings), common(settings), "not")
  return other and ("%s: was made with other settings than %s: %s"):format(path, first, other)
end

-- The shard "I/N" that settings name. A run without the option is the only shard.
local function shard_of(settings) return settings.options and settings.options.shard or "1/1" end

-- Checks that the outputs are all shards of one run, each once.
local function check_shards(paths, all)
  local seen, n = {}, nil
  for i, settings in ipairs(all) do
    local fault = #all > 1 and fault_of(paths[i], settings, paths[1], all[1])
    if fault then return nil, fault, "invalid" end
    local shard = shard_of(settings)
    local part, of = shard:match "^(%d+)/(%d+)$"
    n = n or of
    if of ~= n then return nil, ("%s: is shard %s, but the others are shards of %s"):format(paths[i], shard, n), "invalid" end
    if seen[part] then return nil, ("%s: is shard %s, and so is %s"):format(paths[i], shard, seen[part]), "invalid" end
    seen[part] = paths[i]
  end
  for i = 1, tonumber(n) do
    if not seen[tostring(i)] then return nil, ("shard %d/%s is missing"):format(i, n), "invalid" end
  end
  return true
end

-- Opens each output and an index of it (a file TEMP.indexN), in turn, into `opened`. Returns the largest row; or nil, message, code.
local function open_all(paths, temp, opened)
  local last = 0
  for i, path in ipairs(paths) do
    local index, message, code = journal.index(("%s.index%d"):format(temp, i))
    if not index then return nil, message, code end
    opened[#opened + 1] = index
    local data
    data, message = io.open(path, "rb")
    if not data then return nil, message, "io" end
    opened[#opened + 1] = data
    local found
    found, message, code = journal.check(outputs.names(path).journal, "batch", path, index)
    if not found then return nil, message, code end
    if found.bytes ~= data:seek "end" then
      return nil, ("%s: has %d bytes, but %d according to its journal"):format(path, data:seek "end", found.bytes), "format"
    end
    last = math.max(last, found.last)
  end
  return last
end

-- Writes the rows in order. Returns the numbers of rows and of errors; or nil, message.
local function copy(opened, n, last, write)
  local count, failed, parts, size = 0, 0, {}, 0
  for row = 1, last + 1 do
    local i = (row - 1) % n + 1
    local index, data = opened[2 * i - 1], opened[2 * i]
    local key, offset, bytes, flags
    if row <= last then key, offset, bytes, flags = index:get(row) end
    if key then
      data:seek("set", offset)
      parts[#parts + 1], size = data:read(bytes), size + bytes
      count, failed = count + 1, failed + (flags & journal.ERROR)
    end
    if size > BLOCK or row > last then
      local ok, message = write(table.concat(parts))
      if not ok then return nil, message end
      parts, size = {}, 0
    end
  end
  return count, failed
end

-- Calls work(write) for a file that appears when it is complete, or for a device.
-- @return the numbers of rows and of errors; or nil, message, code
local function into_file(path, work)
  local out <close>, message, code = output.open(path)
  if not out then return nil, message, code end
  local rows, failed = work(function(text) return out:write(text) end)
  if not rows then return nil, failed, "io" end
  local ok
  ok, message, code = out:commit()
  if not ok then return nil, message, code end
  return rows, failed
end

-- The paths in the order of their shards.
local function sorted(paths, all)
  local order = {}
  for i, path in ipairs(paths) do order[tonumber(shard_of(all[i]):match "^%d+")] = path end
  return order
end

--- Joins outputs.
-- @param paths outputs of `ane batch`: all shards of one run, in any order, with their journals
-- @param out path of the joined output; "-": standard output
-- @return summary: ok, rows, errors, resumed (0), tokens (0), seconds; or nil, message, code
function M.run(paths, out)
  local started, all = core.clock(), {}
  for i, path in ipairs(paths) do
    if out ~= "-" and core.same_file(path, out) then return nil, ("%s: cannot be merged into itself"):format(path), "invalid" end
    local settings, message, code = complete(path)
    if not settings then return nil, message, code end
    all[i] = settings
  end
  local ok, message, code = check_shards(paths, all)
  if not ok then return nil, message, code end
  local is_stream = out == "-" or core.path_kind(out) == "other"
  local opened, temp = {}, is_stream and os.tmpname() or nil -- tmpname makes a file of that name
  local _ <close> = setmetatable({}, { __close = function()
    if temp then os.remove(temp) end
    for _, one in ipairs(opened) do one:close() end
  end })
  local last
  last, message, code = open_all(sorted(paths, all), temp or out, opened)
  if not last then return nil, message, code end
  local function work(write) return copy(opened, #paths, last, write) end
  local rows, failed
  if out == "-" then
    rows, failed = work(function(text) return io.stdout:write(text) end)
  else
    rows, failed, code = into_file(out, work)
  end
  if not rows then return nil, failed, code or "io" end
  return { ok = true, rows = rows, errors = failed, resumed = 0, tokens = 0, seconds = core.clock() - started }
end

return M
