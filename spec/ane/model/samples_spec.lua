local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local samples = require "ane.model.samples"
local tiny = require "support.tiny"

describe("samples", function()
  it("are the same for the same model, and begin with the first token of texts", function()
    local model <close> = tiny.load()
    local lists, total, seen = assert(samples.draw(model, 700)), 0, {}
    for _, ids in ipairs(lists) do
      assert.equal(model.tokenizer.bos or model.tokenizer.eos_ids[1], ids[1])
      assert.is_true(#ids <= 512)
      total = total + #ids
      seen[table.concat(ids, " ")] = true
    end
    assert.is_true(total >= 700 and total <= 701)
    assert.is_true(#lists > 1 and next(seen, next(seen)) ~= nil)
    local other <close> = tiny.load(nil, { threads = 1 })
    assert.same(lists, samples.draw(other, 700))
  end)

  it("report progress, and need a token to begin with", function()
    local model <close> = tiny.load()
    local last
    assert(samples.draw(model, 40, function(stage, done, count) last = { stage, done, count } end))
    assert.same({ "sample", 40, 40 }, last)
    assert.equal("unsupported", select(3, samples.draw({ context = 64 }, 40)))
  end)

  it("are refused with the reason why a model writes none", function()
    for path, why in pairs {
      ["spec/fixtures/hf/bert"] = "is an embedding model.*writes none", ["spec/fixtures/hf/cross_encoder"] = "is a reranker.*writes none",
      ["spec/fixtures/hf/llama"] = "the model has no tokenizer",
    } do
      local model <close> = assert(ane.load(path))
      local none, message, code = samples.draw(model, 40)
      assert.same({ nil, "unsupported" }, { none, code })
      assert.matches(why, message)
    end
  end)

  it("guide ane quantise as their ids do in Lua", function()
    local out, other = os.tmpname(), os.tmpname()
    local model <close> = tiny.load()
    local opts = { weights = "q4_0", method = "gptq", calibrate = assert(samples.draw(model, 200)) }
    assert(model:quantise(other, opts))
    for _, n in ipairs { "0", "-1", "x", "99999999999" } do
      local code, _, err = command.run { "quantise", tiny.path(), out, "--weights", "q4_0", "--calibrate", "samples:" .. n }
      assert.same({ 2, true }, { code, err:find("samples:" .. n .. ": the number of tokens must be 1 .. 1048576", 1, true) ~= nil })
    end
    command.json { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", "samples:200" }
    local same = assert(core.read_file(other)) == assert(core.read_file(out))
    os.remove(out)
    os.remove(other)
    assert.is_true(same)
  end)

  it("come by turns with a text", function()
    local model <close> = tiny.load()
    local text = ("The quick brown fox, 1234567890 times.\n"):rep(60)
    local ids = assert(model.tokenizer:encode(text, { eos = false }))
    local drawn = assert(samples.draw(model, 900))
    local mixed = assert(require("ane.model.inputs").resolve(model, { text, samples = 900 }))
    local own, other, counts = {}, {}, { 0, 0 }
    for _, list in ipairs(mixed) do
      local is_sample = list == drawn[#other + 1] or table.concat(list, " ") == table.concat(drawn[#other + 1] or {}, " ")
      if is_sample then other[#other + 1] = list else table.move(list, 1, #list, #own + 1, own) end
      local side = is_sample and 2 or 1
      assert.is_true(counts[side] <= counts[3 - side] or #other == #drawn or #own > #ids - 512)
      counts[side] = counts[side] + #list
    end
    assert.same(ids, own)
    assert.same(drawn, other)
    local path, out, want = os.tmpname(), os.tmpname(), os.tmpname()
    assert(core.write_file(path, text))
    assert(model:quantise(want, { weights = "q4_0", method = "gptq", calibrate = { text, samples = 900 } }))
    command.json { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", path .. "+samples:900" }
    local same = assert(core.read_file(want)) == assert(core.read_file(out))
    local code, _, err = command.run { "quantise", tiny.path(), out, "--weights", "q4_0", "--calibrate", path .. "+samples:x" }
    for _, name in ipairs { path, out, want } do os.remove(name) end
    assert.is_true(same)
    assert.same({ 2, true }, { code, err:find("the number of tokens must be", 1, true) ~= nil })
  end)

  it("are no more than are read", function()
    local out, want, counts, draw = os.tmpname(), os.tmpname(), {}, samples.draw
    local model <close> = tiny.load()
    local all = assert(draw(model, 2600))
    assert(model:quantise(want, { weights = "q4_k", fallback = "iq4_nl", calibrate = all }))
    samples.draw = function(which, count, progress)
      counts[#counts + 1] = count
      return draw(which, count, progress)
    end
    local args = { "quantise", tiny.path(), out, "--weights", "q4_k", "--fallback", "iq4_nl", "--calibrate", "samples:2600" }
    local ok, message = pcall(function()
      command.json(args)
      assert.is_true(assert(core.read_file(want)) == assert(core.read_file(out)))
      assert(model:quantise(out, { weights = "q4_k", fallback = "iq4_nl", calibrate = { samples = 2600 } }))
      assert.is_true(assert(core.read_file(want)) == assert(core.read_file(out)))
      assert(ane.calibrate(model, { samples = 2600 }, { tokens = 1 }))
      assert(ane.sensitivity(model, { samples = 2600 }, { tokens = 64, types = { "q4_0" } }))
      command.json { "quantise", tiny.path(), out, "--bits", "8", "--calibrate", "samples:700" }
    end)
    samples.draw = draw
    os.remove(out)
    os.remove(want)
    assert.is_true(ok, message)
    assert.same({ 2048, 2048, 2, 64, 512, 700 }, counts)
  end)

  it("have a number that is checked before the model is loaded", function()
    local file = "spec/ane/model/samples_spec.lua"
    for _, row in ipairs {
      { "samples:0", 1 }, { "samples:", 1 }, { "samples:1e3", 1 }, { "samples:1048577", 1 }, { file .. "+samples:x", 0 },
      { file .. "+samples:1048577", 0 },
    } do
      local want = ("--calibrate is %s: the number of tokens must be %d .. 1048576"):format(row[1], row[2])
      for _, args in ipairs {
        { "quantise", "none.gguf", "out.gguf", "--bits", "5" }, { "export", "none.gguf", "out", "--method", "gptq" },
        { "compare", "none.gguf", "none.gguf", file, "--weights-b", "lut4" }, { "run", "none.gguf", "--weights", "lut4" },
      } do
        table.move({ "--calibrate", row[1] }, 1, 2, #args + 1, args)
        local code, _, err = command.run(args)
        assert.same({ 2, true }, { code, err:find(want, 1, true) ~= nil }, err)
      end
    end
  end)

  it("complete a short text of ane quantise with gptq, unless it says how many", function()
    local model <close> = tiny.load()
    local text = ("The quick brown fox, 1234567890 times.\n"):rep(60)
    local n = #assert(model.tokenizer:encode(text, { eos = false }))
    local path, out = os.tmpname(), os.tmpname()
    assert(core.write_file(path, text))
    local function written(calibrate)
      local report = command.json { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", calibrate,
                                    "--tune", "none" }
      return report.samples, assert(core.read_file(out))
    end
    local count, bytes = written(path)
    local same, as_many = written(path .. "+samples:16384")
    local none, alone = written(path .. "+samples:0")
    assert.is_true(n < 16384)
    assert.same({ 16384, 16384, 0 }, { count, same, none })
    assert.is_true(bytes == as_many and bytes ~= alone)
    assert(core.write_file(path, (text):rep(32768 // n - 1)))
    count = written(path)
    assert.is_true(count >= 512 and count < 2 * n) -- what is missing
    assert(core.write_file(path, (text):rep(32768 // n + 1)))
    assert.equal(0, (written(path)))
  end)

  it("complete it to as many tokens as --tokens names", function()
    local model <close> = tiny.load()
    local text = ("The quick brown fox, 1234567890 times.\n"):rep(60)
    local n = #assert(model.tokenizer:encode(text, { eos = false }))
    local path, out, want = os.tmpname(), os.tmpname(), os.tmpname()
    assert(core.write_file(path, text))
    local function written(calibrate, tokens)
      return command.json({ "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", calibrate, "--tokens",
                            tokens }).samples
    end
    assert.equal(1000, written(path, tostring(n + 1000)))
    assert.equal(0, written(path, "700"))
    assert(model:quantise(want, { weights = "q4_0", method = "gptq", calibrate = text, tokens = 700 }))
    local same = assert(core.read_file(want)) == assert(core.read_file(out))
    for _, name in ipairs { path, out, want } do os.remove(name) end
    assert.is_true(same)
  end)

  it("are not more than gptq reads, with those that tune norms", function()
    local out, draw, asked = os.tmpname(), samples.draw, {}
    local function written(works, ...)
      samples.draw = function(model, count)
        asked[#asked + 1] = count
        return draw(model, math.min(count, 900))
      end
      local ok, report = pcall(command.json, { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate",
                                               "samples:1000000", "--tokens", "300", ... })
      samples.draw = draw
      os.remove(out)
      assert.equal(works, ok, report)
    end
    written(true, "--tune", "none")
    written(true)
    written(false, "--tune", "norms") -- 900 tokens are too few
    local tune = require "ane.quantise.tune"
    assert.same({ 300, 300 + tune.MOST_AUTO * tune.WINDOW, 300 + tune.FURTHER }, asked)
  end)

  it("are drawn once for all recipes of a sweep", function()
    local text, draw, n = os.tmpname(), samples.draw, 0
    local out = text .. ".svg"
    assert(core.write_file(text, ("The quick brown fox, 1234567890 times.\n"):rep(60)))
    samples.draw = function(model, count)
      n = n + 1
      return draw(model, math.min(count, 900))
    end
    local ok, report = pcall(command.json, { "quantise", tiny.path(), out, "--sweep", "q4_0:gptq,q8_0:rtn,q5_0:gptq", "--on", text,
                                             "--calibrate", text })
    samples.draw = draw
    os.remove(text)
    os.remove(out)
    assert.is_true(ok, report)
    assert.equal(3, #report.rows)
    assert.equal(1, n)
  end)
end)
