--- Outputs of a batch: a file, whose run can be resumed, or a stream.
-- Needs ane.core, ane.util.journal and ane.util.keys. An output has
--   known(number, key) -> flags of the line that an earlier run has written for a row; nil: none
--   put(row, line, flags) -> true; or nil, message, code. row = {number, key, position}: position is the number of the row in this run
--   remove(row) -> true; or nil, message, code: the row is not in the input any more
--   full() -> whether too many lines wait for an earlier row
--   finish(last) -> true; or nil, message, code. last: the largest number of a row
--   release() -> true; or nil, message, code: writes the lines that wait for an earlier row. The run ends before its input does
--   close()
--
-- A file is written as OUT.part, in the order in which rows end, and is renamed to OUT when it is complete. OUT.journal
-- (ane.util.journal) is kept, for later runs with longer or changed inputs.

local core = require "ane.core"
local journal = require "ane.util.journal"
local keys = require "ane.util.keys"

local M = {}

--- The version of the settings in a journal, its field ane_batch. Version 1 had no options of load, such as the types of weights.
M.VERSION = 2

-- Bytes per write of a copy.
local BLOCK = 1 << 20

-- ---- Streams -----------------------------------------------------------------------------------------------------------------

local Stream = {}
Stream.__index = Stream

-- Lines that may wait for an earlier row in an ordered output.
local WINDOW = 1024

--- Makes an output that cannot be resumed.
-- @param write function(line) -> true; or nil, message
-- @param ordered write lines in the order of the rows
-- @param close function(), or nil
function M.stream(write, ordered, close)
  return setmetatable({ write = write, ordered = ordered, on_close = close, held = {}, count = 0, next = 1 }, Stream)
end

function Stream.known() return nil end
function Stream.remove() return true end
function Stream:full() return self.count >= WINDOW end

local function send(self, line)
  local ok, message = self.write(line)
  if not ok then return nil, message or "cannot write to the output", "io" end
  return true
end

function Stream:put(row, line)
  if not self.ordered then return send(self, line) end
  self.held[row.position], self.count = line, self.count + 1
  while self.held[self.next] do
    local ok, message, code = send(self, self.held[self.next])
    if not ok then return nil, message, code end
    self.held[self.next] = nil
    self.next, self.count = self.next + 1, self.count - 1
  end
  return true
end

function Stream.finish() return true end

function Stream:release()
  for _, position in ipairs(keys(self.held)) do
    local ok, message, code = send(self, self.held[position])
    if not ok then return nil, message, code end
  end
  self.held, self.count = {}, 0
  return true
end

function Stream:close()
  if self.on_close then self.on_close() end
  self.on_close = nil
end

-- ---- Files -------------------------------------------------------------------------------------------------------------------

local File = {}
File.__index = File

--- Paths of an output's files: the output, its incomplete form, journal and index, and the two new files of a rewrite.
function M.names(path)
  return {
    out = path, part = path .. ".part", journal = path .. ".journal", index = path .. ".index", sorted = path .. ".sorted",
    journal_new = path .. ".journal.new",
  }
end

-- Path of the file that a journal describes: see rewrite.
local function data_of(names, settings)
  local first, second = names.part, names.out
  if settings.final then first, second = second, first end
  return core.path_kind(first) and first or second
end

-- Opens OUT.part for appending. A complete OUT is renamed to OUT.part first.
local function begin(self)
  local names = self.names
  if self.data == names.out then
    local ok, message, code = journal.rename(names.out, names.part)
    if not ok then return nil, message, code end
    self.data = names.part
  end
  local part, message, code = core.append(names.part)
  if not part then return nil, message, code end
  self.part = part
  local ok
  ok, message, code = part:truncate(math.min(self.bytes, part:size()))
  if not ok then return nil, message, code end
  return true
end

--- What is wrong with the version of a journal's settings; nil: nothing.
-- @param path of the journal
function M.version_fault(path, settings)
  if settings.ane_batch == M.VERSION then return nil end
  return ("%s: was written by another version of ane, so the weights of its answers are not known"):format(path)
end

