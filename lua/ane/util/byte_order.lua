--- Byte order marks (the Unicode Standard, section 23.8): the first bytes of some text files. Needs nothing.
-- Usage: `if byte_order.is_utf16(text) then return nil, "is UTF-16" end; text = byte_order.unmarked(text)`

local M = {}

--- Whether the bytes begin with a mark of UTF-16.
function M.is_utf16(bytes) return bytes:find "^\xFF\xFE" ~= nil or bytes:find "^\xFE\xFF" ~= nil end

--- The text without a mark of UTF-8.
function M.unmarked(text) return (text:gsub("^\xEF\xBB\xBF", "")) end

return M
