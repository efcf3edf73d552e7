-- Nemotron-H against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local decoders = require "support.decoders"
local hf = require "support.hf"

describe("Nemotron-H", function()
  for _, case in ipairs(decoders.cases("nemotron_h")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("nemotron_h_latent", { folder_only = true })) do it(table.unpack(case)) end

  it("refuses activation functions that it does not compute", function()
    assert.matches("mlp_hidden_act 'silu' is not computed; known is relu2",
      decoders.refusal("nemotron_h", function(cfg) cfg.mlp_hidden_act = "silu" end), 1, true)
  end)

  it("reads the older names of keys, and these before the newer ones", function()
    local old = { n_groups = "mamba_n_groups", conv_kernel = "mamba_d_conv", use_conv_bias = "mamba_conv_bias",
      time_step_min = "mamba_dt_min" }
    local function last(change)
      local path <close> = hf.changed("nemotron_h-odd", change)
      local model <close> = assert(ane.load(path.name, { threads = 1 }))
      local s <close> = assert(model:session())
      assert(s:feed { 5, 9, 30, 7 })
      return s:logits():tostring()
    end
    local want = last(function(cfg) cfg.time_step_min = 0.5 end)
    assert.not_equal(last(), want)
    for _, newer in ipairs { false, 1 } do
      assert.equal(want, last(function(cfg)
        cfg.time_step_min = 0.5
        for key, name in pairs(old) do cfg[name], cfg[key] = assert(cfg[key]), newer or nil end
        cfg.use_conv_bias = nil
      end))
    end
  end)

  it("refuses layers with sizes of their own", function()
    assert.matches("key per_layer_config is an object, which the recipe for nemotron_h does not compute",
      decoders.refusal("nemotron_h", function(cfg) cfg.per_layer_config = { ["2"] = { head_dim = 9 } } end), 1, true)
  end)
end)
