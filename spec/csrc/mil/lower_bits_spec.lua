-- Packages of every kind of block give the same bits however the tokens are cut into calls.
local lowered = require "support.lowered"
local programs = require "support.programs"

local MODELS = {
  "hf/gemma3_softcap", "hf/lfm2-odd", "hf/lfm2_moe-odd", "hf/llama", "hf/qwen2_moe-odd", "hf/qwen2_swa", "hf/zaya-odd",
  "gguf/qwen2-odd.gguf",
}

local IDS = programs.ids(9, 40, 7)

local function feed(p, steps)
  p:reset()
  return p:feed_in(IDS, steps)
end

describe("a lowered graph", function()
  for _, name in ipairs(MODELS) do
    it("gives the same bits for any cut into calls: " .. name, function()
      for _, variant in ipairs { { fp32 = false, weights = "int8" }, { norm = "fp32", layout = "c1t" } } do
        local p <close> = lowered.open("spec/fixtures/" .. name, variant)
        local want = feed(p, { 1, 1, 1, 1, 1, 1, 1, 1, 1 })
        for _, steps in ipairs { { 4, 4, 1 }, { 2, 1, 3, 3 }, { 8, 1 } } do
          for i, row in ipairs(feed(p, steps)) do assert.is_true(row == want[i], ("token %d in calls of %d"):format(i, steps[1])) end
        end
      end
    end)
  end
end)
