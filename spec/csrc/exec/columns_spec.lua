-- Ops that look back over tokens or rearrange channels, views of weights, and the options of attention, against their
-- formulas in doubles, on small graphs.
local core = require "ane.core"
local floats = require "support.floats"
local graphs = require "support.graphs"
local ops = require "support.ops"
local programs = require "support.programs"

local IDS = programs.ids(37, ops.VOCAB, 5)

local function map(rows, fn)
  local out = {}
  for t, x in ipairs(rows) do out[t] = fn(x, t) end
  return out
end

-- o: channels, groups, taps, out, flat, bias, before
local function conv(o)
  local inner = o.channels // o.groups
  local g = ops.new {
    channels = o.channels, out = o.out or o.channels,
    consts = {
      w = o.flat and { o.channels, o.taps } or { o.out or o.channels, inner, o.taps }, b = o.bias and { o.out or o.channels },
      before = o.before and { o.channels },
    },
    text = ("state s: fp32[1, %d, %d, 1]\ny = conv_causal(x, w, %s, %s, s) {groups=%d}"):format(o.channels, o.taps - 1,
      o.bias and "b" or "-", o.before and "before" or "-", o.groups),
  }
  local rows, per = g.x(IDS), g.out // o.groups
  local want = map(rows, function(_, t)
    local y = {}
    for r = 1, g.out do
      local sum, first = g.c.b and g.c.b[r] or 0, (r - 1) // per * inner
      for i = 1, inner do
        for k = 1, o.taps do
          local row = rows[t - o.taps + k]
          local x = row and row[first + i] or not row and g.c.before and g.c.before[first + i] or 0
          sum = sum + g.c.w[((r - 1) * inner + i - 1) * o.taps + k] * x
        end
      end
      y[r] = sum
    end
    return y
  end)
  return g, want
end

describe("conv_causal", function()
  for _, o in ipairs {
    { channels = 6, groups = 6, taps = 3 }, { channels = 6, groups = 6, taps = 2, flat = true, bias = true },
    { channels = 21, groups = 21, taps = 4, bias = true, before = true }, { channels = 5, groups = 5, taps = 7, before = true },
    { channels = 5, groups = 5, taps = 3, out = 15, bias = true }, -- three outputs a channel
    { channels = 12, groups = 3, taps = 2 }, { channels = 12, groups = 3, taps = 3, out = 6, bias = true, before = true },
    { channels = 8, groups = 1, taps = 2, bias = true }, { channels = 40, groups = 2, taps = 5, out = 34, before = true },
    -- Wider, with all its taps, than the scratch of a single token: 3 * 70 numbers.
    { channels = 140, groups = 2, taps = 3, out = 4, bias = true },
  } do
    it(("%d channels, %d groups, %d taps, %d out"):format(o.channels, o.groups, o.taps, o.out or o.channels), function()
      local g, want = conv(o)
      ops.check(g, IDS, want, { limit = 1e-5 })
    end)
  end

  it("is checked where it is built", function()
    local HEAD = [[
      input ids: int32[1, T]
      input out_rows: int32[1, W]
      const table: fp32[9, 8]
      const w: fp32[8, 1, 3]
      const one: fp32[8, 1, 1]
      const wide: fp32[8, 3, 3]
      const n3: fp32[3]
      state s2: fp32[1, 8, 2, 1]
      state s3: fp32[1, 8, 3, 1]
      x = embed(ids, table)
    ]]
    local function refused(text, pattern)
      local ok, message = pcall(graphs.parse, HEAD .. text)
      assert.is_false(ok)
      assert.matches(pattern, message)
    end
    refused("y = conv_causal(x, w, -, -, s3) {groups=8}", "state s3 must be %[1, 8, 2, 1%], but is %[1, 8, 3, 1%]")
    refused("y = conv_causal(x, w, -, -, x) {groups=8}", "state x must be %[1, 8, 2, 1%], but is .*")
    refused("y = conv_causal(x, w, -, -, -) {groups=8}", "the state is absent")
    refused("y = conv_causal(x, -, -, -, s2) {groups=8}", "the weight is absent")
    refused("y = conv_causal(x, wide, -, -, s2) {groups=8}",
      "weight wide must be %[N, 1, K >= 2%] for 8 channels in 8 groups, but is %[8, 3, 3%]")
    refused("y = conv_causal(x, one, -, -, s2) {groups=8}",
      "weight one must be %[N, 1, K >= 2%] for 8 channels in 8 groups, but is %[8, 1, 1%]")
    refused("y = conv_causal(x, w, -, -, s2) {groups=3}", "3 groups do not divide 8 channels")
    refused("y = conv_causal(x, w, -, -, s2) {groups=0}", "0 groups do not divide 8 channels")
    refused("y = conv_causal(x, w, n3, -, s2) {groups=8}", "bias n3 must be %[8%], but is %[3%]")
    refused("y = conv_causal(x, w, -, n3, s2) {groups=8}", "before n3 must be %[8%], but is %[3%]")
    refused("y = delay(x, s2)", "state s2 must be %[1, 8, 1, 1%], but is %[1, 8, 2, 1%]")
    local g <close> = graphs.parse(HEAD .. [[
      y = conv_causal(x, w, -, -, s2) {groups=8}
      z = conv_causal(y, w, -, -, s2) {groups=8}
      t = gather(z, out_rows)
      out = conv1x1(t, table)
      give out
    ]])
    assert(g:passes "cpu")
    local p, message, code = core.program(g, { threads = 1, context = 10, chunk = 8 })
    assert.same({ nil, "z: state s2 belongs to another node", "unsupported" }, { p, message, code })
  end)
end)

