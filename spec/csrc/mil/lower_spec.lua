-- Lowered graphs, run op by op, against the fast blocks that compute the same graph: every fixture, both layouts, both
-- norms, rope tables that come in and that lie in the package, calls of one and of several tokens that carry their state on.
local core = require "ane.core"
local hf = require "support.hf"
local lowered = require "support.lowered"
local programs = require "support.programs"
local tree = require "support.tree"

local MODELS = {
  "hf/gemma3_softcap", "hf/hunyuan_v1_dense", "hf/lfm2-odd", "hf/lfm2_moe-odd", "hf/llama", "hf/phi3", "hf/privacy_filter",
  "hf/privacy_filter-odd", "hf/privacy_filter_original-odd", "hf/qwen2_moe-odd", "hf/qwen2_moe_window-odd", "hf/qwen2_swa",
  "hf/zaya-odd", "hf/zaya_original-odd",
  "gguf/gemma3-odd.gguf", "gguf/llama-mixed.gguf", "gguf/llama-odd.gguf", "gguf/qwen2-odd.gguf", "gguf/qwen2-q4_0.gguf",
}

local function path_of(name) return "spec/fixtures/" .. name end

-- Index of the largest of a string of floats, the first one.
local function best(row)
  local at, most = 0, -math.huge
  for i = 0, #row // 4 - 1 do
    local v = string.unpack("<f", row, 4 * i + 1)
    if v > most then at, most = i, v end
  end
  return at
end

-- A model that sees both sides takes a text at once, of a fixed length.
local function both_sides(name) return name:find "privacy" ~= nil end

-- Logits of every position by the fast blocks.
local function fast(name, ids, weights)
  local p <close> = programs.open(path_of(name), { context = 64, weights = weights })
  local s <close> = assert(p:session { context = 64, kv = "fp32" })
  assert(s:feed(ids, "all"))
  local rows = {}
  for i = 1, #ids do rows[i] = s:logits(i):tostring() end
  return rows
end

