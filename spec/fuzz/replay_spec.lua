-- The inputs of all fuzz targets, in this build: finds of the past, minimal files, and seeds made from fixtures.
package.path = "fuzz/?.lua;" .. package.path
local core = require "ane.core"
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

describe("the requests that the target http begins with", function()
  -- If all were refused, the target would hardly reach the server.
  local others = { model = 404, props = 403, options = 204, embeddings = 400 } -- a model that gives no embeddings
  for _, seed in ipairs(replay.target("http").seeds()) do
    it("are answered: " .. seed[1], function()
      for _, status in ipairs(replay.target("http").run(seed[2])) do assert.equal(others[seed[1]] or 200, status) end
    end)
  end

  it("come in exchanges with all methods of the server's", function()
    local source, n = assert(core.read_file "csrc/binding/http/lua_http.c"), 0
    for method in source:gmatch '{"(%l+)", exchange_%l+}' do
      assert.is_function(replay.target("http").Exchange[method], method)
      n = n + 1
    end
    assert.is_true(n > 5)
  end)
end)
