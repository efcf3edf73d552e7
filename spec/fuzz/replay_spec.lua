-- The inputs of all fuzz targets, in this build: finds of the past, minimal files, and seeds made from fixtures.
package.path = "fuzz/?.lua;" .. package.path
local replay = require "replay"

describe("the fuzz target", function()
  for _, name in ipairs(replay.targets()) do
    it(name .. " keeps what is promised for its corpus", function()
      local inputs = replay.inputs(name)
      assert.is_true(#inputs > 0)
      for _, input in ipairs(inputs) do
        local ok, message = xpcall(replay.run, debug.traceback, name, input[2])
        assert(ok, ("%s: %s"):format(input[1], message))
      end
    end)
  end
end)
