-- Primitives that move elements and look at shapes, through ONNX nodes: what goes where, and what is refused.
local onnx = require "support.onnx_writer"

local function iota(...)
  local n, list = 1, {}
  for _, d in ipairs { ... } do n = n * d end
  for i = 1, n do list[i] = i - 1 end
  return onnx.floats({ ... }, list)
end

local function ints(...) return onnx.ints({ select("#", ...) }, { ... }) end

-- Elements of the first output, after its shape was compared.
local function list(shape, t, message)
  assert(t, message)
  assert.same(shape, t.shape)
  return { table.unpack(t) }
end

local function refused(...)
  local out, message, code = onnx.run(...)
  assert.is_nil(out)
  assert.is_string(message)
  assert.is_string(code)
end

describe("shapes", function()
  it("are read whole and in part", function()
    assert.same({ 2, 3, 4 }, list({ 3 }, onnx.run("Shape", { iota(2, 3, 4) })))
    assert.same({ 3 }, list({ 1 }, onnx.run("Shape", { iota(2, 3, 4) }, { attrs = { start = 1, ["end"] = -1 } })))
    assert.same({ 24 }, list({}, onnx.run("Size", { iota(2, 3, 4) })))
  end)

  it("are changed: -1 is inferred, 0 copied", function()
    local want = iota(2, 3, 4).values
    assert.same(want, list({ 4, 6 }, onnx.run("Reshape", { iota(2, 3, 4), ints(4, -1) })))
    assert.same(want, list({ 2, 12 }, onnx.run("Reshape", { iota(2, 3, 4), ints(0, -1) })))
    assert.same(want, list({ 6, 4 }, onnx.run("Flatten", { iota(2, 3, 4) }, { attrs = { axis = 2 } })))
    assert.same(want, list({ 1, 2, 3, 4, 1 }, onnx.run("Unsqueeze", { iota(2, 3, 4), ints(0, -1) })))
    assert.same({ 0, 1 }, list({ 2 }, onnx.run("Squeeze", { iota(1, 2, 1) })))
    assert.same({ 0, 1 }, list({ 1, 2 }, onnx.run("Squeeze", { iota(1, 2, 1), ints(-1) })))
  end)

  it("that do not fit are refused", function()
    refused("Reshape", { iota(6), ints(4, -1) })
    refused("Reshape", { iota(6), ints(-1, -1) })
    refused("Squeeze", { iota(2, 3), ints(0) })
    refused("Reshape", { iota(6), ints(1 << 40, 1 << 40) })
  end)
end)

