-- Granite hybrid against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Granite hybrid", function()
  for _, case in ipairs(decoders.cases("granitemoehybrid")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("granitemoehybrid_dense")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases "granitemoehybrid_mamba") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("granitemoehybrid_limits", { folder_only = true })) do it(table.unpack(case)) end
end)
