-- Gemma 4 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"
local plan = require "ane.coreml.plan"

describe("Gemma 4", function()
  for _, case in ipairs(decoders.cases("gemma4", { folder_only = true, plan = false })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma4_ten", { folder_only = true, plan = false })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma4_moe", { folder_only = true })) do it(table.unpack(case)) end

  it("refuses what per_layer_config changes beside the heads", function()
    assert.matches("per_layer_config.1.intermediate_size is not computed",
      decoders.refusal("gemma4", function(cfg) cfg.per_layer_config["1"].intermediate_size = 9 end), 1, true)
  end)

  it("sees both sides among images only", function()
    assert.matches("use_bidirectional_attention 'all' is not computed",
      decoders.refusal("gemma4", function(cfg) cfg.use_bidirectional_attention = "all" end), 1, true)
  end)

  it("is not exported, and the plan says why", function()
    local report, message = plan.of_path "spec/fixtures/hf/gemma4-odd/config.json"
    assert.is_nil(report)
    assert.matches("per_layer_token_embd: a second embedding cannot be exported", message, 1, true)
  end)
end)