describe("elements", function()
  it("are transposed", function()
    assert.same({ 0, 3, 1, 4, 2, 5 }, list({ 3, 2 }, onnx.run("Transpose", { iota(2, 3) })))
    local got = list({ 3, 4, 2 }, onnx.run("Transpose", { iota(2, 3, 4) }, { attrs = { perm = { 1, 2, 0 } } }))
    for i = 0, 23 do assert.equal(i % 2 * 12 + i // 8 * 4 + i // 2 % 4, got[i + 1]) end
    refused("Transpose", { iota(2, 3) }, { attrs = { perm = { 0, 0 } } })
  end)

  it("are joined and split", function()
    assert.same({ 0, 1, 0, 2, 3, 1 }, list({ 2, 3 }, onnx.run("Concat", { iota(2, 2), iota(2, 1) }, { attrs = { axis = 1 } })))
    local a, b = onnx.run("Split", { iota(2, 3), ints(1, 2) }, { outputs = 2, attrs = { axis = 1 } })
    assert.same({ { 0, 3 }, { 1, 2, 4, 5 } }, { list({ 2, 1 }, a), list({ 2, 2 }, b) })
    refused("Concat", { iota(2, 2), iota(3, 1) }, { attrs = { axis = 1 } })
    refused("Split", { iota(2, 3), ints(1, 1) }, { outputs = 2, attrs = { axis = 1 } })
  end)

  it("are sliced, backwards too, with bounds clamped", function()
    local function slice(...) return onnx.run("Slice", { iota(5), ... }) end
    assert.same({ 1, 2 }, list({ 2 }, slice(ints(1), ints(3))))
    assert.same({ 3, 4 }, list({ 2 }, slice(ints(-2), ints(1 << 40))))
    assert.same({ 4, 2, 0 }, list({ 3 }, slice(ints(-1), ints(-100), ints(0), ints(-2))))
    assert.same({}, list({ 0 }, slice(ints(4), ints(2))))
    refused("Slice", { iota(5), ints(0), ints(5), ints(0), ints(0) })
  end)

  it("are repeated and padded", function()
    assert.same({ 0, 0, 1, 1 }, list({ 2, 2 }, onnx.run("Expand", { iota(2, 1), ints(2, 2) })))
    assert.same({ 0, 1, 0, 1 }, list({ 4 }, onnx.run("Tile", { iota(2), ints(2) })))
    local pads = { [2] = true, [3] = true } -- they are constants
    local padded = onnx.run("Pad", { iota(2), ints(1, 2), onnx.floats({}, { 9 }) }, { constant = pads })
    assert.same({ 9, 0, 1, 9, 9 }, list({ 5 }, padded))
    local mirrored = onnx.run("Pad", { iota(3), ints(2, 1) }, { constant = pads, attrs = { mode = "reflect" } })
    assert.same({ 2, 1, 0, 1, 2, 1 }, list({ 6 }, mirrored))
    local sevens = onnx.run("ConstantOfShape", { ints(2, 2) }, { attrs = { value = onnx.floats({ 1 }, { 7 }) } })
    assert.same({ 7, 7, 7, 7 }, list({ 2, 2 }, sevens))
    assert.same({ 1, 3, 5 }, list({ 3 }, onnx.run("Range", { onnx.ints({}, { 1 }), onnx.ints({}, { 6 }), onnx.ints({}, { 2 }) })))
  end)

  it("are kept in a triangle", function()
    assert.same({ 0, 1, 2, 0, 4, 5, 0, 0, 8 }, list({ 3, 3 }, onnx.run("Trilu", { iota(3, 3) })))
    local below = onnx.run("Trilu", { iota(3, 3), onnx.ints({}, { -1 }) }, { attrs = { upper = 0 } })
    assert.same({ 0, 0, 0, 3, 0, 0, 6, 7, 0 }, list({ 3, 3 }, below))
  end)
end)

describe("indices", function()
  it("gather slices, negative ones from the end", function()
    assert.same({ 4, 5, 0, 1 }, list({ 2, 2 }, onnx.run("Gather", { iota(3, 2), ints(-1, 0) })))
    assert.same({ 1, 3, 5 }, list({ 3 }, onnx.run("Gather", { iota(3, 2), onnx.ints({}, { 1 }) }, { attrs = { axis = 1 } })))
    refused("Gather", { iota(3, 2), ints(3) })
    refused("Gather", { iota(3, 2), ints(-4) })
  end)

  it("gather elements and tuples", function()
    local got = list({ 3, 1 }, onnx.run("GatherElements", { iota(3, 2), onnx.ints({ 3, 1 }, { 1, 0, 1 }) }, { attrs = { axis = 1 } }))
    assert.same({ 1, 2, 5 }, got)
    assert.same({ 5, 0 }, list({ 2 }, onnx.run("GatherND", { iota(3, 2), onnx.ints({ 2, 2 }, { 2, 1, 0, 0 }) })))
    refused("GatherND", { iota(3, 2), onnx.ints({ 1, 2 }, { 3, 0 }) })
  end)

  it("scatter, and add where asked", function()
    local x, at, updates = iota(4), onnx.ints({ 2 }, { 3, 1 }), onnx.floats({ 2 }, { 10, 20 })
    assert.same({ 0, 20, 2, 10 }, list({ 4 }, onnx.run("ScatterElements", { x, at, updates })))
    assert.same({ 0, 21, 2, 13 }, list({ 4 }, onnx.run("ScatterElements", { x, at, updates }, { attrs = { reduction = "add" } })))
    assert.same({ 0, 20, 2, 10 }, list({ 4 }, onnx.run("ScatterND", { x, onnx.ints({ 2, 1 }, { 3, 1 }), updates })))
    refused("ScatterElements", { x, onnx.ints({ 1 }, { 4 }), onnx.floats({ 1 }, { 1 }) })
  end)

  it("become one-hot rows", function()
    local got = onnx.run("OneHot", { ints(1, -1), onnx.ints({}, { 3 }), onnx.floats({ 2 }, { 5, 6 }) })
    assert.same({ 5, 6, 5, 5, 5, 6 }, list({ 2, 3 }, got))
  end)
end)
