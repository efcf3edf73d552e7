-- Packages as the exporter writes them: the same bytes for the same graph, all or nothing, errors that name the place.
local core = require "ane.core"
local ops = require "support.ops"
local testing = core.testing

after_each(function() testing.alloc_fail_after(-1) end)

local FOLDERS = {}

local function fresh()
  local path = os.tmpname()
  os.remove(path)
  FOLDERS[#FOLDERS + 1] = path
  return path
end

teardown(function()
  for _, path in ipairs(FOLDERS) do os.execute(("rm -rf '%s'"):format(path)) end
end)

-- A graph with a state, a mixture of experts, rope and a head.
local function small()
  return ops.graph(ops.new {
    channels = 16, out = 16, consts = { w = { 16 }, r = { 3, 16 }, a = { 8, 16 }, b = { 8, 16 }, c = { 16, 8 }, k = { 16, 1, 3 } },
    text = [[
      state s: fp32[1, 16, 2, 1]
      state ks: fp32[1, 2, context, 4]
      state vs: fp32[1, 2, context, 4]
      turn = rope_table(positions) {inv_freq=[1 0.1]}
      h = rms_norm(x, w)
      q = slice(h) {from=0 to=8}
      kk = slice(h) {from=8 to=16}
      p = rope(q, turn) {heads=2}
      o = attention(p, kk, kk, ks, vs) {heads=2 kv_heads=2}
      j = concat(o, q)
      z = conv_causal(j, k, -, -, s) {groups=16}
      l = conv1x1(z, r)
      n = route(l) {k=2 norm=1}
      y = experts(z, n, a, -, b, -, c, -, a, -, b, -, c, -) {count=2}
    ]],
  })
end

local OPTIONS = { context = 16, whole = true, weights = "int8", embed = true, threads = 1 }

local function options(more)
  local o = {}
  for key, value in pairs(OPTIONS) do o[key] = value end
  for key, value in pairs(more or {}) do o[key] = value end
  return o
end

local function bytes(path)
  local folder = path .. "/Data/com.apple.CoreML/"
  return assert(core.read_file(folder .. "model.mlmodel")) .. assert(core.read_file(folder .. "weights/weight.bin"))
end

local function write(graph, more, path)
  local e, message, code = core.mil_exporter(graph, options(more))
  if not e then return nil, message, code end
  local made
  made, message, code = e:write(1, path)
  e:close()
  return made, message, code
end

describe("written packages", function()
  it("have the same bytes whenever and on however many threads they are written", function()
    local a, b = fresh(), fresh()
    local g <close> = small()
    local h <close> = small()
    assert(write(g, nil, a))
    assert(write(h, { threads = 3 }, b))
    assert.is_true(bytes(a) == bytes(b))
    assert(write(g, nil, a)) -- in the place of the old one
    assert.is_true(bytes(a) == bytes(b))
  end)

  it("have the oldest version that has what they need", function()
    local path = fresh()
    local plain <close> = ops.graph(ops.new { channels = 64, out = 8, consts = { w = { 8, 64 } }, text = "y = conv1x1(x, w)" })
    local state <close> = small()
    local want = { fp16 = 7, int8 = 7, ["int8-channel"] = 7, ["int8-block"] = 9, lut4 = 7, ["lut4-g8"] = 9, ["int4-block"] = 9,
      ["uint4-block"] = 9, lut2 = 7, lut3 = 9, lut6 = 7, lut8 = 7, ["lut6-g8"] = 9 }
    for form, version in pairs(want) do
      assert.equal(version, assert(write(plain, { weights = form }, path)).version, form)
      assert.equal(9, assert(write(state, { weights = form }, path)).version, form)
    end
  end)

  it("name their features by role, in order", function()
    local g <close> = small()
    local made = assert(write(g, nil, fresh()))
    local function names(list)
      local out = {}
      for i, p in ipairs(list) do out[i] = ("%s=%s[%s]"):format(p.name, p.role, table.concat(p.shape, ",")) end
      return table.concat(out, " ")
    end
    local inputs = "ids=ids[1,T] position=position[1] cos_0=rope_cos[1,2,T,1] sin_0=rope_sin[1,2,T,1] mask_0=mask[1,1,T,16]"
    assert.equal(inputs, names(made.inputs))
    assert.equal("logits=logits[1,16,T,1]", names(made.outputs))
    assert.equal("ks=keys[1,2,16,4] vs=values[1,2,16,4] s=columns[1,16,2,1]", names(made.states))
  end)

  it("tell what each weight lost, and stop where they are told to", function()
    local g <close> = small()
    local e <close> = assert(core.mil_exporter(g, options()))
    local seen, path = {}, fresh()
    assert(e:write(1, path, function(w) seen[#seen + 1] = w end))
    assert.equal(5, #seen) -- r, a, b, c, eye: equal asks are one
    for _, w in ipairs(seen) do
      assert.equal("int8", w.form)
      assert.is_true(w.error < 1e-3 * w.signal and w.max_abs > 0 or w.name == "eye", w.name)
    end
    local before = bytes(path)
    local ok, message = pcall(e.write, e, 1, path, function() error("enough", 0) end)
    assert.is_false(ok)
    assert.equal("enough", message)
    assert.is_true(before == bytes(path))
  end)

  it("refuse what cannot be", function()
    local g <close> = small()
    local function fails(text, more, graph)
      local ok, message = pcall(write, graph or g, more, fresh())
      local result = message
      if ok then ok, message = write(graph or g, more, fresh()) end
      assert.is_falsy(ok, tostring(result))
      assert.is_truthy(tostring(message):find(text, 1, true), tostring(message))
    end
    fails("a call has 32 tokens, not 1 .. 16, the context", { fixed_t = 32 })
    fails("option gather is first; known are: all, last", { gather = "first" })
    fails("option layout is", { layout = "tc1" })
    local fused <close> = small()
    assert(fused:passes "cpu")
    fails("", nil, fused)
    local long <close> = ops.graph(ops.new { channels = 8, out = 8,
      text = "r = rope_table(positions) {inv_freq=[1 0.1] long_freq=[0.5 0.1] original=8}\ny = rope(x, r) {heads=2}" })
    fails("its tables must be inputs for a context of 16", { rope = "constants" }, long)
    assert(write(long, { rope = "constants", context = 8 }, fresh()))
    assert(write(long, nil, fresh()))
  end)

  it("are written whole or not at all when memory runs out", function()
    local g <close> = small()
    local path = fresh()
    for _, form in ipairs { "int8", "lut4-g8", "int4-block", "uint4-block" } do
      local n = 0
      while true do
        assert.is_true(n < 5000)
        local before = testing.alloc_fail_after(n)
        local ok, made, message = pcall(write, g, { weights = form }, path)
        local taken = testing.alloc_fail_after(-1) - before
        if not (ok and made) then
          local text = tostring(ok and message or made)
          assert.is_truthy(text:find "memory" or text:find "cannot start", text)
          assert.is_nil(core.read_file(path .. "/Manifest.json"), ("allocation %d of %s: %s"):format(n, form, text))
        else
          os.execute(("rm -rf '%s'"):format(path))
          if taken <= n then break end
        end
        n = n + 1
      end
    end
  end)

  it("hold constants that coremltools would put into the weight file there", function()
    local g <close> = small()
    local path = fresh()
    assert(write(g, { rope = "constants", context = 64 }, path))
    local model = assert(core.read_file(path .. "/Data/com.apple.CoreML/model.mlmodel"))
    assert.is_true(#model < 40000, #model)
  end)
end)
