--- A hash by which a batch distinguishes its model and adapters from others. It covers the names, sizes and first bytes of all files, and
-- samples of the other bytes. So it takes no longer for a large model.
-- Needs ane.core, ane.util.failure and ane.util.paths. Usage: `local hash = fingerprint.of(model:info().path, { "in.jsonl", "out.jsonl" })`

local core = require "ane.core"
local failures = require "ane.util.failure"
local paths = require "ane.util.paths"

local M = {}

-- Bytes at the start of a file: its header, and all of a tokenizer. The header of safetensors is shorter, and there may be many files.
local HEAD, SHORT_HEAD = 16 << 20, 1 << 20

-- Samples of the other bytes: their number for all files together, the minimum for one file, and the bytes of each.
local SAMPLES, LEAST, SAMPLE = 256, 16, 4096

-- Depth of folders: a package set has 5.
local DEPTH = 8

-- Names in a folder that no model needs: what runs write there, and pages about the model.
local OTHERS = { "^%.", "%.jsonl", "%.part$", "%.journal", "%.index$", "%.sorted$", "%.log$", "%.out$", "%.md$" }

local function is_other(name)
  for _, pattern in ipairs(OTHERS) do
    if name:find(pattern) then return true end
  end
  return false
end

-- Adds the files of a folder and its subfolders to a list of {name, path}.
local function walk(folder, inside, skip, list, depth)
  local names = failures.try(core.list_dir(folder))
  table.sort(names)
  for _, name in ipairs(names) do
    local path = folder .. "/" .. name
    local kind = not is_other(name) and core.path_kind(path)
    if kind == "file" and not skip(path) then
      list[#list + 1] = { name = inside .. name, path = path }
    elseif kind == "folder" and depth < DEPTH then
      walk(path, inside .. name .. "/", skip, list, depth + 1)
    end
  end
  return list
end

-- The files of a model: those of its folder, all parts of a split GGUF, or one file. ONNX may have weights in files beside it.
local function files_of(path, skip)
  if core.path_kind(path) == "folder" then return walk(path, "", skip, {}, 1) end
  if path:find "%.onnx$" then return walk(paths.folder_of(path), "", skip, {}, 1) end
  local base, count = path:match "^(.*)%-%d%d%d%d%d%-of%-(%d%d%d%d%d)%.gguf$"
  if not base then return { { name = "", path = path } } end
  local list = {}
  for i = 1, tonumber(count) do list[i] = { name = tostring(i), path = ("%s-%05d-of-%s.gguf"):format(base, i, count) } end
  return list
end

local function read_at(file, path, at, bytes)
  local text, message
  if file:seek("set", at) then text, message = file:read(bytes) end
  if message then failures.raise("io", "%s: %s", path, message) end
  return text or ""
end

local function hash_of(file, samples)
  local open <close>, message = io.open(file.path, "rb")
  if not open then failures.raise("io", "%s", message) end
  local size = open:seek "end"
  local head = file.path:find "%.safetensors$" and SHORT_HEAD or HEAD
  local parts = { core.sha256(read_at(open, file.path, 0, head)) }
  local rest = size - head
  local steps = math.min(samples, math.max(0, (rest + SAMPLE - 1) // SAMPLE))
  for i = 0, steps - 1 do
    local at = head + (steps > 1 and (rest - SAMPLE) * i // (steps - 1) or 0)
    parts[#parts + 1] = read_at(open, file.path, math.max(at, head), SAMPLE)
  end
  return ("%s %d %s"):format(file.name, size, core.sha256(table.concat(parts)))
end

--- The fingerprint of a file or folder.
-- @param path of a model or adapter
-- @param own paths that are not part of it, such as the input and the output of a run
-- @return text
-- @raise a failure of ane.util.failure if a file cannot be read
function M.of(path, own)
  local list = files_of(path, function(other)
    for _, one in ipairs(own or {}) do
      if core.same_file(one, other) then return true end
    end
    return false
  end)
  local samples, parts = math.max(LEAST, SAMPLES // math.max(#list, 1)), {}
  for i, file in ipairs(list) do parts[i] = hash_of(file, samples) end
  return core.sha256(table.concat(parts, "\n"))
end

return M
