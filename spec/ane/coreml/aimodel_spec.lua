-- Core AI assets: described and run.
local aimodel = require "ane.coreml.aimodel"
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"

local write = core.testing.aimodel_write
local APPLE = "spec/fixtures/aimodel/apple.aimodel"

local function floats(list) return string.pack(("<" .. ("f"):rep(#list)), table.unpack(list)) end

local function close(got, want, tolerance)
  got = type(got) == "userdata" and got:reshape({ #got }):totable() or got
  assert.equal(#want, #got)
  for i, v in ipairs(want) do
    assert.is_true(math.abs(got[i] - v) <= (tolerance or 1e-5), ("element %d: %s, wanted %s"):format(i, got[i], v))
  end
end

describe("a Core AI asset", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
  end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  -- Runs one function on x = fp32 [2, 3] from -1 to 1.
  local function run(steps)
    local list = { name = "main", { "input", "x", "fp32", { 2, 3 } } }
    for _, step in ipairs(steps) do list[#list + 1] = step end
    assert(write(dir .. "/m.aimodel", { list }))
    local pkg <close> = assert(ane.package(dir .. "/m.aimodel"))
    return assert(pkg:predict { x = { shape = { 2, 3 }, data = { -1, -0.6, -0.2, 0.2, 0.6, 1 } } })
  end

  it("refuses numbers that the type of an input does not have", function()
    for dtype, case in pairs {
      fp16 = { good = { 65504, -65519, math.huge }, bad = { [65520] = "65520", [-70000] = "-70000" } },
      uint16 = { good = { 0, 65535 }, bad = { [65536] = "65536", [-1] = "-1" } },
    } do
      assert(write(dir .. "/m.aimodel", { { name = "main", { "input", "x", dtype, { 2 } },
        { "cast", 1, "fp32" }, { "output", "y", 2 } } }))
      local pkg <close> = assert(ane.package(dir .. "/m.aimodel"))
      for _, v in ipairs(case.good) do assert(pkg:predict { x = { 0, v } }) end
      for v, text in pairs(case.bad) do
        assert.same({ nil, ("input x: element 1 is %s, no %s"):format(text, dtype), "invalid" }, { pkg:predict { x = { 0, v } } })
      end
    end
  end)

  -- Converted by coreai-torch 0.4.3: F.pad(x, (2, 1)) in three modes, and x.repeat_interleave(2, 1) + 1.
  it("runs padding and repetition as coreai-torch writes them", function()
    for name, want in pairs {
      torch_pad_constant = { 0.5, 0.5, 1, 2, 3, 4, 0.5, 0.5, 0.5, 5, 6, 7, 8, 0.5, 0.5, 0.5, 9, 10, 11, 12, 0.5 },
      torch_pad_reflect = { 3, 2, 1, 2, 3, 4, 3, 7, 6, 5, 6, 7, 8, 7, 11, 10, 9, 10, 11, 12, 11 },
      torch_pad_replicate = { 1, 1, 1, 2, 3, 4, 4, 5, 5, 5, 6, 7, 8, 8, 9, 9, 9, 10, 11, 12, 12 },
      torch_repeat = { 2, 3, 4, 5, 2, 3, 4, 5, 6, 7, 8, 9, 6, 7, 8, 9, 10, 11, 12, 13, 10, 11, 12, 13 },
    } do
      local pkg <close> = assert(ane.package("spec/fixtures/aimodel/" .. name .. ".aimodel"))
      close(assert(pkg:predict { x = { shape = { 1, 3, 4 }, data = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 } } }).y, want)
      local mode = name:match "torch_pad_(.*)"
      if mode then assert.truthy(pkg:dump():find("primitive.pad_v1 " .. mode, 1, true)) end
    end
  end)

  it("computes what Apple's runtime computes", function() -- numbers of coreai-core 1.0.0b3
    local w = {}
    for i = 0, 11 do w[#w + 1] = i / 8 end
    local out = run {
      { "resource", "fp32", { 3, 4 }, floats(w) }, -- 2
      { "matmul", 1, 2 }, { "number", "fp32", 2 }, { "binary", "primitive.mul", 3, 4 }, -- 5
      { "softmax", 5, 1 }, { "reduce", "reduce_sum", 5, 1 }, { "reduce", "reduce_mean", 5, 1 }, { "reduce", "reduce_max", 5, 1 }, -- 9
      { "unary", "sigmoid", 5 }, { "unary", "silu", 5 }, { "unary", "relu", 5 }, -- 12
      { "binary", "primitive.greater", 5, 8 }, { "cast", 13, "fp32" }, -- 14
      { "output", "mm", 5 }, { "output", "soft", 6 }, { "output", "sum", 7 }, { "output", "mean", 8 }, { "output", "max", 9 },
      { "output", "sig", 10 }, { "output", "silu", 11 }, { "output", "relu", 12 }, { "output", "gt", 14 },
    }
    close(out.mm, { -1, -1.45, -1.9, -2.35, 2.6, 3.05, 3.5, 3.95 })
    close(out.soft, { 0.43413368, 0.27681583, 0.17650557, 0.11254491, 0.11254491, 0.17650557, 0.27681583, 0.43413368 })
    close(out.sum, { -6.7, 13.1 })
    close(out.mean, { -1.675, 3.275 })
    close(out.max, { -1, 3.95 })
    close(out.sig, { 0.26894143, 0.19000155, 0.13010846, 0.08706576, 0.9308616, 0.9547826, 0.97068775, 0.9811091 })
    close(out.silu, { -0.26894143, -0.27550226, -0.24720609, -0.20460455, 2.42024, 2.9120867, 3.3974073, 3.8753808 })
    close(out.relu, { 0, 0, 0, 0, 2.6, 3.05, 3.5, 3.95 })
    close(out.gt, { 1, 1, 0, 0, 0, 0, 1, 1 })
  end)

  it("moves elements as numpy does", function()
    local out = run {
      { "slice", 1, 1, 2, -9, -1 }, -- 2
      { "slice", 1, 1, 0, 2147483647, 2 }, -- 3
      { "transpose", 1, { 1, 0 } }, -- 4
      { "reshape", 1, { 3, 2 } }, -- 5
      { "concat", { 4, 5 }, 1 }, -- 6
      { "broadcast", 1, { 2, 2, 3 } }, -- 7
      { "ints", "int32", { 1, 0, 1 } }, -- 8
      { "gather", 1, 8 }, -- 9
      { "argsort", 1, 1, 1 }, -- 10
      { "argmax", 1, 1 }, -- 11
      { "output", "back", 2 }, { "output", "even", 3 }, { "output", "both", 6 }, { "output", "wide", 7 }, { "output", "rows", 9 },
      { "output", "order", 10 }, { "output", "top", 11 },
    }
    close(out.back, { -0.2, -0.6, -1, 1, 0.6, 0.2 })
    close(out.even, { -1, -0.2, 0.2, 1 })
    close(out.both, { -1, 0.2, -1, -0.6, -0.6, 0.6, -0.2, 0.2, -0.2, 1, 0.6, 1 })
    close(out.wide, { -1, -0.6, -0.2, 0.2, 0.6, 1, -1, -0.6, -0.2, 0.2, 0.6, 1 })
    close(out.rows, { 0.2, 0.6, 1, -1, -0.6, -0.2, 0.2, 0.6, 1 })
    assert.same({ 2, 1, 0, 2, 1, 0 }, { table.unpack(out.order) })
    assert.same({ 2, 2 }, { table.unpack(out.top) })
  end)

  it("decodes weights and calls other functions", function()
    local halves = ("\0\60"):rep(3) -- 1.0
    assert(write(dir .. "/m.aimodel", {
      { name = "double", private = true, { "input", "x", "fp16", { 3, 4 } }, { "binary", "primitive.add", 1, 1 }, { "output", "y", 2 } },
      {
        name = "main",
        { "input", "x", "fp16", { 1, 3 } }, -- 1
        { "resource", "int8", { 3, 4 }, string.pack("bbbbbbbbbbbb", 1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12) }, -- 2
        { "constant", "fp16", { 3, 1 }, halves }, -- 3
        { "blockwise", 2, 3 }, -- 4
        { "resource", "uint4", { 3, 4 }, "\x10\x32\x54\x76\x98\xBA" }, -- 5
        { "constant", "fp16", { 1, 1, 16, 1 }, ("\0\60"):rep(8) .. ("\0\64"):rep(8) }, -- 6: 1.0 and 2.0
        { "lut", 5, 6 }, -- 7
        { "invoke", 1, { 4 } }, -- 8
        { "matmul", 1, 8 }, { "matmul", 1, 7 }, -- 9 10
        { "output", "a", 9 }, { "output", "b", 10 },
      },
    }))
    local pkg <close> = assert(ane.package(dir .. "/m.aimodel"))
    local out = assert(pkg:predict { x = { { 1, 1, 1 } } })
    close(out.a, { 30, -36, 42, -48 })
    close(out.b, { 4, 4, 4, 4 })
  end)

  it("keeps states between calls", function()
    assert(write(dir .. "/m.aimodel", {
      {
        name = "main",
        { "input", "x", "fp16", { 1, 2 } }, { "input", "at", "int32", { 2 } }, { "state", "keys", "fp16", { 3, 2 } },
        { "read", 3 }, { "ints", "int32", { 1, 2 } }, { "binary", "primitive.add", 2, 5 }, -- 6
        { "slice_update", 4, 2, 6, 1 }, { "write", 3, 7 }, { "read", 3 }, { "reduce", "reduce_sum", 9, 0 }, { "output", "y", 10 },
      },
    }))
    local pkg <close> = assert(ane.package(dir .. "/m.aimodel"))
    local state <close> = assert(pkg:state())
    close(assert(pkg:predict({ x = { { 1, 2 } }, at = { 0, 0 } }, state)).y, { 1, 2 })
    close(assert(pkg:predict({ x = { { 3, 4 } }, at = { 2, 0 } }, state)).y, { 4, 6 })
    close(assert(pkg:predict { x = { { 3, 4 } }, at = { 2, 0 } }).y, { 3, 4 })
    close(state:get "keys", { 1, 2, 0, 0, 3, 4 })
  end)

  it("of Apple's library runs, and gives its numbers", function()
    local case = assert(core.json_decode(assert(io.open("spec/fixtures/aimodel/apple_case.json")):read "a"))
    local pkg <close> = assert(ane.package(APPLE))
    local state <close> = assert(pkg:state())
    for _, call in ipairs(case.calls) do
      close(assert(pkg:predict(call.inputs, state)).logits, call.outputs.logits.data, 0.01)
    end
    assert.equal("aimodel", pkg:info().kind)
    assert.equal(aimodel.summary(assert(aimodel.contents(APPLE))), tostring(pkg))
    assert.truthy(pkg:dump():find("dataflow.invoke_v1 sdpa", 1, true))
    local ok, message, code = pkg:rewrite(dir .. "/x")
    assert.is_nil(ok)
    assert.equal("unsupported", code)
    assert.equal(APPLE .. ": a Core AI asset is not rewritten", message)
  end)

  it("is known by its name, so that the file that is missing is named", function()
    assert.is_true(aimodel.found "no/such.aimodel/")
    assert.is_false(aimodel.found "spec/fixtures/hf/llama")
    local contents, message, code = aimodel.contents "no/such.aimodel"
    assert.is_nil(contents)
    assert.matches("no/such.aimodel/main.mlirb: ", message)
    assert.equal("io", code)
  end)

  it("is described", function()
    assert.equal([[
spec/fixtures/aimodel/apple.aimodel: Core AI asset by MLIR22.0.0git, 2 resources of 14592 bytes
  bytes by type: fp16 14592
private function]], aimodel.summary(assert(aimodel.contents(APPLE))):match "^(.-function)")
    assert.is_false(aimodel.found(dir))
    assert.equal("io", select(3, aimodel.contents(dir .. "/none")))
    assert.truthy(aimodel.text(APPLE):find("state fp16 [1, 1, 8, 64]", 1, true))
  end)

  it("is shown as a program or as JSON, not both", function()
    local code, text, err = command.run { "info", APPLE, "--program", "--json" }
    assert.same({ 2, "", "ane info: --program cannot be combined with --json\n" }, { code, text, err })
  end)

  it("has a hash that is checked", function()
    local asset = dir .. "/m.aimodel"
    assert.equal("ok", aimodel.hash(APPLE))
    assert(write(asset, { { name = "main", { "input", "x", "fp16", { 2, 3 } }, { "output", "y", 1 } } }))
    assert.equal("ok", aimodel.hash(asset .. "/"))
    local info = command.json { "info", asset }
    assert.equal("ok", info.hash)
    assert.matches("\n  hash: ok\n", select(2, command.run { "info", asset }))

    assert(core.write_file(asset .. "/main.hash", ("x"):rep(32)))
    local state, message = aimodel.hash(asset)
    assert.equal("differs", state)
    assert.matches("m.aimodel/main.mlirb: its SHA%-256 is %x+, main.hash has 7878", message)
    for _, args in ipairs { { "info", asset }, { "info", asset, "--json" } } do
      local code, out, err = command.run(args)
      assert.equal(1, code)
      assert.matches("differs", out)
      assert.matches("m.aimodel/main.mlirb: its SHA%-256 is", err)
    end
    for bytes, found in pairs { [0] = "0", [31] = "31", [33] = "more" } do
      assert(core.write_file(asset .. "/main.hash", ("x"):rep(bytes)))
      state, message = aimodel.hash(asset)
      assert.equal("differs", state)
      assert.matches("main.hash: must have the 32 bytes of a SHA%-256, but has " .. found, message)
    end
    assert(ane.package(asset)):close() -- does not read it

    assert(os.remove(asset .. "/main.hash"))
    assert.equal("missing", aimodel.hash(asset))
    assert.equal("missing", command.json({ "info", asset }).hash)
    assert(os.execute("mkdir " .. asset .. "/main.hash"))
    state, message = aimodel.hash(asset)
    assert.is_nil(state)
    assert.matches("main.hash: ", message)
  end)
end)
