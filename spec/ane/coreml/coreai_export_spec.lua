-- Models as Core AI assets: the functions of the contract, run by our own runner against the executor.
local ane = require "ane"
local core = require "ane.core"
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

  -- Logits of the executor: one row a token.
  local function wanted(name, ids, weights)
    local model <close> = assert(ane.load(MODELS .. name, { weights = weights, activations = "fp32" }))
    local session <close> = assert(model:session())
    local rows = {}
    assert(session:feed(ids, { want = "all" }))
    for i = 1, #ids do rows[i] = session:logits(i):totable() end
    return rows
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

  -- Feeds ids by `step` tokens through extend_{context}_{q}; each logit must be close to the executor's.
  local function check(report, ids, rows, context, q, step)
    local pkg <close> = assert(ane.package(report.path))
    local state <close> = assert(pkg:state())
    local table_ = assert(pkg:predict({}, nil, { ["function"] = "load_embeddings" })).embedding_table
    for pos = 0, #ids - 1, step do
      local k = math.min(step, #ids - pos)
      local out = assert(pkg:predict(call(pkg, table_, ids, pos, k, q, context), state,
        { ["function"] = ("extend_%d_%d"):format(context, q) })).out_logits
      local flat, vocab = out:reshape({ #out }):totable(), #out // q
      for i = 1, k do
        for v = 1, vocab do
          local got, want = flat[(i - 1) * vocab + v], rows[pos + i][v]
          if math.abs(got - want) > 0.03 then error(("token %d, logit %d: %g, wanted %g"):format(pos + i, v, got, want)) end
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

  for _, case in ipairs { { "llama", "fp16" }, { "llama", "int8" }, { "llama", "int8-channel" }, { "llama", "lut4" },
                          { "llama", "lut4-g8" }, { "llama", "int4-block" }, { "gemma3", "fp16" }, { "gpt_oss-odd", "fp16" } } do
    it(("gives the executor's logits: %s in %s, by chunks and token by token"):format(case[1], case[2]), function()
      local report = export(case[1], { weights = case[2], context = 16, fixed_t = { 4 } })
      local rows = wanted(case[1], IDS, case[2])
      check(report, IDS, rows, 16, 4, 4)
      check(report, IDS, rows, 16, 4, 1)
    end)
  end

  it("carries the states of causal convolutions", function()
    local report = export("lfm2-odd", { weights = "fp16", context = 16, fixed_t = { 1, 4 } })
    local rows = wanted("lfm2-odd", IDS, "fp16")
    check(report, IDS, rows, 16, 4, 4)
    check(report, IDS, rows, 16, 1, 1)
  end)

  it("writes the same bytes again, and replaces only a bundle", function()
    local first = export("llama", { weights = "int8", context = 16 })
    assert.equal(first.shards[1].sha256, export("llama", { weights = "int8", context = 16 }).shards[1].sha256)
    assert(core.write_file(dir .. "/mine.txt", "x"))
    local report, message = exporter.of_path(MODELS .. "llama", dir, { target = "coreai" })
    assert.is_nil(report)
    assert.truthy(message:find("mine.txt", 1, true))
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
  for _, name in ipairs(python and { "llama", "gemma3", "gpt_oss-odd", "lfm2-odd", "privacy_filter" } or {}) do
    it("passes the checks of Apple's library: " .. name, function()
      local report = export(name, { weights = "lut4", fixed_t = { 8 }, context = name ~= "privacy_filter" and 16 or nil })
      local pipe = assert(io.popen(("%s spec/fixtures/aimodel/verify.py %s 2>&1"):format(python, report.path)))
      local text, names = pipe:read "a", {}
      for i, f in ipairs(report.functions) do names[i] = f.name end
      assert.is_true(pipe:close(), text)
      assert.truthy(text:find(table.concat(names, " "), 1, true), text)
    end)
  end
end)
