-- Package sets run by the recipe that computes them: the same numbers as the source with the same weights, every feature of the
-- executor, and op by op, with the reason, where anything differs.
local ane = require "ane"
local core = require "ane.core"
local sets = require "support.sets"
local tiny = require "support.tiny"
local tree = require "support.tree"

local HF, GGUF = "spec/fixtures/hf/", "spec/fixtures/gguf/"

-- The architectures that can be exported.
local CAUSAL = {
  HF .. "cohere-odd", HF .. "cohere2-odd", HF .. "deepseek_v2-odd", HF .. "gemma3_softcap", HF .. "glm4-odd", HF .. "glm4_moe_normed-odd",
  HF .. "ernie4_5_moe-odd", HF .. "seed_oss-odd", HF .. "gpt_oss-odd", HF .. "gpt_oss_mxfp4-odd", HF .. "granite-odd",
  HF .. "hunyuan_v1_dense", HF .. "lfm2-odd", HF .. "lfm2_moe-odd", HF .. "llama", HF .. "ministral3-odd", HF .. "olmo2-odd",
  HF .. "olmo3-odd", HF .. "phi3", HF .. "qwen2_moe-odd", HF .. "qwen2_swa", HF .. "qwen3-odd", HF .. "qwen3_moe-odd", HF .. "smollm3-odd",
  HF .. "starcoder2-odd", HF .. "zaya-odd", HF .. "zaya_original-odd", HF .. "gemma3n-odd", HF .. "gemma4-odd", HF .. "gemma4_moe-odd",
  GGUF .. "llama-kquants.gguf", GGUF .. "qwen2-odd.gguf", GGUF .. "gemma3-odd.gguf", GGUF .. "gpt_oss-odd.gguf",
}

