-- The checkpoint of a real size (bench/make_phi4_mini.lua), a sixteenth as wide and two layers deep.
local ane = require "ane"
local core = require "ane.core"
local gate = require "ane.evaluate.gate"

local folder

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
end)
after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

local function make(arguments) return os.execute(("lua5.4 bench/make_phi4_mini.lua '%s' %s 2>/dev/null"):format(folder, arguments)) end

describe("bench/make_phi4_mini.lua", function()
  it("writes a model of the shape of Llama 8B too, with a head of its own", function()
    assert.is_true(make "1 16 llama-8b")
    local model <close> = assert(ane.load(folder, { context = 32 }))
    assert.equal(8016, model:info().vocab)
    local source <close> = assert(core.open(folder))
    local parameters = 0
    for _, t in ipairs(source:tensors()) do parameters = parameters + t.shape[1] * (t.shape[2] or 1) end
    assert.equal(2 * 8016 * 256 + 3 * 256 + 256 * (384 + 256 + 3 * 896), parameters)
    assert.is_falsy(make "1 16 llama-9b")
  end)

  it("writes a model whose int8 weights pass the gate, the same each time", function()
    assert.is_true(make "2 16")
    local index = assert(core.json_decode(assert(core.read_file(folder .. "/model.safetensors.index.json"))))
    local files, count = {}, 0
    for name, file in pairs(index.weight_map) do files[file], count = true, count + (name and 1 or 0) end
    assert.equal(2 * 6 + 2, count)
    local source <close> = assert(core.open(folder))
    local bytes, parameters = 0, 0
    for _, t in ipairs(source:tensors()) do
      bytes, parameters = bytes + t.bytes, parameters + t.shape[1] * (t.shape[2] or 1)
      assert.equal("bf16", t.dtype)
    end
    assert.equal(bytes, index.metadata.total_size)
    -- d = 192: qkv 24 + 2 * 8 heads of 8, gate and up 512 each.
    assert.equal(12504 * 192 + 2 * (2 * 192 + 192 * (320 + 192 + 3 * 512)) + 192, parameters)
    local a <close> = assert(ane.load(folder, { activations = "fp32", context = 64 }))
    local b <close> = assert(ane.load(folder, { activations = "fp32", context = 64, weights = "int8", threads = 2 }))
    local ids = {}
    for i = 1, 40 do ids[i] = i * 311 % 12504 end
    local report = assert(gate.run(a, b, ids))
    assert(report.ok and report.cosine > 0.99, tostring(report))
    assert.equal(8, #assert(b:generate({ 1, 2, 3 }, { max_tokens = 8, ignore_eos = true })))
    local first = {}
    for file in pairs(files) do first[file] = assert(core.read_file(folder .. "/" .. file)) end
    assert.is_true(make "2 16")
    for file, text in pairs(first) do assert.is_true(text == core.read_file(folder .. "/" .. file)) end
  end)

  it("says how it is called", function()
    for _, arguments in ipairs { "0", "x", "2 3", "2 16 1" } do assert.is_nil((make(arguments))) end
  end)
end)
