-- Encoders in GGUF, as llama.cpp's converter writes them: the numbers of the folders that they come from.
local ane = require "ane"
local core = require "ane.core"
local gguf = require "support.gguf_writer"
local hf = require "support.hf"
local vectors = require "support.vectors"

local LAYER = {
  ["attention.self.query"] = "attn_q", ["attention.self.key"] = "attn_k", ["attention.self.value"] = "attn_v",
  ["attention.output.dense"] = "attn_output", ["attention.output.LayerNorm"] = "attn_output_norm", ["intermediate.dense"] = "ffn_up",
  ["output.dense"] = "ffn_down", ["output.LayerNorm"] = "layer_output_norm",
  ["attn.Wqkv"] = "attn_qkv", ["attn.out_proj"] = "attn_output", norm1 = "attn_output_norm", norm2 = "layer_output_norm",
  ["mlp.fc11"] = "ffn_up", ["mlp.fc12"] = "ffn_gate", ["mlp.fc2"] = "ffn_down",
  ["attn.Wo"] = "attn_output", ["mlp.Wi"] = "ffn_up", ["mlp.Wo"] = "ffn_down", attn_norm = "attn_norm", mlp_norm = "ffn_norm",
}
local GLOBAL = {
  ["embeddings.word_embeddings"] = "token_embd", ["embeddings.position_embeddings"] = "position_embd",
  ["embeddings.token_type_embeddings"] = "token_types", ["embeddings.LayerNorm"] = "token_embd_norm", emb_ln = "token_embd_norm",
  ["embeddings.tok_embeddings"] = "token_embd", ["embeddings.norm"] = "token_embd_norm", final_norm = "output_norm",
}

local function renamed(name)
  local base, suffix = name:match "^(.*)(%.%a+)$"
  local layer, rest = base:gsub("^encoder%.", ""):match "^layers?%.(%d+)%.(.*)$"
  if layer then return ("blk.%d.%s%s"):format(layer, assert(LAYER[rest], rest), suffix) end
  return GLOBAL[base] and GLOBAL[base] .. suffix
end

-- A fixture as GGUF; removed after the spec.
local paths = {}
local function converted(name, arch, values)
  local source <close> = assert(core.open(hf.path(name)))
  local tensors = {}
  for _, t in ipairs(source:tensors()) do
    local new = renamed(t.name)
    if new then tensors[#tensors + 1] = { name = new, dtype = "fp32", shape = t.shape, data = assert(source:read(t.name)) } end
  end
  local config = assert(core.json_decode(assert(core.read_file(hf.path(name) .. "/config.json"))))
  local all = {
    { "general.architecture", "string", arch }, { arch .. ".block_count", "uint32", config.num_hidden_layers },
    { arch .. ".embedding_length", "uint32", 64 }, { arch .. ".feed_forward_length", "uint32", config.intermediate_size },
    { arch .. ".attention.head_count", "uint32", 4 }, { arch .. ".attention.causal", "bool", false },
    { arch .. ".attention.layer_norm_epsilon", "float32", config.layer_norm_eps or config.norm_eps },
    { arch .. ".context_length", "uint32", 128 },
  }
  for _, row in ipairs(values) do all[#all + 1] = row end
  local path = os.tmpname()
  paths[#paths + 1] = path
  gguf.write(path, { version = 3, values = all, tensors = tensors })
  return path
end
teardown(function()
  for _, path in ipairs(paths) do os.remove(path) end
end)

-- The vocabulary of the fixture bert as the converter spells it.
local function tokenizer_values()
  local file = assert(core.json_decode(assert(core.read_file(hf.path "bert" .. "/tokenizer.json"))))
  local tokens, kinds, n = {}, {}, 0
  for token, id in pairs(file.model.vocab) do
    local control = token:find "^%[%u+%]$"
    tokens[id + 1] = control and token or token:match "^##(.*)" or "\u{2581}" .. token
    kinds[id + 1], n = control and 3 or 1, n + 1
  end
  assert(#tokens == n)
  return {
    { "bert.pooling_type", "uint32", 1 }, { "tokenizer.ggml.model", "string", "bert" },
    { "tokenizer.ggml.tokens", "array", { "string", tokens } },
    { "tokenizer.ggml.token_type", "array", { "int32", kinds } }, { "tokenizer.ggml.bos_token_id", "uint32", 2 },
    { "tokenizer.ggml.seperator_token_id", "uint32", 3 }, { "tokenizer.ggml.unknown_token_id", "uint32", 1 },
    { "tokenizer.ggml.padding_token_id", "uint32", 0 },
  }
end

describe("GGUF of encoders", function()
  it("gives the vectors of the folder, from texts", function()
    local folder <close> = assert(ane.load(hf.path "bert", { activations = "fp32" }))
    local file <close> = assert(ane.load(converted("bert", "bert", tokenizer_values()), { activations = "fp32" }))
    local golden = assert(core.json_decode(assert(core.read_file(hf.path "bert" .. "/texts.json"))))
    for _, row in ipairs(golden.texts) do
      assert.same(folder.tokenizer:sequence(row.text), file.tokenizer:sequence(row.text))
      assert.is_true(vectors.cosine(file:embed(row.text), row.embedding) > 0.99999)
    end
    assert.same({ folder.tokenizer:pair("a cat", "the moon") }, { file.tokenizer:pair("a cat", "the moon") })
    local ids = folder.tokenizer:sequence "the cat sat"
    assert.equal(folder.tokenizer:decode(ids), file.tokenizer:decode(ids))
  end)

  -- Compares a file's vectors with those of transformers.
  local function like_golden(name, arch, values)
    local prompts, tensors = hf.golden(name)
    local file <close> = assert(ane.load(converted(name, arch, values), { activations = "fp32" }))
    for _, p in ipairs(prompts) do
      assert.is_true(vectors.cosine(file:embed(p.ids), vectors.floats(tensors[p.name .. ".embedding"])) > 0.99999, p.name)
    end
  end

  it("is known of nomic-bert", function()
    like_golden("nomic_bert", "nomic-bert", {
      { "nomic-bert.pooling_type", "uint32", 1 }, { "nomic-bert.rope.freq_base", "float32", 1000 },
    })
  end)

  it("is known of modern-bert, whose period of layers begins with one that sees all tokens", function()
    like_golden("modernbert", "modern-bert", {
      { "modern-bert.pooling_type", "uint32", 2 }, { "modern-bert.rope.freq_base", "float32", 160000 },
      { "modern-bert.rope.freq_base_swa", "float32", 10000 }, { "modern-bert.attention.sliding_window", "uint32", 16 },
      { "modern-bert.attention.sliding_window_pattern", "uint32", 3 },
    })
  end)

  it("refuses a vocabulary without its special tokens, and pooling that is not known", function()
    local values = tokenizer_values()
    values[5][3] = 4000 -- bos_token_id
    assert.matches("tokenizer.ggml.bos_token_id is 4000, the vocabulary has", (select(2, ane.load(converted("bert", "bert", values)))))
    local odd = converted("bert", "bert", { { "bert.pooling_type", "uint32", 9 } })
    assert.matches("pooling_type is 9, but must be 0 to 4", (select(2, ane.load(odd))))
  end)

  it("is planned without states, for fixed numbers of tokens", function()
    local model <close> = assert(ane.load(converted("bert", "bert", {})))
    local plan = assert(model:plan())
    assert.same({ "embedding", 0 }, { plan.kind, plan.state_bytes })
    assert.matches("fixed T: ", tostring(plan), 1, true)
  end)
end)
