local core = require "ane.core"
local gguf = require "support.gguf_writer"

local testing = core.testing
local folder = "spec/fixtures/gguf/"
local facts = assert(core.json_decode(assert(core.read_file(folder .. "gguf_quants.json"))))
local raw = assert(core.read_file(folder .. "gguf_quants.bin"))

local names = { F16 = "fp16", F32 = "fp32" } -- the others are the lower case of the names in the fixture

local function slice(offset, n) return raw:sub(offset + 1, offset + n) end

local function case_of(entry)
  return names[entry.type] or entry.type:lower(), slice(entry.raw_offset, entry.raw_bytes),
    slice(entry.values_offset, entry.n_values * 4)
end

--- The first element that differs, as text; nil where all bits are equal (any NaN equals any NaN).
local function difference(got, want)
  if #got ~= #want then return ("%d bytes, wanted %d"):format(#got, #want) end
  for i = 1, #want, 4 do
    local a, b = got:sub(i, i + 3), want:sub(i, i + 3)
    if a ~= b then
      local x, y = string.unpack("<f", a), string.unpack("<f", b)
      if x == x or y == y then return ("element %d: %.9g, wanted %.9g"):format(i // 4, x, y) end
    end
  end
end

describe("block decoders", function()
  assert(#facts.dequantize == 24)
  for _, entry in ipairs(facts.dequantize) do
    it("decodes " .. entry.type .. " to the bit", function()
      local dtype, bytes, want = case_of(entry)
      assert.equal(entry.block_size, gguf.dtypes[dtype][2])
      assert.equal(entry.type_size, gguf.dtypes[dtype][3])
      assert.is_nil(difference(testing.decode(dtype, bytes), want))
    end)
  end

  it("take any bytes", function()
    math.randomseed(7)
    for dtype, row in pairs(gguf.dtypes) do
      local bytes = {}
      for i = 1, 3 * row[3] do bytes[i] = string.char(math.random(0, 255)) end
      local floats = testing.decode(dtype, table.concat(bytes))
      if floats then assert.equal(3 * row[2] * 4, #floats) end
    end
  end)

  it("have none for types without", function()
    for _, dtype in ipairs { "bool", "int4", "uint4", "int64", "uint64" } do assert.is_nil(testing.decode(dtype, "")) end
  end)

  it("round trip through a file, whole and by rows", function()
    local tensors, wants = {}, {}
    for _, entry in ipairs(facts.dequantize) do
      local dtype, bytes, want = case_of(entry)
      local columns = entry.n_values // 2
      tensors[#tensors + 1] = { name = dtype, dtype = dtype, shape = { 2, columns }, data = bytes }
      wants[dtype] = want
    end
    local path = gguf.write(gguf.temp(), { tensors = tensors })
    local source <close> = assert(core.open(path))
    for dtype, want in pairs(wants) do
      local half = #want // 2
      assert.is_nil(difference(source:read(dtype), want))
      assert.is_nil(difference(source:read(dtype, 1, 1), want:sub(1, half)))
      assert.is_nil(difference(source:read(dtype, 2), want:sub(half + 1)))
      assert.equal("", source:read(dtype, 3))
      assert.equal("", source:read(dtype, 1, 0))
      assert.error_matches(function() source:read(dtype, 0) end, "0 is not in 1 .. 3")
      assert.error_matches(function() source:read(dtype, 1, 3) end, "3 is not in 0 .. 2")
    end
    os.remove(path)
  end)
end)

describe("block encoders", function()
  for _, entry in ipairs(facts.quantize) do
    local dtype, want, floats = case_of(entry)
    it("encodes " .. entry.type .. " as the reference does, where there is an encoder", function()
      local got = testing.encode(dtype, floats)
      if got then assert.equal(want, got) end
    end)
  end

  it("exist for these types", function()
    for _, dtype in ipairs { "fp32", "fp16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" } do
      assert.equal("", testing.encode(dtype, ""))
    end
  end)

  it("keep constants, zeros and single spikes", function()
    for _, dtype in ipairs { "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" } do
      local zeros = gguf.f32 { 0, 0, 0, 0 }:rep(8)
      for _, v in ipairs(gguf.floats(testing.decode(dtype, testing.encode(dtype, zeros)))) do assert.equal(0.0, v + 0.0) end
      local spike = gguf.f32 { -4, 0, 0, 0 } .. gguf.f32 { 0, 0, 0, 0 }:rep(7)
      local back = gguf.floats(testing.decode(dtype, testing.encode(dtype, spike)))
      assert.near(-4, back[1], 0.01)
      assert.near(0, back[2], 0.01)
    end
  end)

  it("take infinities and NaN without a trap", function()
    local list = gguf.f32 { 1 / 0, -1 / 0, 0 / 0, 1e38, -1e38, 1e-45, 0, 1 }:rep(8)
    for _, dtype in ipairs { "fp16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" } do
      assert.equal(64 * 4, #testing.decode(dtype, testing.encode(dtype, list)))
    end
  end)

  it("stay within half a step of the input", function()
    math.randomseed(11)
    local list = {}
    for i = 1, 32 * 50 do list[i] = math.random() * 4 - 2 end
    local bytes = gguf.f32(list)
    -- A step is the range over the number of steps; fp16 scales add a little. Q4_0 and Q5_0 clip at the far end: a whole step.
    for dtype, step in pairs { q4_0 = 0.26, q5_0 = 0.13, q4_1 = 0.14, q5_1 = 0.07, q8_0 = 0.009 } do
      local back = gguf.floats(testing.decode(dtype, testing.encode(dtype, bytes)))
      for i = 1, #list do assert.near(list[i], back[i], step) end
    end
  end)
end)
