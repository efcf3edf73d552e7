-- Package sets: written whole, resumed, the same bytes again, and run with the source's tokens.
local ane = require "ane"
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local package_files = require "ane.coreml.files"
local tiny = require "support.tiny"

local IDS = { 1, 17, 300, 5, 9, 2, 44, 8, 3 }

local function temp()
  local path = os.tmpname()
  os.remove(path)
  return path
end

local function remove(path) os.execute(("rm -rf '%s' '%s.partial'"):format(path, path)) end

-- Paths of all files with their hashes.
local function tree(path)
  local out = {}
  local function walk(prefix)
    for _, name in ipairs(assert(core.list_dir(path .. "/" .. prefix))) do
      local full = prefix .. name
      if core.path_kind(path .. "/" .. full) == "folder" then walk(full .. "/") else out[full] = core.sha256_file(path .. "/" .. full) end
    end
  end
  walk ""
  return out
end

local function meta(out) return assert(core.json_decode(assert(core.read_file(out .. "/runtime_meta.json")))) end

local HF = "spec/fixtures/hf/"
local CAUSAL = {
  tiny.path(), tiny.path "gemma3-odd", tiny.path "qwen2-odd", tiny.path "llama-kquants", HF .. "llama", HF .. "qwen2_swa", HF .. "phi3",
  HF .. "gemma3_softcap", HF .. "hunyuan_v1_dense", HF .. "lfm2-odd", HF .. "lfm2_moe-odd", HF .. "zaya-odd", HF .. "zaya_original-odd",
  HF .. "qwen2_moe-odd", HF .. "gemma3n-odd", HF .. "gemma4-odd",
}

local function vocab_ids(model)
  local out = {}
  for i, id in ipairs(IDS) do out[i] = id % model.vocab end
  return out
end

