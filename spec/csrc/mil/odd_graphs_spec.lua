-- Exports of graphs that no recipe of the fixtures makes.
local core = require "ane.core"
local floats = require "support.floats"
local graphs = require "support.graphs"
local lowered = require "support.lowered"
local ops = require "support.ops"
local programs = require "support.programs"

local PATHS = {}

local function fresh()
  local path = os.tmpname()
  os.remove(path)
  PATHS[#PATHS + 1] = path
  return path
end

teardown(function()
  for _, path in ipairs(PATHS) do os.execute(("rm -rf '%s'"):format(path)) end
end)

describe("an asset of a model in one shard", function()
  it("has a prompt_opt, too", function()
    local g <close> = ops.graph(ops.new {
      channels = 32, out = 12, consts = { v = { 12, 32 } },
      text = [[
        state ks: fp32[1, 2, context, 8]
        state vs: fp32[1, 2, context, 8]
        q = slice(x) {from=0 to=16}
        k = slice(x) {from=16 to=32}
        o = attention(q, k, k, ks, vs) {heads=2 kv_heads=2}
        j = concat(o, q)
        y = conv1x1(j, v)
      ]],
    })
    local e <close> = assert(core.mil_exporter(g, { context = 16, whole = true, weights = "int8", threads = 1 }))
    local names = {}
    for i, f in ipairs(assert(e:coreai(fresh(), { 16 }, { 2 }))) do names[i] = f.name .. " " .. f.outputs[1].name end
    assert.same({ "load_embeddings embedding_table", "gather_embeddings_2 gathered_embeddings", "extend_16_2 out_logits",
                  "prompt_opt_16_2 out_prompt_opt" }, names)
  end)
end)

describe("an asset of several shards", function()
  it("has a state for each of theirs, also where names differ by a sign only", function()
    local function write(keys, values)
      local text = [[
        input ids: int32[1, T]
        input out_rows: int32[1, W]
        const table: fp32[16, 16]
        const w: fp32[12, 16]
        state s.k: fp32[1, 2, context, 8]
        state s.v: fp32[1, 2, context, 8]
        state KEYS: fp32[1, 2, context, 8]
        state VALUES: fp32[1, 2, context, 8]
        x = embed(ids, table)
        layers.0.o = attention(x, x, x, s.k, s.v) {heads=2 kv_heads=2}
        layers.0.y = add(x, layers.0.o)
        layers.1.o = attention(layers.0.y, layers.0.y, layers.0.y, KEYS, VALUES) {heads=2 kv_heads=2}
        layers.1.y = add(layers.0.y, layers.1.o)
        t = gather(layers.1.y, out_rows)
        out = conv1x1(t, w)
        give out]]
      text = text:gsub("KEYS", keys):gsub("VALUES", values)
      local g <close> = graphs.parse(text)
      local e <close> = assert(core.mil_exporter(g, { context = 8, layers = 1, weights = "fp16", threads = 1 }))
      local path = fresh()
      assert(e:coreai(path, { 8 }, { 2 }))
      local asset <close> = assert(core.aimodel(path))
      return asset:text()
    end
    assert.equal(write("other.k", "other.v"), write("s_k", "s_v"))
  end)
end)

describe("a lowering in fp16", function()
  local IDS = programs.ids(9, ops.VOCAB, 3)
  local HALF = { steps = { 3, 3, 3 }, fixed_t = 3, fp32 = false, weights = "fp16", precision = "fp16", norm = "fp32" }

  it("refuses factors and tables that fp16 has no numbers for", function()
    local function fails(why, text, variant)
      local v = { rope = "constants" }
      for key, value in pairs(HALF) do v[key] = value end
      for key, value in pairs(variant or {}) do v[key] = value end
      local ok, message = pcall(lowered.rows, ops.graph(ops.new { channels = 8, out = 8, text = text }), 8, IDS, v, 16)
      assert.equal(why == nil, ok, tostring(message))
      if why then assert.is_truthy(tostring(message):find(why, 1, true), tostring(message)) end
    end
    fails("y: a factor of 1e+06 is beyond fp16", "y = scale(x) {by=1000000.0}")
    fails("y: a factor of 1e-08 is beyond fp16", "y = scale(x) {by=0.00000001}")
    fails("y: a factor of 1e+06 is beyond fp16", "y = softcap(x) {cap=1000000.0}")
    fails(nil, "y = scale(x) {by=1000000.0}", { fp32 = true, precision = "fp32" })
    local rope = "r = rope_table(positions) {inv_freq=[1 0.1] magnitude=1000000.0}\ny = rope(x, r) {heads=2}"
    fails("y: cos has a number that is not finite in fp16", rope)
    fails(nil, rope, { fp32 = true, precision = "fp32" })
    fails("y: factors has a number that is not finite in fp16", "y = position_scale(x, positions) {beta=1000000.0 original=1}")
  end)

  -- Sigmoids of -20 are 0 in fp16, and so is 1e-20.
  it("routes to finite weights where all scores vanish", function()
    local low = {}
    for i = 1, ops.VOCAB * 4 do low[i] = -20.0 end
    local mixture = "y = experts(x, n, a, -, b, -, c, -, a, -, b, -, c, -, a, -, b, -, c, -) {count=3}"
    local o = ops.new {
      channels = 4, out = 4, given = { table = low }, consts = { a = { 4, 4 }, b = { 4, 4 }, c = { 4, 4 } },
      text = "l = slice(x) {from=0 to=3}\nn = route(l) {k=2 score=sigmoid norm=1 norm_eps=1e-20}\n" .. mixture,
    }
    for _, row in ipairs(lowered.rows(ops.graph(o), 4, IDS, HALF, 16)) do assert.same({ 0, 0, 0, 0 }, row) end
  end)
end)

describe("a table in the package", function()
  it("gives its row 0 for ids beyond it", function()
    local ids = { 1, 5, 30, 39, 2, 9, 10, 0, 3 }
    local o = ops.new { channels = 8, out = 8, consts = { small = { 10, 8 } }, text = "z = embed(ids, small) {rest=1}\ny = add(x, z)" }
    local want = ops.run(o, ids, { kv = "fp32" })
    assert.is_nil(ops.apart(lowered.rows(ops.graph(o), 8, ids, { steps = { 4, 5 } }, 16), want, 1e-5))
    assert.is_nil(ops.apart(lowered.rows(ops.graph(o), 8, ids, { steps = { 9 }, fixed_t = 9 }, 16), want, 1e-5))
  end)
end)

describe("a mixture", function()
  it("may have more experts than its router has slots", function()
    local ids = programs.ids(9, ops.VOCAB, 3)
    local o = ops.new {
      channels = 4, out = 4, consts = { r = { 2, 4 }, a = { 3, 4 }, b = { 3, 4 }, c = { 4, 3 } },
      text = "l = conv1x1(x, r)\nn = route(l) {k=1 norm=1}\n" ..
        "y = experts(x, n, a, -, b, -, c, -, b, -, a, -, c, -, b, -, b, -, c, -) {count=3}",
    }
    local want = ops.run(o, ids, { kv = "fp32" })
    assert.is_nil(ops.apart(lowered.rows(ops.graph(o), 4, ids, { steps = { 4, 5 } }, 16), want, 1e-5))
    local parts = { steps = { 4, 5 }, whole = false, expert_parts = 3 }
    assert.is_nil(ops.apart(lowered.rows(ops.graph(o), 4, ids, parts, 16), want, 1e-5))
  end)
end)

describe("an asset", function()
  local function fails(why, o, more, result)
    local g <close> = ops.graph(ops.new(o))
    local options = { context = 16, weights = "int8", threads = 1 }
    for key, value in pairs(more) do options[key] = value end
    local e <close> = assert(core.mil_exporter(g, options))
    local made, message, code = e:coreai(fresh(), { 16 }, { 2 }, nil, nil, result)
    assert.same({ nil, why, "invalid" }, { made, message, code })
  end

  it("has no rope table beyond fp16", function()
    fails("function extend_16_2: r: its table has a number that is not finite in fp16", {
      channels = 8, out = 8,
      text = "r = rope_table(positions) {inv_freq=[1 0.1] magnitude=1000000.0}\ny = rope(x, r) {heads=2}",
    }, {})
  end)

  it("has no dense layer beyond fp16", function()
    local huge = { 1, 2, 3, 4, 5, 6, 7, 1e6 }
    for i, dense in ipairs { { weight = huge }, { weight = { 1, 1, 1, 1, 1, 1, 1, 1 }, bias = { 0 / 0, 1 } } } do
      local d = { rows = 2, columns = 4, weight = floats.pack(dense.weight), bias = dense.bias and floats.pack(dense.bias) }
      fails(("function main: dense layer 1: its %s has a number that is not finite in fp16"):format(i == 1 and "weight" or "bias"),
        { channels = 4, out = 4, text = "y = act(x) {act=relu}" }, { stateless = true, hidden = true },
        { poolings = { "mean" }, dense = { d } })
    end
  end)
end)
