-- Ministral 3 against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local decoders = require "support.decoders"
local hf = require "support.hf"

describe("Ministral 3", function()
  for _, case in ipairs(decoders.cases "ministral3") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("ministral3_images", { folder_only = true, plan = false })) do it(table.unpack(case)) end

  it("has the YaRN rope of transformers where the file describes none", function()
    local want = { 1.09038, -0.51174, 0.71322, 0.10345, 2.7487, 0.05031 }
    decoders.like_changed("ministral3", function(c) c.rope_parameters, c.rope_theta = nil, 5000.0 end, want)
  end)

  it("is loaded out of a model that takes images, the rest of which is named", function()
    local model <close> = assert(ane.load(hf.path "ministral3_images-odd", { threads = 1 }))
    local config = model:info().config
    assert.equal("ministral3", model.architecture)
    table.sort(config.ignored)
    assert.same({ "multi_modal_projector", "vision_tower" }, config.ignored)
    assert.same({ 2 }, config.eos_ids)
  end)

  it("is tied where the whole model is, whatever its text part says", function()
    local function last(change)
      local path <close> = hf.changed("ministral3_images-odd", change, function(t)
        return t.name ~= "language_model.lm_head.weight" and t or nil
      end)
      local model <close> = assert(ane.load(path.name, { threads = 1 }))
      local s <close> = assert(model:session())
      assert(s:feed { 5, 9, 30, 7 })
      return s:logits():tostring()
    end
    local want = last(function(cfg) cfg.tie_word_embeddings, cfg.text_config.tie_word_embeddings = true, true end)
    assert.equal(want, last(function(cfg) cfg.tie_word_embeddings, cfg.text_config.tie_word_embeddings = true, false end))
  end)
end)
