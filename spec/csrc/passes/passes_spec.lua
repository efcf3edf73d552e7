-- Each pass as two short texts: the nodes before and after.
local core = require "ane.core"
local graphs = require "support.graphs"
local programs = require "support.programs"

local HEAD = [[
  input ids: int32[1, T]
  input positions: int32[1, T]
  input out_rows: int32[1, W]
  const table: fp32[16, 8]
  const n: fp32[8]
  const m: fp32[4]
  const m2: fp32[4]
  const w: fp32[8, 8]
  const w2: fp32[8, 8]
  const w3: fp32[8, 8]
  const b: fp32[8]
  state ks: fp16[1, 2, context, 4]
  state vs: fp16[1, 2, context, 4]
  x = embed(ids, table)
  r = rope_table(positions) {inv_freq=[1 0.5]}
  r2 = rope_table(positions) {inv_freq=[1 0.25]}
]]

local function check(pass, before, after)
  local g <close> = graphs.parse(HEAD .. before)
  assert(g:pass(pass))
  assert(g:verify())
  -- The head's own nodes are dropped from the comparison where nobody uses them.
  local nodes = graphs.nodes(g):gsub("x = embed%b()\n", ""):gsub("r2? = rope_table%b() %b{}\n", "")
  assert.equal(graphs.trim(after), nodes)
end

local function unchanged(pass, text) check(pass, text, text) end

local function pass(name, cases)
  describe("pass " .. name, function()
    for _, case in ipairs(cases) do
      it(case[1], function()
        if case[3] then check(name, case[2], case[3]) else unchanged(name, case[2]) end
      end)
    end
  end)
end

pass("dead_code", {
  { "removes what no result needs, whole chains of it", [[
    y = conv1x1(x, w)
    z = scale(y) {by=2}
    u = add(y, z)
    v = scale(x) {by=3}
    give v
  ]], [[
    v = scale(x) {by=3}
    give v
  ]] },
  { "keeps what a result needs", [[
    y = conv1x1(x, w)
    v = scale(y) {by=3}
    give v y
  ]] },
})

pass("linear", {
  { "makes every conv1x1 a project, with its bias", [[
    y = conv1x1(x, w)
    z = conv1x1(y, w2, b)
    give z
  ]], [[
    y = linear(x, -, -, w, -)
    z = linear(y, -, -, w2, b)
    give z
  ]] },
})

pass("fuse_residual", {
  { "moves an add into the projection before it", [[
    y = linear(x, -, -, w, b)
    z = add(x, y)
    give z
  ]], [[
    z = linear(x, x, -, w, b)
    give z
  ]] },
  { "takes the second operand where both are projections", [[
    y = linear(x, -, -, w, -)
    y2 = linear(x, -, -, w2, -)
    z = add(y, y2)
    give z
  ]], [[
    y = linear(x, -, -, w, -)
    z = linear(x, y, -, w2, -)
    give z
  ]] },
  { "takes the first where only that is one", [[
    y = linear(x, -, -, w, -)
    z = add(y, x)
    give z
  ]], [[
    z = linear(x, x, -, w, -)
    give z
  ]] },
  { "leaves a projection that someone else uses", [[
    y = linear(x, -, -, w, -)
    z = add(x, y)
    u = mul(z, y)
    give u
  ]] },
  { "leaves a projection that is a result", [[
    y = linear(x, -, -, w, -)
    z = add(x, y)
    give z y
  ]] },
  { "leaves a projection that is added to itself", [[
    y = linear(x, -, -, w, -)
    z = add(y, y)
    give z
  ]] },
  { "leaves a projection that has a residual, and one with a gate", [[
    y = linear(x, x, -, w, -)
    z = add(x, y)
    y2 = linear(x, -, -, w, -, w2, -) {count=2 act=silu}
    z2 = add(z, y2)
    give z2
  ]] },
  { "moves the last of a chain of adds", [[
    y = linear(x, -, -, w, -)
    z = add(x, y)
    u = add(z, z)
    give u
  ]], [[
    z = linear(x, x, -, w, -)
    u = add(z, z)
    give u
  ]] },
})

