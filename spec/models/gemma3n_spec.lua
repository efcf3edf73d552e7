-- Gemma 3n against transformers: spec/golden/decoders.py made the fixtures.
local decoders = require "support.decoders"

describe("Gemma 3n", function()
  for _, case in ipairs(decoders.cases("gemma3n", { folder_only = true, plan = false })) do it(table.unpack(case)) end
end)
