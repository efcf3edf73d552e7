-- Keys that config.json lacks have the values that transformers gives them (the fields of its configuration classes, 5.24). Keys that are
-- null do not. Keys that a configuration class does not have are without effect.
local ane = require "ane"
local config = require "ane.model.config"
local core = require "ane.core"
local hf = require "support.hf"
local recipe = require "ane.recipe"
local shapes = require "ane.recipe.shapes"

-- The configuration of an architecture whose config.json has little more than the keys that every file has, its recipe, and a source
-- without weights.
local function open(architecture, keys)
  local raw = { model_type = architecture, hidden_size = 64, intermediate_size = 24, num_hidden_layers = 2, num_attention_heads = 32 }
  for key, value in pairs(keys or {}) do raw[key] = value end
  local path = os.tmpname()
  assert(core.write_file(path, assert(core.json_encode(raw))))
  local r, source = assert(recipe.find(architecture)), shapes.source(path)
  local cfg = assert(config.read(source, r.config))
  os.remove(path)
  return cfg, r, source
end

-- The configuration, completed.
local function read(architecture, keys)
  local cfg, r = open(architecture, keys)
  recipe.complete(r, cfg)
  return cfg
end

-- The graph of the configuration, as text.
local function graph(architecture, keys)
  local cfg, r, source = open(architecture, keys)
  local g <close> = assert(recipe.build(r, cfg, source))
  return g:dump()
end

--- architecture, field of the configuration (in a rope: "rope.theta"), value
local FIELDS = {
  { "glm4", "rope.dims", 64 }, { "qwen3_5_text", "rope.dims", 64 }, { "qwen3_5_moe_text", "rope.dims", 64 },
  { "gemma4_text", "ropes.full_attention.theta", 1000000 }, { "gemma4_text", "ropes.full_attention.partial", 0.25 },
  { "gemma4_text", "ropes.sliding_attention.theta", 10000 }, { "gemma3n_text", "rope.theta", 1000000 },
  { "cohere", "rope.theta", 500000 }, { "cohere2", "rope.theta", 10000 }, { "olmo2", "rope.theta", 10000 },
  { "olmo3", "rope.theta", 500000 }, { "gemma2", "rope.theta", 10000 },
  { "mixtral", "rope.theta", 1000000 }, { "mixtral", "norm_eps", 1e-5 }, { "mixtral", "n_head_kv", 8 },
  { "mixtral", "sliding_window", nil }, { "olmoe", "rope.theta", 10000 }, { "olmoe", "norm_eps", 1e-5 }, { "olmoe", "n_head_kv", 32 },
  { "mistral", "sliding_window", 4096 }, { "ministral", "sliding_window", 4096 }, { "ministral3", "sliding_window", nil },
  { "cohere2", "sliding_window", 4096 }, { "olmo3", "sliding_window", 4096 }, { "qwen2", "sliding_window", 4096 },
  { "qwen3", "sliding_window", 4096 }, { "qwen2_moe", "sliding_window", 4096 }, { "qwen3_moe", "sliding_window", 4096 },
  { "gpt_oss", "sliding_window", 128 }, { "gemma2", "sliding_window", 4096 },
  { "gemma3n_text", "sliding_window", 512 }, { "gemma4_text", "sliding_window", 512 },
  { "qwen2", "n_head_kv", 32 }, { "qwen3", "n_head_kv", 32 }, { "qwen2_moe", "n_head_kv", 16 }, { "qwen3_5_text", "n_head_kv", 4 },
  { "qwen3_5_moe_text", "n_head_kv", 2 },
  { "lfm2", "n_head_kv", 8 }, { "gemma2", "n_head_kv", 4 }, { "gemma2", "head_dim", 256 }, { "gemma2", "act", "gelu_tanh" },
  { "zaya", "n_head_kv", 2 },
  { "openai_privacy_filter", "sliding_window", 128 }, { "openai_privacy_filter", "head_dim", 64 },
  { "openai_privacy_filter", "n_head_kv", 2 }, { "glm4_moe_lite", "norm_eps", 1e-5 }, { "glm4_moe", "norm_eps", 1e-5 },
  { "glm4_moe", "n_head_kv", 8 }, { "glm4_moe", "head_dim", 2 },
  { "ernie4_5", "head_dim", 128 }, { "ernie4_5", "n_head_kv", 2 }, { "ernie4_5", "norm_eps", 1e-5 }, { "ernie4_5", "rope.theta", 500000 },
  { "ernie4_5", "tied", true }, { "ernie4_5_moe", "head_dim", 2 }, { "ernie4_5_moe", "n_head_kv", 4 }, { "ernie4_5_moe", "tied", true },
  { "seed_oss", "head_dim", 128 }, { "seed_oss", "n_head_kv", 8 }, { "seed_oss", "attention_bias", true },
  { "deepseek_v3", "norm_eps", 1e-6 },
  { "qwen3", "head_dim", 128 }, { "zaya", "head_dim", 128 }, { "qwen3_5_text", "head_dim", 256 },
}

