-- Adapters of stacked experts: beside PEFT, on files that store experts in other ways, and what is refused.
local adapters = require "support.adapters"
local ane = require "ane"
local core = require "ane.core"
local hf = require "support.hf"
local st = require "support.safetensors_writer"

local made = {}
local function keep(path)
  made[#made + 1] = path
  return path
end

local function logits(model, ids)
  local session <close> = assert(model:session())
  assert(session:feed(ids, { want = "all" }))
  local rows = {}
  for i = 1, session:rows() do rows[i] = session:logits(i):tostring() end
  return table.concat(rows)
end

local function load(path, adapter, merge)
  return ane.load(path, { activations = "fp32", threads = 2, adapters = adapter, merge = merge, context = 64 })
end

local function merged(path, adapter, ids)
  local model <close> = assert(load(path, adapter, true))
  return logits(model, ids)
end

local function fails(code, pattern, path, adapter, merge)
  local model, message, word = load(path, adapter, merge)
  if model then model:close() end
  assert.is_nil(model)
  assert.equal(code, word, message)
  assert.is_truthy(message:find(pattern), message)
end

-- The tensors of an adapter of one parameter of qwen3_moe-odd: 7 experts of rank 2.
local function pair(module, cols, rows, seed) return adapters.pair(module, cols, rows, 14, seed) end
local EXPERTS = "model.layers.0.mlp.experts"
local function folder(tensors, targets)
  return keep(adapters.peft { tensors = tensors, config = { r = 2, target_modules = {}, target_parameters = targets } })
end

describe("adapters of stacked experts", function()
  teardown(function() for _, path in ipairs(made) do st.remove(path) end end)

  for _, name in ipairs { "gpt_oss", "qwen3_moe", "privacy_filter", "mixtral" } do
    it("give merged what PEFT gives: " .. name, function()
      local prompts, want = hf.golden("lora_" .. name)
      local plain <close> = assert(load(hf.path(name .. "-odd")))
      assert.is_true(hf.apart(logits(plain, prompts[1].ids), want["all.logits"]) > 0.05)
      local got = merged(hf.path(name .. "-odd"), hf.path("lora_" .. name), prompts[1].ids)
      assert.is_true(hf.apart(got, want["all.logits"]) <= 2e-4, hf.apart(got, want["all.logits"]))
    end)
  end

  for _, name in ipairs { "gpt_oss", "qwen3_moe", "mixtral" } do
    it("act on GGUF files, where gate and up are tensors of their own: " .. name, function()
      local prompts, want = hf.golden("lora_" .. name)
      local got = merged(("spec/fixtures/gguf/%s-odd.gguf"):format(name), hf.path("lora_" .. name), prompts[1].ids)
      assert.is_true(hf.apart(got, want["all.logits"]) <= 2e-3, hf.apart(got, want["all.logits"]))
    end)
  end

  it("act on experts of MXFP4, which are decoded", function()
    local MXFP4, adapter, ids = hf.path "gpt_oss_mxfp4-odd", hf.path "lora_gpt_oss", hf.golden("lora_gpt_oss")[1].ids
    local file = keep(os.tmpname())
    local plain <close> = assert(load(MXFP4))
    assert(plain:quantise(file, { weights = "fp32" }))
    local a, b = merged(MXFP4, adapter, ids), merged(file, adapter, ids)
    assert.is_true(hf.apart(logits(plain, ids), { data = a }) > 0.05)
    assert.is_true(hf.apart(a, { data = b }) <= 1e-4)
  end)

  it("of one expert, as older versions of PEFT wrote them, give what that expert of a stack gives", function()
    local QWEN, ids = hf.path "qwen3_moe-odd", hf.golden("lora_qwen3_moe")[1].ids
    local source <close> = assert(core.open(QWEN))
    local inner, cols = table.unpack(source:tensor("model.layers.0.mlp.experts.0.gate_proj.weight").shape)
    local one = adapters.peft {
      tensors = adapters.pair(EXPERTS .. ".3.up_proj", cols, inner, 2, 5), config = { r = 2, target_modules = { "up_proj" } },
    }
    -- The same as a stack: A has rows for expert 3 alone, B for the rows of up.
    local a, b, wide, tall = adapters.numbers(2 * cols, 5), adapters.numbers(inner * 2, 6), {}, {}
    for i = 1, 14 * cols do wide[i] = 0 end
    for i = 1, 2 * cols do wide[3 * 2 * cols + i] = a[i] end
    for i = 1, 2 * inner * 14 do tall[i] = 0 end
    for row = 0, inner - 1 do
      for k = 0, 1 do tall[(inner + row) * 14 + k * 7 + 3 + 1] = b[row * 2 + k + 1] end
    end
    local stem = "base_model.model." .. EXPERTS
    local stack = folder({
      { name = stem .. ".lora_A.weight", dtype = "F32", shape = { 14, cols }, data = st.f32(wide) },
      { name = stem .. ".lora_B.weight", dtype = "F32", shape = { 2 * inner, 14 }, data = st.f32(tall) },
    }, { "experts.gate_up_proj" })
    assert.equal(merged(QWEN, stack, ids), merged(QWEN, keep(one), ids))
    local GGUF = "spec/fixtures/gguf/qwen3_moe-odd.gguf"
    assert.equal(merged(GGUF, stack, ids), merged(GGUF, one, ids))
    fails("unsupported", "up_proj.lora_A.weight is for a weight of a fused step or a norm: load the model with merge = true", QWEN, one)
  end)

  it("are refused while the model runs", function()
    fails("unsupported", "experts.lora_A.weight is for experts, whose adapters are computed merged only: load the model with merge = true",
      hf.path "qwen3_moe-odd", hf.path "lora_qwen3_moe")
  end)

  it("of GGUF adapters are refused by name, merged or not", function()
    local list = {}
    for i, part in ipairs { "lora_a", "lora_b" } do list[i] = adapters.tensor("blk.0.ffn_down_exps.weight." .. part, { 7, 4, 20 }, i) end
    local path = keep(adapters.gguf { tensors = list, alpha = 4, architecture = "qwen3moe" })
    for _, merge in ipairs { false, true } do
      fails("unsupported", "ffn_down_exps.weight.lora_a is for stacked experts, whose adapters are read from PEFT folders only",
        "spec/fixtures/gguf/qwen3_moe-odd.gguf", path, merge)
    end
  end)

  it("are refused by name where a parameter is unknown, too many, or of another shape", function()
    local QWEN = hf.path "qwen3_moe-odd"
    local source <close> = assert(core.open(QWEN))
    local inner, d = table.unpack(source:tensor("model.layers.0.mlp.experts.0.gate_proj.weight").shape)
    local function down(module) return pair(module or EXPERTS, inner, d, 1) end
    local TARGET = { "experts.down_proj" }
    merged(QWEN, folder(down(), TARGET), { 1, 2 })
    fails("format", "target_modules does not name", QWEN, folder(down(), {}), true)
    fails("format", "base_layer.lora_A.weight is for a parameter that target_parameters does not name", QWEN,
      folder(down(EXPERTS .. ".base_layer"), TARGET), true)
    fails("notfound", "for parameter down_proj of module model.layers.9.mlp.experts, which", QWEN,
      folder(down "model.layers.9.mlp.experts", TARGET), true)
    fails("notfound", "does not have", hf.path "llama", folder(down(), TARGET), true)
    fails("shape", "for 7 experts of %[%d+, %d+%], but gate_up_proj of .* has 7 of", QWEN, folder(down(), { "experts.gate_up_proj" }), true)
    fails("shape", "for 6 experts", QWEN, folder(adapters.pair(EXPERTS, inner, d, 12, 1), TARGET), true)
    fails("shape", "not of rank 2", QWEN, folder(adapters.pair(EXPERTS, inner, d, 13, 1), TARGET), true)
    fails("unsupported", "is adapted beside others", QWEN, folder(down(), { "experts.down_proj", "experts.weight" }), true)
  end)
end)
