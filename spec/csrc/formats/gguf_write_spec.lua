local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"

local testing = core.testing
local folder

local function path(name) return folder .. "/" .. (name or "a.gguf") end

--- Names in the folder, sorted.
local function list()
  local names = assert(core.list_dir(folder))
  table.sort(names)
  return names
end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function()
  testing.alloc_fail_after(-1)
  os.execute("rm -r '" .. folder .. "'")
end)

--- The same file twice: as the writer of the specs puts it down, and described for the writer under test.
local function description(alignment)
  return {
    values = {
      { "general.architecture", "string", "tiny" },
      { "general.alignment", "uint32", alignment },
      { "u8", "uint8", 255 }, { "i8", "int8", -128 }, { "u16", "uint16", 65535 }, { "i16", "int16", -32768 },
      { "u32", "uint32", 4294967295 }, { "i32", "int32", -2147483648 }, { "f32", "float32", 0.1 }, { "yes", "bool", true },
      { "no", "bool", false }, { "u64", "uint64", 1 << 62 }, { "i64", "int64", math.mininteger }, { "f64", "float64", 0.1 },
      { "bytes", "string", "a\0b\xff" }, { "empty", "string", "" },
      { "list.text", "array", { "string", { "a", "", "\0" } } },
      { "list.i32", "array", { "int32", { 1, -2, 3 } } },
      { "list.f32", "array", { "float32", { 0.5, -0.25 } } },
      { "list.bool", "array", { "bool", { true, false } } },
      { "list.none", "array", { "string", {} } },
    },
    tensors = {
      { name = "a", dtype = "fp32", shape = { 3 }, data = floats.pack { 1, 2, 3 } },
      { name = "b", dtype = "fp16", shape = { 2, 3 }, data = ("\0\60"):rep(6) },
      { name = "c", dtype = "q8_0", shape = { 2, 1, 32 }, data = ("\0\60" .. ("\1"):rep(32)):rep(2) },
    },
  }
end

local TYPES = { float32 = "fp32", float64 = "fp64" }

