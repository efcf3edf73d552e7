-- Command R against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Command R", function()
  for _, case in ipairs(decoders.cases "cohere2") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases "cohere") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases "cohere_normed") do it(table.unpack(case)) end
end)
