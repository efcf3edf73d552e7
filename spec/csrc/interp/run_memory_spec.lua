-- How much memory the values of a graph may take when it runs: a file of a few bytes can ask for any amount.
local ane = require "ane"
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local onnx = require "support.onnx_writer"
local tree = require "support.tree"

local MB = 1 << 20

-- A graph: each output is the number x, repeated as its own input of the same number says.
local function repeats(n)
  local m = { inputs = { { "x", "float" } }, outputs = {}, nodes = {}, constants = {} }
  for i = 1, n do
    m.inputs[i + 1] = { "n" .. i, "int64" }
    m.outputs[i] = { "y" .. i, "float" }
    m.nodes[i] = { "Expand", { "x", "n" .. i }, { "y" .. i }, name = "repeat" .. i }
  end
  return m
end

local function floats(n) return { dtype = "int64", shape = { 1 }, data = string.pack("<i8", n) } end
local X = { dtype = "fp32", shape = { 1 }, data = string.pack("<f", 1) }

-- Opens the graph and runs it on counts of floats, one list for each run. Returns what the last run gives.
local function run(limit, ...)
  local source, file <close> = onnx.open(repeats(#(...)))
  assert(source, file)
  local graph <close> = assert(core.interp(source, { threads = 1, run_memory = limit }))
  local out, message, code
  for _, counts in ipairs { ... } do
    local inputs = { x = X }
    for i, n in ipairs(counts) do inputs["n" .. i] = floats(n) end
    out, message, code = graph:run(inputs)
  end
  return out, message, code
end

-- The numbers of a message: what was wanted, what was held, the limit.
local function told(message)
  local wanted, held, limit = message:match "(%d+) bytes are needed, (%d+) are in use, and the limit is (%d+) %(option run_memory%)$"
  return math.tointeger(wanted), math.tointeger(held), math.tointeger(limit)
end

describe("the memory of a run", function()
  it("is limited, and the error names the op, what is wanted and the limit", function()
    local out, message, code = run(16 * MB, { 8 * MB })
    assert.is_nil(out)
    assert.equal("memory", code)
    assert.truthy(message:find("node repeat1 (expand): ", 1, true), message)
    local wanted, held, limit = told(message)
    assert.same({ 32 * MB, 16 * MB }, { wanted, limit })
    assert.is_true(held < 1 * MB)
  end)

  it("may be used up to the limit", function()
    local out = assert(run(32 * MB, { MB }))
    assert.equal(4 * MB, #out.y1.data)
  end)

  it("is that of all values together", function()
    assert(run(32 * MB, { MB, MB // 2 })) -- and again as much for the copies that Lua gets
    local out, message, code = run(12 * MB, { 2 * MB, 2 * MB })
    assert.is_nil(out)
    assert.equal("memory", code)
    assert.truthy(message:find("node repeat2", 1, true), message)
    local wanted, held, limit = told(message)
    assert.is_true(wanted + held > limit and wanted < limit and held < limit)
  end)

  it("counts the outputs that Lua gets", function()
    local out, message, code = run(12 * MB, { 2 * MB })
    assert.is_nil(out)
    assert.same({ "memory", "the outputs" }, { code, message:match "^[^:]*" })
  end)

  it("is free again for the next run, whatever its sizes", function()
    local counts = {}
    for i = 1, 20 do counts[i] = { MB // 2 + i * MB // 16 } end
    assert(run(16 * MB, table.unpack(counts)))
  end)

  it("has a default: half of the free memory", function()
    local free = core.memory().available
    local out, message, code = run(nil, { 1 << 38 })
    assert.is_nil(out)
    assert.equal("memory", code)
    local wanted, _, limit = told(message)
    assert.equal(1 << 40, wanted)
    assert.is_true(limit > free * 0.25 and limit < free * 0.75, message)
  end)

  it("must be a number of bytes", function()
    local source, file <close> = onnx.open(repeats(1))
    assert(source, file)
    assert.has_error(function() core.interp(source, { run_memory = 0 }) end)
    assert.has_error(function() core.interp(source, { run_memory = -1 }) end)
  end)

  it("limits constants that are computed when the graph is opened", function()
    local m = { inputs = { { "x", "float" } }, outputs = { { "y", "float" } }, nodes = {}, constants = {} }
    for i = 1, 8 do -- 8 constants of 8 MiB each
      m.constants[2 * i - 1] = { "one" .. i, onnx.floats({ 1 }, { i }) }
      m.constants[2 * i] = { "n" .. i, onnx.ints({ 1 }, { 2 * MB }) }
      m.nodes[2 * i - 1] = { "Expand", { "one" .. i, "n" .. i }, { "c" .. i }, name = "expand" .. i }
      m.nodes[2 * i] = { "Add", { i == 1 and "x" or "y" .. i - 1, "c" .. i }, { i == 8 and "y" or "y" .. i }, name = "add" .. i }
    end
    local source, file <close> = onnx.open(m)
    assert(source, file)
    local graph <close> = assert(core.interp(source, { threads = 1, run_memory = 40 * MB }))
    assert.is_true(graph:info().constant_bytes <= 40 * MB)
    local whole <close> = assert(core.interp(source, { threads = 1 }))
    assert.equal(8, whole:info().folded)
  end)

  it("limits weights that are packed from computed constants", function()
    local m = { inputs = { { "x", "float" } }, outputs = { { "y", "float" } }, constants = {
      { "one", onnx.floats({ 1, 1 }, { 1 }) }, { "n", onnx.ints({ 2 }, { 1024, 1024 }) } }, nodes = {
      { "Expand", { "one", "n" }, { "w" }, name = "expand" } } } -- 4 MiB
    for i = 1, 20 do
      m.nodes[i + 1] = { "MatMul", { i == 1 and "x" or "y" .. i - 1, "w" }, { i == 20 and "y" or "y" .. i }, name = "product" .. i }
    end
    local source, file <close> = onnx.open(m)
    assert(source, file)
    local graph, message, code = core.interp(source, { threads = 1, run_memory = 32 * MB })
    assert.is_nil(graph)
    assert.equal("memory", code)
    assert.truthy(message:find "node product%d+ %(matmul%): packed weights: %d+ bytes are needed", message)
    local whole <close> = assert(core.interp(source, { threads = 1, run_memory = 128 * MB }))
    assert.is_true(whole:info().weight_bytes >= 80 * MB)
  end)

  it("refuses a constant that can never run, when the graph is opened", function()
    local source, file <close> = onnx.open { inputs = { { "x", "float" } }, outputs = { { "y", "float" } }, constants = {
      { "one", onnx.floats({ 1 }, { 1 }) }, { "n", onnx.ints({ 1 }, { 1 << 38 }) } }, nodes = {
      { "Expand", { "one", "n" }, { "c" }, name = "big" }, { "Add", { "x", "c" }, { "y" }, name = "add" } } }
    assert(source, file)
    local graph, message, code = core.interp(source, { threads = 1 })
    assert.is_nil(graph)
    assert.equal("memory", code)
    assert.truthy(message:find("node big (expand): " .. (1 << 40) .. " bytes are needed", 1, true), message)
  end)
end)

describe("the memory of a Core ML package", function()
  local folder
  setup(function() folder = mlpackage.folder() end)
  teardown(function() tree.remove(folder) end)

  it("is limited for values", function()
    local vector, wide, one = mlpackage.tensor("fp16", { 4 }), mlpackage.tensor("fp16", { 4 * MB }), mlpackage.tensor("int32", { 1 })
    local path = mlpackage.write(folder .. "/wide.mlpackage", mlpackage.tiny(function(t)
      for name, v in pairs { reps = MB, from = 0, to = 4 } do
        table.insert(t.ops, 1, mlpackage.const(name, one, mlpackage.value(one, 2, mlpackage.varint(v))))
      end
      t.ops[#t.ops] = mlpackage.op("tile", { { "x", { "x" } }, { "reps", { "reps" } } }, { { "z", wide } })
      t.ops[#t.ops + 1] = mlpackage.op("slice_by_index", { { "x", { "z" } }, { "begin", { "from" } }, { "end", { "to" } } },
        { { "y", vector } })
    end))
    local pkg <close> = assert(ane.package(path, { threads = 1, run_memory = "8M" }))
    local out, message, code = pkg:predict { x = { 1, 2, 3, 4 } }
    assert.is_nil(out)
    assert.equal("memory", code, message)
    assert.truthy(message:find("node z (tile): 16777216 bytes are needed", 1, true), message)
    local wider <close> = assert(ane.package(path, { threads = 1, run_memory = "32M" }))
    assert.same({ 1, 2, 3, 4 }, assert(wider:predict { x = { 1, 2, 3, 4 } }).y:totable())
  end)

  it("is limited for states, of all sets together", function()
    local state = mlpackage.state("fp16", { MB })
    local path = mlpackage.write(folder .. "/states.mlpackage", mlpackage.tiny(function(t)
      t.inputs[2][2] = state
      t.description[2] = { 13, mlpackage.feature("s", 65552, { MB }, nil, 8) }
    end))
    local pkg <close> = assert(ane.package(path, { threads = 1, run_memory = "9M" }))
    local one, two = assert(pkg:state()), assert(pkg:state())
    local three, message, code = pkg:state()
    assert.is_nil(three)
    assert.equal("memory", code)
    assert.truthy(message:find("state s: 4194304 bytes are needed, 8388608 are in use, and the limit is 9437184", 1, true), message)
    assert.truthy(one and two)
  end)
end)

describe("the memory of a model that runs op by op", function()
  it("is that of its states, and of the values of all packages of a set", function()
    for path, place in pairs { ["spec/fixtures/mlpackage/set"] = "conv_0 %(conv%)", ["spec/fixtures/onnx/odd"] = "n2 %(matmul_nbits%)" } do
      for _, limit in ipairs { "64k", "4M" } do
        local model <close> = assert(ane.load(path, { threads = 1, run_memory = limit, engine = "graph" }))
        local reply, message, code = model:generate({ 1, 2, 3 }, { max_tokens = 4, ignore_eos = true })
        assert.equal(limit == "64k" and "memory" or nil, code, message)
        assert.equal(limit == "4M", reply ~= nil)
        assert.truthy(limit == "4M" or message:find(place), message)
      end
    end
  end)

  it("is no option of other models", function()
    local model, message, code = ane.load("spec/fixtures/gguf/llama-q8_0.gguf", { run_memory = "1G" })
    assert.is_nil(model)
    assert.same({ "unsupported", "option run_memory is for ONNX models and package sets" }, { code, message:match ": (.*)$" })
    assert.has_error(function() ane.load("spec/fixtures/onnx/odd", { run_memory = "much" }) end)
    assert.has_error(function() ane.package("spec/fixtures/mlpackage/flow.mlpackage", { run_memory = 0 }) end)
  end)
end)

describe("a Core AI asset that broadcasts to 16 GB", function()
  it("fails with the name of the op", function()
    local folder = os.tmpname()
    os.remove(folder)
    folder = folder .. ".aimodel"
    assert(os.execute(("cp -r spec/fixtures/aimodel/apple.aimodel '%s' && cp fuzz/corpus/aimodel/broadcast-of-16-gb '%s/main.mlirb'")
      :format(folder, folder)))
    local pkg <close> = assert(ane.package(folder, { threads = 1, run_memory = "1G" }))
    local state = assert(pkg:state())
    local ids = { 1, 2, shape = { 1, 2 } }
    local out, message, code = pkg:predict({ input_ids = ids, pos = { 0, 1, shape = { 1, 2 } } }, state)
    assert.is_nil(out)
    assert.equal("memory", code)
    assert.truthy(message:find("(expand): 17179869184 bytes are needed", 1, true), message)
    tree.remove(folder)
  end)
end)
