-- Mamba-2 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Mamba-2", function()
  for _, case in ipairs(decoders.cases("mamba2")) do it(table.unpack(case)) end
  local more = decoders.cases("mamba2_clamp", { folder_only = true })
  for _, case in ipairs(more) do it(table.unpack(case)) end

  more = decoders.cases("mamba2_fifteen", { folder_only = true })
  for _, case in ipairs(more) do it(table.unpack(case)) end

  it("refuses limits of the time step that are no list", function()
    assert.matches("time_step_limit must be a list of two numbers, but is 0.5",
      decoders.refusal("mamba2", function(cfg) cfg.time_step_limit = 0.5 end), 1, true)
  end)
end)
