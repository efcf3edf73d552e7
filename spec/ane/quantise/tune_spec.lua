-- Norm weights that are tuned after rounding: their gradients on whole models, and what a quantised file gains.
local ane = require "ane"
local core = require "ane.core"
local gradient = require "ane.quantise.gradient"
local inputs = require "ane.model.inputs"
local loader = require "ane.model.loader"
local overlay = require "ane.quantise.overlay"
local recipe = require "ane.recipe"
local tiny = require "support.tiny"
local tune = require "ane.quantise.tune"

local HF = "spec/fixtures/hf/"
local made = {}

local function scratch()
  made[#made + 1] = os.tmpname()
  return made[#made]
end

after_each(function()
  for _, path in ipairs(made) do os.remove(path) end
  made = {}
end)

-- Ids of a seed.
local function ids_of(n, seed)
  local ids, state = {}, seed
  for i = 1, n do
    state = (state * 1103515245 + 12345) & 0x7fffffff
    ids[i] = 3 + (state >> 8) % 60
  end
  return ids
end

local function session_of(r, cfg, source, context)
  context = context or 64
  local graph = assert(recipe.build(r, cfg, source))
  assert(graph:passes "cpu-plain")
  local program = assert(core.program(graph, { threads = 2, int8 = false, head = "full", context = context, chunk = context }))
  graph:close()
  return assert(program:session { context = context, kv = "fp32" })
end

local function open(path)
  local source = assert(core.open(path))
  return source, assert(loader.identify(source, path, {}))
end

describe("the gradient of a model's norm weights", function()
  -- The file is the model itself with norms that are changed: what is wanted are the source's predictions.
  for _, name in ipairs { "llama", "gemma2-odd", "gemma3", "gemma3_softcap", "qwen2_swa", "hunyuan_v1_dense", "phi3", "qwen3-odd",
                          "olmo2-odd", "granite-odd", "smollm3-odd", "glm4-odd", "starcoder2-odd", "cohere2-odd", "ernie4_5-odd",
                          "seed_oss_out-odd" } do
    it("is what differences give: " .. name, function()
      local ids = ids_of(40, 5)
      local source <close>, r, cfg = open(HF .. name)
      local wanted <close> = session_of(r, cfg, source)
      assert(wanted:feed(ids, "all"))
      local own <close> = assert(gradient.new(r, cfg, source, 2))
      local share = (name == "gemma3" or name:find "odd$") and 0 or 0.3 -- of the tokens' own log probabilities
      local edits, values, vectors = {}, {}, {}
      math.randomseed(3)
      for i, weight in ipairs(own.weights) do
        edits[i] = { name = weight, dtype = "fp32" }
        local list = core.tensor(source:tensor(weight).shape, assert(source:read(weight))):totable()
        for k = 1, #list do list[k] = list[k] + math.random() * 0.4 - 0.2 end
        values[weight] = list
      end
      local changed = overlay.new(source, edits)
      local function loss(sums)
        for weight, list in pairs(values) do
          vectors[weight] = core.tensor({ #list }, list)
          changed:put(weight, vectors[weight]:tostring())
        end
        local session <close> = session_of(r, cfg, changed.source)
        local kl = own:run(session, wanted, ids, vectors, sums, share)
        if share == 0 then return kl end
        local sum = kl
        for i = 1, #ids - 1 do
          local of_row, _, _, _, log = core.divergence(wanted:logits(i), session:logits(i), ids[i + 1])
          sum = sum - share * (of_row + log)
        end
        return sum
      end
      local sums = {}
      local kl = loss(sums)
      assert.is_true(kl > 0.01, kl)
      for i = 1, 6 do
        local weight = own.weights[1 + (5 * i + i * i) % #own.weights]
        local list = values[weight]
        local c = 1 + 5 * i % #list
        local old, h = list[c], 0.01
        list[c] = old + h
        local up = loss {}
        list[c] = old - h
        local slope = (up - loss {}) / (2 * h)
        list[c] = old
        local got = sums[weight]:get(c)
        assert.is_true(math.abs(slope - got) < 0.01 * math.abs(slope) + 0.002 * kl, ("%s[%d]: %g, wanted %g"):format(weight, c, got, slope))
      end
    end)
  end

  it("belongs to divergences and log probabilities that rows alone give too, also of more tokens than are taken at a time", function()
    local ids = ids_of(150, 7)
    local source <close>, r, cfg = open(HF .. "llama")
    local other <close>, r2, cfg2 = open(HF .. "phi3")
    local wanted, session = session_of(r, cfg, source, 150), session_of(r2, cfg2, other, 150)
    assert(wanted:feed(ids, "all"))
    local own <close> = assert(gradient.new(r2, cfg2, other, 2))
    local kl, log, log_wanted = own:divergence(session, wanted, ids)
    local kl_sum, log_sum, wanted_sum = 0.0, 0.0, 0.0
    for i = 1, #ids do
      local more, _, _, of_wanted, of_token = core.divergence(wanted:logits(i), session:logits(i), ids[i + 1])
      kl_sum, log_sum, wanted_sum = kl_sum + more, log_sum + (of_token or 0), wanted_sum + (of_wanted or 0)
    end
    assert.near(kl_sum, kl, 1e-4 * kl_sum)
    assert.near(log_sum, log, -1e-5 * log_sum)
    assert.near(wanted_sum, log_wanted, -1e-5 * wanted_sum)
    assert.is_true(kl_sum > 0.1 and log_sum < -1)
    assert.has_error(function() own.core:divergence(wanted, session, 1, 2, { 1, 1 << 20 }) end)
    wanted:close()
    session:close()
  end)

  it("does not exist for operations without one, which it names", function()
    local source <close> = assert(core.open(HF .. "lfm2_moe-odd"))
    local r, cfg = loader.identify(source, HF .. "lfm2_moe-odd", {})
    local none, why = gradient.new(r, cfg, source, 1)
    assert.is_nil(none)
    assert.matches("^no gradient of layers%.%d+%.%S+ %(%l", why)
  end)
end)

describe("a quantised model whose norms are tuned", function()
  -- Ids that the model itself writes, so that its predictions mean something: lists of 512, and one for a comparison.
  local function samples_of(model)
    local lists = assert(inputs.resolve(model, { samples = 9000 }))
    return table.move(lists, 1, 13, 1, {}), lists[14]
  end

  it("is nearer to its source on text that tuning did not read, and the same for any threads and vectors", function()
    local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
    local most = core.testing.wide_most()
    finally(function() core.testing.wide_most(most) end)
    local kl, files, lists, other = {}, {}, samples_of(model)
    for i, opts in ipairs { { tune = "none" }, { threads = 1, tune = "norms" }, { threads = 2, tune = "norms" } } do
      local path = scratch()
      core.testing.wide_most(i == 2 and 16 or 64)
      opts.weights, opts.method, opts.calibrate = "int4-block", "gptq", lists
      local report = assert(model:quantise(path, opts))
      if i == 1 then
        assert.same({ nil, nil }, { report.tuned, report.untuned })
      else
        assert.is_true(report.tuned.changed)
        local after, before = report.tuned.after, report.tuned.before
        assert.is_true(after.kl < before.kl and math.abs(math.log(after.perplexity)) < math.abs(math.log(before.perplexity)))
        assert.is_true(report.tuned.windows >= tune.LEAST)
      end
      local small <close> = assert(ane.load(path, { activations = "fp32" }))
      kl[i] = assert(require("ane.evaluate.compare").run(model, small, other, {})).kl.mean
      files[i] = core.sha256(core.read_file(path))
    end
    assert.is_true(kl[2] < kl[1], ("%g, before %g"):format(kl[2], kl[1]))
    assert.equal(files[2], files[3])
    assert.not_equal(files[1], files[2])
  end)

  it("stays as rounded where the perplexity would go further from the source's", function()
    local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
    local list, files = {}, {}
    for i = 1, 12 do list[i] = ids_of(512, i) end -- the rounded model expects them more than the source does
    for i, how in ipairs { "none", "norms" } do
      local path = scratch()
      local report = assert(model:quantise(path, { weights = "int4-block", method = "gptq", calibrate = list, tune = how }))
      if i == 2 then
        assert.is_false(report.tuned.changed)
        assert.is_true(report.tuned.after.perplexity < report.tuned.before.perplexity and report.tuned.before.perplexity < 1)
      end
      files[i] = core.sha256(core.read_file(path))
    end
    assert.equal(files[1], files[2])
  end)

  it("is exported with the numbers that it has, in the same form", function()
    local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
    local lists = samples_of(model)
    for form, tuned in pairs { ["int4-block"] = "norms", ["lut4-g16"] = false } do
      local path, folder = scratch(), os.tmpname()
      os.remove(folder)
      assert(model:quantise(path, { weights = form, method = "gptq", calibrate = lists, tune = tuned or "none" }))
      local small <close> = assert(ane.load(path))
      local report = assert(small:export(folder, { weights = form, context = 64 }))
      os.execute("rm -rf " .. folder)
      assert.is_true(#report.weights > 10)
      for _, w in ipairs(report.weights) do assert.same({ form, 0 }, { w.form, w.max_abs }, w.name) end
    end
  end)

  describe("as an export", function()
    local NOT_INT8 = "the scheme is int8; norms are tuned with int4-block, int4-block64 and tables"
    local folder

    before_each(function()
      folder = os.tmpname()
      os.remove(folder)
    end)

    after_each(function() os.execute("rm -rf " .. folder .. "*") end)

    -- The logits of a set for some ids.
    local function logits_of(path)
      local set <close> = assert(ane.load(path, { engine = "graph" }))
      local session <close> = assert(set:session())
      assert(session:feed({ 3, 5, 7 }, {}))
      return session:logits():totable()
    end

    it("has the weights of the tuned file, which is removed", function()
      local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
      local path = scratch()
      local opts = { weights = "int4-block", method = "gptq", calibrate = samples_of(model), tune = "norms", table = "fp16" }
      local written = assert(model:quantise(path, opts))
      assert.is_true(written.tuned.changed)
      local small <close> = assert(ane.load(path))
      assert(small:export(folder, { weights = "int4-block", context = 64 }))
      local want = logits_of(folder)
      opts.context, opts.table = 64, nil
      assert(core.write_file(folder .. ".set.tuned.gguf", "mine"))
      local report = assert(model:export(folder .. ".set", opts))
      assert.is_nil(core.path_kind(folder .. ".set.partial"))
      assert.equal("mine", core.read_file(folder .. ".set.tuned.gguf"))
      assert.same(want, logits_of(folder .. ".set"))
      assert.same(written.tuned, report.tuned)
      for _, w in ipairs(report.weights) do assert.is_true(w.max_abs > 0, w.name) end -- errors of the rounding, not of the copy
      opts.tune = "none"
      report = assert(model:export(folder .. ".plain", opts))
      assert.is_nil(report.tuned)
      assert.is_not.same(want, logits_of(folder .. ".plain"))
    end)

    it("has the names and ids of the model itself, and keeps what an interrupted run has rounded", function()
      local model <close> = assert(ane.load(HF .. "phi3", { activations = "fp32", threads = 2 }))
      local opts, metas = { weights = "int4-block", method = "gptq", calibrate = { ids_of(256 * 17, 5) }, context = 64 }, {}
      for i, how in ipairs { "none", "norms" } do
        opts.tune = how
        assert(model:export(folder, opts))
        metas[i] = assert(core.json_decode(core.read_file(folder .. "/runtime_meta.json")))
      end
      for _, key in ipairs { "model_family", "model_name", "bos_id", "eos_ids", "tokenizer", "vocab_size" } do
        assert.same(metas[1][key], metas[2][key], key)
      end
      local bytes = core.read_file(folder .. "/runtime_meta.json")
      opts.progress = function(stage) if stage == "tune" then error "stopped" end end
      assert.has_error(function() model:export(folder, opts) end)
      assert.is_string(core.path_kind(folder .. ".partial/tuned.gguf.journal"))
      opts.progress = nil
      assert(model:export(folder, opts))
      assert.equal(bytes, core.read_file(folder .. "/runtime_meta.json"))
      assert.is_nil(core.path_kind(folder .. ".partial"))
    end)

    describe("that is ended while it packages", function()
      local model, opts, seen

      -- Exports with some options changed. stop: raises at the first package. Returns the report, the hash of the set and what was read.
      local function export(more, stop)
        local own = {}
        for key, value in pairs(opts) do own[key] = value end
        for key, value in pairs(more or {}) do own[key] = value end
        seen = {}
        own.progress = function(stage)
          seen[stage] = true
          if stop and stage == "export" then error("stopped", 0) end
        end
        local ok, report = pcall(model.export, model, folder, own)
        if stop then return assert.same({ false, "stopped" }, { ok, report }) end
        assert.is_true(ok, report)
        assert.is_nil(core.path_kind(folder .. ".partial"))
        return report, select(2, require("ane.coreml.files").measure(folder))
      end

      before_each(function()
        model = assert(ane.load(HF .. "phi3", { activations = "fp32", threads = 2 }))
        local lists = {}
        for i = 1, 18 do lists[i] = ids_of(256, i) end
        opts = { weights = "int4-block", method = "gptq", calibrate = lists, tokens = 512, context = 64, tune = "norms" }
      end)

      after_each(function() model:close() end)

      for _, target in ipairs { "coreml", "coreai", "coreai-sharded" } do
        it("keeps the tuned file, and gives the same bytes: " .. target, function()
          opts.target = target
          local want, hash = export()
          assert.is_true(seen.tune)
          os.execute("rm -rf " .. folder)
          export(nil, true)
          assert.equal("file", core.path_kind(folder .. ".partial/tuned.gguf"))
          local report, again = export()
          assert.same({ export = true }, { export = seen.export, quantise = seen.quantise, tune = seen.tune })
          assert.equal(hash, again)
          assert.is_true(report.tuned.kept)
          report.tuned.kept = nil
          assert.same(want.tuned, report.tuned)
          for i, w in ipairs(want.weights) do
            assert.equal(w.name, report.weights[i].name)
            assert.near(w.max_abs, report.weights[i].max_abs, 1e-8)
          end
        end)
      end

      it("makes it again for other options, texts and weights", function()
        local texts = table.move(opts.calibrate, 1, 17, 1, {})
        texts[18] = ids_of(256, 99) -- only tuning reads it
        for _, more in ipairs { { calibrate = texts }, { tokens = 256 }, { weights = "lut4-g16" } } do
          local _, want = export(more)
          export(nil, true)
          local report, hash = export(more)
          assert.is_true(seen.tune)
          assert.is_nil(report.tuned.kept)
          assert.equal(want, hash)
        end
      end)

      it("makes it again where it is damaged or has no valid note", function()
        local _, want = export()
        local function cut(bytes) return bytes:sub(1, -2) end
        local function flip(bytes) return bytes:sub(1, -4) .. string.char(bytes:byte(-3) ~ 1) .. bytes:sub(-2) end
        for _, row in ipairs { { "tuned.gguf", flip }, { "tuned.gguf" }, { "tuned.gguf.done", cut }, { "tuned.gguf.done", flip } } do
          local path = folder .. ".partial/" .. row[1]
          export(nil, true)
          if row[2] then assert(core.write_file(path, row[2](core.read_file(path)))) else os.remove(path) end
          local _, hash = export()
          assert.is_true(seen.tune, path)
          assert.equal(want, hash)
        end
      end)
    end)

    it("is tuned if its recipe is not registered but given", function()
      local path, own = os.tmpname(), {}
      os.remove(path)
      assert.is_true(os.execute(("cp -r %sllama %s && sed -i 's/\"llama\"/\"unregistered\"/' %s/config.json"):format(HF, path, path)))
      finally(function() os.execute("rm -rf " .. path) end)
      for key, value in pairs(recipe.find "llama") do own[key] = value end
      own.architectures = { "unregistered" }
      local model <close> = assert(ane.load(path, { recipe = own, activations = "fp32", threads = 2 }))
      local lists = {}
      for i = 1, 17 do lists[i] = ids_of(256, i) end
      local opts = { weights = "int4-block", method = "gptq", calibrate = lists, tokens = 256, context = 64, tune = "norms" }
      local report = assert(model:export(folder, opts))
      assert.is_number(report.tuned.windows)
    end)

    it("tunes by itself only what has at most 4 bits, and with enough text", function()
      local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
      local lists = samples_of(model)
      local few = { ids_of(2000, 1), ids_of(1600, 2), { 5 } }
      for _, row in ipairs {
        { "int8", NOT_INT8, lists },
        { "int4-block", "the text has 3600 tokens, but must have 4096 or more", few },
        { "lut6", "the matrices have 6 bits per weight, more than 5", lists },
      } do
        local report = assert(model:export(folder, { weights = row[1], method = "gptq", calibrate = row[3], context = 64 }))
        assert.equal(row[2], report.untuned)
        assert.is_nil(report.tuned)
      end
    end)

    it("is refused where it cannot be tuned", function()
      local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
      local lists = samples_of(model)
      for _, row in ipairs {
        { { weights = "int8" }, "unsupported", "option tune: " .. NOT_INT8 },
        { { mixed = { ffn_up = "int8" } }, "unsupported", "option tune: option mixed is given, and norms are tuned only without it" },
        { { method = "rtn", calibrate = false }, "invalid", "option tune: norms needs method gptq" },
        { { inputs = "source" }, "unsupported", "option tune: option inputs is source, and norms are tuned only with rounded" },
        { { calibrate = { { 3, 4, 5 } } }, "invalid", "option tune: the text has 3 tokens, but must have 4096 or more" },
      } do
        local opts = { weights = "int4-block", method = "gptq", calibrate = lists, context = 64, tune = "norms" }
        for key, value in pairs(row[1]) do opts[key] = value or nil end
        local report, message, code = model:export(folder, opts)
        assert.same({ nil, row[3], row[2] }, { report, message, code })
        assert.is_nil(core.path_kind(folder))
        assert.is_nil(core.path_kind(folder .. ".partial"))
      end
      local opts = { weights = "int4-block", method = "gptq", calibrate = lists, context = 64, tune = "norms" }
      local report, message, code = model:export(folder .. "/none", opts)
      assert.same({ nil, "io" }, { report, code })
      assert.equal(folder .. "/none: cannot create: No such file or directory", message)
    end)
  end)

  it("refuses ids that no token has", function()
    local model <close> = tiny.load()
    for _, id in ipairs { 1 << 40, -4, 4.5 } do
      local report, message, code = model:quantise(scratch(), { weights = "int8", method = "gptq", calibrate = { { 3, id } } })
      assert.same({ nil, "range" }, { report, code })
      assert.equal(("option calibrate: prompt 1: id 2 must be a whole number of 0 or more, but is %s"):format(id), message)
    end
  end)

  it("is refused before it is rounded where tuning is requested and impossible", function()
    local model <close> = tiny.load()
    local path, stages = scratch(), {}
    local opts = {
      weights = "q4_0", method = "gptq", tune = "norms", calibrate = ids_of(300, 1), threads = 1,
      progress = function(stage) stages[stage] = true end,
    }
    local report, message, code = model:quantise(path, opts)
    assert.same({ nil, "invalid" }, { report, code })
    assert.equal("option tune: the text has 300 tokens, but must have 4096 or more", message)
    local moe <close> = assert(ane.load(HF .. "lfm2_moe-odd"))
    opts.calibrate = {}
    for i = 1, 20 do
      opts.calibrate[i] = ids_of(256, i)
      for k, id in ipairs(opts.calibrate[i]) do opts.calibrate[i][k] = math.min(id, 56) end
    end
    report, message, code = moe:quantise(path, opts)
    assert.same({ nil, "invalid" }, { report, code })
    assert.matches("^option tune: no gradient of layers", message)
    assert.same({}, stages)
    local most = tune.BITS_AUTO
    finally(function() tune.BITS_AUTO = most end)
    opts.tune, tune.BITS_AUTO = "auto", 32
    assert.matches("^no gradient of layers", assert(moe:quantise(path, opts)).untuned)
    report = assert(model:quantise(path, { weights = "q4_0" }))
    assert.same({ nil, nil }, { report.tuned, report.untuned })
  end)

  it("is tuned on texts that are shorter than a window, each read alone", function()
    local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
    local lists, left = {}, 4200
    while left > 0 do -- pieces of 2 to 90 tokens of the model's own texts
      for _, ids in ipairs(samples_of(model)) do
        local from = 1
        while from < #ids and left > 0 do
          local n = math.min(2 + (7 * #lists + from) % 89, #ids - from + 1)
          lists[#lists + 1] = table.move(ids, from, from + n - 1, 1, {})
          from, left = from + n, left - n
        end
      end
    end
    local path = scratch()
    local report = assert(model:quantise(path, { weights = "int4-block", method = "gptq", calibrate = lists }))
    assert.is_true(report.tuned.windows > 80 and report.tuned.windows <= #lists)
    assert.same({ true, true }, { report.tuned.changed, report.tuned.after.kl < report.tuned.before.kl })
  end)

  it("is by default one of few bits and few weights, with enough text", function()
    local model <close> = tiny.load("llama-q8_0", { activations = "fp32" })
    local work, lists = tune.WORK_AUTO, samples_of(model)
    finally(function() tune.WORK_AUTO = work end)
    local function write(type, tokens)
      local path = scratch()
      return assert(model:quantise(path, { weights = type, method = "gptq", calibrate = lists, tokens = tokens })), core.read_file(path)
    end
    local report, bytes = write("int4-block", 2048)
    assert.is_true(report.tuned.windows > 12) -- besides those that are held out
    assert.is_true(report.tuned.changed)
    local again = select(2, write("int4-block", 2048))
    assert.equal(core.sha256(bytes), core.sha256(again))
    local short = write "int4-block" -- all of the text calibrates
    assert.is_true(short.tuned.windows > 12)
    assert.is_true(short.tuned.changed)
    assert.equal("the matrices have 8.5 bits per weight, more than 5", write("q8_0", 2048).untuned)
    tune.WORK_AUTO = 1e5
    assert.matches("^the model has %d+ weights, more than 6250$", write("int4-block", 2048).untuned)
  end)
end)
