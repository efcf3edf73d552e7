-- spec/fixtures/check: goldens of every layer and block, made by transformers (spec/golden/check_models.py).
local ane = require "ane"
local attention = require "ane.recipe.attention"
local command = require "support.command"
local core = require "ane.core"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local FOLDER = "spec/fixtures/check/"

-- A copy of models/llama.lua with traps: a table of what is done in another way.
local function llama(trap)
  return { architectures = { "llama" }, ignore = trap.ignore, build = function(b, cfg)
    local rms_norm, linear = b.rms_norm, b.linear
    local function norm(x, role) return rms_norm(b, x, role, { offset = trap.offset, eps = trap.eps }) end
    if trap.no_bias then
      function b:linear(x, role)
        if not role:find(trap.no_bias) then return linear(self, x, role) end
        return self:_add("conv1x1", role, { x, self:weight(role .. "") })
      end
    end
    local x = b:embed "token_embd"
    if trap.embed_scale then x = b:scale(x, trap.embed_scale) end
    local rope = b:rope_table(cfg.rope)
    for i = 0, cfg.n_layer - 1 do
      b:layer(i, function()
        x = b:add(x, attention.gqa(b, norm(x, "attn_norm"), {
          rope = rope, layout = trap.layout or "interleaved", window = trap.window, scale = trap.scale, softcap = trap.attention_cap }))
        local m = ffn.gated(b, norm(x, "ffn_norm"), trap.act or "silu")
        x = b:add(x, trap.layer_scale and b:scale(m, trap.layer_scale) or m)
      end)
    end
    x = norm(b:gather(x), "output_norm")
    local y = b:linear(x, trap.head or "output")
    return trap.logit_scale and b:scale(y, trap.logit_scale) or y
  end }
end

-- The same of models/gemma3.lua.
local function gemma3(trap)
  return { architectures = { "gemma3" }, build = function(b, cfg)
    local rope = b:rope_table { theta = cfg.rope.local_theta, dims = cfg.rope.dims }
    local x = b:embed "token_embd"
    if not trap.no_embed_scale then x = b:scale(x, math.sqrt(cfg.d_model)) end
    for i = 0, cfg.n_layer - 1 do
      b:layer(i, function()
        local a = attention.gqa(b, b:rms_norm(x, "attn_norm"), {
          rope = rope, qk_norm = trap.qk_norm or "before_rope", norm_offset = trap.qk_offset, window = trap.window or cfg.sliding_window })
        x = b:add(x, b:rms_norm(a, "post_attention_norm"))
        x = b:add(x, b:rms_norm(ffn.gated(b, b:rms_norm(x, "ffn_norm"), "gelu_tanh"), "post_ffw_norm"))
      end)
    end
    local cap = cfg.meta "final_logit_softcapping"
    if trap.cap_before_head then
      x = b:softcap(b:rms_norm(b:gather(x), "output_norm"), cap)
      return b:linear(x, "token_embd")
    end
    return head.lm(b, x, { softcap = not trap.no_cap and cap or nil })
  end }
end

local function check(name, recipe, opts)
  local model <close> = assert(ane.load(FOLDER .. name .. ".gguf", { activations = "fp32", threads = 1, recipe = recipe }))
  return assert(ane.check(model, FOLDER .. name .. ".golden.json", opts))
end

