-- Falcon-H1 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Falcon-H1", function()
  for _, case in ipairs(decoders.cases("falcon_h1")) do it(table.unpack(case)) end
end)
