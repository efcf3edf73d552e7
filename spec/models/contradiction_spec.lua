-- Configurations that contradict the tensors, or ask for what a recipe does not compute: they are refused, not computed in another way.
local ane = require "ane"
local core = require "ane.core"
local hf = require "support.hf"

local function refusal(name, change)
  local path <close> = hf.changed(name, change)
  local model, message, code = ane.load(path.name)
  assert.is_nil(model)
  return message, code
end

describe("a configuration that contradicts the file", function()
  it("has another number of experts", function()
    for name, key in pairs {
      ["gpt_oss-odd"] = "num_local_experts", ["gpt_oss_mxfp4-odd"] = "num_local_experts", ["zaya-odd"] = "num_experts",
      ["granitemoehybrid-odd"] = "num_local_experts", ["privacy_filter-odd"] = "num_local_experts",
      ["qwen3_5_moe_stacked-odd"] = "num_experts",
    } do
      local had
      local message = refusal(name, function(cfg)
        local part = cfg[key] and cfg or cfg.text_config
        had = part[key]
        part[key] = had - 1
        local topk = part.num_experts_per_tok
        if topk and topk > had - 1 then part.num_experts_per_tok = had - 1 end
      end)
      local what = ("tensor %%S+ has %d experts, but must have %d according to the configuration"):format(had, had - 1)
      assert.matches(what, message)
    end
  end)

  it("has another width than the embedding", function()
    for _, name in ipairs { "gemma3", "smollm3-odd", "qwen3-odd" } do
      local message, code = refusal(name, function(cfg) cfg.hidden_size = cfg.hidden_size + 1 end)
      assert.matches("the embedding has %d+ columns, but must have %d+ according to the configuration", message)
      assert.equal("shape", code)
    end
  end)

  it("has other sizes of latent attention", function()
    for _, name in ipairs { "deepseek_v2-odd", "deepseek_v3-odd", "glm4_moe_lite-odd" } do
      for _, key in ipairs { "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "q_lora_rank", "num_attention_heads" } do
        for _, by in ipairs { -2, 2 } do
          local has
          local function change(cfg)
            has = type(cfg[key]) == "number"
            if not has then return end
            cfg[key] = cfg[key] + by
            if key == "num_attention_heads" then cfg.num_key_value_heads = cfg[key] end
          end
          local path <close> = hf.changed(name, change)
          local model, message = ane.load(path.name)
          assert.equal(has, model == nil, name .. " " .. key)
          if model then
            model:close() else assert.matches("tensor %S+ has %d+ rows, but must have %d+ according to the configuration", message)
          end
        end
      end
    end
  end)

  it("has lists of another length", function()
    for _, case in ipairs {
      { "falcon_h1-odd", "ssm_multipliers", "ssm_multipliers has 4 numbers, but must have 5" },
      { "falcon_h1-odd", "mlp_multipliers", "mlp_multipliers has 1 numbers, but must have 2" },
      { "gemma3n-odd", "activation_sparsity_pattern", "activation_sparsity_pattern has 4 numbers, but must have one for each of 5 layers" },
      { "gemma3n-odd", "intermediate_size", "key intermediate_size has 4 numbers, but must have one for each of 5 layers" },
      { "zaya_original-odd", "swa_layers", "swa_layers has 5 numbers, but must have one for each of 6 layers" },
      { "falcon_h1_normed-odd", "time_step_limit", "time_step_limit must be a list of two numbers, but is a list of 1" },
      { "granitemoehybrid_limits-odd", "time_step_limit", "time_step_limit must be a list of two numbers, but is a list of 1" },
    } do
      local name, key, what = table.unpack(case)
      local message = refusal(name, function(cfg) table.remove(cfg[key]) end)
      assert.matches(what, message, 1, true)
    end
    assert.matches("time_step_limit must be a list of two numbers, but is a list of 3", refusal("mamba2_clamp-odd",
      function(cfg) table.insert(cfg.time_step_limit, 2) end))
  end)

  it("has lists in place of ropes of kinds of layers", function()
    local message = refusal("gemma3n-odd", function(cfg)
      cfg.rope_parameters = { full_attention = { 5000 }, sliding_attention = { 1000 } }
    end)
    assert.matches("key rope_parameters.%a+_attention must be an object, but is a list", message)
    message = refusal("olmo3-odd", function(cfg) cfg.rope_parameters.sliding_attention = { 5000 } end)
    assert.matches("key rope_parameters.sliding_attention must be an object, but is a list", message, 1, true)
  end)

  it("has values of another kind", function()
    local message = refusal("llama_score-odd", function(cfg) cfg.eos_token_id = core.json_object {} end)
    assert.matches("key eos_token_id must be a list, but is an object", message)
    message = refusal("qwen3-odd", function(cfg) cfg.rope_parameters, cfg.rope_scaling = core.json_array { 1 }, core.null end)
    assert.matches("key rope_parameters must be an object or null, but is a list", message)
    message = refusal("ministral3-odd", function(cfg) cfg.rope_parameters.llama_4_scaling_beta = "0.1" end)
    assert.matches("key rope_parameters.llama_4_scaling_beta must be a number, but is '0.1'", message)
    message = refusal("ministral3-odd", function(cfg)
      cfg.rope_parameters = { rope_theta = 1e4, original_max_position_embeddings = 1.5 }
    end)
    assert.matches("key rope_parameters.original_max_position_embeddings must be a whole number from 1 to 2147483648, but is 1.5", message)
    message = refusal("deepseek_v3-odd", function(cfg)
      cfg.rope_scaling, cfg.rope_parameters = nil, { rope_type = "linear", factor = 2, mscale_all_dim = "1", rope_theta = 1e4 }
    end)
    assert.matches("key rope_parameters.mscale_all_dim must be a number, but is '1'", message)
  end)

  it("has rows that the tensors lack", function()
    local message = refusal("qwen3_5_moe_stacked-odd", function(cfg)
      local part = cfg.text_config or cfg
      part.moe_intermediate_size = 2 * part.moe_intermediate_size
    end)
    assert.matches("layers.0: tensor %S+experts.gate_up_proj: option from must be an integer in 0 .. %d+, but is %d+", message)
    message = refusal("zaya-odd", function(cfg) cfg.head_dim = 2 * cfg.head_dim end)
    assert.matches("layers.0.slice: channels 0 to 96 of layers.0.conv1, which has 72", message)
    message = refusal("qwen3_5-odd", function(cfg)
      local part = cfg.text_config or cfg
      part.head_dim = 2 * part.head_dim
    end)
    assert.matches("channels %d+ to %d+ of a head of layers.3.%S+, which has %d+", message)
  end)

  it("has a soft cap of 0, which makes all logits 0", function()
    for _, name in ipairs { "gemma3_softcap", "gemma3n-odd", "gemma4-odd" } do
      local message = refusal(name, function(cfg) (cfg.text_config or cfg).final_logit_softcapping = 0 end)
      assert.matches("final_logit_softcapping must be a number above 0, but is 0", message)
    end
  end)

  it("has a window of 0 in layers that slide", function()
    for _, name in ipairs { "gemma3n-odd", "gemma4-odd" } do
      for _, value in ipairs { 0, core.null } do
        local message = refusal(name, function(cfg) (cfg.text_config or cfg).sliding_window = value end)
        assert.matches("layer 0 has sliding attention, but sliding_window is missing or 0", message, 1, true)
      end
    end
  end)

  it("has biases that the configuration denies", function()
    local message = refusal("qwen2_moe-odd", function(cfg) cfg.qkv_bias = false end)
    assert.matches("tensor model.layers.0.self_attn.[qkv]_proj.bias is not used by the recipe for qwen2_moe", message)
    message = refusal("lfm2_moe-odd", function(cfg) cfg.use_expert_bias = false end)
    assert.matches("tensor model.layers.%d.feed_forward.expert_bias is not used by the recipe for lfm2_moe", message)
  end)

  it("has more experts per token than the groups that it keeps", function()
    local message, code = refusal("deepseek_v3-odd", function(cfg) cfg.topk_group = 1 end)
    assert.matches("layers.1.route: the experts of a token must be at most 2, those of 1 of 4 groups, but are 3", message, 1, true)
    assert.equal("shape", code)
  end)

  it("has more experts per token than ZAYA1", function()
    assert.matches("2 experts per token, ZAYA1 has 1", (refusal("zaya-odd", function(cfg) cfg.num_experts_per_tok = 2 end)))
  end)

  it("lies beside a modules.json that is none", function()
    local path <close> = hf.changed("qwen3-odd", function() end)
    assert(core.write_file(path.name .. "/modules.json", '{"a":['))
    finally(function() os.remove(path.name .. "/modules.json") end)
    local model, message, code = ane.load(path.name)
    assert.same({ nil, "format" }, { model, code })
    assert.matches(path.name .. "/modules.json: ", message, 1, true)
    for text, what in pairs {
      ["[1]"] = "/modules.json[0] must be an object with a type, but is 1", ["{}"] = "/modules.json must be a list, but is an object",
      ['[{"type":3}]'] = "/modules.json[0] must be an object with a type, but is an object",
        ["3"] = "/modules.json must be a list, but is 3",
    } do
      assert(core.write_file(path.name .. "/modules.json", text))
      model, message, code = ane.load(path.name)
      assert.same({ nil, "format" }, { model, code })
      assert.matches(path.name .. what, message, 1, true)
    end
  end)
end)

describe("generate_many of a model that generates nothing", function()
  it("gives the message of the pool", function()
    local model <close> = assert(ane.load(hf.path "bert"))
    local replies, message, code = model:generate_many { { 3, 4 } }
    assert.same({ nil, "unsupported" }, { replies, code })
    assert.matches("embedding", message)
  end)
end)

describe("a model that computes no numbers", function()
  -- A copy whose tensor `name` holds this number, as bytes.
  local function broken(from, name, number)
    return hf.changed(from, nil, function(t)
      if t.name == name then t.data = number:rep(#t.data // #number) end
      return t
    end)
  end

  it("gives an error, not an embedding", function()
    local path <close> = broken("bert", "encoder.layer.1.output.LayerNorm.weight", ("<f"):pack(3e38))
    local model <close> = assert(ane.load(path.name))
    local v, message, code = model:embed { { 3, 4 }, { 5, 6 } }
    assert.same({ nil, "entry 1: the model gives numbers that are not finite", "invalid" }, { v, message, code })
  end)

  it("gives an error, not a score", function()
    local path <close> = broken("cross_encoder", "classifier.weight", ("<f"):pack(3e38))
    local model <close> = assert(ane.load(path.name))
    local scores, message, code = model:rerank(nil, { { 3, 4 }, { 5, 6 } })
    assert.same({ nil, "document 1: the model gives a score that is not finite", "invalid" }, { scores, message, code })
  end)
end)

describe("a classifier without numbers", function()
  it("is an error, not a text without spans", function()
    local source = "privacy_filter-odd"
    local path <close> = hf.changed(source, function() end)
    local data = assert(core.read_file(path.name .. "/model.safetensors"))
    local header = ("<I8"):unpack(data)
    local list = assert(core.json_decode(data:sub(9, 8 + header)))
    local at = list["model.norm.weight"].data_offsets
    local first, last = 9 + header + at[1], 8 + header + at[2]
    os.remove(path.name .. "/model.safetensors") -- a link, maybe
    -- The largest bf16: the normed states are infinite.
    local broken = data:sub(1, first - 1) .. ("\x7F"):rep(last - first + 1) .. data:sub(last + 1)
    assert(core.write_file(path.name .. "/model.safetensors", broken))
    local model <close> = assert(ane.load(path.name))
    local spans, message, code = model:classify { 3, 4, 5 }
    assert.same({ nil, "invalid" }, { spans, code })
    assert.matches("all scores of token 1 are not numbers", message)
    local all, failed = model:classify_many { { 3, 4, 5 }, { 6, 7 } }
    assert.same({ false, false }, all)
    assert.matches("all scores of token 1 are not numbers", failed[2][1])
  end)
end)
