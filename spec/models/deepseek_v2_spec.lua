-- DeepSeek-V2 against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("DeepSeek-V2", function()
  for _, case in ipairs(decoders.cases "deepseek_v2") do it(table.unpack(case)) end
  local more = decoders.cases("deepseek_v2_groups", { folder_only = true, stays = "groups of experts first" })
  for _, case in ipairs(more) do it(table.unpack(case)) end
end)