pass("fuse_glu", {
  { "joins gate and up", [[
    g0 = linear(x, -, -, w, b)
    u0 = linear(x, -, -, w2, -)
    y = glu(g0, u0) {act=gelu_tanh}
    give y
  ]], [[
    y = linear(x, -, -, w, b, w2, -) {count=2 act=gelu_tanh}
    give y
  ]] },
  { "keeps silu, though it is glu's default", [[
    g0 = linear(x, -, -, w, -)
    u0 = linear(x, -, -, w2, b)
    y = glu(g0, u0)
    give y
  ]], [[
    y = linear(x, -, -, w, -, w2, b) {count=2 act=silu}
    give y
  ]] },
  { "leaves projections of other inputs", [[
    x2 = scale(x) {by=2}
    g0 = linear(x, -, -, w, -)
    u0 = linear(x2, -, -, w2, -)
    y = glu(g0, u0)
    give y
  ]] },
  { "leaves a gate that someone else uses", [[
    g0 = linear(x, -, -, w, -)
    u0 = linear(x, -, -, w2, -)
    y = glu(g0, u0)
    z = add(y, g0)
    give z
  ]] },
  { "leaves one that is gate and up", [[
    g0 = linear(x, -, -, w, -)
    y = glu(g0, g0)
    give y
  ]] },
  { "leaves a gate with a residual", [[
    g0 = linear(x, x, -, w, -)
    u0 = linear(x, -, -, w2, -)
    y = glu(g0, u0)
    give y
  ]] },
})

pass("fuse_projection", {
  { "joins projections of one input at the place of the first", [[
    q = linear(x, -, -, w, b)
    s = scale(q) {by=2}
    k = linear(x, -, -, w2, -)
    v = linear(x, -, -, w3, -)
    y = add(s, k)
    z = add(y, v)
    give z
  ]], [[
    q, k, v = linear(x, -, -, w, b, w2, -, w3, -) {count=3 outputs=3}
    s = scale(q) {by=2}
    y = add(s, k)
    z = add(y, v)
    give z
  ]] },
  { "leaves projections of other inputs, with residual, with norm or gate", [[
    q = linear(x, -, -, w, -)
    k = linear(q, -, -, w2, -)
    v = linear(x, k, -, w3, -)
    o = linear(x, -, n, w3, -) {norm=1}
    y = add(v, o)
    z = linear(x, -, -, w, -, w2, -) {count=2 act=silu}
    u = add(y, z)
    give u
  ]] },
  { "joins four at most", [[
    a = linear(x, -, -, w, -)
    c = linear(x, -, -, w, -)
    d = linear(x, -, -, w, -)
    e = linear(x, -, -, w, -)
    f = linear(x, -, -, w, -)
    give a c d e f
  ]], [[
    a, c, d, e = linear(x, -, -, w, -, w, -, w, -, w, -) {count=4 outputs=4}
    f = linear(x, -, -, w, -)
    give a c d e f
  ]] },
})

pass("fuse_norm", {
  { "moves a norm into the projection that uses it", [[
    h = rms_norm(x, n) {eps=1e-06 offset=1}
    y = linear(h, x, -, w, b)
    give y
  ]], [[
    y = linear(x, x, n, w, b) {norm=1 eps=1e-06 offset=1}
    give y
  ]] },
  { "and into joined and gated ones, also without a weight", [[
    h = rms_norm(x)
    y = linear(h, -, -, w, -, w2, -) {count=2 act=sigmoid}
    i = rms_norm(y, n)
    z = linear(i, -, -, w, -, w2, b) {count=2 outputs=2}
    give z z.1
  ]], [[
    y = linear(x, -, -, w, -, w2, -) {count=2 norm=1 act=sigmoid}
    z, z.1 = linear(y, -, n, w, -, w2, b) {count=2 outputs=2 norm=1}
    give z z.1
  ]] },
  { "leaves a norm that two use", [[
    h = rms_norm(x, n)
    y = linear(h, -, -, w, -)
    z = add(y, h)
    give z
  ]] },
  { "leaves a norm of groups, a layer norm, and the residual's norm", [[
    h = rms_norm(x, m) {groups=2}
    y = linear(h, -, -, w, -)
    i = layer_norm(y, n)
    z = linear(i, -, -, w, -)
    j = rms_norm(z, n)
    u = linear(x, j, -, w, -)
    give u
  ]] },
})

local function attention(q, k, attrs)
  return ("a = attention(%s, %s, x, ks, vs) {heads=2 kv_heads=2%s}\n give a"):format(q, k, attrs or "")
end
local function fused_attention(inputs, attrs)
  return ("a = fused_attention(%s) {heads=2 kv_heads=2%s}\n give a"):format(inputs, attrs or "")
end

local QK = "q = scale(x) {by=2}\n k = scale(x) {by=3}\n"

