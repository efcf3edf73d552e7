-- SmolLM3 against transformers: spec/golden/added_models.py made the fixtures.
local added = require "support.added"
local ane = require "ane"
local hf = require "support.hf"

describe("SmolLM3", function()
  for _, path in ipairs(added.paths "smollm3-odd") do
    it("computes what transformers does, layer by layer: " .. path, function() added.compare(path, "smollm3-odd") end)
  end

  local function last(change)
    local path <close> = hf.changed("smollm3-odd", change)
    local model, message = ane.load(path.name, { activations = "fp32", threads = 1 })
    if not model then return message end
    local _ <close> = model
    local s <close> = assert(model:session())
    assert(s:feed({ 3, 1, 4, 1, 5, 9, 2, 6 }, { want = "last" }))
    return s:logits(1):totable()
  end

  it("takes the layers without rope from the list, else every fourth or as the interval says", function()
    local listed = last(function() end)
    assert.same(listed, last(function(cfg) cfg.no_rope_layers = nil end))
    assert.same(listed, last(function(cfg) cfg.no_rope_layers, cfg.no_rope_layer_interval = nil, nil end))
    local other = last(function(cfg) cfg.no_rope_layers, cfg.no_rope_layer_interval = nil, 2 end)
    assert.not_same(listed, other)
    assert.same(other, last(function(cfg) cfg.no_rope_layers = { 1, 0, 1, 0, 1 } end))
    assert.matches("no_rope_layers has 1 numbers, but must have one for each of 5 layers",
      last(function(cfg) cfg.no_rope_layers = { 1 } end))
    local none = last(function(cfg) cfg.no_rope_layers, cfg.no_rope_layer_interval = nil, 0 end)
    assert.matches("key no_rope_layer_interval must be a whole number from 1 to 16777216, but is 0", none)
  end)

  it("slides in the layers without rope", function()
    local function sliding(cfg) cfg.use_sliding_window, cfg.sliding_window, cfg.layer_types = true, 3, nil end
    assert.not_same(last(function() end), last(sliding))
    local full, near = "full_attention", "sliding_attention"
    assert.same(last(sliding), last(function(cfg)
      sliding(cfg)
      cfg.layer_types = { full, full, full, near, full }
    end))
  end)
end)
