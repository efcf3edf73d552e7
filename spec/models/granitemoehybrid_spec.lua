-- Granite hybrid against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Granite hybrid", function()
  for _, case in ipairs(decoders.cases("granitemoehybrid", { stays = "ssm_scan has no lowering" })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("granitemoehybrid_dense", { stays = "ssm_scan has no lowering" })) do it(table.unpack(case)) end
end)
