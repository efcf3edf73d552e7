-- Mixtral against transformers: spec/golden/decoders.py made the fixtures. In GGUF it is a llama with experts.
local decoders = require "support.decoders"

describe("Mixtral", function()
  for _, case in ipairs(decoders.cases "mixtral") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("mixtral_window", { folder_only = true })) do it(table.unpack(case)) end

  it("chooses two experts where no key says how many", function() decoders.same_without("mixtral", "num_experts_per_tok") end)

  it("refuses another number of experts than the file has", function()
    local function refusal(key, n) return decoders.refusal("mixtral", function(cfg) cfg[key] = n end) end
    assert.matches("^shape: layers.0: no tensor model.layers.0.block_sparse_moe.experts.5.w2.weight", refusal("num_local_experts", 6))
    assert.matches("^unsupported: tensor model.layers.0.block_sparse_moe.experts.4.w1.weight is not used", refusal("num_local_experts", 4))
    assert.matches("^shape: key sliding_window is 0, but must be a number above 0, or null", refusal("sliding_window", 0))
    assert.matches("^shape: layers.0: layers.0.route: 6 of 5 experts", refusal("num_experts_per_tok", 6))
  end)
end)