-- Smallest cosine of a position, and how many have another best token.
local function compare(rows, want)
  local least, wrong = 1, 0
  for i, row in ipairs(want) do
    assert.equal(#row, #rows[i])
    local c = hf.cosine(rows[i], row)
    least = c >= least and least or c -- NaN counts as the smallest
    if best(rows[i]) ~= best(row) then wrong = wrong + 1 end
  end
  return least, wrong
end

local IDS = programs.ids(9, 40, 7)

-- Each logit of IDS fed in `steps` is near that of rows; how many there are.
local function near_golden(name, p, steps, rows)
  local seen = 0
  for t, row in ipairs(p:feed_in(IDS, steps)) do
    local list = { string.unpack("<" .. ("f"):rep(#rows[t]), row) }
    for i, want in ipairs(rows[t]) do
      local near = math.abs(list[i] - want) <= 2e-5 * (1 + math.abs(want))
      assert.is_true(near, ("%s, %d, %d: %g, wanted %g"):format(name, t, i, list[i], want))
      seen = seen + 1
    end
  end
  return seen
end

local VARIANTS = {
  { name = "[1, C, T, 1], layer norm of [x, -x], rope tables as inputs", steps = { 1, 4, 3, 1 } },
  { name = "[1, C, 1, T], norm in fp32", layout = "c1t", norm = "fp32", steps = { 4, 1, 2, 2 } },
  { name = "rope tables in the package", rope = "constants", layout = "c1t", steps = { 2, 1, 6 } },
  { name = "three tokens a call", fixed_t = 3, steps = { 3, 3, 3 } },
  { name = "one token a call", fixed_t = 1, rope = "constants", norm = "fp32", steps = { 1, 1, 1, 1, 1, 1, 1, 1, 1 } },
}

local function options(name, variant)
  local o, steps = {}, variant.steps
  for key, value in pairs(variant) do o[key] = value end
  o.name, o.steps = nil, nil
  if both_sides(name) then o.fixed_t, o.context, steps = #IDS, #IDS, { #IDS } end
  return o, steps
end

describe("lowered graphs", function()
  for _, name in ipairs(MODELS) do
    it("compute what the fast blocks do: " .. name, function()
      local want = fast(name, IDS)
      for _, variant in ipairs(VARIANTS) do
        local o, steps = options(name, variant)
        local p <close> = lowered.open(path_of(name), o)
        local least, wrong = compare(p:feed_in(IDS, steps), want)
        assert.is_true(least > 1 - 1e-8 and wrong == 0, ("%s: cosine %.10f, %d other tokens"):format(variant.name, least, wrong))
        p:reset()
        local again = compare(p:feed_in(IDS, steps), want)
        assert.equal(least, again, "after a reset")
      end
    end)
  end

  -- What the host does where the embedding is not in the package: the rows of the table.
  local function embedding(name)
    local p = programs.open(path_of(name), { context = 64, pipeline = "cpu-plain" })
    local s = assert(p:session { context = 64, kv = "fp32" })
    return function(ids)
      assert(s:rewind(0))
      return assert(s:trace(ids, { "token_embd" })).token_embd
    end
  end

  local CUTS = {
    { name = "a layer a package, half of the head", target = 1, size_limit = 10 ^ 12 // 1 | 0, slices = 2, steps = { 1, 4, 3, 1 } },
    { name = "an expert a package", target = 1, size_limit = 1, slices = 3, layout = "c1t", steps = { 4, 5 } },
    { name = "half of the experts a package", target = 1, size_limit = 1, expert_parts = 2, slices = 1, rope = "constants",
      steps = { 2, 1, 6 } },
  }

  for _, name in ipairs { "hf/lfm2_moe-odd", "hf/privacy_filter-odd", "hf/zaya-odd", "gguf/gemma3-odd.gguf" } do
    it("pass on what crosses the edges of packages: " .. name, function()
      local want, embed, made = fast(name, IDS), embedding(name), {}
      for _, cut in ipairs(CUTS) do
        local o, steps = options(name, cut)
        o.whole, o.host_embed = false, embed
        local p <close> = lowered.open(path_of(name), o)
        local least, wrong = compare(p:feed_in(IDS, steps), want)
        assert.is_true(least > 1 - 1e-8 and wrong == 0, ("%s: cosine %.10f, %d other tokens"):format(cut.name, least, wrong))
        made[#made + 1] = #p.shards
      end
      assert.is_true(made[1] > 2)
      if name:find "hf/" then assert.is_true(made[2] > made[1] and made[3] > made[1] and made[3] < made[2]) end
    end)
  end

  for _, name in ipairs { "hf/lfm2_moe-odd", "hf/privacy_filter", "hf/zaya-odd", "hf/llama", "gguf/llama-mixed.gguf" } do
    it("hold the numbers that models loaded with weights of the same form hold: " .. name, function()
      for _, form in ipairs { "int8", "int8-channel", "int8-block", "int4-block", "uint4-block", "lut4", "lut4-g8" } do
        local o, steps = options(name, { weights = form, steps = { 4, 1, 4 } })
        local p <close> = lowered.open(path_of(name), o)
        local least = compare(p:feed_in(IDS, steps), fast(name, IDS, form))
        assert.is_true(least > 1 - 1e-8, ("%s: cosine %.10f"):format(form, least))
      end
    end)
  end

  it("stay near in fp16, as the engine computes", function()
    for _, name in ipairs(MODELS) do
      local want = fast(name, IDS)
      for _, norm in ipairs { "doubled", "fp32" } do
        local o, steps = options(name, { fp32 = false, weights = "fp16", precision = "fp16", norm = norm, steps = { 1, 4, 3, 1 } })
        local p <close> = lowered.open(path_of(name), o)
        local least = compare(p:feed_in(IDS, steps), want)
        assert.is_true(least > 0.9995, ("%s, %s: cosine %.7f"):format(name, norm, least))
      end
    end
  end)

  -- spec/golden/lowered_values.py made them, with no code of ours but the packages.
  it("give what an independent interpreter gives for the same packages", function()
    local golden = assert(core.json_decode(assert(core.read_file "spec/fixtures/lowered/logits.json")))
    local seen = 0
    for name, rows in pairs(golden) do
      local o, steps = options("hf/" .. name, { steps = { 4, 3, 2 }, layout = "c1t" })
      local p <close> = lowered.open(path_of("hf/" .. name), o)
      seen = seen + near_golden(name, p, steps, rows)
    end
    assert.is_true(seen > 1000)
  end)

  it("give the same numbers as functions of one package, each call another one", function()
    local golden = assert(core.json_decode(assert(core.read_file "spec/fixtures/lowered/logits.json")))
    local several = {
      { fixed_t = 1, context = 32 }, { fixed_t = 4, context = 5 }, { fixed_t = 3, context = 8 }, { max_t = 2, context = 9 },
    }
    local whole_texts = { { fixed_t = 16, context = 16 }, { fixed_t = 9, context = 9 } }
    local seen = 0
    for name, rows in pairs(golden) do
      local case = { steps = { 4, 3, 2 }, functions = several }
      if both_sides(name) then case = { steps = { 9 }, fixed_t = 9, functions = whole_texts } end
      local o, steps = options("hf/" .. name, case)
      for _, layout in ipairs { "ct1", "c1t" } do
        o.layout, o.whole, o.layers = layout, layout == "ct1", 1
        local p <close> = lowered.open(path_of("hf/" .. name), o)
        seen = seen + near_golden(name, p, steps, rows)
      end
    end
    assert.is_true(seen > 2000)
  end)

  it("give the best row and its logit, or the last column only", function()
    local name = "hf/llama"
    local want = fast(name, IDS)
    local p <close> = lowered.open(path_of(name), { argmax = true, max_t = 9 })
    local out = p:run(IDS)
    assert.equal("argmax", out[1].role)
    assert.equal("max", out[2].role)
    for t, row in ipairs(want) do
      assert.equal(best(row), out[1].value[t])
      assert.near(string.unpack("<f", row, 4 * best(row) + 1), out[2].value:get(1, t), 1e-3)
    end
    local last <close> = lowered.open(path_of(name), { gather = "last", max_t = 9 })
    local value = last:run(IDS)[1].value
    assert.same({ 1, #want[1] // 4, 1, 1 }, value:shape())
    assert.is_true(hf.cosine(value:tostring(), want[#IDS]) > 1 - 1e-8)
  end)

  it("exist for every op, or its row in op.def says why not", function()
    local code = {}
    for _, path in ipairs(tree.files("csrc/mil", "c")) do code[#code + 1] = tree.read(path) end
    code = table.concat(code, "\n")
    local comment, rows = "", 0
    for line in tree.read("csrc/graph/op.def"):gmatch "[^\n]+" do
      local kind, lowering = line:match "^ANE_OP%([%w_]+, [%w_]+, (%u+), %-?%d+, %-?%d+, %-?%d+, %u+, [%w_]+, [%w_]+, ([%w_]+),"
      if kind then
        rows = rows + 1
        if lowering == "none" then
          assert.is_truthy(comment:find "No lowering: %l", line)
        else
          assert.equal("BLOCK", kind, line)
          assert.is_truthy(code:find("\nvoid lower_" .. lowering .. "(", 1, true), line)
        end
        comment = ""
      end
      if line:match "^/%*" then comment = "" end
      comment = comment .. line
    end
    assert.is_true(rows > 20)
  end)
end)
