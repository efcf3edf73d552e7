-- The multipliers of Granite models, by the keys of config.json (transformers, GraniteConfig) and of GGUF (llama.cpp, gguf-py/constants).
local multipliers = require "ane.recipe.multipliers"

local function config(format, values)
  return { format = format, head_dim = 64, meta = function(key) return values[key] end }
end

describe("ane.recipe.multipliers", function()
  it("reads config.json; scores are not scaled by default", function()
    assert.same({ embedding = 12, residual = 0.22, scores = 0.015625, logits = 1 / 8 }, multipliers.of(config("hf", {
      embedding_multiplier = 12, residual_multiplier = 0.22, attention_multiplier = 0.015625, logits_scaling = 8,
    })))
    assert.same({ embedding = 1, residual = 1, scores = 1, logits = 1 }, multipliers.of(config("hf", {})))
  end)

  it("reads GGUF; scores are multiplied by head_dim^-0.5 by default", function()
    assert.same({ embedding = 12, residual = 0.22, scores = 0.015625, logits = 1 / 8 }, multipliers.of(config("gguf", {
      embedding_scale = 12, residual_scale = 0.22, ["attention.scale"] = 0.015625, logit_scale = 8,
    })))
    assert.same({ embedding = 1, residual = 1, scores = 0.125, logits = 1 }, multipliers.of(config("gguf", {})))
  end)
end)
