-- ONNX bundles by recipe and by graph against what numpy computes of their stored weights (spec/fixtures/onnx/make.py).
local ane = require "ane"
local core = require "ane.core"

local FOLDER = "spec/fixtures/onnx/"

local function golden(name)
  local g = assert(core.json_decode(assert(core.read_file(FOLDER .. name .. "/golden.json"))))
  for i, id in ipairs(g.ids) do g.ids[i] = math.tointeger(id) end
  return g
end

-- Largest |got - want| / (1 + |want|), and the least cosine of a row.
local function apart(model, g)
  local session <close> = assert(model:session())
  assert(session:feed(g.ids, { want = "all" }))
  local worst, cosine = 0, 1
  for i, row in ipairs(g.logits) do
    local d = session:logits(i):compare(ane.tensor(row))
    worst, cosine = math.max(worst, d.max_scaled), math.min(cosine, d.cosine)
  end
  return worst, cosine
end

local function load(name, opts)
  opts.threads = 1
  return ane.load(FOLDER .. name, opts)
end

-- Matrices by form.
local function forms(model)
  local count = {}
  for _, row in ipairs(model:info().kernels) do count[row.form] = (count[row.form] or 0) + row.matrices end
  return count
end

-- What each bundle is built as, and how its matrices are held.
local BUNDLES = {
  mixed = { architecture = "llama", forms = { fp32 = 4, nbits4 = 6, nbits8 = 3, nbits4_16 = 1, nbits8_16 = 1 } },
  odd = { architecture = "qwen2", forms = { fp32 = 15 } },
  half = { architecture = "llama", forms = { q4_0 = 10, q8_0 = 3, nbits4 = 2 } },
  windows = { architecture = "qwen2", forms = { fp32 = 22 } },
  gemma = { architecture = "gemma3_text", forms = { nbits4 = 22 } },
}

