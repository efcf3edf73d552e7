local config = require "ane.model.config"
local core = require "ane.core"
local gguf = require "support.gguf_writer"
local loader = require "ane.model.loader"
local floats = require "support.floats"
local st = require "support.safetensors_writer"

local temps = {}

after_each(function()
  for _, path in ipairs(temps) do st.remove(path) end
  temps = {}
end)

-- A llama of one layer: 4 heads of 4, 2 of them for keys and values.
local function llama()
  return {
    model_type = "llama", hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1, num_attention_heads = 4, num_key_value_heads = 2,
    vocab_size = 20, max_position_embeddings = 32, hidden_act = "silu", rms_norm_eps = 1e-5, tie_word_embeddings = true,
  }
end

local function tensor(name, ...)
  local n = 1
  for _, d in ipairs { ... } do n = n * d end
  return { name = name, dtype = "F32", shape = { ... }, data = floats.uniform(n, #name, 0.4) }
end

local function weights()
  local l = "model.layers.0."
  return { tensors = {
    tensor("model.embed_tokens.weight", 20, 16), tensor("model.norm.weight", 16), tensor(l .. "input_layernorm.weight", 16),
    tensor(l .. "self_attn.q_proj.weight", 16, 16), tensor(l .. "self_attn.k_proj.weight", 8, 16),
    tensor(l .. "self_attn.v_proj.weight", 8, 16), tensor(l .. "self_attn.o_proj.weight", 16, 16),
    tensor(l .. "post_attention_layernorm.weight", 16), tensor(l .. "mlp.gate_proj.weight", 24, 16),
    tensor(l .. "mlp.up_proj.weight", 24, 16), tensor(l .. "mlp.down_proj.weight", 16, 24),
  } }
end

-- A folder; change(raw, files) alters config.json as a table, or the files (texts, or {json = value}).
local function folder(change)
  local raw = llama()
  local files = { ["config.json"] = { json = raw }, ["model.safetensors"] = weights() }
  if change then change(raw, files) end
  temps[#temps + 1] = st.folder(files)
  return temps[#temps]
end

local function read(change, whole_rope)
  local source <close> = assert(core.open(folder(change)))
  return config.read(source, nil, whole_rope)
end

local function set(values)
  return function(raw)
    for key, value in pairs(values) do raw[key] = value end
  end
end

-- A list of n equal values.
local function many(value, n)
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

local function load(path, opts)
  opts = opts or {}
  opts.threads, opts.activations, opts.kv = 1, "fp32", "fp32"
  return loader.load(path, opts)
end

describe("config.json", function()
  it("may have the infinite numbers that Python writes", function()
    local cfg = assert(read(function(raw, files)
      local text = core.json_encode(raw, { sort = true })
      files["config.json"] = text:gsub("^{", '{"a": [-Infinity, Infinity], "b": Infinity, "c": "[Infinity]", "d": [0.0, Infinity ],')
    end))
    assert.equal(core.null, cfg.meta "a"[2])
    assert.is_nil(cfg.meta "b")
    assert.equal(16, cfg.d_model)
  end)

  it("takes the keys that it lacks from the recipe", function()
    local source <close> = assert(core.open(folder(function(raw) raw.num_attention_heads, raw.num_key_value_heads = nil, nil end)))
    local _, message = config.read(source)
    assert.matches("key num_attention_heads is missing", message, 1, true)
    local cfg = assert(config.read(source, { num_attention_heads = 8, num_key_value_heads = 4, head_dim = 6, vocab_size = 9 }))
    assert.same({ 8, 4, 6, 20 }, { cfg.n_head, cfg.n_head_kv, cfg.head_dim, cfg.vocab_size })
    assert.same({ 8, 4, 256 }, (function(c) return { c.num_attention_heads, c.num_key_value_heads, c.head_dim } end)(
      require("ane.models.gemma3").config))
  end)

  it("gives the normalised fields", function()
    local path = folder()
    local source <close> = assert(core.open(path))
    assert.equal("llama", config.architecture(source))
    local cfg = assert(config.read(source))
    local want = {
      format = "hf", architecture = "llama", folder = path, n_layer = 1, d_model = 16, d_ff = 24, n_head = 4, n_head_kv = 2, head_dim = 4,
      norm_eps = 1e-5, context_length = 32, vocab_size = 20, act = "silu", tied = true,
    }
    for field, value in pairs(want) do assert.equal(value, cfg[field], field) end
    for _, field in ipairs { "sliding_window", "layer_types", "attention_bias", "mlp_bias", "eos_ids", "bos_id", "ropes", "per_layer" } do
      assert.is_nil(cfg[field], field)
    end
    assert.same({ dims = 4 }, cfg.rope)
    assert.equal("silu", cfg.meta "hidden_act")
    assert.is_nil(cfg.meta "no_such_key")
  end)

  it("reads what may be null or absent", function()
    local cfg = assert(read(set { num_key_value_heads = core.null, head_dim = core.null, rope_scaling = core.null,
      sliding_window = core.null }))
    assert.same({ 4, 4 }, { cfg.n_head_kv, cfg.head_dim })
    assert.equal(3, assert(read(set { head_dim = 3, partial_rotary_factor = 0.67 })).head_dim)
  end)

  it("is found from a file in the folder, too", function()
    local path = folder()
    local source <close> = assert(core.open(path .. "/model.safetensors"))
    assert.equal(path, assert(config.read(source)).folder)
  end)

  --- what, keys, field, value
  local fields = {
    { "the activation under its other name", { hidden_act = core.null, hidden_activation = "gelu_pytorch_tanh" }, "act", "gelu_tanh" },
    { "gelu", { hidden_act = "gelu" }, "act", "gelu_erf" },
    { "gelu_new", { hidden_act = "gelu_new" }, "act", "gelu_tanh" },
    { "swish", { hidden_act = "swish" }, "act", "silu" },
    { "one end token", { eos_token_id = 7 }, "eos_ids", { 7 } },
    { "several end tokens", { eos_token_id = { 7, 9, 7 } }, "eos_ids", { 7, 9 } },
    { "an end token of -1: none", { eos_token_id = -1 }, "eos_ids", nil },
    { "dtype", { dtype = "bfloat16" }, "dtype", "bfloat16" },
    { "torch_dtype", { torch_dtype = "float16" }, "dtype", "float16" },
    { "biases", { attention_bias = true }, "attention_bias", true },
    { "the window", { sliding_window = 5 }, "sliding_window", 5 },
    { "layer types", { layer_types = { "full_attention" } }, "layer_types", { "full_attention" } },
    { "norm_eps", { rms_norm_eps = core.null, norm_eps = 0.5 }, "norm_eps", 0.5 },
  }
  for _, case in ipairs(fields) do
    it("reads " .. case[1], function() assert.same(case[4], assert(read(set(case[2])))[case[3]]) end)
  end

  --- what, keys, rope
  local ropes = {
    { "the old base", { rope_theta = 500 }, { theta = 500, dims = 4 } },
    { "the new dict", { rope_parameters = { rope_type = "default", rope_theta = 500 } }, { theta = 500, dims = 4 } },
    { "the new dict before the old base", { rope_parameters = { rope_theta = 500 }, rope_theta = 3, rope_scaling = core.null },
      { theta = 500, dims = 4 } },
    { "the old dict before the new one",
      { rope_parameters = { rope_theta = 500 }, rope_theta = 3, rope_scaling = { type = "linear", factor = 2 } },
      { theta = 3, dims = 4, scaling = "linear", factor = 2 } },
    { "a part of the head", { partial_rotary_factor = 0.5 }, { dims = 2 } },
    { "a part of the head in the dict", { rope_parameters = { rope_type = "default", partial_rotary_factor = 0.5 } }, { dims = 2 } },
    { "linear", { rope_scaling = { type = "linear", factor = 8.0 } }, { dims = 4, scaling = "linear", factor = 8 } },
    { "the type under its new name", { rope_scaling = { rope_type = "linear", factor = 8 } },
      { dims = 4, scaling = "linear", factor = 8 } },
    { "llama3", { rope_scaling = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
      original_max_position_embeddings = 16 } },
      { dims = 4, scaling = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_context = 16 } },
    { "yarn", { rope_scaling = { type = "yarn", factor = 4, beta_fast = 16, truncate = false, original_max_position_embeddings = 8 } },
      { dims = 4, scaling = "yarn", factor = 4, beta_fast = 16, truncate = false, original_context = 8 } },
    { "yarn that null does not truncate, as in transformers",
      { rope_scaling = { type = "yarn", factor = 4, truncate = core.null, original_max_position_embeddings = 8 } },
      { dims = 4, scaling = "yarn", factor = 4, truncate = false, original_context = 8 } },
    { "yarn without a factor", { rope_scaling = { type = "yarn", original_max_position_embeddings = 8 } },
      { dims = 4, scaling = "yarn", factor = 4, original_context = 8 } },
    { "yarn with its own magnitude",
      { rope_scaling = { type = "yarn", factor = 4, attention_factor = 1.5, mscale = 2, mscale_all_dim = 1 } },
      { dims = 4, scaling = "yarn", factor = 4, attn_factor = 1.5, original_context = 32, mscale_all_dim = 1 } },
    { "yarn with two mscales", { rope_scaling = { type = "yarn", factor = math.exp(10), mscale = 1, mscale_all_dim = 3 } },
      { dims = 4, scaling = "yarn", factor = math.exp(10), attn_factor = 0.5, original_context = 32, mscale_all_dim = 3 } },
    { "longrope", { rope_scaling = { type = "longrope", short_factor = { 1, 2 }, long_factor = { 3, 4 } },
      original_max_position_embeddings = 8 },
      { dims = 4, scaling = "longrope", short_factors = { 1, 2 }, long_factors = { 3, 4 }, factor = 4, original_context = 8 } },
    { "longrope as su", { rope_scaling = { type = "su", short_factor = { 1, 2 }, long_factor = { 3, 4 }, attention_factor = 1.25 } },
      { dims = 4, scaling = "longrope", short_factors = { 1, 2 }, long_factors = { 3, 4 }, factor = 1, attn_factor = 1.25,
        original_context = 32 } },
    { "longrope as yarn", { rope_scaling = { type = "yarn", short_factor = { 1, 2 }, long_factor = { 3, 4 } } },
      { dims = 4, scaling = "longrope", short_factors = { 1, 2 }, long_factors = { 3, 4 }, factor = 1, original_context = 32 } },
    { "dynamic", { rope_scaling = { type = "dynamic", factor = 2 } }, { dims = 4, scaling = "dynamic", factor = 2, limit = 32 } },
    { "dynamic with alpha", { rope_scaling = { type = "dynamic", alpha = 1000.0, factor = 1 } },
      { dims = 4, scaling = "dynamic", alpha = 1000 } },
    { "the base of sliding layers", { rope_local_base_freq = 300 }, { dims = 4, local_theta = 300 } },
  }
  for _, case in ipairs(ropes) do
    it("reads rope: " .. case[1], function()
      local cfg = assert(read(set(case[2])))
      local near = case[3].attn_factor
      if near then
        assert.near(near, cfg.rope.attn_factor, 1e-12)
        cfg.rope.attn_factor = near
      end
      assert.same(case[3], cfg.rope)
    end)
  end

  it("reads a rope for each kind of layer", function()
    local cfg = assert(read(set { rope_parameters = {
      full_attention = { rope_type = "linear", factor = 2, rope_theta = 7 },
      sliding_attention = { rope_theta = 8, partial_rotary_factor = 0.5 },
    } }))
    assert.same({ full_attention = { theta = 7, dims = 4, scaling = "linear", factor = 2 }, sliding_attention = { theta = 8, dims = 2 } },
      cfg.ropes)
    assert.equal(cfg.ropes.full_attention, cfg.rope)
  end)

  it("ignores keys of a rope beside those of the kinds of layers", function()
    local cfg = assert(read(set { rope_parameters = {
      rope_type = "yarn", factor = 4, rope_theta = 9, original_max_position_embeddings = 8, short_factor = { 1 },
      full_attention = { rope_theta = 7 }, sliding_attention = { rope_theta = 8 },
    } }))
    assert.same({ full_attention = { theta = 7, dims = 4 }, sliding_attention = { theta = 8, dims = 4 } }, cfg.ropes)
  end)

  -- As transformers 5.24 does: compute_default_rope_parameters of llama, qwen2, mistral and others takes head_dim, and the other rope
  -- types give tables of half the width, with which the product of the heads raises.
  it("rotates whole heads for a recipe that says so", function()
    for _, where in ipairs { "rope_parameters", "top" } do
      for _, kind in ipairs { "default", "linear" } do
        local p = { rope_type = kind, rope_theta = 500, factor = kind == "linear" and 2 or nil }
        local keys = { rope_parameters = p }
        local at = where == "top" and keys or p
        at.partial_rotary_factor = 0.5
        local rope = assert(read(set(keys), true)).rope
        if kind == "default" then
          assert.same({ theta = 500, dims = 4 }, rope)
        else
          assert.equal("unsupported", rope.fault.code)
          assert.matches("partial_rotary_factor 0.5 with rope type 'linear': heads of 'llama' are rotated as a whole", rope.fault.message)
        end
        at.partial_rotary_factor = 1
        assert.is_nil(assert(read(set(keys), true)).rope.fault)
      end
    end
  end)

  it("leaves it to the recipe whether an odd part of a head is a fault", function()
    local fault = assert(read(set { partial_rotary_factor = 0.75 })).rope.fault
    assert.equal("format", fault.code)
    assert.matches("config.json: partial_rotary_factor 0.75 of a head of 4 gives 3 rotary dimensions", fault.message)
  end)

  it("adds the end tokens of generation_config.json", function()
    local function ends(generation)
      return assert(read(function(raw, files)
        raw.eos_token_id = 3
        files["generation_config.json"] = { json = generation }
      end)).eos_ids
    end
    assert.same({ 3, 5 }, ends { eos_token_id = { 5, 3 } })
    assert.same({ 3, 6 }, ends { eos_token_id = 6 })
    assert.same({ 3 }, ends { top_k = 1 })
  end)

  local known = "dynamic, linear, llama3, longrope, proportional, su, yarn"
  --- what, keys, message, code ("format" where not given)
  local faults = {
    { "a missing size", { hidden_size = core.null }, "key hidden_size is missing" },
    { "too many letters", { hybrid_override_pattern = ("M"):rep(4097) },
      "key hybrid_override_pattern must describe 1 to 4096 layers, but describes 4097" },
    { "no letters", { hybrid_override_pattern = "" }, "key hybrid_override_pattern must describe 1 to 4096 layers, but describes 0" },
    { "too many kinds of layers", { layers_block_type = many("mamba", 4097) },
      "key layers_block_type must describe 1 to 4096 layers, but describes 4097" },
    { "a size of 0", { num_hidden_layers = 0 }, "key num_hidden_layers must be a whole number from 1 to 4096, but is 0" },
    { "a size with a fraction", { num_attention_heads = 1.5 },
      "key num_attention_heads must be a whole number from 1 to 65536, but is 1.5" },
    { "a size that is a string", { vocab_size = "20" }, "key vocab_size must be a number, but is '20'" },
    { "a huge size", { hidden_size = 1 << 40 }, "key hidden_size must be a whole number from 1 to 1048576, but is 1099511627776" },
    { "no architecture", { model_type = core.null }, "key model_type is missing: it must be the name of an architecture" },
    { "an architecture that is a number", { model_type = 3 }, "key model_type must be a string, but is 3" },
    { "a flag that is a string", { tie_word_embeddings = "yes" }, "key tie_word_embeddings must be true or false, but is 'yes'" },
    { "an unknown activation", { hidden_act = "relu2" },
      "key hidden_act: activation 'relu2' is not known; known are: gelu, gelu_fast, gelu_new, gelu_python, gelu_pytorch_tanh, relu, silu, "
        .. "swish", "unsupported" },
    { "quantised weights", { quantization_config = { quant_method = "gptq", bits = 4 } },
      "key quantization_config: weights quantised by 'gptq' are not known; known are mxfp4 and plain weights", "unsupported" },
    { "images besides text", { text_config = { hidden_size = 3 } }, "key text_config: 'llama' takes more than text", "unsupported" },
    { "layer types for other layers", { layer_types = { "full_attention", "full_attention" } },
      "key layer_types has 2 words, but must have one for each of 1 layers" },
    { "layer types that are not words", { layer_types = { 1 } }, "key layer_types[0] must be a string, but is 1" },
    { "an unknown rope type", { rope_scaling = { type = "sphere" } },
      "key rope_scaling.type: rope type 'sphere' is not known; known are: default, " .. known,
      "unsupported" },
    { "an unknown rope type of a kind of layer", { rope_parameters = { full_attention = { rope_type = "mrope" } } },
      "key rope_parameters.full_attention.rope_type: rope type 'mrope' is not known; known are: default, " .. known, "unsupported" },
    { "a rope that is a string", { rope_scaling = "linear" }, "key rope_scaling must be an object or null, but is 'linear'" },
    { "a rope type that is a number", { rope_scaling = { type = 3 } }, "key rope_scaling.type must be a string, but is 3" },
    { "linear without a factor", { rope_scaling = { type = "linear" } }, "key rope_scaling.factor is missing" },
    { "llama3 without bounds", { rope_scaling = { type = "llama3", factor = 8, low_freq_factor = 1 } },
      "key rope_scaling.high_freq_factor is missing" },
    { "longrope without factors", { rope_scaling = { type = "longrope", short_factor = { 1, 1 } } },
      "key rope_scaling.long_factor is missing" },
    { "longrope with too many factors", { rope_scaling = { type = "longrope", short_factor = { 1, 1 }, long_factor = { 1, 1, 1 } } },
      "key rope_scaling.long_factor has 3 numbers, but must have 2: half the rotary dimensions" },
    { "longrope with factors that are none", { rope_scaling = { type = "longrope", short_factor = { 1, "x" }, long_factor = { 1, 1 } } },
      "key rope_scaling.short_factor[1] must be a number, but is 'x'" },
    { "no epsilon of the norms", { rms_norm_eps = core.null }, "key rms_norm_eps must be a number above 0, but is null" },
    { "heads that do not divide", { num_key_value_heads = 3 },
      "key num_attention_heads must be a multiple of num_key_value_heads (3), but is 4" },
    { "a negative epsilon of the norms", { rms_norm_eps = -1e-5 }, "key rms_norm_eps must be a number above 0, but is -1e-05" },
    { "an end token with a fraction", { eos_token_id = { 1.5 } }, "key eos_token_id has the entry 1.5, but must have whole numbers" },
    { "an end token that is a string", { eos_token_id = "</s>" }, "key eos_token_id must be a number, but is '</s>'" },
  }
  for _, case in ipairs(faults) do
    it("refuses " .. case[1], function()
      local cfg, message, code = read(set(case[2]))
      assert.is_nil(cfg)
      local path = temps[#temps] .. "/config.json: "
      assert.equal(path .. case[3], message:sub(1, #path + #case[3]))
      assert.equal(case[4] or "format", code)
    end)
  end

  --- what, text, message
  local texts = {
    { "broken JSON", '{"model_type": "llama",}', "/config.json: line 1, column 24: " },
    { "a key twice", '{"hidden_size": 1, "hidden_size": 2}', "the name appears twice in the object" },
    { "a list", "[1]", "/config.json: is not a JSON object" },
    { "a number", "3", "/config.json: is not a JSON object" },
    { "false", "false", "/config.json: is not a JSON object" },
    { "ten thousand brackets", ("["):rep(10000), "nested too deeply" },
  }
  for _, case in ipairs(texts) do
    it("refuses " .. case[1], function()
      local cfg, message, code = read(function(_, files) files["config.json"] = case[2] end)
      assert.is_nil(cfg)
      assert.truthy(message:find(case[3], 1, true), message)
      assert.equal("format", code)
    end)
  end

  it("must exist", function()
    local cfg, message, code = read(function(_, files) files["config.json"] = nil end)
    assert.is_nil(cfg)
    assert.matches("no configuration .*a config.json must be beside the weights", message)
    assert.equal("notfound", code)
  end)
end)

describe("loading a folder", function()
  it("gives a program that runs", function()
    local b = assert(load(folder(set { eos_token_id = 4 })))
    assert.equal(32, b.context)
    assert.equal(20, b.program:vocab())
    assert.same({ 4 }, b.eos_ids)
    assert.is_nil(b.tokenizer)
    assert.is_string(b.tokenizer_error)
    local s <close> = assert(b.program:session { context = 32, kv = "fp32" })
    assert(s:feed({ 1, 2, 3 }, "all"))
  end)

  -- The value of greedy tokens says which weights were used.
  local function first(change, opts)
    local b = assert(load(folder(change), opts))
    local s <close> = assert(b.program:session { context = 32, kv = "fp32" })
    assert(s:feed({ 1, 2, 3 }, "last"))
    return s:logits(1):totable()
  end

  local function add(name, ...)
    local t = tensor(name, ...)
    return function(raw, files) table.insert(files["model.safetensors"].tensors, t) return raw end
  end

  it("decides by the configuration whether the head is the embedding", function()
    local head = add("lm_head.weight", 20, 16)
    local tied = first()
    local untied = first(function(raw, files) raw.tie_word_embeddings = false head(raw, files) end)
    assert.not_same(tied, untied)
    -- As in transformers: what is stored is the embedding once more, or the configuration is wrong.
    local function again(raw, files)
      head(raw, files)
      local list = files["model.safetensors"].tensors
      list[#list] = { name = "lm_head.weight", dtype = "F32", shape = { 20, 16 }, data = list[1].data }
    end
    assert.same(tied, first(again))
    assert.same(untied, first(head))
    local b, message = load(folder(set { tie_word_embeddings = false }))
    assert.is_nil(b)
    assert.matches("no tensor lm_head.weight", message)
  end)

  it("takes the original context of a rope from the top before the dict, as in transformers", function()
    local p = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8 }
    local low = first(set { rope_parameters = p })
    p.original_max_position_embeddings = 64
    local high = first(set { rope_parameters = p })
    assert.not_same(low, high)
    assert.same(low, first(set { rope_parameters = p, original_max_position_embeddings = 8 }))
  end)

  it("adds biases where the configuration says so", function()
    local l = "model.layers.0.self_attn."
    local function biased(raw, files)
      raw.attention_bias = true
      for name, n in pairs { q = 16, k = 8, v = 8, o = 16 } do add(l .. name .. "_proj.bias", n)(raw, files) end
    end
    assert.not_same(first(), first(biased))
    local b, message = load(folder(set { attention_bias = true }))
    assert.is_nil(b)
    assert.matches("layers.0: no tensor model.layers.0.self_attn.q_proj.bias", message)
    b, message = load(folder(function(raw, files) biased(raw, files) raw.attention_bias = false end))
    assert.is_nil(b)
    assert.matches("self_attn.[qkvo]_proj.bias is not used by the recipe for llama", message)
  end)

  it("leaves out buffers of old files", function()
    assert.same(first(), first(add("model.layers.0.self_attn.rotary_emb.inv_freq", 2)))
  end)

  it("refuses keys that change the result and that the recipe does not compute", function()
    for key, value in pairs { final_logit_softcapping = 30, residual_multiplier = 0.2, is_causal = false,
      use_bidirectional_attention = true } do
      local b, message, code = load(folder(set { [key] = value }))
      assert.is_nil(b)
      assert.matches(("/config.json: key %s is %s, which the recipe for llama does not compute"):format(key, value), message, 1, true)
      assert.equal("unsupported", code)
    end
    local neutral = {
      final_logit_softcapping = core.null, residual_multiplier = 1.0, is_causal = true, use_bidirectional_attention = false,
      use_cache = true, attention_dropout = 0.0, some_key_of_tomorrow = { 1 },
    }
    assert.same(first(), first(set(neutral)))
  end)

  it("keeps plain dynamic rope within the positions for which it is computed", function()
    local dynamic = set { rope_scaling = { type = "dynamic", factor = 2.0 } }
    assert(load(folder(dynamic)))
    local b, message, code = load(folder(dynamic), { context = 33 })
    assert.is_nil(b)
    assert.matches("option context is 33, but rope type dynamic is computed for at most 32 positions", message)
    assert.equal("unsupported", code)
  end)

  it("names a role that has no tensor name in such files", function()
    local recipe = { architectures = { "llama" }, build = function(b) return b:linear(b:embed "token_embd", "nonsense") end }
    local b, message = load(folder(), { recipe = recipe })
    assert.is_nil(b)
    assert.matches("role nonsense has no tensor name in Hugging Face files: the recipe's names.hf must give one", message, 1, true)
  end)

  it("refuses an unknown activation of a recipe, also where the configuration has one", function()
    local ffn = require "ane.recipe.ffn"
    local recipe = { architectures = { "llama" }, build = function(b) return ffn.gated(b, b:embed "token_embd", "silou") end }
    local b, message = load(folder(), { recipe = recipe })
    assert.is_nil(b)
    assert.matches("ffn.gated: activation silou is unknown; known are: silu, gelu_tanh, gelu_erf, sigmoid", message, 1, true)
  end)

  it("takes a recipe's own names, defaults and keys", function()
    local seen
    local recipe = {
      architectures = { "llama" }, names = { hf = { token_embd = "model.norm" } },
      defaults = { hf = { norm_eps = 9, norm_offset = 1, rope = { layout = "interleaved" }, keys = { alpha = 5, hidden_act = "x" } } },
      build = function(_, cfg) seen = cfg error "enough" end,
    }
    assert.is_nil((load(folder(), { recipe = recipe })))
    assert.same({ 1e-5, 1, "interleaved", 5, "silu" },
      { seen.norm_eps, seen.norm_offset, seen.rope.layout, seen.meta "alpha", seen.meta "hidden_act" })
    assert.equal(10000.0, seen.rope.theta)
  end)

  it("finds the recipe that lists the name of an architecture", function()
    local b, message, code = load(folder(set { model_type = "gemma3_text" }))
    assert.is_nil(b)
    assert.matches("no tensor model.layers.0.self_attn.q_norm.weight in ", message, 1, true)
    assert.equal("shape", code)
    b, message, code = load(folder(set { model_type = "mystery" }))
    assert.is_nil(b)
    assert.matches("architecture 'mystery' is not known; known are: .*gemma3, gemma3_text, .*hunyuan%-dense, .*llama", message)
    assert.equal("unsupported", code)
  end)

  it("refuses kinds of layers that the recipe does not know", function()
    local b, message = load(folder(set { model_type = "qwen2", layer_types = { "chunked_attention" } }))
    assert.is_nil(b)
    assert.matches("layer_types[0] is 'chunked_attention'; known are: full_attention, sliding_attention", message, 1, true)
    b, message = load(folder(set { model_type = "qwen2", layer_types = { "sliding_attention" }, sliding_window = core.null }))
    assert.is_nil(b)
    assert.matches("layer 0 has sliding attention, but sliding_window is missing or 0", message, 1, true)
  end)
end)

describe("GGUF metadata with one number a layer", function()
  local function open(kv, ff)
    local path = gguf.write(gguf.temp(), { values = {
      { "general.architecture", "string", "many" }, { "many.block_count", "uint32", 3 }, { "many.embedding_length", "uint32", 16 },
      { "many.attention.head_count", "uint32", 4 }, { "many.attention.head_count_kv", "array", { "int32", kv } },
      { "many.feed_forward_length", "array", { "uint32", ff } },
      { "many.attention.layer_norm_rms_epsilon", "float32", 1e-5 }, { "tokenizer.ggml.eos_token_id", "uint32", 7 },
    } })
    temps[#temps + 1] = path
    local source <close> = assert(core.open(path))
    return config.read(source)
  end

  it("gives the largest and the list", function()
    local cfg = assert(open({ 0, 2, 0 }, { 24, 24, 24 }))
    assert.equal(2, cfg.n_head_kv)
    assert.same({ n_head_kv = { 0, 2, 0 } }, cfg.per_layer)
    assert.equal("many.attention.head_count_kv", cfg.key_of "n_head_kv")
    assert.equal(24, cfg.d_ff)
    assert.same({ 7 }, cfg.eos_ids)
  end)

  it("is refused where the lists do not fit", function()
    for _, case in ipairs {
      { { 0, 0, 0 }, { 1, 1, 1 }, "metadata key many.attention.head_count_kv is 0 for all layers" },
      { { 2, 2 }, { 1, 1, 1 }, "metadata key many.attention.head_count_kv has 2 numbers, but must have one for each of 3 layers" },
      { { 2, -1, 2 }, { 1, 1, 1 }, "metadata key many.attention.head_count_kv[1] must be a whole number from 0 to 65536, but is -1" },
      { { 2, 2, 2 }, { 8, 0 }, "metadata key many.feed_forward_length has 2 numbers" },
    } do
      local cfg, message, code = open(case[1], case[2])
      assert.is_nil(cfg)
      assert.truthy(message:find(case[3], 1, true), message)
      assert.equal("format", code)
    end
  end)
end)

describe("GGUF metadata of a rope", function()
  local function read_gguf(type, ...)
    local values = {
      { "general.architecture", "string", "many" }, { "many.block_count", "uint32", 1 }, { "many.embedding_length", "uint32", 16 },
      { "many.attention.head_count", "uint32", 4 }, { "many.feed_forward_length", "uint32", 24 },
      { "many.attention.layer_norm_rms_epsilon", "float32", 1e-5 }, { "many.rope.scaling.type", "string", type },
      { "many.rope.scaling.factor", "float32", 4 }, { "many.rope.scaling.original_context_length", "uint32", 8 },
    }
    local path = gguf.write(gguf.temp(), { values = table.move({ ... }, 1, select("#", ...), #values + 1, values) })
    temps[#temps + 1] = path
    local source <close> = assert(core.open(path))
    return assert(config.read(source)).rope
  end

  it("gives the magnitude of yarn, which config.json calls attention_factor", function()
    local own = { "many.rope.scaling.yarn_attn_factor", "float32", 1.5 }
    assert.same({ theta = 10000, dims = 4, scaling = "yarn", factor = 4, original_context = 8, attn_factor = 1.5 }, read_gguf("yarn", own))
    assert.is_nil(read_gguf("yarn").attn_factor)
    assert.is_nil(read_gguf("linear", own).attn_factor)
  end)
end)
