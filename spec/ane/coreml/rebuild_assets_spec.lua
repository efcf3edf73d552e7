-- Sets of Core AI assets run by the recipe that computes them: the same numbers as the source with the same weights, and op by op,
-- with the reason, where anything differs.
local ane = require "ane"
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local sets = require "support.sets"
local tree = require "support.tree"

local HF, GGUF = "spec/fixtures/hf/", "spec/fixtures/gguf/"
local IDS = sets.IDS
local FORMS = core.mil_schemes()

local MODELS = {
  HF .. "cohere-odd", HF .. "cohere2-odd", HF .. "deepseek_v2-odd", HF .. "deepseek_v2_groups-odd", HF .. "falcon_h1-odd",
  HF .. "gemma3_softcap", HF .. "glm4-odd", HF .. "glm4_moe_lite-odd", HF .. "glm4_moe-odd", HF .. "ernie4_5_moe_between-odd",
  HF .. "gpt_oss-odd", HF .. "gpt_oss_mxfp4-odd", HF .. "granite-odd", HF .. "granitemoehybrid-odd", HF .. "hunyuan_v1_dense",
  HF .. "lfm2-odd", HF .. "lfm2_moe-odd", HF .. "mamba2-odd", HF .. "ministral3-odd", HF .. "nemotron_h-odd", HF .. "olmo2-odd",
  HF .. "olmo3-odd", HF .. "phi3", HF .. "qwen2_moe-odd", HF .. "qwen2_swa", HF .. "qwen3-odd", HF .. "qwen3_5-odd", HF .. "qwen3_moe-odd",
  HF .. "smollm3-odd", HF .. "starcoder2-odd", HF .. "zaya-odd", HF .. "zaya_original-odd", GGUF .. "llama-kquants.gguf",
  GGUF .. "qwen2-odd.gguf", GGUF .. "gemma3-odd.gguf", GGUF .. "gpt_oss-odd.gguf", HF .. "gemma3n-odd", HF .. "gemma4-odd",
}

