-- Seed-OSS against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Seed-OSS", function()
  for _, case in ipairs(decoders.cases "seed_oss") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("seed_oss_out", { folder_only = true })) do it(table.unpack(case)) end

  it("has biases of q, k and v where no key says so, and none of the output projection", function()
    decoders.same_without("seed_oss", "attention_bias")
    decoders.same_without("seed_oss", "attention_out_bias")
  end)

  it("is refused where the configuration denies a bias that the file holds", function()
    assert.matches("tensor model.layers.0.self_attn.o_proj.bias is not used",
      decoders.refusal("seed_oss_out", function(cfg) cfg.attention_out_bias = false end), 1, true)
  end)
end)
