-- Models as Core AI assets: the functions of the contract, run by our own runner against the executor.
local ane = require "ane"
local core = require "ane.core"
local coreai = require "support.coreai"
local exporter = require "ane.coreml.export"

local MODELS = "spec/fixtures/hf/"

describe("a model as a Core AI asset", function()
  local dir
  before_each(function() dir = os.tmpname(); os.remove(dir) end)
  after_each(function() os.execute("rm -rf " .. dir .. " " .. dir .. ".partial") end)

  local function export(name, opts)
    opts.target = "coreai"
    return assert(exporter.of_path(MODELS .. name, dir, opts))
  end

  -- The inputs of a call of q places at `pos`, of which ids[pos + 1 .. pos + k] are tokens.
  local function call(pkg, table_, ids, pos, k, q, context)
    local list, positions, mask = {}, {}, {}
    for i = 1, q do
      list[i] = i <= k and ids[pos + i] or 0
      positions[i] = math.min(pos + i - 1, context - 1)
    end
    for c = 0, context - 1 do
      for i = 1, q do mask[#mask + 1] = c <= positions[i] and 0 or -40000 end
    end
    local hidden = assert(pkg:predict({ in_new_token_ids = { list }, embedding_table = table_ }, nil,
      { ["function"] = "gather_embeddings_" .. q })).gathered_embeddings
    return { transformer_input = hidden, position_ids = { positions }, in_step = { pos }, embedding_table = table_,
             causal_mask = { shape = { 1, context, 1, q }, data = mask } }
  end

  -- Feeds ids by `step` tokens through extend_{context}_{q}; each logit must be close to the executor's (off by 0.03 at most).
  local function check(report, ids, rows, context, q, step, slack)
    local pkg <close> = assert(ane.package(report.path))
    local state <close> = assert(pkg:state(("extend_%d_%d"):format(context, q)))
    local table_ = assert(pkg:predict({}, nil, { ["function"] = "load_embeddings" })).embedding_table
    for pos = 0, #ids - 1, step do
      local k = math.min(step, #ids - pos)
      local out = assert(pkg:predict(call(pkg, table_, ids, pos, k, q, context), state,
        { ["function"] = ("extend_%d_%d"):format(context, q) })).out_logits
      local flat, vocab = out:reshape({ #out }):totable(), #out // q
      for i = 1, k do
        for v = 1, vocab do
          local got, want = flat[(i - 1) * vocab + v], rows[pos + i][v]
          if math.abs(got - want) > (slack or 0.03) then error(("token %d, logit %d: %g, wanted %g"):format(pos + i, v, got, want)) end
        end
      end
    end
  end

  local IDS = { 7, 11, 3, 25, 60, 2, 9, 14, 33, 5, 21 }

  it("has the functions, inputs, outputs and states of the contract", function()
    local report = export("llama", { weights = "lut4", context = 32 })
    local names, byname = {}, {}
    for i, f in ipairs(report.functions) do names[i], byname[f.name] = f.name, f end
    assert.same({ "load_embeddings", "gather_embeddings_8", "gather_embeddings_16", "extend_32_8", "prompt_opt_32_8", "extend_32_16",
                  "prompt_opt_32_16" }, names)
    local function ports(list)
      local out = {}
      for i, p in ipairs(list) do out[i] = p.name .. " " .. p.dtype .. " " .. table.concat(p.shape, ",") end
      return out
    end
    local f = byname.extend_32_8
    assert.same({ "transformer_input fp16 1,8,1,64", "position_ids uint16 1,8", "in_step int32 1", "causal_mask fp16 1,32,1,8",
                  "embedding_table fp16 1024,1,64" }, ports(f.inputs))
    assert.same({ "out_logits fp16 1,8,1,1024" }, ports(f.outputs))
    assert.same({ "key_cache fp16 3,1,48,1,32", "value_cache fp16 3,1,48,1,32" }, ports(f.states))
    assert.same({ "out_prompt_opt fp16 " }, ports(byname.prompt_opt_32_8.outputs))
    local meta = core.json_decode(assert(core.read_file(dir .. "/metadata.json")))
    assert.equal("llm", meta.kind)
    assert.equal(dir .. "/" .. meta.assets.main, report.path)
    assert.equal("folder", core.path_kind(dir .. "/tokenizer"))
  end)

  for _, case in ipairs {
    { "llama", "fp16" }, { "llama", "int8" }, { "llama", "int8-channel" }, { "llama", "int8-block" }, { "llama", "lut4" },
    { "llama", "lut4-g8" }, { "llama", "lut2" }, { "llama", "lut8" }, { "llama", "lut3-g8" }, { "llama", "lut6" },
    { "llama", "int4-block" }, { "llama", "uint4-block" }, { "gemma3", "fp16" }, { "gpt_oss-odd", "fp16" },
  } do
    it(("gives the executor's logits: %s in %s, by chunks and token by token"):format(case[1], case[2]), function()
      local report = export(case[1], { weights = case[2], context = 16, fixed_t = { 4 } })
      local rows = coreai.rows(MODELS .. case[1], IDS, case[2])
      check(report, IDS, rows, 16, 4, 4)
      check(report, IDS, rows, 16, 4, 1)
    end)
  end

  for _, slices in ipairs { 1, 3 } do
    it(("stores an fp16 head that is tied to the embedding once, in %d slices"):format(slices), function()
      local report = export("gemma3", { weights = "fp16", context = 16, fixed_t = { 4 }, slices = slices })
      local contents, head = assert(require("ane.coreml.aimodel").contents(report.path)), 0
      for _, w in ipairs(report.weights) do
        if w.name:find "embed" then head = head + w.bytes end
      end
      assert.equal(report.embed_bytes, head)
      assert.is_true(contents.resource_bytes < report.embed_bytes + report.weight_bytes - head // 2)
      check(report, IDS, coreai.rows(MODELS .. "gemma3", IDS, "fp16"), 16, 4, 4)
      local mixed = export("gemma3", { weights = "int8", context = 16, fixed_t = { 4 }, slices = slices })
      assert.is_true(assert(require("ane.coreml.aimodel").contents(mixed.path)).weights.int8 >= mixed.embed_bytes // 2)
    end)
  end

  it("refuses an ONNX file, and says what can be exported", function()
    local report, message, code = exporter.of_path("spec/fixtures/onnx/odd", dir, { target = "coreai" })
    assert.same({ nil, "unsupported" }, { report, code })
    assert.matches("odd/model.onnx: must be a GGUF file, or a folder with config.json and safetensors, but is onnx", message, 1, true)
  end)

  it("drops the padding of a call that reaches past the context", function()
    local report, ids = export("llama", { weights = "fp16", context = 16, fixed_t = { 4 } }), {}
    for i = 1, 16 do ids[i] = (i * 37 + 5) % 200 end
    local rows = coreai.rows(MODELS .. "llama", ids, "fp16")
    for _, step in ipairs { 3, 1 } do check(report, ids, rows, 16, 4, step) end
  end)

  it("carries the states of causal convolutions", function()
    local report = export("lfm2-odd", { weights = "fp16", context = 16, fixed_t = { 1, 4 } })
    local rows = coreai.rows(MODELS .. "lfm2-odd", IDS, "fp16")
    check(report, IDS, rows, 16, 4, 4)
    check(report, IDS, rows, 16, 1, 1)
  end)

  it("has no prompt_opt without layers", function()
    local ops = require "support.ops"
    local graph <close> = ops.graph(ops.new { channels = 8, out = 8, text = "y = softcap(x) {cap=2}" })
    local writer <close> = assert(core.mil_exporter(graph, { weights = "fp16", context = 16 }))
    local names = {}
    for i, f in ipairs(assert(writer:coreai(dir, { 16 }, { 4 }))) do names[i] = f.name end
    assert.same({ "load_embeddings", "gather_embeddings_4", "extend_16_4" }, names)
  end)

  -- The source of qwen3_5-odd has vectors in fp32, which an asset rounds to fp16.
  for name, slack in pairs { ["mamba2-odd"] = 0.03, ["qwen3_5-odd"] = 0.06, ["falcon_h1-odd"] = 0.03, ["granitemoehybrid-odd"] = 0.03 } do
    it("carries the states of recurrent blocks: " .. name, function()
      local report = export(name, { weights = "fp16", context = 16, fixed_t = { 1, 4, 11 } })
      local rows = coreai.rows(MODELS .. name, IDS, "fp16")
      check(report, IDS, rows, 16, 11, 11, slack)
      check(report, table.move(IDS, 1, 8, 1, {}), rows, 16, 4, 4, slack)
      check(report, IDS, rows, 16, 1, 1, slack)
    end)
  end

  it("chooses groups of experts first", function()
    local report = export("deepseek_v2_groups-odd", { weights = "fp16", context = 16, fixed_t = { 4 } })
    check(report, IDS, coreai.rows(MODELS .. "deepseek_v2_groups-odd", IDS, "fp16"), 16, 4, 4)
  end)

  -- The fixture switches to its long factors behind 32 positions.
  for _, context in ipairs { 32, 48 } do
    it(("has the factors of longrope for %d positions in all contexts"):format(context), function()
      local ids = {}
      for i = 1, context - 3 do ids[i] = (i * 37 + 5) % 200 end
      local report = export("phi3", { weights = "fp16", context = context, tiers = { 16 }, fixed_t = { 4 } })
      local rows = coreai.rows(MODELS .. "phi3", ids, "fp16")
      check(report, ids, rows, context, 4, 4, 0.06)
      check(report, table.move(ids, 1, 11, 1, {}), rows, 16, 4, 4)
    end)
  end

  it("writes the same bytes again, and replaces only a bundle", function()
    local first = export("llama", { weights = "int8", context = 16 })
    assert.equal(first.shards[1].sha256, export("llama", { weights = "int8", context = 16 }).shards[1].sha256)
    assert(core.write_file(dir .. "/mine.txt", "x"))
    local report, message = exporter.of_path(MODELS .. "llama", dir, { target = "coreai" })
    assert.is_nil(report)
    assert.truthy(message:find("mine.txt", 1, true))
  end)

  -- A case of `ane predict`: hidden states of zeros through the functions, all with the state of this name.
  local function predict_case(functions)
    local calls = {}
    for i, f in ipairs(functions) do
      local context, q = f:match "_(%d+)_(%d+)$"
      local function zeros(shape)
        local n, data = 1, {}
        for _, d in ipairs(shape) do n = n * d end
        for k = 1, n do data[k] = 0 end
        return { shape = shape, data = data }
      end
      calls[i] = { ["function"] = f, inputs = {
        transformer_input = zeros { 1, tonumber(q), 1, 64 }, position_ids = zeros { 1, tonumber(q) }, in_step = zeros { 1 },
        causal_mask = zeros { 1, tonumber(context), 1, tonumber(q) }, embedding_table = zeros { 1024, 1, 64 } } }
    end
    return core.json_encode { calls = calls }
  end

  it("refuses a context that holds no call", function()
    local path, opts = "spec/fixtures/hf/llama", { target = "coreai", context = 16, tiers = { 2, 8 }, fixed_t = { 4 } }
    local done, message, code = require("ane.coreml.export").of_path(path, os.tmpname() .. ".out", opts)
    assert.same({ nil, "option tiers: no call fits in a context of 2", "invalid" }, { done, message, code })
  end)

  it("has states by context, for functions of any number of tokens", function()
    local report = export("llama", { weights = "fp16", context = 16, tiers = { 8 }, fixed_t = { 1, 4 } })
    local pkg <close> = assert(ane.package(report.path))
    assert.same({ nil, report.path .. ": state key_cache has another shape in each of several functions: name the function", "shape" },
      { pkg:state() })
    assert.same({ nil, "there is no function \"extend\"", "notfound" }, { pkg:state "extend" })
    local state <close> = assert(pkg:state "extend_8_4")
    assert.same({ 3, 1, 48, 1, 8 }, state:get("key_cache"):shape())
    local copy <close> = assert(state:copy())
    assert.same({ 3, 1, 48, 1, 8 }, copy:get("value_cache"):shape())

    local command = require "support.command"
    local code, out = command.run({ "predict", report.path, "-", "--json" }, predict_case { "extend_8_4", "extend_8_1", "prompt_opt_8_1" })
    assert.equal(0, code, out)
    local failed, _, err = command.run({ "predict", report.path, "-", "--json" }, predict_case { "extend_8_4", "extend_16_4" })
    assert.equal(1, failed)
    assert.matches("call 2: .*state key_cache has another shape in this function than in the one it was made for", err)
  end)

  it("says what is known against int4 on the engine", function()
    local command, rules = require "support.command", require "ane.coreml.plan.coreai"
    for scheme, risky in pairs { ["int4-block"] = true, ["uint4-block"] = true, lut4 = false } do
      local code, _, err = command.run { "export", MODELS .. "llama", dir, "--target", "coreai", "--context", "16", "--fixed-t", "4",
        "--weights", scheme }
      assert.equal(0, code, err)
      assert.equal(risky, err:find("linear int4 compiled without a warning to an asset for the GPU only", 1, true) ~= nil)
      local types = false
      for _, r in ipairs(rules.judge { bytes = 1, context = 16, kv = 8, tokens = 4, rows = 8, weights = scheme }) do
        types = types or r.id == "types"
      end
      assert.equal(not risky, types)
    end
  end)

  it("classifies with a fixed number of tokens", function()
    local report = export("privacy_filter", { weights = "fp16", fixed_t = { 8 } })
    assert.equal("main", report.functions[1].name)
    local model <close> = assert(ane.load(MODELS .. "privacy_filter", { activations = "fp32" }))
    local session <close> = assert(model:session())
    assert(session:feed({ 7, 11, 3, 25, 60 }, { want = "all" }))
    local pkg <close> = assert(ane.package(report.path))
    local out = assert(pkg:predict({
      input_ids = { { 7, 11, 3, 25, 60, 0, 0, 0 } }, attention_mask = { { 1, 1, 1, 1, 1, 0, 0, 0 } } })).logits
    local flat, n = out:reshape({ #out }):totable(), #out // 8
    for i = 1, 5 do
      for v, want in ipairs(session:logits(i):totable()) do
        assert.is_true(math.abs(flat[(i - 1) * n + v] - want) < 0.03)
      end
    end
  end)

  -- ANE_COREAI_PYTHON: a Python with Apple's coreai-core. Without it this is not run.
  local python = os.getenv "ANE_COREAI_PYTHON"
  for _, case in ipairs(python and { { "llama" }, { "gemma3" }, { "gemma3", "fp16", 3 }, { "gpt_oss-odd" }, { "lfm2-odd" },
                                     { "privacy_filter" }, { "mamba2-odd" } } or {}) do
    local name = case[1]
    it(("passes the checks of Apple's library: %s in %s"):format(name, case[2] or "lut4"), function()
      local report = export(name, { weights = case[2] or "lut4", slices = case[3], fixed_t = { 8 },
                                      context = name ~= "privacy_filter" and 16 or nil })
      local text, names = coreai.apple(python, "verify.py " .. report.path), {}
      for i, f in ipairs(report.functions) do names[i] = f.name end
      assert.truthy(text:find(table.concat(names, " "), 1, true), text)
    end)
  end

  -- Tokens in calls of q, all with one state; the logits of the executor are expected.
  local function run_case(name, q, context)
    local rows, calls = coreai.rows(MODELS .. name, IDS, "fp16"), {}
    local function of(number, output) return { call = number, output = output } end
    local function int(dtype, shape, data) return { dtype = dtype, shape = shape, data = data } end
    calls[1] = { ["function"] = "load_embeddings", inputs = {} }
    for pos = 0, #IDS // q * q - 1, q do
      local positions, mask, logits = {}, {}, {}
      for i = 1, q do
        positions[i] = pos + i - 1
        table.move(rows[pos + i], 1, #rows[pos + i], #logits + 1, logits)
      end
      for c = 0, context - 1 do
        for i = 1, q do mask[#mask + 1] = c <= positions[i] and 0 or -40000 end
      end
      calls[#calls + 1] = { ["function"] = "gather_embeddings_" .. q, inputs = {
        in_new_token_ids = int("int32", { 1, q }, table.move(IDS, pos + 1, pos + q, 1, {})), embedding_table = of(1, "embedding_table") } }
      calls[#calls + 1] = { ["function"] = ("extend_%d_%d"):format(context, q), state = "s", inputs = {
        transformer_input = of(#calls, "gathered_embeddings"), embedding_table = of(1, "embedding_table"),
        position_ids = int("uint16", { 1, q }, positions), in_step = int("int32", { 1 }, { pos }),
        causal_mask = int("fp16", { 1, context, 1, q }, mask) },
        outputs = { out_logits = { shape = { 1, q, 1, #rows[1] }, data = logits } } }
    end
    return { calls = calls, tolerance = { atol = name == "qwen3_5-odd" and 0.15 or 0.08 } }
  end

  for _, name in ipairs(python and { "llama", "mamba2-odd", "qwen3_5-odd", "granitemoehybrid-odd", "deepseek_v2_groups-odd" } or {}) do
    it("gives the executor's logits in Apple's library: " .. name, function()
      local report = export(name, { weights = "fp16", context = 16, fixed_t = { 1, 4 } })
      for _, q in ipairs { 4, 1 } do
        assert(core.write_file(dir .. "/case.json", (core.json_encode(run_case(name, q, 16)))))
        coreai.apple(python, ("run.py %s %s/case.json"):format(report.path, dir))
      end
    end)
  end
end)
