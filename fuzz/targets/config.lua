--- config.json, with the weights of the fixture that the first line names: what recipes read and build.
local core = require "ane.core"
local mutate_json = require "lib.mutate_json"
local scratch = require "lib.scratch"
local use = require "lib.use"

local M = {}

local HF = "spec/fixtures/hf/"

-- Small fixtures of different blocks. An unknown name stands for the first one.
local FIXTURES = {
  "starcoder2-odd", "mamba2_clamp-odd", "privacy_filter-odd", "zaya_bias-odd", "lfm2-odd", "lfm2_moe-odd", "olmo2-odd", "cohere-odd",
  "qwen2_moe_window-odd", "granite-odd", "nemotron_h-odd", "granitemoehybrid_dense-odd", "ministral3-odd", "gpt_oss_mxfp4-odd",
  "deepseek_v2-odd", "qwen3_5_narrow-odd", "falcon_h1-odd", "glm4_moe_lite-odd", "gemma3n-odd", "gemma4-odd", "bert", "bert_labels-odd",
  "cross_encoder", "modernbert", "nomic_bert", "xlm_roberta", "embedding_gemma", "gemma3_score-odd", "gemma2-odd", "mixtral_window-odd",
  "olmoe-odd", "glm4_moe-odd", "ernie4_5_moe-odd", "seed_oss-odd",
}

local WORDS = {
  "linear", "dynamic", "yarn", "longrope", "llama3", "default", "rope_type", "factor", "full_attention", "sliding_attention", "silu",
  "gelu",
  "relu2", "gelu_pytorch_tanh", "rope_parameters", "rope_scaling", "partial_rotary_factor", "sliding_window", "layer_types", "mamba", "moe",
  "head_dim", "num_key_value_heads", "tie_word_embeddings", "attention_bias", "quantization_config", "gptq", "awq", "mxfp4", "eos_token_id",
  "torch_dtype", "model_type", "architectures", "num_local_experts", "num_experts_per_tok", "n_group", "topk_group",
  "hybrid_override_pattern", "first_k_dense_replace", "moe_layer_interval", "use_bias", "attention_out_bias", "final_logit_softcapping",
}
M.words = WORDS

local config = mutate_json.mutator(WORDS)

function M.mutate(data, most, random, bytes)
  local line, text = data:match "^([^\n]*)\n(.*)$"
  if not line then return bytes(data, most) end
  if random(20) == 0 then line = FIXTURES[1 + random(#FIXTURES)] end
  return line .. "\n" .. config(text, most - #line - 1, random, bytes)
end

local folders = {}

-- The folder with the weights of a fixture.
local function folder_of(name)
  if not folders[name] then
    folders[name] = scratch.folder("config/" .. name)
    scratch.write("config/" .. name .. "/model.safetensors", scratch.read(HF .. name .. "/model.safetensors"))
  end
  return folders[name]
end

function M.run(data)
  local name, text = data:match "^([^\n]*)\n(.*)$"
  local known = FIXTURES[1]
  for _, fixture in ipairs(FIXTURES) do
    if fixture == name then known = name end
  end
  local folder = folder_of(known)
  assert(core.write_file(folder .. "/config.json", text or data))
  use.model(folder, data)
end

function M.seeds()
  local out = {}
  for i, name in ipairs(FIXTURES) do out[i] = { name, name .. "\n" .. scratch.read(HF .. name .. "/config.json") } end
  return out
end

return M