describe("channels", function()
  local function check(o, want, opts)
    local g = ops.new(o)
    ops.check(g, IDS, map(g.x(IDS), function(x, t) return want(x, g, t) end), opts)
  end

  it("delay: the token before, zeros before the first", function()
    check({ channels = 7, out = 7, text = "state s: fp32[1, 7, 1, 1]\ny = delay(x, s)" }, function(_, g, t)
      return t > 1 and g.x(IDS)[t - 1] or { 0, 0, 0, 0, 0, 0, 0 }
    end)
  end)

  it("several states of other widths live side by side", function()
    check({
      channels = 6, out = 6, consts = { w = { 6, 5 } },
      text = "state a: fp32[1, 6, 1, 1]\nstate b: fp32[1, 2, 1, 1]\nstate c: fp32[1, 6, 4, 1]\nu = delay(x, a)\n" ..
        "v = slice(x) {from=1 to=3}\n" ..
        "d = delay(v, b)\ne = slice(u) {from=0 to=4}\nf = concat(d, e)\ny = conv_causal(f, w, -, -, c) {groups=6}",
    }, function(_, g, t)
      local rows, y = g.x(IDS), {}
      local function f(at)
        local x = rows[at - 1]
        return at > 1 and { x[2], x[3], x[1], x[2], x[3], x[4] } or { 0, 0, 0, 0, 0, 0 }
      end
      for i = 1, 6 do
        y[i] = 0
        for k = 1, 5 do y[i] = y[i] + g.c.w[(i - 1) * 5 + k] * (t - 5 + k >= 1 and f(t - 5 + k)[i] or 0) end
      end
      return y
    end)
  end)

  it("affine: the bias goes before the scale, and either may be absent", function()
    for _, inputs in ipairs { "b, s", "b", "-, s", "-, -" } do
      check({ channels = 19, out = 19, consts = { b = { 19 }, s = { 19 } }, text = "y = affine(x, " .. inputs .. ")" }, function(x, g)
        return map(x, function(v, i)
          v = inputs:find "b" and v + g.c.b[i] or v
          return inputs:find "s" and v * g.c.s[i] or v
        end)
      end)
    end
  end)

  it("l2_norm: each group has length sqrt(n), then its weight; a null group stays null", function()
    for _, groups in ipairs { 1, 3, 4 } do
      for _, weight in ipairs { "", ", w" } do
        local given = ops.random(ops.VOCAB * 24, 8)
        for i = 24 * IDS[3] + 1, 24 * IDS[3] + 24 // groups do given[i] = 0 end
        check({ channels = 24, out = 24, consts = { w = { groups } }, given = { table = given },
                text = ("y = l2_norm(x%s) {groups=%d}"):format(weight, groups) }, function(x, g)
          local n, y = 24 // groups, {}
          for i, v in ipairs(x) do
            local at, sum = (i - 1) // n, 0
            for j = at * n + 1, at * n + n do sum = sum + x[j] ^ 2 end
            y[i] = v * math.sqrt(n) / math.max(math.sqrt(sum), 2.0 ^ -23) * (weight ~= "" and g.c.w[at + 1] or 1)
          end
          return y
        end)
      end
    end
  end)

  it("repeat_heads and mean_heads: runs of heads", function()
    for _, times in ipairs { 1, 2, 4 } do
      check({ channels = 12, out = 12 * times, text = ("y = repeat_heads(x) {heads=4 times=%d}"):format(times) }, function(x)
        local y = {}
        for h = 0, 3 do
          for _ = 1, times do table.move(x, h * 3 + 1, h * 3 + 3, #y + 1, y) end
        end
        return y
      end)
      check({ channels = 12, out = 12 // times, text = ("y = mean_heads(x) {heads=4 times=%d}"):format(times) }, function(x)
        local y = {}
        for h = 0, 4 // times - 1 do
          for d = 1, 3 do
            local sum = 0
            for j = 0, times - 1 do sum = sum + x[(h * times + j) * 3 + d] end
            y[h * 3 + d] = sum / times
          end
        end
        return y
      end)
    end
  end)

  it("slice, concat and head_linear: head by head", function()
    check({ channels = 12, out = 6, text = "y = slice(x) {from=1 to=3 heads=3}" }, function(x)
      return { x[2], x[3], x[6], x[7], x[10], x[11] }
    end)
    local text = "a = slice(x) {from=0 to=2}\nb = slice(x) {from=2 to=6}\ny = concat(a, b) {heads=2}"
    check({ channels = 6, out = 6, text = text }, function(x) return { x[1], x[3], x[4], x[2], x[5], x[6] } end)
    check({ channels = 8, out = 6, consts = { v = { 3, 4 }, w = { 3, 4 } }, text = "y = head_linear(x, v, w)" }, function(x, g)
      local y = {}
      for i = 0, 5 do
        local m, sum = i < 3 and g.c.v or g.c.w, 0
        for c = 1, 4 do sum = sum + m[i % 3 * 4 + c] * x[i // 3 * 4 + c] end
        y[i + 1] = sum
      end
      return y
    end)
  end)

  it("position_scale: a factor for each position", function()
    for _, original in ipairs { 1, 4 } do
      local text = ("y = position_scale(x, positions) {beta=0.3 original=%d}"):format(original)
      check({ channels = 5, out = 5, text = text }, function(x, _, t)
        local y = {}
        for i, v in ipairs(x) do y[i] = v * (1 + 0.3 * math.log(1 + (t - 1) // original)) end
        return y
      end)
    end
  end)

  it("concat, slice, mul, act", function()
    check({ channels = 9, out = 7, text = "a = slice(x) {from=2 to=6}\nb = slice(x) {from=6 to=9}\ny = concat(b, a)" }, function(x)
      return { x[7], x[8], x[9], x[3], x[4], x[5], x[6] }
    end)
    check({ channels = 9, out = 18, text = "y = concat(x, x)" }, function(x) return table.move(x, 1, 9, 10, table.move(x, 1, 9, 1, {})) end)
    check({ channels = 18, out = 9, text = "a = slice(x) {from=0 to=9}\nb = slice(x) {from=9 to=18}\ny = mul(a, b)" }, function(x)
      local y = {}
      for i = 1, 9 do y[i] = x[i] * x[i + 9] end
      return y
    end)
    for act, fn in pairs(ops.acts) do
      local text = ("y = act(x) {act=%s}"):format(act)
      local o = { channels = 17, out = 17, given = { table = ops.random(ops.VOCAB * 17, 2, 4) }, text = text }
      check(o, function(x) return map(x, fn) end)
    end
  end)

  it("layer_norm: mean and variance of each group, weight and bias or none", function()
    for _, groups in ipairs { 1, 3 } do
      for _, inputs in ipairs { "", ", w", ", w, b", ", -, b" } do
        local n = 21 // groups
        local text = ("y = layer_norm(x%s) {eps=0.01 groups=%d}"):format(inputs, groups)
        check({ channels = 21, out = 21, consts = { w = { n }, b = { n } }, text = text },
          function(x, g)
            local y = {}
            for at = 0, groups - 1 do
              local mean, var = 0, 0
              for i = at * n + 1, at * n + n do mean = mean + x[i] / n end
              for i = at * n + 1, at * n + n do var = var + (x[i] - mean) ^ 2 / n end
              for i = 1, n do
                local w, b = inputs:find "w" and g.c.w[i] or 1, inputs:find "b" and g.c.b[i] or 0
                y[at * n + i] = (x[at * n + i] - mean) / math.sqrt(var + 0.01) * w + b
              end
            end
            return y
          end)
      end
    end
  end)

  it("are checked where they are built", function()
    for text, pattern in pairs {
      ["y = l2_norm(x) {groups=3}"] = "3 groups do not divide 8 channels",
      ["y = l2_norm(x, n3) {groups=2}"] = "weight n3 must be %[2%], but is %[3%]",
      ["y = repeat_heads(x) {heads=3}"] = "3 heads, 1 times, do not fit 8 channels",
      ["y = mean_heads(x) {heads=4 times=3}"] = "4 heads, 3 times, do not fit 8 channels",
      ["y = repeat_heads(x) {heads=2 times=0}"] = "2 heads, 0 times", ["y = affine(x, n3)"] = "bias n3 must be %[8%], but is %[3%]",
      ["y = affine(x, -, n3)"] = "scale n3 must be %[8%], but is %[3%]",
      ["t = gather(x, out_rows)\ny = concat(x, t)"] = "x and t have different numbers of tokens",
    } do
      local ok, message = pcall(graphs.parse, "input ids: int32[1, T]\ninput out_rows: int32[1, W]\nconst table: fp32[9, 8]\n" ..
        "const n3: fp32[3]\nx = embed(ids, table)\n" .. text)
      assert.is_false(ok, text)
      assert.matches(pattern, message)
    end
  end)
end)

describe("rope_table", function()
  -- x is 0; cosines and sines come through by adding the table.
  local TEXT = "r = rope_table(positions) {inv_freq=[1 0.25 0.0625] magnitude=1.5 long_freq=[0.5 0.125 0.01] original=20}\ny = add(x, r)"
  local zeros = {}
  for i = 1, ops.VOCAB * 6 do zeros[i] = 0 end

  it("has the long factors for all positions once the sequence is longer than the original", function()
    local g = ops.new { channels = 6, out = 6, given = { table = zeros }, text = TEXT }
    local function want(n, freq)
      local rows = {}
      for p = 0, n - 1 do
        rows[p + 1] = {}
        for i, f in ipairs(freq) do rows[p + 1][i], rows[p + 1][i + 3] = 1.5 * math.cos(p * f), 1.5 * math.sin(p * f) end
      end
      return rows
    end
    for _, n in ipairs { 1, 19, 20, 21, 37 } do
      local rows = ops.run(g, programs.slice(IDS, 1, n), { chunk = 64 })
      assert.is_nil(ops.apart(rows, want(n, n > 20 and { 0.5, 0.125, 0.01 } or { 1, 0.25, 0.0625 })))
    end
  end)

  it("refuses lists that do not fit, and two ropes that switch apart", function()
    for text, pattern in pairs {
      ["r = rope_table(positions) {inv_freq=[1 2] long_freq=[1] original=4}"] = "long_freq has 1 numbers and inv_freq 2; original is 4",
      ["r = rope_table(positions) {inv_freq=[1 2] long_freq=[1 2]}"] = "long_freq has 2 numbers and inv_freq 2; original is 0",
    } do
      local ok, message = pcall(graphs.parse, "input positions: int32[1, T]\n" .. text)
      assert.is_false(ok)
      assert.matches(pattern, message)
    end
    local g = ops.new {
      channels = 6, out = 6,
      text = TEXT:gsub("y = ", "u = ") .. "\nr2 = rope_table(positions) {inv_freq=[1 2 3] long_freq=[1 2 3] original=21}\ny = add(u, r2)",
    }
    assert.error_matches(function() ops.program(g, {}) end, "r2: two rope tables have long_freq with different values of `original`")
  end)
end)

describe("attention", function()
  -- o: window, ahead, sinks, sink_scale, softcap; three heads of 4 on one.
  local function make_attention(o)
    local g = ops.new {
      channels = 20, out = 12, consts = { sinks = { 3 } }, given = { sinks = { 0.4, -0.7, 1.1 } },
      text = ([[
state ks: fp16[1, 1, context, 4]
state vs: fp16[1, 1, context, 4]
q = slice(x) {from=0 to=12}
k = slice(x) {from=12 to=16}
v = slice(x) {from=16 to=20}
y = attention(q, k, v, ks, vs%s) {heads=3 kv_heads=1 scale=0.8 window=%d ahead=%d softcap=%g sink_scale=%g}]]):format(
        o.sinks and ", sinks" or "", o.window or 0, o.ahead or 0, o.softcap or 0, o.sink_scale or 1),
    }
    return g, function(ids)
      local rows = g.x(ids)
      return map(rows, function(x, t)
        local y = {}
        for h = 0, 2 do
          local s, total = {}, o.sinks and math.exp(g.c.sinks[h + 1] * (o.sink_scale or 1)) or 0
          for j, key in ipairs(rows) do
            if j <= t + (o.ahead or 0) and ((o.window or 0) == 0 or j > t - o.window) then
              local dot = 0
              for d = 1, 4 do dot = dot + x[h * 4 + d] * key[12 + d] end
              dot = dot * 0.8
              if o.softcap then dot = o.softcap * (2 * ops.sigmoid(2 * dot / o.softcap) - 1) end
              s[j] = math.exp(dot)
              total = total + s[j]
            end
          end
          for d = 1, 4 do
            local sum = 0
            for j, w in pairs(s) do sum = sum + w * rows[j][16 + d] end
            y[h * 4 + d] = sum / total
          end
        end
        return y
      end)
    end
  end

  for _, o in ipairs {
    {}, { window = 5 }, { window = 1 }, { sinks = true }, { sinks = true, sink_scale = math.log(2), window = 7 },
    { sinks = true, softcap = 1.5, window = 70 },
  } do
    local scale = o.sinks and (o.sink_scale or 1) or "none"
    it(("causal: window %d, sinks %s, softcap %g"):format(o.window or 0, scale, o.softcap or 0), function()
      local g, want = make_attention(o)
      local ids = programs.ids(75, ops.VOCAB, 9)
      ops.check(g, ids, want(ids), { limit = 1e-5 })
    end)
  end

  for _, o in ipairs {
    { ahead = 1 }, { ahead = 4, window = 5 }, { ahead = 3, window = 4, sinks = true }, { ahead = 70, window = 3 }, { ahead = 500 },
    { ahead = 64, window = 65, sinks = true, sink_scale = 0.5 }, { ahead = 2, window = 1, softcap = 2 },
  } do
    it(("ahead %d, window %d, sinks %s"):format(o.ahead, o.window or 0, o.sinks or false), function()
      local g, want = make_attention(o)
      for _, n in ipairs { 1, 2, 63, 64, 65, 140 } do
        local ids = programs.ids(n, ops.VOCAB, n)
        local ways = { {}, { threads = 2 }, { threads = 3, pipeline = "cpu-plain" }, { threads = 3, manner = "mixed" } }
        local opts = { limit = 1e-5, chunk = 150, context = 150, ways = ways }
        ops.check(g, ids, want(ids), opts)
      end
    end)
  end

  it("ahead: sequences of one run do not see each other, and come whole", function()
    local g, want = make_attention { ahead = 4, window = 5 }
    local p <close> = ops.program(g, { threads = 2, chunk = 30 })
    local a <close> = assert(p:session { context = 100, kv = "fp32" })
    local b <close> = assert(p:session { context = 100, kv = "fp32" })
    local ids = { [a] = programs.slice(IDS, 1, 9), [b] = programs.slice(IDS, 10, 30) }
    assert(core.testing.run { { a, ids[a], "all" }, { b, ids[b], "all" } })
    for s, list in pairs(ids) do
      local flat, rows = floats.unpack(programs.rows(s)), {}
      for t = 1, #list do rows[t] = table.move(flat, t * 12 - 11, t * 12, 1, {}) end
      assert.is_nil(ops.apart(rows, want(list), 1e-5))
    end
    assert.same({ nil, "this model sees tokens on both sides: it takes a whole sequence at once, from position 0 (rewind first)", "range" },
      { a:feed { 1 } })
    assert.equal(9, a:rows()) -- a refusal changes nothing
    assert(a:rewind(4))
    assert.equal("range", select(3, a:feed { 1 }))
    assert(a:rewind(0))
    local message, code = select(2, a:feed(programs.slice(IDS, 1, 31)))
    assert.equal("this model sees tokens on both sides: it takes a whole sequence in one run, not 30 of 31 ids; " ..
      "a run takes 30 at most (cut the text)", message)
    assert.equal("range", code)
    assert(a:feed(programs.slice(IDS, 1, 30)))
  end)

  it("refuses a negative ahead, and sinks of another number", function()
    local ok, message = pcall(function() return ops.program(make_attention { ahead = -1 }, {}) end)
    assert.is_false(ok)
    assert.matches("ahead must not be negative", message)
    local g = make_attention { sinks = true }
    g.head, g.c.sinks = g.head:gsub("sinks: fp32%[3%]", "sinks: fp32[2]"), { 1, 2 }
    assert.error_matches(function() ops.program(g, {}) end, "sinks sinks must be %[3%], but is %[2%]")
  end)
end)

describe("a view of a weight", function()
  local N, C = 37, 64

  -- w as it is; as slice 1 of a stack stored [in, out]; as rows [5, 42) of a wider one; both.
  local w = ops.random(N * C, 3)
  local function stored(index, from, transposed)
    local rows, list = N + (from and 8 or 0), {}
    for i = 1, (index and 3 or 1) * rows * C do list[i] = 9 end -- what must not be read
    for r = 0, N - 1 do
      for c = 0, C - 1 do
        local at = r + (from or 0)
        list[(index or 0) * rows * C + (transposed and c * rows + at or at * C + c) + 1] = w[r * C + c + 1]
      end
    end
    local shape = transposed and { C, rows } or { rows, C }
    if index then table.insert(shape, 1, 3) end
    return list, shape
  end

  local function graph(index, from, transposed)
    local list, shape = stored(index, from, transposed)
    return ops.new {
      channels = C, out = N, consts = { w = shape, b = { N } }, given = { w = list }, text = "",
      more = function(g, v, source)
        local view = (index or from or transposed)
          and g:const("view", source, "w", { index = index, from = from, to = from and from + N, transposed = transposed }) or v.w
        return g:add("conv1x1", "y", { v.x, view, v.b })
      end,
    }
  end

  it("multiplies as the tensor itself would, in every format and on any number of threads", function()
    local plain = graph()
    local want = map(plain.x(IDS), function(x) return ops.matvec(w, x, plain.c.b) end)
    ops.check(plain, IDS, want, { limit = 1e-5 })
    for _, weights in ipairs { "file", "fp32", "fp16", "bf16", "q8_0", "q4_0", "int8", "int8-channel" } do
      for _, int8 in ipairs { false, true } do
        local _, bits = ops.run(plain, IDS, { weights = weights, int8 = int8 })
        for _, cut in ipairs { { 1 }, { nil, 5 }, { 2, 5 }, { nil, nil, true }, { 1, nil, true }, { nil, 5, true }, { 0, 5, true } } do
          for threads = 1, 2 do
            -- The matrix y is int8 by the peak of the view alone, not of what stands beside it.
            local g = graph(cut[1], cut[2], cut[3])
            g.c.table = plain.c.table
            g.c.b = plain.c.b
            local _, got = ops.run(g, IDS, { weights = weights, int8 = int8, threads = threads })
            local why = floats.difference(got, bits)
            if why then error(("%s, int8 %s, cut %s %s %s: %s"):format(weights, int8, cut[1], cut[2], cut[3], why)) end
          end
        end
      end
    end
  end)

  it("is refused outside of its tensor, and as a vector where it is turned", function()
    local o = graph(1, 5, true)
    local g <close>, _, source = graphs.parse(o.head, o.c)
    local function cut(view) return select(2, pcall(g.const, g, "view", source, "w", view)) end
    for _, view in ipairs {
      { index = 3 }, { index = -1 }, { index = 1, from = 0, to = 46, transposed = true }, { from = 4 }, { index = 0, from = 3, to = 3 },
      { transposed = true },
    } do
      assert.is_string(cut(view))
    end
  end)
end)
