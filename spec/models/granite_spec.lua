-- Granite against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Granite", function()
  for _, case in ipairs(decoders.cases "granite") do it(table.unpack(case)) end
end)
