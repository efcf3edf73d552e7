-- Gradients of single operations against differences of the operations, computed here in doubles.
local core = require "ane.core"

local function random(seed)
  local state = seed
  return function()
    state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
    return ((state >> 33) % 2000 - 1000) / 500
  end
end

local function matrix(rows, cols, draw)
  local list = {}
  for i = 1, rows * cols do list[i] = draw() end
  return list
end

local function tensor(list, rows, cols) return core.tensor(rows and { rows, cols } or { #list }, list) end

-- The gradients of sum(dy * f(x)) with respect to each list of `inputs`, by central differences; of every `step`-th number.
local function differences(f, inputs, dy, step)
  local h, out = 1e-5, {}
  local function value()
    local sum = 0.0
    for i, v in ipairs(f(table.unpack(inputs))) do sum = sum + v * dy[i] end
    return sum
  end
  for k, list in ipairs(inputs) do
    out[k] = {}
    for i = 1, #list, step or 1 do
      local old = list[i]
      list[i] = old + h
      local up = value()
      list[i] = old - h
      out[k][i] = (up - value()) / (2 * h)
      list[i] = old
    end
  end
  return out
end

local function near(want, got)
  got = got:tostring()
  for i, w in pairs(want) do
    local g = ("<f"):unpack(got, 4 * i - 3)
    assert.is_true(math.abs(w - g) < 2e-4 * (1 + math.abs(w)), ("%d: wanted %g, got %g"):format(i, w, g))
  end
end

describe("gradients", function()
  local TOKENS = 5
  local own = assert(core.gradients(2))
  teardown(function() own:close() end)

  it("of RMSNorm and LayerNorm, by groups, with an offset", function()
    for _, case in ipairs { { 12, 1, false, 0 }, { 12, 3, false, 1 }, { 12, 1, true, 0 } } do
      local cols, groups, centred, offset = table.unpack(case)
      local draw, width, eps = random(cols + groups), cols // groups, 1e-3
      local x, w, dy = matrix(TOKENS, cols, draw), matrix(1, width, draw), matrix(TOKENS, cols, draw)
      local want = differences(function(a, b)
        local y = {}
        for from = 0, #a - 1, width do
          local mean, squares = 0.0, 0.0
          for c = 1, centred and width or 0 do mean = mean + a[from + c] / width end
          for c = 1, width do squares = squares + (a[from + c] - mean) ^ 2 / width end
          for c = 1, width do y[from + c] = (a[from + c] - mean) / math.sqrt(squares + eps) * (b[c] + offset) end
        end
        return y
      end, { x, w }, dy)
      local opts = { groups = groups, eps = eps, centred = centred, offset = offset }
      local dx, dw = own:norm(opts, tensor(x, TOKENS, cols), tensor(w), tensor(dy, TOKENS, cols))
      near(want[1], dx)
      near(want[2], dw)
    end
  end)

  -- Attention of a case: tokens, heads, kv_heads, dim, scale, window, softcap; sink: a number for each head, or nil.
  local function attention_of(case, sink)
    local heads, kv_heads, dim, window, cap = case.heads, case.kv_heads, case.dim, case.window, case.softcap
    return function(q, k, v)
      local y = {}
      for t = 0, case.tokens - 1 do
        for h = 0, heads - 1 do
          local kv, p, sum = h // (heads // kv_heads), {}, sink and math.exp(sink[h + 1]) or 0.0
          for j = window > 0 and math.max(0, t - window + 1) or 0, t do
            local s = 0.0
            for d = 1, dim do s = s + q[(t * heads + h) * dim + d] * k[(j * kv_heads + kv) * dim + d] end
            s = s * case.scale
            if cap > 0 then
              local e = math.exp(2 * s / cap)
              s = cap * (e - 1) / (e + 1)
            end
            p[j] = math.exp(s)
            sum = sum + p[j]
          end
          for d = 1, dim do
            local o = 0.0
            for j, e in pairs(p) do o = o + e / sum * v[(j * kv_heads + kv) * dim + d] end
            y[(t * heads + h) * dim + d] = o
          end
        end
      end
      return y
    end
  end

  local function check_attention(case, step)
    local n, wide, narrow, draw = case.tokens, case.heads * case.dim, case.kv_heads * case.dim, random(7 + case.window)
    local q, k, v, dy = matrix(n, wide, draw), matrix(n, narrow, draw), matrix(n, narrow, draw), matrix(n, wide, draw)
    local sink = case.has_sinks and matrix(1, case.heads, draw)
    local want = differences(attention_of(case, sink), { q, k, v }, dy, step)
    local got = { own:attention(case, tensor(q, n, wide), tensor(k, n, narrow), tensor(v, n, narrow), tensor(dy, n, wide),
      sink and tensor(sink) or nil) }
    for i = 1, 3 do near(want[i], got[i]) end
  end

  it("of causal attention, with a window, a soft cap, sinks and shared keys", function()
    for _, case in ipairs { { 0, 0, false }, { 3, 0, false }, { 0, 2, false }, { 2, 1.5, true } } do
      check_attention {
        tokens = TOKENS, heads = 4, kv_heads = 2, dim = 3, scale = 0.6, window = case[1], softcap = case[2], has_sinks = case[3],
      }
    end
  end)

  -- Kernels take 32 queries, keys and channels at a time.
  it("of attention of more tokens and channels than are taken at a time", function()
    for _, case in ipairs { { 70, 34, 0 }, { 70, 33, 36 }, { 64, 32, 32 }, { 97, 5, 3 }, { 33, 65, 1 } } do
      local tokens, dim, window = table.unpack(case)
      check_attention({ tokens = tokens, heads = 2, kv_heads = 1, dim = dim, scale = 0.2, window = window, softcap = 0 }, 211)
    end
  end)

  it("of rope, which rotate back", function()
    local heads, dim, r, draw = 2, 6, 4, random(5)
    local table_, dy = matrix(TOKENS, r, draw), matrix(TOKENS, heads * dim, draw)
    for _, interleaved in ipairs { false, true } do
      local x = matrix(TOKENS, heads * dim, draw)
      local want = differences(function(a)
        local y = table.move(a, 1, #a, 1, {})
        for t = 0, TOKENS - 1 do
          for h = 0, heads - 1 do
            for i = 0, r // 2 - 1 do
              local one = (t * heads + h) * dim + (interleaved and 2 * i or i) + 1
              local two = one + (interleaved and 1 or r // 2)
              local c, s = table_[t * r + i + 1], table_[t * r + r // 2 + i + 1]
              y[one], y[two] = a[one] * c - a[two] * s, a[two] * c + a[one] * s
            end
          end
        end
        return y
      end, { x }, dy)
      near(want[1], own:rope(tensor(table_, TOKENS, r), heads, interleaved, tensor(dy, TOKENS, heads * dim)))
    end
  end)

  -- The Maclaurin series.
  local function erf(v)
    local term, sum = v, v
    for k = 1, 60 do
      term = -term * v * v / k
      sum = sum + term / (2 * k + 1)
    end
    return 2 / math.sqrt(math.pi) * sum
  end

  it("of activations, alone and as gates", function()
    local draw = random(11)
    local x, u, dy = matrix(TOKENS, 8, draw), matrix(TOKENS, 8, draw), matrix(TOKENS, 8, draw)
    local function tanh(v) return 1 - 2 / (math.exp(2 * v) + 1) end
    local acts = {
      silu = function(v) return v / (1 + math.exp(-v)) end, sigmoid = function(v) return 1 / (1 + math.exp(-v)) end,
      relu = function(v) return math.max(v, 0) end,
      gelu_tanh = function(v) return 0.5 * v * (1 + tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ^ 3))) end,
      gelu_erf = function(v) return 0.5 * v * (1 + erf(v / math.sqrt(2))) end,
    }
    for name, act in pairs(acts) do
      local want = differences(function(a, b)
        local y = {}
        for i, v in ipairs(a) do y[i] = act(v) * b[i] end
        return y
      end, { x, u }, dy)
      local dx, du = own:glu(name, tensor(x, TOKENS, 8), tensor(u, TOKENS, 8), tensor(dy, TOKENS, 8))
      near(want[1], dx)
      near(want[2], du)
      want = differences(function(a)
        local y = {}
        for i, v in ipairs(a) do y[i] = act(v) end
        return y
      end, { x }, dy)
      near(want[1], own:glu(name, tensor(x, TOKENS, 8), nil, tensor(dy, TOKENS, 8)))
    end
  end)

  it("of activations far from zero and of NaN", function()
    local far, ones = { -3e38, -1000, -90, -20, 20, 90, 1000, 3e38 }, {}
    for i = 1, #far do ones[i] = 1 end
    for name, slope in pairs {
      silu = function(v) return v > 0 and 1 or v > -50 and (1 + v) * math.exp(v) or 0 end,
      sigmoid = function(v) return math.abs(v) < 50 and math.exp(-math.abs(v)) or 0 end,
      gelu_tanh = function(v) return v > 0 and 1 or 0 end, gelu_erf = function(v) return v > 0 and 1 or 0 end,
    } do
      local want = {}
      for i, v in ipairs(far) do want[i] = slope(v) end
      near(want, (own:glu(name, tensor(far, 1, #far), nil, tensor(ones, 1, #far))))
      local none = own:glu(name, tensor({ 0 / 0 }, 1, 1), nil, tensor({ 1 }, 1, 1)):totable()[1]
      assert.is_true(none ~= none, name)
    end
  end)

  -- The bits were computed in Python, with the polynomials of kernels/mathfn.h in doubles. glibc's erf gives others.
  it("of gelu by erf have the same bits with every C library", function()
    local x = { -3.41445255279541, -0.6231439709663391, 0.45163458585739136 }
    local ones = tensor({ 1, 1, 1 }, 1, 3)
    local slopes, values = own:glu("gelu_erf", tensor(x, 1, 3), ones, ones)
    assert.same({ -0.003685637842863798, 0.061866432428359985, 0.8369404077529907 }, slopes:reshape({ 3 }):totable())
    assert.same({ -0.0010910923592746258, -0.1661270409822464, 0.3045073449611664 }, values:reshape({ 3 }):totable())
  end)

  it("refuse other shapes, and say when they are closed", function()
    local x = core.tensor { 2, 4 }
    assert.error_matches(function() own:norm({ groups = 3 }, x, nil, x) end, "another size")
    assert.error_matches(function() own:norm({}, x, nil, core.tensor { 3, 4 }) end, "another shape")
    assert.error_matches(function() own:glu("swish", x, nil, x) end, "an activation without a gradient")
    local other = assert(core.gradients(1))
    other:close()
    other:close()
    assert.error_matches(function() other:glu("silu", x, nil, x) end, "gradients are closed")
  end)
end)
