-- Packages with several functions on one copy of the weights: the same tokens and the same bits whichever functions a sequence
-- goes through.
local ane = require "ane"
local calls = require "ane.coreml.calls"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

local HF = "spec/fixtures/hf/"
local CAUSAL = {
  tiny.path(), tiny.path "gemma3-odd", HF .. "llama", HF .. "qwen2_swa", HF .. "phi3", HF .. "gemma3_softcap", HF .. "hunyuan_v1_dense",
  HF .. "lfm2-odd", HF .. "lfm2_moe-odd", HF .. "zaya-odd", HF .. "zaya_original-odd", HF .. "qwen2_moe-odd",
  HF .. "gemma4-odd",
}
local IDS = { 1, 17, 300, 5, 9, 2, 44, 8, 3, 7, 7, 1, 2, 3, 4, 5, 6, 9, 11, 2, 3 }

local function ids_of(model)
  local out = {}
  for i, id in ipairs(IDS) do out[i] = id % model.vocab end
  return out
end

-- Logits of all positions as bytes, fed `size` tokens at a time.
local function rows(model, ids, size)
  local s <close> = assert(model:session())
  local out = {}
  for at = 1, #ids, size do
    local n = math.min(size, #ids - at + 1)
    assert(s:feed(table.move(ids, at, at + n - 1, 1, {}), { want = "all" }))
    assert.equal(n, s:rows())
    for i = 1, n do out[#out + 1] = s:logits(i):tostring() end
  end
  return table.concat(out)
end

local function names(list)
  local out = {}
  for i, f in ipairs(list) do out[i] = f.name end
  return table.concat(out, " ")
end

local function meta(out) return assert(core.json_decode(assert(core.read_file(out .. "/runtime_meta.json")))) end

describe("export with many functions", function()
  for _, path in ipairs(CAUSAL) do
    it("of " .. path .. " gives the source's tokens, and one set of bits", function()
      local out = tree.folder()
      for _, case in ipairs { { weights = "int8", fixed_t = { 1, 4, 16 }, tiers = { 16, 33 }, layers = 1 },
        { weights = "fp16", fixed_t = { 1, 7 }, layout = "c1t", norm = "fp32" },
        { weights = "int8-channel", tiers = { 24 }, experts = "halves" } } do
        local source <close> = assert(ane.load(path, { weights = case.weights, activations = "fp32", context = 64 }))
        local ids = ids_of(source)
        case.context = 64
        case.functions = "many"
        assert(source:export(out, case))
        local model <close> = assert(ane.load(out, { engine = "graph" }))
        local n = case.layers and 43 or 14 -- beyond all tiers
        local want = assert(source:generate(ids, { max_tokens = n, ignore_eos = true, details = true })).ids
        assert.equal(n, #want)
        assert.same(want, assert(model:generate(ids, { max_tokens = n, ignore_eos = true, details = true })).ids)
        local all = rows(model, ids, #ids)
        assert.is_true(all == rows(model, ids, 5), "bits depend on functions")
        if not case.fixed_t then
          case.functions, case.tiers = nil, nil
          assert(source:export(out, case))
          local plain <close> = assert(ane.load(out, { engine = "graph" }))
          assert.is_true(all == rows(plain, ids, 3), "bits differ from those of one function")
        end
      end
      tree.remove(out)
    end)
  end

  it("rewinds, forks, saves, restores and speculates across functions", function()
    for _, name in ipairs { "llama", "lfm2-odd", "gemma3_softcap" } do
      local out, file = tree.folder(), os.tmpname()
      local source <close> = assert(ane.load(HF .. name, { weights = "int8", activations = "fp32", context = 64 }))
      assert(source:export(out, { context = 64, weights = "int8", functions = "many", fixed_t = { 1, 2, 4, 16 }, tiers = { 20 } }))
      local model <close> = assert(ane.load(out, { engine = "graph" }))
      local ids = {}
      for i = 1, 20 do ids[i] = i % 5 + 1 end
      local opts = { max_tokens = 40, ignore_eos = true, details = true }
      local want = assert(source:generate(ids, opts)).ids
      opts.speculate = true
      assert.same(want, assert(model:generate(ids, opts)).ids)
      local a <close> = assert(model:session())
      assert(a:feed({ 1, 2, 3, 4, 5, 1, 2 }, { want = "all" })) -- t4, and t4 with padding or t2 and t1
      local third = a:logits(3):tostring()
      assert(a:rewind(2))
      assert(a:feed { 3 })
      assert.equal(third, a:logits():tostring())
      local b <close> = assert(a:fork())
      assert(b:feed({ 4, 5, 1, 2 }, { want = "all" }))
      assert(a:save(file))
      local c <close> = assert(model:session())
      assert(c:restore(file))
      assert(c:feed({ 4, 5 }, { want = "all" }))
      assert.equal(b:logits(2):tostring(), c:logits(2):tostring())
      os.remove(file)
      tree.remove(out)
    end
  end)

  it("holds each weight once, and shares states", function()
    local out = tree.folder()
    local source <close> = assert(ane.load(HF .. "llama", { context = 64 }))
    local one = assert(source:export(out, { context = 64 }))
    local weights = 0
    for _, s in ipairs(one.shards) do
      weights = weights + #core.read_file(out .. "/" .. s.path .. "/Data/com.apple.CoreML/weights/weight.bin")
    end
    local many = assert(source:export(out, { context = 64, functions = "many", fixed_t = { 1, 4, 32 }, tiers = { 32 } }))
    for _, s in ipairs(many.shards) do
      weights = weights - #core.read_file(out .. "/" .. s.path .. "/Data/com.apple.CoreML/weights/weight.bin")
    end
    assert.equal(0, weights)
    local m = meta(out)
    assert.equal("many", m.functions)
    assert.equal(32, m.rangedim_max_t)
    assert.equal("t1_c64 t1_c32 t4_c32 t32_c32 t4_c64 t32_c64", names(m.packages[1].functions))
    assert.equal("t1 t4 t32", names(m.packages[2].functions)) -- the head sees no keys
    local pkg <close> = assert(ane.package(out .. "/" .. m.packages[1].path))
    local info = pkg:info()
    assert.same({ "t1_c64", 9 }, { info.default_function, info.version })
    for _, f in ipairs(info.functions) do
      assert.equal(6, #f.states)
      for _, s in ipairs(f.states) do assert.same({ 1, 2, 64, 24 }, s.shape, f.name .. " " .. s.name) end
    end
    tree.remove(out)
  end)

  it("packs weights once for all functions, whichever of them is closed first", function()
    for _, case in ipairs { { "llama", "int8" }, { "llama", "fp16" }, { "zaya-odd", "lut4-g8" }, { "qwen2_moe-odd", "int4-block" } } do
      local out = tree.folder()
      local source <close> = assert(ane.load(HF .. case[1], { context = 32 }))
      assert(source:export(out, { context = 32, weights = case[2], functions = "many", fixed_t = { 1, 3, 5 } }))
      local path = out .. "/" .. meta(out).packages[1].path
      local function inputs(f, t)
        local list = {}
        for _, input in ipairs(f.inputs) do
          local n, values = 1, {}
          for _, d in ipairs(input.shape) do n = n * d end
          for i = 1, n do values[i] = input.dtype == "int32" and 0 or math.sin(i * t) / 2 end
          list[input.name] = core.tensor(input.shape, values)
        end
        return list
      end
      local function result(raw, name, t)
        local program = assert(raw:program { ["function"] = name, precision = "fp32", threads = 1 })
        local f
        for _, each in ipairs(raw:info().functions) do f = each.name == name and each or f end
        local state = #f.states > 0 and assert(raw:state()) or nil
        local given, text = assert(program:run(inputs(f, t), state)), {}
        for _, output in ipairs(f.outputs) do text[#text + 1] = given[output.name]:tostring() end
        return table.concat(text), program
      end
      local want = {}
      for _, t in ipairs { 1, 3, 5 } do
        local raw <close> = assert(core.package(path))
        local bytes
        want[t], bytes = result(raw, "t" .. t, t)
        assert.is_true(bytes:info().weight_bytes > 0)
        bytes:close()
      end
      local raw <close> = assert(core.package(path))
      local got, first = result(raw, "t1", 1)
      local again, second = result(raw, "t3", 3)
      assert.is_true(got == want[1] and again == want[3])
      assert.is_true(first:info().weight_bytes > 0)
      assert.equal(0, second:info().weight_bytes)
      first:close() -- what it has packed goes on for the second; the third packs anew
      again = result(raw, "t3", 3)
      assert.is_true(again == want[3])
      local third
      got, third = result(raw, "t5", 5)
      assert.is_true(got == want[5])
      second:close()
      third:close()
      tree.remove(out)
    end
  end)

  it("keeps rope tables that are constants once", function()
    local out = tree.folder()
    local source <close> = assert(ane.load(HF .. "llama", { weights = "int8", activations = "fp32", context = 64 }))
    local options = { context = 64, rope = "constants", functions = "many", fixed_t = { 1, 4 }, tiers = { 32 }, argmax = true }
    local report = assert(source:export(out, options))
    local pkg <close> = assert(ane.package(out .. "/" .. report.shards[1].path))
    for _, f in ipairs(pkg:info().functions) do
      for _, input in ipairs(f.inputs) do assert.is_nil(input.name:match "^cos" or input.name:match "^sin") end
    end
    local weights = pkg:info().weights
    options.functions, options.fixed_t, options.tiers = nil, nil, nil
    local plain <close> = assert(ane.package(out .. "/" .. assert(source:export(out, options)).shards[1].path))
    assert.same({ weights.number, weights.bytes }, { plain:info().weights.number, plain:info().weights.bytes })
    local model <close> = assert(ane.load(out, { engine = "graph" }))
    assert.same(source:generate(IDS, { max_tokens = 20 }), model:generate(IDS, { max_tokens = 20 }))
    tree.remove(out)
  end)

  it("of a classifier takes the least T that holds a text", function()
    for _, name in ipairs { "privacy_filter", "privacy_filter-odd", "privacy_filter_original-odd" } do
      local out = tree.folder()
      local source <close> = assert(ane.load(HF .. name, { activations = "fp32", weights = "int8", context = 64 }))
      assert(source:export(out, { functions = "many", fixed_t = { 8, 16, 40 }, weights = "int8" }))
      local m = meta(out)
      assert.same({ 40, "t40 t8 t16" }, { m.max_seq_len, names(m.packages[1].functions) })
      local model <close> = assert(ane.load(out, { engine = "graph" }))
      for _, n in ipairs { 3, 8, 9, 30 } do
        local ids = {}
        for i = 1, n do ids[i] = (i * 37 + n) % source.vocab end
        local a <close> = assert(source:session())
        local b <close> = assert(model:session())
        assert(a:feed(ids, { want = "all" }))
        assert(b:feed(ids, { want = "all" }))
        for i = 1, n do
          assert.equal(a:logits(i):argmax(), b:logits(i):argmax())
          assert.is_true((a:logits(i) - b:logits(i)):abs():max() < 2e-2)
        end
        local used = {}
        for _, f in ipairs(m.packages[1].functions) do
          if f.fixed_t >= n then used[#used + 1] = f.fixed_t end
        end
        table.sort(used)
        local sizes = { { low = 8, high = 8 }, { low = 16, high = 16 }, { low = 40, high = 40 } }
        assert.same({ used[1], n }, { calls.choose({ sizes = sizes, whole = true }, n, 40) })
      end
      tree.remove(out)
    end
  end)

  it("writes the same bytes each time, and plans what it writes", function()
    local model <close> = tiny.load()
    local a, b = tree.folder(), tree.folder()
    local opts = { context = 32, layers = 1, functions = "many", fixed_t = { 2, 4 }, tiers = { 8 }, weights = "lut4-g16" }
    opts.threads = 1
    local report = assert(model:export(a, opts))
    opts.threads = 2
    assert(model:export(b, opts))
    for _, s in ipairs(report.shards) do
      for _, file in ipairs { "model.mlmodel", "weights/weight.bin" } do
        local path = "/" .. s.path .. "/Data/com.apple.CoreML/" .. file
        assert.equal(core.sha256_file(a .. path), core.sha256_file(b .. path))
      end
    end
    assert.equal(core.read_file(a .. "/runtime_meta.json"), core.read_file(b .. "/runtime_meta.json"))
    opts.threads = nil
    local plan = model:plan(opts)
    for i, p in ipairs(plan.packages) do assert.equal(table.concat(report.shards[i].functions, " "), names(p.functions)) end
    assert.matches("functions of a package, on one copy of its weights: t2_c32, t2_c8, t4_c8, t4_c32", tostring(plan), 1, true)
    local found
    for _, law in ipairs(plan.laws) do found = found or law.id == "functions" end
    assert.is_true(found)
    tree.remove(a)
    tree.remove(b)
  end)

  it("has functions for decoding and prefill where none are asked for, and refuses what does not fit", function()
    local model <close> = tiny.load()
    assert.equal("t1 t4 t128", names(model:plan({ functions = "many", context = 256 }).packages[1].functions))
    assert.equal("t1 t4", names(model:plan({ functions = "many", context = 100 }).packages[1].functions))
    assert.equal("t1_4_c64 t1_4_c16", names(model:plan({ functions = "many", context = 64, tiers = { 16 } }).packages[1].functions))
    local plan, message, code = model:plan { context = 64, tiers = { 64 } }
    assert.same({ nil, "option tiers: 64 must be below the context of 64", "invalid" }, { plan, message, code })
    assert.error_matches(function() model:plan { functions = "several" } end, "option functions is \"several\"")
    assert.error_matches(function() model:plan { tiers = { 32, 16 } } end, "tiers must ascend")
    local classifier <close> = assert(ane.load(HF .. "privacy_filter-odd"))
    assert.equal("unsupported", (select(3, classifier:plan { tiers = { 16 } })))
  end)

  it("refuses tokens that would need padding where states of convolutions forbid it", function()
    local out = tree.folder()
    local source <close> = assert(ane.load(HF .. "lfm2-odd", { context = 32 }))
    assert(source:export(out, { context = 32, functions = "many", fixed_t = { 4, 8 } }))
    local model <close> = assert(ane.load(out, { engine = "graph" }))
    local s <close> = assert(model:session())
    local ok, message, code = s:feed { 1, 2, 3 }
    assert.same({ nil, "range" }, { ok, code })
    assert.matches("allow no padding", message)
    tree.remove(out)
  end)

  it("opens no set whose functions are not those of its packages", function()
    local model <close> = tiny.load()
    local out = tree.folder()
    assert(model:export(out, { context = 32, functions = "many", fixed_t = { 2, 4 } }))
    local text = core.read_file(out .. "/runtime_meta.json")
    for _, case in ipairs {
      { function(f) f[2].name = "t3" end, "has no function t3" }, { function(f) f[1].name = 3 end, "function 1 has no name" },
      { function(f) f[1].outputs[1].edge = "other" end, "which the first function does not give in this width" },
      { function(f) f[2].outputs = {} end, "gives 0 values, but the first function gives 1" },
      { function(f) f[1].context = 33 end, "sees 33 positions" }, { function(f) f[2].context = 8 end, "the states hold 8" },
      { function(f) f[1], f[2] = nil, nil end, "functions is empty" },
      { function(f) f[1].inputs[1].role = "x" end, "position, rope_cos, rope_sin, types, but is x" },
    } do
      local m = core.json_decode(text)
      case[1](m.packages[1].functions)
      core.write_file(out .. "/runtime_meta.json", core.json_encode(m))
      local got, message, code = ane.load(out)
      assert.same({ nil, "format" }, { got, code })
      assert.matches(case[2], message, 1, true)
    end
    tree.remove(out)
  end)
end)

describe("a call of a package set", function()
  local fixed = { sizes = { { low = 1, high = 1 }, { low = 4, high = 4 }, { low = 128, high = 128 } } }
  local function choose(program, n, room) return { calls.choose(program, n, room or 512) } end

  it("is the largest that tokens fill, or one that is more than half full", function()
    assert.same({ 1, 1 }, choose(fixed, 1))
    assert.same({ 1, 1 }, choose(fixed, 2))
    assert.same({ 4, 3 }, choose(fixed, 3))
    assert.same({ 4, 4 }, choose(fixed, 4))
    assert.same({ 4, 4 }, choose(fixed, 64))
    assert.same({ 128, 65 }, choose(fixed, 65))
    assert.same({ 128, 128 }, choose(fixed, 300))
    assert.same({ 4, 4 }, choose(fixed, 100, 127)) -- no room for the padding
    assert.same({ 1, 1 }, choose(fixed, 100, 3))
    assert.same({}, choose(fixed, 1, 0))
  end)

  it("has no padding where that would be kept, and all tokens where the call sees no others", function()
    local exact = { sizes = fixed.sizes, exact_calls = true }
    assert.same({ 1, 1 }, choose(exact, 3))
    assert.same({ 4, 4 }, choose(exact, 127))
    assert.same({ 128, 128 }, choose(exact, 128))
    assert.same({}, choose({ sizes = { { low = 4, high = 4 } }, exact_calls = true }, 3))
    local whole = { sizes = { { low = 8, high = 8 }, { low = 16, high = 20 } }, whole = true }
    assert.same({ 8, 2 }, choose(whole, 2))
    assert.same({ 16, 9 }, choose(whole, 9))
    assert.same({ 18, 18 }, choose(whole, 18))
    assert.same({}, choose(whole, 21))
  end)

  it("is of a size that all packages take", function()
    local function p(...)
      local list = {}
      for i, r in ipairs { ... } do list[i] = { low = r[1], high = r[2] } end
      return { functions = list }
    end
    assert.same({ { low = 1, high = 4 } }, calls.sizes { p({ 1, 4 }), p({ 1, 8 }) })
    assert.same({ { low = 2, high = 4 }, { low = 16, high = 16 } }, calls.sizes { p({ 2, 4 }, { 16, 16 }), p({ 1, 3 }, { 4, 20 }) })
    assert.same({}, calls.sizes { p({ 1, 4 }), p({ 8, 8 }) })
    local tiers = { functions = { { low = 1, high = 4, context = 64 }, { low = 1, high = 4, context = 16 }, { low = 8, high = 8 } } }
    assert.equal(16, calls.function_for(tiers, 2, 16).context)
    assert.equal(64, calls.function_for(tiers, 2, 17).context)
    assert.is_nil(calls.function_for(tiers, 2, 65))
  end)
end)