describe("export", function()
  for _, path in ipairs(CAUSAL) do
    it("of " .. path .. " gives the source's greedy tokens", function()
      for _, case in ipairs { { weights = "int8", argmax = true, layers = 1, slices = 2 }, { weights = "fp16" },
        { weights = "int4-block", layers = 2, layout = "c1t", experts = "halves" } } do
        local out = temp()
        case.context = 64
        local source <close> = assert(ane.load(path, { weights = case.weights, activations = "fp32", context = 64 }))
        local report = assert(source:export(out, case))
        assert.is_true(report.ok)
        local model <close> = assert(ane.load(out, { engine = "graph" }))
        local ids = vocab_ids(source)
        local want = assert(source:generate(ids, { max_tokens = 10, details = true })).ids
        assert.same(want, assert(model:generate(ids, { max_tokens = 10, details = true })).ids, path .. " " .. case.weights)
        remove(out)
      end
    end)
  end

  for _, path in ipairs(CAUSAL) do
    it("of " .. path .. " in parts of layers gives the source's greedy tokens", function()
      local out = temp()
      for _, case in ipairs { { weights = "int8" }, { weights = "fp16", layout = "c1t", functions = "many", fixed_t = { 1, 3 } } } do
        local source <close> = assert(ane.load(path, { weights = case.weights, activations = "fp32", context = 64 }))
        local largest = 0
        for _, p in ipairs(source:plan({ context = 64, weights = case.weights, layers = 1 }).packages) do
          if p.kind == "layers" then largest = math.max(largest, p.bytes) end
        end
        case.context, case.size_limit, case.target = 64, largest // 3, largest // 3
        assert(source:export(out, case))
        local parts = 0
        for _, p in ipairs(meta(out).layers) do parts = parts + (p.parts and 1 or 0) end
        assert.is_true(parts > 1)
        local model <close> = assert(ane.load(out, { engine = "graph" }))
        local ids = vocab_ids(source)
        assert.same(assert(source:generate(ids, { max_tokens = 10, details = true })).ids,
          assert(model:generate(ids, { max_tokens = 10, details = true })).ids, path .. " " .. case.weights)
      end
      remove(out)
    end)
  end

  it("of a classifier has a profile for each T, no states and labels", function()
    for _, name in ipairs { "privacy_filter", "privacy_filter-odd", "privacy_filter_original-odd" } do
      local out = temp()
      local source <close> = assert(ane.load(HF .. name, { activations = "fp32", weights = "int8" }))
      assert(source:export(out, { fixed_t = { 8, 16 }, weights = "int8" }))
      local m = meta(out)
      assert.equal("token_classifier", m.kind)
      assert.equal(16, m.max_seq_len)
      assert.same({ 8, 16 }, { m.profiles[1].fixed_t, m.profiles[2].fixed_t })
      assert.equal("labels", m.packages[#m.packages].outputs[1].role)
      for _, p in ipairs(m.packages) do assert.equal(0, #p.states) end
      assert.same(source.config.labels, m.labels)
      remove(out)
    end
  end)

  it("writes the same bytes each time, whatever the threads", function()
    local model <close> = tiny.load()
    local a, b = temp(), temp()
    assert(model:export(a, { context = 32, layers = 1, weights = "lut4-g16", threads = 1 }))
    assert(model:export(b, { context = 32, layers = 1, weights = "lut4-g16", threads = 2 }))
    assert.same(tree(a), tree(b))
    assert(model:export(b, { context = 32, layers = 1, weights = "lut4-g16" })) -- in the place of an older set
    assert.same(tree(a), tree(b))
    remove(a)
    remove(b)
  end)

  it("says in the manifest what there is", function()
    local model <close> = tiny.load()
    local out = temp()
    local report = assert(model:export(out, { context = 32, layers = 1, slices = 3 }))
    local m = meta(out)
    for _, key in ipairs { "model_family", "model_name", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size",
      "max_seq_len", "rangedim_max_t", "rope", "weights", "kind", "states", "tensors_between", "expert_packages", "format_version",
        "hashes",
      "layers", "lm_head_shards", "embed_bin" } do
      assert.is_not_nil(m[key], key)
    end
    assert.same({ { start = 0, ["end"] = 0, path = "layer_00.mlpackage" }, { start = 1, ["end"] = 1, path = "layer_01.mlpackage" },
                  { start = 2, ["end"] = 2, path = "layer_02.mlpackage" } }, m.layers)
    assert.equal(3, #m.lm_head_shards)
    assert.equal(0, m.lm_head_shards[1].vocab_start)
    assert.equal(model.vocab, m.lm_head_shards[3].vocab_end)
    for i, s in ipairs(report.shards) do
      local bytes, hash = package_files.measure(out .. "/" .. s.path)
      assert.same({ bytes, hash, bytes, hash }, { s.bytes, s.sha256, m.packages[i].bytes, m.hashes[s.path] })
    end
    assert.equal(core.sha256_file(out .. "/embed.bin"), m.hashes["embed.bin"])
    assert.equal(2 * model.vocab * m.d_model, #core.read_file(out .. "/embed.bin"))
    local again <close> = assert(ane.load(out, { engine = "graph" }))
    assert.same(model.tokenizer:encode "Hello there", again.tokenizer:encode "Hello there")
    remove(out)
  end)

  it("takes the lowest specification version that serves", function()
    local model <close> = tiny.load(nil)
    local out = temp()
    assert(model:export(out, { context = 32, weights = "int8" }))
    local m = meta(out)
    assert.same({ 9, 7 }, { m.packages[1].specification_version, m.packages[2].specification_version }) -- states; none
    assert(model:export(out, { context = 32, weights = "int4-block" }))
    assert.equal(9, meta(out).packages[2].specification_version)
    remove(out)
  end)

  it("keeps finished packages of a run that was broken off", function()
    local model <close> = tiny.load()
    local out = temp()
    local opts = { context = 32, layers = 1 }
    local stop = { context = 32, layers = 1, progress = function() error "stop here" end }
    assert.error_matches(function() model:export(out, stop) end, "stop here")
    assert.is_nil(core.path_kind(out))
    assert.equal("folder", core.path_kind(out .. ".partial"))
    local report = assert(model:export(out, opts))
    assert.equal(1, report.kept)
    assert.is_nil(core.path_kind(out .. ".partial"))
    local want = tree(out)
    -- a finished package that was changed since is written again; other options begin anew
    assert.error_matches(function() model:export(out, stop) end, "stop here")
    local path = out .. ".partial/layer_00.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    local bytes = core.read_file(path)
    core.write_file(path, bytes:sub(1, -2) .. string.char(bytes:byte(-1) ~ 1))
    assert.equal(0, assert(model:export(out, opts)).kept)
    assert.same(want, tree(out))
    assert.error_matches(function() model:export(out, stop) end, "stop here")
    assert.equal(0, assert(model:export(out, { context = 48, layers = 1 })).kept)
    remove(out)
  end)

  it("keeps nothing of a run with another importance", function()
    local model <close> = tiny.load()
    local out = temp()
    local function options(target, step)
      local importance = {}
      for _, row in ipairs(model:weights_report()) do
        importance[row.name] = {}
        for i = 1, row.cols do importance[row.name][i] = i % step == 0 and 50 or 0.01 end
      end
      return { target = target, context = 32, layers = target == "coreml" and 1 or nil, weights = "lut4", importance = importance }
    end
    for target, left in pairs { coreml = 1, coreai = 3 } do
      assert(model:export(out, options(target, 7)))
      local want = tree(out)
      remove(out)
      local opts = options(target, 5)
      opts.progress = function()
        left = left - 1
        if left == 0 then error "stop here" end
      end
      assert.error_matches(function() model:export(out, opts) end, "stop here")
      assert.equal(0, assert(model:export(out, options(target, 7))).kept)
      assert.same(want, tree(out))
      remove(out)
    end
  end)

  it("lets one write at a time", function()
    local model <close> = tiny.load()
    local out = temp()
    local held <close> = assert(core.folder(out))
    local report, message, code = model:export(out, { context = 32 })
    assert.is_nil(report)
    assert.equal("state", code)
    assert.matches("another process writes", message)
    held:abandon()
    remove(out)
  end)

  it("leaves folders alone that are no package set", function()
    local model <close> = tiny.load()
    local out = temp()
    os.execute(("mkdir '%s'; echo precious > '%s/letter'"):format(out, out))
    local report, message, code = model:export(out)
    assert.same({ nil, "invalid" }, { report, code })
    assert.matches("other things than a package set", message)
    assert.equal("precious\n", core.read_file(out .. "/letter"))
    remove(out)
    os.execute(("mkdir '%s.partial'; echo precious > '%s.partial/letter'"):format(out, out)) -- the name of its own that it builds in
    report, message, code = model:export(out)
    assert.same({ nil, "invalid" }, { report, code })
    assert.matches("%.partial: holds letter", message)
    assert.equal("precious\n", core.read_file(out .. ".partial/letter"))
    remove(out)
    assert(model:export(out, { context = 16 })) -- a set, and beside it the model itself
    assert(core.write_file(out .. "/model.gguf", assert(core.read_file(tiny.path()))))
    report, message, code = exporter.of_path(out .. "/model.gguf", out, { context = 32 })
    assert.same({ nil, "invalid" }, { report, code })
    assert.matches(": holds model.gguf beside a package set; name another", message)
    assert.equal(16, meta(out).max_seq_len)
    os.remove(out .. "/model.gguf")
    assert(model:export(out, { context = 32 }))
    remove(out)
    core.write_file(out, "a file")
    report, message = model:export(out)
    assert.is_nil(report)
    assert.matches("is not a folder: the packages need a folder", message)
    os.remove(out)
    report, message, code = exporter.of_path("spec/fixtures/configs/qwen2.5-0.5b.json", out)
    assert.same({ nil, "unsupported" }, { report, code })
    assert.matches("no weights", message)
    assert.error_matches(function() model:export(out, { weights = "int5" }) end, "option weights is \"int5\"")
    assert.error_matches(function() model:export("", {}) end, "path is empty")
  end)

  it("leaves the old set or the new one wherever it is killed", function()
    local out, path = temp(), tiny.path()
    local code = ('assert(require("ane.coreml.export").of_path("%s", "%s", {context = %%d, layers = 1, threads = 1}))'):format(path, out)
    local command = ("LUA_PATH='%s' LUA_CPATH='%s' timeout --foreground -s KILL %%.3f lua5.4 -e '%s' > /dev/null 2>&1")
      :format(package.path, package.cpath, code)
    os.execute(command:format(60, 16))
    local old = tree(out)
    assert.equal(16, meta(out).max_seq_len)
    os.execute(command:format(60, 32))
    local new = tree(out)
    local contexts = { [16] = old, [32] = new }
    for i = 1, 40 do
      os.execute(command:format(0.01 + i * 0.006, i % 2 == 0 and 16 or 32))
      local now = meta(out).max_seq_len
      assert.same(contexts[now], tree(out))
    end
    os.execute(command:format(60, 16))
    assert.same(old, tree(out))
    assert.is_nil(core.path_kind(out .. ".partial"))
    remove(out)
  end)
end)

describe("export with fixed T", function()
  it("of a causal model keeps its states, and takes whole calls", function()
    local path, out = tiny.path(), temp()
    local source <close> = assert(ane.load(path, { weights = "int8", activations = "fp32", context = 64 }))
    assert(source:export(out, { weights = "int8", context = 64, fixed_t = { 1 } }))
    assert.equal(64, meta(out).max_seq_len)
    local model <close> = assert(ane.load(out, { engine = "graph" }))
    assert.same(assert(source:generate(IDS, { max_tokens = 8, details = true })).ids, assert(model:generate(IDS, { max_tokens = 8,
      details = true })).ids)
    -- Calls of four tokens alone reach the last position too: the last ones begin with tokens that were fed before.
    for context = 10, 13 do
      assert(source:export(out, { weights = "int8", context = context, fixed_t = { 4 } }))
      local fours <close> = assert(ane.load(out, { engine = "graph" }))
      for _, n in ipairs { 1, 3, 4, 9 } do
        local ids = table.move(IDS, 1, n, 1, {})
        local want = assert(model:generate(ids, { max_tokens = context - n + 1, ignore_eos = true, details = true }))
        local got = assert(fours:generate(ids, { ignore_eos = true, details = true }))
        assert.same({ want.ids, "context" }, { got.ids, got.stop }, context .. " " .. n)
      end
      local a <close> = assert(model:session())
      local b <close> = assert(fours:session())
      local ids = {}
      for i = 1, context do ids[i] = IDS[i % #IDS + 1] end
      assert(a:feed(ids, { want = "all" }))
      assert(b:feed(ids, { want = "all" }))
      for i = 1, context do assert.equal(0, (a:logits(i) - b:logits(i)):abs():max()) end
      assert(b:rewind(context - 2))
      assert(b:feed({ ids[context - 1], ids[context] }, { want = "all" }))
      for i = -2, -1 do assert.equal(0, (a:logits(i) - b:logits(i)):abs():max()) end
      local _, message = b:feed { 1 }
      assert.matches("1 tokens after %d+ do not fit in a context of", message)
    end
    assert.error_matches(function() source:export(out, { fixed_t = { 4, 2 } }) end, "fixed_t must ascend")
    assert.error_matches(function() source:export(out, { fixed_t = {} }) end, "fixed_t must be a list")
    remove(out)
  end)
end)

describe("export with gptq", function()
  local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times. Ünïcödé too.\n"):rep(8)
  local out

  before_each(function() out = os.tmpname() os.remove(out) end)
  after_each(function() os.execute("rm -rf '" .. out .. "'") end)

  -- Signal to noise of the matrices of a report, by name.
  local function noise(report)
    local snr = {}
    for _, t in ipairs(report.tensors) do snr[t.name] = t.snr_db end
    return snr
  end

  local function assert_equal_noise(snr, report, names)
    local seen = 0
    for _, w in ipairs(report.weights) do
      if snr[w.name] and w.form == "int4-block" and w.name:find(names) then
        assert.near(snr[w.name], w.snr_db, 1e-6)
        seen = seen + 1
      end
    end
    assert.is_true(seen > 3)
  end

  it("writes the numbers that quantise writes, for either inputs", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local hash, gguf = {}, out .. ".gguf"
    for _, inputs in ipairs { "rounded", "source" } do
      local opts = { weights = "int4-block", method = "gptq", calibrate = TEXT, inputs = inputs }
      local snr = noise(assert(model:quantise(gguf, opts)))
      os.remove(gguf)
      opts.context = 64
      local report = assert(model:export(out, opts))
      assert.is_true(report.ok)
      assert_equal_noise(snr, report, inputs == "source" and "ffn" or "blk")
      hash[inputs] = core.read_file(out .. "/runtime_meta.json")
      os.execute("rm -rf '" .. out .. "'")
      opts.threads, opts.memory = 1, 1
      assert(model:export(out, opts))
      assert.is_true(hash[inputs] == core.read_file(out .. "/runtime_meta.json"))
      os.execute("rm -rf '" .. out .. "'")
    end
    assert.is_false(hash.rounded == hash.source)
  end)

  it("goes on after an interruption with the same numbers", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local opts = { weights = "int4-block", method = "gptq", calibrate = TEXT, context = 64, size_limit = 16000 }
    assert.is_true(#assert(model:export(out, opts)).shards > 3)
    local whole = core.read_file(out .. "/runtime_meta.json")
    os.execute("rm -rf '" .. out .. "'")
    opts.progress = function(stage, done, total) if stage == "export" and done > total // 2 and done < total then error "enough" end end
    assert.is_false((pcall(model.export, model, out, opts)))
    opts.progress = nil
    local report = assert(model:export(out, opts))
    assert.is_true(report.kept > 0 and report.kept < #report.shards)
    assert.is_true(whole == core.read_file(out .. "/runtime_meta.json"))
  end)

  it("starts again if the model is loaded with other activations", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local other <close> = tiny.load(nil, { activations = "int8" })
    local opts = { weights = "int4-block", method = "gptq", calibrate = TEXT, context = 64, size_limit = 16000, tune = "none" }
    assert(other:export(out, opts))
    local want = core.read_file(out .. "/runtime_meta.json")
    os.execute("rm -rf '" .. out .. "'")
    opts.progress = function(stage, done, total) if stage == "export" and done > total // 2 and done < total then error "enough" end end
    assert.is_false((pcall(model.export, model, out, opts)))
    opts.progress = nil
    assert.equal(0, assert(other:export(out, opts)).kept)
    assert.is_true(want == core.read_file(out .. "/runtime_meta.json"))
  end)

  it("needs a text", function()
    local model <close> = tiny.load()
    assert.error_matches(function() model:export(out, { weights = "int8", method = "gptq" }) end, "method gptq needs a text")
    local command = require "support.command"
    local code, _, err = command.run { "export", tiny.path(), out, "--method", "gptq" }
    assert.equal(2, code)
    assert.matches("^ane export: %-%-method gptq needs a text: give %-%-calibrate FILE", err)
  end)
end)
