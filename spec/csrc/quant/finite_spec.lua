-- The search for elements that are not finite, in every type, beside decoding all of them.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"

local T = core.testing

-- Name, elements and bytes of a block of the types that no GGUF file has.
local TYPES = { { "uint8", 1, 1 }, { "fp8e4m3", 1, 1 }, { "fp8e5m2", 1, 1 }, { "nbits4", 32, 21 }, { "nbits8", 32, 37 },
  { "nbits4_16", 32, 24 }, { "nbits8_16", 32, 40 } }
for name, row in pairs(gguf.dtypes) do TYPES[#TYPES + 1] = { name, row[2], row[3] } end

local function by_decoding(dtype, bytes)
  for i, v in ipairs(floats.unpack(T.decode(dtype, bytes))) do
    if v ~= v or math.abs(v) == math.huge then return i - 1 end
  end
  return -1
end

describe("the search for elements that are not finite", function()
  for _, row in ipairs(TYPES) do
    local dtype, block, bytes_of_block = table.unpack(row)
    if T.decode(dtype, "") then
      it("finds in random " .. dtype .. " what decoding finds", function()
        local draw, seen = floats.random(bytes_of_block * 31 + block), {}
        for case = 1, 300 do
          local n = bytes_of_block * (case % 7 + (block == 1 and case % 3 * 300 or 0))
          local bytes = {}
          for i = 1, n do bytes[i] = string.char(math.floor(draw() * 256)) end
          local text = table.concat(bytes)
          local want = by_decoding(dtype, text)
          assert.equal(want, T.find_not_finite(dtype, text))
          seen[want >= 0] = true
        end
        assert.is_true(seen[false])
        -- integers are finite, and ggml takes the NaN among the scales of nvfp4 for 0
        assert.equal(not (dtype:find "^u?int" or dtype == "nvfp4"), seen[true] or false)
      end)
    end
  end
end)
