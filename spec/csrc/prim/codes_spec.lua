-- Products by quantised codes and mixtures of experts against sums in double precision, on odd sizes.
local core = require "ane.core"
local lists = require "support.numbers"
local onnx = require "support.onnx_writer"

local MS = "com.microsoft"
local numbers, near = lists.made, lists.near_within(2e-5)

local function codes(n, bits, seed)
  local list = {}
  for i = 1, n do list[i] = (i * 7919 + seed * 104729) // 7 % (1 << bits) end
  return list
end

-- Codes as bytes, the lower bits first; each run of `run` codes begins at a byte.
local function packed(list, bits, run)
  local out = {}
  for at = 1, #list, run do
    local byte, used = 0, 0
    for i = at, at + run - 1 do
      byte = byte | list[i] << used
      used = used + bits
      if used == 8 or i == at + run - 1 then
        out[#out + 1] = byte
        byte, used = 0, 0
      end
    end
  end
  return out
end

-- y [t][rows] of x [t][cols] by w(r, k)
local function product(x, t, rows, cols, w)
  local out = {}
  for i = 0, t - 1 do
    for r = 0, rows - 1 do
      local sum = 0
      for k = 0, cols - 1 do sum = sum + x[i * cols + k + 1] * w(r, k) end
      out[#out + 1] = sum
    end
  end
  return out
end

describe("MatMulNBits", function()
  for _, case in ipairs {
    { bits = 4, n = 5, k = 32, block = 16 }, { bits = 4, n = 19, k = 37, block = 16, zeros = true },
    { bits = 8, n = 17, k = 70, block = 32, zeros = true }, { bits = 8, n = 3, k = 33, block = 32 },
    { bits = 2, n = 7, k = 48, block = 16, zeros = true }, { bits = 4, n = 18, k = 45, block = 16, g_idx = true, zeros = true },
    { bits = 4, n = 33, k = 64, block = 32, bias = true },
  } do
    local bits, n, k, block = case.bits, case.n, case.k, case.block
    it(("multiplies by [%d, %d] of %d bits in blocks of %d%s%s"):format(n, k, bits, block, case.zeros and ", zero points" or "",
      case.g_idx and ", g_idx" or ""), function()
      local nb, t = (k + block - 1) // block, 3
      local q, scales = codes(n * nb * block, bits, 1), numbers(n * nb, 2)
      local zeros = case.zeros and codes(n * nb, bits, 3)
      local g_idx
      if case.g_idx then
        g_idx = {}
        for i = 0, k - 1 do g_idx[i + 1] = (i * 5) % nb end
      end
      local bias = case.bias and numbers(n, 4)
      local x = numbers(t * k, 5)
      local function w(r, c)
        local g = r * nb + (g_idx and g_idx[c + 1] or c // block)
        return scales[g + 1] * (q[r * nb * block + c + 1] - (zeros and zeros[g + 1] or 1 << (bits - 1)))
      end
      local want = product(x, t, n, k, w)
      for i = 1, bias and #want or 0 do want[i] = want[i] + bias[(i - 1) % n + 1] end
      local zero_bytes = zeros and packed(zeros, bits, nb)
      local inputs = {
        onnx.floats({ t, k }, x), onnx.bytes({ n, nb, block * bits // 8 }, packed(q, bits, block)), onnx.floats({ n * nb }, scales),
        zeros and onnx.bytes({ #zero_bytes }, zero_bytes) or false, g_idx and onnx.int32s({ k }, g_idx) or false,
        bias and onnx.floats({ n }, bias) or false,
      }
      for _, constant in ipairs { {}, { [2] = true, [3] = true, [4] = true, [5] = true, [6] = true } } do
        local got = assert(onnx.run("MatMulNBits", inputs,
          { domain = MS, attrs = { N = n, K = k, bits = bits, block_size = block }, constant = constant }))
        near(want, got)
      end
    end)
  end

  it("refuses sizes that do not fit", function()
    for message, change in pairs {
      ["bits must be 2, 4 or 8, but is 3"] = function(at) at.bits = 3 end,
      ["block_size must be a power of two of at least 16, but is 24"] = function(at) at.block_size = 24 end,
      ["codes have 32 bytes"] = function(at) at.N = 5 end,
    } do
      local attrs = { N = 4, K = 16, bits = 4, block_size = 16 }
      change(attrs)
      local out, text = onnx.run("MatMulNBits", { onnx.floats({ 1, 16 }, numbers(16, 1)), onnx.bytes({ 4, 1, 8 }, codes(32, 8, 1)),
        onnx.floats({ 4 }, numbers(4, 1)) }, { domain = MS, attrs = attrs })
      assert.is_nil(out)
      assert.truthy(text:find(message, 1, true), text)
    end
  end)
end)

describe("dequantised constants", function()
  local k, n, t = 22, 9, 4
  local x, q = numbers(t * k, 6), codes(k * n, 8, 7)
  for name, o in pairs {
    ["one scale"] = { shape = {}, count = 1, index = function() return 0 end },
    ["a scale for each column"] = { shape = { n }, count = n, attrs = { axis = 1 }, index = function(_, c) return c end },
    ["a scale for each row"] = { shape = { k }, count = k, attrs = { axis = 0 }, index = function(r) return r end },
    ["blocks along the rows"] = { shape = { 2, n }, count = 2 * n, attrs = { axis = 0, block_size = 11 },
      index = function(r, c) return r // 11 * n + c end },
    ["blocks along the columns"] = { shape = { k, 3 }, count = k * 3, attrs = { axis = 1, block_size = 3 },
      index = function(r, c) return r * 3 + c // 3 end },
  } do
    it("are multiplied as they are stored, with " .. name, function()
      local scales, zeros = numbers(o.count, 8), codes(o.count, 8, 9)
      local function w(c, r) -- column c of [k, n] is row c of the product's matrix
        local g = o.index(r, c) + 1
        return scales[g] * (q[r * n + c + 1] - zeros[g])
      end
      local want = product(x, t, n, k, w)
      local source, file <close> = onnx.open {
        inputs = { { "x", "float", { t, k } } }, outputs = { { "y", "float" } },
        constants = { { "q", onnx.bytes({ k, n }, q) }, { "s", onnx.floats(o.shape, scales) }, { "z", onnx.bytes(o.shape, zeros) } },
        nodes = { { "DequantizeLinear", { "q", "s", "z" }, { "w" }, attrs = o.attrs }, { "MatMul", { "x", "w" }, { "y" } } },
      }
      assert(source, file)
      local graph <close> = assert(require("ane.core").interp(source, { threads = 1 }))
      local out = assert(graph:run { x = onnx.floats({ t, k }, x) })
      local got = {}
      for i = 1, t * n do got[i] = ("<f"):unpack(out.y.data, 4 * i - 3) end
      near(want, got, 1e-4)
    end)
  end
end)

describe("MatMulInteger", function()
  it("holds its weights once, in 8 bits", function()
    local k, n, weights = 2048, 320, {}
    for i = 1, k * n do weights[i] = i * 7919 % 251 end
    local w = onnx.bytes({ k, n }, weights)
    local source, file <close> = assert(onnx.open { inputs = { { "x", "uint8", { 1, k } } }, outputs = { { "y", "int32" } },
      constants = { { "w", w } }, nodes = { { "MatMulInteger", { "x", "w" }, { "y" } } } })
    assert(file)
    for _, isa in ipairs { "ref", false } do
      local graph <close> = assert(core.interp(source, { threads = 2, isa = isa or nil }))
      local info = graph:info()
      assert.is_true(info.weight_bytes + info.constant_bytes < 1.05 * k * n)
      local x = {}
      for i = 1, k do x[i] = i * 31 % 256 end
      local out = assert(graph:run { x = onnx.bytes({ 1, k }, x) }).y.data
      for _, col in ipairs { 1, 16, 17, n } do
        local sum = 0
        for i = 1, k do sum = sum + x[i] * weights[(i - 1) * n + col] end
        assert.equal(sum, (string.unpack("<i4", out, 4 * col - 3)))
      end
    end
  end)
end)

describe("GatherBlockQuantized", function()
  for _, bits in ipairs { 4, 8 } do
    it(("gives rows of a table of %d bits"):format(bits), function()
      local rows, n, block = 7, 48, 16
      local q, scales, zeros = codes(rows * n, bits, 11), numbers(rows * 3, 12), codes(rows * 3, bits, 13)
      local ids = { 6, 0, 3, -1 }
      local want = {}
      for _, id in ipairs(ids) do
        local r = id < 0 and id + rows or id
        for c = 0, n - 1 do want[#want + 1] = scales[r * 3 + c // block + 1] * (q[r * n + c + 1] - zeros[r * 3 + c // block + 1]) end
      end
      local z = packed(zeros, bits, 3)
      local got = assert(onnx.run("GatherBlockQuantized", {
        onnx.bytes({ rows, n * bits // 8 }, packed(q, bits, n)), onnx.ints({ 2, 2 }, ids), onnx.floats({ rows, 3 }, scales),
        onnx.bytes({ rows, #z // rows }, z),
      }, {
        domain = MS, attrs = { bits = bits, block_size = block, gather_axis = 0, quantize_axis = 1 },
        constant = { true, false, true, true },
      }))
      assert.same({ 2, 2, n }, got.shape)
      near(want, got)
    end)
  end
end)

-- ---- Experts -------------------------------------------------------------------------------------------------------------

local function silu(x) return x / (1 + math.exp(-x)) end

local ACTS = {
  relu = function(x) return math.max(x, 0) end, silu = silu, identity = function(x) return x end,
  gelu = function(x)
    local e = math.exp(2 * 0.7978845608028654 * (x + 0.044715 * x ^ 3))
    return 0.5 * x * (1 + (e - 1) / (e + 1))
  end,
}

-- What MoE gives. fc1, fc2, fc3: functions (expert, row, column); o: tokens, hidden, inner, experts, k, act, normalise, fusion, alpha,
-- beta, limit, b1, b2 (lists or nil)
local function mixture(o, x, router, fc1, fc2, fc3)
  local out = {}
  for i = 1, o.tokens * o.hidden do out[i] = 0 end
  for t = 0, o.tokens - 1 do
    local total, order, sum = 0, {}, 0
    for e = 0, o.experts - 1 do
      total = total + math.exp(router[t * o.experts + e + 1])
      order[e + 1] = e
    end
    table.sort(order, function(a, b)
      local p, q = router[t * o.experts + a + 1], router[t * o.experts + b + 1]
      return p > q or p == q and a < b
    end)
    local function share(e) return math.exp(router[t * o.experts + e + 1]) / total end
    for i = 1, o.k do sum = sum + share(order[i]) end
    for i = 1, o.k do
      local e = order[i]
      local rows = (o.fusion and 2 or 1) * o.inner
      local function dot(fc, r)
        local s = 0
        for c = 0, o.hidden - 1 do s = s + x[t * o.hidden + c + 1] * fc(e, r, c) end
        return s
      end
      local h = {}
      for r = 0, rows - 1 do h[r] = dot(fc1, r) + (o.b1 and o.b1[e * rows + r + 1] or 0) end
      local function gated(g, l)
        g, l = math.min(g, o.limit or math.huge), math.max(math.min(l, o.limit or math.huge), -(o.limit or math.huge))
        return g / (1 + math.exp(-(o.alpha or 1) * g)) * (l + (o.beta or 0))
      end
      local mid = {}
      for r = 0, o.inner - 1 do
        if o.act == "swiglu" and o.fusion == 1 then mid[r] = gated(h[2 * r], h[2 * r + 1])
        elseif o.act == "swiglu" and o.fusion == 2 then mid[r] = gated(h[r], h[o.inner + r])
        elseif o.act == "swiglu" then mid[r] = gated(h[r], dot(fc3, r))
        else mid[r] = ACTS[o.act](h[r]) * (fc3 and dot(fc3, r) or 1) end
      end
      for d = 0, o.hidden - 1 do
        local s = o.b2 and o.b2[e * o.hidden + d + 1] or 0
        for r = 0, o.inner - 1 do s = s + mid[r] * fc2(e, d, r) end
        out[t * o.hidden + d + 1] = out[t * o.hidden + d + 1] + s * share(e) / (o.normalise and sum or 1)
      end
    end
  end
  return out
end

describe("MoE", function()
  for name, o in pairs {
    relu = { act = "relu", k = 1 }, ["gelu, two of five, normalised"] = { act = "gelu", k = 2, normalise = true },
    ["silu with biases"] = { act = "silu", k = 3, bias = true }, ["silu times a third matrix"] = { act = "silu", k = 2, third = true },
    ["identity, all experts"] = { act = "identity", k = 5, normalise = true },
    ["swiglu of rows in pairs"] = { act = "swiglu", k = 2, fusion = 1, bias = true },
    ["swiglu of rows in halves, with alpha, beta and a limit"] = { act = "swiglu", k = 2, fusion = 2, alpha = 1.5, beta = 1, limit = 0.5 },
    ["swiglu with a third matrix"] = { act = "swiglu", k = 2, third = true },
  } do
    it("computes " .. name, function()
      o.tokens, o.hidden, o.inner, o.experts = 6, 7, 5, 5
      local rows = (o.fusion and 2 or 1) * o.inner
      local x, router = numbers(o.tokens * o.hidden, 31), numbers(o.tokens * o.experts, 32)
      local w1, w2, w3 = numbers(o.experts * rows * o.hidden, 33), numbers(o.experts * o.hidden * o.inner, 34),
        numbers(o.experts * o.inner * o.hidden, 35)
      if o.bias then o.b1, o.b2 = numbers(o.experts * rows, 36), numbers(o.experts * o.hidden, 37) end
      local want = mixture(o, x, router, function(e, r, c) return w1[(e * rows + r) * o.hidden + c + 1] end,
        function(e, d, r) return w2[(e * o.hidden + d) * o.inner + r + 1] end,
        o.third and function(e, r, c) return w3[(e * o.inner + r) * o.hidden + c + 1] end)
      local inputs = {
        onnx.floats({ o.tokens, o.hidden }, x), onnx.floats({ o.tokens, o.experts }, router),
        onnx.floats({ o.experts, rows, o.hidden }, w1),
        o.bias and onnx.floats({ o.experts, rows }, o.b1) or false, onnx.floats({ o.experts, o.hidden, o.inner }, w2),
        o.bias and onnx.floats({ o.experts, o.hidden }, o.b2) or false,
      }
      if o.third then inputs[7] = onnx.floats({ o.experts, o.inner, o.hidden }, w3) end
      local attrs = {
        k = o.k, activation_type = o.act, normalize_routing_weights = o.normalise and 1 or 0, swiglu_fusion = o.fusion or 0,
        activation_alpha = o.alpha and o.alpha + 0.0, activation_beta = o.beta and o.beta + 0.0, swiglu_limit = o.limit,
      }
      for _, constant in ipairs { {}, { [3] = true, [5] = true, [7] = true } } do
        near(want, assert(onnx.run("MoE", inputs, { domain = MS, attrs = attrs, constant = constant })))
      end
    end)
  end

  it("refuses what it does not know", function()
    local x, router = onnx.floats({ 1, 4 }, numbers(4, 1)), onnx.floats({ 1, 2 }, numbers(2, 1))
    local w = onnx.floats({ 2, 4, 4 }, numbers(32, 1))
    for message, attrs in pairs {
      ["activation is \"tanh\"; known are"] = { activation_type = "tanh" }, ["k is 3 of 2 experts"] = { k = 3 },
      ["swiglu_fusion must be 0, 1 or 2, but is 3"] = { swiglu_fusion = 3 }, ["do not fit x of 4"] = { activation_type = "swiglu",
        swiglu_fusion = 1 },
    } do
      local out, text = onnx.run("MoE", { x, router, w, false, w }, { domain = MS, attrs = attrs })
      assert.is_nil(out)
      assert.truthy(text:find(message, 1, true), text)
    end
  end)
end)

describe("QMoE", function()
  for _, bits in ipairs { 4, 8 } do
    for _, block in ipairs { 0, 16 } do
      it(("computes experts of %d bits, %s"):format(bits, block == 0 and "a scale a row" or "blocks of 16"), function()
        local o = { tokens = 5, hidden = 32, inner = 16, experts = 3, k = 2, act = "swiglu", fusion = 1, normalise = true }
        local rows = 2 * o.inner
        local x, router = numbers(o.tokens * o.hidden, 41), numbers(o.tokens * o.experts, 42)
        local nb1, nb2 = block == 0 and 1 or o.hidden // block, block == 0 and 1 or o.inner // block
        local q1, q2 = codes(o.experts * rows * o.hidden, bits, 43), codes(o.experts * o.hidden * o.inner, bits, 44)
        local s1, s2 = numbers(o.experts * rows * nb1, 45), numbers(o.experts * o.hidden * nb2, 46)
        for i, v in ipairs(s1) do s1[i] = v / (1 << bits) end
        for i, v in ipairs(s2) do s2[i] = v / (1 << bits) end
        local middle = 1 << (bits - 1)
        local function fc(q, s, n, cols, nb)
          return function(e, r, c)
            local at = e * n + r
            return s[at * nb + (block == 0 and 0 or c // block) + 1] * (q[at * cols + c + 1] - middle)
          end
        end
        local want = mixture(o, x, router, fc(q1, s1, rows, o.hidden, nb1), fc(q2, s2, o.hidden, o.inner, nb2))
        local function scales(s, n, nb) return onnx.floats(block == 0 and { o.experts, n } or { o.experts, n, nb }, s) end
        local got = assert(onnx.run("QMoE", {
          onnx.floats({ o.tokens, o.hidden }, x), onnx.floats({ o.tokens, o.experts }, router),
          onnx.bytes({ o.experts, rows, o.hidden * bits // 8 }, packed(q1, bits, o.hidden)), scales(s1, rows, nb1), false,
          onnx.bytes({ o.experts, o.hidden, o.inner * bits // 8 }, packed(q2, bits, o.inner)), scales(s2, o.hidden, nb2),
        }, {
          domain = MS, constant = { [3] = true, [4] = true, [6] = true, [7] = true },
          attrs = {
            k = o.k, activation_type = "swiglu", swiglu_fusion = 1, normalize_routing_weights = 1, expert_weight_bits = bits,
            block_size = block > 0 and block or nil,
          },
        }))
        near(want, got, 1e-4)
      end)
    end
  end
end)
