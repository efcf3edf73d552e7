local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"
local tiny_llama = require "support.tiny_llama"

local EXACT = { activations = "fp32", threads = 1 }
local ROTATED = { activations = "fp32", threads = 1, transform = "rotate" }

-- The logits of some ids, as a list of lists.
local function logits_of(model)
  local ids = {}
  for i = 1, 12 do ids[i] = i * 7 % 19 end
  local session <close> = assert(model:session())
  assert(session:feed(ids, { want = "all" }))
  local out = {}
  for i = 1, #ids do out[i] = session:logits(i):totable() end
  return out
end

-- The root of the mean squared difference, relative to that of a.
local function distance(a, b)
  local error, signal = 0, 0
  for i = 1, #a do
    for j = 1, #a[i] do error, signal = error + (a[i][j] - b[i][j]) ^ 2, signal + a[i][j] ^ 2 end
  end
  return math.sqrt(error / signal)
end

local function check(path)
  local model <close> = assert(ane.load(path, EXACT))
  local turned <close> = assert(ane.load(path, ROTATED))
  assert.is_true(distance(logits_of(model), logits_of(turned)) < 1e-5)
end

describe("a rotated model", function()
  local files = {}

  after_each(function()
    for _, path in ipairs(files) do os.remove(path) end
    files = {}
  end)

  local function temp(path)
    files[#files + 1] = path or os.tmpname()
    return files[#files]
  end

  for _, path in ipairs {
    "gguf/llama-q8_0.gguf", "gguf/qwen2-bf16.gguf", "gguf/qwen3-odd.gguf", "gguf/granite-odd.gguf", "gguf/mamba2-odd.gguf", "hf/llama",
    "hf/phi3", "hf/lfm2-odd", "hf/hunyuan_v1_dense", "hf/smollm3-odd", "hf/ministral3-odd", "hf/qwen3_5-odd",
  } do
    it("computes what its source computes: " .. path, function() check("spec/fixtures/" .. path) end)
  end

  it("is written as a file that computes the same, of folders whose head is the embedding too", function()
    for _, name in ipairs { "hf/llama", "hf/phi3", "hf/hunyuan_v1_dense", "hf/smollm3-odd", "hf/lfm2-odd", "gguf/qwen2-bf16.gguf" } do
      local path, out = "spec/fixtures/" .. name, temp()
      local model <close> = assert(ane.load(path, EXACT))
      local turned <close> = assert(ane.load(path, ROTATED))
      for _, write in ipairs {
        function() return turned:quantise(out, { weights = "fp32" }) end,
        function() return model:quantise(out, { weights = "fp32", transform = "rotate" }) end,
      } do
        assert(write())
        local written <close> = assert(ane.load(out, EXACT))
        assert.is_true(distance(logits_of(model), logits_of(written)) < 1e-5, name)
      end
    end
  end)

  it("has a head that gptq compensates, and a table that it does not, of folders whose head is the embedding too", function()
    local ids = {}
    for i = 1, 200 do ids[i] = i * 7 % 19 end
    for _, name in ipairs { "hf/llama", "hf/phi3", "hf/hunyuan_v1_dense", "hf/smollm3-odd", "gguf/qwen2-bf16.gguf" } do
      local model <close> = assert(ane.load("spec/fixtures/" .. name, EXACT))
      local report = assert(model:quantise(temp(), { weights = "int4-block", method = "gptq", calibrate = ids, transform = "rotate" }))
      local methods = {}
      for _, t in ipairs(report.tensors) do methods[t.name] = t.method or "rtn" end
      assert.equal("gptq", methods["output.weight"], name)
      assert.equal("rtn", methods["token_embd.weight"], name)
    end
  end)

  it("may have biases wherever a file has them", function()
    check(temp(tiny_llama.write(function(_, _, replace)
      replace("blk.0.attn_v.bias", 8)
      replace("blk.0.attn_output.bias", 16)
      replace("blk.0.ffn_down.bias", 16)
      replace("blk.0.ffn_up.bias", 24)
    end)))
  end)

  for path, step in pairs {
    ["gguf/gemma3-q8_0.gguf"] = "layers.0.post_attention_norm writes to", ["hf/bert"] = "token_embd_norm reads",
    ["hf/mixtral-odd"] = "layers.0.experts writes to",
    ["hf/gemma2-odd"] = "layers.0.post_attention_norm writes to",
    ["gguf/qwen3_moe-odd.gguf"] = "layers.0.experts writes to", ["hf/qwen3_embedding"] = "result of the model",
  } do
    it("is refused where a block cannot turn: " .. path, function()
      local model, message, code = ane.load("spec/fixtures/" .. path, ROTATED)
      assert.is_nil(model)
      assert.equal("unsupported", code)
      assert.matches(path, message, 1, true)
      assert.matches("option transform: rotate: ", message, 1, true)
      assert.matches(step, message, 1, true)
    end)
  end

  it("is refused where its width would need a large dense matrix", function()
    local width = 2 * 4099
    local path = temp(tiny_llama.write(function(file, set)
      set("llama.embedding_length", "uint32", width)
      set("llama.attention.key_length", "uint32", 4)
      set("llama.attention.value_length", "uint32", 4)
      for _, t in ipairs(file.tensors) do
        local narrow = t.name:find("attn_[qkv]%.") or t.name:find "ffn_[gu]" or t.name == "token_embd.weight"
        if narrow then t.shape[2] = width else t.shape[1] = width end
        t.data = ("\0\0\0\63"):rep(t.shape[1] * (t.shape[2] or 1))
      end
    end))
    ane.load(path, EXACT):close()
    local model, message, code = ane.load(path, ROTATED)
    local refusal = path .. ": option transform: rotate: the width of the model is 8198, whose odd factor is 4099; the most is 4095"
    assert.same({ nil, refusal, "unsupported" }, { model, message, code })
  end)

  it("is written as a plain file whose norms are ones, with a head of its own", function()
    local out = temp()
    local model <close> = assert(ane.load(tiny.path(), ROTATED))
    local report = assert(model:quantise(out, { weights = "fp32" }))
    local source <close> = assert(core.open(out))
    local ones = core.tensor({ 64 }):fill(1):tostring()
    local names = {}
    for _, t in ipairs(report.tensors) do
      names[t.name] = true
      if t.name:find "norm" then assert.equal(ones, source:read(t.name)) end
    end
    assert.is_true(names["output.weight"])
    local original <close> = assert(ane.load(tiny.path(), EXACT))
    local plain <close> = assert(ane.load(out, EXACT))
    assert.is_true(distance(logits_of(original), logits_of(plain)) < 1e-5)
  end)

  it("comes from the command too, with the same bytes each time", function()
    local text = temp()
    local file = assert(io.open(text, "w"))
    file:write(("The quick brown fox jumps over the lazy dog.\n"):rep(8))
    file:close()
    local bytes
    for _, threads in ipairs { "1", "2" } do
      local out = temp()
      local report = command.json { "quantise", tiny.path(), out, "--weights", "int4-block", "--transform", "rotate", "--method", "gptq",
        "--calibrate", text, "--threads", threads }
      local by_name = {}
      for _, t in ipairs(report.tensors) do by_name[t.name] = t end
      assert.equal("q8_0", by_name["token_embd.weight"].to)
      assert.equal("int4-block", by_name["output.weight"].scheme)
      local source <close>, before = assert(core.open(tiny.path())), 0
      for _, t in ipairs(source:tensors()) do
        before = before + t.bytes
        assert.same({ t.dtype, t.bytes }, { by_name[t.name].from, by_name[t.name].bytes_before }, t.name)
      end
      assert.equal(before, report.bytes_before)
      local got = assert(core.read_file(out))
      assert.equal(bytes or got, got)
      bytes = got
    end
  end)

  describe("of --transform auto", function()
    local function text()
      local path = temp()
      local file <close> = assert(io.open(path, "w"))
      file:write(("The quick brown fox jumps over the lazy dog.\n"):rep(8))
      return path
    end

    local function quantised(model, ...)
      local out = temp()
      local report = command.json { "quantise", model, out, ... }
      return assert(core.read_file(out)), report.transform
    end

    it("is written for schemes with gptq, and only for them", function()
      local args = { "--method", "gptq", "--calibrate", text() }
      local function bytes(weights, ...) return quantised(tiny.path(), "--weights", weights, ...) end
      local method, how, calibrate, path = table.unpack(args)
      local chosen, transform = bytes("int4-block", method, how, calibrate, path)
      assert.equal("rotate", transform)
      local turned = bytes("int4-block", method, how, calibrate, path, "--transform", "rotate")
      local plain, none = bytes("int4-block", method, how, calibrate, path, "--transform", "none")
      assert.equal(turned, chosen)
      assert.not_equal(plain, chosen)
      assert.equal("none", none)
      assert.equal("none", select(2, bytes("q4_0", method, how, calibrate, path)))
      assert.equal("none", select(2, bytes("uint4-block", method, how, calibrate, path)))
      assert.equal("none", select(2, bytes("int4-block", calibrate, path)))
    end)

    it("is not written where a block cannot turn, and the command says why", function()
      local out = temp()
      local code, _, err = command.run { "quantise", "spec/fixtures/gguf/gemma3-q8_0.gguf", out, "--weights", "int8", "--method", "gptq",
        "--calibrate", text(), "--no-progress" }
      assert.equal(0, code)
      assert.matches("^ane quantise: the weights are not rotated: .*layers%.0%.post_attention_norm writes to", err)
    end)

    it("is exported for schemes with gptq", function()
      local out = temp()
      os.remove(out)
      local path = text()
      local report = command.json { "export", tiny.path(), out, "--weights", "int8-channel", "--method", "gptq", "--calibrate", path,
        "--context", "64" }
      assert.equal("rotate", report.transform)
      os.execute("rm -r '" .. out .. "'")
    end)
  end)

  it("is exported by the command", function()
    local out = temp()
    os.remove(out)
    command.json { "export", tiny.path(), out, "--weights", "fp16", "--transform", "rotate", "--context", "64" }
    local original <close> = assert(ane.load(tiny.path(), EXACT))
    local set <close> = assert(ane.load(out, EXACT))
    assert.is_true(distance(logits_of(original), logits_of(set)) < 1e-2)
    set:close()
    os.execute("rm -r '" .. out .. "'")
  end)

  it("is an option of model:quantise", function()
    local opts = { weights = "int4-block", method = "gptq", calibrate = ("All that glitters is not gold.\n"):rep(9), threads = 1 }
    local plain <close> = ane.load(tiny.path(), EXACT)
    local turned <close> = ane.load(tiny.path(), ROTATED)
    local a, b = temp(), temp()
    assert.equal("rotate", assert(turned:quantise(a, opts)).transform)
    opts.transform = "rotate"
    assert.equal("rotate", assert(plain:quantise(b, opts)).transform)
    assert.is_true(core.read_file(a) == core.read_file(b))
    assert(turned:quantise(b, opts)) -- its own
    assert.is_true(core.read_file(a) == core.read_file(b))
    opts.transform = "none"
    assert.equal("none", assert(plain:quantise(b, opts)).transform)
    assert.is_false(core.read_file(a) == core.read_file(b))
  end)

  it("has no adapters that are not merged, and needs a model of one file or folder", function()
    local model, message, code = ane.load(tiny.path(), { transform = "rotate", adapters = "nowhere" })
    assert.is_nil(model)
    assert.equal("unsupported", code)
    assert.matches("merge = true", message, 1, true)
    assert.error_matches(function() ane.load(tiny.path(), { transform = "turn" }) end, "none, rotate")
    local loaded <close> = tiny.load()
    assert.error_matches(function() loaded:quantise(temp(), { weights = "q8_0", transform = "turn" }) end,
      'option transform is "turn": choose none, rotate')
    local turned <close> = tiny.load(nil, { transform = "rotate" })
    assert.error_matches(function() turned:quantise(temp(), { weights = "q8_0", transform = "none" }) end,
      "option transform is none, but the model was loaded with transform rotate")
  end)
end)
