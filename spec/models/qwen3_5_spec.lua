-- Qwen3.5 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Qwen3.5", function()
  for _, case in ipairs(decoders.cases("qwen3_5")) do it(table.unpack(case)) end
  local narrow = decoders.cases("qwen3_5_narrow", { folder_only = true })
  for _, case in ipairs(narrow) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("qwen3_5_gelu", { folder_only = true })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases "qwen3_5_moe") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("qwen3_5_moe_stacked", { folder_only = true, plan = false })) do it(table.unpack(case)) end
end)