--- architecture, key of cfg.meta, value
local KEYS = {
  { "lfm2_moe", "num_experts", 32 }, { "lfm2_moe", "num_experts_per_tok", 4 }, { "lfm2_moe", "num_dense_layers", 2 },
  { "deepseek_v2", "q_lora_rank", 1536 }, { "deepseek_v2", "n_routed_experts", 64 }, { "deepseek_v3", "n_routed_experts", 256 },
  { "glm4_moe_lite", "q_lora_rank", 768 }, { "glm4_moe_lite", "v_head_dim", 256 }, { "glm4_moe_lite", "qk_nope_head_dim", 192 },
  { "granitemoehybrid", "num_local_experts", 8 }, { "openai_privacy_filter", "num_experts_per_tok", 4 },
  { "gemma4_text", "hidden_size_per_layer_input", 256 }, { "deepseek_v3", "norm_topk_prob", true },
  { "deepseek_v3", "rope_interleave", true }, { "glm4_moe_lite", "norm_topk_prob", true }, { "glm4_moe_lite", "rope_interleave", true },
  { "glm4_moe", "n_routed_experts", 128 }, { "glm4_moe", "num_experts_per_tok", 8 }, { "glm4_moe", "norm_topk_prob", true },
  { "glm4_moe", "first_k_dense_replace", 1 }, { "glm4_moe", "moe_intermediate_size", 1408 },
  { "mixtral", "num_experts_per_tok", 2 }, { "olmoe", "num_experts_per_tok", 8 },
  { "gemma2", "attn_logit_softcapping", 50 }, { "gemma2", "final_logit_softcapping", 30 }, { "gemma2", "query_pre_attn_scalar", 256 },
  { "falcon_h1", "mamba_d_ssm", 1024 }, { "qwen2_moe", "num_experts", 60 }, { "qwen3_5_moe_text", "num_experts", 256 },
}

describe("a key that config.json lacks", function()
  for _, case in ipairs(FIELDS) do
    local architecture, field, value = table.unpack(case, 1, 3)
    it(("has the value of transformers: %s of %s is %s"):format(field, architecture, value), function()
      local got = read(architecture)
      for part in field:gmatch "[^.]+" do got = got[part] end
      assert.equal(value, got)
    end)
  end

  for _, case in ipairs(KEYS) do
    local architecture, key, value = table.unpack(case)
    it(("has the value of transformers: %s of %s is %s"):format(key, architecture, value), function()
      assert.equal(value, read(architecture).meta(key))
    end)
  end

  it("are sparse gates in ten layers of Gemma 3n, if it has more than ten layers", function()
    local sparse, none = {}, {}
    for i = 1, 12 do sparse[i], none[i] = i <= 10 and 0.95 or 0, 0 end
    local function gemma(n, list)
      return graph("gemma3n_text", { num_hidden_layers = n, num_attention_heads = 2, head_dim = 8, vocab_size = 50,
        num_kv_shared_layers = 0, altup_num_inputs = 2, activation_sparsity_pattern = list })
    end
    assert.equal(gemma(12, sparse), gemma(12))
    assert.not_equal(gemma(12, none), gemma(12))
    assert.equal(gemma(10, table.move(none, 1, 10, 1, {})), gemma(10))
  end)

  it("are the kinds of layers and the width of full heads of Gemma 4", function()
    local function gemma(types, width, wide)
      local near, full = "sliding_attention", "full_attention"
      local list = types and { near, near, near, near, near, full, near, types == "last" and near or full }
      return graph("gemma4_text", { num_hidden_layers = 8, num_attention_heads = 4, head_dim = 8, vocab_size = 50, layer_types = list,
        global_head_dim = width, per_layer_config = wide and { ["5"] = { head_dim = 512 }, ["7"] = { head_dim = 512 } } or nil })
    end
    local want = gemma("all", 512)
    assert.equal(want, gemma())
    assert.equal(want, gemma "last") -- the last layer has full attention, whatever the list says
    assert.equal(want, gemma("all", nil, true))
    assert.not_equal(want, gemma("all", 16))
  end)

  it("is the original context of Phi-3, also where the dict of the rope has the key", function()
    local rope = { type = "longrope", short_factor = { 1 }, long_factor = { 2 }, original_max_position_embeddings = 64 }
    assert.equal(4096, read("phi3", { rope_scaling = rope, max_position_embeddings = 131072 }).rope.original_context)
  end)

  it("has no window where it is null", function()
    for _, architecture in ipairs { "mistral", "ministral", "qwen2", "phi3" } do
      assert.is_nil(read(architecture, { sliding_window = core.null }).sliding_window)
    end
  end)
end)

