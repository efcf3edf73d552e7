-- OLMo 2 against transformers: spec/golden/added_models.py made the fixtures.
local added = require "support.added"
local ane = require "ane"
local hf = require "support.hf"

local FOLDER = "spec/fixtures/hf/olmo2-odd"

describe("OLMo 2", function()
  for _, path in ipairs(added.paths "olmo2-odd") do
    it("computes what transformers does, layer by layer: " .. path, function() added.compare(path, "olmo2-odd") end)
  end

  it("is planned from its config.json alone", function()
    local report = assert(require("ane.coreml.plan").of_path(FOLDER .. "/config.json"))
    assert.matches("layer_00%-02", tostring(report))
  end)

  it("refuses norms of q and k that are a head wide", function()
    local path <close> = hf.changed("olmo2-odd", function(cfg) cfg.num_attention_heads, cfg.num_key_value_heads = 6, 2 end)
    local model, message = ane.load(path.name) -- heads of 7 are odd
    assert.is_nil(model)
    assert.matches("7 rotary dimensions", message)
  end)
end)
