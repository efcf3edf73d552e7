-- Scores of documents: what sentence-transformers' CrossEncoder gives (spec/golden/embedding_texts.py), options, refusals.
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local hf = require "support.hf"
local writer = require "support.safetensors_writer"

local GOLDEN = assert(core.json_decode(assert(core.read_file(hf.path "bert" .. "/texts.json"))))

local model
setup(function() model = assert(ane.load(hf.path "cross_encoder", { activations = "fp32", threads = 2 })) end)
teardown(function() model:close() end)

local function documents()
  local list = {}
  for i, row in ipairs(GOLDEN.texts) do list[i] = row.text end
  return list
end

describe("rerank", function()
  it("gives the scores of sentence-transformers, and the order", function()
    local scores, order = assert(model:rerank(GOLDEN.query, documents()))
    assert.equal(#GOLDEN.scores, #scores)
    for i, want in ipairs(GOLDEN.scores) do assert.near(want, scores[i], 1e-3) end
    for k = 2, #order do assert.is_true(scores[order[k - 1]] >= scores[order[k]]) end
  end)

  it("reads the second text with token type 1", function()
    local ids, types = model.tokenizer:pair("a cat", "the moon")
    local typed = model:rerank("a cat", { "the moon" })[1]
    assert.is_true(math.abs(typed - model:rerank(nil, { ids })[1]) > 1e-3)
    assert.equal(1, types[#types])
  end)

  it("takes no documents, and cuts pairs", function()
    assert.same({ {}, {} }, { model:rerank("a", {}) })
    local long = ("moon "):rep(300)
    local cut = model.tokenizer:pair("a cat", long, { max_length = 20 })
    assert.equal(20, #cut)
    assert.near(model:rerank("a cat", { long }, { max_length = 20 })[1], model:rerank("a cat", { model.tokenizer:decode(
      table.move(cut, #cut - 15, #cut - 1, 1, {})) })[1], 1)
  end)

  it("gives tokens and what was truncated with details", function()
    local list = { "the moon", ("moon "):rep(300), "a cat sat" }
    local r = assert(model:rerank("a cat", list, { max_length = 20, details = true }))
    local scores, order = model:rerank("a cat", list, { max_length = 20 })
    assert.same({ scores, order, 1 }, { r.scores, r.order, r.truncated })
    for i, text in ipairs(list) do
      local ids, _, truncated = model.tokenizer:pair("a cat", text, { max_length = 20 })
      assert.same({ #ids, i == 2 }, { r.tokens[i], truncated })
    end
    r = assert(model:rerank(nil, { { 2, 60, 17, 3 } }, { details = true }))
    assert.same({ { 4 }, 0 }, { r.tokens, r.truncated })
  end)

  it("takes no texts without a query", function()
    for _, list in ipairs { { "a cat" }, { { 2, 60, 3 }, "a cat" }, { 2, 60, 3 } } do
      assert.error_matches(function() model:rerank(nil, list) end,
        "rerank: without a query, document %d is a %a+, not a list of token ids")
    end
  end)

  it("refuses an instruction, which no part of the pair takes", function()
    local want = ("option instruction has no effect: %s reads query and document alone"):format(model)
    assert.same({ nil, want, "invalid" }, { model:rerank("a cat", { "the moon" }, { instruction = "Be kind." }) })
    local code, out, err = command.run({ "rerank", hf.path "cross_encoder", "--query", "a cat", "--instruction", "Be kind." }, "the moon\n")
    assert.same({ 2, "" }, { code, out })
    assert.matches("^ane rerank: %-%-instruction has no effect: ", err)
  end)

  it("refuses ids of more than max_length", function()
    assert.same({ nil, "entry 2: 3 ids, but option max_length is 2, and ids are not truncated", "range" },
      { model:rerank(nil, { { 2, 3 }, { 2, 60, 3 } }, { max_length = 2 }) })
    assert(model:rerank(nil, { { 2, 60, 3 } }, { max_length = 3 }))
  end)

  it("refuses and raises", function()
    local bert <close> = assert(ane.load(hf.path "bert"))
    local llama <close> = assert(ane.load(hf.path "llama"))
    assert.matches("is not a reranker", (select(2, bert:rerank("a", { "b" }))))
    assert.matches("is not a reranker", (select(2, llama:rerank("a", { "b" }))))
    local bare <close> = assert(ane.load(hf.path "cross_encoder_xlmr"))
    assert.matches("the model has no tokenizer", (select(2, bare:rerank("a", { "b" }))))
    assert.matches("gives no embeddings: it scores pairs of texts", (select(2, model:embed "a")))
    assert.has_error(function() model:rerank("a", { 1 }) end, "rerank: document 1 is a number, not a text")
    assert.has_error(function() model:rerank(1, {}) end)
  end)

  it("refuses a classifier of ModernBERT that pools otherwise than by the first token or the mean", function()
    local source <close> = assert(core.open(hf.path "modernbert"))
    local tensors = {}
    for i, t in ipairs(source:tensors()) do
      tensors[i] = { name = t.name, dtype = "F32", shape = t.shape, data = assert(source:read(t.name)) }
    end
    tensors[#tensors + 1] = { name = "classifier.weight", dtype = "F32", shape = { 1, 64 }, data = ("\0"):rep(256) }
    local odd <close> = hf.changed("modernbert", function(cfg) cfg.classifier_pooling = "max" end)
    writer.write(odd.name .. "/model.safetensors", { tensors = tensors })
    assert.matches("classifier_pooling is 'max', known are cls and mean", (select(2, ane.load(odd.name))))
  end)

  it("refuses an activation that is not known", function()
    local odd <close> = hf.changed("cross_encoder", function(cfg) cfg.sentence_transformers.activation_fn = "torch.nn.Softplus" end)
    local m <close> = assert(ane.load(odd.name))
    local _, message = m:rerank(nil, { { 1, 2 } })
    assert.matches("activation torch.nn.Softplus of the scores is not known; known are GELU, Identity", message)
  end)

  -- spec/golden/pair_scores.py made the fixtures.
  for _, name in ipairs { "bert_labels", "bert_tanh", "qwen3_score", "llama_score", "gemma3_score" } do
    it("gives the scores of transformers' classifiers: " .. name, function()
      local golden = assert(core.json_decode(assert(core.read_file(hf.path(name .. "-odd") .. "/golden.json"))))
      local m <close> = assert(ane.load(hf.path(name .. "-odd"), { activations = "fp32", threads = 1 }))
      local inputs = {}
      for i, p in ipairs(golden.prompts) do inputs[i] = p.input_ids end
      local r, raw = assert(m:rerank(nil, inputs, { details = true })), assert(m:rerank(nil, inputs, { raw = true }))
      for i, p in ipairs(golden.prompts) do
        assert.equal(#p.input_ids, r.tokens[i])
        for k, want in ipairs(p.scores) do
          assert.near(want, #p.scores == 1 and r.scores[i] or r.scores[i][k], 1e-4)
          assert.near(p.logits[k], #p.scores == 1 and raw[i] or raw[i][k], 1e-4)
        end
      end
      assert.equal(#golden.prompts[1].scores > 1 and "nil" or "table", type(r.order))
    end)
  end
end)
