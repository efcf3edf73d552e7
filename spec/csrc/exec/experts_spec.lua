-- Routing and experts against their formulas in doubles, on small graphs.
local core = require "ane.core"
local graphs = require "support.graphs"
local ops = require "support.ops"
local programs = require "support.programs"

local IDS = programs.ids(37, ops.VOCAB, 5)

-- The choice for one token: list of {number (0-based), weight}, ascending.
local function choose(logits, o)
  local score, sum, most = {}, 0, math.max(table.unpack(logits))
  for e, z in ipairs(logits) do
    score[e] = o.score == "sigmoid" and ops.sigmoid(z) or o.score == "softmax" and math.exp(z - most) or z
    sum = sum + score[e]
  end
  if o.score == "softmax" then for e = 1, #score do score[e] = score[e] / sum end end
  local order = {}
  for e = 1, #logits do order[e] = e end
  local function key(e) return score[e] + (o.bias and o.bias[e] or 0) end
  table.sort(order, function(a, b)
    if key(a) ~= key(b) then return key(a) > key(b) end
    return a < b
  end)
  local list, total = table.move(order, 1, o.k, 1, {}), 0
  table.sort(list)
  local out = {}
  for j, e in ipairs(list) do out[j] = { e - 1, o.score == "softmax_topk" and math.exp(score[e] - most) or score[e] } end
  for _, c in ipairs(out) do total = total + c[2] end
  if o.score == "softmax_topk" then
    for _, c in ipairs(out) do c[2] = c[2] / total end
    total = 1
  end
  for _, c in ipairs(out) do c[2] = (o.norm == 1 and c[2] / (total + (o.norm_eps or 0)) or c[2]) * (o.scale or 1) end
  for _, c in ipairs(o.factors and out or {}) do c[2] = c[2] * o.factors[c[1] + 1] end
  return out
end

local function attributes(o)
  return ("{k=%d score=%s norm=%d norm_eps=%g scale=%g}"):format(o.k, o.score, o.norm or 0, o.norm_eps or 0, o.scale or 1)
end

describe("route", function()
  local function check(o, logits)
    local g = ops.new {
      channels = o.n, out = 2 * o.k, consts = { bias = { o.n }, factors = { o.n } },
      given = { table = logits, bias = o.bias, factors = o.factors },
      text = ("y = route(x, %s, %s) %s"):format(o.bias and "bias" or "-", o.factors and "factors" or "-", attributes(o)),
    }
    local want = {}
    for t, x in ipairs(g.x(IDS)) do
      want[t] = {}
      for j, c in ipairs(choose(x, o)) do want[t][j], want[t][o.k + j] = c[1], c[2] end
    end
    ops.check(g, IDS, want, o)
    return want
  end

  for _, score in ipairs { "sigmoid", "softmax", "softmax_topk" } do
    it(score .. ": numbers ascend, weights follow", function()
      for _, k in ipairs { 1, 2, 5, 9 } do
        check { n = 9, k = k, score = score }
        check { n = 9, k = k, score = score, norm = 1, norm_eps = 0.25, scale = 1.5 }
        check { n = 9, k = k, score = score, scale = -2 }
      end
      check { n = 1, k = 1, score = score }
    end)

    it(score .. ": a bias turns the choice, not the weights", function()
      local bias = ops.random(9, 3, 2)
      local logits = ops.random(9, 1)
      -- Else the check below would not see the bias.
      assert.not_same(choose(logits, { k = 3, score = score }), choose(logits, { k = 3, score = score, bias = bias }))
      check { n = 9, k = 3, score = score, bias = bias }
      check { n = 9, k = 3, score = score, bias = bias, norm = 1, norm_eps = 1e-6, scale = 0.5 }
    end)

    it(score .. ": experts have factors of their own", function()
      for _, k in ipairs { 1, 4, 9 } do
        check { n = 9, k = k, score = score, factors = ops.random(9, 6, 2), norm = 1, norm_eps = 1e-6, scale = 0.5 }
        check { n = 9, k = k, score = score, factors = ops.random(9, 7, 2), bias = ops.random(9, 3, 2) }
      end
    end)

    it(score .. ": of equal ones the lower number is taken", function()
      local logits = {}
      for i = 1, ops.VOCAB * 6 do logits[i] = i % 2 end -- 1 0 1 0 1 0
      local want = check({ n = 6, k = 2, score = score }, logits)
      assert.same({ 0, 2 }, { want[1][1], want[1][2] })
      for i = 1, #logits do logits[i] = 0.5 end
      want = check({ n = 6, k = 4, score = score }, logits)
      assert.same({ 0, 1, 2, 3 }, { table.unpack(want[1], 1, 4) })
    end)

    it(score .. ": large logits overflow nowhere", function()
      local logits = ops.random(ops.VOCAB * 7, 4, score == "sigmoid" and 8 or 90) -- sigmoid rounds to 1 beyond
      check({ n = 7, k = 3, score = score, norm = 1, norm_eps = 1e-20, limit = 1e-4 }, logits)
    end)
  end
end)

