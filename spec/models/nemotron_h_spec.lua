-- Nemotron-H against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Nemotron-H", function()
  for _, case in ipairs(decoders.cases("nemotron_h")) do it(table.unpack(case)) end
end)
