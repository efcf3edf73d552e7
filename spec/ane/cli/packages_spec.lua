-- ane plan, ane size and ane export.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"

local function temp()
  local path = os.tmpname()
  os.remove(path)
  return path
end

describe("a folder that only holds a package or an asset", function()
  local function holding(...)
    local folder = temp()
    assert(os.execute("mkdir " .. folder))
    for _, path in ipairs { ... } do assert(os.execute(("cp -r %s %s"):format(path, folder))) end
    return folder
  end

  it("is taken for it by ane info and ane predict", function()
    local folder = holding("spec/fixtures/mlpackage/mlp_fp16/model.mlpackage", "README.md")
    for _, form in ipairs { folder, folder .. "/" } do
      assert.same(command.json { "info", folder .. "/model.mlpackage" }, command.json { "info", form })
      assert.is_true(command.json { "predict", form, "spec/fixtures/mlpackage/mlp_fp16/case.json" }.ok)
    end
    os.execute("rm -r " .. folder)
    folder = holding "spec/fixtures/aimodel/apple.aimodel"
    assert.same(command.json { "info", folder .. "/apple.aimodel" }, command.json { "info", folder })
    os.execute("rm -r " .. folder)
  end)

  it("is refused with the names where it holds several", function()
    local folder = holding("spec/fixtures/mlpackage/mlp_fp16/model.mlpackage", "spec/fixtures/aimodel/apple.aimodel")
    for _, args in ipairs { { "info", folder }, { "predict", folder, "spec/fixtures/mlpackage/mlp_fp16/case.json" } } do
      local code, _, text = command.run(args)
      assert.equal(1, code)
      assert.matches("holds several packages or assets, name one of them: apple.aimodel, model.mlpackage", text, 1, true)
    end
    os.execute("rm -r " .. folder)
  end)

  it("is what it is if it has files of a model too", function()
    local folder = holding("spec/fixtures/mlpackage/mlp_fp16/model.mlpackage", "spec/fixtures/hf/llama/config.json",
      "spec/fixtures/hf/llama/model*")
    assert.equal("llama", command.json { "info", folder }.architecture)
    os.execute("rm -r " .. folder)
  end)
end)

