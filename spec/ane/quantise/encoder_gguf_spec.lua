-- Folders of BERT to GGUF, with their WordPiece vocabulary: keys and spellings of llama.cpp's converter, the embeddings of the folder.
local ane = require "ane"
local core = require "ane.core"
local quantise = require "ane.quantise"
local tokenizer = require "ane.tokenizer"
local tree = require "support.tree"
local vectors = require "support.vectors"
local vocabulary = require "ane.quantise.vocabulary"

local HF, MARK = "spec/fixtures/hf/", "\u{2581}"

local folder
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local function json(path) return assert(core.json_decode(assert(core.read_file(path)))) end

local function path(name) return folder .. "/" .. name end

-- A copy of the fixture bert with other files: name -> text or table.
local function changed(changes)
  assert(os.execute(("cp -r '%sbert' '%s'"):format(HF, path "bert")))
  for file, text in pairs(changes) do
    assert(core.write_file(path("bert/" .. file), type(text) == "table" and core.json_encode(text) or text))
  end
  return path "bert"
end

local function write(from, weights)
  local source <close> = assert(core.open(from))
  return assert(quantise.run(source, path "out.gguf", { weights = weights or "fp32" }))
end

local function values_of(from)
  local list, why = vocabulary.read(from, "bert", 512, path "scratch")
  assert.is_nil(core.path_kind(path "scratch"))
  if not list then return nil, why end
  local out = {}
  for _, v in ipairs(list) do out[v[1]:gsub("^tokenizer%.ggml%.", "")] = v[3] end
  return out
end