for name, want in pairs(BUNDLES) do
  describe("the bundle " .. name, function()
    local g = golden(name)

    it("gives the golden logits by its recipe, its weights held as stored", function()
      local model <close> = assert(load(name, { activations = "fp32" }))
      assert.same({ "recipe", nil, want.architecture }, { model.engine, model.engine_reason, model.architecture })
      assert.is_true(apart(model, g) <= 1e-4)
      assert.same(want.forms, forms(model))
    end)

    it("gives them by its graph", function()
      local model <close> = assert(load(name, { activations = "fp32", engine = "graph" }))
      assert.same({ "graph", "asked for" }, { model.engine, model.engine_reason })
      assert.is_true(apart(model, g) <= 1e-4)
    end)

    it("comes near them with int8 activations", function()
      local model <close> = assert(load(name, {}))
      local _, cosine = apart(model, g)
      assert.is_true(cosine > 0.998, cosine)
    end)

    it("goes on with the same tokens by both engines, cached or not", function()
      local replies = {}
      for i, engine in ipairs { "recipe", "graph" } do
        local model <close> = assert(load(name, { activations = "fp32", engine = engine }))
        replies[i] = assert(model:generate(g.ids, { max_tokens = 20, details = true, eos = {} })).ids
      end
      assert.same(replies[1], replies[2])
    end)

    it("takes other forms of weights, and traces", function()
      local model <close> = assert(load(name, { weights = "q8_0", activations = "fp32" }))
      local _, cosine = apart(model, g)
      assert.is_true(cosine > 0.99, cosine)
      local values = assert(model:trace(g.ids, "layers.1.ffn_down"))
      assert.same({ #g.ids, model:info().config.d_model }, values["layers.1.ffn_down"]:shape())
    end)
  end)
end

-- The bundle `windows` after onnxruntime.quantization.quantize_dynamic(weight_type = QuantType.QUInt8), with onnxruntime's logits.
describe("a bundle with dynamically quantised weights", function()
  it("gives the logits of onnxruntime by its graph, all or only the last", function()
    local model <close> = assert(load("quantised", {}))
    local g = golden "quantised"
    assert.equal("graph", model.engine)
    assert.is_true(apart(model, g) <= 1e-5)
    local session <close> = assert(model:session())
    assert(session:feed(g.ids))
    assert.is_true(session:logits():compare(ane.tensor(g.logits[#g.logits])).max_scaled <= 1e-5)
  end)
end)

describe("a bundle with a node that no recipe has", function()
  local g = golden "extra"

  it("runs by its graph and says which node", function()
    local model <close> = assert(load("extra", { activations = "fp32" }))
    assert.equal("graph", model.engine)
    assert.truthy(model.engine_reason:find("node n29 (Mul)", 1, true), model.engine_reason)
    assert.equal(model.engine_reason, model:info().engine_reason)
    assert.is_true(apart(model, g) <= 1e-4)
  end)

  it("is refused where a recipe is asked for", function()
    local model, message, code = load("extra", { engine = "recipe" })
    assert.is_nil(model)
    assert.equal("unsupported", code)
    assert.truthy(message:find("node n29 (Mul)", 1, true), message)
  end)
end)

describe("a recipe given for a bundle", function()
  it("is taken where it computes the graph", function()
    local model <close> = assert(load("mixed", { recipe = "models/llama.lua", activations = "fp32" }))
    assert.is_true(apart(model, golden "mixed") <= 1e-4)
  end)

  it("is refused where it does not, with the node", function()
    local model, message, code = load("windows", { recipe = "models/llama.lua" })
    assert.is_nil(model)
    assert.equal("unsupported", code)
    assert.truthy(message:find("has window 4, the recipe 0", 1, true), message)
  end)

  it("has no meaning for the graph", function()
    local model, _, code = load("mixed", { recipe = "models/llama.lua", engine = "graph" })
    assert.is_nil(model)
    assert.equal("invalid", code)
  end)
end)

describe("a repository with its model in a folder onnx", function()
  local folder

  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir -p '%s/onnx'"):format(folder)))
    local function put(name, text) assert(core.write_file(folder .. "/" .. name, text)) end
    put("onnx/model_q4.onnx", assert(core.read_file(FOLDER .. "mixed/model.onnx")))
    put("config.json", '{"model_type": "llama", "eos_token_id": 3, "max_position_embeddings": 64, "head_dim": 16}')
    put("generation_config.json", '{"eos_token_id": [5, 6]}')
    local vocab = {}
    for i = 0, 95 do vocab[i + 1] = ('"%s": %d'):format(i < 26 and string.char(97 + i) or "<" .. i .. ">", i) end
    put("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE", "vocab": {' .. table.concat(vocab, ", ") .. '}, "merges": []}}')
    put("tokenizer_config.json", '{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}')
  end)
  teardown(function() os.execute(("rm -r '%s'"):format(folder)) end)

  it("runs texts and messages with the tokenizer above it", function()
    for _, path in ipairs { folder, folder .. "/", folder .. "/onnx/model_q4.onnx" } do
      for _, engine in ipairs { "recipe", "graph" } do
        local model <close> = assert(ane.load(path, { engine = engine, threads = 1 }))
        assert.equal(64, model.context)
        assert.same({ 0, 1, 2 }, model.tokenizer:encode "abc")
        assert.same({ 5, 6 }, model.tokenizer.eos_ids)
        local reply = assert(model:generate({ { role = "user", content = "cab" } }, { max_tokens = 3, details = true, eos = {} }))
        assert.same({ 2, 0, 1 }, reply.prompt_ids)
        assert.equal(3, #reply.ids)
      end
    end
  end)
end)

describe("a graph changed in one place", function()
  -- loads `name` with `from` in its bytes become `to`
  local function changed(name, from, to, opts)
    assert.equal(#from, #to)
    local bytes = assert(core.read_file(FOLDER .. name .. "/model.onnx"))
    local at = assert(bytes:find(from, 1, true))
    local path = os.tmpname()
    assert(core.write_file(path, bytes:sub(1, at - 1) .. to .. bytes:sub(at + #from)))
    local model, message, code = ane.load(path, opts)
    os.remove(path)
    return model, message, code
  end

  it("is not built by a recipe where an attribute is not known", function()
    local model, message = changed("windows", "do_rotary", "do_r0tary", { engine = "recipe" })
    assert.is_nil(model)
    assert.truthy(message:find("attribute do_r0tary is not known", 1, true), message)
  end)

  it("is not built by a recipe where a rope table has one other number", function()
    -- sine of row 1 in windows' tables: sin(1), then sin(1) again, but for the first column
    local one, other = ("<f"):pack(math.sin(1)), ("<f"):pack(0.5)
    local model <close> = assert(changed("windows", one, other, { threads = 1 }))
    assert.equal("graph", model.engine)
    assert.truthy(model.engine_reason:find("tables that no constant frequencies give", 1, true), model.engine_reason)
  end)
end)

describe("mutated bundles", function()
  -- Whatever changes, it loads or is refused; what loads runs or fails with a message.
  it("never end the process", function()
    math.randomseed(11)
    local bytes = assert(core.read_file(FOLDER .. "mixed/model.onnx"))
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir '%s'"):format(folder)))
    assert(core.write_file(folder .. "/genai_config.json", assert(core.read_file(FOLDER .. "mixed/genai_config.json"))))
    -- the text of the graph stands between and behind the weights: change bytes near names of ops and attributes
    local places = {}
    for at in bytes:gmatch "()block_size" do places[#places + 1] = at end
    for at in bytes:gmatch "()MatMulNBits" do places[#places + 1] = at end
    for at in bytes:gmatch "()num_heads" do places[#places + 1] = at end
    for at in bytes:gmatch "()GroupQueryAttention" do places[#places + 1] = at end
    for at in bytes:gmatch "()epsilon" do places[#places + 1] = at end
    local loaded = 0
    for _ = 1, 120 do
      local changed = bytes
      for _ = 1, math.random(1, 3) do
        local at = places[math.random(#places)] + math.random(-40, 40)
        changed = changed:sub(1, at - 1) .. string.char(math.random(0, 255)) .. changed:sub(at + 1)
      end
      assert(core.write_file(folder .. "/model.onnx", changed))
      local model, message = ane.load(folder, { activations = "fp32", threads = 1, context = 64 })
      if model then
        loaded = loaded + 1
        local session <close> = assert(model:session())
        session:feed({ 1, 2, 3 }, { want = "all" })
        model:close()
      else
        assert.is_string(message)
      end
    end
    assert.is_true(loaded > 0)
    os.remove(folder .. "/model.onnx")
    os.remove(folder .. "/genai_config.json")
    os.remove(folder)
  end)
end)