-- Continues an earlier run. Returns whether there is one; or nil, message, code.
local function continue(self, lock, settings)
  local names = self.names
  local reader, message, code = journal.read(names.journal, "batch")
  if message then return nil, message, code end
  if not reader then return false end
  local old = reader.settings
  reader.close()
  local fault = M.version_fault(names.journal, old)
  if fault then return nil, fault .. "; option restart starts again", "invalid" end
  local other = journal.difference(old, settings)
  if other then
    return nil, ("%s: was made with other settings: %s; option restart starts again"):format(names.journal, other), "invalid"
  end
  self.data = data_of(names, old)
  if not core.path_kind(self.data) then return false end -- the earlier run ended before its first line
  self.index, message, code = journal.index(names.index)
  if not self.index then return nil, message, code end
  local found
  found, message, code = journal.check(names.journal, "batch", self.data, self.index)
  if not found then return nil, message, code end
  self.bytes, self.records, self.ascending, self.last = found.bytes, found.records, found.ascending, found.last
  self.journal, message, code = journal.continue(lock, old, found.size)
  if not self.journal then return nil, message, code end
  return true
end

-- Refuses files that have rows but no journal: they may be of something else, or of a run whose journal was lost.
-- @param paths of the files
-- @return true; or nil, message, code
local function check_known(names, paths)
  for _, path in ipairs(paths) do
    local file <close> = core.path_kind(path) == "file" and io.open(path, "rb") or nil
    if file and file:seek "end" > 0 then
      local what = "%s: has no journal (%s is missing, empty or cut short), so option resume cannot tell which rows it has; "
        .. "option restart overwrites it"
      return nil, what:format(path, names.journal), "state"
    end
  end
  return true
end

-- Refuses to overwrite the rows of an incomplete run.
-- @return true; or nil, message, code
local function check_overwritten(names)
  if not core.path_kind(names.part) then return true end
  local found, message, code = journal.check(names.journal, "batch", names.part)
  if message then return nil, message, code end
  if not found then return check_known(names, { names.part }) end
  if found.records == 0 then return true end
  local what = "%s: has %d rows of an incomplete run: option resume continues it, option restart begins again"
  return nil, what:format(names.part, found.records), "state"
end

-- Begins a new run. OUT.part is removed before the old journal, and the settings are on the disk before the first line: no kill leaves
-- lines without settings.
local function fresh(self, lock, settings)
  local names = self.names
  os.remove(names.part)
  local made, message, code = journal.create(lock, settings)
  local ok = made
  if ok then ok, message, code = lock:sync() end
  if not ok then return nil, message, code end
  self.journal = made
  self.data, self.bytes, self.records, self.ascending, self.last = names.part, 0, 0, true, 0
  return begin(self)
end

-- Continues an earlier run, or begins one.
-- @return true; or nil, message, code
local function start(self, lock, settings, opts)
  local names, ok, message, code = self.names, true, nil, nil
  if opts.resume then
    ok, message, code = continue(self, lock, settings)
    if ok ~= false then return ok, message, code end
    ok, message, code = check_known(names, { names.part, names.out })
  elseif not opts.restart then
    ok, message, code = check_overwritten(names)
  end
  if ok then return fresh(self, lock, settings) end
  if lock:size() == 0 then os.remove(names.journal) end -- it was made to lock it
  return nil, message, code
end

--- Opens an output file.
-- @param path of the output
-- @param settings for its journal: model, options (tables that are written as JSON)
-- @param opts ordered, resume, restart
-- @return an output; or nil, message, code. "state": another process writes it, or it is incomplete and neither resume nor restart is
-- given. "invalid": it was made with other settings
function M.file(path, settings, opts)
  local names = M.names(path)
  local lock, message, code = core.append(names.journal)
  if not lock then return nil, message, code end
  local self = setmetatable({ names = names, ordered = opts.ordered, live = 0, lock = lock }, File)
  local ok
  ok, message, code = start(self, lock, settings, opts)
  if ok then return self end
  self:close()
  return nil, message, code
end

function File:known(number, key)
  if not self.index then return nil end
  local own, _, _, flags = self.index:get(number)
  if own ~= key then return nil end
  self.live = self.live + 1
  return flags
end

function File.full() return false end
function File.release() return true end

