-- The names that patterns of `mixed` match: those of the file, and those of GGUF files. One rule for load, plan, export and quantise.
local ane = require "ane"
local tiny = require "support.tiny"

local ONNX = "spec/fixtures/onnx/half"
local HF = "spec/fixtures/hf/"
local made = {}

local function scratch(ending)
  local path = os.tmpname()
  os.remove(path)
  made[#made + 1] = path
  return path .. (ending or "")
end

after_each(function()
  for _, path in ipairs(made) do os.execute("rm -rf " .. path .. "*") end
  made = {}
end)

-- The weights in memory that have a type, as a set of names.
local function loaded(path, mixed, wanted)
  local model <close> = assert(ane.load(path, { weights = "file", mixed = mixed, threads = 2 }))
  local set = {}
  for _, row in ipairs(model:weights_report()) do
    if row.weights == wanted then set[row.name] = true end
  end
  return set
end

-- The bytes of a plan with these rules, where they change it.
local function planned(path, mixed)
  local model <close> = assert(ane.load(path))
  local plain, plan = assert(model:plan { weights = "int8" }), assert(model:plan { weights = "int8", mixed = mixed })
  return plan.bytes ~= plain.bytes and { [plan.bytes] = true } or {}
end

-- The tensors of a written file that have a type.
local function written(path, mixed, wanted)
  local model <close> = assert(ane.load(path))
  local report = assert(model:quantise(scratch ".gguf", { weights = "fp16", mixed = mixed }))
  local set = {}
  for _, t in ipairs(report.tensors) do
    if t.to == wanted then set[t.name] = true end
  end
  return set
end

local function count(set)
  local n = 0
  for _ in pairs(set) do n = n + 1 end
  return n
end

describe("a pattern of mixed", function()
  local PAIRS = { { "blk.1.attn_v", "layers.1.self_attn.v_proj" }, { "ffn_down.weight", "mlp.down_proj.weight" } }

  it("matches names of a Hugging Face folder and of GGUF files", function()
    for _, pair in ipairs(PAIRS) do
      for i, read in ipairs { loaded, planned, written } do
        local want = read(HF .. "llama", { { pair[2], i == 2 and "fp16" or "q8_0" } }, "q8_0")
        assert.is_true(count(want) > 0, pair[2])
        assert.same(want, read(HF .. "llama", { { pair[1], i == 2 and "fp16" or "q8_0" } }, "q8_0"), pair[1])
      end
    end
  end)

  it("of later entries counts, whichever names they match", function()
    for _, list in ipairs { { { "attn_v", "q4_0" }, { "v_proj", "q8_0" } }, { { "v_proj", "q4_0" }, { "attn_v", "q8_0" } } } do
      assert.equal(0, count(loaded(HF .. "llama", list, "q4_0")))
      assert.is_true(count(loaded(HF .. "llama", list, "q8_0")) > 0)
      assert.equal(0, count(written(HF .. "llama", list, "q4_0")))
      assert.is_true(count(written(HF .. "llama", list, "q8_0")) > 0)
    end
  end)

  it("matches experts of a folder by the name of their stack", function()
    local want = loaded(HF .. "qwen3_moe-odd", { { "experts.*.up_proj", "fp16" } }, "fp16")
    assert.is_true(count(want) > 0)
    assert.same(want, loaded(HF .. "qwen3_moe-odd", { { "ffn_up_exps", "fp16" } }, "fp16"))
  end)

  it("matches GGUF names of a model that GGUF has no architecture for", function()
    local want = written(HF .. "zaya-odd", { { "embed_tokens", "bf16" } }, "bf16")
    assert.is_true(count(want) > 0)
    assert.same(want, written(HF .. "zaya-odd", { { "token_embd", "bf16" } }, "bf16"))
  end)

  it("matches names of an ONNX bundle", function()
    local want = loaded(ONNX, { { "layers.0.attn_v", "fp16" } }, "fp16")
    assert.same({ ["layers.0.attn_v.weight"] = true }, want)
    assert.same(want, loaded(ONNX, { { "blk.0.attn_v", "fp16" } }, "fp16"))
    want = planned(ONNX, { { "layers.0.attn_v", "fp16" } })
    assert.equal(1, count(want))
    assert.same(want, planned(ONNX, { { "blk.0.attn_v", "fp16" } }))
  end)

  it("that matches nothing, or differs without an order, is an error", function()
    local model, message = ane.load(HF .. "llama", { mixed = { attn_none = "q8_0" } })
    assert.is_nil(model)
    assert.matches('option mixed: no weight matches "attn_none"', message, 1, true)
    model, message = ane.load(HF .. "llama", { mixed = { attn_v = "q8_0", v_proj = "q4_0" } })
    assert.is_nil(model)
    assert.matches('matches "attn_v" and "v_proj", which differ', message, 1, true)
    local small <close> = assert(tiny.load())
    assert.is_nil((small:plan { mixed = { v_proj = "int4-block" } })) -- a GGUF file has no names of folders
  end)
end)
