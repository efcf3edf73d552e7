-- One node at a time against onnxruntime, and files with one fault each.
local ane = require "ane"
local core = require "ane.core"
local safetensors = require "support.safetensors"

local OPS, BAD = "spec/fixtures/onnx_ops/", "spec/fixtures/onnx_bad/"

-- What safetensors calls a type: our name, string.unpack's format, bytes (fp16 apart).
local TYPES = {
  F32 = { "fp32", "<f", 4 }, F16 = { "fp16", "<I2", 2 }, I64 = { "int64", "<i8", 8 }, I32 = { "int32", "<i4", 4 }, U8 = { "uint8", "B", 1 },
  I8 = { "int8", "b", 1 }, BOOL = { "bool", "B", 1 },
}
local FORMATS = { fp32 = "F32", fp16 = "F16", int64 = "I64", int32 = "I32", uint8 = "U8", int8 = "I8", bool = "BOOL" }

local function half(bits)
  local exponent, fraction = bits >> 10 & 31, bits & 1023
  local value = exponent == 0 and fraction * 2.0 ^ -24 or exponent == 31 and (fraction == 0 and math.huge or 0 / 0)
    or (1024 + fraction) * 2.0 ^ (exponent - 25)
  return bits >= 0x8000 and -value or value
end

local function numbers(dtype, data)
  local t, out = TYPES[dtype], {}
  for at = 1, #data, t[3] do
    local v = string.unpack(t[2], data, at)
    out[#out + 1] = dtype == "F16" and half(v) or v
  end
  return out
end

-- Is element i (0-based) of a cache [batch, heads, positions, size] one that the node must have written?
local function valid(i, shape, rows)
  if not rows or #shape ~= 4 then return true end
  local position = i // shape[4] % shape[3]
  return position < rows[i // (shape[2] * shape[3] * shape[4]) + 1]
end

-- nil, or what is wrong with the output.
local function fault(name, got, want, tolerance, rows)
  if not got then return name .. " is missing" end
  local a, b = numbers(FORMATS[got.dtype], got.data), numbers(want.dtype, want.data)
  if #a ~= #b then return ("%s has %d elements, but must have %d"):format(name, #a, #b) end
  rows = name:find "present" and rows
  for i, y in ipairs(b) do
    local x = a[i]
    local same = x == y or x ~= x and y ~= y or math.abs(x - y) <= tolerance * (1 + math.abs(y))
    if not same and valid(i - 1, want.shape, rows) then return ("%s[%d] is %g, expected %g"):format(name, i, x, y) end
  end
end

local function run(case)
  local tensors = safetensors.all(OPS .. case .. ".safetensors")
  local source <close> = assert(core.open(OPS .. case .. ".onnx"))
  local graph <close> = assert(core.interp(source, { threads = 1 }))
  local inputs, rough = {}, case:find "f16" ~= nil
  for name, t in pairs(tensors) do
    rough = rough or t.dtype == "F16"
    local input = name:match "^in%.(.*)$"
    if input then inputs[input] = { dtype = TYPES[t.dtype][1], shape = t.shape, data = t.data } end
  end
  local out = assert(graph:run(inputs))
  local rows = tensors.rows and numbers("I64", tensors.rows.data)
  local compared = 0
  for name, t in pairs(tensors) do
    local output = name:match "^out%.(.*)$"
    if output then
      compared = compared + 1
      assert.is_nil(fault(output, out[output], t, rough and 2e-2 or 2e-4, rows))
    end
  end
  assert.is_true(compared > 0)
end

describe("nodes of ONNX", function()
  local count = 0
  for _, file in ipairs(core.list_dir(OPS)) do
    local case = file:match "^(.*)%.onnx$"
    if case then
      count = count + 1
      it(case, function() run(case) end)
    end
  end

  it("are all there", function() assert.equal(180, count) end)
end)

describe("an ONNX file with a fault is refused:", function()
  local cases = assert(core.json_decode(assert(core.read_file(BAD .. "cases.json"))))
  local names = {}
  for name in pairs(cases) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it(cases[name], function()
      local before = core.memory().peak
      local model, message, code = ane.load(BAD .. name, { threads = 1 })
      assert.is_nil(model)
      assert.matches(BAD .. name, message, 1, true)
      assert.is_string(code)
      assert.is_true(core.memory().peak - before < 256e6)
    end)
  end

  it("all of them", function() assert.is_true(#names >= 42) end)
end)