-- A graph of experts. o: channels, inner, count, k, slots (count), act, limit_act, alpha, soft, biases, router_bias.
local function experts(o)
  local c, n, slots = o.channels, o.inner, o.slots or o.count
  local consts, list = { router = { slots, c }, choice = { slots } }, {}
  for e = 0, o.count - 1 do
    for _, part in ipairs { "gate", "up", "down" } do
      local w, b = part .. e, part .. "_b" .. e
      consts[w] = part == "down" and { c, n } or { n, c }
      if o.biases then consts[b] = { part == "down" and c or n } end
      list[#list + 1] = w
      list[#list + 1] = o.biases and b or "-"
    end
  end
  local given = { choice = o.choice, router = o.router }
  for name, shape in pairs(consts) do
    local seed = #name + (tonumber(name:match "%d+$") or 7) * 3
    given[name] = given[name] or ops.random(shape[1] * (shape[2] or 1), seed, o.size or 1)
  end
  return ops.new {
    channels = c, out = c, consts = consts, given = given,
    text = ("z = conv1x1(x, router)\nr = route(z%s) {k=%d score=%s norm=%d}\n" ..
      "y = experts(x, r, %s) {count=%d act=%s limit=%g alpha=%g soft=%d}"):format(
      o.choice and ", choice" or "", o.k, o.score or "softmax", o.norm or 0, table.concat(list, ", "), o.count, o.act or "silu",
      o.clamp or 7, o.alpha or 1.702, o.soft and 1 or 0),
  }
end

local function expected(g, o, ids)
  local rows, used, clamped = {}, {}, 0
  for t, x in ipairs(g.x(ids)) do
    local y = {}
    for i = 1, o.channels do y[i] = 0 end
    for _, pick in ipairs(choose(ops.matvec(g.c.router, x), { k = o.k, score = o.score or "softmax", norm = o.norm, bias = o.choice })) do
      local e, w = pick[1], pick[2]
      used[e] = (used[e] or 0) + 1
      if e < o.count then
        local gate, up = ops.matvec(g.c["gate" .. e], x, g.c["gate_b" .. e]), ops.matvec(g.c["up" .. e], x, g.c["up_b" .. e])
        for i = 1, o.inner do
          if o.act == "swiglu_oai" then
            local a, b = math.min(gate[i], o.clamp), math.max(-o.clamp, math.min(up[i], o.clamp))
            if a ~= gate[i] or b ~= up[i] then clamped = clamped + 1 end
            gate[i] = (b + 1) * a * ops.sigmoid(o.alpha * a)
          else
            gate[i] = ops.acts[o.act or "silu"](gate[i]) * up[i]
          end
        end
        for i, v in ipairs(ops.matvec(g.c["down" .. e], gate, g.c["down_b" .. e])) do y[i] = y[i] + w * v end
      end
    end
    rows[t] = y
  end
  return rows, used, clamped
end

local function check(o, ids)
  ids = ids or IDS
  local g = experts(o)
  local want, used, clamped = expected(g, o, ids)
  ops.check(g, ids, want, { limit = 1e-5 })
  o.soft = true
  ops.check(experts(o), ids, want, { limit = 1e-5 })
  return used, clamped
end

describe("experts", function()
  for _, act in ipairs { "silu", "gelu_tanh", "gelu_erf", "sigmoid" } do
    it(act .. ": are the weighted sum of the chosen, sparse and soft", function()
      check { channels = 12, inner = 20, count = 4, k = 2, act = act, biases = act ~= "silu" }
    end)
  end

  it("swiglu_oai: clamps gate above and up on both sides", function()
    local _, clamped = check {
      channels = 12, inner = 20, count = 4, k = 2, act = "swiglu_oai", clamp = 0.75, alpha = 1.3, biases = true, size = 1.5,
    }
    assert.is_true(clamped > 100)
  end)

  it("take any k up to all", function()
    for k = 1, 5 do check { channels = 9, inner = 7, count = 5, k = k, norm = k % 2, biases = k == 3 } end
  end)

  it("may be one", function() check { channels = 5, inner = 33, count = 1, k = 1, score = "sigmoid" } end)

  it("wider than the rows that a thread takes at once", function()
    check({ channels = 70, inner = 150, count = 3, k = 2, size = 0.2 }, programs.slice(IDS, 1, 17))
  end)

  it("a slot behind the last adds nothing", function()
    local used = check { channels = 8, inner = 12, count = 3, slots = 4, k = 1, choice = { 0, 0, 0, 0.1 } }
    assert.is_true(used[3] > 0 and used[3] < #IDS)
    used = check { channels = 8, inner = 12, count = 3, slots = 5, k = 2, choice = { 0, 0, 0, 0.1, 0 } }
    assert.is_true(used[3] > 0 and used[4] > 0)
    -- All tokens skip: nothing is multiplied, and the sum is zero.
    used = check { channels = 8, inner = 12, count = 3, slots = 4, k = 1, choice = { 0, 0, 0, 9 } }
    assert.same({ [3] = #IDS }, used)
  end)

  it("may be chosen by no token, or by all", function()
    local used = check { channels = 8, inner = 12, count = 4, k = 2, choice = { 0, -9, 0, 0 } }
    assert.is_nil(used[1])
    used = check { channels = 8, inner = 12, count = 4, k = 1, choice = { 0, 0, 9, 0 } }
    assert.same({ [2] = #IDS }, used)
  end)

  it("do not see what else is in the run", function()
    local o = { channels = 12, inner = 20, count = 4, k = 2 }
    local g = experts(o)
    local want = expected(g, o, IDS)
    local p <close> = ops.program(g, { threads = 2 })
    local a <close> = assert(p:session { context = 100 })
    local b <close> = assert(p:session { context = 100 })
    assert(core.testing.run { { a, programs.slice(IDS, 1, 5), "all" }, { b, programs.slice(IDS, 6, 12), "all" } })
    for s, from in pairs { [a] = 0, [b] = 5 } do
      for i = 1, s:rows() do
        local row = {}
        for c = 1, 12 do row[c] = s:logits(i):get(c) end
        assert.is_nil(ops.apart({ row }, { want[from + i] }, 1e-5))
      end
    end
  end)

  -- Rows of whole blocks, so that the formats are taken. The choice is fixed: rounded router weights must not turn it.
  it("meet activations of 8 and 16 bits in one way, sparse and soft", function()
    local function open(soft)
      return experts { channels = 64, inner = 96, count = 5, k = 2, choice = { 0, 9, 0, 9, 0 }, soft = soft, biases = true, size = 0.3 }
    end
    local want = ops.run(open(), IDS)
    for _, weights in ipairs { "q8_0", "int8", "int8-channel", "bf16", "q4_1" } do
      for _, isa in ipairs(core.isa_list()) do
        local p <close> = ops.program(open(), { weights = weights, int8 = true, isa = isa })
        for _, m in ipairs(p:info().matrices) do
          assert.is_true(m.act ~= "fp32" or weights == "bf16" or not m.name:find "^[gud]", m.name .. " meets fp32")
        end
        local first, near
        for _, way in ipairs { {}, { threads = 3 }, { step = 1 }, { step = 5, threads = 2 }, { soft = true, threads = 2 },
          { step = 3, threads = 3, manner = "mixed" } } do
          way.weights, way.int8, way.isa = weights, true, isa
          local rows, bits = ops.run(open(way.soft), IDS, way)
          first, near = first or bits, near or rows
          assert.is_true(bits == first or way.soft and not ops.apart(rows, near, 1e-5), weights .. " on " .. isa)
          local dot, a, b = 0, 0, 0
          for t, row in ipairs(rows) do
            for i, v in ipairs(row) do dot, a, b = dot + v * want[t][i], a + v * v, b + want[t][i] ^ 2 end
          end
          assert.is_true(dot / math.sqrt(a * b) > (weights == "q4_1" and 0.98 or 0.999), weights .. " on " .. isa)
        end
      end
    end
  end)

  it("read no activation that no step wrote", function()
    local g = experts { channels = 12, inner = 20, count = 4, slots = 5, k = 2 }
    for _, int8 in ipairs { false, true } do
      local p <close> = ops.program(g, { threads = 2, int8 = int8, weights = int8 and "int8" or nil })
      local s <close> = assert(p:session { context = 100 })
      local first = programs.feed(s, IDS, 16)
      assert(s:rewind(0))
      core.testing.poison(s)
      assert.is_true(first == programs.feed(s, IDS, 16))
    end
  end)
end)

describe("a graph of experts", function()
  local HEAD = [[
    input ids: int32[1, T]
    input out_rows: int32[1, W]
    const table: fp32[9, 8]
    const router: fp32[3, 8]
    const three: fp32[3]
    const w: fp32[6, 8]
    const d: fp32[8, 6]
    const n6: fp32[6]
    x = embed(ids, table)
    z = conv1x1(x, router)
    r = route(z) {k=2}
  ]]

  local function refused(text, pattern)
    local ok, message = pcall(graphs.parse, HEAD .. text)
    assert.is_false(ok)
    assert.matches(pattern, message)
  end

  it("is checked where it is built", function()
    refused("y = route(z) {k=0}", "0 of 3 experts")
    refused("y = route(z) {k=4}", "4 of 3 experts")
    refused("y = route(z) {score=relu}", "router score relu is unknown; known are: sigmoid, softmax, softmax_topk")
    refused("y = route(z, n6)", "bias n6 must be %[3%], but is %[6%]")
    refused("y = route(z, -, n6)", "factors n6 must be %[3%], but is %[6%]")
    refused("y = experts(x, r, w, -, w, -, d, -) {count=2}", "2 experts with 8 inputs")
    refused("y = experts(x, r, w, -, w, -, w, -)", "weight w must be %[N, 6%] for an input of 6 channels, but is %[6, 8%]")
    refused("y = experts(x, r, w, three, w, -, d, -)", "gate bias three must be %[6%], but is %[3%]")
    refused("y = experts(x, r, w, -, w, -, d, n6)", "down bias n6 must be %[8%], but is %[6%]")
    refused("y = experts(x, r, -, -, w, -, d, -)", "the weight is absent")
    refused("y = experts(x, r, w, -, -, -, d, -)", "the weight is absent")
    refused("y = experts(x, r, w, -, w, -, -, -)", "the weight is absent")
    refused("y = experts(x, z, w, -, w, -, d, -)", "z must be the output of route, but is fp32%[1, 3, %?, 1%]")
    refused("y = experts(x, r, w, -, w, -, d, -) {act=elu}", "activation elu is unknown")
  end)

  -- Expert numbers are indices: anything else of an even width would be read as such.
  it("runs behind route only", function()
    local g <close> = graphs.parse(HEAD .. [[
      y = experts(x, x, w, -, w, -, d, -)
      t = gather(y, out_rows)
      out = conv1x1(t, router)
      give out
    ]])
    assert(g:passes "cpu")
    local p, message, code = core.program(g, { threads = 1, context = 10, chunk = 8 })
    assert.is_nil(p)
    assert.same({ "y: x is not the output of route", "unsupported" }, { message, code })
  end)
end)
