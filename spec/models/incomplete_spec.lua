-- Files that lack a tensor which transformers' model of the family always has: they are refused by the tensor's name, never computed
-- without it. And the masked-language-model head of ModernBERT, which is no classifier.
local ane = require "ane"
local core = require "ane.core"
local hf = require "support.hf"
local safetensors = require "support.safetensors"
local st = require "support.safetensors_writer"

-- A folder with the tensors of a fixture that keep(name) keeps, and more tensors.
local function copy(name, keep, more)
  local tensors = more or {}
  for tensor, t in pairs(safetensors.all(hf.path(name) .. "/model.safetensors")) do
    if keep(tensor) then tensors[#tensors + 1] = { name = tensor, dtype = t.dtype, shape = t.shape, data = t.data } end
  end
  local config = assert(core.read_file(hf.path(name) .. "/config.json"))
  return setmetatable({ path = st.folder { ["config.json"] = config, ["model.safetensors"] = { tensors = tensors } } },
    { __close = function(self) st.remove(self.path) end })
end

local LACKING = {
  { "bert", "embeddings.LayerNorm.bias" }, { "bert", "embeddings.token_type_embeddings.weight" },
  { "bert", "encoder.layer.1.attention.self.key.bias" }, { "bert", "encoder.layer.1.output.dense.bias" },
  { "cross_encoder", "bert.pooler.dense.weight" }, { "cross_encoder", "bert.pooler.dense.bias" }, { "cross_encoder", "classifier.bias" },
  { "cross_encoder_xlmr", "classifier.dense.weight" }, { "cross_encoder_xlmr", "classifier.out_proj.weight" },
  { "nomic_bert", "embeddings.token_type_embeddings.weight" },
  { "modernbert", "layers.1.attn_norm.weight" },
  { "starcoder2-odd", "model.layers.1.input_layernorm.bias" }, { "starcoder2-odd", "model.norm.bias" },
  { "falcon_h1-odd", "model.layers.1.mamba.conv1d.bias" }, { "gpt_oss-odd", "model.layers.1.mlp.router.bias" },
  { "deepseek_v3-odd", "model.layers.1.mlp.gate.e_score_correction_bias" },
  { "nemotron_h-odd", "backbone.layers.1.mixer.gate.e_score_correction_bias" },
}

describe("a file that lacks a tensor", function()
  for _, case in ipairs(LACKING) do
    local name, tensor = table.unpack(case)
    it(("is refused by its name: %s without %s"):format(name, tensor), function()
      local held
      local folder <close> = copy(name, function(t)
        held = held or t == tensor
        return t ~= tensor
      end)
      assert.is_true(held)
      local model, message = ane.load(folder.path)
      assert.is_nil(model)
      assert.matches(("no tensor " .. tensor):gsub("%p", "%%%0"), message)
    end)
  end
end)

-- All tensors of a kind, which the configuration says the file has: {folder, ending of their names}.
local BIASES = {
  { "nemotron_h-odd", "mixer.conv1d.bias" }, { "nemotron_h_latent-odd", "mixer.in_proj.bias" },
  { "nemotron_h_latent-odd", "shared_experts.up_proj.bias" }, { "nemotron_h_latent-odd", "shared_experts.down_proj.bias" },
  { "nemotron_h_latent-odd", "fc1_latent_proj.bias" }, { "nemotron_h_latent-odd", "fc2_latent_proj.bias" },
  { "mamba2-odd", "conv1d.bias" }, { "mamba2_clamp-odd", "out_proj.bias" }, { "falcon_h1-odd", "conv1d.bias" },
  { "falcon_h1_normed-odd", "in_proj.bias" }, { "granitemoehybrid-odd", "conv1d.bias" },
}

describe("a file without the biases of its configuration", function()
  for _, case in ipairs(BIASES) do
    local name, ending = table.unpack(case)
    it(("is refused: %s without %s"):format(name, ending), function()
      local folder <close> = copy(name, function(t) return t:sub(-#ending) ~= ending end)
      local model, message = ane.load(folder.path)
      assert.is_nil(model)
      assert.matches("no tensor %S+" .. ending:gsub("%p", "%%%0"), message)
    end)
  end
end)

describe("Nemotron with experts, as GGUF", function()
  it("names the key of their number", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local bytes, n = assert(core.read_file "spec/fixtures/gguf/nemotron_h-odd.gguf"):gsub("%.expert_count", ".expert_other")
    assert.equal(1, n)
    assert(core.write_file(path, bytes))
    local model, message = ane.load(path)
    assert.is_nil(model)
    assert.matches("metadata key nemotron_h_moe.expert_count is missing", message, 1, true)
  end)
end)

describe("BERT as a decoder", function()
  it("is refused, since only encoders are computed", function()
    local folder <close> = copy("bert", function() return true end)
    local config = assert(core.json_decode(assert(core.read_file(folder.path .. "/config.json"))))
    config.is_decoder = true
    assert(core.write_file(folder.path .. "/config.json", core.json_encode(config)))
    local model, message = ane.load(folder.path)
    assert.is_nil(model)
    assert.matches("is_decoder is true", message, 1, true)
  end)
end)

describe("ModernBERT with the head of its masked language model", function()
  it("gives the embeddings of the encoder", function()
    local config = assert(core.json_decode(assert(core.read_file(hf.path "modernbert" .. "/config.json"))))
    local d = math.tointeger(config.hidden_size)
    local function tensor(name, ...)
      local shape, n = { ... }, 1
      for _, size in ipairs(shape) do n = n * size end
      return { name = name, dtype = "F32", shape = shape, data = ("\0"):rep(4 * n) }
    end
    local function all() return true end
    local bare <close> = copy("modernbert", all)
    local folder <close> = copy("modernbert", all, { tensor("head.dense.weight", d, d), tensor("head.norm.weight", d) })
    local plain <close> = assert(ane.load(bare.path, { threads = 1 }))
    local headed <close> = assert(ane.load(folder.path, { threads = 1 }))
    assert.equal("embedding", headed.config.kind)
    assert.equal(assert(plain:embed { 5, 9, 30 }):tostring(), assert(headed:embed { 5, 9, 30 }):tostring())
  end)
end)
