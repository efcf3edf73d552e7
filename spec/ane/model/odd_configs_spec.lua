-- Configurations with one fault each: whatever stands in them, load, quantise and plan give a model, or nil, message, code.
local ane = require "ane"
local core = require "ane.core"
local odd = require "support.odd_configs"
local planner = require "ane.coreml.plan"
local quantise = require "ane.quantise"

local try = odd.try

local HF, ONNX = "spec/fixtures/hf/", "spec/fixtures/onnx/"

-- Every STEP-th change is tried; each folder begins elsewhere. All of them take some minutes.
local STEP = tonumber(os.getenv "ANE_FUZZ_STEP") or 23

local folder

setup(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir '%s'"):format(folder)))
end)

teardown(function() os.execute(("rm -r '%s'"):format(folder)) end)

local function json(path) return assert(core.json_decode(assert(core.read_file(path)))) end

local function copy(from, name)
  local bytes = core.read_file(from .. name)
  return bytes and core.write_file(folder .. "/" .. name, bytes)
end

-- What each way in makes of the folder.
local function load(opts)
  opts = opts or {}
  opts.threads = 1
  local model, message, code = ane.load(folder, opts)
  if not model then return nil, message, code end
  model:close()
  return true
end

local function write(dtype)
  local source <close>, message, code = core.open(folder)
  if not source then return nil, message, code end
  return quantise.run(source, folder .. "/out.gguf", { weights = dtype, threads = 1 })
end

-- Calls fn(where) for every STEP-th change of the configuration in `from`, which stands changed in the folder then.
local function each_change(from, file, fn)
  local text = assert(core.read_file(from .. file))
  local changes = odd.changes(assert(core.json_decode(text)))
  for i = 1 + #from % STEP, #changes, STEP do
    local cfg = assert(core.json_decode(text))
    changes[i].change(cfg)
    assert(core.write_file(folder .. "/" .. file, assert(core.json_encode(cfg))))
    fn(("%s%s: %s"):format(from, file, changes[i].where))
  end
end

describe("a configuration with a fault", function()
  for _, name in ipairs(core.list_dir(HF)) do
    if core.path_kind(HF .. name .. "/model.safetensors") == "file" then
      it("of " .. name .. " gives a message and a code", function()
        local bad, from = {}, HF .. name .. "/"
        assert(copy(from, "model.safetensors"))
        each_change(from, "config.json", function(where)
          try(bad, "load " .. where, load)
          try(bad, "quantise " .. where, write, "q8_0")
          try(bad, "plan " .. where, planner.of_path, folder, {})
        end)
        assert.same({}, bad)
      end)
    end
  end

  it("beside an ONNX graph gives a message and a code", function()
    local bad = {}
    os.remove(folder .. "/model.safetensors")
    for _, name in ipairs { "extra", "mixed", "windows" } do
      local from = ONNX .. name .. "/"
      assert(copy(from, "model.onnx"))
      each_change(from, "genai_config.json", function(where)
        try(bad, "load " .. where, load)
        try(bad, "run " .. where, load, { engine = "graph", context = 32 })
      end)
    end
    os.remove(folder .. "/model.onnx")
    assert.same({}, bad)
  end)
end)

describe("a number beyond its ceiling", function()
  -- The configuration of `name` with a change: what load, quantise and plan say of it.
  local function messages(name, change)
    assert(copy(HF .. name .. "/", "model.safetensors"))
    local cfg = json(HF .. name .. "/config.json")
    change(cfg)
    assert(core.write_file(folder .. "/config.json", assert(core.json_encode(cfg))))
    local out = {}
    for _, fn in ipairs { load, function() return write "q8_0" end, function() return planner.of_path(folder, {}) end } do
      local result, message, code = fn()
      assert.is_nil(result)
      out[#out + 1] = { message, code }
    end
    return out
  end

  it("is refused before anything is made of it", function()
    local started = os.clock()
    for _, m in ipairs(messages("phi3", function(cfg) cfg.head_dim = 2147483648 end)) do
      assert.matches("key head_dim must be a whole number from 1 to 8192, but is 2147483648", m[1])
      assert.equal("format", m[2])
    end
    assert.is_true(os.clock() - started < 5)
  end)

  it("is refused where a product overflows", function()
    for _, m in ipairs(messages("zaya-odd", function(cfg) cfg.rope_parameters.hybrid.partial_rotary_factor = 1e308 end)) do
      assert.matches("partial_rotary_factor must be a number that float32 holds, but is 1e%+308", m[1])
      assert.equal("format", m[2])
    end
  end)

  it("is refused in a sequence of frequencies", function()
    local rope = require "ane.recipe.rope"
    assert.error_matches(function() rope.frequencies { theta = 1e4, dims = 2147483648 } end, "rope has 2147483648 dimensions")
    assert.error_matches(function() rope.frequencies { theta = 1e4, dims = 8, divisors = { 1, 0, 1, 1 } } end,
      "frequency 1 must be a finite fp32 number, but is inf")
  end)
end)

describe("quantise", function()
  it("names the key that a configuration lacks", function()
    assert(copy(HF .. "phi3/", "model.safetensors"))
    local cfg = json(HF .. "phi3/config.json")
    cfg.intermediate_size = nil
    assert(core.write_file(folder .. "/config.json", assert(core.json_encode(cfg))))
    local report, message, code = write "q8_0"
    assert.is_nil(report)
    assert.matches("config.json: says nothing for metadata key phi3.feed_forward_length", message)
    assert.equal("format", code)
  end)

  it("refuses a package set", function()
    local out = folder .. "/packages"
    local model <close> = assert(ane.load(HF .. "phi3", { threads = 1 }))
    assert(model:export(out, { context = 16, threads = 1 }))
    local set <close> = assert(ane.load(out, { threads = 1 }))
    local report, message, code = set:quantise(folder .. "/out.gguf", { weights = "q8_0" })
    assert.is_nil(report)
    assert.matches("Core ML packages and Core AI assets cannot be written as GGUF", message)
    assert.equal("unsupported", code)
  end)
end)
