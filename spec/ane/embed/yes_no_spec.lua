-- Language models that answer yes or no (Qwen3-Reranker), as rerankers of the server and of batches too.
local ane = require "ane"
local core = require "ane.core"
local http = require "support.http"
local st = require "support.safetensors_writer"

-- A tokenizer of bytes (GPT-2's alphabet), "yes", "no" and four control tokens.
local function tokenizer()
  local vocab, n, extra = core.json_object(), 0, 0
  local function add(piece) vocab[piece], n = n, n + 1 end
  for byte = 0, 255 do
    local plain = byte >= 33 and byte <= 126 or byte >= 161 and byte <= 172 or byte >= 174
    add(utf8.char(plain and byte or 256 + extra))
    if not plain then extra = extra + 1 end
  end
  for _, piece in ipairs { "ye", "yes", "no" } do add(piece) end
  local added = {}
  for i, text in ipairs { "<|im_start|>", "<|im_end|>", "<think>", "</think>" } do
    added[i] = { id = n + i - 1, content = text, special = i < 3, single_word = false, lstrip = false, rstrip = false, normalized = false }
  end
  return {
    added_tokens = added, decoder = { type = "ByteLevel" },
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, use_regex = true },
    model = { type = "BPE", vocab = vocab, merges = { "y e", "ye s", "n o" } },
  }, n + #added
end

-- A folder of Qwen3 with random weights.
local function folder()
  local tokens, vocab = tokenizer()
  local random, tensors = 7, {}
  local function add(name, shape, like)
    local values = {}
    for i = 1, shape[1] * (shape[2] or 1) do
      random = (random * 1103515245 + 12345) % 0x7fffffff
      values[i] = like or (random / 0x7fffffff - 0.5) * 0.5
    end
    tensors[#tensors + 1] = { name = name, dtype = "F32", shape = shape, data = st.f32(values) }
  end
  add("model.embed_tokens.weight", { vocab, 32 })
  add("model.norm.weight", { 32 }, 1)
  for i = 0, 1 do
    local function of(name, ...) add(("model.layers.%d.%s.weight"):format(i, name), ...) end
    for name, shape in pairs { q_proj = { 32, 32 }, k_proj = { 16, 32 }, v_proj = { 16, 32 }, o_proj = { 32, 32 } } do
      of("self_attn." .. name, shape)
    end
    for name, shape in pairs { gate_proj = { 64, 32 }, up_proj = { 64, 32 }, down_proj = { 32, 64 } } do of("mlp." .. name, shape) end
    for _, name in ipairs { "input_layernorm", "post_attention_layernorm" } do of(name, { 32 }, 1) end
    for _, name in ipairs { "self_attn.q_norm", "self_attn.k_norm" } do of(name, { 16 }, 1) end
  end
  return st.folder {
    ["config.json"] = { json = {
      model_type = "qwen3", architectures = { "Qwen3ForCausalLM" }, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2,
      num_attention_heads = 2, num_key_value_heads = 1, head_dim = 16, vocab_size = vocab, max_position_embeddings = 2048,
      hidden_act = "silu", rms_norm_eps = 1e-6, rope_theta = 1e6, tie_word_embeddings = true,
    } },
    ["tokenizer.json"] = { json = tokens }, ["model.safetensors"] = { tensors = tensors },
  }
end

describe("a language model that answers yes or no", function()
  local path = folder()
  local model = assert(ane.load(path, { threads = 1, activations = "fp32" }))
  teardown(function()
    model:close()
    st.remove(path)
  end)
  local documents = { "A cat sat.", "The moon is far away.", "no" }
  local scores, order = model:rerank("cats", documents)

  -- The formula of the model's card: softmax of the logits of "yes" and "no" behind the template.
  it("scores a pair by the two logits behind the template of its card", function()
    local text = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
      .. "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, "
      .. "retrieve relevant passages that answer the query\n<Query>: cats\n<Document>: A cat sat.<|im_end|>\n<|im_start|>assistant\n"
      .. "<think>\n\n</think>\n\n"
    local session <close> = assert(model:session())
    assert(session:feed(assert(model.tokenizer:encode(text, { special = true, bos = false }))))
    local row = session:logits()
    local yes, no = math.exp(row[model.tokenizer:id "yes" + 1]), math.exp(row[model.tokenizer:id "no" + 1])
    assert.near(yes / (yes + no), scores[1], 1e-5)
  end)

  it("takes an instruction, but none with ids", function()
    assert.not_same(scores, model:rerank("cats", documents, { instruction = "Find moons." }))
    assert.same({ nil, "option instruction cannot be combined with token ids, which are whole sequences", "invalid" },
      { model:rerank(nil, { { 1, 2 } }, { instruction = "Find moons." }) })
  end)

  it("is a reranker of the server beside its other endpoints", function()
    if not http.available then return pending "needs libmicrohttpd and lua-socket" end
    local server <close> = assert(ane.serve(model, { port = 0 }))
    local results = http.post(server, "/v1/rerank", { query = "cats", documents = documents }).json.results
    for place, result in ipairs(results) do
      assert.equal(order[place] - 1, result.index)
      assert.near(scores[order[place]], result.relevance_score, 1e-6)
    end
    assert.equal(200, http.post(server, "/v1/completions", { prompt = "a", max_tokens = 1 }).status)
  end)

  it("is a reranker of batches, by the task or by the fields of a row", function()
    for _, task in ipairs { "rerank", false } do
      local input, output = os.tmpname(), os.tmpname()
      assert(core.write_file(input, core.json_encode { id = 1, query = "cats", documents = documents } .. "\n"))
      assert(ane.batch(model, { input = input, output = output, form = "jsonl", task = task or nil }))
      local line = core.json_decode(assert(core.read_file(output)))
      for _, one in ipairs(line.results) do assert.near(scores[one.index + 1], one.relevance_score, 1e-6) end
      for _, file in ipairs { input, output, output .. ".journal" } do os.remove(file) end
    end
  end)
end)
