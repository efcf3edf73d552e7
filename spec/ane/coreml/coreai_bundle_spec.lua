-- Bundles of Core AI assets: what is around the asset, what is refused, and what the report says.
local ane = require "ane"
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local planner = require "ane.coreml.plan"
local tree = require "support.tree"

local GGUF, HF = "spec/fixtures/gguf/llama-q8_0.gguf", "spec/fixtures/hf/"

describe("a bundle", function()
  local dir

  before_each(function() dir = tree.folder() end)
  after_each(function() tree.remove(dir) end)

  local function export(path, opts)
    opts.target = "coreai"
    return exporter.of_path(path, dir .. "/out", opts)
  end

  local function put(path) assert(core.write_file(dir .. "/" .. path, "mine")) end
  local function make(path) assert(os.execute(("mkdir -p '%s/%s'"):format(dir, path))) end

  it("is not begun in a folder that holds other things", function()
    for _, target in ipairs { "coreai", "coreai-sharded", "coreml" } do
      make "out.partial/photos"
      put "out.partial/photos/a.jpg"
      local report, message, code = exporter.of_path(GGUF, dir .. "/out", { target = target, context = 16, fixed_t = { 4 } })
      assert.same({ nil, "invalid" }, { report, code })
      assert.matches("out.partial: holds photos, which no interrupted export left there", message, 1, true)
      assert.equal("mine", core.read_file(dir .. "/out.partial/photos/a.jpg"))
    end
  end)

  it("goes on after an interruption only if nothing else was put beside it", function()
    make "out.partial"
    put "out.partial/tokenizer.json" -- of an interrupted set
    assert(export(GGUF, { context = 16, fixed_t = { 4 } }))
    assert.is_nil(core.path_kind(dir .. "/out.partial"))
  end)

  it("is not replaced if others have put files into it", function()
    assert(export(GGUF, { context = 16, fixed_t = { 4 } }))
    for _, name in ipairs { "out/notes.txt", "out/out.aimodel/notes.txt", "out/tokenizer/notes.txt" } do
      put(name)
      local report, message, code = export(GGUF, { context = 16, fixed_t = { 8 } })
      assert.same({ nil, "invalid" }, { report, code })
      assert.matches("notes.txt", message, 1, true)
      assert.equal("mine", core.read_file(dir .. "/" .. name))
      assert(os.remove(dir .. "/" .. name))
    end
    assert(export(GGUF, { context = 16, fixed_t = { 8 } }))
  end)

  it("has the options that the contract settles, and refuses others", function()
    local refused = { layout = "c1t", norm = "doubled", functions = "one", argmax = true, max_t = 2, layers = 1, size_limit = 1, law = 1,
                      experts = "each", rope = "constants" }
    for key, value in pairs(refused) do
      local report, message, code = export(GGUF, { context = 16, fixed_t = { 4 }, [key] = value })
      assert.same({ nil, "invalid" }, { report, code }, key)
      local settled = ({ layout = "ct1", norm = "fp32", functions = "many" })[key]
      local what = settled and ("must be %s, but is %s"):format(settled, value) or "has no effect"
      assert.equal(("option %s %s with target coreai"):format(key, what), message)
    end
    for key, value in pairs { layout = "c1t", norm = "doubled", functions = "one", rope = "constants" } do
      local plan, message = planner.of_path(GGUF, { target = "coreai-sharded", context = 16, [key] = value })
      assert.is_nil(plan)
      assert.matches(("option %s must be .*, but is %s with target coreai%%-sharded"):format(key, value), message)
    end
    assert(export(GGUF, { context = 16, fixed_t = { 4 }, layout = "ct1", norm = "fp32", functions = "many", argmax = false }))
    local report, message = export(GGUF, { context = 65536 })
    assert.is_nil(report)
    assert.matches("option context is 65536, but must be at most 65535 for Core AI's runner", message, 1, true)
  end)

  it("is reported with what its reader should know", function()
    local report = assert(export(HF .. "gemma3n-odd", { context = 96, fixed_t = { 64 }, weights = "int4-block" }))
    local text = table.concat(report.warnings, "\n")
    assert.matches("%d+ of %d+ weights are stored as int8%-channel: the shape does not fit int4%-block", text)
    assert.matches("a context is not a multiple of the tokens of a call", text, 1, true)
    local fits = assert(export(GGUF, { context = 64, fixed_t = { 64 }, weights = "fp16" }))
    assert.same({}, fits.warnings)
    local set = assert(exporter.of_path(HF .. "gemma3n-odd", dir .. "/set", { context = 32, weights = "int4-block" }))
    assert.matches("the shape does not fit int4%-block", table.concat(set.warnings, "\n"))
  end)

  it("says whether it has a tokenizer", function()
    local function facts() return assert(core.json_decode(assert(core.read_file(dir .. "/out/metadata.json")))).language end
    assert(export(GGUF, { context = 16, fixed_t = { 4 } }))
    assert.same({ "tokenizer", true }, { facts().tokenizer, facts().embedded_tokenizer })
    local report = assert(export(HF .. "gemma3n-odd", { context = 16, fixed_t = { 4 } }))
    assert.same({ nil, false }, { facts().tokenizer, facts().embedded_tokenizer })
    assert.matches("the bundle has no tokenizer.json: the model's folder has none", table.concat(report.warnings, "\n"), 1, true)
  end)

  it("of an embedding model has a scale for each block, unless another scheme is given", function()
    local function forms(opts)
      local out = {}
      for _, w in ipairs(assert(export(HF .. "bert", opts)).weights) do out[w.form] = true end
      return out
    end
    local blocks = forms { fixed_t = { 8 } }
    assert.is_true(blocks["int8-block"] and not blocks.int8)
    assert.same({ int8 = true }, forms { fixed_t = { 8 }, weights = "int8" })
    assert.equal("int8-block", assert(planner.of_path(HF .. "bert", { fixed_t = { 8 } })).weights)
    assert.equal("int8", assert(planner.of_path(HF .. "llama")).weights)
  end)

  it("of a decoder with a classifier is refused, and so is its plan", function()
    for _, target in ipairs { "coreai", "coreml" } do
      local report, message, code = exporter.of_path(HF .. "qwen3_score-odd", dir .. "/out", { target = target })
      assert.same({ nil, "a decoder with a classifier cannot be exported", "unsupported" }, { report, message, code })
      assert.is_nil(planner.of_path(HF .. "qwen3_score-odd", { target = target }))
    end
  end)

  it("and a set of assets of a GGUF file have its vocabulary as tokenizer.json", function()
    assert(export(GGUF, { context = 16, fixed_t = { 4 } }))
    assert(exporter.of_path(GGUF, dir .. "/set", { target = "coreai-sharded", context = 16, fixed_t = { 4 } }))
    for _, name in ipairs { "tokenizer.json", "tokenizer_config.json" } do
      local text = assert(core.read_file(dir .. "/set/" .. name))
      assert.equal(assert(core.read_file(dir .. "/out/tokenizer/" .. name)), text)
    end
    local set <close> = assert(ane.load(dir .. "/set", { verify = true }))
    local source <close> = assert(ane.load(GGUF))
    assert.same(source.tokenizer:encode "Hello there", set.tokenizer:encode "Hello there")
  end)

  it("and sets know the ids that end a reply, from the vocabulary too", function()
    local model <close> = assert(ane.load(GGUF))
    assert(model:export(dir .. "/a", { context = 16 }))
    assert(exporter.of_path(GGUF, dir .. "/b", { context = 16 }))
    local function ends(name) return assert(core.json_decode(assert(core.read_file(dir .. name)))).eos_ids end
    assert.is_true(#ends "/a/runtime_meta.json" > 0)
    assert.same(ends "/a/runtime_meta.json", ends "/b/runtime_meta.json")
  end)

  it("is named when it is loaded as a model", function()
    local report = assert(export(GGUF, { context = 16, fixed_t = { 4 } }))
    local wanted = { [report.path] = "is a Core AI asset, which ane predict runs", [dir .. "/out"] = "bundle of a Core AI asset" }
    for path, what in pairs(wanted) do
      local model, message, code = ane.load(path)
      assert.same({ nil, "unsupported" }, { model, code })
      assert.matches(what, message, 1, true)
    end
  end)
end)
