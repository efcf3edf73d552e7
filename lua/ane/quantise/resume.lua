--- Notes of a run that writes a model, with which a later run goes on where it was ended.
-- Needs ane.core, ane.util.failure and ane.util.journal. Usage: `local notes <close> = resume.open("out.gguf", settings)`; raises as
-- ane.util.failure does
--
-- OUT.part has a piece for each rounded part of a tensor: its errors, its bytes, a line end. OUT.journal says which piece is of which part,
-- and has a hash of each. OUT.part.state has the state of a sequence (ane.quantise.sequence); without it, the steps of the model up to
-- the last cut run again. The files are removed when the model is written.

local core = require "ane.core"
local failure = require "ane.util.failure"
local journal = require "ane.util.journal"

local try = failure.try

local M = {}

-- Before the bytes of a piece: count, max_abs, error, signal.
local ERRORS = "<i8ddd"

--- Most bytes of a tensor whose pieces are kept: they are in memory as a whole. A larger one is rounded again.
M.MOST = 512 << 20

--- Least seconds between two states; and in times of what the last one took.
M.INTERVAL, M.PAUSE = 10, 20

local Notes = {}
Notes.__index = Notes

local function names_of(out) return { journal = out .. ".journal", part = out .. ".part", state = out .. ".part.state" } end

--- Are there notes of an earlier run of this file?
function M.exists(out) return core.path_kind(names_of(out).journal) == "file" end

-- Is there a file with bytes? An empty one is of a run that was ended at its start.
local function has_bytes(path)
  local file <close> = io.open(path, "rb")
  return file ~= nil and file:read(0) ~= nil
end

-- The journal of an earlier run, or nil. Raises for files that are not those of a run.
local function journal_of(names)
  local reader, fault, word = journal.read(names.journal, "quantise")
  if fault then failure.raise(word, "%s", fault) end
  if not reader and has_bytes(names.part) then
    failure.raise("invalid", "%s: has no journal, so no run can be resumed from it; name another output, or remove it", names.part)
  end
  return reader
end

-- The locks that reserve() holds, by output.
local reserved = {}

--- Raises if the files beside `out` are not those of a run, or another process writes them. It makes no file.
function M.check(out)
  local names = names_of(out)
  local exists = not reserved[out] and core.path_kind(names.journal)
  local lock <close> = exists and try(core.append(names.journal)) or nil -- luacheck: ignore 211
  local reader = journal_of(names)
  if reader then reader.close() end
end

--- Locks the files of an output for a run that first reads a text, so that no other process begins the same work. open() takes the lock
-- over. Raises as check() does.
-- @return an object to be closed at the end of the run
function M.reserve(out)
  M.check(out)
  local path = names_of(out).journal
  local is_new = core.path_kind(path) == nil
  local lock = try(core.append(path))
  reserved[out] = lock
  return setmetatable({}, { __close = function()
    if reserved[out] ~= lock then return end
    reserved[out] = nil
    if is_new then os.remove(path) end
    lock:close()
  end })
end

-- Begins anew.
local function fresh(self)
  self.part = try(core.append(self.names.part))
  try(self.part:truncate(0))
  os.remove(self.names.state)
  self.journal = try(journal.create(self.lock, self.settings))
end

-- Takes over the pieces of an earlier run, up to the first that is not as it was written.
local function continue(self)
  local names, kept = self.names, self.kept
  local index = { flush = function() return true end }
  function index.set(_, tensor, part, offset, bytes)
    kept[tensor] = kept[tensor] or {}
    kept[tensor][part] = { offset = offset, bytes = bytes }
  end
  local found = try(journal.check(names.journal, "quantise", names.part, index))
  self.part = try(core.append(names.part))
  try(self.part:truncate(math.min(found.bytes, self.part:size())))
  self.journal = try(journal.continue(self.lock, self.settings, found.size))
  local fault
  self.data, fault = io.open(names.part, "rb")
  if not self.data then failure.raise("io", "%s", fault) end
end

