-- Runs of quantise that are ended and go on later.
local adapters = require "support.adapters"
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local quantise = require "ane.quantise"
local resume = require "ane.quantise.resume"
local st = require "support.safetensors_writer"
local tiny = require "support.tiny"
local tree = require "support.tree"

local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times. Ünïcödé too.\n"):rep(12)
local INTERVAL, PAUSE = resume.INTERVAL, resume.PAUSE

local folder

local function path(name) return folder .. "/" .. (name or "out.gguf") end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
  resume.INTERVAL, resume.PAUSE = 0, 0
end)

after_each(function()
  resume.INTERVAL, resume.PAUSE = INTERVAL, PAUSE
  os.execute("rm -r '" .. folder .. "'")
end)

local function names()
  local list = assert(core.list_dir(folder))
  table.sort(list)
  return list
end

-- Options of a run whose progress raises an error at call n; nil: never.
local function options(weights, n, more)
  local calls = 0
  local opts = { weights = weights, method = "gptq", calibrate = TEXT, resume = true, threads = 2 }
  for key, value in pairs(more or {}) do opts[key] = value end
  opts.progress = n and function(stage)
    if stage == "quantise" then calls = calls + 1 end
    if calls >= n then error("ended", 0) end
  end
  return opts
end

local function ended(model, weights, n, more)
  local ok, raised = pcall(model.quantise, model, path(), options(weights, n, more))
  assert.is_false(ok)
  assert.equal("ended", raised)
end

-- What an undisturbed run writes, and its number of calls of progress.
local function whole(model, weights, more)
  local calls, opts = 0, options(weights, nil, more)
  opts.resume = nil
  opts.progress = function(stage) calls = calls + (stage == "quantise" and 1 or 0) end
  assert(model:quantise(path "want.gguf", opts))
  local bytes = core.read_file(path "want.gguf")
  os.remove(path "want.gguf")
  return bytes, calls
end

local function rows_of(report)
  local rows = {}
  for i, t in ipairs(report.tensors) do rows[i] = { t.name, t.method or "", t.max_abs, t.rms } end
  return rows
end

