-- ERNIE 4.5 against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local decoders = require "support.decoders"
local hf = require "support.hf"
local st = require "support.safetensors_writer"

-- With fp32 activations: CPUs with a bf16 dot product round those of bf16 weights.
local function last(path)
  local model <close> = assert(ane.load(path, { threads = 1, activations = "fp32" }))
  local s <close> = assert(model:session())
  assert(s:feed { 5, 9, 30, 7 })
  return s:logits():tostring()
end

describe("ERNIE 4.5", function()
  for _, name in ipairs { "ernie4_5", "ernie4_5_moe" } do
    for _, case in ipairs(decoders.cases(name)) do it(table.unpack(case)) end
  end
  for _, name in ipairs { "ernie4_5_biased", "ernie4_5_moe_between" } do
    for _, case in ipairs(decoders.cases(name, { folder_only = true })) do it(table.unpack(case)) end
  end

  it("leaves out the blocks that draft tokens", function()
    local path <close> = hf.changed("ernie4_5_moe-odd", nil, function(t) return t end, {
      { name = "model.mtp_linear_proj.0.weight", dtype = "F32", shape = { 1 }, data = ("<f"):pack(1) },
    })
    assert.equal(last(hf.path "ernie4_5_moe-odd"), last(path.name))
  end)

  it("takes attention_bias and mlp_bias, which it does not have, for nothing", function()
    for _, name in ipairs { "ernie4_5_moe-odd", "ernie4_5_biased-odd" } do
      for _, value in ipairs { true, false } do
        local path <close> = hf.changed(name, function(cfg) cfg.attention_bias, cfg.mlp_bias = value, value end)
        assert.equal(last(hf.path(name)), last(path.name))
      end
    end
  end)

  it("knows the other names of the number of experts and of those of a token", function()
    local path <close> = hf.changed("ernie4_5_moe-odd", function(cfg)
      cfg.num_experts, cfg.num_experts_per_tok, cfg.moe_num_experts, cfg.moe_k = assert(cfg.moe_num_experts), assert(cfg.moe_k), nil, nil
    end)
    assert.equal(last(hf.path "ernie4_5_moe-odd"), last(path.name))
  end)

  it("refuses a lower limit of the divisor of weights that matters", function()
    for _, value in ipairs { 0.001, -1.0 } do
      assert.matches(("key moe_norm_min is %g, but must be from 0 to 1e-9"):format(value),
        decoders.refusal("ernie4_5_moe", function(cfg) cfg.moe_norm_min = value end), 1, true)
    end
  end)

  -- The router's softmax is 1 for expert 0 or 1, and the bias chooses three others. The limit of the divisor keeps 0 / 0 away.
  it("gives chosen experts that all have the probability 0 no weight, from files of both formats", function()
    local path <close> = hf.changed("ernie4_5_moe-odd", nil, function(t)
      if t.name == "model.layers.1.mlp.gate.weight" then
        local rows = {}
        for i = 1, 6 * 30 do rows[i] = i <= 30 and 1e4 or i <= 60 and -1e4 or 0 end
        t.dtype, t.data = "F32", st.f32(rows)
      elseif t.name:find "correction_bias" then
        t.dtype, t.data = "F32", st.f32 { 0, 0, 3, 3, 3, 0 }
      end
      return t
    end)
    local file, model <close> = os.tmpname(), assert(ane.load(path.name, { threads = 1 }))
    assert.equal("ernie4_5-moe", assert(model:quantise(file, { weights = "fp32" })).architecture)
    local want, got = last(path.name), last(file)
    os.remove(file)
    assert.is_true(hf.apart(want, { data = want }) == 0) -- numbers
    assert.is_true(hf.apart(got, { data = want }) <= 1e-5)
  end)
end)
