-- Packages that are wrong: an error that names the place, whatever was done to the bytes; nothing lost where memory runs out.
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local tree = require "support.tree"

local testing = core.testing
local bytes, const, encode, entry, op, tensor, text, value = mlpackage.bytes, mlpackage.const, mlpackage.encode, mlpackage.entry,
  mlpackage.op, mlpackage.tensor, mlpackage.text, mlpackage.value

local VALUES = "spec/fixtures/mlpackage/values.mlpackage"
local ONES = ("\0\60"):rep(4)

local folder, path

before_each(function()
  folder = mlpackage.folder()
  path = folder .. "/m.mlpackage"
end)

after_each(function()
  testing.alloc_fail_after(-1)
  tree.remove(folder)
end)

-- The error of a package of these parts holds `message`; its code is "format" if not said.
local function refused(message, code, model, weights, manifest)
  mlpackage.write(path, model, weights, manifest)
  local pkg, text_, code_ = core.package(path)
  assert.is_nil(pkg, message)
  assert.truthy(text_:find(message, 1, true), text_ .. "\n  does not say: " .. message)
  assert.truthy(text_:find("m.mlpackage", 1, true), text_)
  assert.equal(code or "format", code_, text_)
end

-- The same for tiny() after change(t).
local function tiny(message, change, code) refused(message, code, mlpackage.tiny(change)) end

describe("a package", function()
  it("is read where nothing is wrong with it", function()
    local pkg <close> = assert(core.package(mlpackage.write(path)))
    assert.same({ mul = 1, const = 2 }, pkg:info().functions[1].ops)
    assert.equal(ONES, (pkg:value "w"))
  end)

  it("is a folder with a manifest", function()
    local _, message, code = core.package(folder .. "/none")
    assert.same({ folder .. "/none/Manifest.json: No such file or directory", "io" }, { message, code })
    _, message, code = core.package "Makefile"
    assert.same({ "Makefile: must be a folder (.mlpackage or .aimodel), but is a file", "unsupported" }, { message, code })
    assert.error_matches(function() core.package "a\0b" end, "holds a NUL byte")
  end)
end)

