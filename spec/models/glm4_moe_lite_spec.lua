-- GLM-4.7-Flash against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("GLM-4.7-Flash", function()
  local more = decoders.cases("glm4_moe_lite", { folder_only = true })
  for _, case in ipairs(more) do it(table.unpack(case)) end
end)
