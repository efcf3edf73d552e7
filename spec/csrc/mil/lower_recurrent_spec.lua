-- Mamba-2 and the delta rule, lowered to chunks of tokens and run, against the executor, which takes token after token.
local lowered = require "support.lowered"
local ops = require "support.ops"
local programs = require "support.programs"

local IDS = programs.ids(40, ops.VOCAB, 3)

-- T known and not, chunks shorter and longer than the solver's, both layouts, both norms. The state is fp16 between calls.
local VARIANTS = {
  { steps = { 1, 4, 3, 4, 4, 1, 4, 4, 4, 4, 4, 3 } },
  { steps = { 5, 5, 5, 5, 5, 5, 5, 5 }, layout = "c1t", norm = "fp32", max_t = 5 },
  { steps = { 40 }, fixed_t = 40 },
}

local function scan(o)
  local wide, shape = o.heads * o.p + 2 * o.groups * o.n, o.shape or { o.heads }
  return {
    channels = wide + o.heads, out = o.heads * o.p, consts = { a = shape, d = shape, bias = shape },
    text = ("state s: fp32[1, %d, %d, %d]\nu = slice(x) {from=0 to=%d}\ndt = slice(x) {from=%d to=%d}\n" ..
      "y = ssm_scan(u, dt, a, d, bias, s) {groups=%d %s}"):format(o.heads, o.n, o.p, wide, wide, wide + o.heads, o.groups, o.attrs or ""),
  }
end

local function delta(o)
  local wide = 2 * o.keys * o.n + o.heads * o.v
  return {
    channels = wide + 2 * o.heads, out = o.heads * o.v, consts = { a = { o.heads }, bias = { o.heads } },
    text = ("state s: fp32[1, %d, %d, %d]\nu = slice(x) {from=0 to=%d}\nd = slice(x) {from=%d to=%d}\nb = slice(x) {from=%d to=%d}\n" ..
      "y = delta_rule(u, d, b, a, bias, s) {key_heads=%d %s}"):format(o.heads, o.n, o.v, wide, wide, wide + o.heads, wide + o.heads,
      wide + 2 * o.heads, o.keys, o.attrs or ""),
  }
end

local function run(o, variant) return lowered.rows(ops.graph(o), o.out, IDS, variant, 64) end

local function check(o)
  o = ops.new(o)
  local want = ops.run(o, IDS, { kv = "fp32" })
  for i, variant in ipairs(VARIANTS) do
    local slack = variant.fixed_t and 2e-5 or 4e-3 -- in one call the state is not rounded
    local why = ops.apart(run(o, variant), want, slack)
    if why then error(("%s\nvariant %d: %s"):format(o.text, i, why), 2) end
  end
end

describe("recurrent blocks, lowered,", function()
  it("scan as Mamba-2 does", function()
    check(scan { heads = 4, n = 5, p = 3, groups = 1, attrs = "low=0.4 high=1.2" })
    check(scan { heads = 4, n = 5, p = 3, groups = 2, attrs = "low=0.3" })
    check(scan { heads = 4, n = 6, p = 4, groups = 4 })
    check(scan { heads = 3, n = 6, p = 4, groups = 1, attrs = "log=0" })
    check(scan { heads = 3, n = 6, p = 4, groups = 1, shape = { 3, 1 } })
    check(scan { heads = 3, n = 6, p = 4, groups = 1, shape = { 1, 1, 3 } })
  end)

  it("follow the delta rule", function()
    check(delta { heads = 4, keys = 2, n = 6, v = 3 })
    check(delta { heads = 4, keys = 2, n = 6, v = 5, attrs = "interleaved=1" })
    check(delta { heads = 3, keys = 3, n = 8, v = 3 })
    check(delta { heads = 3, keys = 1, n = 4, v = 3 })
  end)

  -- Keys that hardly differ and decays near 1 make the powers of the matrix large.
  it("solve the delta rule of equal keys in fp16", function()
    local o = delta { heads = 2, keys = 1, n = 4, v = 3 }
    local table_, random = {}, ops.random(ops.VOCAB * o.channels, 7, 1)
    for i = 1, #random do
      local channel = (i - 1) % o.channels
      table_[i] = channel < 8 and 1 + 0.02 * random[i] or channel >= o.channels - 4 and channel < o.channels - 2 and -6.0 or random[i]
    end
    o.given = { table = table_ }
    o = ops.new(o)
    local want = ops.run(o, IDS, { kv = "fp32" })
    for _, t in ipairs { 40, 8, 1 } do
      local steps = {}
      for i = 1, #IDS // t do steps[i] = t end
      local rows = run(o, { steps = steps, fixed_t = t, fp32 = false, weights = "fp16", precision = "fp16", norm = "fp32" })
      assert.is_nil(ops.apart(rows, want, 0.05), "T " .. t)
    end
  end)

  it("need a fixed number of tokens for long chunks of the delta rule", function()
    local o = ops.new(delta { heads = 2, keys = 2, n = 4, v = 3 })
    assert.error_matches(function() lowered.wrap(ops.graph(o), { context = 64, max_t = 16 }) end,
      "y: the delta rule needs a fixed number of tokens, or at most 8")
  end)
end)
