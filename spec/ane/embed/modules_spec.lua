-- Folders of sentence-transformers with other modules, limits and names than the fixtures: steps after the pooling, truncation, lower
-- case, activations and pooling of cross-encoders, names of old files.
local ane = require "ane"
local core = require "ane.core"
local hf = require "support.hf"
local tree = require "support.tree"
local vectors = require "support.vectors"
local writer = require "support.safetensors_writer"

local IDS = { 2, 60, 17, 3, 44, 90, 3 }
local FP32 = { activations = "fp32", threads = 2 }

local folders = {}
teardown(function()
  for _, folder in ipairs(folders) do tree.remove(folder) end
end)

-- A copy of a fixture with other files: text, or a table that becomes JSON.
local function copy(name, changes)
  local folder = tree.folder()
  folders[#folders + 1] = folder
  assert(os.execute(("cp -r '%s'/. '%s'"):format(hf.path(name), folder)))
  for file, text in pairs(changes) do
    if file:find "/" then assert(os.execute(("mkdir -p '%s/%s'"):format(folder, file:match "^(.*)/"))) end
    if type(text) == "table" then text = assert(core.json_encode(text)) end
    assert(core.write_file(folder .. "/" .. file, text))
  end
  return folder
end

local function changed(name, changes) return assert(ane.load(copy(name, changes), FP32)) end

local function json(path) return assert(core.json_decode(assert(core.read_file(path)))) end

-- The tensors of a fixture with the names that rename gives, and more of them.
local function tensors_of(name, rename, more)
  local source <close> = assert(core.open(hf.path(name)))
  local out = {}
  for i, t in ipairs(source:tensors()) do
    out[i] = { name = rename(t.name), dtype = "F32", shape = t.shape, data = assert(source:read(t.name)) }
  end
  return table.move(more or {}, 1, #(more or {}), #out + 1, out)
end

-- Numbers between -1 and 1 that look random.
local function numbers(n, seed)
  local out = {}
  for i = 1, n do out[i] = math.sin(seed + 1.7 * i) end
  return out
end

local function tensor(name, shape, seed)
  return { name = name, dtype = "F32", shape = shape, data = writer.f32(numbers(shape[1] * (shape[2] or 1), seed)) }
end

local function safetensors(list)
  local path = os.tmpname()
  writer.write(path, { tensors = list })
  local text = assert(core.read_file(path))
  os.remove(path)
  return text
end

local function module_list(...)
  local list = {}
  for i, entry in ipairs { ... } do
    local kind, path = table.unpack(entry)
    list[i] = { idx = i - 1, name = tostring(i - 1), path = path, type = "sentence_transformers.models." .. kind }
  end
  return list
end

local HEAD = { { "Transformer", "" }, { "Pooling", "1_Pooling" } }

-- The vector before normalisation of the fixture bert with modules after the pooling.
local function with_modules(after, files)
  local list = { HEAD[1], HEAD[2] }
  table.move(after, 1, #after, 3, list)
  files["modules.json"] = module_list(table.unpack(list))
  local m <close> = changed("bert", files)
  local v, message, code = m:embed(IDS)
  return v and v:totable(), message, code
end

local function product(weight, bias, x, rows)
  local out, columns = {}, #x
  for r = 1, rows do
    local sum = bias and bias[r] or 0
    for c = 1, columns do sum = sum + weight[(r - 1) * columns + c] * x[c] end
    out[r] = sum
  end
  return out
end

local function near(want, got, tolerance)
  assert.equal(#want, #got)
  for i, x in ipairs(want) do assert.near(x, got[i], tolerance) end
end

describe("modules after the pooling", function()
  local plain
  setup(function() plain = assert(with_modules({}, {})) end)

  local function dense(rows, columns, more)
    local config = { in_features = columns, out_features = rows, bias = true, activation_function = "torch.nn.modules.linear.Identity" }
    for key, value in pairs(more) do config[key] = value end
    return config
  end

  local ACTS = {
    ReLU = function(x) return math.max(x, 0) end, Sigmoid = function(x) return 1 / (1 + math.exp(-x)) end,
    SiLU = function(x) return x / (1 + math.exp(-x)) end,
    Tanh = function(x) return (math.exp(x) - math.exp(-x)) / (math.exp(x) + math.exp(-x)) end,
  }

  for name, act in pairs(ACTS) do
    it("are dense layers with " .. name .. ", and what they add to their input", function()
      local w, b, r = numbers(16 * 64, 1), numbers(16, 2), numbers(16 * 64, 3)
      local want, added = product(w, b, plain, 16), product(r, nil, plain, 16)
      for i, x in ipairs(want) do want[i] = act(x) + added[i] end
      near(want, assert(with_modules({ { "Dense", "2_Dense" } }, {
        ["2_Dense/config.json"] = dense(16, 64, { activation_function = "torch.nn.modules.activation." .. name, use_residual = true }),
        ["2_Dense/model.safetensors"] = safetensors {
          tensor("linear.weight", { 16, 64 }, 1), tensor("linear.bias", { 16 }, 2), tensor("residual.weight", { 16, 64 }, 3),
        },
      })), 2e-5)
    end)
  end

  it("are dense layers with the exact GELU", function()
    local at, zeros = { 1, -1, 3, -0.5, 0, 7, -7 }, {}
    for i = 1, 7 * 64 do zeros[i] = 0 end
    near({ 0.8413447461, -0.1586552539, 2.9959503059, -0.1542687694, 0, 7, 0 }, assert(with_modules({ { "Dense", "2_Dense" } }, {
      ["2_Dense/config.json"] = dense(7, 64, { activation_function = "torch.nn.modules.activation.GELU" }),
      ["2_Dense/model.safetensors"] = safetensors {
        { name = "linear.weight", dtype = "F32", shape = { 7, 64 }, data = writer.f32(zeros) },
        { name = "linear.bias", dtype = "F32", shape = { 7 }, data = writer.f32(at) },
      },
    })), 1e-6)
  end)

  it("are norms, in the order of modules.json", function()
    local w, b = numbers(64, 1), numbers(64, 2)
    local length, mean, var = 0, 0, 0
    for _, x in ipairs(plain) do length = length + x * x end
    local unit = {}
    for i, x in ipairs(plain) do unit[i] = x / math.sqrt(length) end
    for _, x in ipairs(unit) do mean = mean + x / 64 end
    for _, x in ipairs(unit) do var = var + (x - mean) ^ 2 / 64 end
    local want = {}
    for i, x in ipairs(unit) do want[i] = (x - mean) / math.sqrt(var + 1e-5) * w[i] + b[i] end
    near(want, assert(with_modules({ { "Normalize", "2_Normalize" }, { "Dropout", "3_Dropout" }, { "LayerNorm", "4_LayerNorm" } }, {
      ["4_LayerNorm/config.json"] = { dimension = 64 },
      ["4_LayerNorm/model.safetensors"] = safetensors { tensor("norm.weight", { 64 }, 1), tensor("norm.bias", { 64 }, 2) },
    })), 1e-4)
  end)

  it("are refused where they are of another kind or shape", function()
    local function refused(config, list)
      local _, message, code = with_modules({ { "Dense", "2_Dense" } }, {
        ["2_Dense/config.json"] = config, ["2_Dense/model.safetensors"] = safetensors(list),
      })
      return message, code
    end
    local weight = tensor("linear.weight", { 16, 64 }, 1)
    assert.matches("activation_function torch.nn.Mish is not known; known are GELU, Identity, ReLU, SiLU, Sigmoid, Tanh",
      (refused(dense(16, 64, { activation_function = "torch.nn.Mish" }), { weight })))
    assert.matches("out_features: must be an integer of 0 or more, but is null",
      (refused(dense(16, 64, { out_features = core.null }), { weight })))
    assert.matches("module_input_name is 'token_embeddings', known is sentence_embedding",
      (refused(dense(16, 64, { module_input_name = "token_embeddings" }), { weight })))
    assert.matches("linear.bias has the shape %[8%], but must have %[16%]",
      (refused(dense(16, 64, {}), { weight, tensor("linear.bias", { 8 }, 1) })))
    assert.matches("2_Dense/model.safetensors: linear.weight must have 64 columns, but is %[16, 63%]",
      (refused(dense(16, 63, {}), { tensor("linear.weight", { 16, 63 }, 1) })))
    assert.matches("no tensor residual.weight", (refused(dense(16, 64, { use_residual = true }), { weight })))
    assert.matches("no tensor linear.weight", (refused(dense(16, 64, {}), { tensor("linear.bias", { 8 }, 1) })))
  end)

  it("are refused where modules.json lists none, and where a flag has another type", function()
    local function fault(changes)
      local m, message = ane.load(copy("bert", changes), FP32)
      if not m then return message end
      local _ <close> = m
      return (select(2, m:embed(IDS)))
    end
    assert.matches("/modules.json must be a list of modules, but is empty", fault { ["modules.json"] = "[]" })
    assert.matches("/modules.json must be a list, but is an object", fault { ["modules.json"] = "{}" })
    assert.matches("pooling_mode_cls_token: must be true or false, but is 'yes'",
      fault { ["1_Pooling/config.json"] = { pooling_mode_cls_token = "yes" } })
  end)
end)

describe("lengths and case", function()
  local LONG = ("moon "):rep(300)
  local function tokens(changes)
    local m <close> = changed("bert", changes)
    return assert(m:embed(LONG, { details = true })).tokens[1]
  end

  it("are those of the tokenizer where sentence_bert_config.json names no length", function()
    local config = json(hf.path "bert" .. "/tokenizer_config.json")
    config.model_max_length = 24
    assert.equal(24, tokens { ["tokenizer_config.json"] = config, ["sentence_bert_config.json"] = "{}" })
    assert.equal(17, tokens { ["tokenizer_config.json"] = config, ["sentence_bert_config.json"] = { max_seq_length = 17 } })
    config.model_max_length = 1e30
    assert.equal(128, tokens { ["tokenizer_config.json"] = config, ["sentence_bert_config.json"] = "{}" })
  end)

  it("are lower where do_lower_case is set", function()
    local tokenizer = json(hf.path "bert" .. "/tokenizer.json")
    tokenizer.normalizer.lowercase = false
    tokenizer.normalizer.strip_accents = core.null
    local cased <close> = changed("bert", { ["tokenizer.json"] = tokenizer })
    local lower <close> = changed("bert", {
      ["tokenizer.json"] = tokenizer, ["sentence_bert_config.json"] = { max_seq_length = 128, do_lower_case = true },
    })
    local text = "The CAT and the Moon"
    assert.is_true(vectors.cosine(cased:embed(text), lower:embed(text):totable()) < 0.9999)
    assert.equal(cased:embed(text:lower()):tostring(), lower:embed(text):tostring())
  end)
end)

describe("truncate_dim", function()
  local function of(n, dense)
    local files = { ["config_sentence_transformers.json"] = { truncate_dim = n } }
    for file, text in pairs(dense or {}) do files[file] = text end
    return changed("bert", files)
  end

  -- sentence-transformers 6.2 truncates after all modules, so the part of a normalised vector is shorter than 1.
  it("keeps the first numbers of what all modules give", function()
    local whole <close> = assert(ane.load(hf.path "bert", FP32))
    local m <close> = of(16)
    local full, v = assert(whole:embed(IDS)), assert(m:embed(IDS))
    assert.same({ 16 }, v:shape())
    assert.equal(full:slice(1, 1, 16):tostring(), v:tostring())
    assert.near(1, full:dot(full), 1e-6)
    local one = assert(m:embed(IDS, { normalise = true }))
    assert.near(1, one:dot(one), 1e-6)
    assert.same({ 24 }, assert(m:embed(IDS, { dims = 24 })):shape()) -- in place of the model's own
    assert.equal(whole:embed(IDS, { dims = 24 }):tostring(), m:embed(IDS, { dims = 24 }):tostring())
    assert.equal(whole:embed(IDS, { normalise = false }):slice(1, 1, 16):tostring(), m:embed(IDS, { normalise = false }):tostring())
    local all <close> = of(500)
    assert.equal(full:tostring(), all:embed(IDS):tostring())
  end)

  it("is a whole number of at least 1, or null", function()
    local none <close> = of(core.null)
    assert.same({ 64 }, assert(none:embed(IDS)):shape())
    for value, what in pairs { [0] = "truncate_dim is 0", ["16"] = "truncate_dim" } do
      local m <close> = of(value)
      local v, message, code = m:embed(IDS)
      assert.same({ nil, "format" }, { v, code })
      assert.matches(what, message, 1, true)
    end
  end)
end)

describe("files of cross-encoders", function()
  it("name the activation in config_sentence_transformers.json", function()
    local function score(name)
      local m <close> = changed("cross_encoder", { ["config_sentence_transformers.json"] = { activation_fn = name } })
      return m:rerank("a cat", { "the moon" })[1], m:rerank("a cat", { "the moon" }, { raw = true })[1]
    end
    local plain, raw = score "torch.nn.modules.linear.Identity"
    assert.equal(raw, plain)
    assert.near(1 / (1 + math.exp(-raw)), (score "torch.nn.modules.activation.Sigmoid"), 1e-6)
  end)

  it("say whether there are token types, and the longest pair", function()
    local config = json(hf.path "cross_encoder" .. "/tokenizer_config.json")
    local function types(key, value)
      local old = config[key]
      config[key] = value
      local m <close> = changed("cross_encoder", { ["tokenizer_config.json"] = config })
      config[key] = old
      local _, list = m.tokenizer:pair("a cat", "the moon")
      return list[#list]
    end
    assert.equal(1, types("tokenizer_class", "BertTokenizer"))
    assert.equal(0, types("tokenizer_class", "TokenizersBackend"))
    assert.equal(0, types("model_input_names", { "input_ids", "attention_mask" }))
    config.tokenizer_class = "TokenizersBackend"
    assert.equal(1, types("model_input_names", { "input_ids", "token_type_ids" }))
    config.tokenizer_class, config.model_max_length = "BertTokenizer", 20
    local m <close> = changed("cross_encoder", { ["tokenizer_config.json"] = config })
    local whole <close> = assert(ane.load(hf.path "cross_encoder", FP32))
    local long = { ("moon "):rep(60) }
    assert.equal(whole:rerank("a cat", long, { max_length = 20 })[1], m:rerank("a cat", long)[1])
  end)

  it("of ModernBERT read the mean of the states, with an activation of their own", function()
    local more = {
      tensor("head.dense.weight", { 64, 64 }, 1), tensor("head.norm.weight", { 64 }, 2), tensor("classifier.weight", { 1, 64 }, 3),
      tensor("classifier.bias", { 1 }, 4),
    }
    local config = json(hf.path "modernbert" .. "/config.json")
    config.classifier_pooling, config.classifier_activation = "mean", "silu"
    local m <close> = changed("modernbert", {
      ["config.json"] = config, ["model.safetensors"] = safetensors(tensors_of("modernbert", function(n) return n end, more)),
    })
    local states <close> = changed("modernbert", { ["1_Pooling/config.json"] = { embedding_dimension = 64, pooling_mode = "mean" } })
    local x = product(numbers(64 * 64, 1), nil, states:embed(IDS, { normalise = false }):totable(), 64)
    local mean, var = 0, 0
    for i, v in ipairs(x) do x[i] = v / (1 + math.exp(-v)) end
    for _, v in ipairs(x) do mean = mean + v / 64 end
    for _, v in ipairs(x) do var = var + (v - mean) ^ 2 / 64 end
    local norm = numbers(64, 2)
    for i, v in ipairs(x) do x[i] = (v - mean) / math.sqrt(var + config.norm_eps) * norm[i] end
    local want = product(numbers(64, 3), numbers(1, 4), x, 1)[1]
    assert.near(want, m:rerank(nil, { IDS }, { raw = true })[1], 2e-4 * (1 + math.abs(want)))
    assert.matches("mean of the states cannot be exported", (select(2, m:export(tree.folder() .. "/x", { fixed_t = { 16 } }))))
  end)
end)

it("Norms called gamma and beta are those of files converted from TensorFlow", function()
  local function old(name) return (name:gsub("LayerNorm%.weight$", "LayerNorm.gamma"):gsub("LayerNorm%.bias$", "LayerNorm.beta")) end
  local m <close> = changed("bert", { ["model.safetensors"] = safetensors(tensors_of("bert", old)) })
  local whole <close> = assert(ane.load(hf.path "bert", FP32))
  assert.equal(whole:embed(IDS):tostring(), m:embed(IDS):tostring())
end)
