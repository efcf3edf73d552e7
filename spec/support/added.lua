--- Fixtures of spec/golden/added_models.py: a folder, the same weights as GGUF, and goldens of transformers.
-- Usage: `for _, path in ipairs(added.paths "qwen3-odd") do it(path, function() added.compare(path, "qwen3-odd") end) end`

local ane = require "ane"

local M = {}

function M.paths(name) return { "spec/fixtures/hf/" .. name, ("spec/fixtures/gguf/%s.gguf"):format(name) } end

--- Every layer, all logits and the greedy tokens of a model against the golden of a fixture; raises where they differ.
function M.compare(path, name)
  local model <close> = assert(ane.load(path, { activations = "fp32", threads = 1 }))
  local report = assert(ane.check(model, ("spec/fixtures/hf/%s/golden.json"):format(name)))
  assert(report.ok and report.greedy_equal, tostring(report))
end

return M
