-- Decoders whose states are no keys and values: replies of several sequences in shared steps are those of each alone.
local ane = require "ane"

describe("many replies at once", function()
  for _, name in ipairs { "mamba2", "qwen3_5", "falcon_h1", "deepseek_v2", "gemma3n" } do
    it("are those of each alone: " .. name, function()
      local model <close> = assert(ane.load(("spec/fixtures/hf/%s-odd"):format(name), { threads = 2 }))
      local prompts = { { 3, 4, 5 }, { 9, 8, 7, 6, 5, 4, 11, 12 }, { 20 }, { 3, 4, 5, 6, 7 } }
      local opts = { max_tokens = 12, ignore_eos = true, details = true }
      local all = assert(model:generate_many(prompts, opts))
      for i, prompt in ipairs(prompts) do assert.same(assert(model:generate(prompt, opts)).ids, all[i].ids) end
    end)
  end
end)
