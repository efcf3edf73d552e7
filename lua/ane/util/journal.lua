--- The journal of an output that grows line by line: its settings, and the row of each line. A resumed run reads from it which rows are
-- done. A line may hold any bytes and ends with a line end; a run without rows numbers its pieces.
-- Needs ane.core, ane.util.keys. OUT.journal has one line of JSON (the settings), then one record of 32 bytes per line of the output, in
-- the same order: row u64, key of the row u64, bytes of the line u32, flags u32, hash of the line u64, all little-endian. A record is
-- written after its line. A killed run leaves at most a line without a record, or an incomplete record; both are truncated.
-- Usage: `local j = journal.create("out.jsonl.journal", settings); j:add(row, key, line, false)`

local core = require "ane.core"
local keys = require "ane.util.keys"

local M = {}

local RECORD, SIZE = "<i8i8I4I4i8", 32

--- Flags of a record: the line is an error; the row was removed from the input and has no line.
M.ERROR, M.REMOVED = 1, 2

-- Records per read; bytes of output per read.
local RECORDS, BLOCK = 2048, 1 << 20

--- The first 64 bits of the SHA-256 of a text.
function M.hash(text) return tonumber(core.sha256(text):sub(1, 16), 16) end

local Journal = {}
Journal.__index = Journal

--- Begins a journal in an open file, which is truncated.
-- @param file of core.append
-- @param settings table that is written as JSON
-- @return the journal; or nil, message, code
function M.create(file, settings)
  local ok, message, code = file:truncate(0)
  if ok then ok, message, code = file:write(core.json_encode(settings, { sort = true }) .. "\n") end
  if not ok then return nil, message, code end
  return setmetatable({ file = file, settings = settings }, Journal)
end

--- Continues a journal.
-- @param size bytes of the file that are valid
function M.continue(file, settings, size)
  local ok, message, code = file:truncate(size)
  if not ok then return nil, message, code end
  return setmetatable({ file = file, settings = settings }, Journal)
end

