-- Every fixture model against what transformers computes from the same weights in float32, on every kernel level.
local core = require "ane.core"
local programs = require "support.programs"
local safetensors = require "support.safetensors"

local function json(path) return assert(core.json_decode(assert(core.read_file(path)))) end

local function ints(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = math.tointeger(v) end
  return out
end

-- Largest |got - want| / (1 + |want|), and the cosine of the two.
local function compare(got, want)
  assert.equal(#want, #got)
  local worst, dot, a, b = 0, 0, 0, 0
  local step, format = 4 * 64, "<" .. ("f"):rep(64)
  for at = 1, #want - #want % step, step do
    local x, y = { string.unpack(format, got, at) }, { string.unpack(format, want, at) }
    for i = 1, 64 do
      worst = math.max(worst, math.abs(x[i] - y[i]) / (1 + math.abs(y[i])))
      dot, a, b = dot + x[i] * y[i], a + x[i] * x[i], b + y[i] * y[i]
    end
  end
  for at = #want - #want % step + 1, #want, 4 do
    local x, y = string.unpack("<f", got, at), string.unpack("<f", want, at)
    worst = math.max(worst, math.abs(x - y) / (1 + math.abs(y)))
    dot, a, b = dot + x * y, a + x * x, b + y * y
  end
  return worst, dot / math.sqrt(a * b)
end

local models = {
  "llama-mixed", "llama-kquants", "llama-q8_0", "qwen2-q4_0", "qwen2-bf16", "gemma3-q8_0", "llama-odd", "qwen2-odd", "gemma3-odd",
}

describe("golden logits", function()
  for _, model in ipairs(models) do
    local golden = json(programs.folder .. model .. ".golden.json")
    local logits = safetensors.open(programs.folder .. model .. ".golden.safetensors")

    it(model .. ": fp32 activations are exact, and greedy tokens the same", function()
      for _, isa in ipairs(core.isa_list()) do
        local p <close> = programs.open(model, { isa = isa })
        for _, prompt in ipairs(golden.prompts) do
          local s <close> = assert(p:session { context = 512, kv = "fp32" })
          local ids = ints(prompt.input_ids)
          local worst = compare(programs.feed(s, ids), logits[prompt.name .. ".logits"].data)
          assert.is_true(worst <= 2e-3, ("%s %s: %g off"):format(isa, prompt.name, worst))
          assert(s:rewind(0))
          assert.same(ints(prompt.greedy), programs.greedy(s, ids, #prompt.greedy), isa)
        end
      end
    end)

    it(model .. ": int8 activations point the same way", function()
      for _, isa in ipairs(core.isa_list()) do
        local p <close> = programs.open(model, { isa = isa, int8 = true })
        for _, prompt in ipairs(golden.prompts) do
          local s <close> = assert(p:session { context = 512, kv = "fp16" })
          local _, cosine = compare(programs.feed(s, ints(prompt.input_ids)), logits[prompt.name .. ".logits"].data)
          assert.is_true(cosine > 0.998, ("%s %s: cosine %g"):format(isa, prompt.name, cosine))
        end
      end
    end)
  end
end)

-- The real model is no part of the tree: its file is looked for where models are kept.
describe("SmolLM2-135M-Instruct", function()
  local golden = json "spec/fixtures/real/smollm2-135m-instruct-q4_1.json"

  local function find()
    for _, folder in ipairs { os.getenv "ANE_MODEL_CACHE" or false, "models-cache" } do
      local path = folder and folder .. "/" .. golden.model
      if path and core.path_kind(path) == "file" then return path end
    end
  end

  local path = find()
  local function real(name, fn)
    if path then it(name, fn)
    else pending(name .. ": " .. golden.model .. " is neither in $ANE_MODEL_CACHE nor in models-cache") end
  end

  real("gives the golden greedy tokens and best logits in fp32", function()
    local p <close> = programs.open(path, { threads = 2, context = 256, chunk = 256 })
    for _, case in ipairs(golden.cases) do
      local s <close> = assert(p:session { context = 256, kv = "fp32" })
      local greedy = ints(case.greedy)
      assert.same(greedy, programs.greedy(s, ints(case.ids), #greedy))
      assert(s:rewind(0))
      assert(s:feed(ints(case.ids), "last"))
      local best = s:logits()
      for _, pair in ipairs(case.best) do
        local got = best:get(pair[1] + 1)
        assert.is_true(math.abs(got - pair[2]) <= 0.02, ("id %d is %g, expected %g"):format(pair[1], got, pair[2]))
      end
    end
  end)

  real("gives the best token of fp32 with int8 activations, wherever that is clear", function()
    local p <close> = programs.open(path, { threads = 2, int8 = true, context = 256, chunk = 256 })
    for _, case in ipairs(golden.cases) do
      local s <close> = assert(p:session { context = 256, kv = "fp16" })
      local fed = ints(case.ids)
      table.move(ints(case.greedy), 1, #case.greedy - 1, #fed + 1, fed)
      assert(s:feed(fed, "argmax"))
      local checked = 0
      for i, gap in ipairs(case.gaps) do
        if gap > 0.45 then
          assert.equal(math.tointeger(case.greedy[i]), (s:argmax(#case.ids - 1 + i)))
          checked = checked + 1
        end
      end
      assert.is_true(checked > 0)
    end
  end)
end)
