-- Encoders, embedding models and rerankers against transformers and sentence-transformers: tiny checkpoints with random weights. The
-- dense layers, pooling and length 1 of their folders are in the goldens.
local ane = require "ane"
local hf = require "support.hf"
local vectors = require "support.vectors"

local EMBEDDINGS = { "bert", "xlm_roberta", "modernbert", "nomic_bert", "embedding_gemma", "qwen3_embedding" }
local RERANKERS = { "cross_encoder", "cross_encoder_xlmr" }

local function load(name, opts)
  opts.threads = opts.threads or 2
  return assert(ane.load(hf.path(name), opts))
end

describe("embeddings", function()
  for _, name in ipairs(EMBEDDINGS) do
    it("are those of sentence-transformers: " .. name, function()
      local prompts, tensors = hf.golden(name)
      local exact <close> = load(name, { activations = "fp32" })
      local stored <close> = load(name, {})
      local int8 <close> = load(name, { weights = "q8_0" }) -- rows of 64 numbers: one of 384 loses less
      assert.equal("embedding", exact.config.kind)
      for _, p in ipairs(prompts) do
        local want = vectors.floats(tensors[p.name .. ".embedding"])
        local got = assert(exact:embed(p.ids))
        assert.is_true(vectors.cosine(got, want) >= 0.99999, p.name)
        assert.is_true(math.abs(got:dot(got) - 1) < 1e-5)
        assert.is_true(vectors.cosine(assert(stored:embed(p.ids)), want) >= 0.999, p.name)
        assert.is_true(vectors.cosine(assert(int8:embed(p.ids)), want) >= 0.997, p.name)
      end
    end)

    it("do not depend on instruction sets, threads and what else is in a run: " .. name, function()
      local prompts, tensors = hf.golden(name)
      local lists = {}
      for i, p in ipairs(prompts) do lists[i] = p.ids end
      for _, isa in ipairs { "ref", ane.info().isa_list[2] } do -- avx2 or neon, if the CPU has it
        local one <close> = load(name, { isa = isa, threads = 1 })
        local many <close> = load(name, { isa = isa, threads = 3 })
        local all = assert(many:embed(lists))
        for i, p in ipairs(prompts) do
          assert.equal(one:embed(p.ids):tostring(), all[i]:tostring())
          assert.is_true(vectors.cosine(all[i], vectors.floats(tensors[p.name .. ".embedding"])) >= 0.9999)
        end
      end
    end)
  end

  it("are refused by models that give none, and text by models that give embeddings", function()
    local causal <close> = load("llama", {})
    local bert <close> = load("bert", {})
    local _, message, code = causal:embed { 1, 2 }
    assert.matches("gives no embeddings: it has no pooling", message)
    assert.equal("unsupported", code)
    _, message, code = bert:generate { 1, 2 }
    assert.matches("is an embedding model: it makes vectors of texts %(embed%), and writes none", message)
    assert.equal("unsupported", code)
    _, message = bert:rerank(nil, { { 1, 2 } })
    assert.matches("is not a reranker", message)
  end)
end)

describe("scores", function()
  for _, name in ipairs(RERANKERS) do
    it("are those of transformers: " .. name, function()
      local prompts, tensors = hf.golden(name)
      local model <close> = load(name, { activations = "fp32" })
      local lists = {}
      for i, p in ipairs(prompts) do lists[i] = p.ids end
      local scores = assert(model:rerank(nil, lists))
      local raw = assert(model:rerank(nil, lists, { raw = true }))
      for i, p in ipairs(prompts) do
        assert.near(vectors.floats(tensors[p.name .. ".score"])[1], scores[i], 1e-3)
        assert.near(vectors.floats(tensors[p.name .. ".logit"])[1], raw[i], 1e-3)
      end
    end)
  end
end)

describe("positions", function()
  it("end where the table of position embeddings ends", function()
    local model <close> = load("xlm_roberta", {})
    assert.equal(64, model.context) -- 66 rows, of which the first two stand for padding
    local ids = {}
    for i = 1, 65 do ids[i] = 5 end
    local _, message, code = model:embed(ids)
    assert.equal("65 ids, but the model takes at most 64", message)
    assert.equal("range", code)
    assert.is_truthy(model:embed(table.move(ids, 1, 64, 1, {})))
    _, message = ane.load(hf.path "xlm_roberta", { context = 65 })
    assert.matches("context is 65, the model has embeddings for 64 positions", message)
  end)
end)

describe("ModernBERT's old keys of rope", function()
  local function vector(change)
    local path <close> = hf.changed("modernbert", change)
    local model <close> = assert(ane.load(path.name, { activations = "fp32", threads = 1 }))
    return assert(model:embed { 5, 9, 30, 7, 11, 12, 4 }):tostring()
  end

  it("scale both ropes", function()
    local function old(cfg) cfg.rope_parameters, cfg.global_rope_theta, cfg.local_rope_theta = nil, 3000, 200 end
    local function rope(theta) return { rope_type = "linear", factor = 2, rope_theta = theta } end
    local want = vector(function(cfg) cfg.rope_parameters = { full_attention = rope(3000), sliding_attention = rope(200) } end)
    assert.equal(want, vector(function(cfg)
      old(cfg)
      cfg.rope_scaling = { rope_type = "linear", factor = 2 }
    end))
    assert.not_equal(want, vector(old))
  end)
end)
