local core = require "ane.core"
local gguf = require "support.gguf_writer"
local st = require "support.safetensors_writer"
local tree = require "support.tree"

local testing = core.testing
local temps = {}

local function temp(file, path)
  path = path or st.temp()
  temps[#temps + 1] = path
  return st.write(path, file)
end

local function folder(files)
  temps[#temps + 1] = st.folder(files)
  return temps[#temps]
end

after_each(function()
  testing.alloc_fail_after(-1)
  for _, path in ipairs(temps) do st.remove(path) end
  temps = {}
end)

local function tiny()
  return {
    metadata = { format = "pt" },
    tensors = {
      { name = "a", dtype = "F32", shape = { 2, 3 }, data = st.f32 { 1, 2, 3, 4, 5, 6 } },
      { name = "b", dtype = "U8", shape = { 3 }, data = "\1\2\3" },
      { name = "c", dtype = "F16", shape = {}, data = "\0\60" },
    },
  }
end

--- Everything a reader of the source could touch.
local function walk(source)
  for _, key in ipairs(source:keys()) do source:meta(key) end
  for _, t in ipairs(source:tensors()) do
    assert.is_true(t.offset + t.bytes <= source:bytes())
    source:read(t.name)
  end
end

describe("a safetensors file", function()
  it("gives tensors in the order of their data, wherever they lie", function()
    local path = temp(tiny())
    local source <close> = assert(core.open(path))
    assert.equal("safetensors", source:format())
    assert.equal(path, source:path())
    assert.equal("pt", source:meta "format")
    assert.same({ "format" }, source:keys())
    local names = {}
    for i, t in ipairs(source:tensors()) do names[i] = t.name .. " " .. t.dtype end
    assert.same({ "a fp32", "b uint8", "c fp16" }, names)
    assert.same({ 2, 3 }, source:tensor("a").shape)
    assert.same({}, source:tensor("c").shape)
    assert.same({ 1, 2, 3, 4, 5, 6 }, gguf.floats(source:read "a"))
    assert.same({ 4, 5, 6 }, gguf.floats(source:read("a", 2, 2)))
    assert.same({ 1, 2, 3 }, gguf.floats(source:read "b"))
    assert.same({ 1 }, gguf.floats(source:read "c"))
    assert.is_nil(source:tensor "__metadata__")
  end)

  it("may list its tensors in any order, without metadata, and need not be aligned", function()
    local file = tiny()
    file.metadata = nil
    file.pad = 3
    file.header = '{"c":{"dtype":"F16","shape":[],"data_offsets":[27,29]},"b":{"shape":[3],"dtype":"U8","data_offsets":[24,27]},' ..
      '"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    local source <close> = assert(core.open(temp(file)))
    assert.equal("a", source:tensors()[1].name)
    assert.same({ 1, 2, 3, 4, 5, 6 }, gguf.floats(source:read "a"))
    assert.same({}, source:keys())
  end)

  it("may have metadata that are null, no tensors, or tensors without elements", function()
    assert(core.open(temp { header = '{"__metadata__":null}' })):close()
    assert(core.open(temp { header = "{}" })):close()
    local source <close> = assert(core.open(temp { tensors = {
      { name = "none", dtype = "F32", shape = { 0, 5 }, data = "" }, { name = "w", dtype = "I8", shape = { 2 }, data = "\255\2" },
      { name = "end", dtype = "I64", shape = { 3, 0 }, data = "" },
    } }))
    assert.equal(3, source:n_tensors())
    assert.equal("", source:read "none")
    assert.same({ -1, 2 }, gguf.floats(source:read "w"))
  end)

  it("gives tensors without elements at one place in the order of their names", function()
    local tensors = {}
    for i, name in ipairs { "d", "b", "e", "a", "c" } do tensors[i] = { name = name, dtype = "F32", shape = { 0, i }, data = "" } end
    local source <close> = assert(core.open(temp { tensors = tensors }))
    local names = {}
    for i, t in ipairs(source:tensors()) do names[i] = t.name end
    assert.same({ "a", "b", "c", "d", "e" }, names)
  end)

  it("reads every dtype", function()
    local cases = {
      { "BOOL", "\0\1", "bool" }, { "U8", "\0\255", "uint8", { 0, 255 } }, { "I8", "\127\128", "int8", { 127, -128 } },
      { "F8_E4M3", "\56\192", "fp8e4m3", { 1, -2 } }, { "F8_E5M2", "\60\192", "fp8e5m2", { 1, -2 } },
      { "I16", string.pack("<i2i2", -2, 300), "int16", { -2, 300 } }, { "U16", string.pack("<I2I2", 2, 65535), "uint16", { 2, 65535 } },
      { "F16", "\0\60\0\192", "fp16", { 1, -2 } }, { "BF16", "\128\63\0\192", "bf16", { 1, -2 } },
      { "I32", string.pack("<i4i4", -2, 70000), "int32", { -2, 70000 } }, { "U32", string.pack("<I4I4", 2, 70000), "uint32", { 2, 70000 } },
      { "F32", string.pack("<ff", 1.5, -2), "fp32", { 1.5, -2 } }, { "F64", string.pack("<dd", 1.5, -2), "fp64", { 1.5, -2 } },
      { "I64", string.pack("<i8i8", -2, 1 << 40), "int64" }, { "U64", string.pack("<I8I8", 2, -1), "uint64" },
    }
    for _, case in ipairs(cases) do
      local dtype, data, name, want = table.unpack(case)
      local source <close> = assert(core.open(temp { tensors = { { name = "t", dtype = dtype, shape = { 2 }, data = data } } }))
      assert.equal(name, source:tensor("t").dtype)
      if want then assert.same(want, gguf.floats(source:read "t"), dtype) end
    end
  end)
end)

local function with(key, value)
  return function(f) f.tensors[2][key] = value end
end
local function header(text)
  return function(f) f.header = text end
end
local function info(text) return with("info", text) end

--- what, how to break a tiny good file (or bytes), the message wanted, the code ("format" where not given)
local malformed = {
  { "seven bytes", function() return "\1\0\0\0\0\0\0" end, "has 7 bytes, but must have at least 8" },
  { "an empty file", function() return "" end, "the file is empty" },
  { "a header longer than the limit", function(f) f.length = 100000001 end, "the header has 100000001 bytes, the limit is 100000000" },
  { "a header length of 2^64 - 1", function(f) f.length = -1 end, "the header has 18446744073709551615 bytes, the limit" },
  { "a header longer than the file", function(f) f.length = 5000 end, "the header has 5000 bytes, the file %d+ after its length" },
  { "a header of no bytes", function() return ("\0"):rep(8) end, "the header has 0 bytes, but must have at least 2" },
  { "a header that is a list", header "[1]", "the header begins with byte 0x5b, but must begin with '{'" },
  { "a header that begins with a blank", header " {}", "the header begins with byte 0x20" },
  { "a header that ends too early", header '{"a":', "the JSON is broken at byte %d+, after .*: " },
  { "two values in the header", header "{} {}", "the JSON is broken at byte 11, .*expected the end of the text" },
  { "a text that is not UTF-8", header '{"\xff":1}', "the JSON is broken at byte 10, after .*: invalid UTF%-8" },
  { "a surrogate in UTF-8", header '{"\xed\xa0\x80":1}', "invalid UTF%-8" },
  { "a name with NUL", header '{"a\\u0000b":1}', "the JSON is broken at byte %d+, .*a name with NUL" },
  { "a name twice", header '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
    "the JSON is broken at byte %d+, .*the name appears twice" },
  { "a key twice in a tensor", info '{"dtype":"U8","dtype":"U8","shape":[3],"data_offsets":[24,27]}', "the name appears twice" },
  { "a key twice in the metadata", header '{"__metadata__":{"x":"1","x":"2"}}', "the name appears twice" },
  { "a million brackets", header('{"a":' .. ("["):rep(1000000)), "nested too deeply" },
  { "a number beyond 64 bits", info '{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[24,27]}', "beyond 64 bits" },

  { "metadata that are a list", header '{"__metadata__":[]}', "__metadata__ must be an object, but is an array" },
  { "a number in the metadata", header '{"__metadata__":{"n":1}}', "__metadata__: key n must be a string, but is a whole number" },

  { "a tensor that is a number", info "3", "tensor b: must be an object, but is a whole number" },
  { "no dtype", info '{"shape":[3],"data_offsets":[24,27]}', "tensor b: dtype must be a string, but is missing" },
  { "a dtype that is a number", info '{"dtype":8,"shape":[3],"data_offsets":[24,27]}', "dtype must be a string, but is a whole number" },
  { "an unknown dtype", with("dtype", "F6_E2M3"), "tensor b: unknown dtype F6_E2M3; known are F32 F16 BF16 .* F8_E5M2$", "unsupported" },
  { "an escape sequence in a dtype", with("dtype", "\27[31m"), "unknown dtype %?%[31m; known", "unsupported" },
  { "no shape", info '{"dtype":"U8","data_offsets":[24,27]}', "tensor b: shape must be an array, but is missing" },
  { "a shape that is a number", info '{"dtype":"U8","shape":3,"data_offsets":[24,27]}', "shape must be an array, but is a whole number" },
  { "six dimensions", with("shape", { 1, 1, 1, 1, 1, 3 }), "tensor b: shape has 6 dimensions, the limit is 5", "unsupported" },
  { "a negative dimension", with("shape", { -3 }), "tensor b: shape%[0%] is %-3" },
  { "a dimension with a fraction", info '{"dtype":"U8","shape":[3.0],"data_offsets":[24,27]}',
    "shape%[0%] must be a whole number, but is a number with a fraction" },
  { "a dimension that is a string", info '{"dtype":"U8","shape":["3"],"data_offsets":[24,27]}',
    "shape%[0%] must be a whole number, but is a string" },
  { "a product that wraps to 3", with("shape", { 3, (1 << 62) + 1, 4 }), "tensor b: the size of U8 .* overflows" },
  { "bytes that wrap", info '{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[24,27]}', "the size of F32 .* overflows" },
  { "dimensions that wrap behind one of 0", info '{"dtype":"U8","shape":[0,4611686018427387904,16],"data_offsets":[24,24]}',
    "the size of U8 %[0, 4611686018427387904, 16%] overflows" },

  { "no offsets", info '{"dtype":"U8","shape":[3]}', "tensor b: data_offsets is missing" },
  { "three offsets", info '{"dtype":"U8","shape":[3],"data_offsets":[24,27,27]}', "data_offsets must be two whole numbers" },
  { "an offset that is null", info '{"dtype":"U8","shape":[3],"data_offsets":[24,null]}', "data_offsets must be two whole numbers" },
  { "a negative offset", with("begin", -1), "data_offsets must be two whole numbers" },
  { "offsets that go back", info '{"dtype":"U8","shape":[3],"data_offsets":[27,24]}', "tensor b: data_offsets begin at 27 and end at 24" },
  { "an end behind the data", with("stop", 30), "tensor b: data_offsets end at 30, the file has 29 bytes of data" },
  { "an end near 2^63", with("stop", math.maxinteger), "data_offsets end at 9223372036854775807, the file has 29" },
  { "more bytes than the shape asks for", with("shape", { 2 }), "tensor b: U8 %[2%] has 2 bytes, data_offsets 24 to 27 hold 3" },
  { "fewer bytes than the shape asks for", with("shape", { 4 }), "tensor b: U8 %[4%] has 4 bytes, data_offsets 24 to 27 hold 3" },
  { "bytes for an empty tensor", with("shape", { 0 }), "tensor b: U8 %[0%] has 0 bytes, data_offsets 24 to 27 hold 3" },

  { "two tensors in one place", function(f)
    f.tensors[2] = { name = "b", dtype = "F32", shape = { 6 }, begin = 0, stop = 24, data = "123" }
  end, "tensor [ab] at byte %d+ overlaps tensor [ab], which ends at byte %d+" },
  { "a tensor inside a larger one", function(f) f.tensors[2].begin, f.tensors[2].stop = 4, 7 end,
    "tensor b at byte %d+ overlaps tensor a, which ends at byte %d+" },
  { "an empty tensor inside a larger one", function(f)
    f.tensors[4] = { name = "d", dtype = "F32", shape = { 0 }, begin = 4, stop = 4, data = "" }
  end, "tensor d at byte %d+ overlaps tensor a" },
  { "a hole", function(f) f.tensors[2].begin, f.tensors[2].stop, f.tensors[2].shape = 25, 27, { 2 } end,
    "bytes %d+ to %d+, before tensor b, belong to no tensor" },
  { "a hole at the start", function(f)
    table.remove(f.tensors, 1)
    f.tensors[1].begin, f.tensors[1].stop, f.tensors[1].shape = 1, 3, { 2 }
  end, "bytes %d+ to %d+, before tensor b, belong to no tensor" },
  { "bytes behind the last tensor", function(f) f.tail = "x" end, "bytes %d+ to %d+, the end, belong to no tensor" },
  { "data without tensors", function() return st.bytes { header = "{}", tail = "data" } end, "the end, belong to no tensor" },
  { "the last byte missing", function() return (st.bytes(tiny()):sub(1, -2)) end, "tensor c: data_offsets end at 29, the file has 28" },
}

describe("matrices of MXFP4 in a stack", function()
  -- Values of the 16 codes, E2M1 (OCP Microscaling Formats 1.0, 5.3.3).
  local FP4 = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }

  it("are read row by row, also where they have more rows than columns", function()
    local E, R, G = 3, 50, 1 -- matrices, rows, blocks of 32 columns
    local codes, exponents, want = {}, {}, {}
    for block = 1, E * R * G do
      exponents[block] = 120 + block % 9
      for i = 1, 16 do
        local byte = (block * 7 + i * 13) % 256
        codes[#codes + 1] = string.char(byte)
        for _, code in ipairs { byte & 15, byte >> 4 } do want[#want + 1] = FP4[code + 1] * 2.0 ^ (exponents[block] - 127) end
      end
      exponents[block] = string.char(exponents[block])
    end
    local source <close> = assert(core.open(temp { tensors = {
      { name = "w_blocks", dtype = "U8", shape = { E, R, G, 16 }, data = table.concat(codes) },
      { name = "w_scales", dtype = "U8", shape = { E, R, G }, data = table.concat(exponents) },
    } }))
    assert.same({ E, R, 32 * G }, source:tensor("w").shape)
    assert.same(want, gguf.floats(source:read "w"))
    assert.same(table.move(want, 32 * 70 + 1, 32 * 72, 1, {}), gguf.floats(source:read("w", 71, 72)))
  end)
end)

describe("a malformed safetensors file", function()
  for _, case in ipairs(malformed) do
    local what, change, message, code = table.unpack(case)
    it("is refused: " .. what, function()
      local file = tiny()
      file = change(file) or file
      local path = temp(file)
      local source, got, word = core.open(path)
      assert.is_nil(source)
      assert.matches(message, got)
      assert.equal(path .. ": ", got:sub(1, #path + 2))
      assert.equal(code or "format", word)
    end)
  end

  it("is refused when cut at any byte", function()
    local whole, path = st.bytes(tiny()), st.temp()
    for n = 0, #whole - 1 do
      local source, message, code = core.open(temp(whole:sub(1, n), path))
      assert.is_nil(source, n)
      assert.is_string(message)
      assert.equal("format", code)
    end
    assert(core.open(temp(whole, path))):close()
  end)

  it("is refused or read safely when any byte of the header is changed", function()
    local whole, head = st.bytes(tiny())
    local path, refused = st.temp(), 0
    for i = 1, head do
      for _, flip in ipairs { 0x01, 0x10, 0x80, 0xff } do
        local source = core.open(temp(whole:sub(1, i - 1) .. string.char(whole:byte(i) ~ flip) .. whole:sub(i + 1), path))
        if source then
          walk(source)
          source:close()
        else
          refused = refused + 1
        end
      end
    end
    assert.is_true(refused > 2 * head)
  end)

  -- The tree of jansson allocates by itself, so only a limit of the system makes it fail. The sanitizers need room of their own.
  if not (os.getenv "ANE_BUILD" or ""):find "sanitize" then
    it("says that memory is short where the JSON reader runs out of it", function()
      if tree.emulator() then return pending(tree.emulator() .. " needs address space of its own") end
      local tensors = {}
      for i = 1, 20000 do tensors[i] = { name = ("model.layers.%d.weight"):format(i), dtype = "U8", shape = { 1 }, data = "a" } end
      local script = ("local s, m, c = require 'ane.core'.open('%s') print(s and 'ok' or c, m)"):format(temp { tensors = tensors })
      local command, seen = "ulimit -v %d; LUA_CPATH='%s' lua5.4 -e \"%s\" 2>/dev/null", {}
      for kilobytes = 12000, 60000, 1600 do
        local pipe = assert(io.popen(command:format(kilobytes, package.cpath, script)))
        local word = pipe:read("a"):match "^%w+"
        pipe:close()
        if word then seen[word] = true end -- without: Lua itself did not start
      end
      assert.same({ ok = true, memory = true }, seen)
    end)
  end

  it("is refused without leaks when any allocation fails", function()
    local path = temp(tiny())
    local failures = 0
    for n = 0, 100 do
      testing.alloc_fail_after(n)
      local source, message, code = core.open(path)
      testing.alloc_fail_after(-1)
      if source then
        source:close()
        break
      end
      assert.equal("memory", code)
      assert.matches("not enough memory", message)
      failures = failures + 1
    end
    assert.is_true(failures > 3 and failures < 100)
  end)
end)

--- Two files and their index; change(files) alters them. Files are descriptions, bytes or {json = value}.
local function sharded(change)
  local files = {
    ["one.safetensors"] = { metadata = { from = "one" }, tensors = {
      { name = "x", dtype = "F32", shape = { 1 }, data = st.f32 { 1 } }, { name = "y", dtype = "F32", shape = { 1 }, data = st.f32 { 2 } },
    } },
    ["two.safetensors"] = { metadata = { from = "two" }, tensors = { { name = "z", dtype = "U8", shape = { 1 }, data = "\3" } } },
    ["model.safetensors.index.json"] = { json = {
      metadata = { total_size = 9 }, weight_map = { z = "two.safetensors", x = "one.safetensors", y = "one.safetensors" },
    } },
    ["config.json"] = "{}",
  }
  if change then change(files, files["model.safetensors.index.json"].json.weight_map) end
  return folder(files)
end

describe("an index of safetensors files", function()
  it("opens by its folder or by itself, all tensors in one list", function()
    local path = sharded()
    for _, open in ipairs { path, path .. "/", path .. "/model.safetensors.index.json" } do
      local source <close> = assert(core.open(open))
      assert.equal(open, source:path())
      local names, files = {}, {}
      for i, t in ipairs(source:tensors()) do names[i], files[i] = t.name, t.file:match "[^/]*$" end
      assert.same({ "x", "y", "z" }, names)
      assert.same({ "one.safetensors", "one.safetensors", "two.safetensors" }, files)
      assert.same({ 2 }, gguf.floats(source:read "y"))
      assert.same({ 3 }, gguf.floats(source:read "z"))
      assert.equal("one", source:meta "from")
      assert.equal(#core.read_file(path .. "/one.safetensors") + #core.read_file(path .. "/two.safetensors"), source:bytes())
    end
  end)

  it("may leave tensors of its files out", function()
    local source <close> = assert(core.open(sharded(function(_, map) map.y = nil end)))
    assert.equal(3, source:n_tensors())
  end)

  local index = "model.safetensors.index.json"
  --- what, change, message, code ("format" where not given)
  local cases = {
    { "an index that is not JSON", function(f) f[index] = '{"weight_map"' end, "index.json: the JSON is broken at byte 13" },
    { "an index without a map", function(f) f[index] = { json = { weights = {} } } end, "weight_map must be an object, but is missing" },
    { "a map that is a list", function(f) f[index] = '{"weight_map":[]}' end, "weight_map must be an object, but is an array" },
    { "an empty map", function(f) f[index] = '{"weight_map":{}}' end, "weight_map is empty" },
    { "an empty index", function(f) f[index] = "" end, "index.json: the file is empty" },
    { "a tensor twice in the map", function(f)
      f[index] = '{"weight_map":{"x":"one.safetensors","x":"two.safetensors"}}'
    end, "the name appears twice" },
    { "a file that is a number", function(_, map) map.x = 1 end, "weight_map: tensor x must be the name of a file, but is a whole number" },
    { "a file without a name", function(_, map) map.x = "" end,
      'weight_map: tensor x must be the name of a file in the same folder, but is in ""' },
    { "a file in another folder", function(_, map) map.x = "../one.safetensors" end,
      'file in the same folder, but is in "../one.safetensors"' },
    { "a file below the folder", function(_, map) map.x = "sub/one.safetensors" end, "must be the name of a file in the same folder" },
    { "a file with a backslash", function(_, map) map.x = "..\\one.safetensors" end, "must be the name of a file in the same folder" },
    { "an absolute path", function(_, map) map.x = "/etc/passwd" end, 'file in the same folder, but is in "/etc/passwd"' },
    { "the folder itself", function(_, map) map.x = "." end, 'file in the same folder, but is in "."' },
    { "the folder above", function(_, map) map.x = ".." end, 'file in the same folder, but is in ".."' },
    { "files that are missing", function(_, map) map.x, map.y = "no.safetensors", "nor.safetensors" end,
      "index.json: of its 3 files, missing: no.safetensors, nor.safetensors", "io" },
    { "a file that is malformed", function(f) f["two.safetensors"].tail = "x" end, "two.safetensors: bytes %d+ to %d+, the end" },
    { "a file that is not a safetensors file", function(_, map) map.z = "config.json" end,
      "config.json: has 2 bytes, but must have at least 8" },
    { "a tensor that is in no file", function(_, map) map.w = "one.safetensors" end,
      "weight_map: tensor w should be in one.safetensors, is in none of the files" },
    { "a tensor in another file", function(_, map) map.x = "two.safetensors" end,
      "weight_map: tensor x should be in two.safetensors, is in one.safetensors" },
    { "a tensor in two files", function(f) f["two.safetensors"].tensors[1].name = "x" end, "two.*: tensor x .* appears twice.*one" },
  }
  for _, case in ipairs(cases) do
    local what, change, message, code = table.unpack(case)
    it("is refused: " .. what, function()
      local path = sharded(change)
      local source, got, word = core.open(path)
      assert.is_nil(source)
      assert.matches(message, got)
      assert.equal(path, got:sub(1, #path))
      assert.equal(code or "format", word)
    end)
  end

  it("is refused without leaks when any allocation fails", function()
    local path = sharded()
    local failures = 0
    for n = 0, 200 do
      testing.alloc_fail_after(n)
      local source, _, code = core.open(path)
      testing.alloc_fail_after(-1)
      if source then
        source:close()
        break
      end
      assert.equal("memory", code)
      failures = failures + 1
    end
    assert.is_true(failures > 5 and failures < 200)
  end)
end)

describe("a folder", function()
  --- files, message
  local cases = {
    { { ["config.json"] = "{}" }, "is a folder with a config.json but no model.safetensors" },
    { { ["tokenizer.json"] = "{}" }, "is a folder with a tokenizer but no model.safetensors" },
    { { ["pytorch_model.bin"] = "PK", ["config.json"] = "{}" }, "is a folder with a PyTorch checkpoint" },
    { { ["Manifest.json"] = "{}" }, "is a Core ML package" },
    { { other = "" }, "the folder has no model: it must have model.safetensors or an ONNX model" },
  }
  for _, case in ipairs(cases) do
    it(case[2], function()
      local path = folder(case[1])
      local source, message, code = core.open(path)
      assert.is_nil(source)
      assert.equal(path .. ": " .. case[2], message:sub(1, #path + 2 + #case[2]))
      assert.equal("unsupported", code)
    end)
  end

  it("joins many pairs of MXFP4 in a time that grows with their number, not with its square", function()
    local rows = {}
    for i = 1, 30000 do
      rows[i] = ('"t%d_blocks":{"dtype":"U8","shape":[0,1,1,16],"data_offsets":[0,0]},'):format(i) ..
        ('"t%d_scales":{"dtype":"U8","shape":[0,1,1],"data_offsets":[0,0]}'):format(i)
    end
    local text, path, started = "{" .. table.concat(rows, ",") .. "}", os.tmpname(), os.clock()
    assert(core.write_file(path, ("<I8"):pack(#text) .. text))
    local source <close> = assert(core.open(path))
    os.remove(path)
    assert.equal(30000, source:n_tensors())
    assert.is_true(os.clock() - started < 5)
  end)

  it("opens by model.safetensors before an index", function()
    local path = sharded(function(files)
      files["model.safetensors"] = { tensors = { { name = "whole", dtype = "U8", shape = { 1 }, data = "x" } } }
    end)
    local source <close> = assert(core.open(path))
    assert.equal("whole", source:tensors()[1].name)
    assert.equal(1, source:n_tensors())
  end)
end)
