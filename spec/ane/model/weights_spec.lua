-- Weights at load by name and by pattern, for every architecture, and the report of what they cost.
local ane = require "ane"
local core = require "ane.core"
local weights = require "ane.model.weights"

local HF = "spec/fixtures/hf/"

local function folders()
  local list = {}
  for _, name in ipairs(assert(core.list_dir(HF))) do
    if core.path_kind(HF .. name .. "/config.json") == "file" then list[#list + 1] = HF .. name end
  end
  table.sort(list)
  assert(#list > 8)
  return list
end

-- Logits of the last of some tokens, the report, and the kind of the model.
local function logits(path, opts)
  local model <close> = assert(ane.load(path, opts))
  local s <close> = assert(model:session {})
  local ids = {}
  for i = 1, 12 do ids[i] = i * 7 % model.vocab end
  assert(s:feed(ids))
  return s:logits(-1), model:weights_report(), model.config.kind
end

local function has_experts(report)
  for _, row in ipairs(report) do
    if row.name:find "experts" then return true end
  end
  return false
end

describe("weights at load", function()
  it("take every form for every architecture, and stay near", function()
    local least = { int8 = 0.99, ["int8-channel"] = 0.99, ["int8-block"] = 0.99, ["int4-block"] = 0.6,
      ["uint4-block"] = 0.6, lut4 = 0.5, ["lut4-g8"] = 0.5 }
    for _, path in ipairs(folders()) do
      local file = logits(path, { activations = "fp32", context = 64 })
      for form, bound in pairs(least) do
        local exact, report, kind = logits(path, { weights = form, activations = "fp32", context = 64, threads = 2 })
        local quick = logits(path, { weights = form, activations = "int8", context = 64 })
        local moe = has_experts(report) -- another choice of experts is another model
        -- The delta rule feeds the error of keys and values back through its state.
        if path:find "qwen3_5" then bound = math.min(bound, 0.95) end
        local apart = exact:compare(file)
        local single = #file == 1 -- the cosine of one score is its sign; only the errors of the weights are compared below
        assert(apart.cosine == apart.cosine and (moe or single or apart.cosine > bound), ("%s as %s: %g"):format(path, form, apart.cosine))
        assert(quick:compare(quick).cosine == 1)
        for _, row in ipairs(report) do
          local in_blocks = form == "int8" and (kind == "embedding" or kind == "reranker")
          local fits = core.testing.weight_scheme(in_blocks and "int8-block" or form, row.rows, row.cols)
          assert.equal(fits, row.weights)
          assert(row.exact or row.snr_db > 10, row.name)
          assert(row.max_abs <= 1 and row.rms <= row.max_abs + 1e-12)
        end
      end
    end
  end)

  it("report what re-encoding left, and nothing where nothing changed", function()
    local path = HF .. "llama"
    local _, rows = logits(path, { context = 64 })
    for _, row in ipairs(rows) do assert(row.exact and row.max_abs == 0 and row.snr_db == nil) end
    _, rows = logits(path, { context = 64, mixed = { down_proj = "lut4", ["q_proj"] = "q8_0" } })
    local changed = 0
    for _, row in ipairs(rows) do
      local form = row.name:find "down_proj" and "lut4" or row.name:find "q_proj" and "q8_0"
      assert.equal(form or row.from, row.weights)
      assert.equal(not form, row.exact)
      changed = changed + (form and 1 or 0)
    end
    assert(changed > 2)
  end)

  it("take the nearest type where rows are not whole blocks, and say so", function()
    local path = HF .. "llama" -- rows of 64 and 96 columns
    for wanted, nearest in pairs { q2_k = "q4_0", q4_k = "q5_0", q5_k = "q5_1", q6_k = "q8_0", iq4_xs = "iq4_nl" } do
      local model <close> = assert(ane.load(path, { context = 64, weights = wanted }))
      local rows = model:weights_report()
      for _, row in ipairs(rows) do assert.equal(nearest, row.weights) end
      assert.same({ ("weights %s: %d of %d matrices have rows that are not whole blocks of 256 columns, and are held as %s"):format(
        wanted, #rows, #rows, nearest) }, model.warnings)
      assert.equal(0, (logits(path, { context = 64, weights = wanted }):compare(logits(path, { context = 64, weights = nearest })).max_abs))
    end
    local mixed <close> = assert(ane.load(path, { context = 64, mixed = { q_proj = "q4_k" } }))
    assert.equal(1, #mixed.warnings)
    assert.matches("^weights q4_k: 3 of %d+ matrices have rows", mixed.warnings[1])
    for _, opts in ipairs { { weights = "q8_0" }, { weights = "int4-block" }, { weights = "fp16" } } do
      local fits <close> = assert(ane.load(path, { context = 64, weights = opts.weights }))
      assert.same({}, fits.warnings)
    end
  end)

  it("say which matrices take neither a type nor its nearest", function()
    local path = "spec/fixtures/gguf/llama-odd.gguf" -- rows of 60 columns
    local odd <close> = assert(ane.load(path, { context = 64, weights = "q6_k" }))
    local count = 0
    for _, row in ipairs(odd:weights_report()) do count = count + (row.weights == row.from and 1 or 0) end
    assert(count > 0)
    local blocked <close> = assert(ane.load(path, { context = 64, weights = "int4-block" }))
    assert.same({ ("weights q6_k: %d of %d matrices have rows that are not whole blocks of 256 columns, and are held as fp32"):format(
      count, #odd:weights_report()) }, odd.warnings)
    assert.matches("weights int4%-block: %d+ of %d+ matrices have shapes that it does not fit, and are held as int8%-channel",
      blocked.warnings[1])
  end)

  it("name what is wrong", function()
    local function raised(opts) return select(2, pcall(ane.load, HF .. "llama", opts)) end
    assert.matches('option weights is "int3".*int4%-block.*lut4%-g16', (raised { weights = "int3" }:gsub("must be one of", "is")))
    assert.matches('option mixed for "down" is "q9": choose file, int8', raised { mixed = { down = "q9" } })
    assert.matches("option mixed must be {pattern = type} or a list", raised { mixed = { { "down" } } })
    local model, message, code = ane.load(HF .. "llama", { mixed = { daun = "int8" } })
    assert.same({ nil, "invalid" }, { model, code })
    assert.matches('option mixed: no weight matches "daun"', message, 1, true)
    model, message = ane.load(HF .. "llama", { mixed = { ["layers.0"] = "int8", down_proj = "lut4" } })
    assert.is_nil(model)
    assert.matches("which differ; a list of {pattern, weights} has an order", message, 1, true)
    assert(ane.load(HF .. "llama", { mixed = { { "layers.0", "int8" }, { "down_proj", "lut4" } }, context = 32 })):close()
  end)

  it("take an importance of their matrices only", function()
    local name = "model.layers.0.self_attn.q_proj.weight"
    local function refused(pattern, importance)
      local model, message, code = ane.load(HF .. "llama", { weights = "int4-block", importance = importance })
      assert.same({ nil, "invalid" }, { model, code })
      assert.matches(pattern, message, 1, true)
    end
    refused("option importance: no tensor foo", { foo = { 1 } })
    refused("option importance: " .. name .. " has 64 columns, but the option has 2 numbers", { [name] = { 1, 2 } })
    local numbers = {}
    for i = 1, 64 do numbers[i] = i == 9 and 0 / 0 or 1 end
    refused("option importance: " .. name .. ": must have a finite number of 0 or more", { [name] = numbers })
    numbers[9] = 3
    assert(ane.load(HF .. "llama", { weights = "int4-block", importance = { [name] = numbers }, context = 32 })):close()
  end)

  it("have rules in an order, tables sorted behind lists", function()
    assert.same({ { "b", "int8", true }, { "a", "lut4", true }, { "c", "fp16", false }, { "d", "q8_0", false } },
      weights.rules { { "b", "int8" }, { "a", "lut4" }, d = "q8_0", c = "fp16" })
    assert.same({}, weights.rules(nil))
  end)

  it("match patterns anywhere, * for any characters, ? for one", function()
    local name = "blk.10.ffn_down.weight"
    for _, yes in ipairs { "ffn_down", "blk.1", "blk.1*down", "b*w*t", "ffn?down", "", "*", "weight", "blk.??.", "t", "*t" } do
      assert.is_true(core.glob(yes, name), yes)
    end
    for _, no in ipairs { "ffn_up", "blk.1.", "down*ffn", "weight?", "blk%.", "weightx", "[b]", "*.*.*.*.", "?" .. name } do
      assert.is_false(core.glob(no, name), no)
    end
    assert.is_true(core.glob("a*b*c", "aXbYbZc"))
    assert.is_false(core.glob(("a*"):rep(20) .. "b", ("a"):rep(60)))
  end)
end)
