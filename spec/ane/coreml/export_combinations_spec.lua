-- Options of export together: over the fixtures every two values of two options meet at least once, and each time the set gives
-- the source's best tokens.
local ane = require "ane"
local tiny = require "support.tiny"
local tree = require "support.tree"

local HF = "spec/fixtures/hf/"
local MODELS = {
  tiny.path "gemma3-odd", tiny.path "qwen2-odd", tiny.path "llama-kquants", HF .. "gemma3_softcap", HF .. "hunyuan_v1_dense",
  HF .. "lfm2-odd", HF .. "lfm2_moe-odd", HF .. "llama", HF .. "olmo2-odd", HF .. "privacy_filter-odd", HF .. "privacy_filter_original-odd",
  HF .. "qwen2_moe-odd", HF .. "qwen2_moe_window-odd", HF .. "qwen2_swa", HF .. "qwen3-odd", HF .. "smollm3-odd", HF .. "zaya-odd",
  HF .. "zaya_bias-odd", HF .. "zaya_original-odd", HF .. "phi3", HF .. "gemma3n-odd", HF .. "gemma4-odd",
}
local FACTORS = {
  { "weights", { "int8", "fp16", "int8-channel", "int8-block", "int4-block", "uint4-block", "lut4-g8" } },
  { "layout", { "ct1", "c1t" } },
  { "norm", { "doubled", "fp32" } }, { "rope", { "inputs", "constants" } }, { "argmax", { false, true } },
  { "calls", { "range", "fixed", "functions", "tiers" } }, { "cut", { "whole", "parts" } },
}
local IDS = { 1, 17, 300, 5, 9, 2, 44, 8, 3, 7, 11 }

-- The same pseudo-random numbers everywhere.
local seed = 12345
local function random(n)
  seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
  return (seed >> 12) % n + 1
end

local function pairs_of(case)
  local out = {}
  for i = 1, #FACTORS do
    for j = i + 1, #FACTORS do
      local a, b = FACTORS[i][1], FACTORS[j][1]
      out[#out + 1] = ("%s=%s %s=%s"):format(a, tostring(case[a]), b, tostring(case[b]))
    end
  end
  return out
end

-- Of some cases the one with the most pairs that have not met.
local function next_case(met, fits)
  local best, most
  for _ = 1, 40 do
    local case, new = {}, 0
    for _, f in ipairs(FACTORS) do case[f[1]] = f[2][random(#f[2])] end
    for _, pair in ipairs(pairs_of(case)) do new = new + (met[pair] and 0 or 1) end
    if fits(case) and (not best or new > most) then best, most = case, new end
  end
  for _, pair in ipairs(pairs_of(best)) do met[pair] = true end
  return best
end

local function options_of(case, source, classifier)
  local o = { context = 48, weights = case.weights, layout = case.layout, norm = case.norm, rope = case.rope }
  if classifier then
    o.context, o.fixed_t = nil, case.calls == "range" and { 16 } or { 8, 16 }
    o.functions = (case.calls == "functions" or case.calls == "tiers") and "many" or nil
  elseif case.calls == "fixed" then o.fixed_t = { 1 }
  elseif case.calls == "functions" then o.functions, o.fixed_t = "many", { 1, 4, 9 }
  elseif case.calls == "tiers" then o.functions, o.tiers, o.max_t = "many", { 13 }, 3 end
  if case.cut == "parts" then
    o.layers = 1
    local largest = 0
    for _, p in ipairs(assert(source:plan(o)).packages) do
      if p.kind == "layers" then largest = math.max(largest, p.bytes) end
    end
    o.size_limit, o.target, o.experts, o.chip = largest // 3, largest // 3, "halves", "M1"
  end
  o.argmax = case.argmax
  return o
end

local function best_of(model, ids)
  local s <close> = assert(model:session())
  assert(s:feed(ids, { want = "all" }))
  local out = {}
  for i = 1, #ids do out[i] = s:argmax(i) end
  return out
end

local function text_of(case)
  local parts = {}
  for _, f in ipairs(FACTORS) do parts[#parts + 1] = f[1] .. "=" .. tostring(case[f[1]]) end
  return table.concat(parts, " ")
end

describe("options of export", function()
  local met = {}
  for _, path in ipairs(MODELS) do
    it("go together: " .. path, function()
      local out = tree.folder()
      for _ = 1, 3 do
        -- longrope beyond its original context takes no constant tables: phi3 comes after all others
        local case = next_case(met, function(c) return path ~= HF .. "phi3" or c.rope == "inputs" end)
        local source <close> = assert(ane.load(path, { weights = case.weights, activations = "fp32", context = 48 }))
        local classifier, ids = source.config.kind == "token_classifier", {}
        for i, id in ipairs(IDS) do ids[i] = id % (classifier and source.config.vocab_size or source.vocab) end
        assert(source:export(out, options_of(case, source, classifier)))
        local model <close> = assert(ane.load(out, { engine = "graph" }))
        if classifier then
          assert.same(best_of(source, ids), best_of(model, ids), text_of(case))
        else
          local opts = { max_tokens = 8, ignore_eos = true, details = true }
          assert.same(assert(source:generate(ids, opts)).ids, assert(model:generate(ids, opts)).ids, text_of(case))
        end
      end
      tree.remove(out)
    end)
  end

  it("have met, each two values", function()
    local missing = {}
    for i = 1, #FACTORS do
      for j = i + 1, #FACTORS do
        for _, a in ipairs(FACTORS[i][2]) do
          for _, b in ipairs(FACTORS[j][2]) do
            local pair = ("%s=%s %s=%s"):format(FACTORS[i][1], tostring(a), FACTORS[j][1], tostring(b))
            if not met[pair] then missing[#missing + 1] = pair end
          end
        end
      end
    end
    assert.same({}, missing)
  end)
end)