describe("BERT as GGUF", function()
  -- gguf-py's reader and llama.cpp 0.3.36 (python) read the same file; see bench/results/embeddings.md.
  it("has the keys and tensors of llama.cpp's converter", function()
    local report = write(HF .. "bert", "q8_0")
    assert.equal("bert", report.architecture)
    local source <close> = assert(core.open(path "out.gguf"))
    for key, value in pairs {
      ["general.architecture"] = "bert", ["bert.block_count"] = 3, ["bert.context_length"] = 128, ["bert.embedding_length"] = 64,
      ["bert.feed_forward_length"] = 128, ["bert.attention.head_count"] = 4, ["bert.attention.causal"] = false,
      ["tokenizer.ggml.model"] = "bert", ["tokenizer.ggml.token_type_count"] = 2, ["tokenizer.ggml.bos_token_id"] = 2,
      ["tokenizer.ggml.cls_token_id"] = 2, ["tokenizer.ggml.seperator_token_id"] = 3, ["tokenizer.ggml.unknown_token_id"] = 1,
      ["tokenizer.ggml.padding_token_id"] = 0, ["tokenizer.ggml.mask_token_id"] = 4,
    } do
      assert.equal(value, source:meta(key), key)
    end
    assert.near(1e-12, source:meta "bert.attention.layer_norm_epsilon", 1e-18)
    assert.is_nil(source:meta "bert.rope.freq_base")
    for name, about in pairs {
      ["token_embd.weight"] = { "q8_0", 512, 64 }, ["position_embd.weight"] = { "fp32", 128, 64 },
      ["token_types.weight"] = { "fp32", 2, 64 },
      ["token_embd_norm.bias"] = { "fp32", 64 }, ["blk.0.attn_q.weight"] = { "q8_0", 64, 64 }, ["blk.1.attn_k.bias"] = { "fp32", 64 },
      ["blk.2.attn_output_norm.weight"] = { "fp32", 64 }, ["blk.2.ffn_up.weight"] = { "q8_0", 128, 64 },
      ["blk.0.ffn_down.bias"] = { "fp32", 64 }, ["blk.1.layer_output_norm.bias"] = { "fp32", 64 },
    } do
      local t = assert(source:tensor(name), name)
      assert.same(about, { t.dtype, table.unpack(t.shape) }, name)
    end
    assert.is_nil(source:tensor "pooler.dense.weight")
  end)

  it("gives the ids and embeddings of sentence-transformers", function()
    write(HF .. "bert")
    local model <close> = assert(ane.load(path "out.gguf", { activations = "fp32", threads = 1 }))
    local texts, golden = {}, json(HF .. "bert/texts.json").texts
    for i, row in ipairs(golden) do texts[i] = row.text end
    local result = assert(model:embed(texts, { details = true }))
    for i, row in ipairs(golden) do
      assert.equal(#row.ids, result.tokens[i])
      if #row.ids < 128 then assert.same(row.ids, model.tokenizer:encode(row.text), row.text) end -- longer texts are cut
      assert.is_true(vectors.cosine(result.embeddings[i], row.embedding) > 0.99999, row.text)
    end
  end)

  it("stays a file of its own where bert's keys cannot say it", function()
    for name, reason in pairs { cross_encoder = "a classifier", ["bert_labels-odd"] = "a classifier", xlm_roberta = "no architecture" } do
      local report = write(HF .. name)
      assert.matches("^ane%-", report.architecture)
      assert.matches(reason, report.note)
    end
    local config = json(HF .. "bert/config.json")
    config.hidden_act = "gelu_new"
    local report = write(changed { ["config.json"] = config })
    assert.equal("ane-bert", report.architecture)
    assert.matches("activation gelu_tanh", report.note)
  end)

  it("says why the file cannot be made beside which the vocabulary is tried", function()
    local source <close> = assert(core.open(HF .. "bert"))
    local report, message, code = quantise.run(source, path "none/out.gguf", { weights = "q8_0" })
    assert.is_nil(report)
    assert.equal("io", code)
    assert.matches("none/out.gguf[^:]*: cannot create: No such file or directory$", message)
    assert.is_nil(message:find "unexpected contents")
  end)

  it("names a limit of tokens that the file does not say", function()
    assert.is_nil((write(HF .. "bert").note or ""):find "max_seq_length")
    local report = write(changed { ["sentence_bert_config.json"] = { max_seq_length = 17 } })
    assert.matches("the file does not keep .*: max_seq_length", report.note)
  end)
end)

describe("ModernBERT as GGUF", function()
  -- llama.cpp's states of this file, as fp32, are the folder's within 0.004: its gelu is the approximation by tanh.
  it("has the keys and tensors of llama.cpp's converter, and gives the states of the folder", function()
    local report = write(HF .. "modernbert")
    assert.equal("modern-bert", report.architecture)
    local source <close> = assert(core.open(path "out.gguf"))
    for key, value in pairs {
      ["attention.sliding_window"] = 16, ["attention.sliding_window_pattern"] = 3, ["rope.freq_base"] = 160000.0,
      ["rope.freq_base_swa"] = 10000.0, ["rope.scaling.type"] = "none", ["attention.causal"] = false, vocab_size = 544, pooling_type = 2,
    } do
      assert.equal(value, source:meta("modern-bert." .. key), key)
    end
    assert.is_nil(source:tensor "blk.0.attn_norm.weight")
    for name, shape in pairs {
      ["blk.1.attn_qkv.weight"] = { 192, 64 }, ["blk.3.ffn_up.weight"] = { 192, 64 }, ["token_embd_norm.weight"] = { 64 },
      ["output_norm.weight"] = { 64 },
    } do assert.same(shape, source:tensor(name).shape) end
    local a <close> = assert(ane.load(HF .. "modernbert", { activations = "fp32" }))
    local b <close> = assert(ane.load(path "out.gguf", { activations = "fp32" }))
    local ids = {}
    for i = 1, 40 do ids[i] = 4 + i * 7 % 500 end
    assert.same(assert(a:embed { ids })[1]:totable(), assert(b:embed { ids })[1]:totable())
  end)

  it("stays a file of its own where modern-bert's keys cannot say it", function()
    for reason, change in pairs {
      ["full attention in layers without a period"] = function(c)
        c.layer_types = core.json_array { "full_attention", "sliding_attention", "full_attention", "full_attention" }
      end,
      ["activation silu"] = function(c) c.hidden_activation = "silu" end,
      ["rope type linear"] = function(c) c.rope_scaling = { rope_type = "linear", factor = 2.0 } end,
    } do
      assert(os.execute(("cp -r '%smodernbert' '%s'"):format(HF, path "modern")))
      local config = json(HF .. "modernbert/config.json")
      change(config)
      assert(core.write_file(path "modern/config.json", core.json_encode(config)))
      local report = write(path "modern")
      assert.equal("ane-modernbert", report.architecture)
      assert.matches("modern%-bert cannot represent " .. reason, report.note)
      tree.remove(path "modern")
    end
  end)
end)

-- Embeddings of ids by the file and by the folder, which other specs compare with sentence-transformers.
local function agrees(name)
  local ids = { { 2, 17, 40, 9, 3 }, { 5, 6, 7, 8, 30, 31, 32, 33, 12, 3 }, { 4 } }
  local a <close> = assert(ane.load(path "out.gguf", { activations = "fp32", threads = 1 }))
  local b <close> = assert(ane.load(HF .. name, { activations = "fp32", threads = 1 }))
  local got, want = assert(a:embed(ids)), assert(b:embed(ids))
  for i = 1, #ids do assert.is_true(vectors.cosine(got[i], want[i]:totable()) > 0.99999) end
end

describe("other embedding models as GGUF", function()
  it("are llama.cpp's nomic-bert", function()
    assert.equal("nomic-bert", write(HF .. "nomic_bert").architecture)
    agrees "nomic_bert"
    local source <close> = assert(core.open(path "out.gguf"))
    assert.equal(false, source:meta "nomic-bert.attention.causal")
    assert.is_number(source:meta "nomic-bert.rope.freq_base")
    for _, name in ipairs { "token_types", "token_embd_norm", "blk.0.attn_qkv", "blk.1.ffn_gate", "blk.1.layer_output_norm" } do
      assert.is_table(source:tensor(name .. ".weight"), name)
    end
    assert.is_nil(source:tensor "blk.0.attn_qkv.bias")
  end)

  it("are llama.cpp's qwen3, whose folders lack the leading model. of names", function()
    assert.equal("qwen3", write(HF .. "qwen3_embedding").architecture)
    agrees "qwen3_embedding"
    local source <close> = assert(core.open(path "out.gguf"))
    assert.equal(3, source:meta "qwen3.pooling_type")
    assert.is_table(source:tensor "blk.0.attn_q_norm.weight")
  end)

  -- As gguf-py (vocab.py, SpecialVocab): the template's last token is eos, that of tokenizer_config.json eot.
  it("end a text with the token of the template, also if it is not eos_token", function()
    local vocab, extra = {}, 0
    for b = 0, 255 do
      local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
      vocab[utf8.char(plain and b or 256 + extra)] = b
      if not plain then extra = extra + 1 end
    end
    local function added(id, content)
      return { id = id, content = content, special = true, single_word = false, lstrip = false, rstrip = false, normalized = false }
    end
    local function item(kind, id) return { [kind] = { id = id, type_id = 0 } } end
    local bytes = { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = true }
    local from = changed {
      ["tokenizer_config.json"] = { eos_token = "<|stop|>" },
      ["tokenizer.json"] = {
        version = "1.0", added_tokens = core.json_array { added(256, "<|end|>"), added(257, "<|stop|>") }, normalizer = core.null,
        pre_tokenizer = bytes, decoder = bytes,
        post_processor = {
          type = "TemplateProcessing", single = core.json_array { item("Sequence", "A"), item("SpecialToken", "<|end|>") },
          pair = core.json_array { item("Sequence", "A"), item("Sequence", "B"), item("SpecialToken", "<|end|>") },
          special_tokens = {
            ["<|end|>"] = { id = "<|end|>", ids = core.json_array { 256 }, tokens = core.json_array { "<|end|>" } },
          },
        },
        model = {
          type = "BPE", dropout = core.null, unk_token = core.null, continuing_subword_prefix = core.null,
          end_of_word_suffix = core.null, fuse_unk = false, byte_fallback = false, vocab = vocab, merges = core.json_array {},
        },
      },
    }
    local v = assert(values_of(from))
    assert.same({ 256, 257, true, false }, { v.eos_token_id, v.eot_token_id, v.add_eos_token, v.add_bos_token })
  end)
end)

describe("a WordPiece vocabulary as GGUF", function()
  it("has the spellings and types of llama.cpp's converter, filled up to the rows of the embedding", function()
    local v = assert(values_of(HF .. "bert"))
    local vocab, special = json(HF .. "bert/tokenizer.json").model.vocab, {}
    for _, token in ipairs(json(HF .. "bert/tokenizer.json").added_tokens) do special[token.content] = token.id end
    local n = 0
    for token, id in pairs(vocab) do
      local want = special[token] and token or token:sub(1, 2) == "##" and token:sub(3) or MARK .. token
      assert.equal(want, v.tokens[id + 1])
      assert.equal(special[token] and 3 or 1, v.token_type[id + 1])
      n = n + 1
    end
    assert.same({ 512, 512 }, { #v.tokens, #v.token_type })
    assert.same({ MARK .. "[PAD511]", 5 }, { v.tokens[512], v.token_type[512] })
    assert.is_true(n > 200 and n < 512)
  end)

  it("reads special ids from tokenizer_config.json, as strings or tables", function()
    local json_file = json(HF .. "bert/tokenizer.json")
    local from = changed { ["tokenizer_config.json"] = {
      pad_token = { content = "[MASK]", special = true }, mask_token = "[PAD]", tokenizer_class = "BertTokenizer" } }
    local v = assert(values_of(from))
    assert.same({ json_file.model.vocab["[MASK]"], json_file.model.vocab["[PAD]"] }, { v.padding_token_id, v.mask_token_id })
  end)

  -- llama.cpp 0.3.36 (python) reads both keys: it gives the ids of the tokenizers library with each.
  it("says what the normalizer does to letters, and is read back so", function()
    for _, case in ipairs { { false, core.null, false, false }, { true, core.null, true, true }, { false, true, false, true },
      { true, false, true, false } } do
      local from = json(HF .. "bert/tokenizer.json")
      from.normalizer.lowercase, from.normalizer.strip_accents = case[1], case[2]
      from.model.vocab["Hello"], from.model.vocab["é"], from.model.vocab["É"], from.model.vocab["E"] = 300, 301, 302, 303
      local cased = changed { ["tokenizer.json"] = from }
      local v = assert(values_of(cased))
      assert.same({ case[3], case[4] }, { v["normalizer.lowercase"], v["normalizer.strip_accents"] })
      assert.equal(MARK .. "Hello", v.tokens[301])
      local report = write(cased)
      assert.equal("bert", report.architecture)
      local source <close> = assert(core.open(path "out.gguf"))
      local tok <close> = assert(tokenizer.new(cased))
      local again <close> = assert(tokenizer.new(source))
      local letter = case[3] and (case[4] and "e" or "é") or (case[4] and "E" or "É")
      assert.equal(letter, again:piece(again:encode("É", { bos = false, eos = false })[1]))
      for _, text in ipairs { "Hello", "É", "é a", "hello It Wörld" } do assert.same(tok:encode(text), again:encode(text)) end
      tree.remove(path "bert")
    end
  end)

  it("gives a reason where GGUF has no such kind", function()
    local function reason(change)
      local from = json(HF .. "bert/tokenizer.json")
      change(from)
      local v, why = values_of(changed { ["tokenizer.json"] = from })
      tree.remove(path "bert")
      assert.is_nil(v)
      return why
    end
    assert.matches("another prefix than ##", reason(function(t)
      t.model.continuing_subword_prefix = "@@"
      t.decoder.prefix = "@@"
    end))
    assert.matches("adds 0 tokens", reason(function(t) t.post_processor = core.null end))
    assert.matches("without a BertNormalizer", reason(function(t) t.normalizer = { type = "Lowercase" } end))
    assert.matches("gives other token ids", reason(function(t) t.pre_tokenizer = { type = "Whitespace" } end))
  end)
end)
