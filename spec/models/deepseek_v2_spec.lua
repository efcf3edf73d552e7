-- DeepSeek-V2 and V3 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("DeepSeek-V2", function()
  for _, case in ipairs(decoders.cases "deepseek_v2") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases "deepseek_v3") do it(table.unpack(case)) end
  local more = decoders.cases("deepseek_v2_groups", { folder_only = true })
  for _, case in ipairs(more) do it(table.unpack(case)) end

  it("refuses an unknown choice of experts", function()
    assert.matches("topk_method is 'noaux', known are greedy and group_limited_greedy",
      decoders.refusal("deepseek_v2", function(cfg) cfg.topk_method = "noaux" end), 1, true)
  end)
end)
