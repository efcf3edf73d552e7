-- The table of roles (lua/ane/recipe/names.lua).
local names = require "ane.recipe.names"

describe("names of weights", function()
  it("has each role once, and a suffix or a name only as a string", function()
    local seen = {}
    for _, row in ipairs(names.ROLES) do
      assert.is_nil(seen[row[1]], row[1])
      seen[row[1]] = true
      for key in pairs(row) do
        assert.is_true(key == 1 or key == "outside" or key == "hf" or key == "bias" or key == "suffix" or key == "fp32", tostring(key))
      end
    end
  end)

  it("names a role in each format", function()
    assert.are.equal("blk.3.attn_q", names.of("gguf")("attn_q", 3))
    assert.are.equal("token_embd", names.of("gguf")("token_embd"))
    assert.are.equal("model.layers.3.self_attn.q_proj", names.of("hf")("attn_q", 3))
    assert.are.equal("lm_head", names.of("hf")("output"))
    assert.are.equal("layers.3.ffn_up_exps.%d", names.of("onnx")("ffn_up_exps", 3))
    assert.are.equal("model.layers.0.own", names.of("hf", { attn_q = "own" })("attn_q", 0))
    assert.has_error(function() names.of("hf")("attn_sinks", 0) end,
      "role attn_sinks has no tensor name in Hugging Face files: the recipe's names.hf must give one")
  end)

  it("lists the roles with a bias by the key that says so", function()
    assert.are.same({ "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output" }, names.with_bias "attention_bias")
    assert.are.same({ "ffn_gate", "ffn_up", "ffn_down" }, names.with_bias "mlp_bias")
  end)

  it("keeps norms, routers and kernels of convolutions as fp32", function()
    for _, name in ipairs {
      "blk.0.attn_norm.weight", "blk.1.ffn_gate_inp.weight", "blk.0.exp_probs_b.bias", "blk.2.shortconv.conv.weight",
      "blk.0.attn_sinks.weight", "layers.0.mlp.gate.weight", "layers.3.feed_forward.gate.weight",
      "rope_freqs.weight",
    } do
      assert.is_true(names.keeps_fp32(name), name)
    end
    for _, name in ipairs {
      "blk.0.attn_q.weight", "blk.1.ffn_gate.weight", "blk.2.shortconv.in_proj.weight", "output.weight", "blk.0.ffn_gate_exps.weight",
      "layers.0.mlp.gate_proj.weight",
    } do
      assert.is_false(names.keeps_fp32(name), name)
    end
  end)
end)
