-- The shortest test that uses all parts (load, feed, generate, close), for builds that run no other spec.
local tiny = require "support.tiny"

describe("this build", function()
  it("runs a model with int8 and with fp32 activations", function()
    for _, activations in ipairs { "int8", "fp32" } do
      local model <close> = tiny.load(nil, { activations = activations, threads = 2 })
      local reply = model:generate("Hello", { max_tokens = 8, ignore_eos = true, details = true })
      assert.equal(8, #reply.ids)
    end
  end)
end)