describe("a package set run by a recipe", function()
  local out

  before_each(function() out = tree.folder() end)
  after_each(function() tree.remove(out) end)

  -- Exports a model and compares the set with the source as it computes with the exported weights.
  local function check(path, opts)
    opts.context = opts.context or 48
    local as = opts.weights == "fp16" and "file" or opts.weights
    local source <close> = assert(ane.load(path, { weights = as, activations = "fp32", context = opts.context }))
    assert(source:export(out, opts))
    sets.runs_like(source, out, path)
  end

  for _, path in ipairs(CAUSAL) do
    it("computes what the source of " .. path .. " does", function() check(path, { weights = "int8", experts = "halves" }) end)
  end

  for _, weights in ipairs(core.mil_schemes()) do
    it("reads weights stored as " .. weights .. ", without loss or larger types", function()
      check(HF .. "llama", { weights = weights })
      local set <close> = assert(ane.load(out))
      local forms = {}
      for i, row in ipairs(set:info().kernels) do forms[i] = row.form end
      assert.same({ sets.held(weights) }, forms)
    end)
  end

  for _, opts in ipairs {
    { layers = 1, slices = 3 }, { layout = "c1t", norm = "fp32" }, { rope = "constants" }, { argmax = true, max_t = 7 },
    { fixed_t = { 3 } },
    { functions = "many", fixed_t = { 1, 4 }, tiers = { 16 } }, { tiers = { 16, 32 } }, { target = 40000, size_limit = 40000 },
    { weights = "lut4-g8", slices = 2 },
    { weights = "lut6-g8", slices = 2 }, { weights = "lut3" }, { weights = "int8-block", slices = 2 },
    { weights = "uint4-block", slices = 2 },
    { mixed = { down_proj = "fp16", q_proj = "int4-block" } },
  } do
    it("takes the options " .. core.json_encode(opts, { sort = true }), function()
      opts.weights = opts.weights or "int8"
      if opts.mixed then -- what is held differs from all of one form, so the packages themselves are what to compare with
        local source <close> = assert(ane.load(HF .. "llama"))
        assert(source:export(out, opts))
        local a <close> = assert(ane.load(out, { activations = "fp32" }))
        local b <close> = assert(ane.load(out, { engine = "packages" }))
        assert.same({ "recipe", "packages" }, { a.engine, b.engine })
        assert(sets.logits(a):compare(sets.logits(b)).cosine > 0.9999)
      else
        check(HF .. "llama", opts)
      end
    end)
  end

  for _, opts in ipairs {
    { layers = 2 }, { layers = 1, slices = 2, layout = "c1t", norm = "fp32", functions = "many", fixed_t = { 1, 3 } },
  } do
    it("is found by a config.json beside the packages: " .. core.json_encode(opts, { sort = true }), function()
      opts.weights, opts.context = "int8", 48
      local source <close> = assert(ane.load(HF .. "llama", { weights = "int8", activations = "fp32" }))
      assert(source:export(out, opts))
      sets.change_meta(out, function(meta) meta.recipe = nil end)
      local bare <close> = assert(ane.load(out))
      assert.matches("has no section recipe, and there is no config.json beside it", bare.engine_reason)
      local config = core.json_decode(core.read_file(HF .. "llama/config.json"))
      assert(core.write_file(out .. "/config.json", core.json_encode(config)))
      local set <close> = assert(ane.load(out, { activations = "fp32" }))
      assert.same({ "recipe" }, { set.engine, set.engine_reason })
      assert(sets.logits(set):compare(sets.logits(source)).max_scaled < 1e-4)
      config.rms_norm_eps = 0.5
      assert(core.write_file(out .. "/config.json", core.json_encode(config)))
      local other <close> = assert(ane.load(out))
      assert.matches("in the recipe 0.5", other.engine_reason, 1, true)
    end)
  end

  it("is exported again, in another form", function()
    local source <close> = assert(ane.load(HF .. "llama"))
    assert(source:export(out .. "/a", { weights = "int8", context = 48 }))
    local a <close> = assert(ane.load(out .. "/a", { activations = "fp32" }))
    assert(a:export(out .. "/b", { weights = "int8-channel", context = 48, layers = 1 }))
    local b <close> = assert(ane.load(out .. "/b", { activations = "fp32" }))
    assert.equal("recipe", b.engine)
    assert(sets.logits(a):compare(sets.logits(b)).cosine > 0.999)
    assert(a:export(out .. "/c", { weights = "int8", context = 48 }))
    local c <close> = assert(ane.load(out .. "/c", { activations = "fp32" }))
    assert.equal(sets.logits(a):tostring(), sets.logits(c):tostring())
  end)

  it("labels tokens as op by op", function()
    local source <close> = assert(ane.load(HF .. "privacy_filter", { activations = "fp32" }))
    assert(source:export(out, { weights = "fp16", fixed_t = { 16, 32 } }))
    local a <close> = assert(ane.load(out, { activations = "fp32" }))
        local b <close> = assert(ane.load(out, { engine = "graph" }))
    assert.same({ "recipe", "packages" }, { a.engine, b.engine })
    local x, y = assert(a:classify(sets.ids_of(a))), assert(b:classify(sets.ids_of(b)))
    assert.equal(#x, #y)
    for i, span in ipairs(x) do assert.same({ span.label, span.first, span.last }, { y[i].label, y[i].first, y[i].last }) end
  end)

  it("has what sessions of the executor have", function()
    local source <close> = tiny.load()
    assert(source:export(out, { weights = "int8", context = 48 }))
    local set <close> = assert(ane.load(out, { threads = 1 }))
    local ids = sets.ids_of(set)
    local want = assert(set:generate(ids, { max_tokens = 8, details = true })).ids
    local s <close> = set:session()
    assert(s:feed(ids))
    local fork <close> = assert(s:fork())
    local last = s:logits(-1):totable()
    assert(s:rewind(4))
    assert(s:feed(table.move(ids, 5, #ids, 1, {})))
    assert.same(last, s:logits(-1):totable())
    assert(fork:save(out .. "/prefix.ane"))
    local other <close> = set:session()
    assert(other:restore(out .. "/prefix.ane"))
    assert(other:feed { 3 })
    assert(fork:feed { 3 })
    assert.same(fork:logits(-1):totable(), other:logits(-1):totable())
    local replies = assert(set:generate_many({ ids, ids }, { max_tokens = 8, details = true }))
    assert.same({ want, want }, { replies[1].ids, replies[2].ids })
    local by_op <close> = assert(ane.load(out, { engine = "graph", threads = 1 }))
    local foreign <close> = by_op:session()
    local _, message = foreign:restore(out .. "/prefix.ane")
    assert.matches("was saved with engine recipe, the session runs on engine packages", message, 1, true)
    local name = "layers.0.attn_q"
    assert.same(assert(source:trace(ids, name))[name]:shape(), assert(set:trace(ids, name))[name]:shape())
  end)

  it("differs in its fingerprint from a set with other scales", function()
    local source <close> = tiny.load()
    assert(source:export(out, { weights = "int8-channel", context = 32 }))
    local a <close> = assert(ane.load(out))
    local s <close> = a:session()
    assert(s:feed { 1, 2, 3 })
    assert(s:save(out .. "/s.ane"))
    local path = out .. "/layer_00-02.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    local bytes, at = core.read_file(path), 64
    while true do -- the first blob of fp16: the scales of a matrix
      local kind, size, data = string.unpack("<I4I8I8", bytes, at + 5)
      if kind == 1 and size > 100 then
        local half = string.unpack("<I2", bytes, data + 1)
        bytes = bytes:sub(1, data) .. string.pack("<I2", half + 64) .. bytes:sub(data + 3)
        break
      end
      at = (data + size + 63) // 64 * 64
    end
    assert(core.write_file(path, bytes))
    local b <close> = assert(ane.load(out))
    assert.equal("recipe", b.engine)
    local t <close> = b:session()
    assert.matches("was saved with another model", select(2, t:restore(out .. "/s.ane")))
  end)

  describe("goes op by op", function()
    before_each(function()
      local source <close> = assert(ane.load(HF .. "llama"))
      assert(source:export(out, { weights = "int8", context = 32, layers = 1, rope = "constants" }))
    end)

    it("where it says nothing of a recipe, or nonsense", function()
      local text = core.read_file(out .. "/runtime_meta.json")
      for _, case in ipairs {
        { function(meta) meta.recipe = nil end, "has no section recipe" },
        { function(meta) meta.recipe = 3 end, "has no section recipe" },
        { function(meta) meta.recipe.config.n_head = 1 << 40 end, "" },
        { function(meta) meta.recipe.config.n_layer = 1 << 40 end, "recipe.config of runtime_meta.json is incomplete" },
        { function(meta) meta.recipe.config.architecture = "nobody" end, "architecture 'nobody' is not known" },
        { function(meta) meta.recipe.tensors = { a = { 0 } } end, "a dimension of a is 0" },
        { function(meta) meta.recipe.tensors["model.norm.weight"] = nil end, "no tensor model.norm.weight" },
        { function(meta) meta.recipe.options = {} end, "has no options for the profile of these packages" },
        { function(meta) meta.recipe.options[1].context = 1 << 30 end, "does not fit the set" },
        { function(meta) meta.recipe.options[1].rows = 1 meta.recipe.tensors.x = { 1 << 30, 1 } end, "does not fit the set" },
        { function(meta) meta.recipe.options[1].layers = 2 end, "the set has %d+ packages, but the recipe gives %d+" },
        { function(meta) meta.recipe.config.rope = 3 end, "" },
        { function(meta) meta.recipe.config.head_dim = "x" end, "" },
      } do
        sets.change_meta(out, case[1])
        sets.goes_op_by_op(out, case[2])
        assert(core.write_file(out .. "/runtime_meta.json", text))
      end
    end)

    it("where an operation or a constant is another than the recipe's", function()
      local text = core.read_file(out .. "/runtime_meta.json")
      for _, case in ipairs {
        { function(meta) meta.recipe.config.norm_eps = 1e-3 end, "layer_00.mlpackage: .*epsilon is .*, in the recipe 0.00100" },
        { function(meta) meta.recipe.config.act = "gelu_tanh" end, "but the recipe has gelu" },
        { function(meta) meta.recipe.config.rope.theta = 5000 end, "in the recipe" },
        { function(meta) meta.recipe.options[1].norm = "fp32" end, "but the recipe has" },
        { function(meta) meta.recipe.options[1].layout = "c1t" end, "another type or shape than in the recipe" },
        { function(meta) meta.recipe.config.n_head_kv = 1 end, "" },
        { function(meta) meta.embed_scale = 2 end, "scales its embeddings by 2" },
        { function(meta) meta.packages[1].inputs[1].role = "edge" end, "hidden is edge, but in the recipe hidden" },
      } do
        sets.change_meta(out, case[1])
        sets.goes_op_by_op(out, case[2])
        assert(core.write_file(out .. "/runtime_meta.json", text))
      end
    end)

    it("where a constant of a package is damaged", function()
      local path = out .. "/layer_00.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
      local bytes, at, found = core.read_file(path), 64, 0
      while at < #bytes do -- the tables of cosines and sines have 32 x 12 numbers
        local kind, size, data = string.unpack("<I4I8I8", bytes, at + 5)
        if kind == 1 and size == 32 * 12 * 2 then
          found = found + 1
          bytes = bytes:sub(1, data + 40) .. "\x11\x31" .. bytes:sub(data + 43)
        end
        at = (data + size + 63) // 64 * 64
      end
      assert.is_true(found > 0)
      assert(core.write_file(path, bytes))
      sets.goes_op_by_op(out, "layer_00.mlpackage: op gather .*parameter x is 0.158.*, in the recipe")
    end)

    it("or not at all where a package is missing or broken", function()
      assert(os.execute(("rm -r '%s/layer_01.mlpackage'"):format(out)))
      assert.same({ nil, out .. "/runtime_meta.json: layer_01.mlpackage: the package is not there", "notfound" }, { ane.load(out) })
    end)

    it("where options ask for it", function()
      local half <close> = assert(ane.load(out, { precision = "fp16" }))
      assert.same({ "packages", "option precision asks for it" }, { half.engine, half.engine_reason })
      assert.same({ "invalid", "invalid", "unsupported" }, { select(3, ane.load(out, { precision = "fp16", engine = "recipe" })),
        (select(3, ane.load(out, { recipe = "x.lua", engine = "graph" }))), (select(3, ane.load(out, { weights = "int8" }))) })
    end)

    it("only for a reason: where packages change their weights, it computes with those", function()
      local names = {}
      for i = 0, 1 do names[i] = ("%s/layer_%02d.mlpackage/Data/com.apple.CoreML/weights/weight.bin"):format(out, i) end
      local first, second = core.read_file(names[0]), core.read_file(names[1])
      assert.equal(#first, #second)
      assert(core.write_file(names[0], second))
      assert(core.write_file(names[1], first))
      local a <close> = assert(ane.load(out, { activations = "fp32" }))
      local b <close> = assert(ane.load(out, { engine = "graph" }))
      assert.equal("recipe", a.engine)
      assert(sets.logits(a):compare(sets.logits(b)).cosine > 0.9999)
    end)
  end)
end)
