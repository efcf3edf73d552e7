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
    assert.matches("the smallest types take %d+ bytes %(4%.500 bits a weight%), more than the budget of %d+", message)
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

  it("refuses what makes no sense", function()
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
    local types = {}
    for _, t in ipairs(r.tensors) do types[t.name] = t.to end
    for _, pair in ipairs(r.mixed) do assert.equal(pair[2], types[pair[1]]) end
    local limit = core.path_kind(out) and #core.read_file(out)
    local again = command.json { "quantise", tiny.path(), out, "--size", tostring(limit + 1000), "--calibrate", text, "--method", "gptq" }
    assert.is_true(again.bytes_after <= limit + 1000)
  end)

  it("says what is missing", function()
    for _, case in ipairs {
      { "--size and --bits: choose one", { "--size", "1M", "--bits", "4" } },
      { "--size and --bits need a text: give --calibrate FILE", { "--size", "1M" } },
      { "--size: '1Q' is not a size like 90M", { "--size", "1Q" } },
    } do
      local code, _, err = command.run { "quantise", tiny.path(), out, table.unpack(case[2]) }
      assert.equal(2, code)
      assert.equal("ane quantise: " .. case[1], err:sub(1, #case[1] + 14))
    end
    local code, _, err = command.run { "quantise", tiny.path(), out, "--bits", "1", "--calibrate", text }
    assert.equal(1, code)
    assert.matches("the smallest types take", err)
  end)
end)
