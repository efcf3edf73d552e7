-- Models with short convolutions, experts, convolved attention and attention to both sides, in either layout of their
-- files, against what transformers computes from the same weights in float32: logits, greedy tokens, and the residual
-- stream behind each layer.
local ane = require "ane"
local core = require "ane.core"
local floats = require "support.floats"
local hf = require "support.hf"
local programs = require "support.programs"

local MODELS = {
  "lfm2-odd", "lfm2_moe-odd", "qwen2_moe-odd", "qwen2_moe_window-odd", "zaya-odd", "zaya_original-odd", "zaya_bias-odd",
  "privacy_filter-odd", "privacy_filter_original-odd", "privacy_filter",
}
local GATED = { ["lfm2_moe-odd"] = true, ["qwen2_moe-odd"] = true, ["zaya-odd"] = true, ["privacy_filter-odd"] = true }

local function close(got, want, what)
  local worst = hf.apart(got, want)
  assert.is_true(worst <= 2e-3, ("%s: %g off"):format(what, worst))
end

-- Names of the values that are the residual stream: before layer 0, behind each layer, behind the last norm.
local function stream_of(p)
  local last, first, final = {}, nil, nil
  for _, v in ipairs(p:values()) do
    local layer = math.tointeger(tonumber(v.name:match "^layers%.(%d+)%."))
    if layer then last[layer + 1] = v.name
    elseif #last == 0 and not v.name:find "^rope" then first = v.name end
    if v.name == "output_norm" then final = v.name end
  end
  return first, last, final
end