pass("fuse_attention", {
  { "takes norm and rope of q and k in, in this order", QK .. [[
    qn = rms_norm(q, m) {eps=1e-06 groups=2}
    kn = rms_norm(k, m2) {eps=1e-06 groups=2}
    qr = rope(qn, r) {heads=2 layout=interleaved}
    kr = rope(kn, r) {heads=2 layout=interleaved}
  ]] .. attention("qr", "kr", " scale=0.5 window=7 softcap=30"),
    QK .. fused_attention("q, k, x, ks, vs, -, r, m, m2", " scale=0.5 window=7 softcap=30 layout=interleaved norm=1 eps=1e-06") },
  { "or the norm behind the rope", QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r) {heads=2}
    qn = rms_norm(qr, m) {groups=2 offset=1}
    kn = rms_norm(kr, m) {groups=2 offset=1}
  ]] .. attention("qn", "kn"), QK .. fused_attention("q, k, x, ks, vs, -, r, m, m", " norm=2 offset=1") },
  { "or rope alone, or nothing", QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r) {heads=2}
  ]] .. attention("qr", "kr"), QK .. fused_attention("q, k, x, ks, vs, -, r, -, -") },
  { "and nothing at all", QK .. attention("q", "k"), QK .. fused_attention("q, k, x, ks, vs, -, -, -, -") },
  { "leaves ropes of two tables", QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r2) {heads=2}
  ]] .. attention("qr", "kr"), QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r2) {heads=2}
  ]] .. fused_attention("qr, kr, x, ks, vs, -, -, -, -") },
  { "leaves ropes of two layouts", QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r) {heads=2 layout=interleaved}
  ]] .. attention("qr", "kr"), QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r) {heads=2 layout=interleaved}
  ]] .. fused_attention("qr, kr, x, ks, vs, -, -, -, -") },
  { "leaves a norm of q alone, and norms of two kinds", QK .. [[
    qn = rms_norm(q, m) {groups=2}
  ]] .. attention("qn", "k"), QK .. [[
    qn = rms_norm(q, m) {groups=2}
  ]] .. fused_attention("qn, k, x, ks, vs, -, -, -, -") },
  { "leaves norms with two eps", QK .. [[
    qn = rms_norm(q, m) {groups=2}
    kn = rms_norm(k, m) {eps=1e-06 groups=2}
  ]] .. attention("qn", "kn"), QK .. [[
    qn = rms_norm(q, m) {groups=2}
    kn = rms_norm(k, m) {eps=1e-06 groups=2}
  ]] .. fused_attention("qn, kn, x, ks, vs, -, -, -, -") },
  { "leaves norms over all channels", QK .. [[
    qn = rms_norm(q, n)
    kn = rms_norm(k, n)
  ]] .. attention("qn", "kn"), QK .. [[
    qn = rms_norm(q, n)
    kn = rms_norm(k, n)
  ]] .. fused_attention("qn, kn, x, ks, vs, -, -, -, -") },
  { "leaves q and k that others see, for it works in place", [[
    q = scale(x) {by=2}
    qr = rope(q, r) {heads=2}
    kr = rope(q, r) {heads=2}
  ]] .. attention("qr", "kr"), [[
    q = scale(x) {by=2}
    qr = rope(q, r) {heads=2}
    kr = rope(q, r) {heads=2}
  ]] .. fused_attention("qr, kr, x, ks, vs, -, -, -, -") },
  { "leaves a turned q that others see", QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r) {heads=2}
    a = attention(qr, kr, x, ks, vs) {heads=2 kv_heads=2}
    z = add(a, qr)
    give z
  ]], QK .. [[
    qr = rope(q, r) {heads=2}
    kr = rope(k, r) {heads=2}
    a = fused_attention(qr, kr, x, ks, vs, -, -, -, -) {heads=2 kv_heads=2}
    z = add(a, qr)
    give z
  ]] },
})