describe("a quantise that was ended", function()
  local runs = {
    { "int4-block", transform = "rotate" }, { "lut4-g16" }, { "q4_0", inputs = "source" }, { "q4_0", inputs = "source", memory = 1 },
    { "q5_k" },
  }
  for _, more in ipairs(runs) do
    local weights = table.remove(more, 1)
    it(("goes on with the same bytes, whenever it was ended: %s %s"):format(weights, more.transform or more.inputs or ""), function()
      local model <close> = tiny.load(nil, { activations = "fp32" })
      local want, calls = whole(model, weights, more)
      local most, rows = 0, nil
      for n = 1, calls, math.max(1, calls // 12) do
        resume.INTERVAL = n % 2 == 0 and 1e9 or 0
        ended(model, weights, n, more)
        assert.is_nil(core.path_kind(path()))
        local report = assert(model:quantise(path(), options(weights, nil, more)))
        assert.is_true(want == core.read_file(path()), ("ended at call %d of %d"):format(n, calls))
        rows = rows or rows_of(report)
        assert.same(rows, rows_of(report))
        assert.same({ "out.gguf" }, names())
        most = math.max(most, report.kept)
        os.remove(path())
      end
      assert.is_true(most > 15)
    end)
  end

  it("goes on with tensors that are joined from several, and with experts", function()
    local ids = {}
    for i = 1, 150 do ids[i] = (i * i + 7 * i) % 60 end
    for _, name in ipairs { "hf/gpt_oss-odd", "hf/lfm2-odd", "gguf/qwen3_5_moe-odd.gguf" } do
      local model <close> = assert(ane.load("spec/fixtures/" .. name, { activations = "fp32" }))
      local more, most = { calibrate = ids }, 0
      local want, calls = whole(model, "int8-channel", more)
      for n = calls // 4, calls, calls // 4 do
        resume.INTERVAL = n % 2 == 0 and 1e9 or 0
        ended(model, "int8-channel", n, more)
        most = math.max(most, assert(model:quantise(path(), options("int8-channel", nil, more))).kept)
        assert.is_true(want == core.read_file(path()), name)
        os.remove(path())
      end
      assert.is_true(most > 8, name)
    end
  end)

  it("goes on where it was ended several times", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local want, calls = whole(model, "int8-channel")
    local rounds = 0
    while core.path_kind(path()) ~= "file" do
      rounds = rounds + 1
      assert.is_true(rounds < 30)
      local ok, raised = pcall(model.quantise, model, path(), options("int8-channel", calls // 2))
      assert.is_true(ok or raised == "ended")
    end
    assert.is_true(rounds > 1)
    assert.is_true(want == core.read_file(path()))
  end)

  it("does not run the steps again that a state has passed", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local want, calls = whole(model, "q4_0")
    local sequence = require "ane.quantise.sequence"
    local new, advanced = sequence.new, 0
    sequence.new = function(...)
      local s = new(...)
      local advance = s.advance
      function s.advance(...)
        advanced = advanced + 1
        return advance(...)
      end
      return s
    end
    for _, interval in ipairs { 1e9, 0 } do
      resume.INTERVAL = interval
      ended(model, "q4_0", calls - 2)
      local moved = advanced
      advanced = 0
      local report = assert(model:quantise(path(), options "q4_0"))
      assert.is_true(want == core.read_file(path()))
      assert.is_true(report.kept > 10)
      if interval == 0 then assert.is_true(advanced <= 2, advanced) else assert.equal(moved, advanced) end
      advanced = 0
    end
    sequence.new = new
  end)

  it("keeps what was rounded to the nearest", function()
    local model <close> = tiny.load()
    local importance = assert(ane.calibrate(model, TEXT))
    local source = require("ane.model").bundle(model).source
    assert(quantise.run(source, path "want", { weights = "q4_k", importance = importance }))
    local calls = 0
    local opts = { weights = "q4_k", importance = importance, resume = true, progress = function()
      calls = calls + 1
      if calls > 12 then error("ended", 0) end
    end }
    assert.is_false((pcall(quantise.run, source, path(), opts)))
    opts.progress = nil
    assert.is_true(assert(quantise.run(source, path(), opts)).kept > 3)
    assert.equal(core.read_file(path "want"), core.read_file(path()))
  end)
end)

describe("notes of a quantise", function()
  local function flip(name, at)
    local bytes = assert(core.read_file(path(name)))
    if at < 0 then at = #bytes + at end
    assert(core.write_file(path(name), bytes:sub(1, at) .. string.char(bytes:byte(at + 1) ~ 16) .. bytes:sub(at + 2)))
  end

  local function cut(name, share)
    local bytes = assert(core.read_file(path(name)))
    assert(core.write_file(path(name), bytes:sub(1, math.floor(#bytes * share))))
  end

  it("are noticed where they are damaged", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local want, calls = whole(model, "int4-block")
    ended(model, "int4-block", calls - 1)
    os.execute(("mkdir %s; cp %s.* %s"):format(path "saved", path(), path "saved"))
    local full
    local damages = {
      function() end,
      function() flip("out.gguf.part", 5000) end,
      function() flip("out.gguf.part", -2) end,
      function() flip("out.gguf.journal", -200) end,
      function() cut("out.gguf.part", 0.5) end,
      function() cut("out.gguf.part", 0) end,
      function() cut("out.gguf.journal", 0.7) end,
      function() flip("out.gguf.part.state", 30) end,
      function() flip("out.gguf.part.state", -9) end,
      function() cut("out.gguf.part.state", 0.9) end,
      function() cut("out.gguf.part.state", 0) end,
      function() os.remove(path "out.gguf.part.state") end,
      function() os.remove(path "out.gguf.part") end,
      function() assert(core.write_file(path "out.gguf.part.state", "{}\n")) end,
    }
    for i, damage in ipairs(damages) do
      os.execute(("rm -f %s*; cp %s/* %s"):format(path(), path "saved", folder))
      damage()
      local report = assert(model:quantise(path(), options "int4-block"))
      full = full or report.kept
      assert.is_true(want == core.read_file(path()), i)
      if i > 1 and i < 8 then assert.is_true(report.kept < full, i) end
      assert.same({ "out.gguf", "saved" }, names())
    end
    assert.is_true(full > 15)
  end)

  it("of other options, texts and models are of no use, which is said", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    for _, more in ipairs { { { inputs = "source" }, "inputs" }, { { calibrate = TEXT .. "And more." }, "calibrate" },
      { { mixed = { ["attn_v"] = "q8_0" } }, "mixed" }, { { weights = "q4_1" }, "weights" }, { { transform = "rotate" }, "transform" } } do
      local want = whole(model, "q4_0", more[1])
      ended(model, "q4_0", 20)
      local report = assert(model:quantise(path(), options("q4_0", nil, more[1])))
      assert.matches(more[2], report.reset)
      assert.equal(0, report.kept)
      assert.is_true(want == core.read_file(path()), more[2])
      assert.same({ "out.gguf" }, names())
      os.remove(path())
    end
  end)

  it("of a model that computes the inputs otherwise are of no use", function()
    for key, case in pairs {
      activations = { { activations = "fp32" }, { activations = "int8" } },
      kv = { { kv = "fp32" }, { kv = "int8" }, inputs = "source" },
      loaded_weights = { {}, { weights = "int8" }, inputs = "source" },
      loaded_mixed = { {}, { mixed = { ffn_down = "int8" } }, inputs = "source" },
    } do
      local model <close> = tiny.load(nil, case[1])
      local other <close> = tiny.load(nil, case[2])
      local more = { inputs = case.inputs, tune = "none" }
      local want = whole(other, "q4_0", more)
      assert.is_false(want == whole(model, "q4_0", more), key)
      ended(model, "q4_0", 20, more)
      local report = assert(other:quantise(path(), options("q4_0", nil, more)))
      assert.matches("option " .. key .. " is", report.reset)
      assert.is_true(want == core.read_file(path()), key)
    end
  end)

  it("of a run that was ended at its start are replaced", function()
    local model <close> = tiny.load()
    local want = whole(model, "q4_0")
    for _, journal in ipairs { "", '{"ane_quan' } do
      assert(core.write_file(path "out.gguf.part", ""))
      assert(core.write_file(path "out.gguf.journal", journal))
      assert(model:quantise(path(), options "q4_0"))
      assert.is_true(want == core.read_file(path()))
      assert.same({ "out.gguf" }, names())
      os.remove(path())
    end
  end)

  it("of a folder whose configuration orders rows otherwise are of no use", function()
    os.execute(("cp -r spec/fixtures/hf/llama '%s'"):format(path "model"))
    local function change(key, from, to)
      local file = path "model/config.json"
      local text, n = assert(core.read_file(file)):gsub(('"%s": %d'):format(key, from), ('"%s": %d'):format(key, to))
      assert.equal(1, n)
      assert(core.write_file(file, text))
    end
    local function run(stop)
      local source <close> = assert(core.open(path "model"))
      local opts, calls = { weights = "q8_0", resume = true }, 0
      function opts.progress()
        calls = calls + 1
        if calls == stop then error("ended", 0) end
      end
      return quantise.run(source, path(), opts)
    end
    change("num_attention_heads", 4, 2)
    change("head_dim", 24, 48)
    change("num_key_value_heads", 2, 1)
    assert(run())
    local want = core.read_file(path())
    os.remove(path())
    change("num_attention_heads", 2, 4)
    change("head_dim", 48, 24)
    change("num_key_value_heads", 1, 2)
    assert.is_false((pcall(run, 12)))
    change("num_attention_heads", 4, 2)
    change("head_dim", 24, 48)
    change("num_key_value_heads", 2, 1)
    local report = assert(run())
    assert.matches("the run's tensors is", report.reset)
    assert.is_true(want == core.read_file(path()))
    os.execute(("rm -r '%s'"):format(path "model"))
  end)

  it("of other adapters are of no use", function()
    local from = "spec/fixtures/hf/qwen3-odd"
    local tensors, folders, models = adapters.pairs_of(from, { "q_proj", "up_proj" }, 4, 1), {}, {}
    for i = 1, 2 do folders[i] = adapters.peft { tensors = tensors, config = { lora_alpha = 8 * i } } end
    for i = 1, 2 do models[i] = assert(ane.load(from, { activations = "fp32", adapters = folders[i] })) end
    local ids, more = {}, { tune = "none", inputs = "source" }
    for i = 1, 300 do ids[i] = i * 7 % 50 end
    more.calibrate = ids
    local want = whole(models[2], "q8_0", more)
    ended(models[1], "q8_0", 8, more)
    local report = assert(models[2]:quantise(path(), options("q8_0", nil, more)))
    assert.matches("option loaded_adapters is", report.reset)
    assert.is_true(want == core.read_file(path()))
    for i = 1, 2 do
      models[i]:close()
      st.remove(folders[i])
    end
  end)

  it("of another revision of the methods are of no use", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local want = whole(model, "q4_0")
    ended(model, "q4_0", 20)
    local journal = path "out.gguf.journal"
    local earlier, changed = assert(core.read_file(journal)):gsub('"revision":%d+', '"revision":0', 1)
    assert.equal(1, changed)
    assert(core.write_file(journal, earlier))
    local report = assert(model:quantise(path(), options "q4_0"))
    assert.matches("the run's revision is %d+, was 0", report.reset)
    assert.is_true(want == core.read_file(path()))
  end)

  it("of a model whose middle changes are of no use", function()
    local copy = path "model.gguf"
    local bytes = assert(core.read_file(tiny.path()))
    assert(core.write_file(copy, bytes))
    local model = assert(ane.load(copy, { activations = "fp32" }))
    ended(model, "q4_0", 20)
    model:close()
    local source = assert(core.open(copy))
    local t = assert(source:tensor "blk.1.ffn_up.weight")
    source:close()
    local at = t.offset + t.bytes // 2
    assert(core.write_file(copy, bytes:sub(1, at) .. string.char(bytes:byte(at + 1) ~ 8) .. bytes:sub(at + 2)))
    local other <close> = assert(ane.load(copy, { activations = "fp32" }))
    local want = whole(other, "q4_0")
    local report = assert(other:quantise(path(), options "q4_0"))
    assert.equal("the model's tensors is not the same", report.reset)
    assert.is_true(want == core.read_file(path()))
  end)

  it("do not replace other files", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    assert(core.write_file(path "out.gguf.part", "mine"))
    local report, message, code = model:quantise(path(), options "q4_0")
    assert.same({ nil, "invalid" }, { report, code })
    assert.matches("out.gguf.part: has no journal", message)
    assert.is_nil(core.path_kind(path "out.gguf.journal"))
    os.remove(path "out.gguf.part")
    assert(core.write_file(path "out.gguf.journal", '{"ane_batch":1,"model":{},"options":{}}\n'))
    report, message, code = model:quantise(path(), options "q4_0")
    assert.same({ nil, "format" }, { report, code })
    assert.matches("is not a journal of ane quantise", message)
    assert.equal('{"ane_batch":1,"model":{},"options":{}}\n', core.read_file(path "out.gguf.journal"))
    os.remove(path "out.gguf.journal")
    local _ <close> = assert(core.append(path "out.gguf.journal"))
    report, message, code = model:quantise(path(), options "q4_0")
    assert.same({ nil, "state" }, { report, code })
    assert.matches("another process", message)
  end)
end)

describe("ane quantise --calibrate", function()
  local ARGS = ("quantise %s %%s --weights int4-block --method gptq --threads 1 --calibrate %%s"):format(tiny.path())

  local function want_of(text)
    assert.is_true((tree.run(("%s %s"):format(command.path(), ARGS:format(path "want.gguf", text)))))
    local want = core.read_file(path "want.gguf")
    os.remove(path "want.gguf")
    return want
  end

  -- Returns the value of --calibrate: samples would take time.
  local function write_text()
    assert(core.write_file(path "text", TEXT))
    return path "text" .. "+samples:0"
  end

  -- Ends the command with a signal when its journal has so many records. Returns its exit code.
  local function signalled(signal, text, records)
    local pipe <close> = assert(io.popen(([[
      exec 2>/dev/null
      %s %s >/dev/null & pid=$!
      until [ -s %s.part.state ] && [ "$(tail -n +2 %s.journal | wc -c)" -ge %d ] || ! kill -0 $pid; do :; done
      kill -%s $pid; wait $pid; echo $?
    ]]):format(("LUA_PATH='%s' LUA_CPATH='%s' %s %s"):format(package.path, package.cpath, os.getenv "LUA" or "lua5.4", path "slow.lua"),
      ARGS:format(path(), text), path(), path(), 32 * records, signal)))
    return pipe:read "n"
  end

  -- The command, with a state before each stage, and slow enough for a signal.
  local SLOW = [[
    local resume = require "ane.quantise.resume"
    resume.INTERVAL, resume.PAUSE = 0, 0
    local core = require "ane.core"
    require("ane.cli.common").progress = function()
      return function(stage)
        local till = core.clock() + 0.02
        while stage == "quantise" and core.clock() < till do end
      end
    end
    os.exit(require("ane.cli").main(arg))
  ]]

  it("goes on after signals", function()
    local text = write_text()
    local want = want_of(text)
    assert(core.write_file(path "slow.lua", SLOW))
    for records, signal in pairs { [1] = "KILL", [4] = "KILL", [9] = "KILL", [14] = "INT", [17] = "TERM" } do
      local code = signalled(signal, text, records)
      assert.equal(({ KILL = 137, INT = 130, TERM = 143 })[signal], code)
      assert.is_nil(core.path_kind(path()))
      local report = command.json { "quantise", tiny.path(), path(), "--weights", "int4-block", "--method", "gptq", "--calibrate", text }
      assert.is_true(report.kept > 0)
      assert.is_true(want == core.read_file(path()))
      assert.same({ "out.gguf", "slow.lua", "text" }, names())
      os.remove(path())
    end
  end)

  it("goes on after a full disk", function()
    if not tree.has "prlimit" then pending "no prlimit" end
    local text = write_text()
    local want = want_of(text)
    local ok, message = tree.run(("prlimit --fsize=%d %s %s"):format(#want * 4 // 5, command.path(), ARGS:format(path(), text)))
    assert.is_false(ok)
    assert.matches("cannot write", message)
    local code, out = command.run { "quantise", tiny.path(), path(), "--weights", "int4-block", "--method", "gptq", "--calibrate", text }
    assert.equal(0, code)
    assert.matches("tensors of an earlier run were kept", out)
    assert.is_true(want == core.read_file(path()))
    assert.same({ "out.gguf", "text" }, names())
  end)

  it("is refused at once while another process reads its text for the same file", function()
    local text = write_text()
    local first = assert(io.popen(("%s %s >%s 2>&1"):format(command.path(), ARGS:format(path(), "-"), path "said"), "w"))
    local deadline = core.clock() + 60
    while not core.path_kind(path "out.gguf.journal") and core.clock() < deadline do os.execute "sleep 0.05" end
    local code, _, err = command.run { "quantise", tiny.path(), path(), "--weights", "q4_k", "--calibrate", text }
    assert.equal(1, code)
    assert.matches("another process", err)
    first:write(TEXT)
    assert.is_true(first:close(), core.read_file(path "said"))
    assert.same({ "out.gguf", "said", "text" }, names())
    os.remove(path())
    code, _, err = command.run { "quantise", tiny.path(), path(), "--weights", "q4_k", "--calibrate", path "missing" }
    assert.equal(1, code)
    assert.matches("missing", err)
    assert.same({ "said", "text" }, names())
  end)

  it("says that it begins anew", function()
    local text = write_text()
    assert(core.write_file(path "slow.lua", SLOW))
    assert.equal(137, signalled("KILL", text, 6))
    local code, _, err = command.run { "quantise", tiny.path(), path(), "--weights", "q4_0", "--method", "gptq", "--calibrate", text }
    assert.equal(0, code)
    assert.matches('began anew: an interrupted run had other settings: option transform is "none", was "rotate"\n', err)
    assert.same({ "out.gguf", "slow.lua", "text" }, names())
  end)
end)