--- Opens the notes of a file.
-- @param out path of the file that is written
-- @param settings table with `model` and `options`: all that its bytes depend on
-- @return notes, with field `reset`: why an earlier run's pieces are of no use, or nil
function M.open(out, settings)
  local names = names_of(out)
  settings.ane_quantise = 2
  local self = setmetatable({ names = names, settings = settings, kept = {}, saved = core.clock(), took = 0 }, Notes)
  M.check(out)
  self.lock = reserved[out] or try(core.append(names.journal))
  reserved[out] = nil
  local ok, message = pcall(function()
    local reader = journal_of(names)
    if not reader then return fresh(self) end
    reader.close()
    self.reset = journal.difference(reader.settings, settings)
    if self.reset then return fresh(self) end
    continue(self)
  end)
  if ok then return self end
  self:close()
  error(message, 0)
end

--- The piece of a part that an earlier run has rounded.
-- @param tensor, part numbers from 1
-- @return errors {count, max_abs, error, signal, bytes}; or nil
function Notes:piece(tensor, part)
  local at = self.kept[tensor] and self.kept[tensor][part]
  if not at then return nil end
  self.data:seek("set", at.offset)
  local piece = self.data:read(at.bytes)
  if not piece or #piece ~= at.bytes then failure.raise("io", "%s: cannot read", self.names.part) end
  local count, max_abs, err, signal, from = ERRORS:unpack(piece)
  return { count = count, max_abs = max_abs, error = err, signal = signal, bytes = piece:sub(from, -2) }
end

--- Has an earlier run rounded this part?
function Notes:has(tensor, part) return self.kept[tensor] ~= nil and self.kept[tensor][part] ~= nil end

--- Keeps a part that was rounded.
-- @param got as piece() gives it
function Notes:add(tensor, part, got)
  local piece = ERRORS:pack(got.count, got.max_abs, got.error, got.signal) .. got.bytes .. "\n"
  try(self.part:write(piece))
  try(self.journal:add(tensor, part, piece, 0))
end

-- ---- The state of a sequence -----------------------------------------------------------------------------------------------------

local function identity(settings) return core.sha256(core.json_encode(settings, { sort = true })) end

-- Writes a state. Returns true; or nil, message, code.
local function write_state(self, state)
  local writer <close>, message, code = core.create(self.names.state)
  if not writer then return nil, message, code end
  local list = {}
  for i, text in ipairs(state.messages) do list[i] = { #text, core.hash64(text) } end
  local head = core.json_encode({ settings = identity(self.settings), at = state.at, cut = state.cut, messages = list }, { sort = true })
  local ok
  ok, message, code = writer:write(("%s %s\n"):format(core.sha256(head), head))
  for _, text in ipairs(state.messages) do
    if ok then ok, message, code = writer:write(text) end
  end
  if ok then ok, message, code = writer:commit() end
  return ok, message, code
end

--- Writes the state of a sequence if the last one is old enough. Where there is no room for it, the run goes on without.
-- @param sequence of ane.quantise.sequence
function Notes:save(sequence)
  local now = core.clock()
  if self.full or now - self.saved < math.max(M.INTERVAL, M.PAUSE * self.took) then return end
  self.full = not write_state(self, sequence:state())
  self.saved = core.clock()
  self.took = self.saved - now
end

--- The last state that was saved.
-- @return state for sequence:restore; or nil: there is none, or it is damaged
function Notes:state()
  local file <close> = io.open(self.names.state, "rb")
  local line = file and file:read "L"
  local hash, head = (line or ""):match "^(%x+) (.*)\n$"
  if not hash or core.sha256(head) ~= hash then return nil end
  local state = core.json_decode(head)
  if state.settings ~= identity(self.settings) then return nil end
  local messages = {}
  for i, entry in ipairs(state.messages) do
    local text = entry[1] == 0 and "" or file:read(entry[1])
    if not text or core.hash64(text) ~= entry[2] then return nil end
    messages[i] = text
  end
  return { at = state.at, cut = state.cut, messages = messages }
end

--- The model is written: removes the files.
function Notes:finish()
  local unfinished = core.create(self.names.state) -- removes what a killed run left of a state
  if unfinished then unfinished:close() end
  for _, name in ipairs { "part", "state", "journal" } do os.remove(self.names[name]) end
end

--- Closes the files; they stay where they are.
function Notes:close()
  if self.data then self.data:close() end
  if self.part then self.part:close() end
  self.lock:close()
  self.data, self.part = nil, nil
end

Notes.__close = Notes.close

return M