for _, name in ipairs(MODELS) do
  describe(name, function()
    local golden, want = hf.golden(name)

    it("gives the golden logits and greedy tokens on every level", function()
      for _, isa in ipairs(core.isa_list()) do
        local p <close> = programs.open(hf.path(name), { isa = isa, context = 200 })
        local s <close> = assert(p:session { context = 200, kv = "fp32" })
        for _, prompt in ipairs(golden) do
          assert(s:rewind(0))
          close(programs.feed(s, prompt.ids), want[prompt.name .. ".logits"], isa .. " " .. prompt.name)
          if prompt.greedy then
            assert(s:rewind(0))
            assert.same(prompt.greedy, programs.greedy(s, prompt.ids, #prompt.greedy), isa)
          end
        end
      end
    end)

    it("has the golden residual stream behind each layer", function()
      local p <close> = programs.open(hf.path(name), { pipeline = "cpu-plain", context = 200 })
      local s <close> = assert(p:session { context = 200, kv = "fp32" })
      local first, last, final = stream_of(p)
      local names = table.move(last, 1, #last, 2, { first })
      names[#names + 1] = final
      local got = assert(s:trace(golden[1].ids, names))
      for i = 0, #last do
        local w = want["short.hidden." .. i]
        assert.is_true(w ~= nil or i == #last) -- transformers gives the last one normed only
        if w then close(got[names[i + 1]]:tostring(), w, "into layer " .. i) end
      end
      close(got[final]:tostring(), want["short.hidden.final"], "final")
      assert.is_true(#last >= 3)
    end)

    if GATED[name] then
      it("gives the same with all experts under masked weights", function()
        for _, pipeline in ipairs { "cpu", "cpu-plain" } do
          local p <close> = programs.open(hf.path(name), { soft = true, threads = 2, pipeline = pipeline, context = 200 })
          local s <close> = assert(p:session { context = 200, kv = "fp32" })
          for _, prompt in ipairs(golden) do
            assert(s:rewind(0))
            close(programs.feed(s, prompt.ids), want[prompt.name .. ".logits"], prompt.name)
          end
        end
      end)

      it("stays close with weights in other formats", function()
        local ids = golden[2].ids
        local file <close> = programs.open(hf.path(name), { context = 200 })
        local s <close> = assert(file:session { context = 200, kv = "fp32" })
        local logits = programs.feed(s, ids)
        for _, weights in ipairs { "fp32", "fp16", "bf16" } do
          local p <close> = programs.open(hf.path(name), { weights = weights, threads = 2, context = 200 })
          local t <close> = assert(p:session { context = 200, kv = "fp32" })
          -- The fixtures hold bfloat16, which all three do exactly, but for subnormal halves.
          assert.is_true(hf.cosine(programs.feed(t, ids), logits) > 0.99999, weights)
        end
      end)

      it("loads soft by an option of load", function()
        local rows, bytes = {}, {}
        for i, soft in ipairs { false, true } do
          local model <close> = assert(ane.load(hf.path(name), { activations = "fp32", threads = 1, soft_experts = soft, context = 100 }))
          local s <close> = assert(model:session())
          assert(s:feed(golden[1].ids, { want = "last" }))
          rows[i], bytes[i] = s:logits(-1), model:info().scratch_bytes
        end
        assert.is_true(bytes[2] > bytes[1]) -- a row for each expert, not for the chosen ones
        assert.is_true(hf.apart(rows[2]:tostring(), { data = rows[1]:tostring() }) <= 1e-4)
      end)
    end
  end)
end

describe("privacy_filter-odd", function()
  local golden, want = hf.golden "privacy_filter-odd"
  local ids = golden[2].ids

  it("gives the golden logits with one, three and all experts a token", function()
    for k, key in pairs { [1] = "k1.logits", [3] = "long.logits", [5] = "k5.logits" } do
      local path <close> = hf.changed("privacy_filter-odd", function(cfg) cfg.num_experts_per_tok = k end)
      local p <close> = programs.open(path.name, { context = 100 })
      local s <close> = assert(p:session { context = 100, kv = "fp32" })
      close(programs.feed(s, ids), want[key], "k " .. k)
    end
  end)

  it("takes a text whole, from the start, and says so", function()
    local model <close> = assert(require("ane").load(hf.path "privacy_filter-odd", { activations = "fp32", threads = 2, context = 100 }))
    local s <close> = assert(model:session())
    assert(s:feed(ids, { want = "all" }))
    local rows = {}
    for i = 1, #ids do rows[i] = s:logits(i):tostring() end
    close(table.concat(rows), want["long.logits"], "all rows")
    local ok, message, code = s:feed { 1 }
    assert.same({ nil, "range" }, { ok, code })
    assert.equal("this model sees tokens on both sides: it takes a whole sequence at once, from position 0 (rewind first)", message)
    assert.equal(#ids, s:rows())
    assert(s:rewind(0))
    ok, message, code = s:feed(ids, { chunk = 10 })
    assert.same({ nil, "range" }, { ok, code })
    assert.equal("this model sees tokens on both sides: it takes a whole sequence in one run, not 10 of 75 ids; " ..
      "a run takes 100 at most (cut the text)", message)
    assert.equal(0, s.length)
    assert(s:feed(ids, { want = "all" }))
    for i = 1, #ids do assert.is_true(rows[i] == s:logits(i):tostring()) end
  end)

  it("refuses a text longer than a run before it feeds any of it", function()
    local p <close> = programs.open(hf.path "privacy_filter-odd", { context = 100, chunk = 40 })
    local s <close> = require("ane.generate.session").open(p, { context = 100, kv = "fp32" })
    local ok, message, code = s:feed(ids, { want = "all" })
    assert.same({ nil, "range" }, { ok, code })
    assert.matches("not 40 of 75 ids; a run takes 40 at most", message, 1, true)
    assert.equal(0, s.length)
  end)
end)

describe("the configuration of a mixture", function()
  it("slides windows in Qwen2 MoE only where it says so", function()
    local golden = hf.golden "qwen2_moe_window-odd"
    local ids, bits = golden[2].ids, {}
    for _, sliding in ipairs { true, false } do
      local path <close> = hf.changed("qwen2_moe_window-odd", function(cfg) cfg.use_sliding_window = sliding end)
      local p <close> = programs.open(path.name, { context = 100 })
      local s <close> = assert(p:session { context = 100, kv = "fp32" })
      bits[#bits + 1] = programs.feed(s, ids)
    end
    local row = 59 * 4
    assert.is_nil(floats.difference(bits[1]:sub(1, 6 * row), bits[2]:sub(1, 6 * row))) -- within the window all is seen
    assert.is_true(bits[1]:sub(6 * row + 1, 7 * row) ~= bits[2]:sub(6 * row + 1, 7 * row))
  end)

  it("names the key that is missing or of another kind", function()
    local function refused(name, key, value)
      local path <close> = hf.changed(name, function(cfg) cfg[key] = value end)
      local model, message, code = ane.load(path.name)
      assert.is_nil(model)
      return code .. ": " .. message:gsub("^.*/config%.json", "config.json"):gsub("^/[^ ]*: ", "")
    end
    local P = "format: config.json: key "
    for _, case in ipairs {
      { "lfm2_moe-odd", "num_experts", { 1 }, P .. "num_experts must be a number, but is a list" },
      { "lfm2_moe-odd", "num_experts_per_tok", "two", P .. "num_experts_per_tok must be a number, but is 'two'" },
      { "lfm2_moe-odd", "norm_topk_prob", 1, P .. "norm_topk_prob must be true or false, but is 1" },
      { "lfm2-odd", "conv_L_cache", true, P .. "conv_L_cache must be a number, but is true" },
      { "qwen2_moe-odd", "decoder_sparse_step", 0, P .. "decoder_sparse_step must be a whole number from 1 to 16777216, but is 0" },
      { "qwen2_moe-odd", "mlp_only_layers", { "one" }, P .. "mlp_only_layers[0] must be a number, but is 'one'" },
      { "zaya-odd", "cca_time0", 0.5, P .. "cca_time0 must be a whole number from 1 to 65536, but is 0.5" },
      { "zaya-odd", "num_experts", nil, "shape: layers.0: the configuration lacks the number of experts" },
      { "zaya-odd", "moe_intermediate_size", nil, "shape: layers.0: the configuration lacks the width of the experts" },
      { "lfm2-odd", "rope_parameters", { rope_theta = { 1 } }, P .. "rope_parameters.rope_theta must be a number, but is a list" },
      { "lfm2-odd", "rope_parameters", { other = { rope_theta = 1 } }, "shape: rope_parameters names no rope for these layers" },
      { "gemma3_softcap", "final_logit_softcapping", ("x"):rep(3000),
        P .. "final_logit_softcapping must be a number, but is '" .. ("x"):rep(60) .. "...'" },
    } do
      assert.equal(case[4], refused(case[1], case[2], case[3]))
    end
  end)

  it("gives LFM2 its own rope base where the file names none", function()
    local bits = {}
    for i, theta in ipairs { 1e6, 0, 1e4 } do
      local path <close> = hf.changed("lfm2-odd", function(cfg)
        cfg.rope_parameters.rope_theta = theta > 0 and theta or nil
      end)
      local p <close> = programs.open(path.name, { context = 20 })
      local s <close> = assert(p:session { context = 20, kv = "fp32" })
      bits[i] = programs.feed(s, { 3, 1, 4, 1, 5, 9, 2, 6 })
    end
    assert.is_true(bits[1] == bits[2] and bits[1] ~= bits[3])
  end)

  it("gives the privacy filter the rope of transformers where the file names none", function()
    local bits, golden = {}, hf.golden "privacy_filter-odd"
    local named = {
      rope_type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1, truncate = false, original_max_position_embeddings = 4096,
      rope_theta = 150000,
    }
    for i, rope in ipairs { named, false } do
      local path <close> = hf.changed("privacy_filter-odd", function(cfg) cfg.rope_parameters = rope or nil end)
      local p <close> = programs.open(path.name, { context = 100 })
      local s <close> = assert(p:session { context = 100, kv = "fp32" })
      bits[i] = programs.feed(s, golden[1].ids)
    end
    assert.is_true(bits[1] == bits[2])
  end)

  it("finds ZAYA's ropes where a rope_type stands beside them, as in the published file", function()
    local golden, want = hf.golden "zaya-odd"
    local path <close> = hf.changed("zaya-odd", function(cfg) cfg.rope_parameters.rope_type = "default" end)
    local p <close> = programs.open(path.name, { context = 100 })
    local s <close> = assert(p:session { context = 100, kv = "fp32" })
    close(programs.feed(s, golden[1].ids), want["short.logits"], "short")
  end)
end)
