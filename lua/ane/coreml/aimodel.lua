--- Core AI assets (.aimodel): their contents, and their programs as text. Package.open of ane.coreml.package runs them.
-- Needs ane.core.
-- Usage: `print(aimodel.summary(assert(aimodel.contents "Some.aimodel")))`

local core = require "ane.core"

local M = {}

local HASH_BYTES <const> = 32 -- of a SHA-256

--- Is there an asset in the folder? By its name, even if main.mlirb is missing: reading it then says so.
function M.found(path)
  if path:find "%.aimodel/*$" then return true end
  return core.path_kind(path .. "/main.mlirb") ~= nil
end

--- The contents of an asset, of ours or of Apple's library; its operations need not be known.
-- @param path of the folder
-- @return a table: path; producer of the bytecode; resources, their number; resource_bytes; weights {dtype = bytes} of those in use;
-- functions, a list of {name, private, inputs, outputs, states, ops (operation -> how often)}, where inputs, outputs and states have
-- name, dtype, shape (-1: not known); or nil, message, code
function M.contents(path)
  local asset <close>, message, code = core.aimodel(path)
  if not asset then return nil, message, code end
  local contents = asset:contents()
  contents.path, contents.kind = path, "aimodel"
  return contents
end

--- Compares main.hash with the SHA-256 of main.mlirb. All of main.mlirb is read.
-- @param path of the folder
-- @return "ok"; "missing" (no main.hash: Apple's library for Linux loads such an asset, too); or "differs" and a message that names
-- the file; or nil, message, code if a file cannot be read
function M.hash(path)
  local program, digest = path:gsub("/+$", "") .. "/main.mlirb", path:gsub("/+$", "") .. "/main.hash"
  local kind = core.path_kind(digest)
  if not kind then return "missing" end
  if kind == "other" then return nil, digest .. ": is not a regular file", "io" end -- a pipe would wait
  local file <close>, message = io.open(digest, "rb")
  if not file then return nil, message, "io" end
  local wanted, failed = file:read(HASH_BYTES + 1)
  if failed then return nil, ("%s: %s"):format(digest, failed), "io" end
  wanted = wanted or ""
  if #wanted ~= HASH_BYTES then
    local size = #wanted > HASH_BYTES and "more" or tostring(#wanted)
    return "differs", ("%s: must have the %d bytes of a SHA-256, but has %s"):format(digest, HASH_BYTES, size)
  end
  local found, bytes, code = core.sha256_file(program)
  if not found then return nil, bytes, code end
  wanted = wanted:gsub(".", function(c) return ("%02x"):format(c:byte()) end)
  if found == wanted then return "ok" end
  return "differs", ("%s: its SHA-256 is %s, main.hash has %s"):format(program, found, wanted)
end

--- The program of an asset as text, an operation a line.
-- @param path of the folder
-- @return text; or nil, message, code
function M.text(path)
  local asset <close>, message, code = core.aimodel(path)
  if not asset then return nil, message, code end
  return asset:text()
end

local function ports(lines, kind, list)
  for _, port in ipairs(list) do
    local dims = {}
    for i, dim in ipairs(port.shape) do dims[i] = dim < 0 and "?" or tostring(dim) end
    lines[#lines + 1] = ("  %-6s %s: %s[%s]"):format(kind, port.name, port.dtype, table.concat(dims, ", "))
  end
end

-- "name 3, other 1": the largest first.
local function counted(counts)
  local names, parts = {}, {}
  for name in pairs(counts) do names[#names + 1] = name end
  table.sort(names, function(a, b) return counts[a] ~= counts[b] and counts[a] > counts[b] or counts[a] == counts[b] and a < b end)
  for i, name in ipairs(names) do parts[i] = ("%s %d"):format(name, counts[name]) end
  return table.concat(parts, ", ")
end

--- Formats a table of contents as text of several lines. With a field `hash` (of M.hash) it is one of them.
function M.summary(contents)
  local lines = { ("%s: Core AI asset by %s, %d resources of %d bytes"):format(contents.path, contents.producer, contents.resources,
    contents.resource_bytes) }
  if next(contents.weights) then lines[#lines + 1] = "  bytes by type: " .. counted(contents.weights) end
  if contents.hash then lines[#lines + 1] = "  hash: " .. contents.hash end
  for _, f in ipairs(contents.functions) do
    lines[#lines + 1] = ("%sfunction %s"):format(f.private and "private " or "", f.name)
    ports(lines, "input", f.inputs)
    ports(lines, "state", f.states)
    ports(lines, "output", f.outputs)
    lines[#lines + 1] = "  ops    " .. counted(f.ops)
  end
  return table.concat(lines, "\n")
end

return M
