-- Falcon-H1 against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local decoders = require "support.decoders"
local hf = require "support.hf"

describe("Falcon-H1", function()
  for _, case in ipairs(decoders.cases("falcon_h1")) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("falcon_h1_normed", { folder_only = true })) do it(table.unpack(case)) end

  -- The logits of falcon_h1_normed whose biases of one projection are 0, or absent as its configuration says.
  local function last(projection, key)
    local path <close> = hf.changed("falcon_h1_normed-odd", function(cfg)
      assert(cfg.mamba_proj_bias and cfg.projectors_bias)
      if key then cfg[key] = false end
    end, function(t)
      if not t.name:find(projection .. ".bias", 1, true) then return t end
      t.data = ("\0"):rep(#t.data)
      return not key and t or nil
    end)
    local model <close> = assert(ane.load(path.name, { activations = "fp32", threads = 1 }))
    local s <close> = assert(model:session())
    assert(s:feed { 5, 9, 30, 7 })
    return s:logits():tostring()
  end

  it("has a bias of the scan's input and of its output where each key says so", function()
    assert.equal(last "mamba.out_proj", last("mamba.out_proj", "projectors_bias"))
    assert.equal(last "mamba.in_proj", last("mamba.in_proj", "mamba_proj_bias"))
  end)
end)
