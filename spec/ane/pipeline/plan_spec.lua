-- Plans of models over ranks: the parts add up, host files are read, and the predicted times follow from their rates.
local command = require "support.command"
local core = require "ane.core"
local plan = require "ane.pipeline.plan"
local schema = require "ane.util.schema"

local MODEL = "spec/fixtures/gguf/llama-mixed.gguf"

-- A host file with this text.
local function hosts(text)
  local path = os.tmpname()
  assert(core.write_file(path, text))
  return setmetatable({ path = path }, { __close = function() os.remove(path) end })
end

local function of(path, opts) return plan.of_path(path, schema.check(plan.rules, opts, "plan", 2)) end

describe("a plan over ranks", function()
  it("divides weights and states, and sums up to the model", function()
    local file <close> = hosts "a slots=2 read=10 compute=100 memory=8\nb read=10 compute=100 # the other one\n\n"
    local one = assert(of(MODEL, { hosts = file.path, ranks = 1 }))
    local three = assert(of(MODEL, { hosts = file.path, sequences = 8 }))
    assert.equal(3, #three.ranks)
    assert.same({ "a", "a", "b" }, { three.ranks[1].host, three.ranks[2].host, three.ranks[3].host })
    local weights, state = 0, 0
    for _, r in ipairs(three.ranks) do weights, state = weights + r.weights, state + r.state end
    assert.equal(one.weights, weights)
    assert.equal(one.state, state)
    assert.equal(0, three.ranks[3].sends)
    assert.equal(64 * 4, three.ranks[1].sends)
  end)

  it("reads the host files of Open MPI and of MPICH, and refuses what it does not know", function()
    local function names(text)
      local file <close> = hosts(text)
      local p, message = of(MODEL, { hosts = file.path })
      if not p then return (message:gsub("^.-: ", "", 1)) end
      local list = {}
      for i, r in ipairs(p.ranks) do list[i] = r.host end
      return table.concat(list, " ")
    end
    assert.equal("a a b", names "a slots=2 max_slots=4 read=1 compute=1\nb max-slots=2 user=me read=1 compute=1\n")
    assert.equal("a a b", names "a:2 binding=user read=1 compute=1\nb:1 read=1 compute=1\n")
    assert.equal("fe80::1", names "fe80::1 read=1 compute=1\n")
    assert.matches("^line 2: unknown key raed; the keys are compute, memory, read, slots;", names "a read=1 compute=1\nb raed=1\n")
    assert.equal("line 1: slots=1.5 is not a whole number", names "a slots=1.5\n")
    assert.equal("line 1: slots=0 is not a number above 0", names "a:0\n")
    assert.equal("names no host", names "# none\n\n")
  end)

  it("fails with the reason where the rates of this machine cannot be measured", function()
    local limits = core.limits
    core.limits = function() return nil, "no memory", "memory" end -- luacheck: ignore 122
    local ok, p, message, code = pcall(of, MODEL, { ranks = 2 })
    core.limits = limits -- luacheck: ignore 122
    assert.same({ true, nil, "no memory", "memory" }, { ok, p, message, code })
  end)

  it("predicts by rates, latency and bandwidth", function()
    local file <close> = hosts "a read=1 compute=1000\nb read=1 compute=1000\n"
    local p = assert(of(MODEL, { hosts = file.path, network = 8, latency = 1000, context = 1, sequences = 2 }))
    local a, b = p.ranks[1], p.ranks[2]
    assert.is_true(math.abs(a.link_s - (1e-3 + a.sends / 1e9)) < 1e-9)
    assert.is_true(a.decode_s >= a.read / 1e9)
    local back = 1e-3 + 8 / 1e9
    assert.is_true(math.abs(1 / p.decode - (a.decode_s + b.decode_s + a.link_s + back - math.min(a.head_s, b.head_s))) < 1e-9)
  end)

  -- Qwen2.5 0.5B: 24 layers of 14 heads of 64, 1/2 of the layers on each rank.
  it("predicts prompts with attention, and with the time in which the pipeline fills", function()
    local file <close> = hosts "a slots=2 read=20 compute=500\n"
    local one_file <close> = hosts "a read=20 compute=500\n"
    local function qwen(context, path) return assert(of("spec/fixtures/configs/qwen2.5-0.5b.json", { hosts = path, context = context })) end
    local function near(want, got) assert.is_true(math.abs(got / want - 1) < 1e-6, ("%g, wanted %g"):format(got, want)) end
    local short, long = qwen(1, one_file.path), qwen(2048, one_file.path)
    near(short.prompt, short.prompts)
    near(long.prompt, long.prompts)
    -- Beyond what one position takes: a multiplication for scores and one for values, at 0.4 of the rate.
    local attention = 24 * 2 * 14 * 64 * (2049 / 2 - 1)
    near(2 * attention / 0.4 / 500e9, 1 / long.prompt - 1 / short.prompt)
    for _, context in ipairs { 64, 512, 2048, 2000 } do
      local p = qwen(context, file.path)
      local a, b = 64 * p.ranks[1].prompt_s, 64 * p.ranks[2].prompt_s
      local link = plan.LOCAL.latency + 64 * p.ranks[1].sends / plan.LOCAL.bandwidth
      near(context / (a + b + link + (context / 64 - 1) * math.max(a, b)), p.prompt)
      near(64 / math.max(a, b), p.prompts)
    end
  end)

  it("lets a token see no more than a window", function()
    local file <close> = hosts "a read=20 compute=500\n"
    local path = "spec/fixtures/hf/gpt_oss_mxfp4-odd"
    local function seconds(context) return 1 / assert(of(path, { hosts = file.path, context = context })).prompt end
    -- 3 layers of 6 heads of 12, of which 2 have a window of 6 positions.
    local function seen(n)
      local windowed = 0
      for t = 1, n do windowed = windowed + math.min(t, 6) end
      return 2 * 6 * 12 * ((n + 1) / 2 + 2 * windowed / n)
    end
    for _, n in ipairs { 4, 6, 17, 200 } do
      local want = 2 * (seen(n) - seen(1)) / 0.4 / 500e9
      assert.is_true(math.abs((seconds(n) - seconds(1)) / want - 1) < 1e-6, n)
    end
  end)

  it("needs no weights", function()
    local file <close> = hosts "a slots=4 read=20 compute=500\n"
    local full = assert(of("spec/fixtures/configs/qwen2.5-0.5b.json", { hosts = file.path }))
    local small = assert(of("spec/fixtures/configs/qwen2.5-0.5b.json", { hosts = file.path, weights = "int8" }))
    assert.is_true(math.abs(full.weights - 2 * 494e6) < 0.02 * 2 * 494e6)
    assert.is_true(math.abs(full.weights / small.weights - 2) < 0.01)
  end)

  it("says what is wrong with a host file", function()
    for _, case in ipairs {
      { "a slots=x\n", "line 1: slots=x", "format" }, { "\na read=-1\n", "line 2: read=-1", "format" },
      { "a slots=2\nb has two\n", "line 2: 'has' is not KEY=VALUE", "format" },
      { "a slots=2 read=1 compute=1\n", "2 slots, but must have 5", "invalid" },
      { "a slots=9 read=1 compute=1 memory=0.000001\n", "do not fit", "memory" },
    } do
      local file <close> = hosts(case[1])
      local p, message, code = of(MODEL, { hosts = file.path, ranks = case[3] == "invalid" and 5 or nil })
      assert.is_nil(p)
      assert.equal(case[3], code)
      assert.is_truthy(message:find(case[2], 1, true), message)
    end
    local many <close> = hosts "a slots=5000 read=1 compute=1\n"
    local none, why, word = of(MODEL, { hosts = many.path })
    assert.same({ nil, many.path .. " has 5000 slots, but a plan has at most 4096 ranks: choose how many", "invalid" }, { none, why, word })
    assert.equal(2, #assert(of(MODEL, { hosts = many.path, ranks = 2 })).ranks)
    local p, _, code = of(MODEL, { hosts = "/no/such/file" })
    assert.is_nil(p)
    assert.equal("io", code)
  end)

  it("is a command", function()
    local file <close> = hosts "a slots=2 read=10 compute=100\n"
    local code, out = command.run { "plan", MODEL, "--hosts", file.path, "--cut", "2" }
    assert.equal(0, code)
    assert.matches("2 ranks", out)
    assert.matches("0 .. 1", out)
    local p = command.json { "plan", MODEL, "--ranks", "2", "--hosts", file.path, "--link", "fp16" }
    assert.equal(64 * 2, p.ranks[1].sends)
    local wrong, _, err = command.run { "plan", MODEL, "--hosts", file.path, "--cut", "9" }
    assert.equal(2, wrong)
    assert.matches("no layer 9", err)
  end)
end)
