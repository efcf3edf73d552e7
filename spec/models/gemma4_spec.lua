-- Gemma 4 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"
local lowered = require "support.lowered"

describe("Gemma 4", function()
  for _, case in ipairs(decoders.cases("gemma4", { folder_only = true })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma4_ten", { folder_only = true })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma4_moe", { folder_only = true })) do it(table.unpack(case)) end

  it("refuses what per_layer_config changes beside the heads", function()
    assert.matches("per_layer_config.1.intermediate_size is not computed",
      decoders.refusal("gemma4", function(cfg) cfg.per_layer_config["1"].intermediate_size = 9 end), 1, true)
  end)

  it("wants the sizes of its experts", function()
    for _, key in ipairs { "num_experts", "top_k_experts", "moe_intermediate_size" } do
      assert.matches(("key %s is missing: enable_moe_block needs it"):format(key),
        decoders.refusal("gemma4_moe", function(cfg) cfg[key] = nil end), 1, true)
    end
  end)

  it("sees both sides among images only", function()
    assert.matches("use_bidirectional_attention 'all' is not computed",
      decoders.refusal("gemma4", function(cfg) cfg.use_bidirectional_attention = "all" end), 1, true)
  end)

  it("has one cache for layers that share keys and values", function()
    local g <close> = lowered.graph "spec/fixtures/hf/gemma4-odd" -- 6 layers, the last 2 share
    local caches = {}
    for name in g:dump():gmatch "[%w_.]*k_cache" do caches[name] = (caches[name] or 0) + 1 end
    local names = {}
    for name in pairs(caches) do names[#names + 1] = name end
    assert.equal(4, #names)
  end)
end)