describe("a manifest", function()
  local function manifest(message, from, to, code)
    local changed, n = mlpackage.MANIFEST:gsub(from, to, 1)
    assert(n > 0)
    refused(message, code, nil, nil, changed)
  end

  it("must be JSON with all its keys", function()
    refused("Manifest.json: the JSON is broken at byte", nil, nil, nil, "{")
    refused("Manifest.json: the JSON is broken at byte", nil, nil, nil, '{"a": 1, "a": 2}')
    refused("Manifest.json: the JSON is broken at byte", nil, nil, nil, ("["):rep(100000))
    refused("Manifest.json: has no fileFormatVersion", nil, nil, nil, "[]")
    refused("Manifest.json: the file is empty", nil, nil, nil, "")
    refused("Manifest.json: is larger than a manifest is", nil, nil, nil, (" "):rep(2 ^ 20 + 1))
    manifest('fileFormatVersion is "2.0.0", known is 1.0.0', "1%.0%.0", "2.0.0", "unsupported")
    manifest("has no fileFormatVersion", "fileFormatVersion", "version")
    manifest("has no itemInfoEntries", "itemInfoEntries", "items")
    manifest("has no rootModelIdentifier", "rootModelIdentifier", "root")
    manifest('rootModelIdentifier "x" is not an item', '"m"}', '"x"}')
    for _, key in ipairs { "path", "name", "author", "description" } do
      manifest(('item "w" has no text "%s"'):format(key), '("w":.-")' .. key .. '(":)', "%1" .. key .. "s%2")
      manifest(('item "m" has no text "%s"'):format(key), '("m":.-")' .. key .. '(": )"[^"]*"', "%1" .. key .. "%21")
    end
  end)

  it("must not lead out of the folder", function()
    local item = "com.apple.CoreML/model.mlmodel"
    manifest('item "m": path "../model.mlmodel" leaves the folder', item, "../model.mlmodel")
    manifest('path "a/../../../b" leaves the folder', item, "a/../../../b")
    manifest('path "/etc/passwd" is an absolute path', item, "/etc/passwd")
    manifest('path "C:model" holds a colon', item, "C:model")
    manifest('path "a\\b" holds a backslash', item, "a\\\\b")
    manifest('path "" is empty', item, "")
    manifest('item "w": Data/com.apple.CoreML/none does not exist', "CoreML/weights", "CoreML/none")
    manifest("Data/com.apple.CoreML: must be a file, but is a folder", item, "com.apple.CoreML", "io")
  end)

  it("must not lead through symbolic links", function()
    mlpackage.write(path)
    mlpackage.write(folder .. "/other")
    local data = path .. "/Data/com.apple.CoreML/"
    for _, name in ipairs { "model.mlmodel", "weights/weight.bin", "weights" } do
      local target = folder .. "/other/Data/com.apple.CoreML/" .. name
      assert(os.execute(("rm -r '%s%s'; ln -s '%s' '%s%s'"):format(data, name, target, data, name)))
      local pkg, message, code = core.package(path)
      assert.is_nil(pkg, name)
      assert.truthy(message:find(name, 1, true), message)
      assert.equal("io", code)
      assert(os.execute(("rm '%s%s'; cp -r '%s' '%s%s'"):format(data, name, target, data, name)))
      assert(core.package(path)):close()
    end
    assert(os.execute(("mv '%s/Data' '%s/Data2'; ln -s Data2 '%s/Data'"):format(path, path, path)))
    assert.is_nil((core.package(path)))
  end)

  it("may be a link, as the parts of a package in a model hub's cache are", function()
    mlpackage.write(path)
    assert(os.execute(("mkdir '%s/blobs'"):format(folder)))
    for i, name in ipairs { "Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin" } do
      assert(os.execute(("mv '%s/%s' '%s/blobs/%d'; ln -s '%s/blobs/%d' '%s/%s'"):format(path, name, folder, i, folder, i, path, name)))
    end
    local pkg <close> = assert(core.package(path))
    assert.equal(ONES, (pkg:value "w"))
  end)
end)

