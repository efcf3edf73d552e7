-- Granite hybrid against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local decoders = require "support.decoders"
local hf = require "support.hf"

describe("Granite hybrid", function()
  for _, case in ipairs(decoders.cases("granitemoehybrid")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("granitemoehybrid_dense")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases "granitemoehybrid_mamba") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("granitemoehybrid_limits", { folder_only = true })) do it(table.unpack(case)) end

  -- The logits of a fixture whose configuration change(cfg) has changed.
  local function last(name, change)
    local path <close> = hf.changed(name, change)
    local model <close> = assert(ane.load(path.name, { threads = 1 }))
    local s <close> = assert(model:session())
    assert(s:feed { 5, 9, 30, 7 })
    return s:logits():tostring()
  end

  it("takes the kinds of layers from layers_block_type, too", function()
    assert.equal(last "granitemoehybrid-odd", last("granitemoehybrid-odd", function(cfg)
      cfg.layers_block_type, cfg.layer_types = assert(cfg.layer_types), nil
    end))
  end)

  it("has Mamba-2 layers only where no key names them", function()
    assert.equal(last "granitemoehybrid_mamba-odd", last("granitemoehybrid_mamba-odd", function(cfg)
      assert(cfg.layer_types)
      cfg.layer_types = nil
    end))
  end)
end)
