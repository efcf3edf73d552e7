--- Writes safetensors files for specs: well formed by default, with one chosen error on request.
--
--   local st = require "support.safetensors_writer"
--   st.write(path, {
--     metadata = { format = "pt" },
--     tensors = { { name = "w", dtype = "F32", shape = { 2, 3 }, data = st.f32 { 1, 2, 3, 4, 5, 6 } } },
--   })
--
-- Tensors are in the file in the order of the list. Possible errors: file { header = text of the JSON, length = its length
-- field, pad = blanks after it, tail = bytes after the data }; tensor { begin, stop = offsets; info = text of its JSON }.

local core = require "ane.core"

local M = {}

--- Raw bytes of a list of numbers.
function M.f32(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = string.pack("<f", v) end
  return table.concat(out)
end

local function quoted(s) return core.json_encode(s) end

local function entry(t, at)
  local info = t.info or ('{"dtype":%s,"shape":[%s],"data_offsets":[%s,%s]}'):format(quoted(t.dtype), table.concat(t.shape, ","),
    tostring(t.begin or at), tostring(t.stop or at + #t.data))
  return quoted(t.name) .. ":" .. info
end

--- The text of the header of a description.
function M.header(file)
  local parts, at = {}, 0
  if file.metadata then parts[1] = '"__metadata__":' .. core.json_encode(file.metadata, { sort = true }) end
  for _, t in ipairs(file.tensors or {}) do
    parts[#parts + 1] = entry(t, at)
    at = at + #t.data
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- The bytes of a file, and how many of them are no data.
function M.bytes(file)
  local header = file.header or M.header(file)
  header = header .. (" "):rep(file.pad or -#header % 8)
  local data = {}
  for i, t in ipairs(file.tensors or {}) do data[i] = t.data end
  return string.pack("<I8", file.length or #header) .. header .. table.concat(data) .. (file.tail or ""), 8 + #header
end

--- Writes `file` (a description, or bytes) to path; returns path.
function M.write(path, file)
  local f = assert(io.open(path, "wb"))
  assert(f:write(type(file) == "string" and file or (M.bytes(file))))
  f:close()
  return path
end

--- Writes a folder of files: name -> description, bytes, or a table { json = value }. Returns its path; M.remove takes it away.
function M.folder(files)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir '%s'"):format(folder)))
  for name, file in pairs(files) do
    M.write(folder .. "/" .. name, type(file) == "table" and file.json and core.json_encode(file.json) or file)
  end
  return folder
end

--- Removes a file, or a folder with all that is in it.
function M.remove(path) assert(os.execute(("rm -rf '%s'"):format(path))) end

--- A new path in the system's folder for temporary files; the caller removes it.
function M.temp()
  local base = os.tmpname()
  os.remove(base)
  return base .. ".safetensors"
end

return M
