-- Gemma 4 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"
local plan = require "ane.coreml.plan"

describe("Gemma 4", function()
  for _, case in ipairs(decoders.cases("gemma4", { folder_only = true, plan = false })) do it(table.unpack(case)) end

  it("is not exported, and the plan says why", function()
    local report, message = plan.of_path "spec/fixtures/hf/gemma4-odd/config.json"
    assert.is_nil(report)
    assert.matches("per_layer_token_embd: a second embedding cannot be exported", message, 1, true)
  end)
end)
