-- Embedding models and rerankers as package sets and as Core AI assets of fixed T, against the executor.
local ane = require "ane"
local core = require "ane.core"
local coreai = require "support.coreai"
local exporter = require "ane.coreml.export"
local hf = require "support.hf"
local tree = require "support.tree"
local vectors = require "support.vectors"

local MODELS = { "bert", "xlm_roberta", "modernbert", "nomic_bert", "embedding_gemma", "qwen3_embedding" }
local RERANKERS = { cross_encoder = "Identity", cross_encoder_xlmr = "Sigmoid" } -- activation of the scores

-- Ids of different lengths; 3 .. 200 are words of every fixture.
local LISTS = {}
for i, n in ipairs { 5, 16, 24, 1 } do
  LISTS[i] = {}
  for t = 1, n do LISTS[i][t] = (t * (5 + 2 * i)) % 190 + 3 end
end

describe("an encoder as packages or an asset", function()
  local dir, folders = nil, {}
  before_each(function() dir = os.tmpname(); os.remove(dir) end)
  after_each(function()
    os.execute("rm -rf " .. dir .. " " .. dir .. ".partial")
    for _, folder in ipairs(folders) do tree.remove(folder) end
    folders = {}
  end)

  local function export(path, opts)
    opts.weights = opts.weights or "fp16"
    os.execute("rm -rf " .. dir)
    return assert(exporter.of_path(path, dir, opts))
  end

  -- A copy of a fixture with other files.
  local function changed(name, files)
    local folder = tree.folder()
    folders[#folders + 1] = folder
    assert(os.execute(("cp -r '%s'/. '%s'"):format(hf.path(name), folder)))
    for file, value in pairs(files) do assert(core.write_file(folder .. "/" .. file, (assert(core.json_encode(value))))) end
    return folder
  end

  -- Cosine, and each number within fp16 tolerance.
  local function near(want, got, what)
    assert.is_true(vectors.cosine(got, want:totable()) > 0.99999, what)
    local list = type(got) == "userdata" and got:totable() or got
    for k, x in ipairs(want:totable()) do
      if math.abs(x - list[k]) > 3e-3 * (1 + math.abs(x)) then error(("%s: number %d: %g, wanted %g"):format(what, k, list[k], x)) end
    end
  end

  -- The inputs of a function of an asset for a sequence; pooled: first token that is pooled.
  local function inputs_of(f, ids, types, pooled)
    local t = f.inputs[1].shape[2]
    local columns = { input_ids = {}, attention_mask = {}, token_type_ids = {}, pooling_mask = {} }
    for i = 1, t do
      columns.input_ids[i], columns.token_type_ids[i] = ids[i] or 0, types and types[i] or 0
      columns.attention_mask[i] = ids[i] and 1 or 0
      columns.pooling_mask[i] = ids[i] and i >= (pooled or 1) and 1 or 0
    end
    local inputs = {}
    for _, port in ipairs(f.inputs) do inputs[port.name] = { dtype = port.dtype, shape = port.shape, data = columns[port.name] } end
    return inputs
  end

  -- The smallest function of an asset that holds a sequence.
  local function function_for(report, n)
    for _, f in ipairs(report.functions) do
      if f.inputs[1].shape[2] >= n then return f end
    end
  end

  local function predict(report, ids, types, pooled)
    local f = function_for(report, #ids)
    local pkg <close> = assert(ane.package(report.path))
    local out = assert(pkg:predict(inputs_of(f, ids, types, pooled), nil, { ["function"] = f.name }))
    local y = out[f.outputs[1].name]
    return y:reshape { #y }
  end

  local function sets_agree(path, opts, weights, each)
    -- As a rule for names, int8 has one scale per tensor here too, as packages have.
    local source <close> = assert(ane.load(path, { mixed = { ["*"] = weights or "fp16" }, activations = "fp32", threads = 2 }))
    export(path, opts)
    for _, engine in ipairs { "recipe", "graph" } do
      local set <close> = assert(ane.load(dir, { engine = engine, activations = engine == "recipe" and "fp32" or nil, threads = 2 }))
      assert.equal(engine == "recipe" and "recipe" or "packages", set.engine)
      each(source, set, engine)
    end
  end

  for _, name in ipairs(MODELS) do
    local many = { fixed_t = { 8, 24 }, functions = "many", weights = "int8", layout = "c1t", norm = "fp32" }
    for _, case in ipairs { { fixed_t = { 24 } }, (name == "bert" or name == "qwen3_embedding") and many or nil } do
      it(("gives the executor's embeddings: packages of %s, %s"):format(name, case.functions or "one function"), function()
        sets_agree(hf.path(name), case, case.weights, function(source, set, engine)
          assert.equal("embedding", set.config.kind)
          local want, got = assert(source:embed(LISTS)), assert(set:embed(LISTS))
          for i = 1, #LISTS do near(want[i], got[i], engine .. " " .. i) end
        end)
      end)
    end

    it("gives the executor's embeddings: asset of " .. name, function()
      local source <close> = assert(ane.load(hf.path(name), { weights = "fp16", activations = "fp32", threads = 2 }))
      local report, want = export(hf.path(name), { target = "coreai", fixed_t = { 1, 8, 24 } }), assert(source:embed(LISTS))
      for i, ids in ipairs(LISTS) do near(want[i], predict(report, ids), "sequence " .. i) end
    end)
  end

  for name, score in pairs(RERANKERS) do
    it("gives the executor's scores: " .. name, function()
      local function close(want, got)
        for i, x in ipairs(want) do assert.near(x, got[i], 3e-3 * (1 + math.abs(x))) end
      end
      sets_agree(hf.path(name), { fixed_t = { 24 } }, nil, function(source, set)
        close(assert(source:rerank(nil, LISTS)), assert(set:rerank(nil, LISTS)))
        if source.tokenizer then
          close(assert(source:rerank("a cat", { "the moon", "a cat sat" })), assert(set:rerank("a cat", { "the moon", "a cat sat" })))
        end
      end)
      local source <close> = assert(ane.load(hf.path(name), { weights = "fp16", activations = "fp32", threads = 2 }))
      local report = export(hf.path(name), { target = "coreai", fixed_t = { 24 } })
      local want = assert(source:rerank(nil, LISTS, { raw = true }))
      for i, ids in ipairs(LISTS) do assert.near(want[i], predict(report, ids):totable()[1], 3e-3 * (1 + math.abs(want[i]))) end
      local meta = core.json_decode(assert(core.read_file(dir .. "/metadata.json")))
      assert.same({ "encoder", "reranker", score }, { meta.kind, meta.encoder.task, meta.encoder.score })
    end)
  end

  it("takes token types", function()
    local name, ids, types = hf.path "cross_encoder", LISTS[3], {}
    for i = 1, #ids do types[i] = i > 10 and 1 or 0 end
    local report = export(name, { target = "coreai", fixed_t = { 24 } })
    local plain, typed = predict(report, ids):totable()[1], predict(report, ids, types):totable()[1]
    assert.is_true(math.abs(plain - typed) > 1e-3)
    assert.same({ "input_ids", "attention_mask", "token_type_ids" },
      { report.functions[1].inputs[1].name, report.functions[1].inputs[2].name, report.functions[1].inputs[3].name })
  end)

  -- sentence-transformers' poolings; of several, the vectors are concatenated.
  local POOLINGS = { { "cls" }, { "lasttoken" }, { "max" }, { "mean_sqrt_len_tokens" }, { "weightedmean" }, { "cls", "max", "mean" } }
  for _, modes in ipairs(POOLINGS) do
    it("pools by " .. table.concat(modes, ", "), function()
      local folder = changed("bert", { ["1_Pooling/config.json"] = { word_embedding_dimension = 64, pooling_mode = modes } })
      sets_agree(folder, { fixed_t = { 24 } }, nil, function(source, set, engine)
        local want, got = assert(source:embed(LISTS)), assert(set:embed(LISTS))
        for i = 1, #LISTS do near(want[i], got[i], engine .. " " .. i) end
      end)
      local source <close> = assert(ane.load(folder, { weights = "fp16", activations = "fp32", threads = 2 }))
      local report, want = export(folder, { target = "coreai", fixed_t = { 24 } }), assert(source:embed(LISTS))
      for i, ids in ipairs(LISTS) do near(want[i], predict(report, ids), "sequence " .. i) end
    end)
  end

  it("leaves the prompt out of pooling, by a mask of an asset", function()
    local folder = changed("bert", {
      ["1_Pooling/config.json"] = { word_embedding_dimension = 64, pooling_mode_mean_tokens = true, include_prompt = false },
      ["config_sentence_transformers.json"] = { prompts = { query = "the moon: " } },
    })
    local source <close> = assert(ane.load(folder, { weights = "fp16", activations = "fp32", threads = 2 }))
    local want = assert(source:embed("a cat sat", { prompt = "query" }))
    local prompt, ids = source.tokenizer:sequence "the moon: ", source.tokenizer:sequence "the moon: a cat sat"
    local report = export(folder, { target = "coreai", fixed_t = { 24 } })
    near(want, predict(report, ids, nil, #prompt), "asset")
    sets_agree(folder, { fixed_t = { 24 } }, nil, function(_, set, engine)
      near(want, assert(set:embed("a cat sat", { prompt = "query" })), engine)
    end)
  end)

  it("lowercases texts as the folder says", function()
    local json = assert(core.json_decode(assert(core.read_file(hf.path "bert" .. "/tokenizer.json"))))
    json.normalizer.lowercase, json.normalizer.strip_accents = false, false
    local sentence = { max_seq_length = 128, do_lower_case = true }
    local folder = changed("bert", { ["tokenizer.json"] = json, ["sentence_bert_config.json"] = sentence })
    for _, target in ipairs { "coreml", "coreai-sharded" } do
      export(folder, { fixed_t = { 16 }, target = target })
      local set <close> = assert(ane.load(dir))
      local model <close> = assert(ane.load(folder))
      local text = "Hello THERE World"
      assert.same(model.tokenizer:encode(text), set.tokenizer:encode(text))
      assert.same(model.tokenizer:encode(text:lower()), set.tokenizer:encode(text))
      assert(assert(exporter.of_path(folder, dir, { fixed_t = { 16 }, target = target })).ok) -- over the first one
    end
  end)

  it("keeps dense layers, prompts and dims", function()
    sets_agree(hf.path "embedding_gemma", { fixed_t = { 24 } }, nil, function(source, set, engine)
      local opts = { dims = 16, normalise = false }
      near(assert(source:embed(LISTS[1], opts)), assert(set:embed(LISTS[1], opts)), engine)
      assert.error_matches(function() assert(set:embed("a cat", { prompt = "nonsense" })) end, "its prompts are .*query")
    end)
  end)

  it("truncates vectors of a set as the model does, and refuses an asset of such a model", function()
    local folder = changed("bert", { ["config_sentence_transformers.json"] = { truncate_dim = 10 } })
    sets_agree(folder, { fixed_t = { 24 } }, nil, function(source, set, engine)
      local want, got = assert(source:embed(LISTS[1])), assert(set:embed(LISTS[1]))
      assert.same({ 10 }, got:shape())
      near(want, got, engine)
    end)
    os.execute("rm -rf " .. dir)
    local report, message, code = exporter.of_path(folder, dir, { target = "coreai", fixed_t = { 24 } })
    assert.same({ nil, "unsupported" }, { report, code })
    assert.matches("truncate_dim of config_sentence_transformers.json cannot be exported", message, 1, true)
  end)

  it("refuses what such a model does not have", function()
    local function fault(name, opts)
      local report, message, code = exporter.of_path(hf.path(name), dir, opts)
      assert.is_nil(report)
      return code .. ": " .. message
    end
    local few = "^invalid: .*position_embeddings.weight has %d+ positions, but a call has 4096 tokens"
    assert.matches(few, fault("bert", { fixed_t = { 4096 } }))
    assert.matches(few, fault("bert", { fixed_t = { 4096 }, target = "coreai" }))
    assert.equal("unsupported: option argmax: this model gives no logits of tokens", fault("modernbert", { argmax = true }))
    assert.matches("^unsupported: option tiers", fault("qwen3_embedding", { tiers = { 16 } }))
  end)

  it("refuses a set whose pooling is damaged", function()
    export(hf.path "embedding_gemma", { fixed_t = { 24 } })
    local path = dir .. "/runtime_meta.json"
    local text = assert(core.read_file(path))
    local function fault(change)
      local meta = core.json_decode(text)
      change(meta.pooling, meta)
      assert(core.write_file(path, (core.json_encode(meta))))
      local model, message, code = ane.load(dir)
      assert.is_nil(model)
      return code .. message:match "runtime_meta.json(.*)"
    end
    assert.equal("format: pooling must be an object, but is nil", fault(function(_, meta) meta.pooling = nil end))
    assert.equal("format: pooling: there is no pooling sum", fault(function(p) p.poolings = { "sum" } end))
    assert.matches("^format: pooling: dense layer 1: dense_0.bin has %d+ bytes, but must have %d+$",
      fault(function(p) p.dense[1].rows = 3 end))
    assert.equal('format: pooling: dense layer 1: path "../x" leaves the folder', fault(function(p) p.dense[1].path = "../x" end))
    assert.equal("format: pooling: truncate must be an integer of 1 or more, but is 0.5", fault(function(p) p.truncate = 0.5 end))
    assert.equal("format: kind must be one of causal, embedding, reranker, token_classifier, but is vectors",
      fault(function(_, meta) meta.kind = "vectors" end))
  end)

  it("is planned, without states", function()
    local plan = assert(require("ane.coreml.plan").of_path(hf.path "qwen3_embedding", { target = "both", fixed_t = { 24 } }))
    assert.equal(0, plan.state_bytes)
    assert.equal(1, #plan.packages)
    for _, rule in ipairs(plan.laws) do assert.is_nil(rule.id:find "^state") end
  end)

  -- ANE_COREAI_PYTHON: a Python with Apple's coreai-core. Without it this is not run. The forms of weights take turns; with
  -- ANE_COREAI_SWEEP=all each model takes all forms.
  local python, all = os.getenv "ANE_COREAI_PYTHON", os.getenv "ANE_COREAI_SWEEP" == "all"
  local SWEPT = { "bert", "xlm_roberta", "modernbert", "nomic_bert", "embedding_gemma", "qwen3_embedding", "cross_encoder",
                  "cross_encoder_xlmr", "privacy_filter" }
  local FORMS = core.mil_schemes()

  -- The executor's result for a sequence.
  local function result_of(source, ids)
    local kind = source.config.kind
    if kind == "embedding" then return assert(source:embed { ids })[1]:totable() end
    if kind == "reranker" then
      local score = assert(source:rerank(nil, { ids }, { raw = true }))[1]
      return type(score) == "number" and { score } or score:totable()
    end
    local session <close> = assert(source:session())
    local rows = {}
    assert(session:feed(ids, { want = "all" }))
    for i = 1, #ids do table.move(session:logits(i):totable(), 1, source.config.n_labels or #source.config.labels, #rows + 1, rows) end
    return rows
  end

  -- Compares an asset in Apple's library with the executor. Padding of a classifier has labels, too, so its calls have none.
  local function check_in_apples_library(name, weights)
    local source <close> = assert(ane.load(hf.path(name), { mixed = { ["*"] = weights }, activations = "fp32", threads = 2 }))
    local report = export(hf.path(name), { target = "coreai", fixed_t = { 1, 5, 16, 24 }, weights = weights })
    local case, largest = { calls = {} }, 0
    for i, ids in ipairs(LISTS) do
      local f, y = function_for(report, #ids), result_of(source, ids)
      for _, x in ipairs(y) do largest = math.max(largest, math.abs(x)) end
      case.calls[i] = { ["function"] = f.name, inputs = inputs_of(f, ids), outputs = { [f.outputs[1].name] = { data = y } } }
    end
    case.tolerance = { atol = (weights == "fp16" and 0.01 or 0.03) + 0.01 * largest }
    assert(core.write_file(dir .. "/case.json", (core.json_encode(case))))
    for _, script in ipairs { "verify.py %s", "run.py %s %s" } do
      coreai.apple(python, script:format(report.path, dir .. "/case.json"))
    end
  end

  for i, name in ipairs(python and SWEPT or {}) do
    for k = 1, all and #FORMS or 1 do
      local weights = FORMS[(3 * i + k) % #FORMS + 1]
      it(("gives the same in Apple's library: %s in %s"):format(name, weights), function() check_in_apples_library(name, weights) end)
    end
  end
end)
