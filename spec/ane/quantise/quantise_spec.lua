local ane = require "ane"
local command = require "support.command"
local compare = require "ane.evaluate.compare"
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local quantise = require "ane.quantise"
local tiny = require "support.tiny"

local testing = core.testing
local folder

local function path(name) return folder .. "/" .. (name or "out.gguf") end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function()
  testing.alloc_fail_after(-1)
  os.execute("rm -r '" .. folder .. "'")
end)

local function names()
  local list = assert(core.list_dir(folder))
  table.sort(list)
  return list
end

-- A file of all sorts of tensors; 256 columns unless said otherwise.
local function zoo()
  local tensors = {}
  local function add(name, shape, dtype)
    local n = 1
    for _, d in ipairs(shape) do n = n * d end
    local data = floats.uniform(n, #tensors + 1)
    tensors[#tensors + 1] = { name = name, shape = shape, dtype = dtype or "fp32", data = dtype and testing.encode(dtype, data) or data }
  end
  add("token_embd.weight", { 8, 256 }, "bf16")
  add("blk.0.attn_norm.weight", { 256 })
  add("blk.0.attn_q.weight", { 4, 256 }, "fp16")
  add("blk.0.attn_v.weight", { 4, 256 })
  add("blk.0.attn_v.bias", { 4 }, "fp16")
  add("blk.0.ffn_down.weight", { 4, 96 })
  add("blk.0.ffn_odd.weight", { 4, 50 })
  add("blk.0.ffn_gate_inp.weight", { 4, 256 })
  add("blk.0.ffn_up_exps.weight", { 3, 4, 256 }, "q8_0")
  add("blk.0.shortconv.conv.weight", { 64, 3 })
  add("blk.1.attn_v.weight", { 4, 256 })
  add("rope_freqs.weight", { 32 })
  gguf.write(path "in.gguf", {
    values = {
      { "general.architecture", "string", "zoo" },
      { "general.file_type", "uint32", 99 },
      { "zoo.block_count", "uint32", 2 },
      { "split.count", "uint16", 1 },
      { "tokenizer.ggml.tokens", "array", { "string", { "a", "\0", "" } } },
      { "tokenizer.chat_template", "string", "{{ messages }}" },
    },
    tensors = tensors,
  })
  return assert(core.open(path "in.gguf"))
end

local function types_of(report)
  local types = {}
  for _, t in ipairs(report.tensors) do types[t.name] = t.to end
  return types
end

describe("ane.quantise", function()
  it("gives each tensor its type, and keeps what must stay", function()
    local source <close> = zoo()
    local report = assert(quantise.run(source, path(), { weights = "q4_k" }))
    assert.same({
      ["token_embd.weight"] = "q4_k", ["blk.0.attn_norm.weight"] = "fp32", ["blk.0.attn_q.weight"] = "q4_k",
      ["blk.0.attn_v.weight"] = "q4_k", ["blk.0.attn_v.bias"] = "fp32", ["blk.0.ffn_down.weight"] = "q5_0",
      ["blk.0.ffn_odd.weight"] = "fp16", ["blk.0.ffn_gate_inp.weight"] = "fp32", ["blk.0.ffn_up_exps.weight"] = "q4_k",
      ["blk.0.shortconv.conv.weight"] = "fp32", ["blk.1.attn_v.weight"] = "q4_k", ["rope_freqs.weight"] = "fp32",
    }, types_of(report))
    local out <close> = assert(core.open(path()))
    assert.same({ "general.architecture", "zoo.block_count", "tokenizer.ggml.tokens", "tokenizer.chat_template", "general.file_type",
                  "general.quantization_version" }, out:keys())
    for _, key in ipairs { "general.architecture", "zoo.block_count", "tokenizer.ggml.tokens", "tokenizer.chat_template" } do
      assert.same(source:meta(key), out:meta(key))
    end
    assert.same({ 14, 2 }, { out:meta "general.file_type", out:meta "general.quantization_version" })
    for i, t in ipairs(source:tensors()) do
      local new = out:tensors()[i]
      assert.same({ t.name, t.shape }, { new.name, new.shape })
      assert.equal(types_of(report)[t.name], new.dtype)
      local want = source:read(t.name)
      assert.is_true(out:read(t.name) == testing.decode(new.dtype, testing.encode(new.dtype, want)), t.name)
    end
  end)

  it("falls back to the nearest type of a like size", function()
    local source <close> = zoo()
    for _, case in ipairs { { "q2_k", "q4_0" }, { "q3_k", "q4_0" }, { "q4_k", "q5_0" }, { "q5_k", "q5_1" }, { "q6_k", "q8_0" },
      { "iq4_xs", "iq4_nl" } } do
      local report = assert(quantise.run(source, path(), { weights = case[1] }))
      local types = types_of(report)
      assert.same({ case[2], "fp16" }, { types["blk.0.ffn_down.weight"], types["blk.0.ffn_odd.weight"] })
      for _, t in ipairs(report.tensors) do
        if t.name == "blk.0.ffn_down.weight" then assert.matches("not whole blocks of " .. case[1], t.note) end
      end
    end
  end)

  it("warns of a file that is larger than its source", function()
    local source <close> = zoo()
    assert.is_nil(assert(quantise.run(source, path(), { weights = "q4_0" })).warning)
    local small <close> = assert(core.open(path()))
    local report = assert(quantise.run(small, path "large.gguf", { weights = "fp32" }))
    assert.is_true(report.bytes_after > small:bytes())
    assert.matches("^the file has [%d.]+ kB, more than the [%d.]+ kB of its source$", report.warning)
  end)

  it("says for each tensor what it cost", function()
    local source <close> = zoo()
    local report = assert(quantise.run(source, path(), { weights = "q8_0" }))
    assert.same({ path(), "zoo", "q8_0" }, { report.path, report.architecture, report.weights })
    assert.equal(#core.read_file(path()), report.bytes_after)
    local before = 0
    for i, t in ipairs(report.tensors) do
      local stored = source:tensors()[i]
      before = before + stored.bytes
      assert.same({ stored.name, stored.dtype, stored.bytes }, { t.name, t.from, t.bytes_before })
      local out <close> = assert(core.open(path()))
      assert.equal(out:tensor(t.name).bytes, t.bytes_after)
      local a, b, most, sum = floats.unpack(source:read(t.name)), floats.unpack(out:read(t.name)), 0, 0
      for k = 1, #a do most, sum = math.max(most, math.abs(a[k] - b[k])), sum + (a[k] - b[k]) ^ 2 end
      assert.equal(most, t.max_abs)
      assert.near(math.sqrt(sum / #a), t.rms, 1e-12)
      assert.equal(sum == 0, t.exact)
      if t.exact then assert.is_nil(t.snr_db) else assert.is_true(t.snr_db > 40 and t.snr_db < 90, t.snr_db) end
    end
    assert.equal(before, report.bytes_before)
    assert.equal("rows of 50 are not whole blocks of q8_0", report.tensors[7].note)
    assert.is_nil(report.tensors[6].note)
  end)

  it("mixes types by pattern", function()
    local source <close> = zoo()
    local report = assert(quantise.run(source, path(), { weights = "q4_k", mixed = { attn_v = "q6_k", ["blk.0.*_exps"] = "q5_1" } }))
    local types = types_of(report)
    assert.same({ "q6_k", "q6_k", "q5_1", "q4_k", "fp32" }, { types["blk.0.attn_v.weight"], types["blk.1.attn_v.weight"],
      types["blk.0.ffn_up_exps.weight"], types["blk.0.attn_q.weight"], types["blk.0.attn_v.bias"] })
    local out <close> = assert(core.open(path()))
    assert.equal(15, out:meta "general.file_type") -- mostly q4_k, some with more bits
    -- A list has an order; ? is one character.
    local ordered = { { "blk.?.attn_*", "q8_0" }, { "blk.1", "bf16" } }
    types = types_of(assert(quantise.run(source, path(), { weights = "fp32", mixed = ordered })))
    assert.same({ "q8_0", "bf16", "q8_0" }, { types["blk.0.attn_v.weight"], types["blk.1.attn_v.weight"], types["blk.0.attn_q.weight"] })
    types = types_of(assert(quantise.run(source, path(), { weights = "q4_k", fallback = "q5_0" })))
    assert.same({ "q5_0", "fp16" }, { types["blk.0.ffn_down.weight"], types["blk.0.ffn_odd.weight"] })
  end)

  it("refuses patterns that do nothing or disagree", function()
    local source <close> = zoo()
    local function refused(pattern, opts)
      local report, message, code = quantise.run(source, path(), opts)
      assert.same({ nil, "invalid" }, { report, code })
      assert.matches(pattern, message)
      assert.same({ "in.gguf" }, names())
    end
    refused('no tensor that can change its type matches "attn_w"', { weights = "q8_0", mixed = { attn_w = "fp16" } })
    refused('no tensor that can change its type matches "norm"', { weights = "q8_0", mixed = { norm = "fp16" } })
    refused('no tensor that can change its type matches "blk%.00"', { weights = "q8_0", mixed = { ["blk.00"] = "fp16" } })
    refused('tensor blk.0.attn_v.weight matches "attn_v" and "blk.0", which ask for fp16 and fp32',
      { weights = "q8_0", mixed = { attn_v = "fp16", ["blk.0"] = "fp32" } })
    refused("option importance: no tensor x", { weights = "q4_k", importance = { x = { 1 } } })
    refused("importance: blk.0.attn_q.weight has 256 columns, but the option has 3 numbers",
      { weights = "q4_k", importance = { ["blk.0.attn_q.weight"] = { 1, 2, 3 } } })
    for _, values in ipairs { { 0 / 0 }, { -1 }, { math.huge }, {}, true } do
      refused("option importance: x: must have a finite number of 0 or more for each column",
        { weights = "q4_k", importance = { x = values } })
    end
    refused("option importance: x%[2%] is not a number", { weights = "q4_k", importance = { x = { 1, "a" } } })
    refused("option importance: key 1 is not the name of a tensor", { weights = "q4_k", importance = { 1 } })
  end)

  it("raises on wrong options, naming the choices", function()
    local source <close> = zoo()
    local choices = "choose fp32, fp16, bf16, q8_0, q6_k, q5_1, q5_0, q5_k, q4_1, q4_0, q4_k, iq4_nl, iq4_xs, mxfp4, q3_k, q2_k"
    local function raises(pattern, opts)
      assert.error_matches(function() quantise.run(source, path(), opts) end, pattern)
    end
    raises("option weights is missing: " .. choices, {})
    assert.matches("quantise_spec.lua:%d+: quantise", select(2, pcall(function() quantise.run(source, path(), {}) end)))
    raises('option weights is "int9": ' .. choices .. "; or a scheme of Core ML packages, int8", { weights = "int9" })
    raises("method gptq needs a text: option calibrate", { weights = "q4_0", method = "gptq" })
    raises("option method", { weights = "q4_0", method = "awq" })
    raises('option weights is "q4_9": ' .. choices, { weights = "q4_9" })
    raises('option fallback is "int8": ' .. choices, { weights = "q8_0", fallback = "int8" })
    raises("option mixed must be {pattern = type}", { weights = "q8_0", mixed = { { "a" } } })
    raises("option mixed must be {pattern = type}", { weights = "q8_0", mixed = { [""] = "fp16" } })
    raises('unknown option "weight"', { weight = "q8_0" })
    raises("option fallback", { weights = "q8_0", fallback = "x" })
    assert.error_matches(function() quantise.run(source, 3, { weights = "q8_0" }) end, "quantise: path must be a string")
    assert.same({ "in.gguf" }, names())
  end)

  it("weighs columns by their importance", function()
    local source <close> = zoo()
    local weights = {}
    for i = 1, 256 do weights[i] = i <= 128 and 100 or 0.01 end
    local name = "blk.0.attn_q.weight"
    quantise.run(source, path "plain.gguf", { weights = "q2_k" })
    assert(quantise.run(source, path(), { weights = "q2_k", importance = { [name] = weights } }))
    local x = source:read(name)
    local function first_half(file)
      local out <close> = assert(core.open(path(file)))
      local a, b, sum = floats.unpack(x), floats.unpack(out:read(name)), 0
      for i = 1, #a do sum = sum + ((i - 1) % 256 < 128 and (a[i] - b[i]) ^ 2 or 0) end
      return sum
    end
    assert.is_true(first_half "out.gguf" < first_half "plain.gguf")
  end)

  it("never writes over what it reads", function()
    zoo():close()
    local bytes = core.read_file(path "in.gguf")
    assert(os.execute(("cd '%s' && ln -s in.gguf soft && ln in.gguf hard"):format(folder)))
    for _, name in ipairs { "in.gguf", "soft", "hard", "./in.gguf" } do
      local source <close> = assert(core.open(path "in.gguf"))
      local report, message, code = quantise.run(source, path(name), { weights = "q8_0" })
      assert.same({ nil, "invalid" }, { report, code })
      assert.matches("is the model itself", message)
    end
    assert.equal(bytes, core.read_file(path "in.gguf"))
  end)

  it("replaces another file, whole or not at all", function()
    local source <close> = zoo()
    assert(core.write_file(path(), "old"))
    assert.error_matches(function()
      quantise.run(source, path(), { weights = "q4_k", progress = function() error("enough", 0) end })
    end, "^enough$")
    assert.equal("old", core.read_file(path()))
    assert.same({ "in.gguf", "out.gguf" }, names())
    assert(quantise.run(source, path(), { weights = "q4_k" }))
    assert.equal("GGUF", core.read_file(path()):sub(1, 4))
  end)

  it("leaves nothing behind where it is killed but the temporary file", function()
    zoo():close()
    assert(core.write_file(path(), "old"))
    local script = ([[
      local core, quantise = require "ane.core", require "ane.quantise"
      quantise.run(core.open "%s/in.gguf", "%s/out.gguf", { weights = "q8_0", progress = function()
        os.execute "kill -9 $PPID"
      end })
    ]]):format(folder, folder)
    assert(core.write_file(path "s.lua", script))
    os.execute(("LUA_PATH='%s' LUA_CPATH='%s' lua5.4 '%s/s.lua' 2>/dev/null"):format(package.path, package.cpath, folder))
    assert.equal("old", core.read_file(path()))
    assert.matches("^out%.gguf%..*%.tmp$", names()[3])
  end)

  it("gives the same bytes each time, on any number of threads", function()
    local source <close> = zoo()
    local want
    for _, threads in ipairs { 1, 2, 5 } do
      assert(quantise.run(source, path(), { weights = "q6_k", threads = threads }))
      want = want or core.read_file(path())
      assert.is_true(want == core.read_file(path()))
    end
  end)

  it("reports its progress", function()
    local source <close> = zoo()
    local last, calls = 0, 0
    local report = quantise.run(source, path(), { weights = "q8_0", progress = function(stage, done, total)
      assert.equal("quantise", stage)
      assert.is_true(done >= last and done <= total)
      last, calls = done, calls + 1
    end })
    assert.same({ report.bytes_after, 12 }, { last, calls })
  end)

  it("gives nil where memory is short", function()
    local source <close> = zoo()
    local before = testing.alloc_count()
    assert(quantise.run(source, path(), { weights = "q4_k", threads = 2 }))
    os.remove(path())
    local failed = 0
    for n = 0, testing.alloc_count() - before - 1 do
      testing.alloc_fail_after(n)
      local report, _, code = quantise.run(source, path(), { weights = "q4_k", threads = 2 })
      testing.alloc_fail_after(-1)
      if report then
        os.remove(path())
      else
        failed = failed + 1
        assert.is_true(code == "memory" or code == "io", code) -- io: a thread that did not start
      end
      assert.same({ "in.gguf" }, names())
    end
    assert.is_true(failed > 20)
  end)
end)

describe("a quantised model", function()
  it("still says the same", function()
    for _, weights in ipairs { "q8_0", "fp16", "bf16", "fp32" } do
      local model <close> = tiny.load(nil, { activations = "fp32" })
      assert(model:quantise(path(), { weights = weights }))
      local again <close> = assert(ane.load(path(), { activations = "fp32" }))
      assert.equal(model:generate("Hello", { max_tokens = 8 }), again:generate("Hello", { max_tokens = 8 }))
    end
  end)

  it("is exact where no bits are lost", function()
    local model <close> = tiny.load("llama-kquants", { activations = "fp32" })
    assert(model:quantise(path(), { weights = "fp32" }))
    local again <close> = assert(ane.load(path(), { activations = "fp32" }))
    local a <close> = assert(model:session())
    local b <close> = assert(again:session())
    a:feed { 1, 2, 3, 4 }
    b:feed { 1, 2, 3, 4 }
    assert.is_true(a:logits():tostring() == b:logits():tostring())
  end)

  it("raises like other methods", function()
    local model = tiny.load()
    local _, message = pcall(function() model:quantise(path(), { weights = "int9" }) end)
    assert.matches("quantise_spec.lua:%d+: quantise: option weights", message)
    model:close()
    assert.error_matches(function() model:quantise(path(), { weights = "q8_0" }) end, "model is closed")
  end)
end)

describe("ane quantise", function()
  it("writes one object", function()
    local r = command.json { "quantise", tiny.path(), path(), "--weights", "q4_0", "--mixed", "attn_v=fp16", "--mixed", "blk.0.attn_v=q8_0",
      "-t", "1" }
    assert.equal(path(), r.path)
    assert.equal("llama", r.architecture)
    local source <close> = assert(core.open(path()))
    assert.equal(source:n_tensors(), #r.tensors)
    local types = types_of(r)
    assert.same({ "q8_0", "fp16", "q4_0" }, { types["blk.0.attn_v.weight"], types["blk.1.attn_v.weight"], types["blk.0.attn_q.weight"] })
    for _, t in ipairs(r.tensors) do
      assert.same(source:tensor(t.name).shape, { table.unpack(t.shape) })
      assert.is_number(t.rms)
    end
  end)

  it("shows people a table", function()
    local code, out, err = command.run { "quantise", tiny.path(), path(), "--weights", "q4_k", "--fallback", "q5_1" }
    assert.same({ 0, "" }, { code, err })
    assert.matches("^tensor +from +to +before +after +max error +rms +SNR\n", out)
    assert.matches("\nblk%.0%.attn_norm%.weight +fp32 +fp32 .* exact\n", out)
    assert.matches("rows of %d+ are not whole blocks of q4_k", out)
    assert.matches("\n%d+ tensors have another type, since their rows are not whole blocks\n$", out)
  end)

  it("fails in one line", function()
    for _, case in ipairs {
      { 2, "give %-%-weights: fp32, fp16", {} },
      { 2, "int9.*: choose fp32", { "--weights", "int9" } },
      { 2, "%-%-method gptq needs a text: give %-%-calibrate FILE", { "--weights", "q4_0", "--method", "gptq" } },
      { 2, "%-%-stages needs %-%-method gptq", { "--weights", "q4_0", "--stages", "2" } },
      { 2, "%-%-inputs needs %-%-method gptq", { "--weights", "q4_0", "--inputs", "source" } },
      { 2, "%-%-stages cannot be combined with %-%-inputs", { "--weights", "q4_0", "--stages", "1", "--inputs", "rounded" } },
      { 2, "'attn_v' is not PATTERN=TYPE", { "--weights", "q8_0", "--mixed", "attn_v" } },
      { 2, "the type for 'attn_v' is \"q9\": choose", { "--weights", "q8_0", "--mixed", "attn_v=q9" } },
      { 2, 'no tensor that can change its type matches "nothing"', { "--weights", "q8_0", "--mixed", "nothing=q8_0" } },
    } do
      local code, out, err = command.run { "quantise", tiny.path(), path(), table.unpack(case[3]) }
      assert.same({ case[1], "" }, { code, out })
      assert.matches("^ane quantise: [^\n]*" .. case[2] .. "[^\n]*\n$", err)
      assert.same({}, names())
    end
    local code, _, err = command.run { "quantise", tiny.path(), tiny.path(), "--weights", "q8_0" }
    assert.equal(1, code)
    assert.matches("is the model itself", err)
  end)
end)

describe("quantise with gptq", function()
  local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times. Ünïcödé too.\n"):rep(12)

  local function divergence(reference)
    local small <close> = assert(ane.load(path(), { activations = "fp32" }))
    return assert(require("ane.evaluate.compare").run(reference, small, TEXT, { chunk = 64 })).kl.mean
  end

  it("needs a text for the options that are about one", function()
    local model <close> = tiny.load()
    for _, call in ipairs { "quantise", "export" } do
      assert.error_matches(function() model[call](model, path(), { weights = "int8", tokens = 5 }) end,
        call .. ": option tokens needs option calibrate")
      assert.error_matches(function() model[call](model, path(), { weights = "int8", calibration = { 1 } }) end,
        'unknown option "calibration"; the text is option calibrate')
      assert.error_matches(function() model[call](model, path(), { weights = "int8", texts = 5 }) end,
        'unknown option "texts"; the options are .*calibrate, tokens, ')
    end
  end)

  it("warns of a calibration that is shorter than a layer is wide", function()
    local model <close> = tiny.load()
    local function warning(ids)
      return assert(model:quantise(path(), { weights = "q4_0", method = "gptq", calibrate = ids, inputs = "source" })).warning
    end
    assert.matches("^the calibration has 3 tokens, fewer than the %d+ columns of blk%.%d+%.ffn_down%.weight: gptq compensates little$",
      warning { 3, 5, 7 })
    assert.is_nil(warning(TEXT))
  end)

  it("loses less than plain rounding, in one pass or several", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    for _, weights in ipairs { "q4_0", "int4-block", "uint4-block", "lut4-g16" } do
      assert(model:quantise(path(), { weights = weights }))
      local plain = divergence(model)
      local opts = { weights = weights, method = "gptq", calibrate = TEXT, inputs = "source" }
      local report = assert(model:quantise(path(), opts))
      assert.same({ "gptq", 1, "source" }, { report.method, report.passes, report.inputs })
      local bytes = core.read_file(path())
      assert.is_true(divergence(model) < plain, weights)
      opts.memory, opts.threads = 1, 1
      local again = assert(model:quantise(path(), opts))
      assert.is_true(again.passes > 1)
      assert.is_true(bytes == core.read_file(path()))
    end
  end)

  it("follows what the weights before have changed", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    for _, weights in ipairs { "q4_0", "int4-block", "lut4-g16" } do
      local opts = { weights = weights, method = "gptq", calibrate = TEXT }
      assert(model:quantise(path(), { weights = weights }))
      local plain = divergence(model)
      local report = assert(model:quantise(path(), opts))
      assert.same({ "rounded", 1 }, { report.inputs, report.passes })
      local bytes = core.read_file(path())
      assert.is_true(divergence(model) < plain, weights)
      opts.threads, opts.stages = 1, 3
      assert(model:quantise(path(), opts))
      assert.is_true(bytes == core.read_file(path()))
      opts.stages = 1
      report = assert(model:quantise(path(), opts))
      assert.equal("source", report.inputs)
      assert.is_false(bytes == core.read_file(path()))
    end
  end)

  it("computes with int8 activations where all weights have about 4 bits, and with fp32 otherwise", function()
    for weights, same in pairs { q4_0 = false, ["int4-block"] = false, ["int8-channel"] = true, ["lut4-g16"] = true } do
      local files = {}
      for i, activations in ipairs { "fp32", "auto" } do
        local model <close> = tiny.load(nil, { activations = activations ~= "auto" and activations or nil })
        assert(model:quantise(path(), { weights = weights }))
        local plain = divergence(model)
        assert(model:quantise(path(), { weights = weights, method = "gptq", calibrate = TEXT, threads = i }))
        files[i] = core.read_file(path())
        assert.is_true(divergence(model) < plain, weights)
      end
      assert.equal(same, files[1] == files[2], weights)
    end
  end)

  -- Mean squares of a value of a model on windows of 64 ids.
  local function squares_of(model, ids, value)
    local program = assert(require("ane.model.trace").program(require("ane.model").bundle(model)))
    local session <close> = assert(program:session { context = 64, kv = "fp32" })
    local sum
    for from = 1, #ids, 64 do
      local window = table.move(ids, from, math.min(from + 63, #ids), 1, {})
      assert(session:rewind(0))
      local squares = assert(session:squares(window, { value }))[value] * (#window / #ids)
      sum = sum and sum + squares or squares
    end
    return sum
  end

  local function distance(a, b)
    local worst = 0
    for i = 1, #b do worst = math.max(worst, math.abs(a[i] - b[i]) / (math.abs(b[i]) + 1e-3)) end
    return worst
  end

  -- The moment that is left at the end is that of the last value in the model with all weights before it rounded. The written file gives
  -- the same value, in one program and with its rows in the order of GGUF.
  it("rounds for the inputs that the written file gives", function()
    local odd = { "hf/gpt_oss-odd", "hf/lfm2-odd", "hf/mamba2-odd", "hf/gemma3", "gguf/qwen3_5_moe-odd.gguf" } -- rows without whole blocks
    local runs = { [tiny.path()] = { "int8-channel", "q4_0" }, ["spec/fixtures/hf/llama"] = { "int8-channel", "q8_0" } }
    for _, name in ipairs(odd) do runs["spec/fixtures/" .. name] = { "int8-channel" } end
    for source, types in pairs(runs) do
      for _, weights in ipairs(types) do
        local model <close> = assert(ane.load(source, { activations = "fp32" }))
        local ids, last = {}, nil
        for i = 1, 150 do ids[i] = (i * i + 7 * i) % 60 end
        local calibration <close> = assert(require("ane.quantise.moments").open(model, ids, { chunk = 64 }))
        local report = assert(model:quantise(path(), { weights = weights, mixed = { ["*emb*"] = "fp32" }, method = "gptq",
          calibration = calibration }))
        assert.equal("rounded", report.inputs)
        for _, input in ipairs(calibration.order) do last = calibration.moments:diagonal(input.value) and input.value or last end
        local got = calibration.moments:diagonal(last)
        local small <close> = assert(ane.load(path(), { activations = "fp32" }))
        local want = squares_of(small, ids, last)
        local apart, moved = distance(got, want), distance(squares_of(model, ids, last), want)
        assert.is_true(apart < 1e-3 and moved > 3 * apart, ("%s %s %s: %g, source %g"):format(source, weights, last, apart, moved))
      end
    end
  end)

  it("holds the numbers of a scheme, the table of the embedding apart", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local report = assert(model:quantise(path(), { weights = "int8-channel", method = "gptq", calibrate = TEXT }))
    for _, t in ipairs(report.tensors) do
      if t.name == "token_embd.weight" then assert.same({ t.from, true }, { t.to, t.exact }) end
      if t.name:find "ffn_up" then assert.same({ "q8_0", "int8-channel", "gptq" }, { t.to, t.scheme, t.method }) end
    end
  end)

  it("reports the work, stages of the model included, as bytes of the file", function()
    local model <close> = tiny.load(nil, { activations = "fp32" })
    local ids, shares, last = {}, {}, 0
    for i = 1, 600 do ids[i] = (i * i + 7 * i) % 60 end -- 3 windows
    local calibration <close> = assert(require("ane.quantise.moments").open(model, ids, { chunk = 200 }))
    local report = assert(model:quantise(path(), {
      weights = "q4_0", method = "gptq", calibration = calibration, progress = function(stage, done, total)
        assert.equal("quantise", stage)
        assert.is_true(done >= last and done <= total)
        if done > last then shares[#shares + 1] = done / total end
        last = done
      end,
    }))
    assert.equal(report.bytes_after, last)
    assert.is_true(#shares > 50, #shares) -- windows are counted too
  end)

  it("works as a command", function()
    local text = path "text"
    assert(core.write_file(text, TEXT))
    local args = { "quantise", tiny.path(), path(), "--weights", "q4_0", "--method", "gptq", "--calibrate", text }
    local report = command.json(args)
    assert.equal("gptq", report.method)
    assert.equal(0, (command.run(args)))
    args[#args] = path "none"
    local code, _, err = command.run(args)
    assert.equal(1, code)
    assert.matches("^ane quantise: .*none: No such file", err)
  end)
end)

describe("gptq layer by layer", function()
  local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times. Ünïcödé too.\n"):rep(12)

  it("rounds rotated weights on samples of the stored ones", function()
    local model <close> = tiny.load()
    local lists = assert(require("ane.model.samples").draw(model, 300))
    assert(model:quantise(path "want", { weights = "int4-block", method = "gptq", transform = "rotate", calibrate = lists }))
    local want = core.read_file(path "want")
    assert(model:quantise(path(), { weights = "int4-block", method = "gptq", transform = "rotate", calibrate = { samples = 300 } }))
    assert.is_true(want == core.read_file(path()))
    local args = { "quantise", tiny.path(), path "command", "--weights", "int4-block", "--method", "gptq", "--calibrate", "samples:300" }
    assert.equal("rotate", command.json(args).transform)
    assert.is_true(want == core.read_file(path "command"))
  end)

  it("writes the packages that a model in memory writes", function()
    local model <close> = assert(ane.load(tiny.path(), { transform = "rotate" }))
    local want = assert(model:export(path "want", { weights = "int4-block", method = "gptq", calibrate = TEXT, context = 64 }))
    assert(core.write_file(path "text", TEXT))
    local got = command.json { "export", tiny.path(), path "got", "--weights", "int4-block", "--method", "gptq", "--context", "64",
      "--calibrate", path "text" .. "+samples:0" }
    assert.equal(#want.shards, #got.shards)
    for i, shard in ipairs(want.shards) do assert.equal(shard.sha256, got.shards[i].sha256) end
  end)
end)

describe("an option that has no effect", function()
  local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times.\n"):rep(12)

  it("refuses what has no effect without gptq", function()
    local function raises(call, opts, wanted) assert.error_matches(function() call(opts) end, wanted) end
    local model <close> = tiny.load()
    local function quantised(opts) return model:quantise(path(), opts) end
    local function exported(opts) return model:export(path "out", opts) end
    for name, value in pairs { tune = "norms", inputs = "source", stages = 1 } do
      raises(quantised, { weights = "q4_k", calibrate = TEXT, [name] = value }, "quantise: option " .. name .. " needs method gptq")
    end
    assert.same({ nil, "option inputs needs method gptq", "invalid" }, { exported { weights = "int4-block", inputs = "source" } })
  end)

  it("is a fallback of large blocks, which is refused", function()
    local model <close> = tiny.load()
    assert.error_matches(function() model:quantise(path(), { weights = "q4_k", fallback = "q6_k" }) end, "quantise: option fallback is "
      .. "\"q6_k\", whose blocks of 256 columns fit no row that needs a fallback: choose fp32, fp16, .*q5_0, .*mxfp4")
    local code, _, err = command.run { "quantise", tiny.path(), path(), "--weights", "q4_k", "--fallback", "q4_k" }
    assert.equal(2, code)
    assert.matches('^ane quantise: .*%-%-fallback is "q4_k", whose blocks of 256 columns', err)
  end)

  it("is --calibrate where nothing takes the importance of columns, which the command says", function()
    local text = path "text"
    assert(core.write_file(text, TEXT))
    for words, asked in pairs {
      ["run MODEL --ids 1,2 --weights int8"] = "int8", ["info MODEL --mixed attn_v=q4_k"] = "file, q4_k",
      ["compare MODEL MODEL TEXT --weights-b q8_0"] = "q8_0", ["quantise MODEL OUT --weights q4_0"] = "q4_0",
      ["quantise MODEL OUT.svg --sweep q4_0,q8_0 --on TEXT"] = "q8_0", ["export MODEL OUT --weights int8-channel"] = "int8-channel",
    } do
      local args, out = {}, path("o" .. #words)
      for word in words:gmatch "%S+" do args[#args + 1] = word:gsub("MODEL", tiny.path()):gsub("OUT", out):gsub("TEXT", text) end
      args[#args + 1], args[#args + 2] = "--calibrate", text
      local code, shown, err = command.run(args)
      assert.equal(0, code, err)
      assert.not_equal("", shown)
      local want = ("ane %s: --calibrate has no effect on %s: it is for "):format(args[1], asked)
      assert.equal(want, err:sub(1, #want))
    end
  end)
end)

describe("ane quantise --sweep", function()
  local sweep = require "ane.evaluate.sweep"
  local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times.\n"):rep(12)

  it("takes the text of calibrate for rtn, as the command does", function()
    local text = path "text"
    assert(core.write_file(text, TEXT))
    local model <close> = tiny.load()
    local function written(opts)
      assert(model:quantise(path(), opts))
      return assert(core.read_file(path()))
    end
    for _, transform in ipairs { "none", "rotate" } do
      local args = { "quantise", tiny.path(), path "want.gguf", "--weights", "iq4_nl", "--calibrate", text, "--transform", transform }
      assert(command.json(args))
      local want = core.read_file(path "want.gguf")
      assert.is_true(want == written { weights = "iq4_nl", calibrate = TEXT, transform = transform }, transform)
      assert.is_false(want == written { weights = "iq4_nl", calibrate = TEXT, tokens = 20, transform = transform }, transform)
      assert.is_false(want == written { weights = "iq4_nl", transform = transform }, transform)
    end
    assert.error_matches(function() model:quantise(path(), { weights = "iq4_nl", calibrate = TEXT, importance = {} }) end,
      "^quantise: option calibrate cannot be combined with option importance without method gptq$")
  end)

  it("measures recipes and draws them", function()
    local text = path "text"
    assert(core.write_file(text, TEXT))
    local picture = path "sweep.svg"
    local args = { "quantise", tiny.path(), picture, "--sweep", "q4_0,int8-channel:gptq,lut4-g8:rtn", "--on", text, "--calibrate", text }
    local report = command.json(args)
    local rows = {}
    for i, row in ipairs(report.rows) do
      rows[i] = ("%s %s %s"):format(row.recipe, row.method, row.transform)
      assert.is_true(row.kl.mean > 0 and row.perplexity.ratio > 0 and row.bytes > 0)
    end
    assert.same({ "q4_0 rtn none", "int8-channel:gptq gptq rotate", "lut4-g8:rtn rtn none" }, rows)
    assert.equal(4.5, report.rows[1].bits)
    assert.is_true(report.rows[2].bits > 8 and report.rows[2].bits < 9)
    local svg = core.read_file(picture)
    assert.matches("^<svg .*</svg>\n$", svg)
    for _, name in ipairs { "q4_0", "int8%-channel:gptq", "lut4%-g8:rtn" } do assert.matches(">" .. name .. "</text>", svg) end
    assert.is_nil(core.read_file(picture .. ".part.gguf"))
    local code, out, err = command.run(args)
    assert.same({ 0, "" }, { code, err })
    assert.matches("^recipe .*\nq4_0 +rtn +none +4%.500 .*%%\n", out)
    assert.matches("sweep%.svg: %d+ tokens scored, fewer than 8000: the figures are uncertain\n$", out)
    assert.equal(svg, core.read_file(picture))
  end)

  it("leaves no model behind where it is interrupted", function()
    local text, picture, run = path "text", path "sweep.svg", compare.run
    assert(core.write_file(text, TEXT))
    compare.run = function() error("interrupted!", 0) end -- luacheck: ignore 122
    local code = command.run { "quantise", tiny.path(), picture, "--sweep", "q4_0", "--on", text }
    compare.run = run -- luacheck: ignore 122
    assert.equal(130, code)
    assert.is_nil(core.path_kind(picture .. ".part.gguf"))
  end)

  it("shows the recipes before one that fails, and reads the text first", function()
    local text, short, picture = path "text", path "short", path "sweep.svg"
    assert(core.write_file(text, TEXT))
    assert(core.write_file(short, "a"))
    local gemma = tiny.path "gemma3-q8_0" -- its norms behind the blocks cannot be rotated
    local code, out, err = command.run { "quantise", gemma, picture, "--sweep", "q4_0,int8:rtn:rotate,q8_0", "--on", text }
    assert.equal(1, code)
    assert.matches("\nq4_0 +rtn .*sweep%.svg: %d+ tokens scored, fewer than 8000: the figures are uncertain\n$", out)
    assert.matches("^ane quantise: recipe int8:rtn:rotate: .*; .*sweep%.svg has the 1 rows before it\n$", err)
    assert.matches(">q4_0</text>", core.read_file(picture))
    code, out, err = command.run { "quantise", tiny.path(), picture, "--sweep", "q4_0", "--on", short }
    assert.same({ 1, "" }, { code, out })
    assert.matches("^ane quantise: .*short: the text has 1 tokens, but must have 2 or more\n$", err)
  end)

  it("leaves a file alone that has the name of its own", function()
    local text, picture = path "text", path "sweep.svg"
    assert(core.write_file(text, TEXT))
    assert(core.write_file(picture .. ".part.gguf", "kept"))
    local code, _, err = command.run { "quantise", tiny.path(), picture, "--sweep", "q4_0", "--on", text }
    local kept = core.read_file(picture .. ".part.gguf")
    os.remove(picture .. ".part.gguf")
    assert.equal(1, code)
    assert.matches("sweep%.svg%.part%.gguf: exists, but each recipe is written there", err)
    assert.equal("kept", kept)
  end)

  it("says what is wrong with its options", function()
    local function fails(pattern, ...)
      local code, _, err = command.run { "quantise", tiny.path(), ... }
      assert.equal(2, code)
      assert.matches("^ane quantise: [^\n]*" .. pattern .. "[^\n]*\n$", err)
    end
    fails("does not end with %.svg", path(), "--sweep", "q4_0", "--on", "t")
    fails("give %-%-on FILE", "x.svg", "--sweep", "q4_0")
    fails("needs %-%-sweep", "x.gguf", "--weights", "q4_0", "--on", "t")
    fails("leave out %-%-weights", "x.svg", "--sweep", "q4_0", "--on", "t", "--weights", "q4_0")
    fails("q4_0:gptq needs a text", "x.svg", "--sweep", "q4_0:gptq", "--on", "t")
    fails("a type is \"q9\": choose", "x.svg", "--sweep", "q4_0,q9", "--on", "t")
  end)

  it("reads lists of recipes", function()
    local turned = { name = "q4_k:gptq:rotate", weights = "q4_k", method = "gptq", transform = "rotate" }
    assert.same({ turned, { name = "q8_0", weights = "q8_0" } }, sweep.parse "q4_k:gptq:rotate,q8_0")
    for text, pattern in pairs {
      [""] = "is not TYPE", ["q4_0:x"] = "method \"x\": choose", ["q4_0:rtn:x"] = "transform \"x\"", ["q4_0:rtn:none:y"] = "is not TYPE",
      ["q4_0,q4_0"] = "is given twice",
    } do
      local list, fault = sweep.parse(text)
      assert.is_nil(list)
      assert.matches(pattern, fault)
    end
  end)
end)
