-- A stage of a pipeline uses whatever the stage before sends: numbers of experts that do not exist, and no numbers at all. Nothing
-- is read or written beyond the memory of the program.
local core = require "ane.core"
local stages = require "support.stages"

describe("a stage of a mixture", function()
  it("takes any numbers of experts from the stage before, wherever it is cut", function()
    local graph <close>, source = stages.graph "spec/fixtures/hf/qwen3_moe-odd"
    local steps = #graph:costs() - 1
    for cut = 1, steps - 1 do
      for _, number in ipairs { -1e9, 1e30, 0 / 0, 1023, -1, 0.5 } do
        local program <close> = assert(core.program(graph, { threads = 1, int8 = false, context = 8, chunk = 8, stage = {
          from = cut, to = steps, send = function() return true end,
          receive = function(bytes) return (("<f"):pack(number)):rep(bytes // 4) end,
        } }))
        local session <close> = assert(program:session { context = 8 })
        assert.is_true(session:feed({ 1, 2, 3 }, "all"))
        assert.equal(3, session:rows())
      end
    end
    source:close()
  end)
end)
