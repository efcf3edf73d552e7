-- Folders as GGUF files of llama.cpp's architectures: keys and tensors of its converter, and the folder's own logits read back.
-- libllama (October 2026) gave the logits of these fixtures as fp32, and of 200 random models of their architectures that transformers
-- made, within 0.002 of those of the folder.
local ane = require "ane"
local core = require "ane.core"
local floats = require "support.floats"
local folders = require "support.hf"
local quantise = require "ane.quantise"
local tree = require "support.tree"

local HF = "spec/fixtures/hf/"
local folder
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local function path(name) return folder .. "/" .. (name or "out.gguf") end

local function json(file) return assert(core.json_decode(assert(core.read_file(file)))) end

local function write(from, weights)
  local source <close> = assert(core.open(from))
  return assert(quantise.run(source, path(), { weights = weights or "fp32" }))
end

-- A copy of a fixture with another config.json.
local function changed(name, change)
  local to = path(name)
  assert(os.execute(("cp -r '%s%s' '%s'"):format(HF, name, to)))
  local config = json(to .. "/config.json")
  change(config)
  assert(core.write_file(to .. "/config.json", core.json_encode(config)))
  return to
end

-- A folder with the tensors of a fixture that `rename` gives a name, as fp32, others, and another config.json.
-- @param others name -> {shape, bytes}
local function rewritten(name, rename, change, others)
  local to, header, data, at = path "rewritten", {}, {}, 0
  assert(os.execute(("mkdir '%s'"):format(to)))
  local source <close> = assert(core.open(HF .. name))
  local function add(new, shape, bytes)
    header[new] = { dtype = "F32", shape = shape, data_offsets = { at, at + #bytes } }
    data[#data + 1], at = bytes, at + #bytes
  end
  for _, t in ipairs(source:tensors()) do
    local new = rename(t.name)
    if new then add(new, t.shape, assert(source:read(t.name))) end
  end
  for new, other in pairs(others or {}) do add(new, other[1], other[2]) end
  local text, config = core.json_encode(header), json(HF .. name .. "/config.json")
  assert(core.write_file(to .. "/model.safetensors", string.pack("<I8", #text) .. text .. table.concat(data)))
  change(config)
  assert(core.write_file(to .. "/config.json", core.json_encode(config)))
  return to
end

-- Logits of a folder or file for some ids, as numbers.
local function logits(from)
  local model <close> = assert(ane.load(from, { activations = "fp32" }))
  local session <close> = assert(model:session())
  local ids = {}
  for i = 1, 30 do ids[i] = 3 + i * 7 % 50 end
  assert(session:feed(ids, { want = "all" }))
  local out = {}
  for i = 1, #ids do
    local row = session:logits(i):totable()
    table.move(row, 1, #row, #out + 1, out)
  end
  return out
end

local function near(want, got, most)
  assert.equal(#want, #got)
  for i, v in ipairs(want) do
    local apart = math.abs(v - got[i])
    if apart > most or apart ~= apart then assert.near(v, got[i], most) end -- a call for each number takes seconds
  end
end

-- name -> architecture, keys without it, tensors
local FILES = {
  ["granite-odd"] = { "granite", {
    ["attention.scale"] = 0.2, embedding_scale = 7.0, residual_scale = 0.4, logit_scale = 3.0, ["attention.head_count"] = 6,
    ["attention.head_count_kv"] = 2, ["rope.dimension_count"] = 8, ["rope.freq_base"] = 5000.0, vocab_size = 71, context_length = 256,
  }, { ["output.weight"] = { 71, 48 }, ["blk.2.ffn_gate.weight"] = { 44, 48 } } },
  ["olmoe-odd"] = { "olmoe", { expert_count = 6, expert_used_count = 3, feed_forward_length = 14 }, {
    ["blk.0.attn_k_norm.weight"] = { 42 }, ["blk.1.ffn_gate_inp.weight"] = { 6, 42 }, ["blk.2.ffn_down_exps.weight"] = { 6, 42, 14 },
  } },
  ["mixtral-odd"] = { "llama", {
    expert_count = 5, expert_used_count = 2, feed_forward_length = 20, vocab_size = 71, ["rope.dimension_count"] = 10,
    ["attention.sliding_window"] = false,
  }, {
    ["blk.0.ffn_gate_inp.weight"] = { 5, 36 }, ["blk.1.ffn_gate_exps.weight"] = { 5, 20, 36 },
    ["blk.2.ffn_down_exps.weight"] = { 5, 36, 20 }, ["output.weight"] = { 71, 36 },
  } },
  ["gemma2-odd"] = { "gemma2", {
    attn_logit_softcapping = 3.0, final_logit_softcapping = 5.0, ["attention.sliding_window"] = 7,
    ["attention.sliding_window_pattern"] = false, ["attention.key_length"] = 10, ["attention.value_length"] = 10,
  }, {
    ["blk.0.attn_q.weight"] = { 30, 36 }, ["blk.1.post_attention_norm.weight"] = { 36 }, ["blk.2.ffn_norm.weight"] = { 36 },
    ["blk.3.post_ffw_norm.weight"] = { 36 },
  } },
  ["starcoder2-odd"] = { "starcoder2", { ["attention.layer_norm_epsilon"] = 1e-5, feed_forward_length = 44 }, {
    ["output_norm.bias"] = { 48 }, ["blk.0.attn_norm.bias"] = { 48 }, ["blk.1.ffn_norm.bias"] = { 48 }, ["blk.2.attn_output.bias"] = { 48 },
    ["blk.2.ffn_up.weight"] = { 44, 48 }, ["blk.2.ffn_up.bias"] = { 44 }, ["blk.0.ffn_down.bias"] = { 48 },
  } },
  ["glm4-odd"] = { "glm4", {
    ["rope.dimension_count"] = 6, ["attention.key_length"] = 12, ["attention.layer_norm_rms_epsilon"] = 1.5625e-7,
  }, {
    ["blk.0.ffn_up.weight"] = { 88, 48 }, ["blk.1.attn_k.bias"] = { 24 }, ["blk.1.post_attention_norm.weight"] = { 48 },
    ["blk.2.post_ffw_norm.weight"] = { 48 },
  } },
  ["cohere-odd"] = { "command-r", { logit_scale = 0.4, ["attention.layer_norm_epsilon"] = 1e-5 }, {
    ["blk.0.attn_q.weight"] = { 48, 48 },
  } },
  ["cohere2-odd"] = { "cohere2", {
    logit_scale = 0.4, ["attention.sliding_window"] = 6, ["rope.dimension_count"] = 8,
    ["attention.sliding_window_pattern"] = false, vocab_size = 71,
  }, { ["token_embd.weight"] = { 71, 48 } } },
  ["olmo3-odd"] = { "olmo2", {
    ["attention.sliding_window"] = 7, ["attention.sliding_window_pattern"] = false, ["rope.freq_base"] = 5000.0,
  }, { ["blk.3.attn_k_norm.weight"] = { 14 }, ["blk.3.post_ffw_norm.weight"] = { 42 } } },
  ["ministral3-odd"] = { "mistral3", {
    ["rope.scaling.type"] = "yarn", ["rope.scaling.factor"] = 8.0, ["rope.scaling.original_context_length"] = 8,
    ["rope.scaling.yarn_log_multiplier"] = 1.0, ["attention.temperature_scale"] = 0.2, ["attention.key_length"] = 14,
  }, {} },
  ["mamba2-odd"] = { "mamba2", {
    ["ssm.conv_kernel"] = 3, ["ssm.inner_size"] = 72, ["ssm.state_size"] = 9, ["ssm.time_step_rank"] = 12, ["ssm.group_count"] = 3,
    ["attention.head_count"] = 0, feed_forward_length = 0, context_length = 1048576, ["rope.freq_base"] = false,
  }, {
    ["blk.0.ssm_a"] = { 12, 1 }, ["blk.1.ssm_d"] = { 12, 1 }, ["blk.1.ssm_dt.bias"] = { 12 }, ["blk.2.ssm_conv1d.weight"] = { 126, 3 },
    ["blk.2.ssm_conv1d.bias"] = { 126 }, ["blk.0.ssm_norm.weight"] = { 3, 24 }, ["blk.0.ssm_in.weight"] = { 210, 36 },
    ["blk.0.ssm_out.weight"] = { 36, 72 },
  } },
  ["granitemoehybrid-odd"] = { "granitehybrid", {
    expert_count = 5, expert_used_count = 2, expert_shared_feed_forward_length = 26, feed_forward_length = 20,
    ["rope.scaling.finetuned"] = false, ["ssm.inner_size"] = 96, logit_scale = 2.0,
  }, {
    ["blk.0.ffn_gate_exps.weight"] = { 5, 20, 48 }, ["blk.1.ffn_up_exps.weight"] = { 5, 20, 48 },
    ["blk.1.ffn_down_exps.weight"] = { 5, 48, 20 }, ["blk.1.ffn_gate_inp.weight"] = { 5, 48 },
    ["blk.2.ffn_gate_shexp.weight"] = { 26, 48 }, ["blk.2.ffn_up_shexp.weight"] = { 26, 48 },
    ["blk.2.ffn_down_shexp.weight"] = { 48, 26 }, ["blk.1.attn_q.weight"] = { 48, 48 }, ["blk.2.ssm_in.weight"] = { 212, 48 },
  } },
  ["granitemoehybrid_dense-odd"] = { "granitehybrid", { ["rope.scaling.finetuned"] = true, feed_forward_length = 26 }, {
    ["blk.0.ffn_gate.weight"] = { 26, 48 }, ["blk.1.ffn_up.weight"] = { 26, 48 }, ["blk.1.ffn_down.weight"] = { 48, 26 },
  } },
  ["falcon_h1-odd"] = { "falcon-h1", {
    ["ssm.inner_size"] = 60, ["ssm.group_count"] = 2, ["attention.key_length"] = 8, vocab_size = 71, embedding_scale = false,
  }, { ["blk.0.ffn_norm"] = { 48 }, ["blk.0.ssm_norm.weight"] = { 2, 30 }, ["blk.1.ssm_in.weight"] = { 170, 48 } } },
  ["deepseek_v2-odd"] = { "deepseek2", {
    ["attention.head_count_kv"] = 1, ["attention.q_lora_rank"] = 22, ["attention.kv_lora_rank"] = 20, ["attention.key_length"] = 26,
    ["attention.value_length"] = 20, ["attention.key_length_mla"] = 16, ["attention.value_length_mla"] = 14, expert_count = 6,
    expert_used_count = 2, expert_shared_count = 1, expert_feed_forward_length = 20, leading_dense_block_count = 1, expert_gating_func = 1,
    expert_weights_scale = 1.3, expert_weights_norm = false, ["rope.dimension_count"] = 6, ["rope.scaling.yarn_log_multiplier"] = 0.08,
  }, {
    ["blk.0.attn_k_b.weight"] = { 3, 20, 10 }, ["blk.0.attn_v_b.weight"] = { 3, 14, 20 }, ["blk.1.attn_q_a.weight"] = { 22, 48 },
    ["blk.1.attn_kv_a_mqa.weight"] = { 26, 48 }, ["blk.2.ffn_gate_exps.weight"] = { 6, 20, 48 }, ["blk.0.ffn_gate.weight"] = { 44, 48 },
  } },
  ["glm4_moe-odd"] = { "glm4moe", {
    block_count = 2, ["rope.dimension_count"] = 4, ["attention.key_length"] = 8, expert_count = 5, expert_used_count = 2,
    expert_shared_count = 1, expert_feed_forward_length = 12, leading_dense_block_count = 1, expert_gating_func = 2,
    expert_weights_scale = 1.0, expert_weights_norm = true, feed_forward_length = 26, nextn_predict_layers = false,
  }, {
    ["blk.0.post_attention_norm.weight"] = { 30 }, ["blk.0.attn_q.bias"] = { 48 }, ["blk.1.exp_probs_b.bias"] = { 5 },
    ["blk.1.ffn_gate_exps.weight"] = { 5, 12, 30 }, ["blk.1.ffn_down_shexp.weight"] = { 30, 12 },
  } },
  ["glm4_moe_normed-odd"] = { "glm4moe", {
    expert_group_count = 4, expert_group_used_count = 2, expert_weights_norm = false, expert_weights_scale = 2.5,
    leading_dense_block_count = 2,
  }, { ["blk.2.attn_k_norm.weight"] = { 12 }, ["blk.2.ffn_up_shexp.weight"] = { 12, 36 } } },
  ["ernie4_5-odd"] = { "ernie4_5", { ["attention.key_length"] = 10, ["rope.freq_base"] = 5000.0 }, {
    ["blk.0.ffn_norm.weight"] = { 36 }, ["blk.1.attn_q.weight"] = { 30, 36 },
  } },
  ["ernie4_5_moe-odd"] = { "ernie4_5-moe", {
    expert_count = 6, expert_used_count = 3, leading_dense_block_count = 1, interleave_moe_layer_step = 1, expert_feed_forward_length = 10,
    expert_shared_count = 2, expert_shared_feed_forward_length = 20, feed_forward_length = 26,
  }, { ["blk.1.exp_probs_b.bias"] = { 6 }, ["blk.1.ffn_up_exps.weight"] = { 6, 10, 30 }, ["blk.1.ffn_gate_shexp.weight"] = { 20, 30 } } },
  ["seed_oss-odd"] = { "seed_oss", { ["attention.key_length"] = 10 }, {
    ["blk.0.post_attention_norm.weight"] = { 36 }, ["blk.1.attn_v.bias"] = { 10 },
  } },
}

describe("a folder as a file of llama.cpp's architecture", function()
  for name, wanted in pairs(FILES) do
    it("has the keys and tensors of the converter, and gives the golden: " .. name, function()
      local report = write(HF .. name)
      assert.equal(wanted[1], report.architecture, report.note)
      assert.is_nil((report.note or ""):find "only this program")
      local source <close> = assert(core.open(path()))
      for key, value in pairs(wanted[2]) do
        local got = source:meta(wanted[1] .. "." .. key)
        if type(value) ~= "number" then
          assert.equal(value or nil, got or nil, key)
        else
          assert.near(value, got, 1e-6 * value, key)
        end
      end
      for tensor, shape in pairs(wanted[3]) do assert.same(shape, assert(source:tensor(tensor), tensor).shape, tensor) end
      folders.agrees(path(), name)
    end)
  end

  it("has Mamba-2's decay as -exp, and keeps what is small in fp32", function()
    write(HF .. "mamba2-odd", "q8_0")
    local source <close> = assert(core.open(path()))
    local hf <close> = assert(core.open(HF .. "mamba2-odd"))
    local log, a = floats.unpack(hf:read "backbone.layers.1.mixer.A_log"), floats.unpack(source:read "blk.1.ssm_a")
    for i, v in ipairs(log) do assert.near(-math.exp(v), a[i], 1e-6 * math.exp(v)) end
    for _, name in ipairs { "ssm_a", "ssm_d", "ssm_dt.bias", "ssm_conv1d.weight", "ssm_norm.weight" } do
      assert.equal("fp32", source:tensor("blk.0." .. name).dtype, name)
    end
    -- So does a file that is written again.
    assert(quantise.run(source, path "again.gguf", { weights = "q8_0" }))
    local again <close> = assert(core.open(path "again.gguf"))
    for _, name in ipairs { "ssm_a", "ssm_d" } do assert.equal("fp32", again:tensor("blk.0." .. name).dtype, name) end
  end)

  it("has Falcon-H1's multipliers in the weights", function()
    local function first(from, name, row)
      local source <close> = assert(core.open(from))
      return floats.unpack(assert(source:read(name, row, row)))[1]
    end
    write(HF .. "falcon_h1-odd")
    local layer = "model.layers.1."
    for _, case in ipairs {
      { "token_embd.weight", "model.embed_tokens.weight", 2.0 }, { "output.weight", "lm_head.weight", 0.5 },
      { "blk.1.attn_q.weight", layer .. "self_attn.q_proj.weight", 0.9 },
      { "blk.1.attn_k.weight", layer .. "self_attn.k_proj.weight", 0.9 * 0.6 },
      { "blk.1.attn_output.weight", layer .. "self_attn.o_proj.weight", 0.8 },
      { "blk.1.ffn_gate.weight", layer .. "feed_forward.gate_proj.weight", 0.9 },
      { "blk.1.ffn_up.weight", layer .. "feed_forward.up_proj.weight", 1 },
      { "blk.1.ffn_down.weight", layer .. "feed_forward.down_proj.weight", 0.7 },
      { "blk.1.ssm_out.weight", layer .. "mamba.out_proj.weight", 0.6 },
    } do
      local want = first(HF .. "falcon_h1-odd", case[2], 4) * case[3]
      assert.near(want, first(path(), case[1], 4), 1e-6 * math.abs(want), case[1])
    end
    -- z, x, B, C and dt have 60, 60, 22, 22 and 6 rows.
    local rows = { [1] = 0.8, [60] = 0.8, [61] = 0.7, [120] = 0.7, [121] = 0.9, [142] = 0.9, [143] = 1.1, [165] = 0.6, [170] = 0.6 }
    for row, by in pairs(rows) do
      local want = first(HF .. "falcon_h1-odd", layer .. "mamba.in_proj.weight", row) * 1.25 * by
      assert.near(want, first(path(), "blk.1.ssm_in.weight", row), 1e-6 * math.abs(want), tostring(row))
    end
  end)

  it("gives a tied head of Falcon-H1 a matrix of its own, since its multiplier is another", function()
    local function without_head(name) return name ~= "lm_head.weight" and name end
    local function written(change)
      local from = rewritten("falcon_h1-odd", without_head, function(c)
        c.tie_word_embeddings = true
        change(c)
      end)
      assert.equal("falcon-h1", write(from).architecture)
      near(logits(from), logits(path()), 1e-4)
      tree.remove(from)
      local source <close> = assert(core.open(path()))
      return source:tensor "output.weight" ~= nil
    end
    assert.is_true(written(function() end))
    assert.is_false(written(function(c) c.lm_head_multiplier = c.embedding_multiplier end))
  end)

  it("gives a tied head a matrix of its own where readers need one", function()
    local function without_head(name) return name ~= "lm_head.weight" and name end
    for name, needs in pairs { ["olmo2-odd"] = true, ["qwen2_moe-odd"] = true, ["granite-odd"] = false } do
      local from = rewritten(name, without_head, function(c)
        c.tie_word_embeddings, c.norm_topk_prob, c.mlp_only_layers, c.decoder_sparse_step = true, false, core.json_array {}, 1
      end)
      local a = ane.load(from, { activations = "fp32" })
      if a then -- the fixture of qwen2_moe has layers without experts
        a:close()
        assert.is_nil(write(from).architecture:find "^ane%-", name)
        local source <close> = assert(core.open(path()))
        assert.equal(needs, source:tensor "output.weight" ~= nil, name)
        near(logits(from), logits(path()), 1e-4)
      end
      tree.remove(from)
    end
  end)

  it("transposes the matrices of latent keys, head by head", function()
    write(HF .. "deepseek_v2-odd")
    local source <close> = assert(core.open(path()))
    local hf <close> = assert(core.open(HF .. "deepseek_v2-odd"))
    local both = floats.unpack(hf:read "model.layers.2.self_attn.kv_b_proj.weight") -- [3 * (10 + 14), 20]
    local keys, values = floats.unpack(source:read "blk.2.attn_k_b.weight"), floats.unpack(source:read "blk.2.attn_v_b.weight")
    for h = 0, 2 do
      for c = 0, 19 do
        for r = 0, 9 do assert.equal(both[(h * 24 + r) * 20 + c + 1], keys[(h * 20 + c) * 10 + r + 1]) end
        for r = 0, 13 do assert.equal(both[(h * 24 + 10 + r) * 20 + c + 1], values[(h * 14 + r) * 20 + c + 1]) end
      end
    end
  end)

  it("says with a rank of 0 that queries have no latents", function()
    local values, others = {}, {}
    for i = 1, 48 * 48 do values[i] = string.pack("<f", (i * 37 % 101 - 50) / 100) end
    for i = 0, 2 do others[("model.layers.%d.self_attn.q_proj.weight"):format(i)] = { { 48, 48 }, table.concat(values) } end
    local from = rewritten("deepseek_v2-odd", function(name) return not name:find "q_[ab]_" and name end, function(c)
      c.q_lora_rank = core.null
    end, others)
    assert.equal("deepseek2", write(from).architecture)
    local source <close> = assert(core.open(path()))
    assert.equal(0, source:meta "deepseek2.attention.q_lora_rank")
    near(logits(from), logits(path()), 1e-4)
  end)

  it("has no groups of experts where all groups are kept", function()
    for kept, wanted in pairs { [2] = 2, [4] = 4 } do
      local from = changed("deepseek_v3-odd", function(c)
        c.topk_group, c.rope_parameters = kept, { rope_type = "default", rope_theta = 5e3 }
      end)
      assert.equal("deepseek2", write(from).architecture)
      local source <close> = assert(core.open(path()))
      assert.equal(wanted < 4 and wanted or nil, source:meta "deepseek2.expert_group_used_count")
      assert.equal(wanted < 4 and 4 or nil, source:meta "deepseek2.expert_group_count")
      near(logits(from), logits(path()), 1e-4)
      tree.remove(from)
    end
  end)

  it("rounds rows that are not those of the source without a scheme, and others with it", function()
    local report = write(HF .. "granitemoehybrid_dense-odd", "int8")
    local notes = {}
    for _, t in ipairs(report.tensors) do notes[t.name] = t end
    assert.equal("int8", notes["blk.0.ffn_gate.weight"].scheme) -- the first half
    assert.is_nil(notes["blk.0.ffn_up.weight"].scheme)          -- begins at row 26
    assert.matches("not those of the source", notes["blk.0.ffn_up.weight"].note)
    report = write(HF .. "falcon_h1-odd", "int8")
    for _, t in ipairs(report.tensors) do
      if t.name == "blk.1.ffn_gate.weight" then assert.matches("not those of the source", t.note) end
      if t.name == "blk.1.ffn_up.weight" then assert.equal("int8", t.scheme) end
    end
    local a, b, most = logits(HF .. "falcon_h1-odd"), logits(path()), 0
    for k, v in ipairs(a) do most = math.max(most, math.abs(v - b[k])) end
    assert.is_true(most < 0.1, most)
  end)

  it("lists the layers that slide if they are not three of four", function()
    local function pattern(types)
      local from = changed("cohere2-odd", function(c) c.layer_types = types and core.json_array(types) or nil end)
      write(from)
      near(logits(from), logits(path()), 1e-5)
      tree.remove(from)
      local source <close> = assert(core.open(path()))
      return source:meta "cohere2.attention.sliding_window_pattern"
    end
    assert.is_nil(pattern(nil))
    local near_by, all = "sliding_attention", "full_attention"
    assert.same({ true, false, true, false, false }, pattern { near_by, all, near_by, all, all })
  end)

  it("is a granite where a hybrid has layers of attention alone", function()
    local function with(change)
      local from = rewritten("granitemoehybrid_dense-odd", function(name)
        local n = name:match "^model%.layers%.(%d)"
        return (not n or n == "1") and (name:gsub("layers%.1", "layers.0"))
      end, function(c)
        c.layer_types, c.num_hidden_layers = core.json_array { "full_attention" }, 1
        change(c)
      end)
      local report = write(from)
      near(logits(from), logits(path()), 1e-4)
      tree.remove(from)
      return report
    end
    assert.equal("granite", with(function() end).architecture)
    assert.matches("granite cannot represent layers without rope", with(function(c) c.position_embedding_type = "nope" end).note)
  end)

  it("reads Mistral as Llama", function()
    local from = changed("ministral3-odd", function(c)
      c.model_type, c.rope_parameters = "mistral", { rope_type = "default", rope_theta = 5e3 }
    end)
    assert.equal("llama", write(from).architecture)
    near(logits(from), logits(path()), 1e-4)
  end)

  it("keeps LFM2 without convolutions, or without attention, in a file of its own", function()
    for _, word in ipairs { "conv", "full_attention" } do
      local layer = json(HF .. "lfm2-odd/config.json").layer_types
      local at
      for i, kind in ipairs(layer) do at = at or kind == word and i - 1 end
      local from = rewritten("lfm2-odd", function(name)
        local n = name:match "^model%.layers%.(%d+)%."
        if name:find "%.bias$" then return nil end
        return (not n or tonumber(n) == at) and (name:gsub("^model%.layers%.%d+", "model.layers.0"))
      end, function(c) c.layer_types, c.num_hidden_layers, c.conv_bias = core.json_array { word }, 1, false end)
      local report = write(from)
      assert.equal("ane-lfm2", report.architecture)
      assert.matches("layers of one kind alone", report.note)
      near(logits(from), logits(path()), 1e-5)
      tree.remove(from)
    end
  end)

  it("is OLMo 2 where no layer of OLMo 3 slides", function()
    local from = changed("olmo3-odd", function(c)
      for i = 1, 5 do c.layer_types[i] = "full_attention" end
    end)
    assert.equal("olmo2", write(from).architecture)
    local source <close> = assert(core.open(path()))
    assert.is_nil(source:meta "olmo2.attention.sliding_window")
    near(logits(from), logits(path()), 1e-5)
  end)

  it("names a tensor of a wrong shape", function()
    local from = rewritten("granitemoehybrid-odd", function(name) return not name:find "shared_mlp.input_linear" and name end,
      function() end, { ["model.layers.0.shared_mlp.input_linear.weight"] = { { 4 }, ("\0"):rep(16) } })
    local source <close> = assert(core.open(from))
    local report, message, code = quantise.run(source, path(), { weights = "fp32" })
    assert.same({ nil, "shape" }, { report, code })
    assert.matches("tensor model.layers.0.shared_mlp.input_linear.weight has 1 dimensions, but must have 2", message)
  end)

  it("stays a file of its own, refused as the folder is, where a part of each head has a scaled rope", function()
    for name, dims in pairs { ["granite-odd"] = "4 of 8", gemma3 = "16 of 32" } do
      local from = changed(name, function(c)
        c.rope_scaling = nil
        c.rope_parameters = { rope_type = "linear", factor = 2.0, rope_theta = 1e4, partial_rotary_factor = 0.5 }
      end)
      assert.matches("cannot represent a rope of " .. dims .. " dimensions", write(from).note)
      for _, at in ipairs { from, path() } do
        local model, message, code = ane.load(at)
        assert.same({ nil, "unsupported" }, { model, code })
        assert.matches("partial_rotary_factor 0.5 with rope type 'linear'", message)
      end
    end
  end)

  it("stays a file of its own where llama.cpp would compute something else", function()
    local long = { factor = 4.0, rope_type = "yarn", rope_theta = 5e3, original_max_position_embeddings = 64 }
    for _, case in ipairs {
      { "starcoder2-odd", "layers with a sliding window", function(c) c.sliding_window = 9 end },
      { "glm4-odd", "rope type llama3", function(c)
        c.rope_parameters = {
          rope_type = "llama3", rope_theta = 5e3, factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0,
          original_max_position_embeddings = 32, partial_rotary_factor = 0.5,
        }
      end },
      { "ministral3-odd", "layers with a sliding window", function(c) c.sliding_window = 9 end },
      { "ministral3-odd", "rope type yarn", function(c) c.rope_parameters.mscale = 0.5 end },
      { "ministral3-odd", "a growth of q below 0", function(c) c.rope_parameters.llama_4_scaling_beta = -0.2 end },
      { "cohere2-odd", "no layers with a sliding window", function(c)
        c.sliding_window, c.layer_types = core.null, core.json_array {}
        for i = 1, 5 do c.layer_types[i] = "full_attention" end
      end },
      { "cohere2-odd", "no layers with a sliding window", function(c)
        for i = 1, 5 do c.layer_types[i] = "full_attention" end
      end },
      { "olmo3-odd", "another rope of sliding layers", function(c) c.rope_parameters.sliding_attention.rope_theta = 1e4 end },
      { "olmoe-odd", "weights of experts that are normalised", function(c) c.norm_topk_prob = true end },
      { "olmoe_normed-odd", "fewer heads of keys than of queries", function(c) c.norm_topk_prob = false end },
      { "mixtral-odd", "layers with a sliding window", function(c) c.sliding_window = 9 end },
      { "gemma2-odd", "a query_pre_attn_scalar of 11", function(c) c.query_pre_attn_scalar = 11 end },
      { "gemma2-odd", "scores without a cap", function(c) c.attn_logit_softcapping = core.null end },
      { "gemma2-odd", "logits without a cap", function(c) c.final_logit_softcapping = core.null end },
      { "gemma2-odd", "no layers with a sliding window", function(c)
        for i = 1, 4 do c.layer_types[i] = "full_attention" end
      end },
      { "gemma2_untied-odd", "a head that is not the embedding", function() end },
      { "gemma3", "no layers with a sliding window", function(c)
        c.layer_types = core.json_array {}
        for i = 1, c.num_hidden_layers do c.layer_types[i] = "full_attention" end
      end },
      { "cohere_normed-odd", "the norms of q and k in 2 layers", function() end },
      { "mamba2-odd", "limits of the time step", function(c) c.time_step_limit = core.json_array { 0.1, 0.4 } end },
      { "granitemoehybrid_mamba-odd", "no layers of attention", function() end },
      { "granitemoehybrid_limits-odd", "activation gelu_erf", function() end },
      { "falcon_h1-odd", "a norm before the gate", function(c) c.mamba_norm_before_gate = true end },
      { "falcon_h1-odd", "multipliers of 0", function(c) c.attention_out_multiplier = 0.0 end },
      { "falcon_h1-odd", "multipliers of 0", function(c) c.ssm_multipliers[3] = 0.0 end },
      { "deepseek_v2-odd", "norms with the epsilons 1e%-05 and 1e%-06", function(c) c.rms_norm_eps = 1e-5 end },
      { "deepseek_v2-odd", "a scaled rope without one mscale", function(c) c.rope_parameters = long end },
      { "deepseek_v2_groups-odd", "groups of experts that are ranked by one of them", function() end },
      { "deepseek_v3-odd", "a scaled rope without one mscale", function() end },
      { "glm4_moe_lite-odd", "norms with the epsilons", function() end },
      { "ernie4_5_biased-odd", "biases of projections", function() end },
      { "ernie4_5_moe_between-odd", "layers without experts behind others", function() end },
      { "seed_oss_out-odd", "tensor model.layers.0.mlp.down_proj.bias", function() end },
      { "glm4_moe-odd", "activation gelu_erf", function(c) c.hidden_act = "gelu" end },
    } do
      local from = changed(case[1], case[3])
      local report = write(from)
      assert.matches("cannot represent " .. case[2], report.note or report.architecture)
      assert.matches("^ane%-", report.architecture)
      near(logits(from), logits(path()), 1e-5)
      tree.remove(from)
    end
  end)

  it("warns of a file with a head of its own, where llama.cpp takes the table of the embedding for it", function()
    local ids = {}
    for i = 1, 100 do ids[i] = 3 + i * 7 % 50 end
    for name, architecture in pairs { ["gemma2-odd"] = "gemma2", ["cohere-odd"] = "command-r", ["llama"] = false } do
      for _, weights in ipairs { "int4-block", "q8_0" } do -- a scheme unties the head
        local model <close> = assert(ane.load(HF .. name))
        local text = weights == "int4-block" and ids or nil
        local report = assert(model:quantise(path(), { weights = weights, calibrate = text }))
        local wanted = architecture and weights == "int4-block"
        local warned = (report.warning or ""):match "llama.cpp refuses files of architecture (%S+) with output.weight, a head of its own"
        assert.equal(wanted and architecture or nil, warned)
      end
    end
  end)
end)