describe("ane export", function()
  it("looks at its output before it calibrates", function()
    for _, target in ipairs { "coreml", "coreai" } do
      local code, _, text = command.run { "export", tiny.path(), "/none/of/these", "--target", target, "--weights", "lut4", "--calibrate",
        "/no/such/text" }
      assert.equal(1, code)
      assert.matches("/none/of/these: cannot create: No such file or directory", text, 1, true)
    end
  end)

  it("writes a set that ane run takes, and tells its packages", function()
    local out = temp()
    local report = command.json { "export", tiny.path(), out, "--weights", "int8", "--context", "32", "--argmax", "--slices", "2",
      "--max-t", "2",
      "--layout", "c1t", "--norm", "fp32", "--layers", "2", "--mixed", "*.attn_v.*=fp16" }
    assert.is_true(report.ok)
    local convs = report.shards[1].residency -- of the lowered operations: 7 projections in each of 2 layers
    assert.same({ 14, 0, 0 }, { convs.engine, convs.risk, convs.cpu })
    assert.same({ 0, 1 }, report.shards[1].layers)
    assert.same({ 512, 1024 }, report.shards[4].rows)
    local forms = {}
    for _, w in ipairs(report.weights) do forms[w.form] = (forms[w.form] or 0) + 1 end
    assert.same({ fp16 = 3, int8 = 20 }, forms) -- 7 a layer, the head in two slices
    local a = command.json { "run", out, "--ids", "1,2,3", "--max-tokens", "5" }
    assert.equal(5, #a.ids)
    local code, text = command.run { "export", tiny.path(), out, "--context", "32" }
    assert.equal(0, code)
    assert.matches("layer_00%-02.mlpackage", text)
    os.execute(("rm -rf '%s'"):format(out))
  end)

  it("writes functions, tiers, parts of layers and rope tables", function()
    local out = temp()
    local options = { "export", tiny.path(), out, "--context", "32", "--functions", "many", "--fixed-t", "1,4", "--tiers", "8",
      "--rope", "constants", "--size-limit", "0.03", "--target", "0.03" }
    local report = command.json(options)
    local first = report.shards[1]
    assert.same({ "t1_c32", "t1_c8", "t4_c8", "t4_c32" }, first.functions)
    assert.same({ 0, 2 }, { first.part[1], first.part[2] })
    local plan = command.json { "plan", tiny.path(), "--context", "32", "--functions", "many", "--fixed-t", "1,4", "--tiers", "8",
      "--law", "0.03", "--target", "0.03" }
    for i, p in ipairs(plan.packages) do
      assert.equal(report.shards[i].path, p.name)
      assert.same({ report.shards[i].part and report.shards[i].part[1], #report.shards[i].functions }, { p.part, #p.functions })
    end
    local a = command.json { "run", out, "--ids", "1,2,3,4,5,6", "--max-tokens", "12", "--verify" }
    local b = command.json { "run", tiny.path(),
      "--ids", "1,2,3,4,5,6", "--max-tokens", "12", "--weights", "int8", "--activations", "fp32" }
    assert.same(b.ids, a.ids)
    local info = command.json { "info", out, "--verify" }
    assert.same({ true, first.functions }, { info.verified, info.packages[1].functions })
    local code, text = command.run { "size", tiny.path(), "--fixed-t", "1,4" }
    assert.equal(0, code)
    assert.matches("on disk, packages for each T and context: ", text, 1, true)
    for _, bad in ipairs { { "--functions", "several" }, { "--tiers", "8,x" }, { "--rope", "maybe" } } do
      local failed = command.run { "plan", tiny.path(), table.unpack(bad) }
      assert.not_equal(0, failed)
    end
    os.execute(("rm -rf '%s'"):format(out))
  end)

  it("calls sets of assets by their name", function()
    local out = temp()
    command.json { "export", tiny.path(), out, "--context", "32", "--target", "coreai-sharded", "--fixed-t", "1" }
    local code, text = command.run { "info", out }
    assert.equal(0, code)
    assert.matches(": set of assets, .*, %d assets\n", text)
    assert.matches("the assets run ", text, 1, true)
    os.execute(("rm -rf '%s'"):format(out))
  end)

  it("refuses slices of the head with hardly any rows", function()
    local out = temp()
    local targets = { { "plan", tiny.path() }, { "export", tiny.path(), out }, { "export", tiny.path(), out, "--target", "coreai" } }
    for _, args in ipairs(targets) do
      local code, _, err = command.run(table.move({ "--slices", "1000" }, 1, 2, #args + 1, args))
      assert.equal(2, code)
      assert.matches("%-%-slices must be at most %d+ for a head of %d+ rows, since a slice has 16 rows or more, but is 1000", err)
    end
    assert.is_nil(require("ane.core").path_kind(out))
  end)

  it("writes a set that info and tokenize take too", function()
    local out = temp()
    command.json { "export", tiny.path(), out, "--context", "32", "--layers", "2" }
    local info = command.json { "info", out }
    assert.same({ "package set", "llama", 32, "recipe" }, { info.format, info.architecture, info.context, info.engine })
    local by_op = command.json { "info", out, "--engine", "graph" }
    assert.same({ "packages", "asked for" }, { by_op.engine, by_op.engine_reason })
    local paths = {}
    for i, p in ipairs(info.packages) do paths[i] = p.path .. " " .. p.kind end
    assert.same({ "layer_00-01.mlpackage layers", "layer_02.mlpackage layers", "lm_head_00.mlpackage head" }, paths)
    local code, text = command.run { "info", out }
    assert.equal(0, code)
    assert.matches("package set, .*, 3 packages\n.*layer_02.mlpackage.*runs with: ", text)
    assert.matches("the packages run by the recipe for llama, with the weights that they hold", text, 1, true)
    code, text = command.run { "info", out, "--engine", "graph" }
    assert.equal(0, code)
    assert.matches("the packages run op by op: asked for", text, 1, true)
    assert.same(command.json({ "tokenize", tiny.path() }, "Hello"), command.json({ "tokenize", out }, "Hello"))
    for _, name in ipairs { "plan", "size" } do
      local failed, _, why = command.run { name, out }
      assert.equal(1, failed)
      assert.matches("is a set of Core ML packages or Core AI assets, but must be a GGUF, safetensors or ONNX file", why)
    end
    os.execute(("rm -rf '%s/layer_02.mlpackage'"):format(out))
    local failed, _, why = command.run { "info", out }
    assert.equal(1, failed)
    assert.matches("runtime_meta.json: layer_02.mlpackage: the package is not there\n", why)
    os.execute(("rm -rf '%s'"):format(out))
  end)

  it("fits calls into the smallest contexts, and refuses those that do not fit", function()
    local out, want = temp(), command.json({ "run", tiny.path(), "--ids", "1", "-n", "2", "--weights", "int8" }).ids
    for context = 1, 3 do
      assert.equal(math.min(4, context), command.json({ "plan", tiny.path(), "-c", tostring(context) }).max_t)
      command.json { "export", tiny.path(), out, "-c", tostring(context) }
      local ids = command.json({ "run", out, "--ids", "1", "-n", "2" }).ids
      assert.same({ want[1], context > 1 and want[2] or nil }, ids)
    end
    for _, name in ipairs { "plan", "size", "export" } do
      for _, option in ipairs { "--max-t", "--fixed-t" } do
        local words = { name, tiny.path(), "-c", "16", option, "17" }
        if name == "export" then table.insert(words, 3, out) end
        local code, _, text = command.run(words)
        assert.equal(2, code)
        assert.matches("%-%-%l+%-t: a call of 17 tokens does not fit in a context of 16", text)
      end
    end
    os.execute(("rm -rf '%s'"):format(out))
  end)

  it("writes a classifier that is measured, and that does not write text", function()
    local out, source = temp(), "spec/fixtures/hf/privacy_filter"
    command.json { "export", source, out, "--fixed-t", "16" }
    local r = command.json { "bench", out, "-r", "1", "--sentence-tokens", "8", "-b", "2" }
    assert.equal(1, #r.sentences)
    for _, path in ipairs { source, out } do
      local code, text, message = command.run { "run", path, "--ids", "1,2" }
      assert.same({ 1, "" }, { code, text })
      assert.matches("is a token classifier: it labels tokens %(classify%), and writes none", message)
    end
    os.execute(("rm -rf '%s'"):format(out))
  end)

  it("names what it does not know", function()
    local code, _, text = command.run { "export", tiny.path(), temp(), "--weights", "int7" }
    assert.matches("int7.*choose fp16, int8", text)
    assert.equal(2, code)
    code, _, text = command.run { "export", "spec/fixtures/configs/zaya1-8b.json", temp() }
    assert.equal(1, code)
    assert.matches("has no weights to export", text)
    code, _, text = command.run { "plan", tiny.path(), "--fixed-t", "4,x" }
    assert.equal(2, code)
    assert.matches("'x' is not a number of 1 or more", text)
  end)
end)

describe("an interrupted ane export", function()
  it("says that the same command goes on", function()
    local common = require "ane.cli.common"
    local out, progress = temp(), common.progress
    common.progress = function()
      return function() if core.path_kind(out .. ".partial") then error("interrupted!", 0) end end
    end
    local code, _, err = command.run { "export", tiny.path(), out .. "/", "--context", "64" }
    common.progress = progress
    os.execute("rm -r " .. out .. ".partial")
    assert.same({ 130, true }, { code, err:find("interrupted: the same command continues from here", 1, true) ~= nil }, err)
  end)
end)

describe("ane plan and ane size", function()
  it("plan a configuration alone", function()
    local dot, svg = temp(), temp()
    local p = command.json { "plan", "spec/fixtures/configs/qwen2.5-0.5b.json", "--dot", dot, "--svg", svg, "--target", "100",
      "--chip", "M1" }
    assert.equal("M1", p.chip)
    for _, package in ipairs(p.packages) do assert.is_true(package.bytes <= 100e6) end
    assert.equal("layers", p.packages[1].kind)
    assert.equal("int8", p.packages[1].nodes[2].laws[3])
    assert.matches("^digraph", core.read_file(dot))
    assert.matches("^<svg", core.read_file(svg))
    os.remove(dot)
    os.remove(svg)
    local s = command.json { "size", "spec/fixtures/configs/qwen2.5-0.5b.json", "--weights", "fp16" }
    assert.equal("fp16", s.weights)
    assert.equal(10, #s.chips)
  end)
end)
