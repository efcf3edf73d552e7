-- gpt-oss against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local decoders = require "support.decoders"
local hf = require "support.hf"

describe("gpt-oss", function()
  for _, case in ipairs(decoders.cases "gpt_oss") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gpt_oss_mxfp4", { folder_only = true })) do it(table.unpack(case)) end

  it("keeps experts of files in MXFP4 as they are", function()
    local model <close> = assert(ane.load(hf.path "gpt_oss_mxfp4-odd", { threads = 1 }))
    local packed = 0
    for _, m in ipairs(model:info().matrices) do packed = packed + (m.dtype == "mxfp4" and 1 or 0) end
    assert.equal(3 * 5 * 3, packed)
  end)
end)
