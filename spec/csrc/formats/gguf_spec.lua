local core = require "ane.core"
local gguf = require "support.gguf_writer"

local testing = core.testing
local fixture = "spec/fixtures/gguf/kv-types.gguf"

local temps = {}

--- Writes a file description or bytes to a temporary path that goes away after the spec.
local function temp(file, path)
  path = path or gguf.temp()
  temps[#temps + 1] = path
  return gguf.write(path, file)
end

--- Opens a description or bytes; the source, or nil, message, code.
local function open(file) return core.open(temp(file)) end

--- Everything a reader of the source could touch.
local function walk(source)
  for _, key in ipairs(source:keys()) do
    source:meta_len(key)
    source:meta(key)
  end
  local total = 0
  for _, t in ipairs(source:tensors()) do
    assert.is_true(t.offset + t.bytes <= source:bytes())
    local bytes = source:read(t.name)
    if bytes then total = total + #bytes end
  end
  return total
end

local function tiny()
  return {
    values = {
      { "general.architecture", "string", "llama" },
      { "general.alignment", "uint32", 32 },
      { "llama.block_count", "uint32", 2 },
      { "llama.rope.freq_base", "float32", 10000 },
      { "tokenizer.ggml.tokens", "array", { "string", { "a", "bc", "" } } },
      { "tokenizer.ggml.token_type", "array", { "int32", { 1, 2, 3 } } },
      { "nested", "array", { "array", { { "bool", { true, false } }, { "string", { "x" } } } } },
    },
    tensors = {
      { name = "token_embd.weight", dtype = "fp32", shape = { 2, 3 }, data = gguf.f32 { 1, 2, 3, 4, 5, 6 } },
      { name = "blk.0.attn_q.weight", dtype = "q8_0", shape = { 2, 32 }, data = ("\0\60" .. ("\1"):rep(32)):rep(2) },
    },
  }
end

--- tiny() after change(file).
local function broken(change)
  local file = tiny()
  return change(file) or file
end

after_each(function()
  testing.alloc_fail_after(-1)
  for _, path in ipairs(temps) do os.remove(path) end
  temps = {}
end)

describe("a GGUF file", function()
  it("gives every metadata type as it was written", function()
    local want = assert(core.json_decode(assert(core.read_file("spec/fixtures/gguf/kv-types.json"))))
    local source <close> = assert(core.open(fixture))
    for key, entry in pairs(want.kv) do
      local value = entry.value
      if entry.type:find "64" and not entry.type:find "FLOAT" then value = math.tointeger(value) end
      assert.same(value, source:meta(key), key)
    end
    assert.equal(want.alignment, source:meta "general.alignment")
    assert.equal("gguf", source:format())
    assert.equal(fixture, source:path())
    assert.equal(1088, source:bytes())
    assert.equal(#want.tensors, source:n_tensors())
    for i, entry in ipairs(want.tensors) do
      local t = source:tensors()[i]
      assert.equal(entry.name, t.name)
      assert.equal(0, t.offset % want.alignment)
      assert.equal(fixture, t.file)
      local shape = {}
      for _, n in ipairs(entry.ne) do table.insert(shape, 1, n) end
      assert.same(shape, t.shape)
      assert.same(t, source:tensor(entry.name))
      assert.same(entry.values, gguf.floats(source:read(entry.name)))
    end
  end)

  it("is read in versions 2 and 3 alike", function()
    for version = 2, 3 do
      local file = tiny()
      file.version = version
      local source <close> = assert(open(file))
      assert.same({ 1, 2, 3, 4, 5, 6 }, gguf.floats(source:read "token_embd.weight"))
      assert.same({ "a", "bc", "" }, source:meta "tokenizer.ggml.tokens")
      assert.same({ { true, false }, { "x" } }, source:meta "nested")
      assert.equal(3, source:meta_len "tokenizer.ggml.token_type")
      assert.equal(5, source:meta_len "general.architecture")
      assert.equal(1, source:meta_len "llama.block_count")
      assert.is_nil(source:meta "no.such.key")
      assert.is_nil(source:meta_len "no.such.key")
      assert.is_nil(source:tensor "no.such.tensor")
      assert.same({ nil, "notfound" }, { (source:read "no.such.tensor"), (select(3, source:read "no.such.tensor")) })
    end
  end)

  it("gives integers beyond 63 bits as floats", function()
    local source <close> = assert(open { values = {
      { "big", "uint64", -1 }, { "edge", "uint64", math.maxinteger }, { "list", "array", { "uint64", { 1, -1 } } },
    } })
    assert.equal(2.0 ^ 64, source:meta "big")
    assert.equal(math.maxinteger, source:meta "edge")
    assert.same({ 1, 2.0 ^ 64 }, source:meta "list")
  end)

  it("may hold no tensors, no values, or padding behind the data", function()
    assert(open {}):close()
    assert(open { values = tiny().values }):close()
    assert(open(broken(function(f) f.tail = ("\0"):rep(100) end))):close()
  end)

  it("may list its tensors in any order and leave holes", function()
    local source <close> = assert(open(broken(function(f) f.tensors[1].offset, f.tensors[2].offset, f.tail = 128, 0, ("\0"):rep(200) end)))
    assert.is_true(walk(source) > 0)
  end)

  it("raises on use after close, and closes twice", function()
    local source = assert(open(tiny()))
    assert.matches("^source %(/", tostring(source))
    source:close()
    source:close()
    assert.equal("source (closed)", tostring(source))
    for _, method in ipairs { "path", "format", "meta", "meta_len", "keys", "tensors", "tensor", "n_tensors", "bytes", "read" } do
      assert.error_matches(function() source[method](source, "x") end, "source is closed")
    end
  end)

  it("opens a vocabulary of 150,000 in a few milliseconds", function()
    local tokens = {}
    for i = 1, 150000 do tokens[i] = "token" .. i end
    local path = temp { values = { { "tokenizer.ggml.tokens", "array", { "string", tokens } } } }
    local before, allocations = os.clock(), testing.alloc_count()
    local source <close> = assert(core.open(path))
    assert.is_true(os.clock() - before < 0.25) -- CPU seconds
    assert.is_true(testing.alloc_count() - allocations < 20)
    assert.equal(150000, source:meta_len "tokenizer.ggml.tokens")
  end)
end)

--- what, how to break a tiny good file (or bytes), the message wanted, the code ("format" where not given)
local malformed = {
  { "an empty file", function() return "" end, "the file is empty" },
  { "three bytes", function() return "GGU" end, "is a text file", "unsupported" },
  { "only the magic", function() return "GGUF" end, "ends too early: expected 4 bytes at byte 4, found 0" },
  { "version 1", function(f) f.version = 1 end, "the GGUF version at byte 4 must be 2 or 3, but is 1", "unsupported" },
  { "version 4", function(f) f.version = 4 end, "version at byte 4 must be 2 or 3, but is 4", "unsupported" },
  { "big endian", function(f) f.version = "\0\0\0\3" end, "big%-endian GGUF file %(version 3%)", "unsupported" },

  { "2^64 - 1 tensors", function(f) f.n_tensors = -1 end, "byte 8: 18446744073709551615 tensors, the limit is" },
  { "tensors times their size beyond 2^64", function(f) f.n_tensors = 1 << 61 end, "byte 8: 2305843009213693952 tensors" },
  { "more tensors than bytes", function(f) f.n_tensors = 60000 end, "60000 tensors do not fit into the %d+ bytes" },
  { "one tensor more than there is", function(f) f.n_tensors = 3 end, "tensor 3 of 3 at byte %d+: the name is empty" },
  { "2^64 - 1 keys", function(f) f.n_values = -1 end, "byte 16: 18446744073709551615 keys, the limit is" },
  { "more keys than bytes", function(f) f.n_values = 10000 end, "10000 keys do not fit" },

  { "an empty key", function(f) f.values[3][1] = "" end, "key 3 of 7 at byte %d+: the name is empty" },
  { "a key with a NUL", function(f) f.values[3][1] = "a\0b" end, "key 3 of 7 at byte %d+: the name a%?b holds a NUL" },
  { "a key of 65,536 bytes", function(f) f.values[3][1] = ("k"):rep(65536) end, "k%.%.%. has 65536 bytes, the limit is 65535" },
  { "a key longer than the file", function(f) f.values[3].key_len = 1 << 40 end, "key 3 of 7 at byte %d+: the file ends too early" },
  { "a key length of 2^64 - 1", function(f) f.values[3].key_len = -1 end, "expected 18446744073709551615 bytes at byte" },
  { "a key twice", function(f) f.values[4] = { "llama.block_count", "uint32", 2 } end,
    "key llama.block_count at byte %d+: the key appears twice" },
  { "an escape sequence in a key", function(f) f.values[3][1], f.values[3].type_id = "a\27[31mb", 99 end, "key a%?%[31mb at byte" },
  { "an unknown value type", function(f) f.values[3].type_id = 13 end, "key llama.block_count at byte %d+: unknown value type 13" },
  { "a string longer than the file", function(f) f.values[1].raw = string.pack("<I8", 1 << 62) end,
    "key general.architecture at byte 24: the file ends too early: expected 4611686018427387904 bytes" },
  { "a BOOL of 2", function(f) f.values[3] = { "flag", "bool", 2 } end, "key flag at byte %d+: a BOOL must be 0 or 1, but is 2" },
  { "a BOOL of 2 in an array", function(f) f.values[3] = { "flags", "array", { "bool", { true, 2 } } } end, "but is 2" },

  { "an unknown element type", function(f) f.values[6][3].type_id = 77 end, "unknown element type 77" },
  { "2^60 numbers", function(f) f.values[6][3].count = 1 << 60 end, "token_type at byte %d+: 1152921504606846976 elements do not fit" },
  { "2^62 numbers of 4 bytes", function(f) f.values[6][3].count = 1 << 62 end, "4611686018427387904 elements do not fit" },
  { "2^60 strings", function(f) f.values[5][3].count = 1 << 60 end, "1152921504606846976 elements, the limit is" },
  { "100,000 strings in a small file", function(f) f.values[5][3].count = 100000 end, "100000 elements do not fit" },
  { "a string too long in an array", function(f)
    f.values[5].raw = string.pack("<I4I8", 8, 2) .. string.pack("<s8I8", "ok", 1 << 50)
  end, "key tokenizer.ggml.tokens at byte %d+: string 1 of 2: the file ends too early" },
  { "arrays nested too deeply", function(f)
    local array = { "uint8", { 1 } }
    for _ = 1, 6 do array = { "array", { array } } end
    f.values[7][3] = array
  end, "key nested at byte %d+: arrays nested deeper than 4" },
  { "a million levels of arrays", function(f) f.values[7].raw = string.pack("<I4I8", 9, 1):rep(100000) end, "nested deeper than 4" },
  { "2^60 arrays in a file of 43 bytes", function()
    return "GGUF" .. string.pack("<I4I8I8", 3, 0, 1) .. string.pack("<s8", "a") .. string.pack("<I4I4I8", 9, 9, 1 << 60):sub(1, 10)
  end, "key a at byte 24: the file ends too early" },
  { "2^60 empty arrays", function(f) f.values[7].raw = string.pack("<I4I8", 9, 1 << 60) end, "1152921504606846976 elements, the limit" },

  { "alignment 0", function(f) f.values[2][3] = 0 end,
    "key general.alignment at byte %d+: must be a power of two of at least 8, but is 0" },
  { "alignment 4", function(f) f.values[2][3] = 4 end, "at least 8, but is 4" },
  { "alignment 48", function(f) f.values[2][3] = 48 end, "but is 48" },
  { "alignment 2^32 - 1", function(f) f.values[2] = { "general.alignment", "uint32", 1, raw = "\xff\xff\xff\xff" } end,
    "but is 4294967295" },
  { "alignment beyond the file", function(f)
    f.values[2] = { "general.alignment", "uint32", 1, raw = "\0\0\0\x80" }
    f.tensors[2].offset = 0
  end, "the file has 0 bytes of data" },
  { "alignment as INT32", function(f) f.values[2] = { "general.alignment", "int32", 32 } end, "must be a UINT32, but is INT32" },
  { "alignment as UINT64", function(f) f.values[2] = { "general.alignment", "uint64", 32 } end, "must be a UINT32, but is UINT64" },
  { "alignment as a string", function(f) f.values[2] = { "general.alignment", "string", "32" } end, "must be a UINT32, but is STRING" },

  { "a tensor without a name", function(f) f.tensors[2].name = "" end, "tensor 2 of 2 at byte %d+: the name is empty" },
  { "a tensor name with a NUL", function(f) f.tensors[2].name = "a\0" end, "holds a NUL byte" },
  { "a tensor name of 65 bytes", function(f) f.tensors[2].name = ("n"):rep(65) end, "has 65 bytes, the limit is 64" },
  { "a tensor name longer than the file", function(f) f.tensors[2].name_len = 1 << 33 end, "tensor 2 of 2 at byte %d+: the file ends" },
  { "a tensor twice", function(f) f.tensors[2].name = "token_embd.weight" end,
    "tensor token_embd.weight at byte %d+: the name appears twice, also at byte %d+" },
  { "five dimensions", function(f) f.tensors[1].dims = { 1, 1, 1, 1, 6 } end,
    "tensor token_embd.weight at byte %d+: 5 dimensions, the limit is 4" },
  { "2^32 - 1 dimensions", function(f) f.tensors[1].n_dims = "\xff\xff\xff\xff" end, "4294967295 dimensions" },
  { "a dimension of 0", function(f) f.tensors[1].dims = { 3, 0 } end, "dimension 1 is 0" },
  { "a negative dimension", function(f) f.tensors[1].dims = { -3, 2 } end, "dimension 0 is 18446744073709551613" },
  { "a product that wraps to 2^22", function(f) f.tensors[1].dims = { (1 << 42) + 1, 1 << 22 } end,
    "the size of fp32 %[4194304, 4398046511105%] overflows" },
  { "a product that wraps to 0", function(f) f.tensors[1].dims = { 1 << 32, 1 << 32 } end, "overflows" },
  { "a product of 2^63 elements", function(f) f.tensors[1].dims = { 1 << 62, 2 } end, "overflows" },
  { "bytes that wrap", function(f) f.tensors[1].dims = { (1 << 62) + 1 } end, "overflows" },
  { "2^62 elements in blocks", function(f) f.tensors[2].dims = { 1 << 62 } end,
    "the size of q8_0 %[4611686018427387904%] overflows" },
  { "sizes whose sum wraps", function(f) f.tensors[1].dims, f.tensors[2].dims = { 1 << 61 }, { 1 << 61 } end,
    "the size of fp32 %[2305843009213693952%] overflows" },
  { "more bytes than any file has", function(f) f.tensors[1].dims = { 1 << 57 } end, "needs 576460752303423488 bytes" },
  { "a tensor type beyond the list", function(f) f.tensors[1].type_id = 4096 end,
    "tensor token_embd.weight at byte %d+: unknown tensor type 4096; known are fp32 fp16 q4_0 .* nvfp4", "unsupported" },
  { "a tensor type that was taken out of the format", function(f) f.tensors[1].type_id = 4 end, "unknown tensor type 4;", "unsupported" },
  { "a tensor type of 2^32 - 1", function(f) f.tensors[1].type_id = "\xff\xff\xff\xff" end, "type 4294967295;", "unsupported" },
  { "a row that is not a whole block", function(f) f.tensors[2].dtype, f.tensors[2].dims = "q4_k", { 100, 2 } end,
    "tensor blk.0.attn_q.weight at byte %d+: q4_k needs a multiple of 256 columns, has 100" },
  { "a tensor of blocks without a dimension", function(f) f.tensors[2].dims = {} end, "needs a multiple of 32 columns, has 1" },
  { "an offset off the alignment", function(f) f.tensors[2].offset = 8 end, "its offset 8 is not a multiple of the alignment 32" },
  { "an offset behind the end", function(f) f.tensors[2].offset = 1 << 20 end,
    "tensor blk.0.attn_q.weight at byte %d+: q8_0 %[2, 32%] needs 68 bytes at offset 1048576, the file has 100 bytes of data" },
  { "an offset near 2^64", function(f) f.tensors[2].offset = -32 end, "at offset 18446744073709551584" },
  { "a tensor larger than the file", function(f) f.tensors[2].dims = { 32, 1000 } end, "needs 34000 bytes at offset 32" },
  { "a tensor with its last byte missing", function() return (gguf.bytes(tiny()):sub(1, -2)) end, "the file has 99 bytes of data" },
  { "two tensors in one place", function(f) f.tensors[2].offset = 0 end,
    "tensor blk.0.attn_q.weight at byte %d+: overlaps tensor token_embd.weight at byte %d+ of 24 bytes" },
  { "a tensor inside a larger one", function(f)
    f.tensors[1].offset, f.tensors[2].offset = 32, 0
  end, "tensor token_embd.weight at byte %d+: overlaps tensor blk.0.attn_q.weight at byte %d+ of 68 bytes" },

  { "a file that begins like an ONNX model", function() return "\8\10\18\7pytorch" .. ("x"):rep(50) end, "holds no graph", "format" },
  { "a zip archive", function() return "PK\3\4\20\0\0\0" end, "is a zip archive", "unsupported" },
  { "a text", function() return "hello\nworld\n" end, "is a text file, but must be a GGUF, safetensors or ONNX file, or",
    "unsupported" },
  { "a web page", function() return "<!DOCTYPE html><html>" end, "is an HTML page", "unsupported" },
  { "a Git LFS pointer", function() return "version https://git-lfs.github.com/spec/v1\n" end, "is a Git LFS pointer", "unsupported" },
  { "an old GGML file", function() return "tjgg\3\0\0\0" end, "from before GGUF", "unsupported" },
  { "random bytes", function() return "\1\2\3\4\5\6\7\xff\9" end, "it begins with the bytes 01 02 03 04 05 06 07 ff$", "unsupported" },
}

describe("a malformed GGUF file", function()
  for _, case in ipairs(malformed) do
    local what, change, message, code = table.unpack(case)
    it("is refused: " .. what, function()
      local file = broken(change)
      local path = temp(file)
      local source, got, word = core.open(path)
      assert.is_nil(source)
      assert.matches(message, got)
      assert.equal(path .. ": ", got:sub(1, #path + 2))
      assert.equal(code or "format", word)
    end)
  end

  it("is refused when cut at any byte", function()
    local whole = gguf.bytes(tiny())
    local path = gguf.temp()
    for n = 0, #whole - 1 do
      local source, message, code = core.open(temp(whole:sub(1, n), path))
      assert.is_nil(source, n)
      assert.is_string(message)
      assert.is_true(code == "format" or n < 4, n)
    end
    assert(core.open(temp(whole, path))):close()
  end)

  it("is refused or read safely when any byte before the data is changed", function()
    local whole, head = gguf.bytes(tiny())
    local path = gguf.temp()
    local refused = 0
    for i = 1, head do
      for _, flip in ipairs { 0x01, 0x80, 0xff } do
        local bytes = whole:sub(1, i - 1) .. string.char(whole:byte(i) ~ flip) .. whole:sub(i + 1)
        local source, message = core.open(temp(bytes, path))
        if source then
          walk(source)
          source:close()
        else
          assert.is_string(message)
          refused = refused + 1
        end
      end
    end
    assert.is_true(refused > head) -- most changes are seen
  end)

  it("is refused or read safely with random bytes in it", function()
    math.randomseed(3)
    local whole = gguf.bytes(tiny())
    local path = gguf.temp()
    for _ = 1, 300 do
      local bytes = { whole:byte(1, -1) }
      for _ = 1, math.random(1, 6) do bytes[math.random(25, #bytes)] = math.random(0, 255) end
      local source = core.open(temp(string.char(table.unpack(bytes)), path))
      if source then
        walk(source)
        source:close()
      end
    end
  end)
end)

describe("opening", function()
  it("names what a folder is", function()
    local source, message, code = core.open "spec"
    assert.is_nil(source)
    assert.equal("spec: the folder has no model: it must have model.safetensors or an ONNX model", message)
    assert.equal("unsupported", code)
  end)

  it("gives the system's reason for a file that is not there", function()
    local source, message, code = core.open "spec/no-such.gguf"
    assert.same({ nil, "spec/no-such.gguf: No such file or directory", "io" }, { source, message, code })
  end)

  it("does not wait for a device or a pipe", function()
    local source, message, code = core.open "/dev/null"
    assert.same({ nil, "/dev/null: is not a regular file", "io" }, { source, message, code })
  end)

  it("raises on a path with a NUL", function()
    assert.error_matches(function() core.open "a\0b" end, "holds a NUL byte")
    assert.error_matches(function() core.open() end, "string expected")
  end)
end)

--- Three parts of one model, as gguf-split writes them; changes[i](file) alters part i. Returns the three paths.
local function split(changes)
  local base, paths = gguf.temp "", {}
  for i = 1, 3 do
    local file = {
      values = { { "split.no", "uint16", i - 1 }, { "split.count", "uint16", 3 }, { "split.tensors.count", "int32", 4 } },
      tensors = { { name = "t" .. i, dtype = "fp32", shape = { 2 }, data = gguf.f32 { i, -i } } },
    }
    if i == 1 then
      table.insert(file.values, 1, { "general.architecture", "string", "llama" })
      file.tensors[2] = { name = "t0", dtype = "fp32", shape = { 1 }, data = gguf.f32 { 42 } }
    end
    if changes and changes[i] then changes[i](file) end
    paths[i] = temp(file, ("%s-%05d-of-00003.gguf"):format(base, i))
  end
  return paths
end

describe("a split GGUF file", function()
  it("opens by its first part, all tensors in one list", function()
    local paths = split()
    local source <close> = assert(core.open(paths[1]))
    local names, files = {}, {}
    for i, t in ipairs(source:tensors()) do names[i], files[i] = t.name, t.file end
    assert.same({ "t1", "t0", "t2", "t3" }, names)
    assert.same({ paths[1], paths[1], paths[2], paths[3] }, files)
    assert.same({ 3, -3 }, gguf.floats(source:read "t3"))
    assert.same({ 42 }, gguf.floats(source:read "t0"))
    assert.equal("llama", source:meta "general.architecture")
    local total = 0
    for _, path in ipairs(paths) do total = total + #core.read_file(path) end
    assert.equal(total, source:bytes())
  end)

  local function values(part, key, kind, v)
    return function(file)
      for _, entry in ipairs(file.values) do if entry[1] == key then entry[2], entry[3] = kind, v end end
      return part
    end
  end

  --- what, changes, part to open, message, code
  local cases = {
    { "opened by another part", {}, 2, "is part 2 of 3; open the first part, .*%-00001%-of%-00003%.gguf$" },
    { "parts in the wrong order", { [2] = values(2, "split.no", "uint16", 2) }, 1,
      "00002.*must be part 2 of 3, but says that it is part 3 of 3" },
    { "parts of another split", { [3] = values(3, "split.count", "uint16", 4) }, 1,
      "must be part 3 of 3, but says that it is part 3 of 4" },
    { "a part that is not a split", { [2] = function(f) f.values = {} end }, 1, "must be part 2 of 3, but says that it is part 1 of 1" },
    { "tensors missing", { [3] = function(f) f.tensors = {} end }, 1, "split.tensors.count is 4, the 3 parts hold 3" },
    { "a tensor in two parts", { [3] = function(f) f.tensors[1].name = "t1" end }, 1, "00003.*tensor t1 .* appears twice.*00001" },
    { "a count that is a string", { values(1, "split.count", "string", "3") }, 1, "key split.count: must be a count" },
    { "a number beyond the count", { values(1, "split.no", "uint16", 9) }, 1, "split.no 9 of split.count 3 is out of range" },
    { "a count of 65535", { values(1, "split.count", "uint16", 65535) }, 1, "its name must end in %-00001%-of%-65535%.gguf" },
    { "a malformed part", { [2] = function(f) f.version = 9 end }, 1, "00002.*version at byte 4 must be 2 or 3, but is 9", "unsupported" },
  }
  for _, case in ipairs(cases) do
    local what, changes, part, message, code = table.unpack(case)
    it("is refused: " .. what, function()
      local source, got, word = core.open(split(changes)[part])
      assert.is_nil(source)
      assert.matches(message, got)
      assert.equal(code or "format", word)
    end)
  end

  it("names its missing parts", function()
    local paths = split()
    os.remove(paths[2])
    os.remove(paths[3])
    local source, message, code = core.open(paths[1])
    assert.is_nil(source)
    assert.matches("of its 3 parts, missing: [^/]*%-00002%-of%-00003%.gguf, [^/]*%-00003%-of%-00003%.gguf$", message)
    assert.equal("io", code)
  end)

  it("must have the name of a part", function()
    local paths = split()
    local source, message = core.open(temp(core.read_file(paths[1])))
    assert.is_nil(source)
    assert.matches("is part 1 of 3, its name must end in %-00001%-of%-00003%.gguf", message)
  end)
end)

describe("the n-th failing allocation", function()
  --- Opens with each allocation failing in turn, until all succeed. Returns how many there were.
  local function each_failure(path)
    for n = 0, 1000 do
      testing.alloc_fail_after(n)
      local source, message, code = core.open(path)
      testing.alloc_fail_after(-1)
      if source then
        walk(source)
        source:close()
        return n
      end
      assert.equal("memory", code)
      assert.matches("not enough memory", message)
    end
    error("opening never succeeds")
  end

  it("is an error, not a crash", function()
    assert.is_true(each_failure(temp(tiny())) >= 4)
    local disordered = broken(function(f) f.tensors[1].offset, f.tensors[2].offset, f.tail = 128, 0, ("\0"):rep(99) end)
    assert.is_true(each_failure(temp(disordered)) >= 5)
    assert.is_true(each_failure(split()[1]) >= 6)
    assert.is_true(each_failure(fixture) >= 4)
  end)
end)
