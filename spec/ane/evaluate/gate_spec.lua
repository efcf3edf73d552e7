-- Calibration and the quality gate.
local ane = require "ane"
local calibrate = require "ane.evaluate.calibrate"
local core = require "ane.core"
local floats = require "support.floats"
local gate = require "ane.evaluate.gate"

local HF = "spec/fixtures/hf/"

local function load(name, opts)
  local all = { activations = "fp32", context = 128 }
  for key, value in pairs(opts or {}) do all[key] = value end
  return assert(ane.load(HF .. name, all))
end

local function ids(n, vocab)
  local list = {}
  for i = 1, n do list[i] = i * 37 % vocab end
  return list
end

-- Mean squares of columns, by hand.
local function squares(t)
  local shape, sums = t:shape(), {}
  for c = 1, shape[2] do sums[c] = 0 end
  for i = 1, shape[1] do
    for c = 1, shape[2] do sums[c] = sums[c] + t:get(i, c) ^ 2 / shape[1] end
  end
  return sums
end

describe("calibration", function()
  it("gives the mean square of the inputs of each column", function()
    local model <close> = load "llama"
    local list = ids(40, model.vocab)
    local importance = assert(calibrate.run(model, list))
    local t = assert(model:trace(list))
    local at = "model.layers.1."
    for weight, value in pairs {
      [at .. "self_attn.q_proj"] = "layers.1.attn_norm", [at .. "self_attn.v_proj"] = "layers.1.attn_norm",
      [at .. "self_attn.o_proj"] = "layers.1.attn", [at .. "mlp.gate_proj"] = "layers.1.ffn_norm", [at .. "mlp.down_proj"] = "layers.1.glu",
      ["lm_head"] = "output_norm",
    } do
      local got = assert(importance[weight .. ".weight"], weight)
      for c, v in ipairs(squares(assert(t[value], value))) do assert.near(v, got:get(c), 1e-5 * (1 + v)) end
    end
    local n = 0
    for _ in pairs(importance) do n = n + 1 end
    assert.equal(3 * 7 + 1, n)
  end)

  it("reads prompts from an empty cache each, cut to chunks, up to so many tokens", function()
    local model <close> = load "llama"
    local list = ids(50, model.vocab)
    local a = assert(calibrate.run(model, { table.move(list, 1, 20, 1, {}), table.move(list, 21, 40, 1, {}) }))
    local b = assert(calibrate.run(model, list, { chunk = 20, tokens = 40 }))
    for name, t in pairs(a) do assert.equal(t:tostring(), b[name]:tostring()) end
    assert.same({ { 1, 2 }, { 3 } }, calibrate.runs(model, { 1, 2, 3, 4 }, 2, 3))
    assert.same({ nil, "the text has no tokens", "invalid" }, { calibrate.run(model, {}) })
    assert.equal("unsupported", select(3, calibrate.run(model, "text")))
    assert.equal("range", select(3, calibrate.run(model, { model.vocab })))
  end)

  it("takes chunks that are longer than a run of the model", function()
    local model <close> = load("llama", { context = 700, kv = "fp32" })
    local list = ids(700, model.vocab)
    local a = assert(calibrate.run(model, list, { chunk = 700 }))
    local squares_of, n = 0, 0
    local bundle = require("ane.model").bundle(model)
    local program = assert(require("ane.model.trace").program(bundle))
    local session <close> = assert(program:session { context = 700, kv = "fp32" })
    for from = 1, 700, 350 do
      local part = table.move(list, from, from + 349, 1, {})
      squares_of = squares_of + assert(session:squares(part, { "output_norm" })).output_norm:get(5) * #part
      n = n + #part
    end
    assert.near(squares_of / n, a["lm_head.weight"]:get(5), 1e-5)
    local report = assert(gate.run(model, model, list, { chunk = 700 }))
    assert.equal(700, report.hidden.count)
    assert.equal(700, report.logits.count)
    local states = assert(gate.hidden(model, list))
    assert.same({ 700, 64 }, states:shape())
  end)

  it("leaves out hidden states where one model is rotated: they are in another basis", function()
    local model <close> = load "llama"
    local path = os.tmpname()
    assert(model:quantise(path, { weights = "fp32", transform = "rotate" }))
    local stored <close> = assert(ane.load(path, { activations = "fp32" }))
    local loaded <close> = load("llama", { transform = "rotate" })
    for _, b in ipairs { stored, loaded } do
      local report = assert(gate.run(model, b, ids(40, model.vocab)))
      assert.equal("ok", report.verdict)
      assert.is_true(report.rotated)
      assert.is_nil(report.hidden)
      assert.is_truthy(tostring(report):find "hidden   not compared: the weights of one model are rotated")
    end
    local same = assert(gate.run(stored, loaded, ids(40, model.vocab)))
    assert.is_nil(same.rotated)
    assert(same.hidden.cosine > 0.999)
    os.remove(path)
  end)

  it("says why hidden states cannot be computed", function()
    local model <close> = load "llama"
    local function hidden() return nil, "no memory is left", "memory" end
    assert.same({ nil, "no memory is left", "memory" }, { gate.run(model, model, { 1, 2, 3 }, { hidden = hidden }) })
    assert.is_nil(assert(gate.run(model, model, { 1, 2, 3 }, { hidden = function() end })).hidden)
  end)

  it("names experts by their tensors, and views by the tensor that they are a part of", function()
    local model <close> = load "qwen2_moe-odd"
    local importance = assert(calibrate.run(model, ids(30, model.vocab)))
    local gates = 0
    for name in pairs(importance) do
      if name:find "experts" and name:find "gate_proj" then gates = gates + 1 end
      assert.is_nil(name:find "experts%.%d+%.down_proj")
    end
    assert(gates > 1)
    local phi <close> = load "phi3"
    importance = assert(calibrate.run(phi, ids(30, phi.vocab)))
    assert.equal(128, #assert(importance["model.layers.0.self_attn.qkv_proj.weight"]))
  end)

  it("guides load: important columns lose less", function()
    local model <close> = load "llama"
    local list = ids(60, model.vocab)
    local importance = assert(calibrate.run(model, list))
    local source <close> = assert(core.open(HF .. "llama"))
    local name = "model.layers.1.mlp.down_proj.weight"
    local raw, shape = assert(source:read(name)), source:tensor(name).shape
    local weight, x = floats.unpack(importance[name]:tostring()), floats.unpack(raw)
    local function lost(values)
      local y, sum = floats.unpack(values), 0
      for i, v in ipairs(x) do sum = sum + weight[(i - 1) % shape[2] + 1] * (v - y[i]) ^ 2 end
      return sum
    end
    local encode = core.testing.encode_weights
    for _, form in ipairs { "int4-block", "lut4-g8" } do
      local plain = assert(encode(form, "fp32", raw, shape[1], shape[2], 1))
      local guided = assert(encode(form, "fp32", raw, shape[1], shape[2], 1, importance[name]:tostring()))
      assert(lost(guided.values) < lost(plain.values), form)
      local b <close> = load("llama", { mixed = { [name] = form }, importance = importance })
      for _, row in ipairs(b:weights_report()) do
        if row.name == name then assert.near(guided.max_abs, row.max_abs, 1e-12) end
      end
    end
  end)

  it("keeps importance in files", function()
    local path = os.tmpname()
    local importance = { ["a.weight"] = core.tensor({ 3 }, { 1, 2.5, 0 }), b = core.tensor({ 1 }, { 7 }) }
    assert(calibrate.save(importance, path))
    local again = assert(calibrate.load(path))
    assert.equal(importance.b:tostring(), again.b:tostring())
    assert.equal(importance["a.weight"]:tostring(), again["a.weight"]:tostring())
    local bytes = assert(core.read_file(path))
    for n = 0, #bytes - 1 do
      assert(core.write_file(path, bytes:sub(1, n)))
      local got, _, code = calibrate.load(path)
      assert(code == "format" or next(got) == nil or got.b == nil, n)
    end
    os.remove(path)
    assert.equal("io", select(3, calibrate.load(path)))
  end)
end)

describe("the gate", function()
  it("passes a model without changes, warns, and fails", function()
    local a <close> = load "llama"
    local list = ids(60, a.vocab)
    local same <close> = load("llama", { weights = "fp32" })
    local report = assert(gate.run(a, same, list))
    assert.same({ true, false, "ok" }, { report.ok, report.warning, report.verdict })
    assert.near(1, report.cosine, 1e-9)
    assert.same({ 60, 60 }, { report.argmax.agree, report.argmax.of })
    assert.same({ 60, 60 }, { report.hidden.count, report.logits.count })
    assert.matches("^hidden   cosine 1.000000.*best     60 of 60 equal.*ok: 60 tokens in 1 runs$", tostring(report))
    local int8 <close> = load("llama", { weights = "int8" })
    report = assert(gate.run(a, int8, list))
    assert(report.ok and report.cosine < 1 and report.cosine > 0.99)
    assert.equal(report.cosine < gate.WARNING, report.warning)
    local coarse <close> = load("llama", { weights = "lut4" })
    report = assert(gate.run(a, coarse, { list, { 1, 2, 3 } }, { chunk = 32 }))
    assert.same({ false, true, "fail", 3, 63 }, { report.ok, report.warning, report.verdict, report.runs, report.tokens })
    assert(report.argmax.agree < report.argmax.of and report.argmax.clear <= report.argmax.of)
  end)

  it("takes the mean cosine over tokens, and finds the worst token", function()
    local a <close> = load "llama"
    local b <close> = load("llama", { weights = "int4-block" })
    local list = ids(20, a.vocab)
    local report = assert(gate.run(a, b, list))
    local s <close> = a:session()
    local t <close> = b:session()
    assert(s:feed(list, { want = "all" }))
    assert(t:feed(list, { want = "all" }))
    local sum, least, at, agree = 0, 2, 0, 0
    for i = 1, 20 do
      local x, y = floats.unpack(s:logits(i):tostring()), floats.unpack(t:logits(i):tostring())
      local dot, xx, yy = 0, 0, 0
      for c, v in ipairs(x) do dot, xx, yy = dot + v * y[c], xx + v * v, yy + y[c] ^ 2 end
      local cosine = dot / math.sqrt(xx * yy)
      sum = sum + cosine
      if cosine < least then least, at = cosine, i end
      if s:argmax(i) == t:argmax(i) then agree = agree + 1 end
    end
    assert.near(sum / 20, report.logits.cosine, 1e-6)
    assert.near(least, report.logits.least, 1e-6)
    assert.same({ at, agree }, { report.logits.least_at, report.argmax.agree })
    local x, y = a:trace(list, "output_norm").output_norm, b:trace(list, "output_norm").output_norm
    local hidden = 0
    for i = 1, 20 do hidden = hidden + x:slice(1, i, i):compare(y:slice(1, i, i)).cosine / 20 end
    assert.near(hidden, report.hidden.cosine, 1e-6)
  end)

  it("holds an exported set to the model with the same weights", function()
    local out = os.tmpname()
    os.remove(out)
    local source <close> = load "llama"
    assert(source:export(out, { weights = "lut4-g8", context = 64 }))
    local a <close> = load("llama", { weights = "lut4-g8", context = 64 })
    local b <close> = assert(ane.load(out, { engine = "graph" }))
    local report = assert(ane.gate(a, b, ids(30, a.vocab)))
    assert(report.verdict == "ok" and report.cosine > 0.99999, tostring(report))
    assert.same({ 30, 30 }, { report.argmax.agree, report.argmax.of })
    os.execute("rm -r '" .. out .. "'")
  end)

  it("takes hidden states from the caller, or none", function()
    local a <close> = load "llama"
    local list = ids(8, a.vocab)
    local report = assert(gate.run(a, a, list, { hidden = function() return nil end }))
    assert.is_nil(report.hidden)
    assert.matches("hidden   not shown by these models", tostring(report), 1, true)
    local turns = 0
    report = assert(gate.run(a, a, list, { hidden = function(_, run)
      turns = turns + 1
      local values = {}
      for i = 1, 2 * #run do values[i] = i % 2 == turns % 2 and 1 or 0.5 end
      return core.tensor({ #run, 2 }, values)
    end }))
    assert.near(0.8, report.hidden.cosine, 1e-6)
    assert.equal("fail", report.verdict)
    local other <close> = load "qwen2_swa"
    assert.equal("shape", select(3, gate.run(a, other, list)))
    for _, wrong in ipairs { 5, core.tensor { 8 } } do
      assert.error_matches(function() gate.run(a, a, list, { hidden = function() return wrong end }) end,
        "gate: option hidden must return a tensor %[tokens, channels%] or nothing, but has returned a ")
    end
    assert.has_error(function() gate.run(a, a, 7) end)
  end)
end)
