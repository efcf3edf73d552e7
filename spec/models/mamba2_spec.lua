-- Mamba-2 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Mamba-2", function()
  for _, case in ipairs(decoders.cases "mamba2") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("mamba2_clamp", { folder_only = true })) do it(table.unpack(case)) end
end)
