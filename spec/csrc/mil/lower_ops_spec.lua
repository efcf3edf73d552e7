-- Every op by itself, lowered and run, against its fast block: the options that no model of the fixtures has.
local lowered = require "support.lowered"
local ops = require "support.ops"
local programs = require "support.programs"

local IDS = programs.ids(9, ops.VOCAB, 3)

local VARIANTS = {
  { steps = { 1, 4, 3, 1 } },
  { steps = { 5, 1, 3 }, layout = "c1t", norm = "fp32" },
  { steps = { 3, 3, 3 }, fixed_t = 3, layout = "c1t", rope = "constants" },
}

local function run(o, variant) return lowered.rows(ops.graph(o), o.out, IDS, variant, 16) end

local function check(o, variants)
  o = ops.new(o)
  local want = ops.run(o, IDS, { kv = "fp32" })
  for i, variant in ipairs(variants or VARIANTS) do
    local why = ops.apart(run(o, variant), want, 1e-5)
    if why then error(("%s\nvariant %d: %s"):format(o.text, i, why), 2) end
  end
end

describe("lowered ops", function()
  it("norm rows and groups, with and without weights", function()
    for _, op in ipairs { "rms_norm", "layer_norm" } do
      local last = op == "rms_norm" and "offset=1" or ""
      for _, groups in ipairs { 1, 3 } do
        for _, inputs in ipairs { "x", "x, w" } do
          check { channels = 21, out = 21, consts = { w = { 21 // groups } },
                  text = ("y = %s(%s) {eps=0.01 groups=%d %s}"):format(op, inputs, groups, last) }
        end
      end
    end
    check { channels = 21, out = 21, consts = { w = { 7 }, b = { 7 } }, text = "y = layer_norm(x, w, b) {eps=0.01 groups=3}" }
    for _, groups in ipairs { 1, 3 } do
      check { channels = 21, out = 21, consts = { w = { groups } }, text = ("y = l2_norm(x, w) {groups=%d}"):format(groups) }
      check { channels = 21, out = 21, text = ("y = l2_norm(x) {groups=%d}"):format(groups) }
    end
  end)

  it("give zeros for the norm of zeros", function()
    local zeros = {}
    for i = 1, ops.VOCAB * 8 do zeros[i] = 0.0 end
    for _, op in ipairs { "rms_norm(x)", "layer_norm(x)", "l2_norm(x)" } do
      local o = ops.new { channels = 8, out = 8, given = { table = zeros }, text = "y = " .. op }
      for _, precision in ipairs { "fp32", "fp16" } do
        for _, norm in ipairs { "doubled", "fp32" } do
          local rows = run(o, { steps = { 2 }, fp32 = precision == "fp32", precision = precision, norm = norm })
          for _, v in ipairs(rows[2]) do assert.equal(0, v, ("%s, %s, %s"):format(op, precision, norm)) end
        end
      end
    end
  end)

  -- Squares of such rows are beyond fp16, and so is their sum.
  it("norm large rows in fp16 without overflow", function()
    local large = ops.random(ops.VOCAB * 32, 5, 6e4)
    for _, op in ipairs { "rms_norm(x) {eps=0.00001}", "rms_norm(x) {groups=4}", "l2_norm(x) {groups=2}" } do
      local o = ops.new { channels = 32, out = 32, given = { table = large }, text = "y = " .. op }
      local want = ops.run(o, IDS, { kv = "fp32" })
      for _, norm in ipairs { "doubled", "fp32" } do
        local rows = run(o, { steps = { 4, 5 }, fp32 = false, weights = "fp16", precision = "fp16", norm = norm })
        assert.is_nil(ops.apart(rows, want, 3e-3), op .. ", " .. norm)
      end
    end
  end)

  it("act, scale, cap, cut and join", function()
    local halves = "a = slice(x) {from=0 to=9}\nb = slice(x) {from=9 to=18}\n"
    for act in pairs(ops.acts) do
      check { channels = 17, out = 17, text = ("y = act(x) {act=%s}"):format(act) }
      check { channels = 18, out = 9, text = halves .. ("y = glu(a, b) {act=%s}"):format(act) }
    end
    check { channels = 9, out = 7, text = "a = slice(x) {from=2 to=6}\nb = slice(x) {from=6 to=9}\ny = concat(b, a)" }
    check { channels = 9, out = 9, text = "a = scale(x) {by=3}\nb = softcap(a) {cap=2}\nc = mul(a, b)\ny = add(c, x)" }
    check { channels = 9, out = 5, consts = { w = { 5, 9 }, b = { 5 } }, text = "y = conv1x1(x, w, b)" }
    for _, inputs in ipairs { "x, b, s", "x, -, s", "x, b" } do
      check { channels = 9, out = 9, consts = { b = { 9 }, s = { 9 } }, text = ("y = affine(%s)"):format(inputs) }
    end
  end)

  it("repeat heads and take their means", function()
    for _, times in ipairs { 1, 3 } do
      check { channels = 12, out = 12 * times, text = ("y = repeat_heads(x) {heads=4 times=%d}"):format(times) }
      check { channels = 12, out = 12 * times, text = ("y = repeat_heads(x) {heads=1 times=%d}"):format(times) }
      check { channels = 12, out = 12 // times, text = ("y = mean_heads(x) {heads=3 times=%d}"):format(times) }
    end
  end)

  it("slice, join and multiply head by head", function()
    check { channels = 12, out = 6, text = "y = slice(x) {from=1 to=3 heads=3}" }
    check { channels = 12, out = 12, text = "a = slice(x) {from=0 to=4}\nb = slice(x) {from=4 to=12}\ny = concat(b, a) {heads=2}" }
    check { channels = 12, out = 10, consts = { v = { 5, 6 }, w = { 5, 6 } }, text = "y = head_linear(x, v, w)" }
    check { channels = 12, out = 5, consts = { v = { 5, 12 } }, text = "y = head_linear(x, v)" }
  end)

  it("grow with the position", function()
    for _, original in ipairs { 1, 3 } do
      check { channels = 10, out = 10, text = ("y = position_scale(x, positions) {beta=0.3 original=%d}"):format(original) }
    end
  end)

  it("rotate heads: both layouts, all of a head and a part", function()
    for _, layout in ipairs { "half", "interleaved" } do
      for _, freq in ipairs { "1 0.3 0.05 0.01", "1 0.2" } do
        local text = "r = rope_table(positions) {inv_freq=[%s] magnitude=1.25}\ny = rope(x, r) {heads=3 layout=%s}"
        check { channels = 24, out = 24, text = text:format(freq, layout) }
      end
    end
  end)

  it("look back over tokens", function()
    for _, o in ipairs {
      { channels = 6, out = 6, groups = 6, taps = 2 }, { channels = 6, out = 6, groups = 6, taps = 5, flat = true },
      { channels = 6, out = 4, groups = 2, taps = 3 }, { channels = 5, out = 7, groups = 1, taps = 4 },
    } do
      local shape = o.flat and { o.out, o.taps } or { o.out, o.channels // o.groups, o.taps }
      for _, inputs in ipairs { "-, -", "b, -", "b, c" } do
        local text = "state s: fp32[1, %d, %d, 1]\ny = conv_causal(x, w, %s, s) {groups=%d}"
        check { channels = o.channels, out = o.out, consts = { w = shape, b = { o.out }, c = { o.channels } },
                text = text:format(o.channels, o.taps - 1, inputs, o.groups) }
      end
    end
    check { channels = 7, out = 7, text = "state s: fp32[1, 7, 1, 1]\ny = delay(x, s)" }
  end)

  local function attention(o)
    local text = [[
      state k: fp32[1, %d, context, 4]
      state v: fp32[1, %d, context, 4]
      q = slice(x) {from=0 to=%d}
      a = slice(x) {from=%d to=%d}
      b = slice(x) {from=%d to=%d}
      y = attention(q, a, b, k, v%s) {heads=%d kv_heads=%d scale=0.6 %s}
    ]]
    local nq, nk = 4 * o.heads, 4 * o.kv
    return {
      channels = nq + 2 * nk, out = nq, consts = { sinks = { o.heads } },
      text = text:format(o.kv, o.kv, nq, nq, nq + nk, nq + nk, nq + 2 * nk, o.sinks and ", sinks" or "", o.heads, o.kv, o.more or ""),
    }
  end

  it("attend: heads in groups, windows, caps, sinks", function()
    for _, o in ipairs {
      { heads = 1, kv = 1 }, { heads = 3, kv = 3 }, { heads = 6, kv = 2 }, { heads = 4, kv = 1, more = "window=3" },
      { heads = 6, kv = 3, more = "softcap=0.7" }, { heads = 6, kv = 2, sinks = true, more = "window=4 sink_scale=0.5" },
      { heads = 2, kv = 2, sinks = true },
    } do
      check(attention(o))
    end
  end)

  it("attend to both sides, in one call", function()
    local whole = { { steps = { 9 }, fixed_t = 9, context = 9 }, { steps = { 9 }, fixed_t = 9, context = 9, layout = "c1t" } }
    check(attention { heads = 6, kv = 2, more = "window=3 ahead=2" }, whole)
    check(attention { heads = 2, kv = 2, sinks = true, more = "ahead=20" }, whole)
    local g <close> = ops.graph(ops.new(attention { heads = 2, kv = 2, more = "ahead=2" }))
    local e = assert(require "ane.core".mil_exporter(g, { whole = true, context = 9, embed = true }))
    local ok, message, code = e:write(1, os.tmpname() .. "-both")
    assert.is_nil(ok)
    assert.equal("y: attention to both sides needs a fixed number of tokens", message)
    assert.equal("unsupported", code)
  end)

  local function mixture(o)
    local n, i, c = 5, 6, 8
    local consts, inputs = { router = { n + (o.null or 0), c }, bias = { n + (o.null or 0) }, factors = { n + (o.null or 0) } }, {}
    for e = 1, n do
      local parts = { "g", i, c, "u", i, c, "d", c, i }
      for at = 1, 9, 3 do
        local name = parts[at] .. e
        consts[name], consts[name .. "b"] = { parts[at + 1], parts[at + 2] }, { parts[at + 1] }
        inputs[#inputs + 1] = name
        inputs[#inputs + 1] = o.biases and name .. "b" or "-"
      end
    end
    return {
      channels = c, out = c, consts = consts,
      text = ("z = conv1x1(x, router)\nr = route(z, %s, %s) {%s}\ny = experts(x, r, %s) {count=%d %s}"):format(
        o.bias and "bias" or "-", o.factors and "factors" or "-", o.route, table.concat(inputs, ", "), n, o.experts or ""),
    }
  end

  it("route to experts: all scores, norms, biases, slots without an expert", function()
    for _, score in ipairs { "sigmoid", "softmax", "softmax_topk" } do
      for _, k in ipairs { 1, 3, 5 } do
        check(mixture { route = ("k=%d score=%s"):format(k, score) })
        check(mixture { route = ("k=%d score=%s norm=1 norm_eps=0.001 scale=2.5"):format(k, score), bias = true, biases = true })
      end
      check(mixture { route = ("k=2 score=%s norm=1"):format(score), null = 2, bias = true, experts = "act=gelu_erf" })
        check(mixture { route = ("k=2 score=%s norm=1 scale=1.5"):format(score), null = 1, factors = true })
    end
    check(mixture { route = "k=2", biases = true, experts = "act=swiglu_oai limit=0.5 alpha=1.3" })
    check(mixture { route = "k=2", biases = true, experts = "act=gelu_tanh soft=1" })
    -- A limit beyond the range of int32.
    check(mixture { route = "k=2", biases = true, experts = "act=swiglu_oai limit=1e30 alpha=1.3" })
  end)

  it("route to the best groups of experts first", function()
    for _, groups in ipairs { "3 groups_kept=2 group_best=1", "3 groups_kept=1 group_best=2", "2 groups_kept=1 group_best=2",
                              "2 groups_kept=1 group_best=3", "2 groups_kept=2 group_best=2" } do
      check(mixture { route = "k=2 norm=1 score=sigmoid groups=" .. groups, null = 1, bias = true })
    end
    check(mixture { route = "k=2 score=softmax groups=3 groups_kept=2 group_best=1", null = 1 })
  end)
end)
