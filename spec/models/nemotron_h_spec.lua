-- Nemotron-H against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Nemotron-H", function()
  for _, case in ipairs(decoders.cases("nemotron_h")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("nemotron_h_latent", { folder_only = true })) do it(table.unpack(case)) end

  it("refuses activation functions that it does not compute", function()
    assert.matches("mlp_hidden_act 'silu' is not computed; known is relu2",
      decoders.refusal("nemotron_h", function(cfg) cfg.mlp_hidden_act = "silu" end), 1, true)
  end)

  it("refuses layers with sizes of their own", function()
    assert.matches("key per_layer_config is an object, which the recipe for nemotron_h does not compute",
      decoders.refusal("nemotron_h", function(cfg) cfg.per_layer_config = { ["2"] = { head_dim = 9 } } end), 1, true)
  end)
end)
