-- OLMoE against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("OLMoE", function()
  for _, case in ipairs(decoders.cases "olmoe") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("olmoe_normed", { folder_only = true })) do it(table.unpack(case)) end

  it("refuses clipped queries, keys and values", function()
    local message = decoders.refusal("olmoe", function(cfg) cfg.clip_qkv = 8.0 end)
    assert.matches("^unsupported: key clip_qkv is 8, which the recipe for olmoe does not compute", message)
  end)
end)