pass("early_gather", {
  { "moves a take before what works on each token by itself, once for a value", [[
    a = attention(x, x, x, ks, vs) {heads=2 kv_heads=2}
    h = linear(a, x, -, w, -)
    g = linear(h, -, n, w2, -, w3, -) {count=2 norm=1 act=silu}
    y = linear(g, h, -, w, -)
    t = gather(y, out_rows)
    z = linear(t, -, n, w2, -) {norm=1}
    give z
  ]], [[
    a = attention(x, x, x, ks, vs) {heads=2 kv_heads=2}
    a.out_rows = gather(a, out_rows)
    x.out_rows = gather(x, out_rows)
    h = linear(a.out_rows, x.out_rows, -, w, -)
    g = linear(h, -, n, w2, -, w3, -) {count=2 norm=1 act=silu}
    y = linear(g, h, -, w, -)
    z = linear(y, -, n, w2, -) {norm=1}
    give z
  ]] },
  { "leaves what somebody needs of all tokens", [[
    h = scale(x) {by=2}
    t = gather(h, out_rows)
    a = attention(h, h, h, ks, vs) {heads=2 kv_heads=2}
    u = gather(a, out_rows)
    z = add(t, u)
    give z
  ]] },
  { "leaves a result of all tokens, and an embedding", [[
    h = scale(x) {by=2}
    t = gather(h, out_rows)
    u = gather(x, out_rows)
    z = add(t, u)
    give z h
  ]] },
  { "moves nodes of several outputs where all are taken", [[
    h = linear(x, -, -, w, -, w2, -) {count=2 outputs=2}
    t = gather(h, out_rows)
    u = gather(h.1, out_rows)
    z = add(t, u)
    give z
  ]], [[
    x.out_rows = gather(x, out_rows)
    h, h.1 = linear(x.out_rows, -, -, w, -, w2, -) {count=2 outputs=2}
    z = add(h, h.1)
    give z
  ]] },
  { "leaves these where one is not", [[
    h = linear(x, -, -, w, -, w2, -) {count=2 outputs=2}
    t = gather(h, out_rows)
    a = attention(h.1, h.1, h.1, ks, vs) {heads=2 kv_heads=2}
    u = gather(a, out_rows)
    z = add(t, u)
    give z
  ]], [[
    h, h.1 = linear(x, -, -, w, -, w2, -) {count=2 outputs=2}
    t = gather(h, out_rows)
    a = attention(h.1, h.1, h.1, ks, vs) {heads=2 kv_heads=2}
    u = gather(a, out_rows)
    z = add(t, u)
    give z
  ]] },
  { "moves experts with their route", [[
    l = slice(x) {to=4}
    e = route(l) {k=2}
    y = experts(x, e, w, -, w, -, w, -, w2, -, w2, -, w2, -) {count=2}
    t = gather(y, out_rows)
    give t
  ]], [[
    x.out_rows = gather(x, out_rows)
    l = slice(x.out_rows) {to=4}
    e = route(l) {k=2}
    y = experts(x.out_rows, e, w, -, w, -, w, -, w2, -, w2, -, w2, -) {count=2}
    give y
  ]] },
  { "leaves experts whose route others see", [[
    l = slice(x) {to=4}
    e = route(l) {k=2}
    y = experts(x, e, w, -, w, -, w, -, w2, -, w2, -, w2, -) {count=2}
    t = gather(y, out_rows)
    give t e
  ]] },
})

describe("pipelines", function()
  it("name what there is", function()
    local g <close> = graphs.parse(HEAD .. "give x")
    assert.same({ nil, "no pipeline gpu; there are: cpu, cpu-plain", "notfound" }, { g:passes "gpu" })
    local _, message, code = g:pass "fuse_all"
    assert.equal("no pass fuse_all; there are: " ..
      "dead_code, linear, fuse_residual, fuse_glu, fuse_projection, fuse_norm, fuse_attention, early_gather", message)
    assert.equal("notfound", code)
  end)

  it("refuse a graph without a result, also one without nodes", function()
    local g <close> = assert(core.graph "empty")
    assert.same({ nil, "pass dead_code: the graph empty has no result", "invalid" }, { g:pass "dead_code" })
  end)

  it("leave one node a projection group and an attention of a llama layer", function()
    local g <close> = programs.graph "llama-mixed"
    assert(g:passes "cpu")
    local ops = {}
    for op in g:dump():gmatch " = ([%w_]+)%(" do ops[#ops + 1] = op end
    local layer, last = "linear fused_attention linear linear linear ", "linear fused_attention gather gather linear linear linear "
    assert.equal("embed rope_table " .. layer:rep(2) .. last .. "linear", table.concat(ops, " "))
  end)

  -- Fusing changes where values stand, never what they are.
  local models = {
    "llama-mixed", "llama-kquants", "qwen2-q4_0", "qwen2-bf16", "gemma3-q8_0", "llama-odd", "qwen2-odd", "gemma3-odd",
  }
  for _, model in ipairs(models) do
    it("fused and plain give the same bits: " .. model, function()
      for turn, isa in ipairs(core.isa_list()) do
        local ids = programs.ids(isa == "ref" and 20 or 90, 77, turn)
        for _, int8 in ipairs { true, false } do
          local bits = {}
          for i, pipeline in ipairs { "cpu", "cpu-plain" } do
            local p <close> = programs.open(model, { isa = isa, int8 = int8, pipeline = pipeline, threads = i })
            local s <close> = assert(p:session { context = 512, kv = turn % 2 == 0 and "fp16" or "int8" })
            bits[i] = programs.feed(s, ids, turn == 1 and 7 or 64)
          end
          assert.is_true(bits[1] == bits[2], ("%s, int8 %s"):format(isa, int8))
        end
      end
    end)
  end
end)
