-- Plans of models and of configurations without weights.
local core = require "ane.core"
local planner = require "ane.coreml.plan"
local size = require "ane.coreml.size"
local tiny = require "support.tiny"

local function config(name) return ("spec/fixtures/configs/%s.json"):format(name) end

local function plan(name, opts) return assert(planner.of_path(config(name), opts)) end

local function names(p)
  local out = {}
  for i, piece in ipairs(p.packages) do out[i] = piece.name end
  return out
end

-- Elements of a layer, from the formulas of the papers rather than from recipes.
local function dense(d, q, kv, f) return d * (q + 2 * kv) + d * q + 3 * d * f end

describe("plan of a configuration", function()
  it("counts Phi-4-mini's bytes from its shapes", function()
    local p = plan "phi-4-mini"
    local d = 3072
    local layer = dense(d, d, 1024, 8192) + 7 * 2 + 2 * 2 * d -- int8, 7 scales, norms
    assert.equal(36, #p.packages)
    assert.equal(layer, p.packages[1].bytes)
    assert.equal(50016 * d + 2 + 2 * d, p.packages[33].bytes)
    assert.equal(50016, p.packages[33].to)
    assert.equal(2 * 200064 * d, p.embed_bytes)
    assert.equal(32 * 2 * 8 * 128 * 512 * 2, p.state_bytes)
    assert.matches("3 of 32", p.reported.reported)
    assert.same({ 2, 16 }, { plan("phi-4-mini", { target = 202000000 }).packages[1].last + 1, #plan("phi-4-mini",
      { target = 202000000 }).packages - 4 })
  end)

  it("counts those of the others", function()
    local hy = plan "hy-mt-1.8b"
    assert.equal(4 * (dense(2048, 2048, 512, 6144) + 7 * 2 + 2 * (2 * 2048 + 2 * 128)), hy.packages[1].bytes)
    assert.same({ "layer_00-03.mlpackage", "lm_head_01.mlpackage" }, { names(hy)[1], names(hy)[10] })
    assert.equal(60409, hy.packages[9].to)
    local qwen = plan "qwen2.5-0.5b"
    assert.equal(12 * (dense(896, 896, 128, 4864) + 7 * 2 + 2 * (2 * 896 + 896 + 2 * 128)), qwen.packages[1].bytes)
    assert.equal(5, #qwen.packages)
    local zaya = plan "zaya1-8b"
    assert.equal(45, #zaya.packages)
    assert.is_true(zaya.packages[1].bytes > 16 * 3 * 2048 * 2048 and zaya.packages[1].bytes < 210e6)
    local filter = plan "privacy-filter"
    assert.equal(9, #filter.packages)
    assert.same({ 128, 256, 512 }, filter.profiles)
    assert.equal(0, #filter.packages[1].states)
    assert.equal(33 * 640 + 2 + 2 * 33 + 2 * 640, filter.packages[9].bytes)
    local lfm = plan "lfm2.5-8b-a1b"
    assert.equal(2 + 22 * 3 - 1 + 2, #lfm.packages) -- two dense layers in one, three packages a layer with experts, two slices
    assert.equal(16 * 3 * (2048 * 1792 + 2), lfm.packages[3].bytes)
    for _, p in ipairs { hy, qwen, zaya, filter, lfm } do
      assert.is_true(p.largest <= p.law)
      assert.is_true(p.predicted)
    end
  end)

  it("takes law, the old name of size_limit", function()
    local new, old = plan("zaya1-8b", { size_limit = 100000000 }), plan("zaya1-8b", { law = 100000000 })
    assert.same({ 100000000, 100000000 }, { new.law, old.law })
    assert.is_true(#new.packages > 45)
    assert.equal(tostring(new), tostring(old))
  end)

  it("cuts mixtures as asked", function()
    assert.equal(8 * 129 + 1, #plan("privacy-filter", { experts = "each" }).packages)
    assert.equal(8 * 3 + 1, #plan("privacy-filter", { experts = "halves" }).packages)
    assert.equal("layer_00_experts_000-063_t512.mlpackage", plan("privacy-filter", { experts = "halves" }).packages[2].name)
    local whole = plan("lfm2.5-8b-a1b", { experts = "whole" })
    assert.is_true(whole.largest > whole.law)
    local found = {}
    for _, law in ipairs(whole.laws) do found[law.id] = law.verdict end
    assert.equal("risk", found["size-over"])
  end)

  it("does for every configuration with weights what the weights say", function()
    for _, name in ipairs { "llama", "qwen2_swa", "phi3", "gemma3_softcap", "hunyuan_v1_dense", "lfm2-odd", "lfm2_moe-odd", "zaya-odd",
      "zaya_original-odd", "privacy_filter", "privacy_filter_original-odd", "qwen2_moe-odd" } do
      local folder = "spec/fixtures/hf/" .. name
      local with, without = assert(planner.of_path(folder, { layers = 1 })), assert(planner.of_path(folder .. "/config.json",
        { layers = 1 }))
      assert.same(names(with), names(without), name)
      for i, p in ipairs(with.packages) do
        assert.equal(p.bytes, without.packages[i].bytes, name .. " " .. p.name)
        assert.same(p.nodes, without.packages[i].nodes, name .. " " .. p.name)
      end
    end
  end)

  it("takes other forms for some weights", function()
    local mixed = { { "*.q_proj.*", "int4-block" }, { "model.layers.3.*.q_proj.*", "fp16" } }
    local p = plan("qwen2.5-0.5b", { mixed = mixed })
    local by = {}
    for _, piece in ipairs(p.packages) do
      for _, n in ipairs(piece.nodes) do by[n.name] = n.finding end
    end
    assert.equal("int4-block", by["layers.2.attn_q"].law)
    assert.same({ "engine" }, { by["layers.3.attn_q"].verdict })
    assert.equal(23, p.residency.risk)
  end)

  it("takes a part of a name as a pattern, and refuses one that fits nothing", function()
    local function laws(mixed)
      local list = {}
      for i, piece in ipairs(plan("qwen2.5-0.5b", { mixed = mixed }).packages) do
        for _, n in ipairs(piece.nodes) do list[#list + 1] = i .. " " .. n.name .. " " .. tostring(n.finding.law) end
      end
      return list
    end
    local want = laws { ["*q_proj*"] = "int4-block" }
    assert.same(want, laws { q_proj = "int4-block" })
    assert.not_same(want, laws { ["*.0.*q_proj*"] = "int4-block" })
    assert.same(laws { ["*.0.*q_proj*"] = "int4-block" }, laws { [".0.*q_proj"] = "int4-block" })
    local path = "spec/fixtures/configs/qwen2.5-0.5b.json"
    for _, of_path in ipairs { planner.of_path, require("ane.coreml.size").of_path } do
      local p, message, code = of_path(path, { mixed = { q_prof = "int8" } })
      assert.same({ nil, 'option mixed: no weight matches "q_prof"', "invalid" }, { p, message, code })
      p, message, code = of_path(path, { mixed = { q_proj = "int8", ["layers.0"] = "fp16" } })
      local disagree = 'option mixed: tensor model.layers.0.self_attn.q_proj.bias matches "layers.0" and "q_proj", which ask for fp16 and '
        .. "int8; a list of {pattern, type} has an order"
      assert.same({ nil, disagree, "invalid" }, { p, message, code })
    end
  end)

  it("says what is wrong", function()
    local p, message, code = planner.of_path "spec/fixtures/configs/none.json"
    assert.is_nil(p)
    assert.equal("spec/fixtures/configs/none.json: No such file or directory", message)
    assert.equal("io", code)
    assert.error_matches(function() planner.of_path(config "qwen2.5-0.5b", { weights = "int3" }) end, "option weights is \"int3\": choose")
    local mixed = { a = "int3" }
    assert.error_matches(function() planner.of_path(config "qwen2.5-0.5b", { mixed = mixed }) end, 'mixed for "a" is "int3": choose')
    local path = os.tmpname() .. ".json"
    core.write_file(path, '{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100}')
    p, message = planner.of_path(path)
    os.remove(path)
    assert.is_nil(p)
    assert.matches("layers.0", message)
    assert.matches("dimension 1 of model.layers.0.mlp.gate_proj.weight is nil", message)
  end)

  it("has no program", function()
    local graph <close> = assert(planner.graph(assert(planner.open(config "qwen2.5-0.5b"))))
    assert.error_matches(function() core.program(graph, { threads = 1, context = 8, chunk = 8 }) end, "only their shapes")
  end)
end)

describe("plan of a model", function()
  it("prints as a table, and draws itself", function()
    local model <close> = tiny.load()
    local p = assert(model:plan { context = 64, layers = 2 })
    local text = tostring(p)
    assert.matches("layer_00%-01.mlpackage", text)
    assert.matches("predicted: nothing was run", text)
    assert.matches("state%-count", text)
    local dot, svg = p:dot(), p:svg()
    assert.matches("^digraph plan {.*n1 %-> n2.*}\n$", dot)
    assert.equal(3, select(2, dot:gsub("fillcolor=\"#%x+\", color", "")))
    assert.matches("^<svg .*</svg>\n$", svg)
    assert.equal(select(2, svg:gsub("<text", "")), select(2, svg:gsub("</text>", "")))
    assert.matches("lm_head_00", svg)
    p = assert(planner.of_path("spec/fixtures/hf/llama//", {}))
    assert.matches('label="llama, int8, predicted', p:dot(), 1, true)
    assert.matches(">llama: llama, int8 weights", p:svg(), 1, true)
  end)

  it("is for one chip, whose limits it keeps", function()
    local model <close> = tiny.load()
    assert.error_matches(function() model:plan { chip = "M9" } end, "choose M1, M1 Max")
    assert.equal("M1", model:plan({ chip = "M1" }).chip)
  end)
end)

describe("size", function()
  it("tells bytes by form, states by context, and limits by bandwidth", function()
    local s = assert(size.of_path(config "qwen2.5-0.5b", { context = 256 }))
    local by = {}
    for _, row in ipairs(s.forms) do by[row.weights] = row end
    assert.is_true(by.fp16.bytes > 2 * 494e6 * 0.99 and by.fp16.bytes < 2 * 494e6 * 1.01)
    assert.is_true(by["lut4"].bytes < by["int4-block"].bytes and by["int4-block"].bytes < by.int8.bytes)
    assert.equal(24 * 2 * 2 * 64 * 256 * 2, s.state_bytes)
    assert.same({ 128, 256, 512, 2048 }, { s.contexts[1].context, s.contexts[2].context, s.contexts[3].context, s.contexts[4].context })
    for _, c in ipairs(s.chips) do
      assert.is_true(math.abs(c.limit - c.bandwidth * 1e9 / (s.bytes + s.state_bytes)) < 1e-6)
      assert.is_true(c.low < c.high and c.high < c.limit)
    end
    assert.matches("M4 Max", tostring(s))
  end)

  it("has the rules of Core AI in its document, and gives those that fit the model", function()
    local coreai, rows = require "ane.coreml.plan.coreai", {}
    for _, r in ipairs(coreai.rules) do
      rows[#rows + 1] = ("| `%s` | %s | %s | %s |\n"):format(r[1], r[2] == "cpu" and "CPU" or r[2], r[3], r[4])
    end
    local text = assert(core.read_file "docs/coreai.md")
    assert.truthy(text:find(table.concat(rows), 1, true), "the table of docs/coreai.md is not that of ane.coreml.plan.coreai")
    local asked = { "encoder", "layout", "states", "recurrent", "experts", "heads", "context-width", "context-step",
                    "embeddings" }
    local function holds(name, opts)
      opts = opts or { context = 64 }
      opts.target = "coreai"
      local made = assert(require("ane.coreml.plan").of_path("spec/fixtures/hf/" .. name, opts))
      local ids, list = {}, {}
      for _, rule in ipairs(made.coreai.rules) do ids[rule.id] = true end
      for _, id in ipairs(asked) do list[#list + 1] = ids[id] and id end
      return table.concat(list, " ")
    end
    assert.equal("encoder heads", holds "bert")
    assert.equal("layout heads", holds "llama")
    assert.equal("layout heads context-step", holds("llama", { context = 96 }))
    assert.equal("layout heads", holds("llama", { context = 96, fixed_t = { 8, 16 } }))
    assert.equal("layout heads context-step", holds("llama", { context = 256, tiers = { 100 } }))
    assert.equal("layout states recurrent", holds "mamba2-odd")
    assert.equal("layout states recurrent experts heads", holds "granitemoehybrid-odd")
    assert.equal("layout experts heads", holds "gpt_oss-odd")
    assert.equal("layout heads embeddings", holds "gemma3n-odd")
  end)
end)
