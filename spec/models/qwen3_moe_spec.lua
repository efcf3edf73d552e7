-- Qwen3-MoE against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Qwen3-MoE", function()
  for _, case in ipairs(decoders.cases "qwen3_moe") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("qwen3_moe_plain", { folder_only = true })) do it(table.unpack(case)) end
end)
