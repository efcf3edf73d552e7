-- csrc/formats/aimodel: Core AI assets, as the builder makes them.
local ane = require "ane"
local core = require "ane.core"
local ops = require "support.ops"

local write = core.testing.aimodel_write

local function floats(list) return string.pack(("<" .. ("f"):rep(#list)), table.unpack(list)) end

-- y = sigmoid(2 x w), with w in the resource section.
local function small(name)
  return {
    name = name or "main",
    { "input", "x", "fp32", { 2, 3 } },
    { "resource", "fp32", { 3, 2 }, floats { 1, 2, 3, 4, 5, 6 } },
    { "matmul", 1, 2 },
    { "number", "fp32", 2 },
    { "binary", "primitive.mul", 3, 4 },
    { "unary", "sigmoid", 5 },
    { "output", "y", 6 },
  }
end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "a"
  f:close()
  return text
end

describe("aimodel writer", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
  end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  it("writes bytecode, its hash and metadata, the same for the same calls", function()
    assert(write(dir .. "/a.aimodel", { small() }))
    assert(write(dir .. "/b.aimodel", { small() }))
    local a = read(dir .. "/a.aimodel/main.mlirb")
    assert.equal("ML\xEFR", a:sub(1, 4))
    assert.equal(a, read(dir .. "/b.aimodel/main.mlirb"))
    assert.equal(32, #read(dir .. "/a.aimodel/main.hash"))
    assert.truthy(read(dir .. "/a.aimodel/metadata.json"):find('"assetVersion" : "2.0"', 1, true))
    assert.truthy(a:find(floats { 1, 2, 3, 4, 5, 6 }, 1, true))
    assert.equal(0, (a:find(floats { 1, 2, 3, 4, 5, 6 }, 1, true) - 1) % 16)
  end)

  it("takes states, other functions and weights in their forms", function()
    local halves = ("\0\60"):rep(4) -- 1.0
    assert(write(dir .. "/c.aimodel", {
      { name = "double", private = true, { "input", "x", "fp16", { 4, 8 } }, { "binary", "primitive.add", 1, 1 }, { "output", "y", 2 } },
      {
        name = "main",
        { "input", "x", "fp16", { 1, 4 } }, -- 1
        { "input", "at", "int32", { 2 } }, -- 2
        { "state", "keys", "fp16", { 6, 8 } }, -- 3
        { "resource", "int8", { 4, 8 }, ("\1\2\3\4"):rep(8) }, -- 4
        { "constant", "fp16", { 4, 1 }, halves }, -- 5
        { "blockwise", 4, 5 }, -- 6
        { "resource", "uint4", { 4, 8 }, ("\16\50"):rep(8) }, -- 7
        { "constant", "fp16", { 1, 1, 16, 1 }, ("\0\60"):rep(16) }, -- 8
        { "lut", 7, 8 }, -- 9
        { "binary", "primitive.add", 6, 9 }, -- 10
        { "invoke", 1, { 10 } }, -- 11
        { "matmul", 1, 11 }, -- 12
        { "read", 3 }, -- 13
        { "ints", "int32", { 1, 8 } }, -- 14
        { "ints", "int32", { 1, 0 } }, -- 15
        { "binary", "primitive.add", 2, 14 }, -- 16
        { "slice_update", 13, 2, 16, 12 }, -- 17
        { "write", 3, 17 }, -- 18
        { "read", 3 }, -- 19
        { "slice_at", 19, 2, 16, "fp16", { 1, 8 } }, -- 20
        { "reduce", "reduce_sum", 20, 1 }, -- 21
        { "broadcast", 21, { 1, 4 } }, -- 22
        { "output", "y", 22 },
      },
    }))
  end)

  it("takes layouts of states and inputs, and operations with properties", function()
    assert(write(dir .. "/d.aimodel", {
      {
        name = "main",
        { "state", "keys", "fp16", { 6, 8 }, { 1, 8 } }, -- 1
        { "read", 1 }, -- 2
        { "input", "x", "fp16", { 16, 8 }, { 8, 1 } }, -- 3
        { "slice", 3, 0, 0, 12, 2 }, -- 4
        { "write", 1, 4 }, -- 5
        { "gelu", 4, 1 }, -- 6
        { "argsort", 4, 1, 1 }, -- 7
        { "argmax", 4, 1 }, -- 8
        { "constant", "int4", { 4, 4 }, ("\xEE"):rep(8) }, -- 9
        { "cast", 9, "fp16" }, -- 10
        { "output", "y", 6 },
        { "output", "order", 7 },
        { "output", "top", 8 },
        { "output", "codes", 10 },
      },
    }))
    local ok, message = write(dir .. "/e.aimodel", { { name = "main", { "constant", "int4", { 4 }, "\1\2" }, { "output", "y", 1 } } })
    assert.is_nil(ok)
    assert.equal(dir .. "/e.aimodel: function main: primitive.constant_v1 (value 0): sub-byte elements that differ must be in a resource",
      message)
  end)

  it("infers the results, and refuses operands that do not fit", function()
    local function fails(...)
      local ok, message, code = write(dir .. "/x.aimodel", { { name = "main", { "input", "x", "fp16", { 2, 3 } }, ... } })
      assert.is_nil(ok)
      assert.is_nil(io.open(dir .. "/x.aimodel/main.mlirb"))
      return code .. ": " .. message
    end
    assert.equal("shape: main: primitive.add of fp16 [2, 3], fp16 [4]: their shapes do not fit",
      (fails({ "number", "fp16", 1 }, { "constant", "fp16", { 4 }, ("\0"):rep(8) }, { "op", "primitive.add", { 1, 3 } })))
    assert.equal("invalid: main: broadcasting_mul of fp16 [2, 3], fp32 []: their element types do not fit",
      (fails({ "number", "fp32", 1 }, { "binary", "primitive.mul", 1, 2 })))
    assert.equal("invalid: main: softmax of fp16 [2, 3], int32 []: the axis must be a constant within the tensor's rank",
      (fails { "softmax", 1, 2 }))
    assert.matches("^format: .*: the size of its result is unknown$", -- a product that wraps behind a dimension of 0
      (fails({ "input", "z", "fp16", { 0, 1 << 40, 1 << 40 } }, { "unary", "sigmoid", 2 }, { "output", "y", 3 })))
  end)
end)

describe("aimodel reader", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
  end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  it("reads what the writer wrote", function()
    assert(write(dir .. "/a.aimodel", { small() }))
    local asset = assert(core.aimodel(dir .. "/a.aimodel"))
    assert.equal([[
function main
  %0 = input x: fp32 [2, 3]
  %1 = constant: fp32 [3, 2] resource 0
  %2 = primitive.batch_matmul_v1(%0, %1): fp32 [2, 2]
  %3 = constant: fp32 [] all 00000040
  %4 = broadcasting_mul_v1(%2, %3): fp32 [2, 2]
  %5 = sigmoid_v1(%4): fp32 [2, 2]
  output y = %5
]], asset:text())
    local contents = asset:contents()
    assert.same({ fp32 = 24 }, contents.weights)
    assert.same({ { name = "x", dtype = "fp32", shape = { 2, 3 } } }, contents.functions[1].inputs)
    assert.same({ { name = "y", dtype = "fp32", shape = { 2, 2 } } }, contents.functions[1].outputs)
    assert.equal(2, contents.functions[1].ops["primitive.constant_v1"])
    asset:close()
    assert.error_matches(function() asset:text() end, "asset is closed")
  end)

  it("counts a resource once, however many constants use it", function()
    local f = { name = "main", { "input", "x", "fp32", { 2, 3 } } }
    f[2] = { "resource", "fp32", { 3, 2 }, floats { 1, 2, 3, 4, 5, 6 } }
    for i = 3, 600 do f[i] = { "resource", "fp32", { 3, 2 }, "", 1 } end
    f[#f + 1] = { "matmul", 1, 2 }
    f[#f + 1] = { "output", "y", #f }
    assert(write(dir .. "/many.aimodel", { f }))
    local asset <close> = assert(core.aimodel(dir .. "/many.aimodel"))
    assert.same({ fp32 = 24 }, asset:contents().weights)
  end)

  it("reads an asset of Apple's library", function()
    local asset = assert(core.aimodel "spec/fixtures/aimodel/apple.aimodel")
    local f = asset:contents().functions[2]
    assert.same({ { name = "keyCache", dtype = "fp16", shape = { 1, 1, 8, 64 } } }, f.states)
    assert.same({ { name = "logits", dtype = "fp16", shape = { 1, 1, 2, 64 } } }, f.outputs)
    assert.truthy(asset:contents().functions[1].private)
  end)

  local function open_bytes(bytes)
    local f = assert(io.open(dir .. "/m.aimodel/main.mlirb", "wb"))
    f:write(bytes)
    f:close()
    return core.aimodel(dir .. "/m.aimodel")
  end

  it("refuses broken files with the offset", function()
    assert(write(dir .. "/m.aimodel", { small() }))
    local bytes = read(dir .. "/m.aimodel/main.mlirb")
    local function fault(text)
      local asset, message, code = open_bytes(text)
      assert.is_nil(asset)
      return code .. message:match "mlirb(.*)"
    end
    assert.equal("format: byte 0: is not MLIR bytecode", fault "MLxx")
    assert.equal("unsupported: byte 4: the bytecode version must be 6, but is 7", fault(bytes:sub(1, 4) .. "\15" .. bytes:sub(6)))
    assert.equal("format: byte 5: the producer is truncated, or a number in it is too large", fault(bytes:sub(1, 7)))
    for n = 9, #bytes - 1, 7 do assert.truthy(fault(bytes:sub(1, n)):find "^format: byte %d+: ") end
  end)

  -- The program of an asset with states, rope, attention and the delta rule, as `ane export` writes it.
  local function exported(weights)
    local o = ops.new {
      channels = 38, out = 10, consts = { a = { 2 }, bias = { 2 }, wq = { 16, 38 }, wk = { 8, 38 }, mix = { 10, 16 } },
      text = "state ks: fp32[1, 2, context, 4]\nstate vs: fp32[1, 2, context, 4]\nstate s: fp32[1, 2, 6, 5]\n" ..
        "r = rope_table(positions) {inv_freq=[1 0.25]}\nq = conv1x1(x, wq)\nk = conv1x1(x, wk)\n" ..
        "qr = rope(q, r) {heads=4 layout=half}\nat = attention(qr, k, k, ks, vs) {heads=4 kv_heads=2 scale=0.5}\nm = conv1x1(at, mix)\n" ..
        "u = slice(x) {from=0 to=34}\nd = slice(x) {from=34 to=36}\nb = slice(x) {from=36 to=38}\n" ..
        "e = delta_rule(u, d, b, a, bias, s) {key_heads=2}\ny = add(e, m)",
    }
    local graph <close> = ops.graph(o)
    local exporter <close> = assert(core.mil_exporter(graph, { weights = weights, context = 16 }))
    assert(exporter:coreai(dir .. "/o.aimodel", { 16 }, { 1, 4 }))
    return read(dir .. "/o.aimodel/main.mlirb")
  end

  -- Zeros for the inputs of a function; nil: too many, or a shape that is not known.
  local function zeros(f)
    local inputs = {}
    for _, port in ipairs(f.inputs) do
      local n, data, shape = 1, {}, {}
      for i, d in ipairs(port.shape) do
        shape[i] = d < 0 and 3 or d -- -1: not known
        n = n * shape[i]
        if n > 1 << 16 then return nil end
      end
      for i = 1, n do data[i] = 0 end
      inputs[port.name] = { shape = shape, data = data }
    end
    return inputs
  end

  -- Reads an asset and runs its functions. Returns how far it came: "refused", "read" or "run".
  local function take(bytes)
    local asset, message = open_bytes(bytes)
    if not asset then
      assert.truthy(message:find "byte %d+: ", 1)
      return "refused"
    end
    asset:text()
    asset:contents()
    asset:close()
    local pkg <close> = ane.package(dir .. "/m.aimodel", { threads = 1 })
    for _, f in ipairs(pkg and pkg:info().functions or {}) do
      local inputs = zeros(f)
      if not inputs then return "read" end
      local out, why = pkg:predict(inputs, nil, { ["function"] = f.name })
      if not out then
        assert.equal("string", type(why))
        return "read"
      end
    end
    return pkg and "run" or "read"
  end

  -- ANE_MUTATIONS: how many. The counts are printed where it is given.
  it("survives changed bytes", function()
    assert(write(dir .. "/m.aimodel", { small() }))
    local sources = { read(dir .. "/m.aimodel/main.mlirb"), read "spec/fixtures/aimodel/apple.aimodel/main.mlirb",
                      read "spec/fixtures/aimodel/torch_repeat.aimodel/main.mlirb", exported "int8", exported "lut3", exported "lut6" }
    for _, name in ipairs { "unary", "binary", "reductions", "moves", "indexing", "convolutions", "pooling", "norms", "attention",
                            "weights", "quantised", "dynamic", "branches" } do
      sources[#sources + 1] = read(("spec/fixtures/aimodel/nets/%s.aimodel/main.mlirb"):format(name))
    end
    local random, count, wanted = 12345, { refused = 0, read = 0, run = 0 }, os.getenv "ANE_MUTATIONS"
    local function below(n)
      random = (random * 1103515245 + 12345) % 2147483648
      return random // 65536 % n
    end
    for i = 1, tonumber(wanted or 400) do
      local bytes = sources[i % #sources + 1]
      for _ = 0, below(3) do
        local at = (below(1 << 15) << 15 | below(1 << 15)) % #bytes + 1
        local values = { string.char(below(256)), "\0", "\255", "\1", "" }
        bytes = bytes:sub(1, at - 1) .. values[below(#values) + 1] .. bytes:sub(at + 1)
      end
      local how = take(bytes)
      count[how] = count[how] + 1
    end
    if wanted then print(("%s assets: %d refused, %d read, %d run"):format(wanted, count.refused, count.read, count.run)) end
  end)
end)
