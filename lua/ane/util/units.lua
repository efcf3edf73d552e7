--- Numbers as text for people.
-- Needs nothing. Usage: `print(units.bytes(1500000))` -- 1.5 MB

local M = {}

--- Formats a number of bytes in decimal units, such as "1.5 MB".
function M.bytes(n)
  for _, unit in ipairs { { 1e9, "GB" }, { 1e6, "MB" }, { 1e3, "kB" } } do
    if n >= unit[1] then return ("%.1f %s"):format(n / unit[1], unit[2]) end
  end
  return ("%d bytes"):format(n)
end

return M
