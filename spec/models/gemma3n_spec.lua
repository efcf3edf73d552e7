-- Gemma 3n against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Gemma 3n", function()
  for _, case in ipairs(decoders.cases("gemma3n", { folder_only = true })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma3n_second", { folder_only = true })) do it(table.unpack(case)) end

  it("refuses an active stream that is not there", function()
    assert.matches("altup_active_idx is 2, wanted less than altup_num_inputs, 2",
      decoders.refusal("gemma3n_second", function(cfg) cfg.altup_active_idx = 2 end), 1, true)
  end)
end)
