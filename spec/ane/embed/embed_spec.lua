-- Texts to vectors: what sentence-transformers makes of them (spec/golden/embedding_texts.py), options, modules, similarity.
local ane = require "ane"
local core = require "ane.core"
local hf = require "support.hf"
local tree = require "support.tree"
local vectors = require "support.vectors"

local PATH = hf.path "bert"
local GOLDEN = assert(core.json_decode(assert(core.read_file(PATH .. "/texts.json"))))

local model
setup(function() model = assert(ane.load(PATH, { activations = "fp32", threads = 2 })) end)
teardown(function() model:close() end)

local function texts(from)
  local list = {}
  for i, row in ipairs(GOLDEN.texts) do list[i] = row[from or "text"] end
  return list
end

-- A copy of a fixture whose files can change; gone after the spec.
local folders = {}
local function copy(name, changes)
  local folder = tree.folder()
  folders[#folders + 1] = folder
  assert(os.execute(("cp -r '%s'/. '%s'"):format(hf.path(name), folder)))
  for file, text in pairs(changes) do
    if type(text) == "table" then text = assert(core.json_encode(text)) end
    assert(core.write_file(folder .. "/" .. file, text))
  end
  return folder
end
teardown(function()
  for _, folder in ipairs(folders) do tree.remove(folder) end
end)

local function changed(name, changes) return assert(ane.load(copy(name, changes), { activations = "fp32", threads = 2 })) end

describe("embed", function()
  it("gives what sentence-transformers gives", function()
    local result = assert(model:embed(texts(), { details = true }))
    assert.equal(64, result.dim)
    for i, row in ipairs(GOLDEN.texts) do
      assert.equal(#row.ids, result.tokens[i])
      assert.is_true(vectors.cosine(result.embeddings[i], row.embedding) > 0.99999, row.text)
    end
  end)

  it("keeps a cosine of 0.999 with int8 weights, which have one scale for each 32 columns", function()
    local int8 <close> = assert(ane.load(PATH, { weights = "int8", threads = 2 }))
    for _, row in ipairs(int8:weights_report()) do assert.equal("int8-block", row.weights) end
    local embeddings = assert(int8:embed(texts()))
    for i, row in ipairs(GOLDEN.texts) do assert.is_true(vectors.cosine(embeddings[i], row.embedding) > 0.999, row.text) end
  end)

  it("gives one vector for one text, rows for a list, and the same for ids", function()
    local one, list = assert(model:embed "The moon."), assert(model:embed { "A cat", "The moon." })
    assert.same({ 64 }, one:shape())
    assert.same({ 2, 64 }, list:shape())
    assert.equal(one:tostring(), list[2]:tostring())
    assert.equal(one:tostring(), model:embed(model.tokenizer:sequence "The moon."):tostring())
  end)

  it("sorts many texts into runs and puts their vectors back in order", function()
    local many = {}
    for i = 1, 150 do many[i] = ("moon "):rep(1 + i * 37 % 60) end
    local all = assert(model:embed(many))
    for i = 1, 150, 29 do assert.equal(model:embed(many[i]):tostring(), all[i]:tostring()) end
  end)

  it("cuts texts to the model's length or a shorter one", function()
    local long = ("moon "):rep(300)
    assert.equal(128, model:embed(long, { details = true }).tokens[1])
    assert.equal(9, model:embed(long, { details = true, max_length = 9 }).tokens[1])
    local ids = model.tokenizer:sequence(long, { max_length = 9 })
    assert.equal(model.tokenizer:id "[SEP]", ids[9])
  end)

  it("says how many texts it cuts", function()
    local long = ("moon "):rep(300)
    assert.equal(2, model:embed({ long, "moon", long }, { details = true }).truncated)
    assert.equal(0, model:embed({ "moon" }, { details = true }).truncated)
  end)

  it("takes texts of more than 4,096 tokens where the model does, and refuses those beyond its context", function()
    local config = assert(core.json_decode(assert(core.read_file(hf.path "modernbert" .. "/config.json"))))
    config.max_position_embeddings = 8192
    local tokenizer = assert(core.read_file(PATH .. "/tokenizer.json"))
    local folder = copy("modernbert", {
      ["config.json"] = config, ["tokenizer.json"] = tokenizer, ["sentence_bert_config.json"] = { max_seq_length = 8192 },
    })
    local long, ids = ("moon "):rep(4500), {}
    local m <close> = assert(ane.load(folder, { activations = "fp32", threads = 2 }))
    local n = #m.tokenizer:sequence(long)
    assert.is_true(n > 4500)
    assert.equal(n, m:embed(long, { details = true }).tokens[1])
    for i = 1, 8200 do ids[i] = 5 end
    assert.same({ nil, "8200 ids, but the model takes at most 8192", "range" }, { m:embed(ids) })
    local small <close> = assert(ane.load(folder, { activations = "fp32", threads = 2, context = 4096 }))
    local _, message, code = small:embed { "moon", long }
    assert.equal(("entry 2: %d tokens, the model was loaded with a context of 4096: give option context a larger number, or "
      .. "option max_length one of at most 4096"):format(n), message)
    assert.equal("range", code)
    assert.equal(4096, small:embed(long, { details = true, max_length = 4096 }).tokens[1])
  end)

  it("keeps the first numbers, with length 1 where the model normalises", function()
    local v = assert(model:embed("The moon.", { dims = 16 }))
    assert.same({ 16 }, v:shape())
    assert.near(1, v:dot(v), 1e-6)
    local none, message, code = model:embed("The moon.", { dims = 1 << 20 })
    assert.same({ nil, "range" }, { none, code })
    assert.matches("^option dims must be at most %d+, the width of the model's vectors, but is 1048576$", message)
    local plain = assert(model:embed("The moon.", { dims = 16, normalise = false }))
    assert.is_true(math.abs(plain:dot(plain) - 1) > 0.1)
    assert.is_true(vectors.cosine(v, plain:totable()) > 0.999999)
  end)

  it("puts the prompt of a name or a prefix before each text", function()
    local prompts = { prompts = { query = "query: ", plain = "" }, default_prompt_name = "query" }
    local m <close> = changed("bert", { ["config_sentence_transformers.json"] = prompts })
    local want = assert(model:embed "query: the moon"):tostring()
    assert.equal(want, m:embed("the moon"):tostring())
    assert.equal(want, m:embed("the moon", { prompt = "query" }):tostring())
    assert.equal(want, m:embed("the moon", { prefix = "query: " }):tostring())
    assert.equal(model:embed("the moon"):tostring(), m:embed("the moon", { prompt = "plain" }):tostring())
    local _, message, code = m:embed("the moon", { prompt = "passage" })
    assert.equal("the model has no prompt 'passage'; its prompts are plain, query", message)
    assert.equal("invalid", code)
    _, message = model:embed("the moon", { prompt = "query" })
    assert.matches("it has none %(option prefix gives one as text%)", message)
  end)

  it("leaves the prompt out of the pooling if the model's files say so", function()
    local pooling = { word_embedding_dimension = 64, pooling_mode_mean_tokens = true, include_prompt = false }
    local m <close> = changed("bert", { ["1_Pooling/config.json"] = pooling, ["2_Normalize/config.json"] = "{}" })
    local ids = m.tokenizer:sequence "moon: the cat"
    local s <close> = m:session()
    assert(s:feed(ids, { want = "all" }))
    local prompt = #m.tokenizer:sequence "moon: " - 1
    local sum = s:logits(prompt + 1)
    for t = prompt + 2, #ids do sum = sum + s:logits(t) end
    assert.is_true(vectors.cosine(m:embed("the cat", { prefix = "moon: " }), sum:totable()) > 0.999999)
    assert.is_true(vectors.cosine(m:embed("the cat", { prefix = "moon: " }), model:embed("moon: the cat"):totable()) < 0.9999)
  end)

  local function rows(ids)
    local s <close> = model:session()
    assert(s:feed(ids, { want = "all" }))
    local list = {}
    for t = 1, #ids do list[t] = s:logits(t):totable() end
    return list
  end

  -- Each way to pool, said in Lua.
  local WAYS = {
    cls = function(r) return r[1] end, lasttoken = function(r) return r[#r] end,
    mean = function(r, c) local s = 0 for _, x in ipairs(r) do s = s + x[c] end return s / #r end,
    mean_sqrt_len_tokens = function(r, c) local s = 0 for _, x in ipairs(r) do s = s + x[c] end return s / math.sqrt(#r) end,
    max = function(r, c) local s = -math.huge for _, x in ipairs(r) do s = math.max(s, x[c]) end return s end,
    weightedmean = function(r, c)
      local s = 0
      for t, x in ipairs(r) do s = s + t * x[c] end
      return s / (#r * (#r + 1) / 2)
    end,
  }
  local IDS = { 2, 60, 17, 3, 44, 90, 3 }

  for mode, way in pairs(WAYS) do
    it("pools by " .. mode, function()
      local m <close> = changed("bert", { ["1_Pooling/config.json"] = { embedding_dimension = 64, pooling_mode = mode } })
      local got, r, want = m:embed(IDS, { normalise = false }):totable(), rows(IDS), {}
      for c = 1, 64 do
        local x = way(r, c)
        want[c] = type(x) == "table" and x[c] or x
      end
      for c = 1, 64 do assert.near(want[c], got[c], 1e-5) end
    end)
  end

  it("joins the vectors of several ways to pool", function()
    local both = { word_embedding_dimension = 64, pooling_mode_cls_token = true, pooling_mode_max_tokens = true }
    local m <close> = changed("bert", { ["1_Pooling/config.json"] = both })
    local v = m:embed(IDS, { normalise = false })
    assert.same({ 128 }, v:shape())
    assert.near(rows(IDS)[1][5], v[5], 1e-6)
  end)

  it("runs dense layers with bias and tanh", function()
    local modules = assert(core.json_decode(assert(core.read_file(hf.path "embedding_gemma" .. "/modules.json"))))
    table.remove(modules) -- Normalize
    local dense = { in_features = 64, out_features = 192, bias = false, activation_function = "torch.nn.modules.activation.Tanh" }
    local plain <close> = changed("embedding_gemma", { ["modules.json"] = { modules[1], modules[2], modules[3] } })
    local curved <close> = changed("embedding_gemma", {
      ["modules.json"] = { modules[1], modules[2], modules[3] }, ["2_Dense/config.json"] = dense,
    })
    local a, b = plain:embed(IDS):totable(), curved:embed(IDS):totable()
    assert.equal(192, #a)
    for i, x in ipairs(a) do assert.near((1 - math.exp(-2 * x)) / (1 + math.exp(-2 * x)), b[i], 1e-5) end
  end)

  it("takes the mean of an encoder without modules.json", function()
    local folder = copy("bert", {})
    os.remove(folder .. "/modules.json")
    local m <close> = assert(ane.load(folder, { activations = "fp32" }))
    assert.is_true(vectors.cosine(m:embed(IDS), model:embed(IDS):totable()) > 0.999999)
    assert.is_true(math.abs(m:embed(IDS):dot(m:embed(IDS)) - 1) > 0.1)
  end)

  it("refuses sizes that are not those of the weights", function()
    local function refused(name, file, change)
      local path = file .. "/config.json"
      local config = assert(core.json_decode(assert(core.read_file(hf.path(name) .. "/" .. path))))
      change(config)
      local m <close> = changed(name, { [path] = config })
      local v, message, code = m:embed(IDS)
      assert.same({ nil, "shape" }, { v, code })
      return message
    end
    assert.matches("1_Pooling/config.json: word_embedding_dimension is 65, the model's states have 64 channels",
      refused("bert", "1_Pooling", function(c) c.word_embedding_dimension = 65 end), 1, true)
    assert.matches("2_Dense/config.json: in_features is 63, the weights have 64",
      refused("embedding_gemma", "2_Dense", function(c) c.in_features = 63 end), 1, true)
    assert.matches("2_Dense/config.json: out_features is 64, the weights have 192",
      refused("embedding_gemma", "2_Dense", function(c) c.out_features = 64 end), 1, true)
  end)

  it("refuses weights of modules that are not finite, in an export too", function()
    local file = "2_Dense/model.safetensors"
    local bytes = assert(core.read_file(hf.path "embedding_gemma" .. "/" .. file))
    for _, number in ipairs { math.huge, 0 / 0 } do -- the last number of the last tensor
      local m <close> = changed("embedding_gemma", { [file] = bytes:sub(1, -5) .. ("<f"):pack(number) })
      local out = os.tmpname()
      os.remove(out)
      for _, result in ipairs { table.pack(m:embed(IDS)), table.pack(m:export(out, { weights = "int8", context = 16 })) } do
        assert.same({ nil, "invalid" }, { result[1], result[3] })
        assert.matches("/2_Dense/model.safetensors: tensor linear.weight has an element that is not finite", result[2], 1, true)
      end
      os.execute(("rm -rf '%s' '%s.partial'"):format(out, out))
    end
  end)

  it("refuses modules, poolings and activations that are not known", function()
    local function refused(changes)
      local m <close> = changed("bert", changes)
      local _, message, code = m:embed(IDS)
      return message, code
    end
    local pooling = { idx = 0, path = "1_Pooling", type = "sentence_transformers.models.Pooling" }
    local message, code = refused { ["modules.json"] = { pooling, { idx = 1, path = "2_LSTM", type = "x.LSTM" } } }
    assert.matches("modules.json%[1%]: module x.LSTM is not known", message)
    assert.equal("unsupported", code)
    assert.matches("leads out of the folder", (refused { ["modules.json"] = { pooling, { path = "../x", type = "x.Dense" } } }))
    assert.matches("pooling_mode 'median' is not known", (refused { ["1_Pooling/config.json"] = { pooling_mode = "median" } }))
    assert.matches("pooling_mode_mean_tokens: must be true or false",
      (refused { ["1_Pooling/config.json"] = { pooling_mode_mean_tokens = 1 } }))
    for _, config in ipairs { { pooling_mode = core.json_array {} }, { pooling_mode_mean_tokens = false } } do
      assert.matches("1_Pooling/config.json: no pooling mode is chosen", (refused { ["1_Pooling/config.json"] = config }), 1, true)
    end
  end)

  it("refuses a Dense module whose bias is no flag", function()
    local path = "2_Dense/config.json"
    local config = assert(core.json_decode(assert(core.read_file(hf.path "embedding_gemma" .. "/" .. path))))
    config.bias = "x"
    local m <close> = changed("embedding_gemma", { [path] = config })
    local _, message = m:embed(IDS)
    assert.matches("2_Dense/config.json.bias: must be true or false", message, 1, true)
  end)

  it("refuses empty lists, ids beyond the vocabulary and, without a tokenizer, texts", function()
    local _, message, code = model:embed {}
    assert.same({ "no texts are given", "range" }, { message, code })
    _, message, code = model:embed { { 1, 2 }, { 3, 512 } }
    assert.same({ "entry 2: id 512 at place 2 is not in 0 .. 511", "range" }, { message, code })
    assert.matches("entry 1: the list of ids is empty", (select(2, model:embed { {} })))
    local bare <close> = assert(ane.load(hf.path "nomic_bert"))
    assert.matches("the model has no tokenizer: give token ids instead of texts", (select(2, bare:embed "text")))
  end)

  it("puts nothing before lists of ids and cuts nothing off", function()
    local prompted <close> = changed("bert", { ["config_sentence_transformers.json"] = { prompts = { query = "moon: " } } })
    local whole = "cannot be combined with token ids, which are whole sequences"
    assert.same({ nil, "option prompt " .. whole, "invalid" }, { prompted:embed({ 1, 2 }, { prompt = "query" }) })
    assert.same({ nil, "entry 2: option prefix " .. whole, "invalid" }, { model:embed({ "a", { 1, 2 } }, { prefix = "moon: " }) })
    assert.same({ nil, "3 ids, but option max_length is 2, and ids are not truncated", "range" },
      { model:embed({ 1, 2, 3 }, { max_length = 2 }) })
    assert.same(model:embed({ 1, 2, 3 }):totable(), model:embed({ 1, 2, 3 }, { max_length = 3 }):totable())
  end)

  it("raises where an argument is of a wrong type", function()
    assert.has_error(function() model:embed(7) end,
      "embed: the input must be a text, a list of token ids, or a list of them, but is a number")
    assert.has_error(function() model:embed { "a", true } end, "embed: the input: entry 2 is a boolean, not a text or a list of token ids")
    assert.has_error(function() model:embed { 1, 2.5 } end, "entry 2 of the ids is 2.5, not a token id")
    assert.error_matches(function() model:embed("a", { dim = 3 }) end, 'unknown option "dim"')
  end)
end)

describe("similarity", function()
  it("is the cosine of texts or embeddings, or a matrix of them", function()
    local a, b = "The cat sat on the mat.", "Paris is the capital."
    local x = assert(model:similarity(a, b))
    assert.near(vectors.cosine(model:embed(a), model:embed(b):totable()), x, 1e-6)
    assert.near(x, model:similarity(model:embed(a), b), 1e-9)
    local m = assert(model:similarity({ a, b }, model:embed { a, b, b }))
    assert.same({ 2, 3 }, m:shape())
    assert.near(1, m[1][1], 1e-5)
    assert.near(x, m[1][3], 1e-5)
  end)

  it("uses the function that the model's files name", function()
    local a, b = model:embed "The cat", model:embed "Paris"
    local d = a - b
    local sum = 0
    for _, x in ipairs(d:totable()) do sum = sum + math.abs(x) end
    for name, want in pairs { dot = a:dot(b), euclidean = -math.sqrt(d:dot(d)), manhattan = -sum } do
      local m <close> = changed("bert", { ["config_sentence_transformers.json"] = { similarity_fn_name = name } })
      assert.near(want, m:similarity(a, b), 1e-5)
    end
  end)
end)
