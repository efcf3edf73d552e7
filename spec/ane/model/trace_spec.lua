local core = require "ane.core"
local tiny = require "support.tiny"
local trace = require "ane.model.trace"

local IDS = { 5, 900, 17, 3, 256, 5 }

describe("trace", function()
  local model = tiny.load("llama-mixed", { activations = "fp32", threads = 1 })
  local source = assert(core.open(tiny.path "llama-mixed"))

  teardown(function() model:close() end)

  it("names the values in the order in which they are computed", function()
    local names, place = model:values(), {}
    for i, value in ipairs(names) do place[value.name] = i end
    for _, pair in ipairs {
      { "token_embd", "layers.0.attn_norm" }, { "layers.0.attn_norm", "layers.0.attn_q" }, { "layers.0.ffn_gate", "layers.0.glu" },
      { "layers.0.add_2", "layers.1.attn_norm" }, { "layers.2.add_2", "output_norm" },
    } do assert.is_true(place[pair[1]] < place[pair[2]]) end
    assert.equal(model.config.d_model, names[place["layers.1.add"]].channels)
  end)

  it("gives the rows of the embedding, the norm of the recipe and the sums of the residual stream", function()
    local t = assert(model:trace(IDS, { "token_embd", "layers.0.*" }))
    local d = model.config.d_model
    local weight = core.tensor({ d }, assert(source:read "blk.0.attn_norm.weight"))
    for i, id in ipairs(IDS) do
      local x = core.tensor({ d }, assert(source:read("token_embd.weight", id + 1, id + 1)))
      assert.same(x:totable(), t.token_embd[i]:totable())
      local normed = x * weight / math.sqrt(x:dot(x) / d + model.config.norm_eps)
      assert.is_true(t["layers.0.attn_norm"][i]:compare(normed).max_abs < 1e-5)
    end
    assert.equal(0.0, t["layers.0.add"]:compare(t.token_embd + t["layers.0.attn_output"]).max_abs)
    assert.equal(0.0, t["layers.0.add_2"]:compare(t["layers.0.add"] + t["layers.0.ffn_down"]).max_abs)
    local gate, up, glu = t["layers.0.ffn_gate"], t["layers.0.ffn_up"], t["layers.0.glu"]
    for i = 1, 5 do
      local g = gate:get(2, i)
      assert.near(g / (1 + math.exp(-g)) * up:get(2, i), glu:get(2, i), 1e-5)
    end
    assert.same({ #IDS, d }, t["layers.0.attn_output"]:shape())
    assert.is_nil(t["layers.1.add"])
  end)

  it("ends in the logits of the model", function()
    local values = model:values()
    local last = values[#values].name
    local t = assert(model:trace(IDS, last))
    local s <close> = assert(model:session())
    assert(s:feed(IDS, { want = "all" }))
    for i = 1, #IDS do assert.is_true(t[last][i]:compare(s:logits(i)).max_abs < 1e-4) end
  end)

  it("takes texts and messages as generate does", function()
    local chatty <close> = tiny.load()
    local ids = assert(chatty.tokenizer:encode "Hello")
    assert.equal(#ids, assert(chatty:trace("Hello", "*.attn"))["layers.0.attn"]:shape()[1])
    assert.is_true(assert(chatty:trace({ { role = "user", content = "Hi" } }, "token_embd")).token_embd:shape()[1] > 1)
  end)

  it("matches globs and no more", function()
    assert.is_true(trace.fits("layers.3.attn_q", { "*.attn_q" }))
    assert.is_true(trace.fits("layers.3.attn_q", { "x", "layers.?.attn_?" }))
    assert.is_false(trace.fits("layers.33.attn_q", { "layers.3.*" }))
    assert.is_false(trace.fits("layersx3", { "layers.3" }))
    assert.is_true(trace.fits("a-b+c%d", { "a-b+c%d" }))
  end)

  it("says what it cannot do", function()
    local long = {}
    for i = 1, 513 do long[i] = 1 end
    local t, message, code = model:trace(long, "*")
    assert.is_nil(t)
    assert.matches("1 %.%. 512 tokens, but the input has 513", message)
    assert.equal("range", code)
    t, message, code = model:trace(IDS, { "layers.0.*", "layers.77.*" })
    assert.is_nil(t)
    assert.matches("no value matches 'layers%.77%.%*'", message)
    assert.equal("notfound", code)
    t, message = model:trace({}, "*")
    assert.is_nil(t)
    assert.matches("but the input has 0", message)
    assert.error_matches(function() model:trace(IDS, 7) end, "patterns must be a glob or a list of them, but is a number")
    assert.error_matches(function() model:trace(IDS, { 7 }) end, "pattern 1 must be a string, but is 7")
    assert.error_matches(function() model:trace(7, "*") end, "prompt must be a text")
  end)

  it("ends with the model", function()
    local gone = tiny.load()
    assert(gone:trace({ 1 }, "token_embd"))
    local plain = gone._bundle.plain
    gone:close()
    assert.equal("program (closed)", tostring(plain))
    assert.error_matches(function() gone:trace({ 1 }, "*") end, "model is closed")
  end)
end)
