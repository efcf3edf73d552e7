-- Products, convolutions and attention against sums in double precision, through ONNX nodes. Weights are given as inputs and as
-- constants, which are packed.
local lists = require "support.numbers"
local onnx = require "support.onnx_writer"

local numbers, near = lists.made, lists.near_within(1e-5)

-- [m, k] x [k, n], lists from offsets
local function product(a, b, m, k, n, at_a, at_b)
  local out = {}
  for i = 0, m - 1 do
    for j = 1, n do
      local sum = 0
      for t = 0, k - 1 do sum = sum + a[(at_a or 0) + i * k + t + 1] * b[(at_b or 0) + t * n + j] end
      out[#out + 1] = sum
    end
  end
  return out
end

describe("matmul", function()
  for _, size in ipairs { { 1, 1, 1 }, { 1, 37, 19 }, { 5, 64, 33 }, { 17, 31, 16 } } do
    local m, k, n = table.unpack(size)
    it(("of [%d, %d] and [%d, %d], weights given or packed"):format(m, k, k, n), function()
      local a, b = numbers(m * k, 1), numbers(k * n, 2)
      local want = product(a, b, m, k, n)
      for _, constant in ipairs { {}, { [2] = true } } do
        local got = assert(onnx.run("MatMul", { onnx.floats({ m, k }, a), onnx.floats({ k, n }, b) }, { constant = constant }))
        assert.same({ m, n }, got.shape)
        near(want, got)
      end
    end)
  end

  it("does not depend on how many rows are computed together", function()
    local k, n = 70, 40
    local a, b = numbers(9 * k, 3), numbers(k * n, 4)
    local all = assert(onnx.run("MatMul", { onnx.floats({ 9, k }, a), onnx.floats({ k, n }, b) }, { constant = { [2] = true } }))
    for row = 0, 8 do
      local x = onnx.floats({ 1, k }, table.move(a, row * k + 1, row * k + k, 1, {}))
      local one = assert(onnx.run("MatMul", { x, onnx.floats({ k, n }, b) }, { constant = { [2] = true } }))
      for j = 1, n do assert.equal(all[row * n + j], one[j]) end
    end
  end)

  it("broadcasts batches, and takes vectors", function()
    local a, b = numbers(2 * 3 * 4, 5), numbers(4 * 2, 6)
    local got = assert(onnx.run("MatMul", { onnx.floats({ 2, 3, 4 }, a), onnx.floats({ 4, 2 }, b) }))
    assert.same({ 2, 3, 2 }, got.shape)
    near(product(a, b, 6, 4, 2), got)
    local dot = assert(onnx.run("MatMul", { onnx.floats({ 3 }, { 1, 2, 3 }), onnx.floats({ 3 }, { 4, 5, 6 }) }))
    assert.same({ {}, 32 }, { dot.shape, dot[1] })
    local out, _, code = onnx.run("MatMul", { onnx.floats({ 2, 3 }, numbers(6, 1)), onnx.floats({ 2, 3 }, numbers(6, 1)) })
    assert.same({ nil, "shape" }, { out, code })
  end)

  it("Gemm scales, transposes and adds", function()
    local a, b = { 1, 2, 3, 4, 5, 6 }, { 1, 0, 2, -1, 1, 3 } -- a: [2, 3] as [3, 2] transposed; b: [2, 3] transposed
    local inputs = { onnx.floats({ 3, 2 }, { 1, 4, 2, 5, 3, 6 }), onnx.floats({ 2, 3 }, b), onnx.floats({ 2 }, { 10, 20 }) }
    local got = assert(onnx.run("Gemm", inputs, { attrs = { transA = 1, transB = 1, alpha = 2.0, beta = 0.5 } }))
    local want = {}
    for i = 0, 1 do
      for j = 0, 1 do
        local sum = 0
        for t = 1, 3 do sum = sum + a[i * 3 + t] * b[j * 3 + t] end
        want[#want + 1] = 2 * sum + 0.5 * (j + 1) * 10
      end
    end
    near(want, got)
  end)

  it("einsum contracts what is named twice", function()
    local a, b, want = numbers(2 * 3 * 4, 7), numbers(2 * 5 * 4, 8), {}
    for i = 0, 1 do
      for q = 0, 2 do
        for k = 0, 4 do
          local sum = 0
          for c = 1, 4 do sum = sum + a[(i * 3 + q) * 4 + c] * b[(i * 5 + k) * 4 + c] end
          want[#want + 1] = sum
        end
      end
    end
    local inputs = { onnx.floats({ 2, 3, 4 }, a), onnx.floats({ 2, 5, 4 }, b) }
    local got = assert(onnx.run("Einsum", inputs, { attrs = { equation = "bqc,bkc->bqk" } }))
    assert.same({ 2, 3, 5 }, got.shape)
    near(want, got)
  end)
end)

describe("conv", function()
  it("sums over channels and taps, with padding, strides and groups", function()
    local x, w = numbers(4 * 7, 9), numbers(2 * 2 * 3, 10) -- x [1, 4, 7], w [2, 4 / 2, 3]
    local got = assert(onnx.run("Conv", { onnx.floats({ 1, 4, 7 }, x), onnx.floats({ 2, 2, 3 }, w), onnx.floats({ 2 }, { 0.5, -0.5 }) },
      { attrs = { group = 2, pads = { 1, 1 }, strides = { 2 }, kernel_shape = { 3 } } }))
    local want = {}
    for o = 0, 1 do
      for t = 0, 3 do
        local sum = o == 0 and 0.5 or -0.5
        for c = 0, 1 do
          for k = 0, 2 do
            local at = 2 * t + k - 1
            if at >= 0 and at < 7 then sum = sum + w[(o * 2 + c) * 3 + k + 1] * x[(o * 2 + c) * 7 + at + 1] end
          end
        end
        want[#want + 1] = sum
      end
    end
    assert.same({ 1, 2, 4 }, got.shape)
    near(want, got)
  end)
end)

describe("pooling", function()
  -- One axis of a window: the elements of x that it reads, and how many of its taps lie in x with its padding.
  local function axis(o, place, size)
    local read, padded = {}, 0
    for k = 0, o.kernel - 1 do
      local at = place * o.stride + k * o.dilation - o.before
      if at >= 0 and at < size then read[#read + 1] = at end
      if at < size + o.after then padded = padded + 1 end
    end
    return read, padded
  end

  local function window(x, size, rows, columns, kind, divisor)
    local sum, top = 0, -math.huge
    for _, r in ipairs(rows) do
      for _, c in ipairs(columns) do
        sum, top = sum + x[r * size + c + 1], math.max(top, x[r * size + c + 1])
      end
    end
    return kind == "MaxPool" and top or sum / (divisor or #rows * #columns)
  end

  local SHAPES = { -- kernel, stride, dilation, before, after of each of two axes
    { { 3, 1, 1, 1, 1 }, { 3, 1, 1, 1, 1 } }, { { 2, 2, 1, 0, 0 }, { 2, 3, 1, 0, 1 } }, { { 3, 1, 2, 2, 1 }, { 2, 2, 3, 1, 2 } },
    { { 7, 1, 1, 3, 4 }, { 1, 1, 1, 0, 0 } }, { { 1, 2, 1, 0, 0 }, { 9, 1, 1, 4, 4 } },
  }
  for i, shape in ipairs(SHAPES) do
    for _, kind in ipairs { "MaxPool", "AveragePool" } do
      it(("%s of two axes, %d"):format(kind, i), function()
        local h, w, o = 7, 9, {}
        for k, s in ipairs(shape) do o[k] = { kernel = s[1], stride = s[2], dilation = s[3], before = s[4], after = s[5] } end
        local x = numbers(h * w, 11)
        local attrs = {
          kernel_shape = { o[1].kernel, o[2].kernel }, strides = { o[1].stride, o[2].stride }, dilations = { o[1].dilation, o[2].dilation },
          pads = { o[1].before, o[2].before, o[1].after, o[2].after },
        }
        for include = 0, kind == "MaxPool" and 0 or 1 do
          attrs.count_include_pad = kind ~= "MaxPool" and include or nil
          local got = assert(onnx.run(kind, { onnx.floats({ 1, 1, h, w }, x) }, { attrs = attrs, opset = 19 }))
          local want = {}
          for r = 0, got.shape[3] - 1 do
            for c = 0, got.shape[4] - 1 do
              local rows, many = axis(o[1], r, h)
              local columns, more = axis(o[2], c, w)
              want[#want + 1] = window(x, w, rows, columns, kind, include == 1 and many * more)
            end
          end
          near(want, got)
        end
      end)
    end
  end

  it("takes time for what a window reads, not for its padding", function()
    local size <const> = 1 << 30
    local got = assert(onnx.run("AveragePool", { onnx.floats({ 1, 1, 4 }, { 1, 2, 3, 6 }) }, {
      attrs = { kernel_shape = { size }, pads = { size - 1, size - 1 }, strides = { 1 << 20 } }, opset = 19,
    }))
    assert.equal(3, got[1024]) -- 1023 * 2^20 - 2^30 + 1: all of x
  end)
end)

describe("attention", function()
  -- softmax(q k / sqrt(d)) v for each head; q, k, v: [1, tokens, heads * d]
  local function attention(q, k, v, heads, n, m, d, seen)
    local out = {}
    for i = 0, n - 1 do
      for h = 0, heads - 1 do
        local scores, total = {}, 0
        for j = 0, m - 1 do
          local dot = 0
          for c = 1, d do dot = dot + q[(i * heads + h) * d + c] * k[(j * heads + h) * d + c] end
          scores[j] = seen(i, j) and math.exp(dot / math.sqrt(d)) or 0
          total = total + scores[j]
        end
        for c = 1, d do
          local sum = 0
          for j = 0, m - 1 do sum = sum + scores[j] / total * v[(j * heads + h) * d + c] end
          out[(i * heads + h) * d + c] = sum
        end
      end
    end
    return out
  end

  it("of several heads sees all keys, or only those before", function()
    local heads, n, d = 3, 5, 8
    local size = n * heads * d
    local q, k, v = numbers(size, 11), numbers(size, 12), numbers(size, 13)
    local t = {}
    for i, list in ipairs { q, k, v } do t[i] = onnx.floats({ 1, n, heads * d }, list) end
    local contrib = { domain = "com.microsoft", attrs = { num_heads = heads } }
    near(attention(q, k, v, heads, n, n, d, function() return true end), assert(onnx.run("MultiHeadAttention", t, contrib)))
    contrib.attrs.unidirectional = 1
    near(attention(q, k, v, heads, n, n, d, function(i, j) return j <= i end), assert(onnx.run("MultiHeadAttention", t, contrib)))
  end)
end)
