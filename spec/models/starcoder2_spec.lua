-- StarCoder2 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("StarCoder2", function()
  for _, case in ipairs(decoders.cases "starcoder2") do it(table.unpack(case)) end
end)
