-- StarCoder2 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("StarCoder2", function()
  for _, case in ipairs(decoders.cases "starcoder2") do it(table.unpack(case)) end

  it("has the number of key heads that transformers gives a file without one", function()
    decoders.same_without("starcoder2", "num_key_value_heads")
  end)
end)
