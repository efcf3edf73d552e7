-- Grouped attention and rotary embeddings against sums in double precision, on odd sizes: heads that share keys, caches that grow,
-- windows, soft caps, sinks, packed operands, rope inside the op.
local lists = require "support.numbers"
local onnx = require "support.onnx_writer"

local MS = "com.microsoft"
local numbers, near = lists.made, lists.near_within(1e-5)

-- ---- Rope ----------------------------------------------------------------------------------------------------------------

-- cos and sin [rows, half] of the angles row * 0.7^i
local function tables(rows, half)
  local cos, sin = {}, {}
  for p = 0, rows - 1 do
    for i = 0, half - 1 do
      cos[#cos + 1], sin[#sin + 1] = math.cos(p * 0.7 ^ i), math.sin(p * 0.7 ^ i)
    end
  end
  return onnx.floats({ rows, half }, cos), onnx.floats({ rows, half }, sin)
end

-- One head of d channels at offset `at` of a list, rotated in place at a position.
local function rotate(x, at, half, position, interleaved)
  for i = 0, half - 1 do
    local a, b = at + (interleaved and 2 * i or i) + 1, at + (interleaved and 2 * i + 1 or i + half) + 1
    local c, s = math.cos(position * 0.7 ^ i), math.sin(position * 0.7 ^ i)
    x[a], x[b] = x[a] * c - x[b] * s, x[a] * s + x[b] * c
  end
end

describe("rotary embedding", function()
  local batch, n, heads, d = 2, 3, 5, 6

  for _, case in ipairs { { false, 3 }, { true, 3 }, { false, 2 }, { true, 1 } } do
    local interleaved, half = case[1], case[2]
    it(("rotates %d of 6 channels, %s"):format(2 * half, interleaved and "interleaved" or "in halves"), function()
      local x = numbers(batch * n * heads * d, 5)
      local cos, sin = tables(20, half)
      local ids = { 4, 5, 6, 17, 2, 19 } -- [batch, n]
      local attrs = { interleaved = interleaved and 1 or 0, num_heads = heads }
      if 2 * half ~= d then attrs.rotary_embedding_dim = 2 * half end
      local got = assert(onnx.run("RotaryEmbedding", { onnx.floats({ batch, n, heads * d }, x), onnx.ints({ batch, n }, ids), cos, sin },
        { domain = MS, attrs = attrs }))
      local want = table.move(x, 1, #x, 1, {})
      for row = 0, batch * n - 1 do
        for h = 0, heads - 1 do rotate(want, (row * heads + h) * d, half, ids[row + 1], interleaved) end
      end
      near(want, got)
    end)
  end

  it("counts positions from one number on", function()
    local x = numbers(batch * n * heads * d, 6)
    local cos, sin = tables(20, 3)
    local got = assert(onnx.run("RotaryEmbedding", { onnx.floats({ batch, n, heads * d }, x), onnx.ints({ 1 }, { 7 }), cos, sin },
      { domain = MS, attrs = { num_heads = heads } }))
    local want = table.move(x, 1, #x, 1, {})
    for row = 0, batch * n - 1 do
      for h = 0, heads - 1 do rotate(want, (row * heads + h) * d, 3, 7 + row % n, false) end
    end
    near(want, got)
  end)

  it("takes [batch, heads, positions, channels] and the standard's order of inputs", function()
    local x = numbers(batch * heads * n * d, 7)
    local cos, sin = tables(20, 3)
    local ids = { 0, 1, 2, 9, 10, 11 }
    local got = assert(onnx.run("RotaryEmbedding", { onnx.floats({ batch, heads, n, d }, x), cos, sin, onnx.ints({ batch, n }, ids) },
      { opset = 23 }))
    local want = table.move(x, 1, #x, 1, {})
    for b = 0, batch - 1 do
      for h = 0, heads - 1 do
        for i = 0, n - 1 do rotate(want, ((b * heads + h) * n + i) * d, 3, ids[b * n + i + 1], false) end
      end
    end
    near(want, got)
  end)

  it("refuses positions outside of the tables, and other sizes", function()
    local x, cos, sin = onnx.floats({ 1, 1, 6 }, numbers(6, 1)), tables(4, 3)
    for _, case in ipairs { { { 4 }, "range" }, { { -1 }, "range" } } do
      local out, message, code = onnx.run("RotaryEmbedding", { x, onnx.ints({ 1 }, case[1]), cos, sin }, { domain = MS })
      assert.same({ nil, case[2] }, { out, code }, message)
    end
    local out, _, code = onnx.run("RotaryEmbedding", { x, onnx.ints({ 1 }, { 0 }), cos, (tables(5, 3)) }, { domain = MS })
    assert.same({ nil, "shape" }, { out, code })
  end)
end)

-- ---- Grouped attention ---------------------------------------------------------------------------------------------------

-- What GroupQueryAttention gives for one sequence. q [n][heads * d], k and v [n][kv_heads * d]; past [kv_heads, p, d].
-- o: heads, kv_heads, d, p, n, window, softcap, scale, sinks, rope (half, interleaved)
local function reference(o, q, k, v, past_k, past_v)
  local heads, kv, d, p, n = o.heads, o.kv_heads, o.d, o.p, o.n
  q, k = table.move(q, 1, #q, 1, {}), table.move(k, 1, #k, 1, {})
  if o.half then
    for i = 0, n - 1 do
      for h = 0, heads - 1 do rotate(q, (i * heads + h) * d, o.half, p + i, o.interleaved) end
      for h = 0, kv - 1 do rotate(k, (i * kv + h) * d, o.half, p + i, o.interleaved) end
    end
  end
  local function row(past, new, h, j, c)
    return j < p and past[(h * p + j) * d + c] or j >= p and new[((j - p) * kv + h) * d + c]
  end
  local out, present_k, present_v = {}, {}, {}
  for h = 0, kv - 1 do
    for j = 0, p + n - 1 do
      for c = 1, d do
        present_k[#present_k + 1], present_v[#present_v + 1] = row(past_k, k, h, j, c), row(past_v, v, h, j, c)
      end
    end
  end
  for i = 0, n - 1 do
    for h = 0, heads - 1 do
      local g, weights, total = h // (heads // kv), {}, o.sinks and math.exp(o.sinks[h + 1]) or 0
      for j = 0, p + i do
        if not o.window or j > p + i - o.window then
          local dot = 0
          for c = 1, d do dot = dot + q[(i * heads + h) * d + c] * row(past_k, k, g, j, c) end
          local score = dot * (o.scale or d ^ -0.5)
          if o.softcap then
            local e = math.exp(2 * score / o.softcap)
            score = o.softcap * (e - 1) / (e + 1)
          end
          weights[j] = math.exp(score)
          total = total + weights[j]
        end
      end
      for c = 1, d do
        local sum = 0
        for j = 0, p + i do sum = sum + (weights[j] or 0) / total * row(past_v, v, g, j, c) end
        out[(i * heads + h) * d + c] = sum
      end
    end
  end
  return out, present_k, present_v
end

describe("grouped attention", function()
  local function run(o)
    local heads, kv, d, p, n = o.heads, o.kv_heads, o.d, o.p, o.n
    local q, k, v = numbers(n * heads * d, 21), numbers(n * kv * d, 22), numbers(n * kv * d, 23)
    local past_k, past_v = numbers(kv * p * d, 24), numbers(kv * p * d, 25)
    local inputs = {
      onnx.floats({ 1, n, heads * d }, q), onnx.floats({ 1, n, kv * d }, k), onnx.floats({ 1, n, kv * d }, v),
      onnx.floats({ 1, kv, p, d }, past_k), onnx.floats({ 1, kv, p, d }, past_v), onnx.int32s({ 1 }, { p + n - 1 }),
      onnx.int32s({ 1 }, { p + n }), false, false, false, false, o.sinks and onnx.floats({ heads }, o.sinks),
    }
    if o.packed then
      local all = {}
      for i = 0, n - 1 do
        table.move(q, i * heads * d + 1, (i + 1) * heads * d, #all + 1, all)
        table.move(k, i * kv * d + 1, (i + 1) * kv * d, #all + 1, all)
        table.move(v, i * kv * d + 1, (i + 1) * kv * d, #all + 1, all)
      end
      inputs[1], inputs[2], inputs[3] = onnx.floats({ 1, n, (heads + 2 * kv) * d }, all), false, false
    end
    local attrs = { num_heads = heads, kv_num_heads = kv, softcap = o.softcap, scale = o.scale, local_window_size = o.window }
    if o.half then
      inputs[8], inputs[9] = tables(p + n, o.half)
      attrs.do_rotary, attrs.rotary_interleaved = 1, o.interleaved and 1 or 0
    end
    local y, present_k, present_v = onnx.run("GroupQueryAttention", inputs, {
      domain = MS, attrs = attrs, outputs = 3, threads = o.threads,
    })
    assert(y, present_k)
    local want, want_k, want_v = reference(o, q, k, v, past_k, past_v)
    assert.same({ 1, n, heads * d }, y.shape)
    assert.same({ 1, kv, p + n, d }, present_k.shape)
    near(want, y)
    near(want_k, present_k)
    near(want_v, present_v)
  end

  for name, o in pairs {
    ["of six heads that share two"] = { heads = 6, kv_heads = 2, d = 7, p = 5, n = 3 },
    ["of one head at the beginning"] = { heads = 1, kv_heads = 1, d = 3, p = 0, n = 1 },
    ["of three heads and one key head, packed"] = { heads = 3, kv_heads = 1, d = 5, p = 2, n = 4, packed = true },
    ["in a window"] = { heads = 4, kv_heads = 2, d = 6, p = 9, n = 5, window = 4 },
    ["with a soft cap, a scale and sinks"] = {
      heads = 2, kv_heads = 2, d = 9, p = 3, n = 2, softcap = 1.5, scale = 0.75, sinks = { 0.5, -0.25 },
    },
    ["with rope in halves"] = { heads = 4, kv_heads = 2, d = 6, p = 3, n = 4, half = 3 },
    ["with rope of some channels, interleaved, packed"] = {
      heads = 4, kv_heads = 2, d = 6, p = 3, n = 4, half = 2, interleaved = true, packed = true,
    },
    ["on several threads"] = { heads = 10, kv_heads = 5, d = 33, p = 70, n = 11, threads = 3 },
  } do
    it(name .. " is a softmax over the keys that it sees", function() run(o) end)
  end

  it("refuses sizes that do not fit", function()
    for _, case in ipairs {
      { { 1, 2, 12 }, { num_heads = 3, kv_num_heads = 2 }, "invalid" }, { { 1, 2, 13 }, { num_heads = 2, kv_num_heads = 2 }, "shape" },
      { { 2, 12 }, { num_heads = 2, kv_num_heads = 2 }, "shape" },
    } do
      local count = 1
      for _, size in ipairs(case[1]) do count = count * size end
      local x = onnx.floats(case[1], numbers(count, 1))
      local past = onnx.floats({ 1, 2, 0, 6 }, {})
      local out, message, code = onnx.run("GroupQueryAttention",
        { x, x, x, past, past, onnx.int32s({ 1 }, { 1 }), onnx.int32s({ 1 }, { 2 }) }, { domain = MS, attrs = case[2], outputs = 3 })
      assert.is_nil(out)
      assert.is_true(code == "shape" or code == "invalid", message)
    end
  end)
end)
