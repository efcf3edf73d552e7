--- Hashes by which a resumed run recognises what the interrupted run has read.
-- Needs ane.core and ane.util.keys. Usage: `local same = digest.of(source) == old`

local core = require "ane.core"
local keys = require "ane.util.keys"

local M = {}

--- Hashes a source: names, types, shapes and offsets of its tensors, their first and last rows.
-- @param source an open source
-- @param whole true: all rows instead
-- @return SHA-256
function M.of(source, whole)
  local parts = {}
  for _, t in ipairs(source:tensors()) do
    parts[#parts + 1] = ("%s %s %s %d %d"):format(t.name, t.dtype, table.concat(t.shape, ","), t.bytes, t.offset)
    local rows = 1
    for i = 1, #t.shape - 1 do rows = rows * t.shape[i] end
    if rows > 0 and whole then
      parts[#parts + 1] = core.sha256(source:read(t.name) or "")
    elseif rows > 0 then
      parts[#parts + 1] = core.sha256((source:read(t.name, 1, 1) or "") .. (source:read(t.name, rows, rows) or ""))
    end
  end
  return core.sha256(table.concat(parts, "\n"))
end

--- Hashes weights for columns.
-- @param importance name -> tensor; or nil
-- @return SHA-256; nil: none were given
function M.of_importance(importance)
  if not importance then return nil end
  local parts = {}
  for i, name in ipairs(keys(importance)) do parts[i] = name .. " " .. core.sha256(importance[name]:tostring()) end
  return core.sha256(table.concat(parts, "\n"))
end

return M
