--- Numbers of bytes, to and from text.
-- Needs ane.util.list. Usage: `print(units.bytes(1500000))` -- 1.5 MB

local list_of = require "ane.util.list"

local M = {}

--- Formats a number of bytes in decimal units, such as "1.5 MB".
function M.bytes(n)
  for _, unit in ipairs { { 1e9, "GB" }, { 1e6, "MB" }, { 1e3, "kB" } } do
    if n >= unit[1] then return ("%.1f %s"):format(n / unit[1], unit[2]) end
  end
  return ("%d bytes"):format(n)
end

local FACTORS = { [""] = 1, k = 1 << 10, m = 1 << 20, g = 1 << 30 }

--- Reads a limit in bytes: a number, or a text such as "2G" or "512M" in powers of 1024. 0 is one; nil if it is none.
function M.read_limit(v)
  if math.type(v) == "integer" then return v >= 0 and v or nil end
  local number, unit = tostring(v):lower():match "^(%d+%.?%d*)%s*([kmg]?)i?b?$"
  return number and math.tointeger(math.floor(tonumber(number) * FACTORS[unit]))
end

--- As read_limit, but nil for 0.
function M.read_bytes(v)
  local bytes = M.read_limit(v)
  return bytes and bytes > 0 and bytes or nil
end

local function rule(read)
  return {
    type = { "integer", "string" },
    check = function(v)
      if not read(v) then return ("must be a number of bytes, or a text like \"2G\" or \"512M\", but is %s"):format(list_of.shown(v)) end
    end,
  }
end

--- Rules of ane.util.schema for options that read_bytes and read_limit read.
M.bytes_rule, M.limit_rule = rule(M.read_bytes), rule(M.read_limit)

return M
