-- Lowered graphs, run op by op, against the fast blocks that compute the same graph: every fixture, both layouts, both
-- norms, rope tables that come in and that lie in the package, calls of one and of several tokens that carry their state on.
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
local function fast(name, ids)
  local p <close> = programs.open(path_of(name), { context = 64 })
  local s <close> = assert(p:session { context = 64, kv = both_sides(name) and "fp32" or "fp16" })
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

-- The logits of calls with steps[1], steps[2], ... tokens.
local function feed(p, ids, steps)
  local rows, at = {}, 0
  for _, n in ipairs(steps) do
    for _, row in ipairs(p:feed(programs.slice(ids, at + 1, at + n))) do rows[#rows + 1] = row end
    at = at + n
  end
  return rows
end

local IDS = programs.ids(9, 40, 7)

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
        local least, wrong = compare(feed(p, IDS, steps), want)
        assert.is_true(least > 0.999995 and wrong == 0, ("%s: cosine %.8f, %d other tokens"):format(variant.name, least, wrong))
        p:reset()
        local again = compare(feed(p, IDS, steps), want)
        assert.equal(least, again, "after a reset")
      end
    end)
  end

  it("exist for every op that recipes use", function()
    local code = {}
    for _, path in ipairs(tree.files("csrc/mil", "c")) do code[#code + 1] = tree.read(path) end
    code = table.concat(code, "\n")
    for op in tree.read("csrc/graph/op.def"):gmatch "ANE_OP%([%w_]+, ([%w_]+), BLOCK" do
      assert.is_truthy(code:find("\nvoid lower_" .. op .. "(", 1, true), op)
    end
  end)
end)