-- The logits of a fixture whose configuration change(cfg) has changed.
local function logits(name, change)
  local path <close> = hf.changed(name, change)
  local model <close> = assert(ane.load(path.name, { threads = 1 }))
  local s <close> = assert(model:session())
  assert(s:feed { 5, 9, 30, 7 })
  return s:logits():tostring()
end

describe("the experts of the privacy filter", function()
  it("may be called num_experts, and are 128 where no key has their number", function()
    local function dump(change)
      local keys = { num_local_experts = 128, vocab_size = 50, head_dim = 8, num_attention_heads = 8 }
      if change then change(keys) end
      return graph("openai_privacy_filter", keys)
    end
    local want = dump()
    assert.equal(want, dump(function(keys) keys.num_local_experts = nil end))
    assert.equal(want, dump(function(keys) keys.num_experts, keys.num_local_experts = 128, nil end))
    assert.not_equal(want, dump(function(keys) keys.num_local_experts = 64 end))
  end)
end)

describe("attention_bias", function()
  for _, name in ipairs { "qwen2_swa", "qwen2_moe-odd", "ministral3-odd" } do
    it("has no effect in a model that has no such key: " .. name, function()
      local want = logits(name)
      for _, value in ipairs { true, false } do
        assert.equal(want, logits(name, function(cfg) cfg.attention_bias = value end))
      end
    end)
  end
end)

-- In transformers, null is false where a class allows it.
describe("a key of DeepSeek-V3 that is null", function()
  for _, key in ipairs { "norm_topk_prob", "rope_interleave" } do
    it("counts as false, and as true where it is absent: " .. key, function()
      local function with(value) return logits("deepseek_v3-odd", function(cfg) cfg[key] = value end) end
      assert.equal(with(false), with(core.null))
      assert.equal(with(true), with(nil))
      assert.not_equal(with(true), with(false))
    end)
  end
end)

describe("the dense layers of GLM-4.7-Flash", function()
  it("are the first one where no key says so", function()
    local function layers(first)
      return graph("glm4_moe_lite", { first_k_dense_replace = first, num_attention_heads = 4, vocab_size = 50, q_lora_rank = 8,
        kv_lora_rank = 8, n_routed_experts = 4, moe_intermediate_size = 8 })
    end
    assert.equal(layers(1), layers())
    assert.not_equal(layers(0), layers())
  end)
end)

describe("the number of experts", function()
  for name, key in pairs { ["deepseek_v2-odd"] = "num_experts", ["deepseek_v3-odd"] = "num_local_experts",
    ["nemotron_h-odd"] = "num_local_experts" } do
    it(("may be called %s: %s"):format(key, name), function()
      assert.equal(logits(name), logits(name, function(cfg) cfg[key], cfg.n_routed_experts = assert(cfg.n_routed_experts), nil end))
    end)
  end
end)
