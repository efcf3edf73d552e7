-- gpt-oss against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local core = require "ane.core"
local decoders = require "support.decoders"
local hf = require "support.hf"

describe("gpt-oss", function()
  for _, case in ipairs(decoders.cases "gpt_oss") do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gpt_oss_mxfp4", { folder_only = true })) do it(table.unpack(case)) end

  it("has the YaRN rope of transformers where the file describes none", function()
    local want = { 1.10028, -2.90931, 0.14442, 0.02698, 1.00723, 2.88762 }
    for _, scaling in ipairs { core.null, {} } do
      decoders.like_changed("gpt_oss", function(c) c.rope_parameters, c.rope_theta, c.rope_scaling = core.null, 5000.0, scaling end, want)
    end
  end)

  it("keeps experts of files in MXFP4 as they are", function()
    local model <close> = assert(ane.load(hf.path "gpt_oss_mxfp4-odd", { threads = 1 }))
    local packed = 0
    for _, m in ipairs(model:info().matrices) do packed = packed + (m.dtype == "mxfp4" and 1 or 0) end
    assert.equal(3 * 5 * 3, packed)
  end)
end)
