-- Views of constants, as graphs take them from a source.
local core = require "ane.core"
local gguf = require "support.gguf_writer"

-- Two blocks of q8_0 with the numbers 1 .. 64: the scale 1 as fp16, then 32 codes.
local function blocks()
  local parts = {}
  for i = 1, 64 do parts[#parts + 1] = (i % 32 == 1 and "\0\60" or "") .. string.char(i) end
  return table.concat(parts)
end

describe("a view of a quantised vector", function()
  local path, source

  setup(function()
    path = gguf.write(gguf.temp(), {
      values = { { "general.architecture", "string", "tiny" } },
      tensors = {
        { name = "w", dtype = "fp32", shape = { 64, 64 }, data = ("\0"):rep(64 * 64 * 4) },
        { name = "b", dtype = "q8_0", shape = { 64 }, data = blocks() },
      },
    })
    source = assert(core.open(path))
  end)
  teardown(function()
    source:close()
    os.remove(path)
  end)

  -- What a projection with weights of 0 and this part of the bias gives.
  local function bias(from, to)
    local g <close> = core.graph "g"
    local ids, rows = g:input("ids", "int32", { 1, "T" }), g:input("out_rows", "int32", { 1, "W" })
    local view = { from = from, to = to }
    local weight, part = g:const("w", source, "w", view), g:const("b", source, "b", view)
    local x = g:add("gather", "x", { g:add("embed", "e", { ids, g:const("table", source, "w") }), rows })
    g:results((g:add("conv1x1", "y", { x, weight, part })))
    assert(g:passes "cpu")
    local program <close> = assert(core.program(g, { threads = 1, context = 16, chunk = 16, int8 = false }))
    local session <close> = assert(program:session { context = 16 })
    assert(session:feed { 1 })
    return session:logits():totable()
  end

  it("has the numbers of whole blocks", function()
    for _, range in ipairs { { 0, 64 }, { 0, 32 }, { 32, 64 } } do
      local want = {}
      for i = range[1] + 1, range[2] do want[#want + 1] = i + 0.0 end
      assert.same(want, bias(range[1], range[2]))
    end
  end)

  it("is refused where it cuts a block", function()
    local g <close> = core.graph "g"
    for _, range in ipairs { { 5, 64 }, { 0, 63 }, { 63, 64 } } do
      local ok, message = pcall(g.const, g, "b", source, "b", { from = range[1], to = range[2] })
      assert.is_false(ok)
      local want = ("the tensor has no such view: elements %d to %d of 64 are not whole blocks of 32"):format(range[1], range[2])
      assert.matches(want, message, 1, true)
    end
  end)
end)