describe("a set of Core AI assets run by a recipe", function()
  local out

  before_each(function() out = tree.folder() end)
  after_each(function() tree.remove(out) end)

  local function export(path, opts)
    opts.target = "coreai-sharded"
    return assert(exporter.of_path(path, out, opts))
  end

  -- Exports a model and compares the set with the source as it computes with the exported weights.
  local function check(path, opts)
    opts.context = 48
    export(path, opts)
    local as = opts.weights == "fp16" and "file" or opts.weights
    local source <close> = assert(ane.load(path, { weights = as, activations = "fp32", context = 48 }))
    sets.runs_like(source, out, path)
  end

  for i, path in ipairs(MODELS) do
    local weights = FORMS[i * 7 % #FORMS + 1]
    it(("computes what the source of %s does in %s"):format(path, weights), function()
      check(path, { weights = weights, experts = "halves", fixed_t = { 1, 4 }, tiers = i % 2 == 0 and { 16 } or nil })
    end)
  end

  for _, weights in ipairs(FORMS) do
    it("reads weights stored as " .. weights .. ", without loss or larger types", function()
      check(HF .. "llama", { weights = weights, layers = 1, slices = 2 })
      local set <close> = assert(ane.load(out))
      for _, row in ipairs(set:info().kernels) do assert.equal(sets.held(weights), row.form) end
    end)
  end

  it("labels tokens and embeds texts as op by op", function()
    export(HF .. "privacy_filter", { weights = "int8-channel", layers = 1, fixed_t = { 16, 32 } })
    local a <close> = assert(ane.load(out, { activations = "fp32" }))
    local b <close> = assert(ane.load(out, { engine = "graph" }))
    assert.same({ "recipe", "packages", "asked for" }, { a.engine, b.engine, b.engine_reason })
    assert(sets.logits(a):compare(sets.logits(b)).cosine > 0.9999)
    export(HF .. "bert", { weights = "lut6", layers = 1, fixed_t = { 16 } })
    local c <close> = assert(ane.load(out, { activations = "fp32" }))
    local d <close> = assert(ane.load(out, { engine = "graph" }))
    assert.same({ "recipe", "packages" }, { c.engine, d.engine })
    assert(assert(c:embed { IDS })[1]:compare(assert(d:embed { IDS })[1]).cosine > 0.9999)
  end)

  it("is found by a config.json beside the assets", function()
    export(HF .. "llama", { weights = "int8", layers = 2, context = 48, fixed_t = { 1, 4 } })
    sets.change_meta(out, function(meta) meta.recipe = nil end)
    local bare <close> = assert(ane.load(out))
    assert.matches("has no section recipe", bare.engine_reason)
    assert(core.write_file(out .. "/config.json", core.read_file(HF .. "llama/config.json")))
    local set <close> = assert(ane.load(out))
    assert.same({ "recipe" }, { set.engine, set.engine_reason })
  end)

  describe("goes op by op", function()
    before_each(function() export(HF .. "llama", { weights = "int8", layers = 1, context = 32, fixed_t = { 1, 4 } }) end)

    it("where an operation or a constant is another than the recipe's", function()
      local text = core.read_file(out .. "/runtime_meta.json")
      for _, case in ipairs {
        { function(recipe) recipe.config.norm_eps = 1e-3 end, "layer_00.aimodel: function t1: .*in the recipe 0.00100" },
        { function(recipe) recipe.config.act = "gelu_tanh" end, "but the recipe has gelu" },
        { function(recipe) recipe.config.rope.theta = 5000 end, "the rope of .* differs from the recipe's" },
        { function(recipe) recipe.config.n_head_kv = 1 end, "" },
        { function(recipe) recipe.options[1].functions[1].fixed_t = 2 end, "it has no function t2" },
      } do
        sets.change_meta(out, function(meta) case[1](meta.recipe) end)
        sets.goes_op_by_op(out, case[2])
        assert(core.write_file(out .. "/runtime_meta.json", text))
      end
    end)

    it("where a constant of an asset is changed", function()
      local path = out .. "/layer_00.aimodel/main.mlirb"
      local bytes = core.read_file(path)
      local eps = assert(sets.meta(out).recipe.config.norm_eps)
      local changed, n = bytes:gsub(string.pack("<f", eps):gsub("%W", "%%%0"), (string.pack("<f", 0.5)))
      assert.is_true(n > 0)
      assert(core.write_file(path, changed))
      sets.goes_op_by_op(out, "layer_00.aimodel: function t1: .* 0.5, in the recipe")
    end)
  end)

  it("where an asset has other weights, computes with those", function()
    local opts = { weights = "int8", layers = 1, context = 32, fixed_t = { 4 } }
    assert(os.execute(("mkdir '%s/other'"):format(out)))
    for _, name in ipairs(assert(core.list_dir(HF .. "llama"))) do
      assert(core.write_file(out .. "/other/" .. name, core.read_file(HF .. "llama/" .. name)))
    end
    for i = 1, 2 do
      local path = ("%s/other/model-%05d-of-00002.safetensors"):format(out, i)
      local bytes = core.read_file(path)
      local start = 8 + string.unpack("<I8", bytes)
      local changed = bytes:sub(start + 1):gsub(".", function(c) return string.char(c:byte() ~ 1) end)
      assert(core.write_file(path, bytes:sub(1, start) .. changed))
    end
    opts.target = "coreai-sharded"
    assert(exporter.of_path(out .. "/other", out .. "/a", opts))
    assert(exporter.of_path(HF .. "llama", out .. "/b", opts))
    local source <close> = assert(ane.load(out .. "/b", { activations = "fp32" }))
    local before = sets.logits(source)
    assert(core.write_file(out .. "/b/layer_00.aimodel/main.mlirb", core.read_file(out .. "/a/layer_00.aimodel/main.mlirb")))
    sets.change_meta(out .. "/b", function(meta) meta.packages[1].bytes = sets.meta(out .. "/a").packages[1].bytes end)
    local x <close> = assert(ane.load(out .. "/b", { activations = "fp32" }))
    local y <close> = assert(ane.load(out .. "/b", { engine = "graph" }))
    assert.same({ "recipe", "packages" }, { x.engine, y.engine })
    assert(sets.logits(x):compare(sets.logits(y)).cosine > 0.9999)
    assert(sets.logits(x):compare(before).max_scaled > 1e-3)
  end)
end)
