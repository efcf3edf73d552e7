-- OLMo 3 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("OLMo 3", function()
  for _, case in ipairs(decoders.cases "olmo3") do it(table.unpack(case)) end
end)
