-- Single blocks as Core AI assets, beside the same nets written in torch and converted by Apple's coreai-torch. Needs a Python with
-- coreai-core and coreai-torch in ANE_COREAI_PYTHON; without it, nothing is run.
local ane = require "ane"
local core = require "ane.core"
local ops = require "support.ops"
local tree = require "support.tree"

local python = os.getenv "ANE_COREAI_PYTHON"
if not python or not os.execute(("%s -c 'import coreai_torch' 2>/dev/null"):format(python)) then
  it("blocks equal those of coreai-torch", function() pending "coreai-torch is not installed (ANE_COREAI_PYTHON)" end)
  return
end

local IDS, CONTEXT = { 7, 11, 3, 25 }, 16

local ROPE = "r = rope_table(positions) {inv_freq=[1 0.25]}\n"
local NETS = {
  { name = "RMSNorm", kind = "rms_norm", channels = 32, out = 32, consts = { w = { 32 } }, text = "y = rms_norm(x, w) {eps=0.00001}" },
  { name = "LayerNorm", kind = "layer_norm", channels = 32, out = 32, consts = { w = { 32 }, b = { 32 } },
    text = "y = layer_norm(x, w, b) {eps=0.00001}" },
  { name = "linear", kind = "linear", channels = 32, out = 24, consts = { w = { 24, 32 }, b = { 24 } }, text = "y = conv1x1(x, w, b)" },
  { name = "SwiGLU", kind = "swiglu", channels = 32, out = 32, consts = { g = { 48, 32 }, u = { 48, 32 }, d = { 32, 48 } },
    text = "a = conv1x1(x, g)\nb = conv1x1(x, u)\nc = glu(a, b) {act=silu}\ny = conv1x1(c, d)" },
  { name = "GELU", kind = "gelu", channels = 32, out = 32, consts = { w = { 48, 32 }, b = { 48 }, d = { 32, 48 } },
    text = "a = conv1x1(x, w, b)\nc = act(a) {act=gelu_tanh}\ny = conv1x1(c, d)" },
  { name = "soft cap", kind = "softcap", channels = 32, out = 32, text = "y = softcap(x) {cap=2}" },
  { name = "attention with rope", kind = "attention", channels = 32, out = 16, heads = 4, kv_heads = 2, inv_freq = { 1.0, 0.25 },
    consts = { wq = { 16, 32 }, wk = { 8, 32 }, wv = { 8, 32 } },
    text = "state ks: fp32[1, 2, context, 4]\nstate vs: fp32[1, 2, context, 4]\n" .. ROPE ..
      "q = conv1x1(x, wq)\nk = conv1x1(x, wk)\nv = conv1x1(x, wv)\nqr = rope(q, r) {heads=4 layout=half}\n" ..
      "kr = rope(k, r) {heads=2 layout=half}\ny = attention(qr, kr, v, ks, vs) {heads=4 kv_heads=2 scale=0.5}" },
  { name = "causal convolution", kind = "conv", channels = 32, out = 32, consts = { w = { 32, 1, 3 } },
    text = "state s: fp32[1, 32, 2, 1]\ny = conv_causal(x, w, -, -, s) {groups=32}" },
  { name = "mixture of experts", kind = "mixture", channels = 16, out = 16, consts = { router = { 3, 16 } }, experts = 3 },
  { name = "Mamba-2", kind = "scan", heads = 4, n = 6, p = 4, channels = 4 * 4 + 2 * 6 + 4, out = 16,
    consts = { a = { 4 }, skip = { 4 }, bias = { 4 } },
    text = "state s: fp32[1, 4, 6, 4]\nu = slice(x) {from=0 to=28}\ndt = slice(x) {from=28 to=32}\n" ..
      "y = ssm_scan(u, dt, a, skip, bias, s) {groups=1}" },
  { name = "delta rule", kind = "delta", heads = 2, n = 6, p = 5, channels = 2 * 2 * 6 + 2 * 5 + 4, out = 10,
    consts = { a = { 2 }, bias = { 2 } },
    text = "state s: fp32[1, 2, 6, 5]\nu = slice(x) {from=0 to=34}\nd = slice(x) {from=34 to=36}\nb = slice(x) {from=36 to=38}\n" ..
      "y = delta_rule(u, d, b, a, bias, s) {key_heads=2}" },
}

