-- GLM-4.5 against transformers: spec/golden/decoders.py made the fixtures. llama.cpp gives the same logits from the GGUF files, one of
-- which has a layer that drafts tokens.
local ane = require "ane"
local core = require "ane.core"
local decoders = require "support.decoders"
local hf = require "support.hf"

local function last(path)
  local model <close> = assert(ane.load(path, { threads = 1 }))
  local s <close> = assert(model:session())
  assert(s:feed { 5, 9, 30, 7 })
  return s:logits():tostring()
end

describe("GLM-4.5", function()
  for _, name in ipairs { "glm4_moe", "glm4_moe_normed" } do
    for _, case in ipairs(decoders.cases(name)) do it(table.unpack(case)) end
  end

  it("leaves out the layer that drafts tokens in published folders", function()
    local path <close> = hf.changed("glm4_moe-odd", nil, function(t) return t end, {
      { name = "model.layers.46.eh_proj.weight", dtype = "F32", shape = { 1 }, data = ("<f"):pack(1) },
    })
    assert.equal(last(hf.path "glm4_moe-odd"), last(path.name))
  end)

  it("is refused where a GGUF file has scores of experts that are not computed", function()
    local path, key = os.tmpname(), "glm4moe.expert_gating_func" .. ("<I4"):pack(4)
    local bytes, n = assert(core.read_file "spec/fixtures/gguf/glm4_moe-odd.gguf"):gsub(key .. ("<I4"):pack(2), key .. ("<I4"):pack(4))
    assert.equal(1, n)
    assert(core.write_file(path, bytes))
    finally(function() os.remove(path) end)
    local model, message = ane.load(path)
    assert.is_nil(model)
    assert.matches("key expert_gating_func is 4, known are 1, 2 and 3", message, 1, true)
  end)

  it("ignores keys that its configuration class does not have", function()
    for key, value in pairs { mlp_bias = true, mlp_layer_types = { "dense", "dense" }, sliding_window = 3 } do
      local path <close> = hf.changed("glm4_moe-odd", function(cfg) cfg[key] = value end)
      assert.equal(last(hf.path "glm4_moe-odd"), last(path.name), key)
    end
  end)

  it("is refused where the configuration denies norms or biases that the file holds", function()
    assert.matches("tensor model.layers.0.self_attn.k_norm.weight is not used",
      decoders.refusal("glm4_moe_normed", function(cfg) cfg.use_qk_norm = false end), 1, true)
    assert.matches("tensor model.layers.0.self_attn.k_proj.bias is not used",
      decoders.refusal("glm4_moe", function(cfg) cfg.attention_bias = false end), 1, true)
  end)
end)
