-- A stage of a pipeline uses whatever the stage before sends: numbers of experts that do not exist or are repeated, and no numbers at
-- all. Nothing is read or written beyond the memory of the program.
local core = require "ane.core"
local graphs = require "support.graphs"
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

  it("gives an expert a token once, however often the stage before names it", function()
    local experts, text = {}, {}
    for e = 1, 8 do
      experts[e] = ("g%d, -, u%d, -, d%d, -"):format(e, e, e)
      text[e] = ("const g%d: fp32[64, 16]\nconst u%d: fp32[64, 16]\nconst d%d: fp32[16, 64]"):format(e, e, e)
    end
    local graph <close> = graphs.parse(([[
      input ids: int32[1, T]
      input out_rows: int32[1, W]
      state before: fp32[1, 16, 1, 1]
      const table: fp32[16, 16]
      const router: fp32[8, 16]
      const w: fp32[12, 16]
      %s
      x = embed(ids, table)
      logits = conv1x1(x, router)
      r = route(logits) {k=8}
      e = experts(x, r, %s) {count=8}
      y = delay(e, before)
      t = gather(y, out_rows)
      out = conv1x1(t, w)
      give out]]):format(table.concat(text, "\n"), table.concat(experts, ", ")))
    assert(graph:passes "cpu")
    local steps = #graph:costs() - 1
    local function rows(route)
      local program <close> = assert(core.program(graph, { threads = 1, int8 = false, context = 2048, chunk = 2048, stage = {
        from = 3, to = steps, send = function() return true end,
        receive = function() return (("<f"):pack(0.5):rep(16 * 2048)) .. ("<ffffffff"):pack(table.unpack(route)):rep(2 * 2048) end,
      } }))
      local session <close> = assert(program:session { context = 2048 })
      local ids = {}
      for i = 1, 2048 do ids[i] = i % 16 end
      assert.is_true(session:feed(ids, "last"))
      return session:logits():totable()
    end
    local once = rows { 3, 9, 9, 9, 9, 9, 9, 9 }
    assert.same(once, rows { 3, 3, 3, 3, 3, 3, 3, 3 })
    assert.same(once, rows { 3, 8, 3.5, 3.25, -1, 3, 0 / 0, 3 })
  end)
end)
