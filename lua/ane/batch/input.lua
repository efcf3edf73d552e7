--- Reads the rows of a batch: lines of a file, a pipe or a function, or the files of a folder. One row and one block are in memory.
-- Needs ane.core and ane.util.byte_order. A row is {number, text}, or {number, text, fault} if it cannot be used. Its text is then its
-- beginning, or empty if nothing could be read. number: of the line or file, from 1.
-- Usage: `local rows = input.open { path = "in.jsonl", most = 1 << 24 }; for row in function() return rows:next() end do ... end`

local byte_order = require "ane.util.byte_order"
local core = require "ane.core"

local M = {}

-- Bytes per read.
local BLOCK = 1 << 16

-- First bytes of inputs that are compressed, and what to do about them.
local COMPRESSED = {
  ["\x1F\x8B"] = "is compressed with gzip: decompress it first, as in zcat FILE | ane batch MODEL -",
  ["\x28\xB5\x2F\xFD"] = "is compressed with zstd: decompress it first, as in zstdcat FILE | ane batch MODEL -",
  ["\xFD7zXZ"] = "is compressed with xz: decompress it first, as in xzcat FILE | ane batch MODEL -",
}

--- What an input is instead of UTF-8 text, by its first bytes; nil: nothing that is known.
function M.start_fault(text)
  if byte_order.is_utf16(text) then return "is UTF-16, but must be UTF-8" end
  for start, what in pairs(COMPRESSED) do
    if text:sub(1, #start) == start then return what end
  end
end

-- ---- Lines -------------------------------------------------------------------------------------------------------------------

local Lines = {}
Lines.__index = Lines

-- Appends the bytes first .. last of the block to the line. Bytes beyond the limit are counted, not kept.
local function append(self, first, last)
  local part = self.block:sub(first, last)
  self.size = self.size + #part
  if self.kept < self.most then
    self.parts[#self.parts + 1] = part
    self.kept = self.kept + #part
  end
end

-- Returns the current line as a row, and begins the next one.
local function row_of(self)
  local text = table.concat(self.parts)
  self.number = self.number + 1
  local row = { number = self.number, text = text }
  if self.size > self.most then
    row.text = text:sub(1, self.most)
    row.fault = ("the line has %d bytes, but must have at most %d (max_row)"):format(self.size, self.most)
  end
  self.parts, self.size, self.kept = {}, 0, 0
  if row.number == 1 then row.text = byte_order.unmarked(row.text) end
  row.text = row.text:gsub("\r$", "")
  return row
end

-- Refuses an input by its first block.
-- @return true; or nil, message, code
local function check_start(self, block)
  local fault = M.start_fault(block)
  if fault then return nil, ("%s: %s"):format(self.name, fault), "format" end
  return true
end

--- The next row.
-- @param wait false: do not wait for input
-- @return a row; nil at the end; false if there is none yet; or nil, message, code
function Lines:next(wait)
  while true do
    local stop = self.block:find("\n", self.at, true)
    if stop then
      append(self, self.at, stop - 1)
      self.done, self.at = self.done + stop + 1 - self.at, stop + 1
      return row_of(self)
    end
    append(self, self.at, -1)
    self.done = self.done + #self.block + 1 - self.at
    self.block, self.at = "", 1
    local block, message, code = self.read(wait)
    if block == false then return false end
    if message then return nil, message, code end
    if not block then return self.size > 0 and row_of(self) or nil end
    if self.done == 0 and self.name then
      local ok
      ok, message, code = check_start(self, block)
      if not ok then return nil, message, code end
    end
    self.block = block
  end
end

function Lines:close()
  if self.file then self.file:close() end
end

local function lines(read, most, fields)
  local self = { read = read, most = most, number = 0, block = "", at = 1, parts = {}, size = 0, kept = 0, done = 0 }
  for key, value in pairs(fields or {}) do self[key] = value end
  return setmetatable(self, Lines)
end

local function standard_input(most)
  return lines(function(wait)
    local block, message, code = core.read_some(0, wait == false and 0 or nil)
    return block, message, code
  end, most, { name = "standard input" })
end

local function file_lines(path, most)
  local file, message = io.open(path, "rb")
  if not file then return nil, message, "io" end
  local total = file:seek "end"
  file:seek("set", 0)
  return lines(function()
    local block, why = file:read(BLOCK)
    if not block and why then return nil, ("%s: %s"):format(path, why), "io" end
    return block
  end, most, { file = file, total = total, name = path })
end

-- Lines that a function returns, one per call.
local function called(f, most)
  return lines(function()
    local text = f()
    if text == nil then return nil end
    if type(text) == "table" then text = core.json_encode(text) end
    return tostring(text) .. "\n"
  end, most)
end

-- ---- Files -------------------------------------------------------------------------------------------------------------------

local Files = {}
Files.__index = Files

-- Is this path the same file or folder as one of a list?
local function is_one_of(path, list)
  for _, other in ipairs(list) do
    if core.same_file(path, other) then return true end
  end
  return false
end

-- Adds the relative paths of all files in a folder and its subfolders to `list`. Names that begin with a dot and links to a folder that
-- contains them are skipped. Links without a target are added: their rows fail.
-- @param inside the path of the folder in the first one; "" for that one
-- @param parents the paths of the first folder, of those in it on the way, and of the folder
local function walk(inside, list, parents)
  local names, message, code = core.list_dir(parents[#parents])
  if not names then return nil, message, code end
  table.sort(names)
  for _, name in ipairs(names) do
    local path = inside == "" and name or inside .. "/" .. name
    local full = parents[#parents] .. "/" .. name
    local kind = name:sub(1, 1) == "." and "hidden" or core.path_kind(full) or "file"
    if kind == "folder" and not is_one_of(full, parents) then -- a link may lead back to a folder that contains it
      local ok
      parents[#parents + 1] = full
      ok, message, code = walk(path, list, parents)
      parents[#parents] = nil
      if not ok then return nil, message, code end
    elseif kind == "file" then
      list[#list + 1] = path
    end
  end
  return list
end

function Files:next()
  local name = self.names[self.number + 1]
  if not name then return nil end
  self.number = self.number + 1
  self.done = self.number
  local row = { number = self.number, id = name, text = "" }
  local file, message = io.open(self.folder .. name, "rb")
  local text = file and file:read(self.most + 1)
  if not file then row.fault = message else file:close() end
  row.text = text or ""
  if #row.text > self.most then
    row.text, row.fault = row.text:sub(1, self.most), ("%s: has more than %d bytes (max_row)"):format(name, self.most)
  end
  return row
end

function Files.close() end

local function files(path, most, own)
  if core.path_kind(path) ~= "folder" then
    return setmetatable({ folder = "", names = { path }, number = 0, most = most, done = 0, total = 1 }, Files)
  end
  local all, message, code = walk("", {}, { path })
  if not all then return nil, message, code end
  local names = {}
  for _, name in ipairs(all) do
    if not is_one_of(path .. "/" .. name, own) then names[#names + 1] = name end
  end
  return setmetatable({ folder = path .. "/", names = names, number = 0, most = most, done = 0, total = #names }, Files)
end

-- ---- Opening -----------------------------------------------------------------------------------------------------------------

local TEXTS = { txt = true, text = true, md = true }

--- The default form of an input: files for a folder or a text file, else jsonl.
function M.form(path)
  if type(path) ~= "string" or path == "-" then return "jsonl" end
  if core.path_kind(path) == "folder" then return "files" end
  return TEXTS[(path:match "%.(%w+)$" or ""):lower()] and "files" or "jsonl"
end

--- Opens an input.
-- @param opts path ("-": standard input; or a function that returns one line per call), form ("jsonl", "lines", "files"), most
-- (maximum bytes of a row), own (list of paths to skip: the run's output files)
-- @return rows with next(wait), close(), done and total (bytes or files; total nil: unknown); or nil, message, code
function M.open(opts)
  if type(opts.path) ~= "string" then return called(opts.path, opts.most) end
  if opts.path == "-" then return standard_input(opts.most) end
  local kind = core.path_kind(opts.path)
  if not kind then return nil, ("%s: no such file or folder"):format(opts.path), "io" end
  if opts.form == "files" then return files(opts.path, opts.most, opts.own or {}) end
  if kind == "folder" then return nil, ("%s: must be a file of lines, but is a folder"):format(opts.path), "io" end
  return file_lines(opts.path, opts.most)
end

return M
