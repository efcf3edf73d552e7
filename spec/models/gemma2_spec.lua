-- Gemma 2 against transformers: spec/golden/decoders.py made the fixtures.
local core = require "ane.core"
local decoders = require "support.decoders"

describe("Gemma 2", function()
  for _, case in ipairs(decoders.cases "gemma2") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma2_untied", { folder_only = true })) do it(table.unpack(case)) end

  it("slides in the layers 0, 2, 4, ... where no key says so", function() decoders.same_without("gemma2", "layer_types") end)

  it("refuses what it does not compute, by the key", function()
    for key, case in pairs {
      use_bidirectional_attention = { true, "unsupported: key use_bidirectional_attention is true, which the recipe" },
      sliding_window = { 0, "shape: layers.0: layer 0 has sliding attention, but sliding_window is missing or 0" },
      query_pre_attn_scalar = { core.null, "shape: key query_pre_attn_scalar is null, but must be a number above 0" },
      attn_logit_softcapping = { 0, "format: key attn_logit_softcapping must be a number above 0, but is 0" },
      final_logit_softcapping = { -1, "format: key final_logit_softcapping must be a number above 0, but is -1" },
    } do
      local message = decoders.refusal("gemma2", function(cfg) cfg[key] = case[1] end)
      assert.equal(case[2], message:sub(1, #case[2]))
    end
  end)
end)
