-- Where graphs are cut, checked against what the text form of the graph says.
local core = require "ane.core"
local graphs = require "support.graphs"
local partition = require "support.partition"
local programs = require "support.programs"

local HF = "spec/fixtures/hf/"
local MODELS = {
  "llama-q8_0", "gemma3-odd", "qwen2-odd", HF .. "zaya-odd", HF .. "zaya_original-odd", HF .. "lfm2_moe-odd", HF .. "privacy_filter-odd",
  HF .. "qwen2_moe-odd", HF .. "gemma3n-odd", HF .. "gemma4-odd",
}

local cut, set = partition.cut, partition.set

local function check(name, opts)
  local g <close> = programs.graph(name)
  return partition.check(name, g, opts)
end

describe("cuts", function()
  it("cover every node once, and pass on what the next shards need", function()
    for _, name in ipairs(MODELS) do
      for _, target in ipairs { 1, 5000, 20000, 1 << 40 } do
        for _, parts in ipairs { 0, 1, 2, 3, 1000 } do
          local plan, slices = check(name, { weights = "fp16", target = target, size_limit = 2 * target, rows = 100, expert_parts = parts })
          for _, p in ipairs(plan.shards) do
            if p.kind == "head" and p.split then assert.equal(plan.rows, slices[p.split]) end
            if p.kind == "layers" and p.first ~= p.last then assert.is_true(p.bytes <= target) end
            if p.kind == "head" then assert.is_true(p.to - p.from <= 100 and (p.bytes <= target or p.to - p.from == 1)) end
          end
        end
      end
    end
  end)

  it("hold each layer once, in order", function()
    for _, name in ipairs(MODELS) do
      local plan = check(name, { weights = "fp16", target = 9000, size_limit = 9000 })
      local next_layer, next_part = 0, 0
      for _, p in ipairs(plan.shards) do
        if p.kind == "layers" and p.parts then
          assert.same({ next_layer, next_layer, next_part }, { p.first, p.last, p.part })
          next_part = p.part + 1 < p.parts and p.part + 1 or 0
          if next_part == 0 then next_layer = next_layer + 1 end
        elseif p.kind == "layers" then
          assert.same({ next_layer, 0 }, { p.first, next_part })
          next_layer = p.last + 1
        elseif p.kind == "experts" then
          assert.same({ next_layer - 1, next_layer - 1 }, { p.first, p.last })
        end
      end
      assert.equal(plan.layers, next_layer)
    end
  end)

  it("are refused in graphs of fewer nodes than layers", function()
    local text = [[
      input ids: int32[1, T]
      const table: fp32[16, 8]
      x = embed(ids, table)
      layers.%d.a = act(x) {act=relu}
      give layers.%d.a]]
    local near <close> = graphs.parse(text:format(1, 1))
    assert.equal(2, assert(core.mil_plan(near, {})).layers)
    local far <close> = graphs.parse(text:format(3000000, 3000000))
    local plan, message, code = core.mil_plan(far, {})
    assert.same({ nil, "layers.3000000.a: layer 3000000 of a graph of 2 nodes", "unsupported" }, { plan, message, code })
  end)

  it("give few shards of even size", function()
    local g <close> = programs.graph "llama-q8_0" -- 3 layers
    local one = cut(g, { layers = 1 }).shards[1].bytes
    local function count(target)
      local out = {}
      for i, p in ipairs(cut(g, { target = target }).shards) do
        if p.kind == "layers" then out[i] = p.last - p.first + 1 end
      end
      return out
    end
    assert.same({ 3 }, count(3 * one))
    assert.same({ 2, 1 }, count(3 * one - 1))
    assert.same({ 1, 1, 1 }, count(2 * one - 1))
    assert.same({ 1, 1, 1 }, count(1))
  end)

  it("cut a layer above the size limit between nodes, into as few parts as the limit allows, where few channels cross", function()
    for _, name in ipairs { "llama-q8_0", "gemma3-odd", HF .. "phi3", HF .. "hunyuan_v1_dense", HF .. "lfm2-odd" } do
      local g <close> = programs.graph(name)
      local layers = {}
      for _, p in ipairs(cut(g, { weights = "fp16", layers = 1, size_limit = 1 << 40 }).shards) do
        if p.kind == "layers" then layers[p.first] = p end
      end
      local most = 0
      for _, p in pairs(layers) do most = math.max(most, p.bytes) end
      local before = 0
      for _, law in ipairs { most, most - 1, most * 2 // 3, most // 2, most // 4, most // 16 } do
        local count, bytes = {}, {}
        for _, p in ipairs(check(name, { weights = "fp16", size_limit = law, target = law, rows = 1000 }).shards) do
          if p.kind == "layers" and not p.parts then assert.is_true(p.bytes <= law, name) end
          if p.kind == "layers" and p.parts then
            assert.is_true(layers[p.first].bytes > law, name)
            count[p.first], bytes[p.first] = p.parts, (bytes[p.first] or 0) + p.bytes
            local matrices = 0
            for _, n in ipairs(p.nodes) do matrices = matrices + n.convs end
            assert.is_true(p.bytes <= law or matrices <= 1, ("%s: part %d of layer %d has %d bytes"):format(name, p.part, p.first, p.bytes))
          end
        end
        local sum = 0
        for l, n in pairs(count) do
          sum = sum + n
          assert.equal(layers[l].bytes, bytes[l])
        end
        assert.is_true(sum >= before, name)
        before = sum
      end
    end
    -- 4 attention matrices and 3 of feed-forward: where two parts do, the stream alone goes from one to the other
    local g <close> = programs.graph "llama-q8_0"
    local one = cut(g, { layers = 1 }).shards[1]
    local parts = cut(g, { size_limit = one.bytes * 2 // 3, target = one.bytes * 2 // 3 }).shards
    assert.same({ 2, 2 }, { parts[1].parts, parts[2].parts })
    assert.same({ 1, 1 }, { #parts[1].outs, #parts[2].ins })
    assert.equal(64, parts[1].outs[1].shape[2])
    assert.same({ 2, 0 }, { #parts[1].states, #parts[2].states })
  end)

  it("cut what stands before the experts of a layer too", function()
    local dense, experts = 0, 0
    for _, p in ipairs(check(HF .. "zaya-odd", { weights = "fp16", size_limit = 6000, target = 6000, rows = 1000 }).shards) do
      if p.parts then dense = dense + 1 end
      if p.kind == "experts" then experts = experts + 1 end
    end
    assert.is_true(dense > 0 and experts > 0)
  end)

  it("split a mixture into as few parts as the size limit allows, each adding to the sum before", function()
    local g <close> = programs.graph(HF .. "qwen2_moe-odd")
    local whole = cut(g, { weights = "fp16", layers = 1 })
    local most = 0
    for _, p in ipairs(whole.shards) do most = math.max(most, p.kind == "layers" and p.bytes or 0) end
    local last
    for _, law in ipairs { most, most - 1, most // 3, 1 } do
      local n = 0
      for _, p in ipairs(cut(g, { weights = "fp16", layers = 1, size_limit = law }).shards) do
        if p.kind == "experts" then
          n = n + 1
          assert.is_true(p.bytes <= law or p.to - p.from == 1)
          local sum_in, sum_out = set(p.ins)[p.split], set(p.outs)[p.split]
          assert.equal(p.from > 0, sum_in == true)
          if p.from == 0 and sum_out then assert.equal(1, #p.outs) end
        end
      end
      assert.is_true(last == nil and n == 0 or n > 0 and n >= last)
      last = n
    end
  end)

  it("slice a head at whole tables", function()
    local g <close> = programs.graph "llama-q8_0" -- 1024 rows
    for _, p in ipairs(cut(g, { weights = "lut4-g32", slices = 7 }).shards) do
      if p.kind == "head" then assert.equal(0, p.from % 32) end
    end
    local odd = {}
    for _, p in ipairs(cut(g, { weights = "int8", slices = 7 }).shards) do
      if p.kind == "head" then odd[#odd + 1] = p.to - p.from end
    end
    assert.same({ 146, 146, 146, 147, 146, 146, 147 }, odd)
  end)

  it("put all in one piece", function()
    for _, name in ipairs(MODELS) do
      local plan = check(name, { weights = "fp16", whole = true })
      assert.equal(1, #plan.shards)
      assert.equal("whole", plan.shards[1].kind)
    end
  end)

  it("call the residual stream hidden, between layers only", function()
    local g <close> = programs.graph(HF .. "zaya-odd")
    local plan = cut(g, { weights = "fp16", layers = 1, expert_parts = 2 })
    for i, p in ipairs(plan.shards) do
      local before = plan.shards[i - 1]
      if before then assert.equal(before.hidden_out, p.hidden_in) end
    end
    assert.is_nil(plan.shards[1].hidden_out)
    assert.is_nil(plan.shards[2].hidden_out)
    assert.equal(plan.shards[4].hidden_in, plan.shards[3].hidden_out)
    assert.is_truthy(plan.shards[3].hidden_out)
    assert.same({ "layers.0.down", plan.shards[3].hidden_out }, { plan.shards[4].ins[1].name, plan.shards[4].ins[2].name })
  end)

  it("refuse fused graphs and layers that are not in order", function()
    local g <close> = programs.graph "llama-q8_0"
    assert(g:passes "cpu")
    local plan, message, code = core.mil_plan(g, {})
    assert.is_nil(plan)
    assert.equal("unsupported", code)
    assert.matches("fused op", message)
  end)

  it("give every allocation that fails as an error", function()
    local g <close> = programs.graph "qwen2-odd"
    assert(g:pass "dead_code")
    local function attempt(n)
      core.testing.alloc_fail_after(n)
      local plan, message, code = core.mil_plan(g, { target = 1000 })
      core.testing.alloc_fail_after(-1)
      if not plan then assert.equal("memory", code, message) end
      return plan
    end
    local n = 0
    while not attempt(n) do n = n + 1 end
    assert.is_true(n > 5)
  end)
end)

describe("laws", function()
  local function plan(name, opts)
    local g <close> = programs.graph(name)
    return cut(g, opts)
  end
  local function node(p, name)
    for _, piece in ipairs(p.shards) do
      for _, n in ipairs(piece.nodes) do
        if n.name == name then return n.finding, piece.finding end
      end
    end
  end

  it("have an id of their own, a text and a source each", function()
    local seen = {}
    for _, l in ipairs(core.mil_rules()) do
      assert.is_nil(seen[l.id])
      seen[l.id] = true
      assert.is_true(#l.text > 20 and #l.source > 0)
    end
  end)

  it("judge projections by the form of their weights", function()
    local function verdict(form) return node(plan("llama-q8_0", { weights = form }), "layers.1.attn_q") end
    assert.same({ "engine", "shape" }, { verdict("int8").verdict, verdict("int8").law })
    assert.same({ "engine" }, { verdict("fp16").verdict })
    assert.same({ "risk", "int4-block" }, { verdict("int4-block").verdict, verdict("int4-block").law })
    assert.same({ "risk", "uint4-block" }, { verdict("uint4-block").verdict, verdict("uint4-block").law })
    assert.same({ "risk", "lut4" }, { verdict("lut4-g8").verdict, verdict("lut4-g8").law })
    assert.same({ "risk", "int8-channel" }, { verdict("int8-channel").verdict, verdict("int8-channel").law })
  end)

  it("judge packages by bytes, states and T", function()
    local function laws(opts, i)
      local out = {}
      for _, id in ipairs(plan("llama-q8_0", opts).shards[i].finding) do out[id] = true end
      return out
    end
    assert.is_true(laws({}, 1)["state-count"])
    assert.is_nil(laws({ layers = 1 }, 1)["state-count"])
    assert.is_true(laws({ layers = 1 }, 1)["states"])
    assert.is_true(laws({ max_t = 5 }, 1)["tokens-many"])
    assert.is_true(laws({ max_t = 4 }, 1)["tokens"])
    assert.is_true(laws({ fixed_t = 128 }, 1)["tokens"])
    assert.is_true(laws({}, 1)["last-axis"])
    assert.is_nil(laws({ layout = "c1t" }, 1)["last-axis"])
  end)

  it("speak of norms in fp32, of states and of the choice of experts", function()
    local norm = node(plan("llama-q8_0", {}), "layers.1.attn_norm")
    assert.same({ "engine", "shape" }, { norm.verdict, norm.law })
    assert.equal("fp32", node(plan("llama-q8_0", { norm = "fp32" }), "layers.1.attn_norm").law)
    assert.equal("state-write", node(plan("llama-q8_0", {}), "layers.1.attn").law)
    assert.equal("top-k", node(plan(HF .. "zaya-odd", {}), "layers.1.route").law)
  end)
end)

describe("laws of lowered operations", function()
  local function judged(opts)
    local g <close> = programs.graph "llama-q8_0"
    assert(g:pass "dead_code")
    local exporter <close> = assert(core.mil_exporter(g, opts))
    local path = os.tmpname() .. ".mlpackage"
    assert(exporter:write(1, path))
    local package = assert(core.package(path))
    local found = core.mil_judge(package)
    package:close()
    os.execute(("rm -rf '%s'"):format(path))
    return found
  end

  it("say of every form what the plan says of its nodes", function()
    for form, want in pairs { fp16 = "engine", int8 = "engine", ["int8-channel"] = "risk", ["int8-block"] = "risk",
      ["int4-block"] = "risk", ["uint4-block"] = "risk", lut4 = "risk",
      ["lut4-g16"] = "risk" } do
      local found = judged { weights = form, context = 32 }
      assert.equal(21, found[want], form) -- 7 in each of 3 layers
      assert.equal(21, found.engine + found.risk + found.cpu, form)
      if form ~= "fp16" then assert.equal(21, found.laws[form:match "^lut4" or form], form) end
    end
  end)

  it("see states that are written, and arithmetic in fp32", function()
    local found = judged { weights = "int8", context = 32 }
    assert.equal(6, found.laws["state-write"])
    assert.is_nil(found.laws.fp32)
    assert.is_true(judged({ weights = "int8", context = 32, norm = "fp32" }).laws.fp32 > 0)
  end)
end)
