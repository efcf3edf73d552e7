-- Graphs whose nodes, names and constants are put together as no converter does it: a graph is refused or runs, and takes little time.
local ane = require "ane"
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local onnx = require "support.onnx_writer"
local tree = require "support.tree"

local FP16, INT8 = 65552, 21
local const, feature, op, tensor, value = mlpackage.const, mlpackage.feature, mlpackage.op, mlpackage.tensor, mlpackage.value

local folder

before_each(function() folder = mlpackage.folder() end)
after_each(function() tree.remove(folder) end)

-- Writes a package of these operations from x to y, of the shape `dims`.
local function written(dims, ops, weights)
  local type = tensor("fp16", dims)
  return mlpackage.write(folder .. "/m.mlpackage", mlpackage.tiny(function(t)
    t.inputs, t.ops, t.vector = { { "x", type } }, ops, type
    t.description = { { 1, feature("x", FP16, dims) }, { 10, feature("y", FP16, dims) } }
  end), mlpackage.weights(weights or {}))
end

-- What a program says that loads the package and runs it on x, in a process of its own: its end would be that of the specs.
local function predicted(path, x)
  local script = folder .. "/run.lua"
  assert(core.write_file(script, ([[
    local out, message = require("ane").package(%q):predict { x = %s }
    print(out and table.concat(out.y:reshape({ #out.y }):totable(), " ") or message)]]):format(path, x)))
  local pipe = assert(io.popen(("LUA_PATH='%s' LUA_CPATH='%s' lua5.4 %s 2>&1"):format(package.path, package.cpath, script)))
  local text = pipe:read "a"
  return text, (select(2, pipe:close()))
end

describe("a Core ML function", function()
  it("may have a flag that is stored as a code", function()
    local square, one = tensor("fp16", { 2, 2 }), tensor("fp16", {})
    for code, want in pairs { [0] = "7.0 10.0 15.0 22.0\n", [1] = "5.0 11.0 11.0 25.0\n" } do
      local path = written({ 2, 2 }, {
        const("w", square, mlpackage.blob(square, 64)),
        op("constexpr_affine_dequantize", nil, { { "flag", one } }, {
          { "axis", value(tensor("int32", {}), 2, "\0") }, { "quantized_data", value(tensor(INT8, {}), 7, string.char(code)) },
          { "scale", value(one, 7, "\0\60") }, { "zero_point", value(tensor(INT8, {}), 7, "\0") } }),
        op("transpose", { { "x", { "w" } } }, { { "v", square } }),
        op("matmul", { { "x", { "x" } }, { "y", { "v" } }, { "transpose_y", { "flag" } } }, { { "y", square } }),
      }, { { 1, string.pack("<I2I2I2I2", 0x3C00, 0x4200, 0x4000, 0x4400) } }) -- 1 3, 2 4: the transpose of x
      assert.same({ want, "exit" }, { predicted(path, "{ { 1, 2 }, { 3, 4 } }") })
      tree.remove(path)
    end
  end)

  it("may have inputs and outputs of ten dimensions", function()
    local dims = { 1, 1, 1, 1, 1, 1, 1, 1, 2, 2 }
    local type = tensor("fp16", dims)
    local path = written(dims, { op("identity", { { "x", { "x" } } }, { { "y", type } }) })
    local pkg <close> = assert(ane.package(path))
    local x = { dtype = "fp32", shape = dims, data = string.pack("<ffff", 1, 2, 3, 4) }
    local out = assert(pkg:predict { x = x })
    assert.same({ dims, { 1, 2, 3, 4 } }, { out.y.shape, table.move(out.y, 1, 4, 1, {}) })
    x.shape = { 1, 1, 1, 1, 1, 1, 1, 1, 4, 1 }
    assert.same({ "input x must be fp16[1, 1, 1, 1, 1, 1, 1, 1, 2, 2], but is fp32[1, 1, 1, 1, 1, 1, 1, 1, 4, 1]", "shape" },
      { select(2, pkg:predict { x = x }) })
  end)

  it("may have thousands of products with weights of their own: the time grows with their number, not with its square", function()
    local type, ops, n = tensor("fp16", { 1, 1 }), {}, 20000
    for i = 1, n do
      ops[2 * i - 1] = const("w" .. i, type, value(type, 7, string.pack("<I2", i)))
      ops[2 * i] = op("linear", { { "x", { i == 1 and "x" or "y" .. i - 1 } }, { "weight", { "w" .. i } } },
        { { i == n and "y" or "y" .. i, type } })
    end
    local pkg <close> = assert(ane.package(written({ 1, 1 }, ops)))
    local started = os.clock()
    assert(pkg:predict { x = { { 1 } } })
    assert.is_true(os.clock() - started < 4)
  end)

  it("has at most 4096 inputs and states", function()
    local type, inputs, description = tensor("fp16", { 1 }), {}, {}
    for i = 1, 4097 do inputs[i], description[i] = { "x" .. i, type }, { 1, feature("x" .. i, FP16, { 1 }) } end
    description[#description + 1] = { 10, feature("y", FP16, { 1 }) }
    mlpackage.write(folder .. "/m.mlpackage", mlpackage.tiny(function(t)
      t.inputs, t.description = inputs, description
      t.ops = { op("identity", { { "x", { "x1" } } }, { { "y", type } }) }
    end), mlpackage.weights {})
    local _, message, code = core.package(folder .. "/m.mlpackage")
    assert.matches("function main: has more than 4096 inputs and states, or outputs$", message)
    assert.equal("unsupported", code)
  end)
end)

describe("an ONNX graph", function()
  local X = { { "x", "float", { 1 } }, { "c", "bool", {} } }

  it("may have thousands of subgraphs: the time grows with their number, not with its square", function()
    local nodes, branch = {}, { nodes = { { "Neg", { "x" }, { "e" } } }, outputs = { { "e", "float" } } }
    for i = 1, 30000 do nodes[i] = { "If", { "c" }, { "y" .. i }, attrs = { then_branch = branch, else_branch = branch } } end
    local source, file <close> = assert(onnx.open { inputs = X, outputs = { { "y30000", "float" } }, nodes = nodes })
    assert(file)
    local started = os.clock()
    local graph <close> = assert(core.interp(source, { threads = 1 }))
    assert(graph:run { x = onnx.floats({ 1 }, { 1 }), c = onnx.bools({}, { 1 }) })
    assert.is_true(os.clock() - started < 4)
  end)

  it("has at most 4096 inputs", function()
    local inputs = {}
    for i = 1, 4097 do inputs[i] = { "x" .. i, "float", { 1 } } end
    local source, message, code = onnx.open { inputs = inputs, outputs = { { "y", "float" } }, nodes = { { "Neg", { "x1" }, { "y" } } } }
    assert.same({ nil, "a graph has more than 4096 inputs or outputs", "unsupported" }, { source, message:match ": (.*)", code })
  end)

  it("may declare dimensions below 0: they are not known, as in onnxruntime", function()
    local source, file <close> = assert(onnx.open { inputs = { { "x", "float", { -1, 2 } } }, outputs = { { "y", "float", { -7, 2 } } },
      nodes = { { "Neg", { "x" }, { "y" } } } })
    assert(file)
    local graph <close> = assert(core.interp(source, { threads = 1 }))
    assert.same({ 3, 2 }, assert(graph:run { x = onnx.floats({ 3, 2 }, { 1, 2, 3, 4, 5, 6 }) }).y.shape)
  end)

  it("whose product lacks its operands fails when it runs", function()
    for _, given in ipairs { {}, { "w" } } do
      local source, file <close> = assert(onnx.open { inputs = {}, outputs = { { "y", "float" } },
        constants = { { "w", onnx.floats({ 1, 1 }, { 1 }) } },
        nodes = { { "Transpose", { "w" }, { "t" } }, { "MatMul", given, { "y" } } } })
      assert(file)
      local graph, message = core.interp(source, { threads = 1 })
      if graph then message = select(2, graph:run {}) end
      assert.matches("the input [xy] is missing$", message)
    end
  end)
end)

describe("a Core AI asset", function()
  local write = core.testing.aimodel_write

  local function refused(functions)
    local path = folder .. "/m.aimodel"
    assert(write(path, functions))
    local started = os.clock()
    local pkg, message, code = core.package(path)
    assert.is_nil(pkg)
    assert.is_true(os.clock() - started < 10)
    return { message:match ".*: (.*)", code }
  end

  -- A function of `width` inputs that calls function i `times` times.
  local function calls(name, width, i, times)
    local f, operands = { name = name, private = name ~= "main" }, {}
    for k = 1, width do f[k], operands[k] = { "input", "x" .. k, "fp32", { 1 } }, k end
    for _ = 1, times do f[#f + 1] = i and { "invoke", i, operands } or { "unary", "sigmoid", 1 } end
    f[#f + 1] = { "output", "y", #f }
    return f
  end

  it("is refused if calls make it large by their operands", function()
    local functions = { calls("f1", 16, nil, 1) }
    for i = 2, 6 do functions[i] = calls(i < 6 and "f" .. i or "main", 16, i - 1, 12) end
    assert.same({ "more than 1048576 operations", "unsupported" }, refused(functions)) -- 12^5 calls
  end)

  it("has at most 4096 functions", function()
    local functions = {}
    for i = 1, 4097 do functions[i] = calls(i < 4097 and "f" .. i or "main", 1, nil, 1) end
    assert.same({ "has more than 4096 functions", "unsupported" }, refused(functions))
  end)
end)
