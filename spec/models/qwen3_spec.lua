-- Qwen3 against transformers: spec/golden/added_models.py made the fixtures.
local added = require "support.added"
local ane = require "ane"
local hf = require "support.hf"

describe("Qwen3", function()
  for _, path in ipairs(added.paths "qwen3-odd") do
    it("computes what transformers does, layer by layer: " .. path, function() added.compare(path, "qwen3-odd") end)
  end

  -- Logits of a copy with another configuration.
  local function logits(change)
    local path <close> = hf.changed("qwen3-odd", change)
    local model <close> = assert(ane.load(path.name, { activations = "fp32", threads = 1 }))
    local s <close> = assert(model:session())
    assert(s:feed({ 3, 1, 4, 1, 5, 9, 2, 6 }, { want = "all" }))
    return s:logits(3):totable(), s:logits(8):totable()
  end

  it("slides only where use_sliding_window says so, from max_window_layers on or as layer_types says", function()
    local function with(on, from, types)
      return function(cfg)
        cfg.use_sliding_window, cfg.sliding_window, cfg.max_window_layers, cfg.layer_types = on, 3, from, types
      end
    end
    local near, far = logits(with(false, 0))
    local near_0, far_0 = logits(with(true, 0))
    assert.same(near, near_0) -- three tokens are within the window
    assert.not_same(far, far_0)
    local _, far_1 = logits(with(true, 1))
    assert.not_same(far_0, far_1)
    local _, named = logits(with(true, 0, { "full_attention", "sliding_attention" }))
    assert.same(far_1, named)
  end)
end)
