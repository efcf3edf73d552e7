-- Folders with config.json and safetensors against what transformers computes from them in float32, layer by layer: the
-- goldens hold all positions of the short prompt, the last ones of the others.
local ane = require "ane"
local core = require "ane.core"
local safetensors = require "support.safetensors"

local FOLDER = "spec/fixtures/hf/"

local function json(path) return assert(core.json_decode(assert(core.read_file(path)))) end

local function ints(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = math.tointeger(v) end
  return out
end

-- Largest |got - want| / (1 + |want|) over rows [row, n]: `want` (a tensor of a golden) holds the last ones.
local function apart(rows, want)
  local n, columns, worst = want.shape[1], want.shape[2], 0
  for i = 1, n do
    local got = rows[#rows - n + i]
    assert.equal(columns, #got)
    for k = 1, columns do
      local w = string.unpack("<f", want.data, 4 * ((i - 1) * columns + k) - 3)
      worst = math.max(worst, math.abs(got[k] - w) / (1 + math.abs(w)))
    end
  end
  return worst
end

local function logits(model, ids)
  local session <close> = assert(model:session())
  assert(session:feed(ids, { want = "all" }))
  local rows = {}
  for i = 1, #ids do rows[i] = session:logits(i):totable() end
  return rows
end

local function rows_of(tensor)
  local rows = {}
  for i = 1, tensor:shape()[1] do rows[i] = tensor[i]:totable() end
  return rows
end

for _, name in ipairs { "llama", "qwen2_swa", "phi3", "hunyuan_v1_dense", "gemma3_softcap" } do
  describe(name .. " of a folder", function()
    local golden = json(FOLDER .. name .. "/golden.json")
    local want = safetensors.open(FOLDER .. name .. "/golden.safetensors")
    local model

    setup(function() model = assert(ane.load(FOLDER .. name, { activations = "fp32", threads = 1 })) end)
    teardown(function() model:close() end)

    it("gives the golden logits", function()
      for _, prompt in ipairs(golden.prompts) do
        local worst = apart(logits(model, ints(prompt.input_ids)), want[prompt.name .. ".logits"])
        assert.is_true(worst <= 2e-3, ("%s: %g off"):format(prompt.name, worst))
      end
    end)

    it("gives the golden greedy tokens", function()
      for _, prompt in ipairs(golden.prompts) do
        local result = assert(model:generate(ints(prompt.input_ids), { max_tokens = #prompt.greedy, ignore_eos = true, details = true }))
        assert.same(ints(prompt.greedy), result.ids)
      end
    end)

    it("gives the golden residual stream behind every layer", function()
      local ids = ints(golden.prompts[1].input_ids)
      local scaled = model.architecture == "gemma3_text" and "scale" or "token_embd"
      local t = assert(model:trace(ids, { scaled, "*.add_2" }))
      for i = 0, model.config.n_layer - 1 do
        local got = rows_of(i == 0 and t[scaled] or t[("layers.%d.add_2"):format(i - 1)])
        local worst = apart(got, want["short.hidden." .. i])
        assert.is_true(worst <= 1e-3, ("layer %d: %g off"):format(i, worst))
      end
    end)

    it("ends replies where both files of the configuration say", function()
      local ends = {
        llama = { 1001, 1003 }, qwen2_swa = { 2 }, phi3 = { 1000, 1001 }, hunyuan_v1_dense = { 502, 501 }, gemma3_softcap = { 1, 106 },
      }
      assert.same(ends[name], model.config.eos_ids)
      local prompt = golden.prompts[1]
      local ids, greedy = ints(prompt.input_ids), ints(prompt.greedy)
      local result = assert(model:generate(ids, { max_tokens = #greedy, eos = { greedy[3] }, details = true }))
      assert.equal("eos", result.stop)
    end)
  end)
end

describe("a folder without a tokenizer", function()
  it("takes ids, and says why it takes no text", function()
    local model <close> = assert(ane.load(FOLDER .. "qwen2_swa"))
    assert.is_nil(model.tokenizer)
    assert.equal(2, #model:generate({ 5, 6 }, { max_tokens = 2, ignore_eos = true }))
    local text, message, code = model:generate "Hello"
    assert.is_nil(text)
    assert.matches("^the model has no tokenizer: give token ids instead of text %(.*qwen2_swa.*%)$", message)
    assert.equal("unsupported", code)
  end)
end)

describe("a tied head with a bias of its own", function()
  local writer = require "support.safetensors_writer"
  local folder

  setup(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir '%s' && cp %sgemma3/config.json '%s'"):format(folder, FOLDER, folder)))
  end)
  teardown(function() os.execute(("rm -r '%s'"):format(folder)) end)

  it("adds it to the logits", function()
    local tensors, bias, vocab = {}, {}, json(FOLDER .. "gemma3/config.json").vocab_size
    for name, t in pairs(safetensors.all(FOLDER .. "gemma3/model.safetensors")) do
      t.name = name
      tensors[#tensors + 1] = t
    end
    table.sort(tensors, function(a, b) return a.name < b.name end)
    for i = 1, vocab do bias[i] = (i * 37 % 101 - 50) / 64 end
    tensors[#tensors + 1] = { name = "lm_head.bias", dtype = "F32", shape = { math.tointeger(vocab) }, data = writer.f32(bias) }
    writer.write(folder .. "/model.safetensors", { metadata = { format = "pt" }, tensors = tensors })
    local ids = { 7, 11, 3, 25 }
    local plain <close> = assert(ane.load(FOLDER .. "gemma3", { activations = "fp32", threads = 1 }))
    local biased <close> = assert(ane.load(folder, { activations = "fp32", threads = 1 }))
    local a, b = logits(plain, ids), logits(biased, ids)
    for i = 1, #ids do
      for k = 1, #a[i] do assert.near(a[i][k] + bias[k], b[i][k], 1e-5) end
    end
    local result = assert(biased:generate(ids, { max_tokens = 1, ignore_eos = true, details = true }))
    local best = 1
    for k = 2, #b[4] do best = b[4][k] > b[4][best] and k or best end
    assert.equal(best - 1, result.ids[1])
  end)
end)