describe("a model", function()
  it("is refused wherever it is cut", function()
    for _, name in ipairs { "values", "mlp_lut4/model" } do
      local from = "spec/fixtures/mlpackage/" .. name .. ".mlpackage"
      local model, weights = mlpackage.read(from, "model"), mlpackage.read(from, "weights")
      for i = 0, 63 do
        mlpackage.write(path, model:sub(1, #model * i // 64), weights)
        local pkg, message, code = core.package(path)
        assert.is_nil(pkg, i)
        assert.truthy(message:find("model.mlmodel: ", 1, true), message)
        assert.truthy(code == "format" or code == "unsupported", message)
      end
    end
  end)

  it("must be an ML Program of a version that is known", function()
    refused("must be an ML Program, but is a neural network of the older kind", "unsupported", encode { { 1, 4 }, { 500, "" } })
    refused("must be an ML Program, but is a pipeline of models", "unsupported", encode { { 1, 4 }, { 202, "" } })
    refused("is a model of another kind", "unsupported", "")
    tiny("specification version 11, known are 6 .. 10", function(t) t.version = 11 end, "unsupported")
    tiny("specification version -1, known", function(t) t.version = -1 end, "unsupported")
    tiny("program version 2, known is 1", function(t) t.program_version = 2 end, "unsupported")
    tiny("made to be trained", function(t) t.model = { { 10, 1 } } end, "unsupported")
    tiny("function main: opset CoreML4, known are CoreML5 .. CoreML9", function(t) t.opset = "CoreML4" end, "unsupported")
    tiny("function main: opset CoreML8 in a model of specification version 8", function(t) t.version = 8 end)
    tiny("function main: has no block for its opset CoreML8", function(t) t.key = "CoreML7" end)
    tiny("Model.description at byte", function(t) t.model = { { 2, "" } } end)
  end)

  it("must not be nested deeper than protobuf allows", function()
    local type = tensor("fp16", {})
    for _ = 1, 10000 do type = encode { { 3, { bytes(1, encode(type)) } } } end -- tuple in tuple
    tiny("messages nested deeper than 100", function(t) t.ops[2] = op("f", nil, { { "n", type } }) end)
    local v = encode(text "x")
    for _ = 1, 5000 do v = encode { { 2, tensor("bool", {}) }, { 3, { { 3, { bytes(1, v) } } } } } end
    tiny("messages nested deeper than 100", function(t) t.ops[2] = op("f", nil, nil, { { "a", v } }) end)
    local block = encode { { 2, "y" } }
    for _ = 1, 5000 do block = encode { { 3, { { 1, "cond" }, bytes(4, block) } } } end
    tiny("messages nested deeper than 100", function(t) t.ops[2] = { { 1, "cond" }, bytes(4, block) } end)
  end)

  it("may be nested as deep as protobuf allows", function()
    local block = encode { { 2, "x" } }
    for _ = 1, 40 do block = encode { { 3, { { 1, "cond" }, bytes(4, block) } }, { 2, "x" } } end
    mlpackage.write(path, mlpackage.tiny(function(t) t.ops[4] = { { 1, "cond" }, bytes(4, block) } end))
    local pkg <close> = assert(core.package(path))
    assert.equal(41, pkg:info().functions[1].ops.cond)
    assert(pkg:rewrite(folder .. "/again"))
    local again <close> = assert(core.package(folder .. "/again"))
    assert.equal(pkg:dump(), again:dump())
  end)

  it("must have types that exist", function()
    local function typed(message, type, code) tiny(message, function(t) t.ops[3] = op("f", nil, { { "y", type } }) end, code) end
    local at = "function main: op f (y): type of y: "
    typed(at .. "data type 99, which MIL does not have", tensor(99, {}))
    typed(at .. "rank 3, but 1 dimensions", { { 1, { { 1, 10 }, { 2, 3 }, { 3, { { 1, "" } } } } } })
    typed(at .. "rank 11, at most 10 is supported", tensor("fp16", { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }), "unsupported")
    typed(at .. "a type of unknown rank", { { 1, { { 1, 10 }, { 2, -1 } } } }, "unsupported")
    typed(at .. "a type of unknown rank", { { 1, { { 1, 10 }, { 2, 1 }, { 3, { { 2, { { 1, 1 } } } } } } } }, "unsupported")
    typed(at .. "a dimension is neither constant nor unknown", { { 1, { { 1, 10 }, { 2, 1 }, { 3, "" } } } })
    typed(at .. "a dimension is both constant and unknown", { { 1, { { 1, 10 }, { 2, 1 }, { 3, { { 1, "" }, { 2, "" } } } } } })
    typed(at .. "a dimension of 18446744073709551615", tensor("fp16", { -1 }))
    typed(at .. "a shape of more elements than any file holds", tensor("fp16", { 1 << 40, 1 << 40, 0 }))
    typed(at .. "a shape of more elements than any file holds", tensor("fp16", { math.maxinteger, 2 }))
    typed(at .. "a type must be one of", "")
    typed(at .. "a type must be one of", { { 1, { { 1, 10 } } }, { 3, "" } })
    typed(at .. "a state that holds no tensor", { { 5, { { 1, { { 3, "" } } } } } })
    typed(at .. "a list without a length", { { 2, { { 1, tensor("fp16", {}) } } } })
    typed(at .. "a type is missing", { { 4, { { 1, tensor("string", {}) } } } })
  end)

  it("must have values that are of their types", function()
    local function valued(message, type, v, code) tiny(message, function(t) t.ops[2] = const("n", type, v) end, code) end
    local at, two = "function main: op const (n): attribute val: ", tensor("int32", { 2 })
    valued(at .. "the value has 3 elements, but its shape needs 2", two, value(two, 2, "\1\2\3"))
    valued(at .. "the value has 0 elements, but its shape needs 2", two, value(two, 2, ""))
    valued(at .. "the numbers of int32 must be in the field ints, but are in floats", two, value(two, 1, ("\0"):rep(8)))
    local both = { { 2, { { 1, "\1\2" } } }, { 5, "" } }
    valued(at .. "the value has its numbers in more than one field", two, { { 2, two }, { 3, { { 1, both } } } })
    valued(at .. "the value has no numbers", two, { { 2, two }, { 3, { { 1, "" } } } })
    valued(at .. "a value must be one of tensor, tuple, list, dictionary", two, { { 2, two }, { 3, "" } })
    valued(at .. "a value of another kind than its type", two, { { 2, two }, { 3, { { 3, "" } } } })
    valued(at .. "a value is neither here nor in a file", two, { { 2, two } })
    valued(at .. "a value that is both here and in a file", two, { { 2, two }, { 3, "" }, { 5, "" } })
    valued(at .. "a type is missing", two, { { 3, "" } })
    valued(at .. "a value with an unknown dimension", two, value(tensor("int32", { "?" }), 2, "\1\2"))
    local short = tensor("uint16", { 2 })
    valued(at .. "number 2 is 65536, which uint16 cannot hold", short, value(short, 2, "\1" .. mlpackage.varint(65536)))
    valued(at .. "number 1 is -1, which uint16 cannot hold", short, value(short, 2, mlpackage.varint(-1) .. "\1"))
    local nibbles = tensor("int4", { 5 })
    valued(at .. "the value has 2 bytes, but its shape needs 3", nibbles, value(nibbles, 7, "\1\2"))
    valued("RepeatedStrings.values at byte", tensor("string", {}), value(tensor("string", {}), 4, "a\0b"))
    local huge = tensor("fp16", { 1 << 56 })
    valued(at .. "the value has 4 bytes, but its shape needs 144115188075855872", huge, value(huge, 7, "abcd"))
    local list = { { 2, { { 1, tensor("int32", {}) }, { 2, { { 1, { { 1, 2 } } } } } } } }
    local one = { { 1, value(tensor("int32", {}), 2, "\1") } }
    valued(at .. "the value has 1 items, but its type needs 2", list, { { 2, list }, { 3, { { 3, one } } } })
    list = { { 2, { { 1, tensor("int32", {}) }, { 2, { { 2, "" } } } } } }
    valued(at .. "item 1 has another type than its list says", list, { { 2, list }, { 3, { { 3, { { 1, text "a" } } } } } })
    local state = mlpackage.state("fp16", { 1 })
    valued(at .. "a value that is a state", state, { { 2, state }, { 3, "" } })
    local dictionary = { { 4, { { 1, tensor("string", {}) }, { 2, tensor("string", {}) } } } }
    valued(at .. "a value is missing", dictionary, { { 2, dictionary }, { 3, { { 4, { { 1, { { 1, text "a" } } } } } } } })
  end)

  it("must have names that are used as they are defined", function()
    local function ops(message, change) tiny("function main: " .. message, function(t) change(t.ops, t) end) end
    for _, name in ipairs { "z", "y" } do -- nobody's, its own
      ops(("op mul (y): parameter x: %s is used, but not defined before"):format(name), function(o, t)
        o[3] = op("mul", { { "x", { name } } }, { { "y", t.vector } })
      end)
    end
    ops("op mul (y): parameter y: w is used, but not defined before", function(o) o[1], o[3] = o[3], o[1] end)
    ops("op mul (y): y is defined twice", function(o) o[4] = o[3] end)
    ops("op f (x): x is defined twice", function(o, t) o[4] = op("f", nil, { { "x", t.vector } }) end)
    ops("op f (z): z is defined twice", function(o, t) o[4] = op("f", nil, { { "z", t.vector }, { "z", t.vector } }) end)
    ops("output of the block: z is used, but not defined before", function(_, t) t.outputs[2] = "z" end)
    ops("y is an output twice", function(_, t) t.outputs[2] = "y" end)
    ops("has no outputs", function(_, t) t.outputs = {} end)
    ops("op const (n): a constant without the attribute val", function(o, t) o[2] = op("const", nil, { { "n", t.vector } }) end)
    ops("op const (n): a constant with inputs", function(o) o[2][#o[2] + 1] = { 2, entry("x", { { 1, { { 1, "x" } } } }) } end)
    ops("op const: a constant with 0 outputs", function(o) o[2] = op("const", nil, nil, { { "val", text "a" } }) end)
    ops("op const (n): the type of val is not that of the output", function(o, t) o[2] = const("n", t.vector, text "a") end)
    ops("op f: the attribute name is not a string", function(o, t)
      o[4] = op("f", nil, nil, { { "name", mlpackage.blob(t.vector, 64) } })
    end)
    ops("op f: attribute a comes twice", function(o)
      o[4] = op("f", nil, nil, { { "a", text "b" }, { "c", text "b" }, { "a", text "d" } })
    end)
    ops("op f: parameter p comes twice", function(o) o[4] = op("f", { { "p", { "x" } }, { "p", { "x" } } }) end)
    ops("op f: parameter p: has no binding", function(o) o[4] = op("f", { { "p" } }) end)
    ops("op f: parameter p: is bound to neither a name nor a value", function(o) o[4] = op("f", { { "p", { { { 9, 1 } } } } }) end)
    ops("op f: parameter p: is bound to a name and a value", function(o) o[4] = op("f", { { "p", { { { 1, "x" }, { 2, "" } } } } }) end)
    ops("operation 4 has no type", function(o) o[4] = { { 3, "" } } end)
    ops("op f: an output has no name", function(o, t) o[4] = op("f", nil, { { "", t.vector } }) end)
    -- What a block defines ends with it.
    local inner = encode { { 3, op("f", nil, { { "z", tensor("bool", {}) } }) }, { 2, "z" } }
    ops("op f: parameter p: z is used, but not defined before", function(o)
      o[4] = op("cond", nil, nil, nil, { inner, inner })
      o[5] = op("f", { { "p", { "z" } } })
    end)
  end)

  it("must be described as it is", function()
    local function described(message, change) tiny(message, function(t) change(t.description, t) end) end
    local function feature(...) return mlpackage.feature(...) end
    -- x of other facts
    local function input(message, ...)
      local x = feature("x", ...)
      described("input x: " .. message, function(d) d[1][2] = x end)
    end
    input("is described as fp32, in the function it is fp16", 65568, { 4 })
    input("is described with another shape", 65552, { 5 })
    input("is described with another shape", 65552, {})
    described("input z: is described, but the function has none of the name", function(d) d[4] = { 1, feature("z", 65552, { 4 }) } end)
    described("input x: is described twice", function(d) d[4] = d[1] end)
    described("function main: x is an input that is not described", function(d) d[1] = { 99, "" } end)
    described("function main: s is a state that is not described", function(d) d[2] = { 99, "" } end)
    described("function main: y is an output that is not described", function(d) d[3] = { 99, "" } end)
    described("input s: is described as an array, in the function it is none", function(d) d[2] = { 1, feature("s", 65552, { 4 }) } end)
    described("state s: is not a state", function(d) d[2][2] = feature("s", 65552, { 4 }) end)
    input("must be an array, but is a state", 65552, { 4 }, nil, 8)
    described("output w: is described, but the function has none of the name", function(d) d[4] = { 10, feature("w", 65552, { 4 }) } end)
    input("array data type 5 does not exist", 5, { 4 })
    input("dimension 1 must be 0 or more, but is -4", 65552, { -4 })
    described("input x: has no type", function(d) d[1][2] = { { 1, "x" } } end)
    described("input : has no name", function(d) d[1][2] = { { 3, "" } } end)
    input("has 2 size ranges, its shape 1 dimensions", 65552, { 4 }, { { 31, { { 1, "" }, { 1, "" } } } })
    input("the default 4 of dimension 1 is not in 5 .. 6", 65552, { 4 }, { { 31, { { 1, { { 1, 5 }, { 2, 6 } } } } } })
    input("size range 1 begins at 18446744073709551615", 65552, { 4 }, { { 31, { { 1, { { 1, -1 } } } } } })
    input("the default shape is not among the enumerated ones", 65552, { 4 }, { { 21, "" } })
    input("enumerated shape 1 has another rank", 65552, { 4 }, { { 21, { { 1, "" } } } })
    input("has both enumerated shapes and ranges", 65552, { 4 }, { { 21, "" }, { 31, "" } })
    described("the model is described both as a whole and by functions", function(d) d[4] = { 20, { { 1, "main" } } } end)
    described("metadata key a comes twice", function(d) d[4] = { 100, { { 100, entry("a", "1") }, { 100, entry("a", "2") } } } end)
    described("zzz is the default function, but the program does not have this function", function(d) d[4] = { 21, "zzz" } end)
    local opset = { 2, "CoreML8" }
    described("function other: is not described", function(_, t)
      t.functions = { entry("other", { opset, { 3, entry("CoreML8", { { 2, "x" } }) }, { 1, { { 1, "x" }, { 2, t.vector } } } }) }
    end)
    described("function main comes twice", function(_, t)
      t.functions = { entry("main", { opset, { 3, entry("CoreML8", "") } }) }
    end)
    described("function a: is empty", function(_, t) t.functions = { { { 1, "a" } } } end)
    described("attribute b: a value is missing", function(_, t) t.attributes = { { { 1, "b" } } } end)
  end)

  it("of images is told, but not written", function()
    mlpackage.write(path, mlpackage.tiny(function(t) t.description[1][2] = { { 1, "x" }, { 3, { { 4, "" } } } } end))
    local pkg <close> = assert(core.package(path))
    assert.equal("image", pkg:info().functions[1].inputs[1].dtype)
    local ok, message, code = pkg:rewrite(folder .. "/b")
    assert.is_nil(ok)
    assert.truthy(message:find("x is not an array: models with it can be read, but not written", 1, true), message)
    assert.equal("unsupported", code)
    assert.is_nil((core.package(folder .. "/b")))
  end)
end)

describe("weights", function()
  local at = "model.mlmodel: function main: op const (w): val: weights/weight.bin: "

  local function weights(message, ...)
    refused(at .. message, nil, nil, mlpackage.weights(...))
  end

  it("must be chained as their header counts them", function()
    refused(at .. "0 bytes are not a weight file", nil, nil, "")
    refused(at .. "63 bytes are not a weight file", nil, nil, ("\0"):rep(63))
    weights("version 3 of weight files, known is 2", { { 1, ONES } }, { 1, 3 })
    weights("the file ends before blob 2 of those that its header counts", { { 1, ONES } }, { 2 })
    weights("the file ends before blob 2 of those that its header counts", { { 1, ONES } }, { 0xFFFFFFFF })
    weights("72 bytes after the last of 0 blobs", { { 1, ONES } }, { 0 })
    weights("blob 1 at byte 64: the sentinel must be 0xdeadbeef, but is 0xdeadbeee", { { 1, ONES, sentinel = 0xDEADBEEE } })
    weights("blob 1 at byte 64: its data is at byte 64, but must follow directly", { { 1, ONES, offset = 64 } })
    weights("blob 1 at byte 64: its data is at byte", { { 1, ONES, offset = -64 } })
    weights("blob 1 at byte 64: 9 bytes of data go beyond the 136 bytes of the file", { { 1, ONES, bytes = 9 } })
    weights("blob 1 at byte 64: 18446744073709551615 bytes of data go beyond", { { 1, ONES, bytes = -1 } })
    weights("blob 1 at byte 64: 8 unused bits, expected fewer than 8", { { 1, ONES, 8 } })
    weights("blob 2 at byte 192: the sentinel must be ", { { 1, ONES }, { 1, ONES, sentinel = 0 } })
  end)

  it("must be of the type and the size that the model says", function()
    local place = "model.mlmodel: function main: op const (w): val: "
    refused(place .. "the blob at 64 has type code 2, but must have 1 for fp16", nil, nil, mlpackage.weights { { 2, ONES } })
    refused(place .. "the blob at 64 has type code 0, but must have 1 for fp16", nil, nil, mlpackage.weights { { 0, ONES } })
    local short = mlpackage.weights { { 1, ONES:sub(1, 6) } }
    refused(place .. "the blob at 64 has 6 bytes with 0 unused bits, but must have 8 with 0", nil, nil, short)
    refused(place .. "the blob at 64 has 8 bytes with 4 unused bits, but must have 8 with 0", nil, nil, mlpackage.weights { { 1, ONES,
      4 } })
    local nibbles = tensor("int4", { 5 })
    local model = mlpackage.tiny(function(t) t.ops[2] = const("n", nibbles, mlpackage.blob(nibbles, 192)) end)
    mlpackage.write(path, model, mlpackage.weights { { 1, ONES }, { 8, "abc", 4 } })
    assert(core.package(path)):close()
    refused("op const (n): val: the blob at 192 has 3 bytes with 0 unused bits, but must have 3 with 4", nil, model,
      mlpackage.weights { { 1, ONES }, { 8, "abc" } })
  end)

  it("must be where the model says", function()
    local function blob(message, offset, file, code)
      tiny("model.mlmodel: function main: op const (w): " .. message, function(t)
        t.ops[1] = const("w", t.vector, mlpackage.blob(t.vector, offset, file))
      end, code)
    end
    blob("val: the blob's offset 65 is not a multiple of 64", 65)
    blob("val: there is no blob at 0 in the file of 136 bytes", 0)
    blob("val: there is no blob at 128 in the file of 136 bytes", 128)
    blob("val: there is no blob at 18446744073709551552 in the file", -64)
    blob('val: blob file "weights/weight.bin" must begin with @model_path/', 64, "weights/weight.bin")
    blob('val: blob file "@model_path/../../../x" leaves the folder', 64, "@model_path/../../../x")
    blob('val: blob file "@model_path//etc/passwd" is an absolute path', 64, "@model_path//etc/passwd")
    blob("val: " .. path .. "/Data/com.apple.CoreML/none.bin: No such file", 64, "@model_path/none.bin", "io")
    blob("val: " .. path .. "/Data/com.apple.CoreML/weights: must be a file, but is a folder", 64, "@model_path/weights", "io")
    blob("val: model.mlmodel: version", 64, "@model_path/model.mlmodel")
    blob("attribute val: the file of a blob has no name", 64, "")
    tiny("op const (n): attribute val: a blob of bool, which blobs cannot hold", function(t)
      t.ops[2] = const("n", tensor("bool", { 2 }), mlpackage.blob(tensor("bool", { 2 }), 64))
    end)
  end)

  it("are refused wherever they are cut", function()
    local model, all = mlpackage.read(VALUES, "model"), mlpackage.read(VALUES, "weights")
    for i = 0, 63 do
      mlpackage.write(path, model, all:sub(1, #all * i // 64))
      local pkg, message, code = core.package(path)
      assert.is_nil(pkg, i)
      assert.truthy(message:find("weights/weight.bin: ", 1, true), message)
      assert.equal("format", code)
    end
  end)
end)

describe("any change of bytes", function()
  -- A generator of its own (Numerical Recipes, 1992), so that what fails once fails again.
  local seed = 1
  local function random(n)
    seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
    return seed % n
  end

  local function mutate(s)
    for _ = 1, 1 + random(3) do
      local kind, i = random(4), 1 + random(#s)
      if kind == 0 then s = s:sub(1, i - 1) .. string.char(random(256)) .. s:sub(i + 1)
      elseif kind == 1 then s = s:sub(1, i - 1) .. string.char(s:byte(i) ~ 1 << random(8)) .. s:sub(i + 1)
      elseif kind == 2 then s = s:sub(1, i - 1) .. s:sub(i + 1 + random(20))
      else s = s:sub(1, i) .. s:sub(i + 1, i + random(30)) .. s:sub(i + 1) end
      if #s == 0 then return "\0" end
    end
    return s
  end

  it("gives a package that can be walked, or an error", function()
    local rounds = tonumber(os.getenv "ANE_FUZZ_ROUNDS") or 1500
    seed = tonumber(os.getenv "ANE_FUZZ_SEED") or seed
    local opened = 0
    local parts = { model = mlpackage.read(VALUES, "model"), weights = mlpackage.read(VALUES, "weights"),
      manifest = mlpackage.read(VALUES, "manifest") }
    local small = { model = mlpackage.tiny(), weights = mlpackage.weights { { 1, ONES } }, manifest = mlpackage.MANIFEST }
    local order = { "model", "model", "weights", "model", "manifest" }
    mlpackage.write(path) -- its folders
    for i = 1, rounds do
      local from, part = i % 2 == 0 and parts or small, order[1 + random(#order)]
      for name, file in pairs(mlpackage.files) do
        local out <close> = assert(io.open(path .. file, "wb"))
        out:write(name == part and mutate(from[name]) or from[name])
      end
      local pkg, message, code = core.package(path)
      if pkg then
        opened = opened + 1
        pkg:info()
        local before = pkg:dump()
        if i % 128 < 2 then
          if assert(pkg:rewrite(folder .. "/again")) then
            local again <close> = assert(core.package(folder .. "/again"))
            assert.equal(before, again:dump())
          end
        end
        pkg:close()
      else
        assert.is_string(message)
        assert.truthy(code == "format" or code == "unsupported" or code == "io", message)
      end
    end
    assert.is_true(opened > 0)
  end)
end)

describe("memory that runs out", function()
  -- What every n-th allocation does when it fails; the first `all` of them, later ones in steps.
  local function each_failure(all, fn)
    local n = 0
    repeat
      testing.alloc_fail_after(n)
      local ok, message, code = fn()
      testing.alloc_fail_after(-1)
      if not ok then assert.equal("memory", code, message) end
      n = n < all and n + 1 or n + 41
    until ok
    return n
  end

  it("while a package is opened is told", function()
    local n = each_failure(400, function()
      local pkg, message, code = core.package(VALUES)
      if pkg then pkg:close() end
      return pkg, message, code
    end)
    assert.is_true(n > 300)
  end)

  it("while a package is printed is told", function()
    local pkg <close> = assert(core.package(VALUES))
    each_failure(20, function() return pkg:dump() end)
  end)

  it("while a package is written leaves the old one", function()
    mlpackage.write(path)
    local pkg <close> = assert(core.package "spec/fixtures/mlpackage/mlp_lut4/model.mlpackage")
    each_failure(40, function()
      local ok, message, code = pkg:rewrite(path)
      if not ok then
        local old <close> = assert(core.package(path))
        assert.equal(ONES, (old:value "w"))
      end
      return ok, message, code
    end)
    local new <close> = assert(core.package(path))
    assert.equal(pkg:dump(), new:dump())
    local _, names = tree.run("ls -A '" .. folder .. "'")
    assert.equal("m.mlpackage\n", names)
  end)
end)
