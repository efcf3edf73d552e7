-- Core ML packages: what is read, against what coremltools says of them; what is written.
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local tree = require "support.tree"

local FIXTURES = "spec/fixtures/mlpackage/"
local NAMES = { "attn_state_rangedim/model", "mlp_int4_block/model", "mlp_int8_affine_ios16/model", "mlp_lut4/model", "values" }

local function path_of(name) return FIXTURES .. name .. ".mlpackage" end

local folder

before_each(function() folder = mlpackage.folder() end)
after_each(function() tree.remove(folder) end)

local function hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function feature_of(list, name)
  for _, f in ipairs(list) do
    if f.name == name then return f end
  end
end

describe("a package of coremltools", function()
  -- Printed by coremltools 9.0: specification version, opset, operations, blobs and their bytes.
  local FACTS = {
    ["attn_state_rangedim/model"] = { version = 9, opset = "CoreML8", number = 6, bytes = 18560, ops = {
      const = 141, mul = 17, slice_by_index = 15, transpose = 11, add = 10, reshape = 8, matmul = 6, squeeze = 5, conv = 4, concat = 3,
      sub = 3, expand_dims = 2, pow = 2, read_state = 2, reduce_mean = 2, rsqrt = 2, slice_update = 2, softmax = 2, write_state = 2,
      reduce_sum = 1, silu = 1 } },
    ["mlp_int4_block/model"] = { version = 9, opset = "CoreML8", number = 6, bytes = 4160, ops = {
      const = 23, mul = 3, add = 2, constexpr_blockwise_shift_scale = 2, conv = 2, slice_by_index = 2, pow = 1, reduce_mean = 1,
      rsqrt = 1, silu = 1 } },
    ["mlp_int8_affine_ios16/model"] = { version = 7, opset = "CoreML6", number = 8, bytes = 6944, ops = {
      const = 23, mul = 3, add = 2, constexpr_affine_dequantize = 2, conv = 2, slice_by_index = 2, pow = 1, reduce_mean = 1,
      rsqrt = 1, silu = 1 } },
    ["mlp_lut4/model"] = { version = 9, opset = "CoreML8", number = 6, bytes = 4032, ops = {
      const = 23, mul = 3, add = 2, constexpr_lut_to_dense = 2, conv = 2, slice_by_index = 2, pow = 1, reduce_mean = 1, rsqrt = 1,
      silu = 1 } },
  }

  it("has the version, the operations and the weights that coremltools prints", function()
    for name, want in pairs(FACTS) do
      local pkg <close> = assert(core.package(path_of(name)))
      local info = pkg:info()
      assert.equal(want.version, info.version)
      assert.equal(1, #info.functions)
      assert.equal("main", info.functions[1].name)
      assert.equal(want.opset, info.functions[1].opset)
      assert.same(want.ops, info.functions[1].ops)
      assert.same({ number = want.number, bytes = want.bytes, files = 1 }, info.weights)
      assert.equal("9.0", info.metadata.user["com.github.apple.coremltools.version"])
    end
  end)

  it("has inputs of flexible shape and states", function()
    local pkg <close> = assert(core.package(path_of "attn_state_rangedim/model"))
    local f = pkg:info().functions[1]
    assert.same({ name = "x", dtype = "fp16", shape = { 1, 32, -1, 1 }, default = { 1, 32, 1, 1 }, optional = false,
      range = { { 1, 1 }, { 32, 32 }, { 1, 4 }, { 1, 1 } } }, feature_of(f.inputs, "x"))
    assert.same({ name = "kv_write_mask", dtype = "fp16", shape = { 1, 1, 16, -1 }, default = { 1, 1, 16, 1 }, optional = false,
      range = { { 1, 1 }, { 1, 1 }, { 16, 16 }, { 1, 4 } } }, feature_of(f.inputs, "kv_write_mask"))
    assert.same({ { name = "layers_0_k_state", dtype = "fp16", shape = { 1, 2, 16, 8 }, optional = false },
      { name = "layers_0_v_state", dtype = "fp16", shape = { 1, 2, 16, 8 }, optional = false } }, f.states)
    assert.same({ { name = "hidden", dtype = "fp16", shape = { 1, 32, -1, 1 }, optional = false } }, f.outputs)
  end)
end)

describe("a constant", function()
  it("has the bytes that NumPy packed, of each type, in the model and in the weights", function()
    local want = assert(core.json_decode(tree.read(FIXTURES .. "values.json")))
    local pkg <close> = assert(core.package(path_of "values"))
    for func, values in pairs(want) do
      for name, v in pairs(values) do
        local data, dtype, shape = pkg:value(name, nil, func)
        assert.equal(v.dtype, dtype, name)
        assert.same(setmetatable(v.shape, nil), shape, name)
        if name == "word" then assert.equal(v.data[1], data)
        elseif name == "words" then assert.same(setmetatable(v.data, nil), data)
        else assert.equal(v.data, hex(data), name) end
      end
    end
  end)

  it("may stand in place, under a parameter or an attribute", function()
    local pkg <close> = assert(core.package(path_of "values"))
    local data, dtype, shape = pkg:value("weight", "data")
    assert.equal(12, #data)
    assert.equal("int4", dtype)
    assert.same({ 2, 3, 4 }, shape)
    assert.equal(("<I2I2"):pack(0x3800, 0xC000), (pkg:value("weight", "scale")))
    local old <close> = assert(core.package(path_of "mlp_int8_affine_ios16/model"))
    local weight = old:dump():match "%%(%S+): fp16%[[^%]]*%] = constexpr_affine_dequantize"
    data, dtype, shape = old:value(weight, "quantized_data")
    assert.equal("int8", dtype)
    local count = 1
    for _, d in ipairs(shape) do count = count * d end
    assert.equal(count, #data)
    data, dtype, shape = old:value(weight, "axis")
    assert.same({ "\0\0\0\0", "int32", {} }, { data, dtype, shape })
  end)

  it("that is not there is named", function()
    local pkg <close> = assert(core.package(path_of "values"))
    local function says(message, ...)
      local ok, text, code = pkg:value(...)
      assert.same({ nil, message, "notfound" }, { ok, text, code })
    end
    says('no operation has an output "nobody"', "nobody")
    says('the operation concat of "cat" holds no value "val"', "cat")
    says('the operation concat of "cat" holds no value "values"', "cat", "values")
    says('there is no function "third"', "cat", nil, "third")
    local ok, text, code = pkg:value("x1", "numbers")
    assert.same({ nil, '"x1" is a list, tuple or dictionary, no tensor', "unsupported" }, { ok, text, code })
  end)
end)

describe("a package with two functions", function()
  it("tells all that they are", function()
    local pkg <close> = assert(core.package(path_of "values"))
    local info = pkg:info()
    assert.equal("main", info.default_function)
    assert.same({ description = "Every kind of value", author = "nobody", version = "1.2", license = "MIT",
      user = { alpha = "", zeta = "last", ["com.github.apple.coremltools.version"] = "9.0" } }, info.metadata)
    local main, other = info.functions[1], info.functions[2]
    assert.same({ name = "ids", dtype = "int32", shape = { -1 }, default = { 2 }, optional = false, range = { { 0 } } }, main.inputs[2])
    assert.same({ name = "scale", dtype = "fp32", shape = {}, optional = true, default_value = 0.5 }, main.inputs[3])
    assert.equal("activations", main.inputs[1].description)
    assert.same({ name = "ids", dtype = "int32", shape = { -1, -1 }, default = { 2, 2 }, optional = false,
      enumerated = { { 2, 2 }, { 1, 16 }, { 4, 0 } } }, other.inputs[1])
    assert.equal(2, main.ops.sqrt) -- in nested blocks
    assert.equal(2, other.n_ops)
  end)

  it("shares weights between them", function()
    local pkg <close> = assert(core.package(path_of "values"))
    assert.equal(pkg:value("table", nil, "main"), pkg:value("table", nil, "other"))
    local _, blobs = pkg:dump():gsub("blob ", "")
    assert.equal(blobs - 1, pkg:info().weights.number)
  end)
end)

describe("the text of a program", function()
  it("has an operation a line", function()
    local pkg <close> = assert(core.package(path_of "values"))
    local text = pkg:dump()
    for _, line in ipairs {
      'program 10 {buildInfo=(string "made by", string "spec/golden", string "Grüße", string "世界")}',
      "  input x: fp16[1, 4, 2, 1] in [1, 4, 1..64, 1] \"activations\"",
      "  input ids: int32[2] in [0..]",
      "  input ids: int32[2, 2] one of [2, 2] | [1, 16] | [4, 0]",
      '    %fp16_5: fp16[5] = const() {name=string "op_fp16_5"; val=fp16[5] {-0, inf, 65504, 0.489746094, 0.356933594}}',
      '    %words: string[3] = const() {name=string "op_words"; val=string[3] {"", "a \\x22b\\x22\\x0a", "é世"}}',
      '    %cat: fp16[1, 4, ?, 1] = concat(axis=%int32_1, interleave=%bool_1, values=(%x1, %x, %x1)) {name=string "the_cat"}',
      '    write_state(data=%old, input=%kv) {name=string "the_write_state"}',
      "      block(%var: fp16[2, 8])",
      "        return %step",
      "    return %cat, %looped",
    } do
      assert.truthy(("\n" .. text):find("\n" .. line .. "\n", 1, true), line)
    end
  end)

  it("keeps what a file calls things from breaking lines", function()
    local pkg <close> = assert(core.package(mlpackage.write(folder .. "/a", mlpackage.tiny(function(t)
      t.ops[3] = mlpackage.op("mul\n", { { "x x", { "x" } } }, { { "y", t.vector } })
    end))))
    assert.truthy(pkg:dump():find('    %y: fp16[4] = "mul\\x0a"("x x"=%x)\n', 1, true))
  end)
end)

describe("a package that is written", function()
  local function rewritten(name, to)
    local pkg <close> = assert(core.package(path_of(name)))
    assert(pkg:rewrite(to))
    local again <close> = assert(core.package(to))
    return pkg:dump(), again:dump(), pkg:info(), again:info()
  end

  it("reads as the one it was written from", function()
    for _, name in ipairs(NAMES) do
      local before, after, info, info_after = rewritten(name, folder .. "/a")
      assert.equal(before, after)
      info.path, info_after.path = nil, nil
      assert.same(info, info_after)
    end
  end)

  it("has the same bytes when it is written again", function()
    for _, name in ipairs(NAMES) do
      rewritten(name, folder .. "/a")
      local pkg <close> = assert(core.package(folder .. "/a"))
      assert(pkg:rewrite(folder .. "/b"))
      local ok, text = tree.run(("diff -r '%s/a' '%s/b'"):format(folder, folder))
      assert.is_true(ok, text)
      assert(pkg:rewrite(folder .. "/a")) -- over itself, while it is open
      ok, text = tree.run(("diff -r '%s/a' '%s/b'"):format(folder, folder))
      assert.is_true(ok, text)
    end
  end)

  it("has the bytes of protobuf's own writer, for the same weights at the same places", function()
    -- values.mlpackage was serialised with sorted maps, its blobs lie in the order in which the first function names them.
    rewritten("values", folder .. "/a")
    local function without_offsets(path)
      return (mlpackage.read(path, "model"):gsub("weight%.bin\x10..", "weight.bin"))
    end
    assert.equal(without_offsets(path_of "values"), without_offsets(folder .. "/a"))
  end)

  it("has its blobs on multiples of 64, and a header that counts them", function()
    rewritten("values", folder .. "/a")
    local bytes = mlpackage.read(folder .. "/a", "weights")
    local count, version = ("<I4I4"):unpack(bytes)
    assert.equal(2, version)
    local at = 64
    for _ = 1, count do
      local sentinel, _, size, offset = ("<I4I4I8I8"):unpack(bytes, at + 1)
      assert.equal(0xDEADBEEF, sentinel)
      assert.equal(at + 64, offset)
      at = (offset + size + 63) // 64 * 64
    end
    assert.is_true(at >= #bytes and at - #bytes < 64)
  end)

  it("has a folder for weights where it has none", function()
    local pkg <close> = assert(core.package(mlpackage.write(folder .. "/a", mlpackage.tiny(function(t)
      t.ops[1] = mlpackage.const("w", t.vector, mlpackage.value(t.vector, 7, ("\0\60"):rep(4)))
    end))))
    assert(pkg:rewrite(folder .. "/b"))
    local again <close> = assert(core.package(folder .. "/b"))
    assert.equal(pkg:dump(), again:dump())
    assert.same({ number = 0, bytes = 0, files = 0 }, again:info().weights)
    assert.is_true((tree.run("test -d '" .. folder .. "/b/Data/com.apple.CoreML/weights'")))
    assert.is_true((tree.run("rmdir '" .. folder .. "/b/Data/com.apple.CoreML/weights'")))
  end)

  it("leaves out weights that nothing uses", function()
    local weights = mlpackage.weights { { 1, ("\0\60"):rep(4) }, { 1, ("\1"):rep(5000) } }
    local pkg <close> = assert(core.package(mlpackage.write(folder .. "/a", nil, weights)))
    assert(pkg:rewrite(folder .. "/b"))
    assert.equal(64 + 64 + 8, #mlpackage.read(folder .. "/b", "weights"))
  end)
end)

describe("a closed package", function()
  it("says so", function()
    local pkg = assert(core.package(path_of "values"))
    assert.equal("package (" .. path_of "values" .. ")", tostring(pkg))
    pkg:close()
    pkg:close()
    assert.equal("package (closed)", tostring(pkg))
    assert.error_matches(function() pkg:info() end, "package is closed")
    assert.error_matches(function() pkg:rewrite "x" end, "package is closed")
  end)
end)
