-- Mamba-2 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Mamba-2", function()
  for _, case in ipairs(decoders.cases("mamba2", { stays = "ssm_scan has no lowering" })) do it(table.unpack(case)) end
  local more = decoders.cases("mamba2_clamp", { folder_only = true, stays = "ssm_scan has no lowering" })
  for _, case in ipairs(more) do it(table.unpack(case)) end
end)