-- The kinds of the hints that are certain, and all texts.
local function causes(report)
  local kinds, texts = {}, {}
  for _, hint in ipairs(report.hints) do
    if hint.certain then kinds[hint.kind] = true end
    texts[#texts + 1] = hint.text
  end
  return kinds, table.concat(texts, "\n")
end

describe("a check", function()
  it("agrees with transformers in every layer and block", function()
    for _, name in ipairs { "llama", "gemma3" } do
      local report = check(name)
      assert.is_true(report.ok, tostring(report))
      assert.is_true(report.greedy_equal)
      assert.same({}, report.hints)
      local names = {}
      for i, row in ipairs(report.layers) do
        names[i] = row.name
        assert.is_true(row.max_abs < 1e-4 and row.cosine > 0.999999)
      end
      assert.same({ "hidden.0", "hidden.1", "hidden.2", "hidden.3", "hidden.final" }, names)
      assert.equal(3 * 8, #report.blocks)
      assert.equal(1.0, report.logits.argmax_agree)
      assert.matches("\nok$", tostring(report))
    end
  end)

  it("recognises rows of q and k in another order", function()
    for _, row in ipairs(check("llama").blocks) do
      assert.equal(row.name:find "attn_[qk]$" ~= nil, row.permuted or false, row.name)
    end
  end)

  it("names the first layer and block that drift", function()
    local report = check("llama", llama { act = "gelu_erf" }, { hints = false })
    assert.is_false(report.ok)
    assert.equal("hidden.1", report.first.name)
    assert.equal("layers.0.ffn_down", report.first_block.name)
    assert.same({}, report.hints)
    assert.matches("first drift: hidden.1 %(our layers.0.add_2%)", tostring(report))
    assert.matches("first block that drifts: layers.0.ffn_down", tostring(report))
    assert.matches("\nnot ok$", tostring(report))
  end)

  it("compares the labels of a token classifier", function()
    local path = "spec/fixtures/hf/privacy_filter"
    local model <close> = assert(ane.load(path, { activations = "fp32" }))
    local report = assert(ane.check(model, path))
    assert.is_true(report.ok, tostring(report))
    assert.is_nil(report.greedy_equal)
    assert.equal(1.0, report.logits.argmax_agree)
    assert.equal("hidden.4", report.layers[5].name)
  end)

  it("takes one prompt where asked", function()
    local report = check("llama", nil, { prompt = "p1" })
    assert.equal(1, #report.outputs)
    assert.equal(24, report.outputs[1].tokens)
  end)

  it("compares the last positions where a golden holds only their logits", function()
    local model <close> = assert(ane.load("spec/fixtures/hf/llama", { activations = "fp32", threads = 1 }))
    local report = assert(ane.check(model, "spec/fixtures/hf/llama"))
    assert.same({ 40, 4 }, { report.outputs[2].tokens, report.outputs[2].logits.ours:shape()[1] })
    assert.is_true(report.ok)
  end)

  it("allows rounding where activations are int8", function()
    local model <close> = assert(ane.load(FOLDER .. "llama.gguf", { threads = 1 }))
    local report = assert(ane.check(model, FOLDER .. "llama.golden.json"))
    assert.is_true(report.ok)
    assert.equal(0.998, report.limits.cosine)
  end)

  it("says what is wrong with a golden", function()
    local model <close> = assert(ane.load(FOLDER .. "llama.gguf"))
    local function fails(text, code, path, opts)
      local report, message, got = ane.check(model, path, opts)
      assert.is_nil(report)
      assert.matches(text, message)
      assert.equal(code, got)
    end
    fails("no prompt x; there are: p0, p1", "notfound", FOLDER .. "llama.golden.json", { prompt = "x" })
    fails("none.json", "io", "none.json")
    local path = os.tmpname()
    local cases = { { "{}", "no list \"prompts\"" }, { "[", path }, { [[{"prompts": [{"input_ids": ["a"]}]}]], "prompt 1 has no list" } }
    for _, case in ipairs(cases) do
      assert(core.write_file(path, case[1]))
      fails(case[2], "format", path)
    end
    os.remove(path)
    assert.error_matches(function() ane.check(model, 7) end, "check: golden must be a string")
    assert.error_matches(function() ane.check(model, "x", { prmopt = 1 }) end, "unknown option \"prmopt\"")
    assert.error_matches(function() ane.check({}, "x") end, "no model given")
  end)
end)

describe("a trap is found:", function()
  local TRAPS = {
    { "norm weights with 1 added", "llama", { offset = 1 }, "norm", "norm convention: multiply by %(1 %+ w%)" },
    { "norm of q and k with 1 added", "gemma3", { qk_offset = 1 }, "norm", "norm convention of q and k" },
    { "eps", "llama", { eps = 1e-2 }, "eps", "norm eps: 1e%-05" },
    { "a scaled embedding", "llama", { embed_scale = math.sqrt(32) }, "embed", "does not multiply by sqrt" },
    { "an embedding without scale", "gemma3", { no_embed_scale = true }, "embed", "= sqrt%(d_model%): multiply the embedding" },
    { "pairs of rope", "llama", { layout = "half" }, "rope", "rope pairing" },
    { "activation", "llama", { act = "gelu_tanh" }, "activation", "silu" },
    { "scale of scores", "llama", { scale = 1 }, "scale", "head_dim%^%-0.5" },
    { "window", "llama", { window = 3 }, "window", "see all keys" },
    { "window off by one", "gemma3", { window = 5 }, "window", "one key more" },
    { "soft cap of scores", "llama", { attention_cap = 2 }, "softcap", "scores are not capped" },
    { "no soft cap", "gemma3", { no_cap = true }, "softcap", "golden's logits are 9 tanh%(ours / 9%)" },
    { "soft cap before the head", "gemma3", { cap_before_head = true }, "softcap", "wrong place" },
    { "norm behind rope", "gemma3", { qk_norm = "after_rope" }, "qk_norm", "order of norm and rope" },
    { "tied head", "llama", { head = "token_embd", ignore = { "^output%.weight$" } }, "head", "untied head" },
    { "head scale", "llama", { logit_scale = 0.25 }, "head", "head scale: the golden's logits is ours times 4" },
    { "missing bias", "llama", { no_bias = "attn_[qkv]", ignore = { "bias$" } }, "bias", "missing bias: the file has blk%.0%.attn_" },
    { "two at once", "llama", { offset = 1, act = "gelu_tanh" }, "norm", "norm convention.*; and activation.*: silu" },
  }
  local recipes = { llama = llama, gemma3 = gemma3 }
  for _, trap in ipairs(TRAPS) do
    it(trap[1], function()
      local report = check(trap[2], recipes[trap[2]](trap[3]))
      assert.is_false(report.ok)
      local kinds, text = causes(report)
      assert.is_true(kinds[trap[4]], text)
      assert.matches(trap[5], text)
    end)
  end

  it("none is claimed to be certain for another fault", function()
    local report = check("llama", llama { layer_scale = 1.5 })
    assert.is_false(report.ok)
    local kinds, text = causes(report)
    assert.same({}, kinds, text)
  end)

  it("without hidden states: by the logits alone", function()
    local opts = { activations = "fp32", recipe = llama { layout = "half" } }
    local model <close> = assert(ane.load("spec/fixtures/gguf/llama-odd.gguf", opts))
    local report = assert(ane.check(model, "spec/fixtures/gguf/llama-odd.golden.json"))
    assert.is_false(report.ok)
    assert.is_false(report.greedy_equal)
    assert.same({}, report.layers)
    assert.is_true(causes(report).rope)
  end)
end)

describe("ane check", function()
  local args = { "check", FOLDER .. "llama.gguf", FOLDER .. "llama.golden.json" }

  it("gives the contract as JSON", function()
    local out = command.json(args)
    assert.is_true(out.ok)
    assert.is_true(out.greedy_equal)
    assert.equal("hidden.0", out.layers[1].name)
    assert.is_true(out.layers[2].max_abs < 1e-4 and out.layers[2].cosine > 0.9999)
    assert.is_true(out.logits.max_abs < 1e-4 and out.logits.cosine > 0.9999 and out.logits.argmax_agree == 1)
  end)

  it("prints a table, and fails where the model drifts", function()
    local code, out = command.run(args)
    assert.equal(0, code)
    assert.matches("hidden.final", out)
    local path = os.tmpname()
    assert(core.write_file(path, assert(core.read_file "models/llama.lua"):gsub('layout = "interleaved"', 'layout = "half"')))
    local err
    code, out, err = command.run { "check", args[2], args[3], "--recipe", path }
    local failed, json, why = command.run { "check", args[2], args[3], "--recipe", path, "--json" }
    os.remove(path)
    assert.same({ 1, err }, { failed, why })
    assert.is_false(core.json_decode(json).ok)
    assert.equal(1, code)
    assert.matches("cause: rope pairing", out)
    assert.matches("drifts from the golden", err)
  end)
end)