local function add_experts(net)
  local list = {}
  for e = 0, net.experts - 1 do
    for _, part in ipairs { { "g", 24, 16 }, { "u", 24, 16 }, { "d", 16, 24 } } do
      net.consts[part[1] .. e] = { part[2], part[3] }
      list[#list + 1] = part[1] .. e .. ", -"
    end
  end
  net.text = ("z = conv1x1(x, router)\nr = route(z) {k=2 score=softmax_topk}\ny = experts(x, r, %s) {count=%d act=silu}"):format(
    table.concat(list, ", "), net.experts)
end

describe("blocks beside those of coreai-torch:", function()
  local folder = tree.folder()
  teardown(function() tree.remove(folder) end)

  -- The nets as ane's assets and as a file for Python; results by name.
  local function run_all()
    local list = {}
    for i, net in ipairs(NETS) do
      if net.experts then add_experts(net) end
      local shapes = {}
      for name, shape in pairs(net.consts or {}) do shapes[name] = shape end
      local o = ops.new(net)
      local graph <close> = ops.graph(o)
      local exporter <close> = assert(core.mil_exporter(graph, { weights = "fp16", context = CONTEXT }))
      net.path = ("%s/own%d.aimodel"):format(folder, i)
      assert(exporter:coreai(net.path, { CONTEXT }, { #IDS }))
      local consts = {}
      for name, shape in pairs(shapes) do consts[name] = { shape = shape, data = o.c[name] } end
      list[i] = { name = net.name, kind = net.kind, heads = net.heads, kv_heads = net.kv_heads, n = net.n, p = net.p,
                  inv_freq = net.inv_freq, x = o.x(IDS), consts = consts, own = net.path, context = CONTEXT, rows = ops.VOCAB }
    end
    assert(core.write_file(folder .. "/nets.json", (core.json_encode(list))))
    local pipe = assert(io.popen(("%s spec/fixtures/aimodel/side_by_side.py %s/nets.json %s 2>&1"):format(python, folder, folder)))
    local text = pipe:read "a"
    assert(pipe:close(), text)
    return assert(core.json_decode(assert(core.read_file(folder .. "/results.json"))))
  end

  -- What our runner makes of an asset of coreai-torch.
  local function ours(net)
    local pkg <close> = assert(ane.package(("%s/%s.aimodel"):format(folder, net.name)))
    local x = { shape = { 1, #IDS, net.channels }, data = {} }
    for _, row in ipairs(net.x(IDS)) do table.move(row, 1, #row, #x.data + 1, x.data) end
    local y = assert(pkg:predict { x = x }).y
    local flat, rows = y:reshape({ #y }):totable(), {}
    for t = 1, #IDS do rows[t] = table.move(flat, (t - 1) * net.out + 1, t * net.out, 1, {}) end
    return rows
  end

  local function names_of(path, function_name)
    local asset = assert(core.aimodel(path))
    local list = {}
    for _, f in ipairs(asset:contents().functions) do
      if not function_name or f.name == function_name then
        for op, times in pairs(f.ops) do list[#list + 1] = ("%s %d"):format(op, times) end
      end
    end
    asset:close()
    table.sort(list)
    return table.concat(list, ", ")
  end

  local results
  setup(function() results = run_all() end)

  for _, net in ipairs(NETS) do
    it("gives the same results: " .. net.name, function()
      local r = results[net.name]
      assert.is_nil(ops.apart(r.own, r.torch, 0.01))
      if os.getenv "ANE_SIDE_BY_SIDE" then
        print(net.name, "torch", r.error or names_of(("%s/%s.aimodel"):format(folder, net.name)), "ane",
          names_of(net.path, ("extend_%d_%d"):format(CONTEXT, #IDS)))
      end
      assert.is_nil(r.error)
      assert.is_nil(ops.apart(r.converted, r.torch, 0.03)) -- its products are summed in fp16
      assert.is_nil(ops.apart(ours(net), r.torch, 0.01))
    end)
  end
end)
