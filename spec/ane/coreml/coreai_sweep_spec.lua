-- Every architecture of models/ as a Core AI asset, in forms of weights, numbers of tokens and contexts that take turns: the logits are
-- those of the executor, by chunks and token by token, in our own runner and, with ANE_COREAI_PYTHON (a Python with Apple's
-- coreai-core), in Apple's library, which also verifies the asset and infers its types. With ANE_COREAI_SWEEP=all each architecture
-- takes all forms; with the name of a model or of a form, all forms of this model, or all models in this form. Where Apple's library
-- differs by more than the tolerance, run.py asks whether random rounding to fp16 does, too.
local coreai = require "support.coreai"
local core = require "ane.core"
local exporter = require "ane.coreml.export"

-- The language models of spec/fixtures/hf.
local MODELS = {
  "llama", "qwen2_swa", "qwen3-odd", "smollm3-odd", "phi3", "granite-odd", "cohere-odd", "cohere2-odd", "gemma3", "gemma3_softcap",
  "glm4-odd", "olmo2-odd", "olmo3-odd", "ministral3-odd", "hunyuan_v1_dense", "starcoder2-odd", "deepseek_v2-odd",
  "deepseek_v2_groups-odd", "glm4_moe_lite-odd", "glm4_moe-odd", "gpt_oss-odd", "gpt_oss_mxfp4-odd", "qwen2_moe-odd",
  "qwen2_moe_window-odd", "qwen3_moe-odd", "qwen3_moe_plain-odd", "lfm2-odd", "lfm2_moe-odd", "zaya-odd", "zaya_bias-odd",
  "mamba2-odd", "mamba2_clamp-odd", "nemotron_h-odd", "falcon_h1-odd", "granitemoehybrid-odd", "granitemoehybrid_dense-odd", "qwen3_5-odd",
  "zaya_original-odd", "gemma2-odd", "mixtral-odd", "olmoe-odd",
  "qwen3_5_narrow-odd", "gemma3n-odd", "gemma3n_second-odd", "gemma4-odd", "gemma4_moe-odd", "gemma4_ten-odd",
  "ernie4_5-odd", "ernie4_5_moe-odd", "seed_oss-odd",
}
-- Rounding to fp16 matters more here, and rounded constants alone do it: packages that run in fp32 differ as much, and so does the asset
-- in fp64 (spec/fixtures/aimodel/arithmetic.py: 0.13 of the first, 0.226 of the second in lut4-g8).
local SLACK = { ["qwen3_5-odd"] = 0.3, ["qwen3_5_narrow-odd"] = 0.2 }
-- Here the asset in fp64 differs from the executor exactly as our runner does: of the scores of a router two are within 2e-4, and the
-- fp16 constants order them otherwise than the executor's; or the tiny Qwen3.5 amplifies them. In the sparse layer of Gemma 3n a single
-- gate value of id 19 is above the cutoff, by 0.01 in fp32, and the norm behind it amplifies what rounding changes by 300.
local SLACK_IN = {
  ["deepseek_v2_groups-odd lut2-g32"] = 0.4, ["gpt_oss-odd lut2-g8"] = 0.65, ["gpt_oss_mxfp4-odd lut2-g8"] = 0.25,
  ["qwen3_5_narrow-odd lut2-g8"] = 0.3, ["gemma3n_second-odd lut6-g8"] = 0.1,
}

-- As many as the longest chunk has, so that no call is padded.
local IDS = { 7, 11, 3, 25, 30, 2, 9, 14, 33, 5, 21, 4, 19, 8, 27, 6 }

local FORMS = core.mil_schemes()
local CALLS = {
  { context = 16, fixed_t = { 4 } },
  { context = 24, tiers = { 16 }, fixed_t = { 2, 8 } },
  { context = 32 },
}

local python, sweep = os.getenv "ANE_COREAI_PYTHON", os.getenv "ANE_COREAI_SWEEP"

-- Does ANE_COREAI_SWEEP ask for this model in this form?
local function asked(model, weights)
  if not sweep or sweep == "all" then return true end
  return sweep == model or sweep == weights
end

describe("an asset of every architecture gives the executor's logits:", function()
  local dir
  before_each(function() dir = os.tmpname(); os.remove(dir) end)
  after_each(function() os.execute("rm -rf " .. dir .. " " .. dir .. ".partial " .. dir .. ".json") end)

  local function check(name, weights, calls)
    local path = "spec/fixtures/hf/" .. name
    local opts = { target = "coreai", weights = weights }
    for key, value in pairs(calls) do opts[key] = value end
    local report = assert(exporter.of_path(path, dir, opts))
    local slack = SLACK_IN[name .. " " .. weights] or SLACK[name]
    local case = coreai.case(report, IDS, coreai.rows(path, IDS, weights), slack)
    local worst = coreai.run(report.path, case)
    assert.is_true(worst <= case.tolerance.atol, ("differs by %g"):format(worst))
    if not python then return end
    assert(core.write_file(dir .. ".json", (core.json_encode(case))))
    local pipe = assert(io.popen(("%s spec/fixtures/aimodel/run.py %s %s 2>&1"):format(python, report.path, dir .. ".json")))
    local text = pipe:read "a"
    assert.is_true(pipe:close(), text)
  end

  for i, model in ipairs(MODELS) do
    for k = 1, sweep and #FORMS or 1 do
      local weights, calls = FORMS[(i + k) % #FORMS + 1], CALLS[(i + k) % #CALLS + 1]
      local tokens = table.concat(calls.fixed_t or { 8, 16 }, ", ")
      if asked(model, weights) then
        it(("%s in %s, context %d, T %s"):format(model, weights, calls.context, tokens), function() check(model, weights, calls) end)
      end
    end
  end

  it("where a router chooses otherwise in Apple's library, that alone makes the logits differ", function()
    if not python then return pending "ANE_COREAI_PYTHON is not set" end
    local path = "spec/fixtures/hf/zaya-odd"
    local report = assert(exporter.of_path(path, dir, { target = "coreai", weights = "lut4-g8", context = 16, fixed_t = { 4 } }))
    local case = coreai.case(report, IDS, coreai.rows(path, IDS, "lut4-g8"))
    assert(core.write_file(dir .. ".json", (core.json_encode(case))))
    local text = coreai.apple(python, ("steps.py %s %s"):format(report.path, dir .. ".json"))
    local calls = 0
    for far, exact, same in text:gmatch "library differs by ([%d.]+), fp64 by ([%d.]+); .- differs by ([%d.]+)" do
      calls = calls + 1
      assert.is_true(tonumber(far) > case.tolerance.atol and tonumber(exact) < 0.01 and tonumber(same) < case.tolerance.atol, text)
    end
    assert.is_true(calls > 0, text)
    assert.truthy(text:find("order %d+ differs at .- in Apple's library"), text)
  end)

  it("an explicit T is joined by 1 if states take in every token", function()
    local report = assert(exporter.of_path("spec/fixtures/hf/lfm2-odd", dir, { target = "coreai", context = 16, fixed_t = { 4, 8 } }))
    local names = {}
    for _, f in ipairs(report.functions) do names[f.name] = true end
    assert.is_true(names.extend_16_1 and names.extend_16_4 and names.prompt_opt_16_1 and names.gather_embeddings_1)
  end)
end)
