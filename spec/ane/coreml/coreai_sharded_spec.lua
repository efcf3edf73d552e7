-- Sets of Core AI assets: the planner's shards, run one after another through the API of any model.
local ane = require "ane"
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local planner = require "ane.coreml.plan"

local HF = "spec/fixtures/hf/"
local IDS = { 7, 11, 3, 25, 50, 2, 9, 14, 33, 5, 21 }

describe("a model as a set of Core AI assets", function()
  local dir
  before_each(function() dir = os.tmpname(); os.remove(dir) end)
  after_each(function() os.execute("rm -rf " .. dir .. " " .. dir .. ".partial") end)

  local function export(name, opts)
    opts.target = "coreai-sharded"
    return assert(exporter.of_path(HF .. name, dir, opts))
  end

  local function meta() return core.json_decode(assert(core.read_file(dir .. "/runtime_meta.json"))) end

  for _, case in ipairs {
    { "llama", { weights = "int8", layers = 1, slices = 2, tiers = { 16 }, fixed_t = { 1, 4 } } },
    { "llama", { weights = "lut4-g8", layers = 1, argmax = true, fixed_t = { 4 } } },
    { "gemma3", { weights = "int8-block", layers = 2, fixed_t = { 1, 4 } } },
    { "lfm2-odd", { weights = "int8-channel", layers = 2, fixed_t = { 4 } } },
    { "qwen2_moe-odd", { weights = "int4-block", layers = 1, experts = "halves", fixed_t = { 1, 4 } } },
    { "phi3", { weights = "fp16", layers = 1, fixed_t = { 1, 4 } } },
  } do
    local name, opts = case[1], case[2]
    it(("gives the source's greedy tokens: %s in %s"):format(name, opts.weights), function()
      opts.context = 32
      local report = export(name, opts)
      assert.equal("coreai-sharded", report.target)
      assert.is_true(#report.shards > 2)
      for _, s in ipairs(report.shards) do
        assert.matches("%.aimodel$", s.path)
        assert.equal("folder", core.path_kind(dir .. "/" .. s.path))
      end
      local source <close> = assert(ane.load(HF .. name, { weights = opts.weights, activations = "fp32", context = 32 }))
      local set <close> = assert(ane.load(dir, { engine = "graph" }))
      assert.same({ "packages", "set of assets" }, { set.engine, set:info().format })
      local want = assert(source:generate(IDS, { max_tokens = 12, temperature = 0, details = true })).ids
      assert.same(want, assert(set:generate(IDS, { max_tokens = 12, temperature = 0, details = true })).ids)
    end)
  end

  it("classifies", function()
    export("privacy_filter", { weights = "fp16", layers = 1, fixed_t = { 8, 16 } })
    local source <close> = assert(ane.load(HF .. "privacy_filter", { activations = "fp32" }))
    local set <close> = assert(ane.load(dir, { engine = "graph" }))
    local a <close> = assert(source:session())
    local b <close> = assert(set:session())
    assert(a:feed(IDS, { want = "all" }))
    assert(b:feed(IDS, { want = "all" }))
    for i = 1, #IDS do
      local got = b:logits(i):totable()
      for v, want in ipairs(a:logits(i):totable()) do assert.is_true(math.abs(got[v] - want) < 0.03) end
    end
  end)

  it("embeds", function()
    export("bert", { weights = "fp16", layers = 1, fixed_t = { 8, 16 } })
    local source <close> = assert(ane.load(HF .. "bert", { activations = "fp32" }))
    local set <close> = assert(ane.load(dir, { engine = "graph" }))
    local want, got = assert(source:embed({ IDS }))[1]:totable(), assert(set:embed({ IDS }))[1]:totable()
    for i, x in ipairs(want) do assert.is_true(math.abs(got[i] - x) < 0.003) end
  end)

  it("has the manifest of a package set, and verifies by its hashes", function()
    export("llama", { weights = "int8", layers = 2, context = 16 })
    local m = meta()
    assert.equal("coreai-sharded", m.target)
    assert.equal("layer_00-01.aimodel", m.packages[1].path)
    local names = {}
    for i, f in ipairs(m.packages[1].functions) do names[i] = f.name end
    assert.same({ "t1", "t8" }, names)
    assert.same({ 1, 2, 16, 24 }, m.packages[1].states[1].shape)
    local set <close> = assert(ane.load(dir, { verify = true }))
    assert.equal("recipe", set.engine)
    local path = dir .. "/layer_00-01.aimodel/metadata.json"
    assert(core.write_file(path, (assert(core.read_file(path)):gsub("ane", "abc"))))
    local none, message = ane.load(dir, { verify = true })
    assert.is_nil(none)
    assert.matches("layer_00%-01%.aimodel/metadata%.json", message)
  end)

  it("keeps finished assets after an interruption, and gives the same bytes", function()
    local opts = { weights = "int8", layers = 1, context = 16, fixed_t = { 4 } }
    local first = export("llama", opts)
    os.execute(("rm -rf '%s'"):format(dir))
    local calls = 0
    opts.progress = function(stage)
      if stage == "export" then calls = calls + 1 end
      if calls == 2 then error "killed" end
    end
    assert.has_error(function() exporter.of_path(HF .. "llama", dir, opts) end)
    assert.equal("folder", core.path_kind(dir .. ".partial"))
    opts.progress = nil
    local again = export("llama", opts)
    assert.equal(2, again.kept)
    for i, s in ipairs(first.shards) do assert.equal(s.sha256, again.shards[i].sha256) end
  end)

  it("is planned in few shards below the size that is doubtful for one asset", function()
    local plan = assert(planner.of_path("spec/fixtures/configs/phi-4-mini.json", { target = "coreai-sharded" }))
    assert.is_true(plan.largest <= 1e9 and #plan.packages < 12)
    assert.same({ "t1", "t8", "t64" }, { plan.packages[1].functions[1].name, plan.packages[1].functions[2].name,
      plan.packages[1].functions[3].name })
    local rules = {}
    for _, r in ipairs(plan.coreai.rules) do rules[r.id] = true end
    assert.is_true(rules["own-host"])
    assert.is_nil(rules["size-1gb"] or rules["size-2gb"] or rules.layout)
    assert.matches("as 9 Core AI assets", tostring(plan))
    local one = assert(planner.of_path("spec/fixtures/configs/phi-4-mini.json", { target = "coreai" }))
    assert.matches("%-%-target coreai%-sharded", tostring(one))
    local smaller = assert(planner.of_path("spec/fixtures/configs/phi-4-mini.json", { target = "coreai-sharded", size_limit = 250000000 }))
    assert.is_true(smaller.largest <= 250000000 and #smaller.packages > 12)
  end)

  -- Numbers that fp16 holds, from -1 to 1.
  local function numbers(n, seed)
    local list = {}
    for i = 1, n do list[i] = ((i * 37 + seed * 101) % 129 - 64) / 64 end
    return list
  end

  -- The inputs of a function for a call at position pos. Those that are no positions or masks have any numbers.
  local function inputs_of(f, pos)
    local inputs = {}
    for i, port in ipairs(f.inputs) do
      local n = 1
      local data
      for _, d in ipairs(port.shape) do n = n * d end
      if port.role == "position" then
        data = { pos }
      elseif port.role == "mask" then
        local keys = port.shape[4]
        data = {}
        for k = 0, n - 1 do data[k + 1] = k % keys <= pos + k // keys and 0 or -10000 end
      else
        data = numbers(n, pos + i)
      end
      inputs[port.name] = { dtype = port.dtype, shape = port.shape, data = data }
    end
    return inputs
  end

  -- Three calls of each function, which carry the states on, with the outputs of our own runner.
  local function case_of(p)
    local pkg <close> = assert(ane.package(dir .. "/" .. p.path))
    local calls = {}
    for _, f in ipairs(p.functions) do
      local state <close> = assert(pkg:state(f.name))
      local _, most = f.name:match "^t(%d+)_c(%d+)$"
      for pos = 0, most and 8 or 0, 4 do
        local call = { ["function"] = f.name, state = f.name, inputs = inputs_of(f, pos), outputs = {} }
        local plain = {}
        for name, v in pairs(call.inputs) do plain[name] = { shape = v.shape, data = v.data } end
        for name, y in pairs(assert(pkg:predict(plain, state, { ["function"] = f.name }))) do
          if type(y) == "userdata" then call.outputs[name] = { data = y:reshape({ #y }):totable() } end
        end
        calls[#calls + 1] = call
      end
    end
    return { calls = calls, tolerance = { atol = 0.08 } }
  end

  -- ANE_COREAI_PYTHON: a Python with Apple's coreai-core. Without it this is not run.
  local python = os.getenv "ANE_COREAI_PYTHON"
  for _, name in ipairs(python and { "llama", "gemma3", "lfm2-odd", "qwen2_moe-odd", "privacy_filter" } or {}) do
    it("passes the checks of Apple's library: " .. name, function()
      local causal = name ~= "privacy_filter"
      local report = export(name, { weights = "lut4", layers = 1, fixed_t = { 8 }, context = causal and 16 or nil, argmax = causal })
      for _, s in ipairs(report.shards) do
        local pipe = assert(io.popen(("%s spec/fixtures/aimodel/verify.py %s/%s 2>&1"):format(python, dir, s.path)))
        local text = pipe:read "a"
        assert.is_true(pipe:close(), text)
        for _, f in ipairs(s.functions) do assert.truthy(text:find(f, 1, true), text) end
      end
    end)

    it("gives the same in Apple's library, function by function: " .. name, function()
      local causal = name ~= "privacy_filter"
      export(name, { weights = "int8", layers = 1, fixed_t = { 1, 4 }, tiers = causal and { 16 } or nil, context = causal and 24 or nil })
      for _, p in ipairs(meta().packages) do
        assert(core.write_file(dir .. ".json", (core.json_encode(case_of(p)))))
        local pipe = assert(io.popen(("%s spec/fixtures/aimodel/run.py %s/%s %s.json 2>&1"):format(python, dir, p.path, dir)))
        local text = pipe:read "a"
        os.remove(dir .. ".json")
        assert.is_true(pipe:close(), text)
      end
    end)
  end
end)