--- Adds a record.
-- @param line with its line end; "" with the flag REMOVED
-- @return true; or nil, message, code
function Journal:add(number, key, line, flags)
  local ok, message, code = self.file:write(RECORD:pack(number, key, #line, flags, M.hash(line)))
  return ok, message, code
end

-- ---- Reading -------------------------------------------------------------------------------------------------------------------

-- Is this absent, or an object of JSON?
local function is_object(v)
  if v == nil then return true end
  return type(v) == "table" and (next(v) == nil or type(next(v)) == "string")
end

-- Are these the settings of a kind of runs?
local function are_settings(v, kind)
  if type(v) ~= "table" or v["ane_" .. kind] == nil then return false end
  if not is_object(v.model) or not is_object(v.options) or not is_object(v.run) then return false end
  local shard = v.options and v.options.shard
  return shard == nil or type(shard) == "string" and shard:match "^%d+/%d+$" ~= nil
end

-- Is this JSON a hash of ane.core.sha256, which says nothing to people?
local function is_hash(json) return #json == 66 and json:find '^"%x+"$' ~= nil end

--- Describes the first difference between the settings of a journal and those of a run; nil: they are equal.
-- @param old, new tables with model, options and run (facts that follow from both), tables as well or nil
-- @param before the word before the value of `old`; default "was"
function M.difference(old, new, before)
  for _, row in ipairs { { "model", "the model's" }, { "options", "option" }, { "run", "the run's" } } do
    local group, whose = table.unpack(row)
    local names, a, b = {}, old[group] or {}, new[group] or {}
    for name in pairs(a) do names[name] = true end
    for name in pairs(b) do names[name] = true end
    for _, name in ipairs(keys(names)) do
      local x, y = core.json_encode(a[name], { sort = true }), core.json_encode(b[name], { sort = true })
      if x ~= y and (is_hash(x) or is_hash(y)) then return ("%s %s is not the same"):format(whose, name) end
      if x ~= y then return ("%s %s is %s, %s %s"):format(whose, name, y, before or "was", x) end
    end
  end
end

--- Reads a journal.
-- @param path of the journal
-- @param kind of runs: "batch", "quantise"; the settings have the key ane_KIND
-- @return reader: settings, size (bytes of the first line), next() -> row, key, bytes, flags, check; close(); nil if the first line is
-- missing or incomplete; or nil, message, code
function M.read(path, kind)
  local file, fault = io.open(path, "rb")
  if not file and core.path_kind(path) then return nil, fault, "io" end
  local head
  if file then head, fault = file:read "L" end
  if file and fault then
    file:close()
    return nil, ("%s: %s"):format(path, fault), "io"
  end
  if not head or head:sub(-1) ~= "\n" then
    if file then file:close() end
    return nil
  end
  local settings = core.json_decode(head)
  if not are_settings(settings, kind) then
    file:close()
    return nil, ("%s: is not a journal of ane %s"):format(path, kind), "format"
  end
  local block, at = "", 1
  local reader = { settings = settings, size = #head }
  function reader.next()
    if at + SIZE - 1 > #block then
      block, at = file:read(RECORDS * SIZE) or "", 1
      if #block < SIZE then return nil end
    end
    local number, key, bytes, flags, check = RECORD:unpack(block, at)
    at = at + SIZE
    return number, key, bytes, flags, check
  end
  function reader.close() file:close() end
  return reader
end

--- os.rename, with a message that names the file.
-- @return true; or nil, message, code
function M.rename(from, to)
  local ok, message = os.rename(from, to)
  if not ok then return nil, ("%s: cannot rename to %s: %s"):format(from, to, message), "io" end
  return true
end

-- The largest row number that a journal may hold. Work on the rows of a forged journal ends.
local MOST_ROWS = 1 << 32

-- Is the next line of the output the one that the record describes? left: bytes of the output from there on.
local function is_line(data, left, bytes, flags, check)
  if flags & M.REMOVED ~= 0 then return bytes == 0 end
  if bytes == 0 or bytes > left then return false end
  local line = data:read(bytes)
  return line ~= nil and #line == bytes and line:sub(-1) == "\n" and M.hash(line) == check
end

--- Checks an output against its journal, up to the first difference, and fills an index of its rows.
-- @param path of the journal
-- @param kind of runs, as for read
-- @param output path of the output
-- @param index of M.index, or nil; any object with set() and flush()
-- @return {settings, size and bytes (of journal and output, as far as they agree), records, ascending (rows are in order), last (largest
-- row)}; nil if there is no journal; or nil, message, code
function M.check(path, kind, output, index)
  local reader, message, code = M.read(path, kind)
  if not reader then return nil, message, code end
  local found = { settings = reader.settings, size = reader.size, bytes = 0, records = 0, ascending = true, last = 0 }
  local data, fault = io.open(output, "rb")
  if not data and core.path_kind(output) then
    reader.close()
    return nil, fault, "io"
  end
  if data then
    data:setvbuf("full", BLOCK)
    local size = data:seek "end" or 0
    data:seek "set"
    for number, key, bytes, flags, check in reader.next do
      if number < 1 or number > MOST_ROWS or not is_line(data, size - found.bytes, bytes, flags, check) then break end
      if index then index:set(number, key, found.bytes, bytes, flags) end
      found.ascending = found.ascending and number > found.last and flags & M.REMOVED == 0
      found.last = math.max(found.last, number)
      found.records, found.bytes, found.size = found.records + 1, found.bytes + bytes, found.size + SIZE
    end
    data:close()
  end
  reader.close()
  if not index then return found end
  local ok
  ok, message, code = index:flush()
  return ok and found, message, code
end

-- ---- The index -------------------------------------------------------------------------------------------------------------------

local SLOT, SLOT_SIZE = "<i8i8I4I4", 24

local Index = {}
Index.__index = Index

--- Makes an index of rows in a temporary file: slot n describes row n. Memory does not depend on the number of rows.
-- @param path of the file, which is replaced
-- @return index; or nil, message, code
function M.index(path)
  local file, message = io.open(path, "w+b")
  if not file then return nil, message, "io" end
  return setmetatable({ file = file, path = path, at = -1 }, Index)
end

-- Keeps the first failure of a write: a later one may succeed, without the bytes of this one.
local function note(self, ok, message)
  if not ok then self.failed = self.failed or message end
end

-- Moves to slot n, which writes what is buffered. A seek is also needed between reads and writes.
local function seek(self, n, writes)
  if self.at ~= n or self.writes ~= writes then note(self, self.file:seek("set", n * SLOT_SIZE)) end
  self.at, self.writes = n + 1, writes
end

--- Sets the slot of a row. The flag REMOVED clears it. flush() says whether it could be written.
function Index:set(number, key, offset, bytes, flags)
  seek(self, number, true)
  if flags & M.REMOVED ~= 0 then offset = -1 end
  note(self, self.file:write(SLOT:pack(key, offset + 1, bytes, flags)))
end

--- Writes what was set.
-- @return true; or nil, message, code: some slot could not be written
function Index:flush()
  note(self, self.file:flush())
  if not self.failed then return true end
  return nil, ("%s: cannot write: %s"):format(self.path, self.failed), "io"
end

--- Returns the key of a row, the offset of its line, the line's bytes and its flags; nil if the row has no line.
function Index:get(number)
  seek(self, number, false)
  local slot = self.file:read(SLOT_SIZE)
  if not slot or #slot < SLOT_SIZE then
    self.at = -1
    return nil
  end
  local key, offset, bytes, flags = SLOT:unpack(slot)
  if offset == 0 then return nil end
  return key, offset - 1, bytes, flags
end

--- Closes and removes the file.
function Index:close()
  if not self.file then return end
  self.file:close()
  self.file = nil
  os.remove(self.path)
end
Index.__close = Index.close
Index.__gc = Index.close

return M
