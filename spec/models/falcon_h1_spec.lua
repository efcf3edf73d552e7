-- Falcon-H1 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Falcon-H1", function()
  for _, case in ipairs(decoders.cases("falcon_h1")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("falcon_h1_normed", { folder_only = true })) do it(table.unpack(case)) end
end)
