-- ssm_scan and delta_rule against their formulas in doubles, on small graphs.
local ops = require "support.ops"
local programs = require "support.programs"

local IDS = programs.ids(37, ops.VOCAB, 5)

local function softplus(x) return math.log(1 + math.exp(x)) end

local function matrix(n, m)
  local s = {}
  for i = 1, n do
    s[i] = {}
    for j = 1, m do s[i][j] = 0.0 end
  end
  return s
end

describe("ssm_scan", function()
  for _, groups in ipairs { 1, 2 } do
    it(("is Mamba-2, heads in %d groups"):format(groups), function()
      local heads, n, p = 4, 5, 3
      local wide = heads * p + 2 * groups * n
      local g = ops.new {
        channels = wide + heads, out = heads * p, consts = { a = { heads }, d = { heads }, bias = { heads } },
        text = ("state s: fp32[1, %d, %d, %d]\nu = slice(x) {from=0 to=%d}\ndt = slice(x) {from=%d to=%d}\n" ..
          "y = ssm_scan(u, dt, a, d, bias, s) {groups=%d low=0.4 high=1.2}"):format(heads, n, p, wide, wide, wide + heads, groups),
      }
      local states, want = {}, {}
      for h = 1, heads do states[h] = matrix(n, p) end
      for t, x in ipairs(g.x(IDS)) do
        want[t] = {}
        for h = 1, heads do
          local dt = math.min(math.max(softplus(x[wide + h] + g.c.bias[h]), 0.4), 1.2)
          local decay, at, s = math.exp(-math.exp(g.c.a[h]) * dt), heads * p + (h - 1) // (heads // groups) * n, states[h]
          for j = 1, p do
            local u, sum = x[(h - 1) * p + j], 0
            for i = 1, n do
              s[i][j] = decay * s[i][j] + dt * u * x[at + i]
              sum = sum + s[i][j] * x[at + groups * n + i]
            end
            want[t][(h - 1) * p + j] = sum + g.c.d[h] * u
          end
        end
      end
      ops.check(g, IDS, want, { limit = 1e-4 })
    end)
  end
end)

describe("delta_rule", function()
  for _, turns in ipairs { 0, 1 } do
    it("is the gated delta rule, interleaved " .. turns, function()
      local keys, heads, n, v = 2, 4, 6, 3
      local wide = 2 * keys * n + heads * v
      local g = ops.new {
        channels = wide + 2 * heads, out = heads * v, consts = { a = { heads }, bias = { heads } },
        text = ("state s: fp32[1, %d, %d, %d]\nu = slice(x) {from=0 to=%d}\nd = slice(x) {from=%d to=%d}\nb = slice(x) {from=%d to=%d}\n" ..
          "y = delta_rule(u, d, b, a, bias, s) {key_heads=%d interleaved=%d}"):format(heads, n, v, wide, wide, wide + heads, wide + heads,
          wide + 2 * heads, keys, turns),
      }
      local function normed(x, at)
        local sum, y = 1e-6, {}
        for i = 1, n do sum = sum + x[at + i] ^ 2 end
        for i = 1, n do y[i] = x[at + i] / math.sqrt(sum) end
        return y
      end
      local states, want = {}, {}
      for h = 1, heads do states[h] = matrix(n, v) end
      for t, x in ipairs(g.x(IDS)) do
        want[t] = {}
        for h = 1, heads do
          local key, s = turns == 1 and (h - 1) % keys or (h - 1) // (heads // keys), states[h]
          local q, k = normed(x, key * n), normed(x, (keys + key) * n)
          local decay = math.exp(-math.exp(g.c.a[h]) * softplus(x[wide + h] + g.c.bias[h]))
          local beta = 1 / (1 + math.exp(-x[wide + heads + h]))
          for j = 1, v do
            local seen, sum = 0, 0
            for i = 1, n do
              s[i][j] = s[i][j] * decay
              seen = seen + s[i][j] * k[i]
            end
            local e = beta * (x[2 * keys * n + (h - 1) * v + j] - seen)
            for i = 1, n do
              s[i][j] = s[i][j] + k[i] * e
              sum = sum + s[i][j] * q[i] / math.sqrt(n)
            end
            want[t][(h - 1) * v + j] = sum
          end
        end
      end
      ops.check(g, IDS, want, { limit = 1e-4 })
    end)
  end
end)