-- Appends a line, if it is not empty, and its record.
local function add(self, row, line, flags)
  local ok, message, code = self.part ~= nil, nil, nil
  if not ok then ok, message, code = begin(self) end
  if ok and line ~= "" then ok, message, code = self.part:write(line) end
  if ok then ok, message, code = self.journal:add(row.number, row.key, line, flags) end
  if not ok then return nil, message, code end
  self.ascending = self.ascending and row.number > self.last and flags & journal.REMOVED == 0
  self.last = math.max(self.last, row.number)
  self.records = self.records + 1
  return true
end

function File:put(row, line, flags)
  self.live = self.live + 1
  return add(self, row, line, flags)
end

function File:remove(row)
  if not self.index or not self.index:get(row.number) then return true end
  return add(self, { number = row.number, key = 0 }, "", journal.REMOVED)
end

-- ---- The end of a file -----------------------------------------------------------------------------------------------------------

-- Copies the lines of rows 1 .. last to `out`, in order, with records in the journal `new`. Returns the number of rows; or nil, message,
-- code.
local function copy_rows(self, index, out, new, last)
  local data <close>, message = io.open(self.data, "rb")
  if not data then return nil, message, "io" end
  local parts, size, count, at = {}, 0, 0, -1
  local code, ok
  for number = 1, last + 1 do
    local key, offset, bytes, flags
    if number <= last then key, offset, bytes, flags = index:get(number) end
    if key then
      if at ~= offset then data:seek("set", offset) end
      local line
      line, message = data:read(bytes)
      if not line or #line ~= bytes then return nil, ("%s: row %d: %s"):format(self.data, number, message or "truncated"), "io" end
      at = offset + bytes
      parts[#parts + 1], size, count = line, size + #line, count + 1
      ok, message, code = new:add(number, key, line, flags)
      if not ok then return nil, message, code end
    end
    if size > BLOCK or number > last then
      ok, message, code = out:write(table.concat(parts))
      if not ok then return nil, message, code end
      parts, size = {}, 0
    end
  end
  return count
end

-- Writes OUT in the order of the rows, without lines that later ones replace. A killed process leaves either the old journal and OUT.part,
-- or OUT and the new journal, whose setting `final` says that it describes OUT.
local function rewrite(self, last)
  local names = self.names
  local index <close>, message, code = journal.index(names.index)
  if not index then return nil, message, code end
  local found, out, lock, new, count, ok
  found, message, code = journal.check(names.journal, "batch", self.data, index)
  if not found then return nil, message, code end
  out, message, code = core.append(names.sorted)
  if not out then return nil, message, code end
  local _ <close> = out
  lock, message, code = core.append(names.journal_new)
  if not lock then return nil, message, code end
  local _ <close> = lock
  ok, message, code = out:truncate(0)
  local settings = {}
  for key, value in pairs(self.journal.settings) do settings[key] = value end
  settings.final = true
  if ok then new, message, code = journal.create(lock, settings) end
  if new then count, message, code = copy_rows(self, index, out, new, last) end
  if not count then return nil, message, code end
  if count ~= self.live then
    return nil, ("%s: only %d of %d rows were found (is the disk full?)"):format(names.index, count, self.live), "io"
  end
  ok, message, code = out:sync()
  if ok then ok, message, code = lock:sync() end
  if ok then ok, message, code = journal.rename(names.sorted, names.out) end
  if ok then ok, message, code = journal.rename(names.journal_new, names.journal) end
  if not ok then return nil, message, code end
  if self.data ~= names.out then os.remove(self.data) end
  return true
end

function File:finish(last)
  if self.index then self.index:close() end
  if self.records > self.live or self.ordered and not self.ascending then return rewrite(self, last) end
  if not self.part then
    if self.data == self.names.out then return true end
    local ok, message, code = begin(self)
    if not ok then return nil, message, code end
  end
  local ok, message, code = self.part:sync()
  if ok then ok, message, code = self.lock:sync() end
  if ok then ok, message, code = journal.rename(self.names.part, self.names.out) end
  if not ok then return nil, message, code end
  return true
end

function File:close()
  if self.index then self.index:close() end
  if self.part then self.part:close() end
  self.lock:close()
  self.index, self.part = nil, nil
end

return M
