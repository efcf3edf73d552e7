--- Compares spans of tokens with those of a library that counts differently.
-- Usage: `local flat = spans.flat(text, spans_of_encode); assert(spans.alike(golden, flat))`

local M = {}

--- Bytes [start, stop) of spans in one list, widened to whole characters: the libraries know no others. Empty spans stand for
-- nothing.
function M.flat(text, spans)
  local out = {}
  for _, span in ipairs(spans) do
    local a, b = span[1] - 1, span[2]
    if a < b then
      while a > 0 and (text:byte(a + 1) or 0) & 0xC0 == 0x80 do a = a - 1 end
      while b < #text and text:byte(b + 1) & 0xC0 == 0x80 do b = b + 1 end
    end
    out[#out + 1], out[#out + 2] = a, b
  end
  return out
end

--- Whether two lists of spans agree. Of each pair, one span lies within the other (characters of one cluster cannot be
-- distinguished), or one is empty (the token has no text).
function M.alike(a, b)
  if #a ~= #b then return false end
  for i = 1, #a, 2 do
    local empty = a[i] == a[i + 1] or b[i] == b[i + 1]
    local within = a[i] <= b[i] and b[i + 1] <= a[i + 1] or b[i] <= a[i] and a[i + 1] <= b[i + 1]
    if not (empty or within) then return false end
  end
  return true
end

return M