--- Writes a description; returns what commit returned.
local function write(file, name)
  local w <close> = assert(core.gguf_writer(path(name), 1))
  for _, v in ipairs(file.values) do
    local kind, value = v[2], v[3]
    if kind == "array" then kind, value = (TYPES[value[1]] or value[1]) .. "[]", value[2] else kind = TYPES[kind] or kind end
    assert(w:set(v[1], kind, value))
  end
  for _, t in ipairs(file.tensors) do assert.equal(#t.data, w:add(t.name, t.dtype, t.shape)) end
  assert(w:begin())
  for _, t in ipairs(file.tensors) do
    assert.same({ #t.data, t.name }, { w:wanted() })
    assert(w:write(t.data:sub(1, 5)))
    assert(w:write(t.data:sub(6)))
  end
  assert.same({ 0 }, { w:wanted() })
  local size, done = w:size()
  assert.equal(size, done)
  assert(w:commit())
  return size
end

describe("core.gguf_writer", function()
  it("rewrites tensors that are complete, and shows the file before it is in its place", function()
    for _, alignment in ipairs { 8, 32, 4096 } do
      local file = description(alignment)
      local w <close> = assert(core.gguf_writer(path(), 1))
      assert(w:set("general.architecture", "string", "tiny"))
      assert(w:set("general.alignment", "uint32", alignment))
      for _, t in ipairs(file.tensors) do w:add(t.name, t.dtype, t.shape) end
      assert.same({ nil, "the data has not begun", "invalid" }, { w:rewrite("a", "") })
      assert(w:begin())
      assert.same({ nil, "no complete tensor a", "notfound" }, { w:rewrite("a", file.tensors[1].data) })
      for _, t in ipairs(file.tensors) do assert(w:write(t.data)) end
      local other = ("\0\64"):rep(6)
      assert.same({ nil, "11 bytes for b, which has 12", "range" }, { w:rewrite("b", other:sub(2)) })
      assert.same({ nil, "no complete tensor d", "notfound" }, { w:rewrite("d", other) })
      assert(w:rewrite("b", other))
      for _, place in ipairs { w:path(), path() } do
        if place == path() then assert(w:commit()) end
        local source <close> = assert(core.open(place))
        assert.equal(file.tensors[1].data, source:read "a")
        assert.equal(floats.pack { 2, 2, 2, 2, 2, 2 }, source:read "b")
        assert.equal(64, #assert(source:read "c") // 4)
      end
    end
  end)

  it("writes the bytes that the format asks for", function()
    for _, alignment in ipairs { 8, 32, 64, 4096 } do
      local file = description(alignment)
      local size = write(file)
      local want = gguf.bytes(file)
      want = want .. ("\0"):rep(-68 % alignment) -- ggml pads the last tensor too
      local got = assert(core.read_file(path()))
      assert.equal(#got, size)
      assert.is_true(got == want)
    end
  end)

  it("gives back through the reader what went in, and copies it", function()
    write(description(64))
    local source <close> = assert(core.open(path()))
    local w <close> = assert(core.gguf_writer(path "b.gguf", 2))
    for _, key in ipairs(source:keys()) do assert(w:copy(source, key)) end
    for _, t in ipairs(source:tensors()) do w:add(t.name, t.dtype, t.shape) end
    assert(w:begin())
    for _, t in ipairs(source:tensors()) do
      local sums = assert(w:send(source, t.name))
      assert.equal(0.0, sums.error)
    end
    assert(w:commit())
    assert.is_true(core.read_file(path "b.gguf") == core.read_file(path()))
  end)

  it("copies every type that the format has", function()
    local fixture <close> = assert(core.open "spec/fixtures/gguf/kv-types.gguf")
    local w <close> = assert(core.gguf_writer(path(), 1))
    for _, key in ipairs(fixture:keys()) do assert(w:copy(fixture, key)) end
    assert(w:begin())
    assert(w:commit())
    local again <close> = assert(core.open(path()))
    assert.same(fixture:keys(), again:keys())
    for _, key in ipairs(fixture:keys()) do assert.same(fixture:meta(key), again:meta(key)) end
    local old, new = core.read_file "spec/fixtures/gguf/kv-types.gguf", core.read_file(path())
    assert.equal(old:sub(25, #new // 2), new:sub(25, #new // 2)) -- the values' own bytes
  end)

  it("refuses what the format cannot hold", function()
    local w <close> = assert(core.gguf_writer(path(), 1))
    local function refused(pattern, ok, message, code)
      assert.is_nil(ok)
      assert.matches(pattern, message)
      assert.is_true(code == "invalid" or code == "shape" or code == "unsupported", code)
    end
    refused("tensor x: GGUF has no tensors of type uint8", w:add("x", "uint8", { 4 }))
    refused("tensor x: 5 dimensions, GGUF has 1 to 4", w:add("x", "fp32", { 1, 1, 1, 1, 1 }))
    refused("tensor x: 0 dimensions", w:add("x", "fp32", {}))
    refused("tensor x: shape %[2, 0%] is empty", w:add("x", "fp32", { 2, 0 }))
    refused("tensor x: q4_k needs a multiple of 256 columns, has 32", w:add("x", "q4_k", { 2, 32 }))
    refused("tensor x: the size of fp32 .* overflows", w:add("x", "fp32", { 1 << 40, 1 << 40 }))
    refused("a name has 1 to 63 bytes, this one 64", w:add(("x"):rep(64), "fp32", { 1 }))
    refused("a name has 1 to 63 bytes, this one 0", w:add("", "fp32", { 1 }))
    assert(w:add(("y"):rep(63), "fp32", { 1 }))
    refused("was added before", w:add(("y"):rep(63), "fp32", { 1 }))
    refused("the data has not begun", w:write "x")
    refused("the data has not begun", w:commit())
    for _, bad in ipairs { 0, 4, 24, 1 << 25 } do
      local v <close> = assert(core.gguf_writer(path "v.gguf", 1))
      refused("key general.alignment: must be a uint32 and a power of two", v:set("general.alignment", "uint32", bad))
      refused("an earlier step failed", v:begin())
    end
  end)

  it("raises on values of another type", function()
    local w <close> = assert(core.gguf_writer(path(), 1))
    for _, case in ipairs {
      { "uint8", 256 }, { "uint8", -1 }, { "int8", 128 }, { "int16", -32769 }, { "uint32", 1 << 32 }, { "int32", 1 << 31 },
      { "uint64", -1 }, { "uint32", 1.5 }, { "bool", 1 }, { "fp32", "x" }, { "int32[]", { 1, "x" } }, { "string[]", { 1 } },
      { "string", {} }, { "q8_0", 1 }, { "nonsense", 1 }, { "int32[]", 1 },
    } do
      assert.has_error(function() w:set("k", case[1], case[2]) end)
    end
    assert(w:set("k", "uint32", 1))
    local ok, message = w:set("k", "uint32", 1)
    assert.is_nil(ok)
    assert.matches("key k: was added before", message)
  end)

  it("takes neither too many nor too few bytes", function()
    local w <close> = assert(core.gguf_writer(path(), 1))
    w:add("a", "fp32", { 2 })
    assert(w:begin())
    local ok, message, code = w:write(("x"):rep(9))
    assert.same({ nil, "9 bytes, but a needs 8", "range" }, { ok, message, code })
    assert(w:write "1234")
    assert.matches("tensor a is not complete: 4 bytes are missing", select(2, w:commit()))
    assert(w:write "5678")
    assert.matches("1 bytes, but nothing needs 0", select(2, w:write "x"))
    assert.matches("key k comes after the data has begun", select(2, w:set("k", "uint32", 1)))
    assert.matches("comes after the data has begun", select(2, w:add("z", "fp32", { 1 })))
    assert(w:commit())
    assert.matches("an earlier write failed", select(2, w:write "x"))
  end)

  it("leaves the old file, and nothing else, where it is dropped", function()
    assert(core.write_file(path(), "old"))
    local w = assert(core.gguf_writer(path(), 1))
    w:add("a", "fp32", { 2 })
    w:begin()
    w:write "1234"
    assert.equal(2, #list())
    w:close()
    w:close()
    assert.error_matches(function() w:size() end, "writer is closed")
    assert.equal("GGUF writer (closed)", tostring(w))
    assert.same({ "a.gguf" }, list())
    assert.equal("old", core.read_file(path()))
    local writer, message, code = core.gguf_writer(folder, 1)
    assert.same({ nil, "io" }, { writer, code })
    assert.matches("is a folder", message)
  end)

  it("survives failing allocations", function()
    assert(core.write_file(path(), "old"))
    local file, failed, before = description(32), 0, testing.alloc_count()
    write(file, "b.gguf")
    os.remove(path "b.gguf")
    for n = 0, testing.alloc_count() - before - 1 do
      testing.alloc_fail_after(n)
      local ok, message = pcall(write, file)
      testing.alloc_fail_after(-1)
      if ok then -- a pool does with fewer threads
        assert(core.write_file(path(), "old"))
      else
        failed = failed + 1
        message = tostring(message)
        assert.is_truthy(message:find "memory" or message:find "cannot start 1 threads", message)
        assert.equal("old", core.read_file(path()))
      end
      collectgarbage()
      assert.same({ "a.gguf" }, list())
    end
    assert.is_true(failed >= 8)
  end)
end)

describe("writer:send", function()
  -- A source with one tensor "w" of these floats, [rows, columns].
  local function source_of(values, rows, dtype)
    local bytes = type(values) == "string" and values or floats.pack(values)
    local data = dtype and testing.encode(dtype, bytes) or bytes
    local tensor = { name = "w", dtype = dtype or "fp32", shape = { rows, #bytes // 4 // rows }, data = data }
    gguf.write(path "in.gguf", { tensors = { tensor } })
    return assert(core.open(path "in.gguf"))
  end

  -- Sends w in parts; the bytes of the written tensor as float32, and the sums of the last part.
  local function send(source, dtype, shape, parts, threads)
    local w <close> = assert(core.gguf_writer(path(), threads or 2))
    w:add("w", dtype, shape)
    assert(w:begin())
    local sums
    for _, part in ipairs(parts) do sums = assert(w:send(source, "w", part)) end
    assert(w:commit())
    local out <close> = assert(core.open(path()))
    return out:read "w", sums
  end

  it("re-encodes rows and says what that cost", function()
    local x = floats.uniform(64 * 256, 3)
    local source <close> = source_of(x, 64)
    for _, dtype in ipairs { "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "q3_k", "q2_k", "fp16", "bf16" } do
      local got, sums = send(source, dtype, { 64, 256 }, { {} })
      assert.is_true(got == testing.decode(dtype, testing.encode(dtype, x)), dtype)
      local a, b, most, error, signal = floats.unpack(x), floats.unpack(got), 0, 0, 0
      for i = 1, #a do
        most, error, signal = math.max(most, math.abs(a[i] - b[i])), error + (a[i] - b[i]) ^ 2, signal + a[i] ^ 2
      end
      assert.equal(#a, sums.count)
      assert.equal(most, sums.max_abs)
      assert.near(error, sums.error, 1e-9 * error)
      assert.near(signal, sums.signal, 1e-9 * signal)
    end
  end)

  it("gives the same bytes and sums on any number of threads", function()
    local source <close> = source_of(floats.uniform(100 * 512, 4), 100)
    local want, sums = send(source, "q4_k", { 100, 512 }, { {} }, 1)
    for _, threads in ipairs { 2, 3, 7 } do
      local got, others = send(source, "q4_k", { 100, 512 }, { {} }, threads)
      assert.is_true(got == want)
      assert.same(sums, others)
    end
  end)

  it("copies the bytes of the same type", function()
    local source <close> = source_of(floats.uniform(8 * 256, 5), 8, "q4_k")
    local got, sums = send(source, "q4_k", { 8, 256 }, { {} })
    assert.is_true(got == source:read "w")
    assert.same({ count = 2048, max_abs = 0.0, error = 0.0, signal = 0.0 }, sums)
  end)

  it("takes parts, turns halves into pairs, adds", function()
    local values = {}
    for i = 1, 8 do values[i] = i end
    local source <close> = source_of(values, 8)
    assert.same({ 3, 4, 1 }, floats.unpack((send(source, "fp32", { 3, 1 }, { { first = 3, last = 4 }, { first = 1, last = 1 } }))))
    assert.same({ 1, 3, 2, 4, 5, 7, 6, 8 }, floats.unpack((send(source, "fp32", { 8, 1 }, { { head = 4 } }))))
    assert.same({ 1, 5, 2, 6, 3, 7, 4, 8 }, floats.unpack((send(source, "fp32", { 8, 1 }, { { head = 8, add = 0 } }))))
    local turned = { { head = 4, first = 5 }, { head = 4, last = 4 } }
    assert.same({ 5, 7, 6, 8, 1, 3, 2, 4 }, floats.unpack((send(source, "fp16", { 8, 1 }, turned))))
    assert.same({ 2, 3, 4, 5, 6, 7, 8, 9 }, floats.unpack((send(source, "fp32", { 8, 1 }, { { add = 1 } }))))
    assert.same({}, floats.unpack((send(source, "fp32", { 8, 1 }, { {}, { first = 1, last = 0 } })):sub(33)))
  end)

  it("multiplies, and reads the columns of a matrix", function()
    local source <close> = source_of({ 1, 2, 3, 4, 5, 6, 7, 8 }, 4) -- [4, 2]
    assert.same({ -2, -4, -6, -8, -10, -12, -14, -16 }, floats.unpack((send(source, "fp32", { 4, 2 }, { { by = -2 } }))))
    assert.same({ 2, 2.5, 1.5, 2 }, floats.unpack((send(source, "fp16", { 2, 2 }, { { first = 2, last = 2, add = 1, by = 0.5 },
      { first = 1, last = 1, add = 2, by = 0.5 } }))))
    assert.same({ 1, 3, 5, 7, 2, 4, 6, 8 }, floats.unpack((send(source, "fp32", { 2, 4 }, { { transposed = true } }))))
    local two = { { transposed = true, first = 3, last = 4 }, { transposed = true, first = 1, last = 2, by = 3 } }
    assert.same({ 5, 7, 6, 8, 3, 9, 6, 12 }, floats.unpack((send(source, "fp32", { 4, 2 }, two))))
  end)

  it("refuses columns of what is no plain matrix", function()
    local function refused(source, opts, pattern)
      local w <close> = assert(core.gguf_writer(path(), 1))
      w:add("w", "fp32", { 8 })
      w:begin()
      local sums, message = w:send(source, "w", opts)
      assert.is_nil(sums)
      assert.matches(pattern, message)
    end
    local blocks <close> = source_of(floats.uniform(64, 5), 2, "q8_0")
    refused(blocks, { transposed = true }, "tensor w: q8_0 cannot be read by columns")
    local matrix <close> = source_of({ 1, 2, 3, 4, 5, 6, 7, 8 }, 4)
    refused(matrix, { transposed = true, first = 3, last = 5 }, "tensor w: rows 2 .. 5 of 4")
    refused(matrix, { transposed = true, first = 4, last = 2 }, "tensor w: rows 3 .. 2 of 4")
    gguf.write(path "vector.gguf", { tensors = { { name = "w", dtype = "fp32", shape = { 4 }, data = floats.pack { 1, 2, 3, 4 } } } })
    local vector <close> = assert(core.open(path "vector.gguf"))
    refused(vector, { transposed = true }, "tensor w: it is no matrix")
    local w <close> = assert(core.gguf_writer(path(), 1))
    w:add("w", "fp32", { 2, 4 })
    w:begin()
    assert.error_matches(function() w:send(matrix, "w", { transposed = true, head = 2 }) end, "transposed rows have no heads")
  end)

  it("turns heads of a vector too", function()
    gguf.write(path "in.gguf", { tensors = { { name = "w", dtype = "fp32", shape = { 4 }, data = floats.pack { 1, 2, 3, 4 } } } })
    local source <close> = assert(core.open(path "in.gguf"))
    assert.same({ 1, 3, 2, 4 }, floats.unpack((send(source, "fp32", { 4 }, { { head = 4 } }))))
  end)

  it("refuses what is not finite, or does not fit", function()
    local function refused(values, dtype, pattern)
      local source <close> = source_of(values, 2)
      local w <close> = assert(core.gguf_writer(path(), 2))
      w:add("w", dtype, { 2, #values // 2 })
      assert(w:begin())
      local sums, message, code = w:send(source, "w")
      assert.same({ nil, "invalid" }, { sums, code })
      assert.matches(pattern, message)
      assert.is_nil(core.path_kind(path()))
    end
    local values = {}
    for i = 1, 512 do values[i] = 0.5 end
    for _, bad in ipairs { 0 / 0, 1 / 0, -1 / 0 } do
      values[300] = bad
      for _, dtype in ipairs { "fp16", "q8_0", "q4_k", "q6_k" } do
        refused(values, dtype, "tensor w: element 43 of row 1 is not finite, or too large for " .. dtype)
      end
    end
    values[300] = 65520 -- rounds to infinity
    refused(values, "fp16", "too large for fp16")
  end)

  it("raises on wrong options, names what is wrong with the tensor", function()
    local source <close> = source_of({ 1, 2, 3, 4, 5, 6, 7, 8 }, 4)
    local w <close> = assert(core.gguf_writer(path(), 1))
    w:add("w", "fp32", { 4, 2 })
    w:begin()
    assert.error_matches(function() w:send(source, "w", { importance = "abc" }) end,
      "importance has 3 bytes, but must have a float32 for each of 2 columns")
    assert.matches("no tensor v", select(2, w:send(source, "v")))
    assert.matches("tensor w: rows 0 .. 5 of 4", select(2, w:send(source, "w", { last = 5 })))
    assert.matches("tensor w: 4 rows are not heads of 3", select(2, w:send(source, "w", { head = 3 })))
    assert.matches("tensor w: 3 rows are not heads of 4", select(2, w:send(source, "w", { head = 4, last = 3 })))
  end)

  it("ends with what its progress function raises, which must leave the writer alone", function()
    local source <close> = source_of(floats.uniform(64 * 256, 3), 64)
    local w <close> = assert(core.gguf_writer(path(), 2))
    w:add("w", "q4_k", { 64, 256 })
    w:begin()
    local seen
    assert.error_matches(function() w:send(source, "w", { progress = function() w:close() end }) end, "writer is busy")
    local v <close> = assert(core.gguf_writer(path "v", 2))
    v:add("w", "q4_k", { 64, 256 })
    v:begin()
    assert(v:send(source, "w", { progress = function(done, total)
      seen = { done, total }
      source:close()
    end }))
    assert.same({ v:size() }, { seen[2], seen[1] })
    assert(v:commit())
  end)

  it("keeps the old file where the disk is full", function()
    source_of(floats.uniform(4096 * 64, 3), 4096):close()
    assert(core.write_file(path(), "old"))
    local script = ([[
      local core = require "ane.core"
      local source = core.open "%s/in.gguf"
      local w <close> = core.gguf_writer("%s/a.gguf", 2)
      w:add("w", "q8_0", { 4096, 64 })
      w:begin()
      local ok, message, code = w:send(source, "w")
      io.write(tostring(ok), " ", code or "", " ", message or "", "; ", (select(2, w:commit())))
    ]]):format(folder, folder)
    assert(core.write_file(path "s.lua", script))
    -- A limit on the size of files stands for the full disk: write() then fails (the signal ignored).
    local pipe = assert(io.popen(("trap '' XFSZ; ulimit -f 64; LUA_CPATH='%s' lua5.4 '%s/s.lua' 2>&1"):format(package.cpath, folder)))
    local said = pipe:read "a"
    pipe:close()
    assert.matches("^nil io tensor w: .*a.gguf: cannot write a%.gguf%.%d+%-%d+%.tmp: File too large; an earlier write failed$", said)
    assert.equal("old", core.read_file(path()))
    assert.same({ "a.gguf", "in.gguf", "s.lua" }, list())
  end)

  it("survives failing allocations", function()
    local source <close> = source_of(floats.uniform(8 * 256, 3), 8)
    local n = 0
    while true do
      local w <close> = assert(core.gguf_writer(path(), 2))
      w:add("w", "q6_k", { 8, 256 })
      w:begin()
      testing.alloc_fail_after(n)
      local ok, message, code = w:send(source, "w")
      testing.alloc_fail_after(-1)
      if ok then break end
      assert.equal("memory", code)
      assert.equal("tensor w: not enough memory for a block of rows", message)
      n = n + 1
    end
    assert.equal(5, n) -- rows as floats, gathered rows, encoded rows, scratch memory, errors of rows
  end)
end)
