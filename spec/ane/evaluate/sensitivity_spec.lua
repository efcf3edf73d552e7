local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"

local TEXT = ("The quick brown fox jumps over the lazy dog, 1234567890 times. Ünïcödé too.\n"):rep(3)
local OPTS = { tokens = 48, chunk = 24, types = { "q4_0", "q5_0" } }

local model, report
setup(function()
  model = tiny.load()
  report = assert(ane.sensitivity(model, TEXT, OPTS))
end)
teardown(function() model:close() end)

describe("ane.sensitivity", function()
  it("measures each weight in its types, the stored one without error", function()
    assert.is_true(#report.weights > 5 and report.count > 0 and report.rest > 0)
    assert.equal(48, report.tokens)
    for _, w in ipairs(report.weights) do
      local last
      for _, c in ipairs(w.choices) do
        if c.type == w.stored then assert.same({ 0.0, 0.0 }, { c.error, c.kl }) end
        assert.is_true(c.kl >= 0 and (not last or c.bytes > last.bytes))
        last = c
      end
      assert.is_true(w.choices[1].kl > 0, w.name)
      assert.equal(w.stored, last.type)
    end
    assert.matches("^output%.weight +q4_0 .*q5_0", tostring(report))
  end)

  it("changes no weight whose name contains that of the measured one", function()
    local ids, logits = assert(model.tokenizer:encode(TEXT)), {}
    for i, mixed in ipairs { {}, { { "output.weight", "q4_0" }, { "attn_output", "file" } } } do
      local other <close> = assert(ane.load(tiny.path(), { context = 24, mixed = mixed }))
      local session <close> = assert(other:session())
      logits[i] = {}
      for from = 1, 48, 24 do
        assert(session:rewind(0))
        assert(session:feed(table.move(ids, from, from + 23, 1, {}), { want = "all" }))
        for at = 1, 24 do table.insert(logits[i], session:logits(at)) end
      end
    end
    local kl = 0
    for i = 1, 48 do kl = kl + core.divergence(logits[1][i], logits[2][i]) / 48 end
    assert.equal("output.weight", report.weights[1].name)
    assert.near(kl, report.weights[1].choices[1].kl, 1e-9)
  end)

  it("chooses types under a budget: less divergence with more bytes, never more bytes than asked for", function()
    local last = math.huge
    for _, bits in ipairs { 4.5, 5, 5.5, 6, 8.5 } do
      local mixed, chosen = report:mixed { bits = bits }
      assert.equal(#report.weights + #report.kept, #mixed)
      assert.is_true(chosen.bits <= bits + 1e-9 and chosen.kl <= last)
      last = chosen.kl
      local same = report:mixed { size = chosen.bytes }
      assert.same(mixed, same)
    end
    assert.equal(0.0, last)
    local none, message, code = report:mixed { bits = 4 }
    assert.same({ nil, "range" }, { none, code })
    assert.matches("^the smallest types take 4%.500 bits per weight, more than 4$", message)
    assert.matches("^the smallest types take %d+ bytes, more than 9$", select(2, report:mixed { size = 9 }))
  end)

  it("lists the rule of output.weight before those of names that contain it, wherever the file has it", function()
    local weights = table.move(report.weights, 2, #report.weights, 1, {})
    weights[#weights + 1] = report.weights[1]
    local other = setmetatable({ weights = weights }, { __index = report })
    local types = {}
    for _, rule in ipairs(other:mixed { bits = 5.2 }) do
      for _, w in ipairs(weights) do
        if core.glob(rule[1], w.name) then types[w.name] = rule[2] end
      end
    end
    for _, rule in ipairs(report:mixed { bits = 5.2 }) do assert.equal(rule[2], types[rule[1]] or rule[2]) end
  end)

  it("gives rules that quantise takes, of folders whose tensors it drops, keeps in fp32 or stacks", function()
    local folder = os.tmpname()
    os.remove(folder)
    finally(function() os.execute("rm -r '" .. folder .. "'") end)
    assert(os.execute("mkdir '" .. folder .. "'"))
    for name, change in pairs { bert = {}, nomic_bert = {}, ["gpt_oss-odd"] = {}, ["lfm2_moe-odd"] = { "1%.25", "1.0" } } do
      local from, to = "spec/fixtures/hf/" .. name, folder .. "/" .. name
      assert(os.execute(("cp -r '%s' '%s'"):format(from, to)))
      local config = assert(core.read_file(to .. "/config.json"))
      assert(core.write_file(to .. "/config.json", (config:gsub(change[1] or "^$", change[2] or ""))))
      local other <close> = assert(ane.load(to))
      local found = assert(ane.sensitivity(other, { 1, 2, 3, 4, 5, 6, 7, 8 }))
      local mixed, expected = found:smallest()
      local written = assert(other:quantise(folder .. "/out.gguf", { weights = "q8_0", mixed = mixed }))
      local types, bytes = {}, 0
      for _, t in ipairs(written.tensors) do types[t.name], bytes = t.to, bytes + t.bytes_after end
      for _, rule in ipairs(mixed) do assert.equal(rule[2], types[rule[1]] or rule[2], rule[1]) end
      assert.is_true(bytes < 1.1 * expected.bytes, name) -- a folder may hold vectors in bf16
      assert.equal(name == "lfm2_moe-odd", types["blk.1.ffn_gate_exps.weight"] ~= nil)
    end
  end)

  it("measures a model with its merged adapters", function()
    local merged <close> = tiny.load(nil, { adapters = { { path = "spec/fixtures/hf/lora_llama", scale = 4 } }, merge = true })
    local other = assert(ane.sensitivity(merged, TEXT, { tokens = 24, chunk = 24, types = { "q4_0" } }))
    local own = assert(ane.sensitivity(model, TEXT, { tokens = 24, chunk = 24, types = { "q4_0" } }))
    assert.is_true(math.abs(other.weights[1].choices[1].kl / own.weights[1].choices[1].kl - 1) > 1e-3)
  end)

  it("refuses what makes no sense", function()
    local reranker <close> = assert(ane.load "spec/fixtures/hf/cross_encoder")
    local none, message, code = ane.sensitivity(reranker, { 1, 2, 3 })
    assert.same({ nil, "unsupported" }, { none, code })
    assert.matches("gives one score, which has no divergence", message)
    assert.error_matches(function() report:mixed {} end, "give one of the options size and bits")
    assert.error_matches(function() report:mixed { size = 1, bits = 4 } end, "give one of")
    assert.error_matches(function() ane.sensitivity(model, TEXT, { types = { "q9" } }) end, 'option types is "q9"')
    assert.error_matches(function() ane.sensitivity(model, TEXT, { types = {} }) end, "at least one")
    assert.error_matches(function() ane.sensitivity(model, 3) end, "sensitivity: input must be a string or a table")
    assert.same({ nil, "the text has no tokens", "invalid" }, { ane.sensitivity(model, {}) })
  end)
end)

describe("ane quantise --bits", function()
  local out, text
  before_each(function()
    out, text = os.tmpname(), os.tmpname()
    assert(core.write_file(text, TEXT))
  end)
  after_each(function()
    os.remove(out)
    os.remove(text)
  end)

  it("writes a file of the types that it names", function()
    local args = { "quantise", tiny.path(), out, "--bits", "5.5", "--calibrate", text }
    local r = command.json(args)
    assert.is_true(r.expected.bits <= 5.5 and r.expected.kl > 0)
    assert.near(r.expected.bits, r.bits, 1e-9) -- both without the embedding table, which stays in q8_0
    local types = {}
    for _, t in ipairs(r.tensors) do types[t.name] = t.to end
    for _, pair in ipairs(r.mixed) do assert.equal(pair[2], types[pair[1]]) end
    local limit = core.path_kind(out) and #core.read_file(out)
    local again = command.json { "quantise", tiny.path(), out, "--size", tostring(limit + 1000), "--calibrate", text, "--method", "gptq" }
    assert.is_true(again.bytes_after <= limit + 1000)
  end)

  it("keeps to --size with the bytes of --mixed and of metadata", function()
    local big = command.json { "quantise", tiny.path(), out, "--size", "290K", "--mixed", "token_embd=fp16", "--calibrate", text }
    assert.is_true(big.bytes_after <= 290000)
    local code, _, err = command.run { "quantise", tiny.path(), out, "--size", "215K", "--mixed", "token_embd=fp16", "--calibrate", text }
    assert.equal(1, code)
    assert.equal("ane quantise: --size must be at least 264.2 kB, the size with the smallest types, but is 215.0 kB\n", err)
  end)

  it("finds a wrong output or --mixed before it reads the text", function()
    for _, budget in ipairs { { "--bits", "5" }, { "--weights", "q4_0", "--method", "gptq" }, { "--weights", "q4_k" } } do
      for _, case in ipairs {
        { "/none/x.gguf", "q8_0", "/none/x.gguf: cannot create: No such file or directory" },
        { tiny.path(), "q8_0", tiny.path() .. ": is the model itself; name another file for the output" },
        { out, "nothing=q8_0", '--mixed: no tensor that can change its type matches "nothing"' },
      } do
        local args = { "quantise", tiny.path(), case[1], "--calibrate", text, "--mixed", case[2]:find "=" and case[2] or "attn=q8_0" }
        table.move(budget, 1, #budget, #args + 1, args)
        local read
        local evaluate, moments = require "ane.evaluate.calibrate", require "ane.quantise.moments"
        local run, open = evaluate.run, moments.open
        evaluate.run, moments.open = function() read = true end, function() read = true end
        local code, _, err = command.run(args)
        evaluate.run, moments.open = run, open
        assert.is_true(code ~= 0)
        assert.equal("ane quantise: " .. case[3] .. "\n", err)
        assert.is_nil(read)
      end
    end
  end)

  it("says what is missing", function()
    for _, case in ipairs {
      { "--bits cannot be combined with --size", { "--size", "1M", "--bits", "4" } },
      { "--size and --bits need a text: give --calibrate FILE", { "--size", "1M" } },
      { "--size: '1Q' is not a size like 90M", { "--size", "1Q" } },
    } do
      local code, _, err = command.run { "quantise", tiny.path(), out, table.unpack(case[2]) }
      assert.equal(2, code)
      assert.equal("ane quantise: " .. case[1], err:sub(1, #case[1] + 14))
    end
    local sensitivity = require "ane.evaluate.sensitivity"
    local run = sensitivity.run
    finally(function() sensitivity.run = run end)
    sensitivity.run = function() error "the budget is checked before" end
    for option, wanted in pairs { ["--bits"] = "--bits must be at least 4%.%d+, the bits per weight of the smallest types, but is 1",
                                  ["--size"] = "--size must be at least %S+ kB, the size with the smallest types, but is 1 bytes" } do
      local code, _, err = command.run { "quantise", tiny.path(), out, option, "1", "--calibrate", text }
      assert.equal(1, code)
      assert.matches(wanted, err)
    end
  end)
end)
