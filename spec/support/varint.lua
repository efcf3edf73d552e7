--- Integers as protocol buffers write them (protobuf.dev, "Encoding").
-- Usage: `local varint = require "support.varint"; local bytes = varint(300)`

return function(n)
  local out = {}
  repeat
    local low = n & 127
    n = n >> 7
    out[#out + 1] = string.char(n ~= 0 and low | 128 or low)
  until n == 0
  return table.concat(out)
end
