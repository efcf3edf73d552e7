-- Folders in Hugging Face layout to GGUF.
local ane = require "ane"
local compare = require "ane.evaluate.compare"
local core = require "ane.core"
local floats = require "support.floats"
local folders = require "support.hf"
local quantise = require "ane.quantise"
local tokenizer = require "ane.tokenizer"
local vocabulary = require "ane.quantise.vocabulary"

local HF = "spec/fixtures/hf/"
local folder

local function path(name) return folder .. "/" .. (name or "out.gguf") end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function() os.execute("rm -r '" .. folder .. "'") end)

local function json(file) return assert(core.json_decode(assert(core.read_file(file)))) end

-- A copy of a fixture's folder with another config.json.
local function changed(name, change)
  local to = path(name)
  assert(os.execute(("mkdir '%s'"):format(to)))
  for _, file in ipairs(assert(core.list_dir(HF .. name))) do
    if file:find "^model" then assert(core.write_file(to .. "/" .. file, assert(core.read_file(HF .. name .. "/" .. file)))) end
  end
  local config = json(HF .. name .. "/config.json")
  change(config)
  assert(core.write_file(to .. "/config.json", core.json_encode(config)))
  return to
end

local function write(from, weights, opts)
  local source <close> = assert(core.open(from))
  local all = { weights = weights }
  for key, value in pairs(opts or {}) do all[key] = value end
  return assert(quantise.run(source, path(), all))
end

-- Fixture -> general.architecture, and for files that are ours alone a reason.
local FIXTURES = {
  -- llama.cpp's logits (python 0.3.36) of the first three as fp16 are ours within 0.007, those of the fourth in fp32 within 0.00003.
  ["qwen3-odd"] = { "qwen3" }, ["olmo2-odd"] = { "olmo2" }, ["smollm3-odd"] = { "smollm3" }, ["qwen3_moe-odd"] = { "qwen3moe" },
  ["qwen3_moe_plain-odd"] = { "ane-qwen3_moe", "weights of experts that are not normalised" },
  llama = { "llama" }, gemma3 = { "gemma3" }, hunyuan_v1_dense = { "hunyuan-dense" }, phi3 = { "phi3" },
  ["lfm2_moe-odd"] = {}, ["lfm2-odd"] = {}, ["qwen2_moe-odd"] = {},
  qwen2_swa = { "ane-qwen2", "layers with a sliding window" },
  gemma3_softcap = { "ane-gemma3_text", "k_proj.bias" },
  ["qwen2_moe_window-odd"] = { "ane-qwen2_moe", "layers with a sliding window" },
  ["zaya-odd"] = { "ane-zaya", "no architecture of GGUF is known" },
  ["zaya_original-odd"] = { "ane-zaya", "no architecture of GGUF is known" },
  privacy_filter = { "ane-openai_privacy_filter", "no architecture of GGUF is known" },
  ["privacy_filter_original-odd"] = { "ane-privacy_filter", "no architecture of GGUF is known" },
}

describe("a folder as GGUF", function()
  it("holds the MXFP4 experts of gpt-oss, which are stacked and have other numbers of rows than columns", function()
    write(HF .. "gpt_oss_mxfp4-odd", "fp32")
    folders.agrees(path(), "gpt_oss_mxfp4-odd")
  end)

  it("keeps experts that are stored [in, out] in a plain type, whatever type is asked for", function()
    for _, name in ipairs { "gpt_oss-odd", "gpt_oss_mxfp4-odd" } do
      write(HF .. name, "q8_0")
      local model <close> = assert(ane.load(path()))
      assert.equal("gpt_oss", model.architecture)
    end
  end)

  for name, wanted in pairs(FIXTURES) do
    it("gives the golden of " .. name, function()
      local report = write(HF .. name, "fp32")
      if wanted[1] then assert.equal(wanted[1], report.architecture) end
      if wanted[2] then assert.matches("only this program reads: .*" .. wanted[2], report.note) end
      if wanted[1] and not wanted[2] then assert.is_nil(report.note:find "only this program") end
      folders.agrees(path(), name)
      -- Written again from GGUF, and with fewer bits.
      local again <close> = assert(core.open(path()))
      local second = assert(quantise.run(again, path "again.gguf", { weights = "q8_0" }))
      assert.equal(report.architecture, second.architecture)
      local model <close> = assert(ane.load(path "again.gguf"))
      assert.equal(report.architecture:gsub("^ane%-", ""), (model.architecture:gsub("^ane%-", "")))
    end)
  end

  -- Their head matrices are read by columns.
  it("computes with latent attention from blocks", function()
    for _, name in ipairs { "deepseek_v2-odd", "deepseek_v3-odd", "glm4_moe_lite-odd" } do
      local source <close> = assert(ane.load(HF .. name, { activations = "fp32", weights = "fp32" }))
      for _, weights in ipairs { "q8_0", "int4-block" } do
        write(HF .. name, weights)
        local model <close> = assert(ane.load(path(), { activations = "fp32" }))
        local ids = {}
        for i = 1, 40 do ids[i] = 3 + i * 7 % 60 end
        local report = assert(compare.run(source, model, ids, {}))
        assert.is_true(report.kl.mean < (weights == "q8_0" and 1e-3 or 1), report.kl.mean)
        local calibrated = assert(source:quantise(path "gptq.gguf", { weights = weights, method = "gptq", calibrate = ids }))
        assert.equal("rounded", calibrated.inputs)
      end
    end
  end)

  it("gives a tied head a tensor of its own where a scheme is calibrated, whatever names the file has", function()
    for name, wanted in pairs {
      ["gemma3n-odd"] = { "embed_tokens.weight", "lm_head.weight" }, gemma3 = { "token_embd.weight", "output.weight" },
    } do
      local source <close> = assert(ane.load(HF .. name))
      local ids = {}
      for i = 1, 40 do ids[i] = 3 + i * 7 % 60 end
      local first = assert(source:quantise(path(), { weights = "int8", method = "gptq", calibrate = ids }))
      -- Written again from its own file, whose names are the same.
      local again <close> = assert(ane.load(path()))
      local second = assert(again:quantise(path "again.gguf", { weights = "int4-block", method = "gptq", calibrate = ids }))
      for _, report in ipairs { first, second } do
        local rows = {}
        for _, t in ipairs(report.tensors) do rows[t.name] = t end
        assert.equal("the table of the embedding stays as it is", rows[wanted[1]].note)
        assert.equal("gptq", rows[wanted[2]].method)
      end
    end
  end)

  it("scores as the folder does, of decoders with a head of scores", function()
    for name, architecture in pairs {
      ["qwen3_score-odd"] = "ane-qwen3", ["llama_score-odd"] = "ane-llama", ["gemma3_score-odd"] = "ane-gemma3_text",
    } do
      local report = write(HF .. name, "fp32")
      assert.equal(architecture, report.architecture)
      assert.matches("cannot represent a head of scores", report.note)
      local scores = {}
      for i, from in ipairs { HF .. name, path() } do
        local model <close> = assert(ane.load(from, { activations = "fp32" }))
        assert.equal("reranker", model.config.kind)
        local session <close> = assert(model:session())
        assert(session:feed({ 3, 1, 4, 1, 5 }, { want = "last" }))
        scores[i] = session:logits(1)
      end
      assert.is_true(scores[1]:compare(scores[2]).max_abs < 1e-5)
    end
  end)

  it("keeps a head that differs from the embedding, even if the configuration ties them", function()
    write(changed("llama", function(c) c.tie_word_embeddings = true end), "fp32")
    folders.agrees(path(), "llama")
  end)

  it("has the tensors and keys that llama.cpp's converter writes", function()
    write(HF .. "llama", "fp16")
    local source <close> = assert(core.open(path()))
    local want = {
      ["general.architecture"] = "llama", ["general.name"] = "llama", ["general.file_type"] = 1, ["llama.block_count"] = 3,
      ["llama.context_length"] = 512, ["llama.embedding_length"] = 64, ["llama.feed_forward_length"] = 96,
      ["llama.attention.head_count"] = 4, ["llama.attention.head_count_kv"] = 2, ["llama.attention.key_length"] = 24,
      ["llama.attention.value_length"] = 24, ["llama.rope.freq_base"] = 10000.0, ["llama.rope.dimension_count"] = 24,
      ["llama.vocab_size"] = 1024, ["tokenizer.ggml.model"] = "none",
    }
    for key, value in pairs(want) do assert.equal(value, source:meta(key), key) end
    for name, shape in pairs {
      ["token_embd.weight"] = { 1024, 64 }, ["output.weight"] = { 1024, 64 }, ["output_norm.weight"] = { 64 },
      ["rope_freqs.weight"] = { 12 },
      ["blk.2.attn_q.weight"] = { 96, 64 }, ["blk.0.attn_k.weight"] = { 48, 64 }, ["blk.1.ffn_down.weight"] = { 64, 96 },
    } do
      assert.same(shape, source:tensor(name).shape)
    end
    -- Row 2t of a head is row t of the folder's, row 2t + 1 its row t + 12.
    local hf <close> = assert(core.open(HF .. "llama"))
    local function row(s, name, i) return s:read(name, i + 1, i + 1) end
    for t = 0, 11 do
      for head = 0, 3 do
        local from = "model.layers.1.self_attn.q_proj.weight"
        assert.equal(row(hf, from, 24 * head + t), row(source, "blk.1.attn_q.weight", 24 * head + 2 * t))
        assert.equal(row(hf, from, 24 * head + t + 12), row(source, "blk.1.attn_q.weight", 24 * head + 2 * t + 1))
      end
    end
  end)

  -- llama.cpp 0.3.36 (python) reads the pattern and takes head_dim^-0.5: its logits of this file are the golden's within 0.005.
  it("says gemma3's pattern, and holds its score scale in the norm of q", function()
    write(HF .. "gemma3", "q8_0")
    local source <close> = assert(core.open(path()))
    local hf <close> = assert(core.open(HF .. "gemma3"))
    assert.equal(3, source:meta "gemma3.attention.sliding_window_pattern")
    local function floats_of(s, name) return floats.unpack(assert(s:read(name))) end
    local q, k = floats_of(hf, "model.layers.1.self_attn.q_norm.weight"), floats_of(hf, "model.layers.1.self_attn.k_norm.weight")
    local by = (32 / 24) ^ 0.5
    for i, v in ipairs(floats_of(source, "blk.1.attn_q_norm.weight")) do assert.near((1 + q[i]) * by, v, 1e-6) end
    for i, v in ipairs(floats_of(source, "blk.1.attn_k_norm.weight")) do assert.near(1 + k[i], v, 1e-6) end
    local from = changed("gemma3", function(c)
      c.final_logit_softcapping, c.sliding_window_pattern = 20.0, nil
      c.layer_types = core.json_array {}
      for i = 1, 6 do c.layer_types[i] = i == 2 and "full_attention" or "sliding_attention" end
    end)
    assert.matches("cannot represent full attention in layers without a period", write(from, "fp16").note)
    os.execute("rm -r '" .. from .. "'")
    local function with_ropes(near)
      from = changed("gemma3", function(c)
        c.rope_scaling, c.sliding_window_pattern, c.layer_types = nil, nil, core.json_array {}
        for i = 1, 6 do c.layer_types[i] = i % 3 == 0 and "full_attention" or "sliding_attention" end
        c.rope_parameters = { full_attention = { rope_type = "default", rope_theta = 1e6 }, sliding_attention = near }
      end)
      local report = write(from, "fp16")
      os.execute("rm -r '" .. from .. "'")
      return report
    end
    assert.equal("gemma3", with_ropes({ rope_type = "default", rope_theta = 1e4 }).architecture)
    assert.matches("cannot represent rope type linear of sliding layers",
      with_ropes({ rope_type = "linear", rope_theta = 1e4, factor = 4.0 }).note)
    from = changed("smollm3-odd", function(c) c.no_rope_layers = core.json_array { 1, 1, 0, 0, 1 } end)
    assert.matches("smollm3 cannot represent rope in other layers than three of four", write(from, "fp16").note)
  end)

  it("have no sliding layers without use_sliding_window, whatever layer_types says", function()
    local function logits(from)
      local model <close> = assert(ane.load(from, { activations = "fp32" }))
      local session <close> = assert(model:session())
      local ids = {}
      for i = 1, 40 do ids[i] = i * 7 % 50 end
      assert(session:feed(ids))
      return session:logits():tostring()
    end
    local function folder_with(types, name)
      local from = changed("qwen2_swa", function(c) c.use_sliding_window, c.layer_types = false, types end)
      assert(os.rename(from, path(name)))
      return path(name)
    end
    local types = core.json_array {}
    for i = 1, json(HF .. "qwen2_swa/config.json").num_hidden_layers do types[i] = "sliding_attention" end
    local named = folder_with(types, "named")
    local want = logits(named)
    assert.is_true(want == logits(folder_with(nil, "plain")))
    assert.is_false(want == logits(HF .. "qwen2_swa"))
    assert.equal("qwen2", write(named, "fp32").architecture)
    assert.is_true(want == logits(path()))
  end)

  it("stacks experts and keeps routers in fp32", function()
    local from = changed("lfm2_moe-odd", function(c) c.routed_scaling_factor = 1.0 end)
    local report = write(from, "q4_0", { fallback = "q8_0" })
    assert.equal("lfm2moe", report.architecture)
    local source <close> = assert(core.open(path()))
    local hf <close> = assert(core.open(from))
    local seen = 0
    for _, t in ipairs(report.tensors) do
      if t.name:find "gate_inp" or t.name:find "exp_probs_b" or t.name:find "shortconv.conv" then
        assert.equal("fp32", t.to)
        seen = seen + 1
      end
      local layer = t.name:match "^blk%.(%d+)%.ffn_down_exps"
      if layer then
        assert.equal(3, #t.shape)
        local e = t.shape[1] - 1
        local want = hf:read(("model.layers.%s.feed_forward.experts.%d.w2.weight"):format(layer, e))
        local got = floats.unpack(source:read(t.name, e * t.shape[2] + 1, (e + 1) * t.shape[2]))
        for i, v in ipairs(floats.unpack(want)) do assert.near(v, got[i], 0.05) end
        seen = seen + 1
      end
    end
    assert.is_true(seen >= 3, seen)
  end)

  it("computes what the folder computes where experts are stacked", function()
    for _, case in ipairs {
      { "lfm2_moe-odd", "lfm2moe", function(c) c.routed_scaling_factor = 1.0 end },
      { "qwen2_moe-odd", "qwen2moe", function(c)
        c.norm_topk_prob, c.mlp_only_layers, c.decoder_sparse_step = false, core.json_array {}, 1
      end },
    } do
      local from = changed(case[1], case[3])
      local a = ane.load(from, { activations = "fp32" })
      local report = write(from, "fp32")
      if a then -- the fixture has layers without experts: then not as changed
        assert.equal(case[2], report.architecture)
        local b <close> = assert(ane.load(path(), { activations = "fp32" }))
        local s <close> = assert(a:session())
        local t <close> = assert(b:session())
        s:feed { 1, 2, 3, 4 }
        t:feed { 1, 2, 3, 4 }
        local x, y = floats.unpack(s:logits():tostring()), floats.unpack(t:logits():tostring())
        for i = 1, #x do assert.near(x[i], y[i], 1e-4) end
        a:close()
      end
    end
  end)

  it("rotates whole heads where transformers ignores partial_rotary_factor", function()
    local ids = {}
    for i = 1, 40 do ids[i] = i * 7 % 50 end
    for name, partial in pairs { ["qwen3-odd"] = 6 / 14, ["olmo2-odd"] = 8 / 14, ["smollm3-odd"] = 4 / 10 } do
      local from = changed(name, function(c) c.rope_parameters.partial_rotary_factor = partial end)
      assert.equal(name:match "^%w+", write(from, "fp32").architecture)
      local a <close> = assert(ane.load(from, { activations = "fp32" }))
      local whole <close> = assert(ane.load(HF .. name, { activations = "fp32" }))
      local b <close> = assert(ane.load(path(), { activations = "fp32" }))
      assert(assert(compare.run(a, b, ids)).kl.max < 1e-6, name)
      assert.equal(0, assert(compare.run(a, whole, ids)).kl.max, name)
    end
  end)

  it("rotates a part of each head where the user's recipe reads partial_rotary_factor", function()
    local ids = {}
    for i = 1, 40 do ids[i] = i * 7 % 50 end
    local own = {}
    for key, value in pairs(require "ane.models.qwen3") do own[key] = value end
    own.whole_rope = nil
    local from = changed("qwen3-odd", function(c) c.rope_parameters.partial_rotary_factor = 6 / 14 end)
    local a <close> = assert(ane.load(from, { activations = "fp32", recipe = own }))
    local whole <close> = assert(ane.load(HF .. "qwen3-odd", { activations = "fp32" }))
    assert(assert(compare.run(a, whole, ids)).kl.max > 1e-3)
  end)

  it("says what a GGUF of the architecture cannot", function()
    for _, case in ipairs {
      { "llama", "rope type dynamic", function(c) c.rope_scaling = { rope_type = "dynamic", factor = 2.0 } end },
      { "llama", "activation gelu_tanh", function(c) c.hidden_act = "gelu_new" end },
      { "qwen3-odd", "rope type llama3", function(c)
        c.rope_parameters = {
          rope_type = "llama3", rope_theta = 5e3, factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0,
          original_max_position_embeddings = 32,
        }
      end },
      { "hunyuan_v1_dense", "rope type llama3", function(c)
        c.rope_scaling = nil
        c.rope_scaling = { rope_type = "yarn", factor = 2.0, attention_factor = 1.5, original_max_position_embeddings = 64 }
      end, "rope type yarn" },
    } do
      local from = changed(case[1], case[3])
      local report = write(from, "fp16")
      assert.matches("cannot represent " .. (case[4] or case[2]), report.note)
      assert.matches("^ane%-", report.architecture)
      os.execute("rm -r '" .. from .. "'")
    end
  end)

  it("has the places of Phi 3 with YaRN once", function()
    local from = changed("phi3", function(c)
      c.rope_scaling = { rope_type = "yarn", factor = 4.0, original_max_position_embeddings = 32 }
    end)
    assert.equal("phi3", write(from, "fp32").architecture)
    local a <close> = assert(ane.load(from, { activations = "fp32" }))
    local b <close> = assert(ane.load(path(), { activations = "fp32" }))
    assert(assert(compare.run(a, b, { 5, 6, 7, 8, 9, 10, 11, 12 })).kl.max < 1e-6)
    os.execute("rm -r '" .. from .. "'")
  end)

  it("stores the pooling of sentence-transformers, so that the file embeds as the folder does", function()
    for _, name in ipairs { "bert", "modernbert", "qwen3_embedding" } do
      local note = write(HF .. name, "fp32").note or ""
      local told = note:find("the file does not keep these settings of the folder's embeddings: prompts", 1, true)
      assert.equal(name == "qwen3_embedding", told ~= nil)
      local before <close> = assert(ane.load(HF .. name, { activations = "fp32" }))
      local file <close> = assert(ane.load(path(), { activations = "fp32" }))
      local ids = { { 5, 6, 7, 8, 9 }, { 4, 3 } }
      local want, got = assert(before:embed(ids)), assert(file:embed(ids))
      for i in ipairs(ids) do assert.same(want[i]:totable(), got[i]:totable()) end
    end
  end)

  it("says what of modules.json is not in the file", function()
    assert.matches("no key for 2 layers after the pooling of modules.json", write(HF .. "embedding_gemma", "fp16").note)
    assert.is_nil((write(HF .. "qwen3-odd", "fp16").note or ""):find("modules.json", 1, true))
    local from = changed("modernbert", function() end)
    assert(os.execute(("mkdir '%s/1_Pooling'"):format(from)))
    assert(core.write_file(from .. "/modules.json", assert(core.read_file(HF .. "modernbert/modules.json"))))
    assert(core.write_file(from .. "/1_Pooling/config.json", '{"pooling_mode": "max"}'))
    assert.matches("no key for pooling max of modules.json: the file gives other embeddings", write(from, "fp16").note)
    os.execute("rm -r '" .. from .. "'")
  end)

  it("folds what the architecture's files hold in another way", function()
    local from = changed("llama", function(c) c.rope_scaling = { rope_type = "linear", factor = 4.0 } end)
    write(from, "fp16")
    local source <close> = assert(core.open(path()))
    assert.same({ "linear", 4.0 }, { source:meta "llama.rope.scaling.type", source:meta "llama.rope.scaling.factor" })
    assert.is_nil(source:tensor "rope_freqs.weight")
    write(HF .. "hunyuan_v1_dense", "fp16")
    local hunyuan <close> = assert(core.open(path()))
    assert.near(10000 * 1000 ^ (32 / 30), hunyuan:meta "hunyuan-dense.rope.freq_base", 2)
    assert.equal(262144, hunyuan:meta "hunyuan-dense.context_length")
  end)

  it("leaves nothing behind but the file", function()
    write(HF .. "llama", "q8_0")
    assert.same({ "out.gguf" }, core.list_dir(folder))
  end)
end)

describe("a folder's tokenizer as GGUF", function()
  local function added_token(id, content)
    return { id = id, content = content, special = true, lstrip = false, rstrip = false, single_word = false, normalized = false }
  end

  -- Byte-level BPE: the 256 letters of its alphabet, a few merges, two special tokens.
  local function bytewise(pre, special)
    local vocab, n = {}, 0
    local function add(piece)
      vocab[piece], n = n, n + 1
    end
    local extra = 0
    for b = 0, 255 do
      local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
      add(utf8.char(plain and b or 256 + extra))
      if not plain then extra = extra + 1 end
    end
    local merges = { "1 2", "12 3", "123 4", "a b", "ab c", "Ġ a", "Ġ Ġ", "l l", "e l", "' l", "'l l", "Ċ Ċ", "! !", "! Ċ", "/ b" }
    for i, merge in ipairs(merges) do
      local a, b = merge:match "(%S+) (%S+)"
      if not vocab[a .. b] then add(a .. b) end
      merges[i] = core.json_array { a, b }
    end
    local added = {}
    for _, content in ipairs(special or { "<|start|>", "<|stop|>" }) do
      added[#added + 1] = added_token(n + #added, content)
    end
    return {
      version = "1.0", added_tokens = core.json_array(added), normalizer = core.null, pre_tokenizer = pre,
      post_processor = core.null, decoder = { type = "ByteLevel", add_prefix_space = true, trim_offsets = true, use_regex = true },
      model = { type = "BPE", dropout = core.null, unk_token = core.null, continuing_subword_prefix = core.null,
                end_of_word_suffix = core.null, fuse_unk = false, byte_fallback = false, vocab = vocab, merges = core.json_array(merges) },
    }
  end

  local function byte_level(regex) return { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = regex } end

  local function split(pattern)
    return { type = "Sequence", pretokenizers = core.json_array {
      { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated", invert = false }, byte_level(false),
    } }
  end

  local LLAMA3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" ..
    "\\s+(?!\\S)|\\s+"

  local function put(object, config)
    assert(core.write_file(path "tokenizer.json", core.json_encode(object)))
    assert(core.write_file(path "tokenizer_config.json", core.json_encode(config or
      { bos_token = "<|start|>", eos_token = "<|stop|>", add_bos_token = true, chat_template = "{{ messages }}" })))
  end

  local function values(size, family)
    local list, why = vocabulary.read(folder, family or "llama", size or 300, path "scratch")
    assert.is_nil(core.path_kind(path "scratch"))
    if not list then return nil, why end
    local out = {}
    for _, v in ipairs(list) do out[v[1]] = v[3] end
    return out, list
  end

  it("names its pre-tokenizer", function()
    local DIGITS = { type = "Sequence", pretokenizers = core.json_array {
      { type = "Digits", individual_digits = true }, byte_level(true),
    } }
    for _, case in ipairs {
      { "gpt-2", byte_level(true) },
      { "smollm", DIGITS },
      { "qwen2", split(LLAMA3:format "") },
      { "dbrx", split(LLAMA3:format "{1,3}") },
      -- Names of families, if their tokenizer splits as usual.
      { "starcoder", DIGITS, "starcoder2" }, { "command-r", DIGITS, "cohere2" }, { "glm4", split(LLAMA3:format "{1,3}"), "glm4" },
      { "smollm", DIGITS, "glm4" }, { "gpt-2", byte_level(true), "cohere" }, { "modern-bert", byte_level(true), "modernbert" },
    } do
      put(bytewise(case[2]))
      local v = assert(values(nil, case[3]))
      assert.equal(case[1], v["tokenizer.ggml.pre"])
      assert.equal("gpt2", v["tokenizer.ggml.model"])
    end
  end)

  it("keeps tokens, types, special ids and the template, and fills up the embedding", function()
    put(bytewise(byte_level(true)))
    local v, list = values(300)
    local tok = assert(tokenizer.new(folder))
    assert.equal(300, #v["tokenizer.ggml.tokens"])
    assert.equal(300, #v["tokenizer.ggml.token_type"])
    for id = 0, #tok - 1 do assert.equal(tok:piece(id), v["tokenizer.ggml.tokens"][id + 1]) end
    assert.equal("[PAD299]", v["tokenizer.ggml.tokens"][300])
    assert.equal(5, v["tokenizer.ggml.token_type"][300])
    assert.equal(3, v["tokenizer.ggml.token_type"][tok.bos + 1])
    assert.same({ tok.bos, tok.eos, true, "{{ messages }}" }, { v["tokenizer.ggml.bos_token_id"], v["tokenizer.ggml.eos_token_id"],
      v["tokenizer.ggml.add_bos_token"], v["tokenizer.chat_template"] })
    -- Read back from a file.
    local w <close> = assert(core.gguf_writer(path "v.gguf", 1))
    for _, row in ipairs(list) do assert(w:set(row[1], row[2], row[3])) end
    assert(w:begin() and w:commit())
    local source <close> = assert(core.open(path "v.gguf"))
    local again = assert(tokenizer.new(source))
    for _, text in ipairs { "abc abc 1234 it'll!!\n\n  a/b", "Ünï 日本 🙂", "" } do
      assert.same(tok:encode(text), again:encode(text))
      assert.equal(tok:decode(tok:encode(text)), again:decode(again:encode(text)))
    end
    assert.equal("{{ messages }}", again.chat_templates.default)
  end)

  it("turns merges into scores where bytes are the last resort", function()
    local vocab, n = {}, 0
    local function add(piece)
      if not vocab[piece] then vocab[piece], n = n, n + 1 end
    end
    for _, piece in ipairs { "<unk>", "<s>", "</s>" } do add(piece) end
    for b = 0, 255 do add(("<0x%02X>"):format(b)) end
    local merges = { { "a", "b" }, { "ab", "c" }, { "▁", "a" }, { "l", "l" }, { "e", "ll" }, { "▁", "▁" } }
    for _, piece in ipairs { "▁", "a", "b", "c", "e", "l", "o", "h" } do add(piece) end
    for i, m in ipairs(merges) do
      add(m[1] .. m[2])
      merges[i] = core.json_array(m)
    end
    for _, prepend in ipairs { true, false } do
      local replace = { type = "Replace", pattern = { String = " " }, content = "▁" }
      local object = bytewise(core.null, {})
      local model = object.model
      model.vocab, model.merges, model.byte_fallback, model.unk_token = vocab, core.json_array(merges), true, "<unk>"
      model.fuse_unk = true
      object.normalizer = prepend and
        { type = "Sequence", normalizers = core.json_array { { type = "Prepend", prepend = "▁" }, replace } } or replace
      object.decoder = { type = "Sequence", decoders = core.json_array {
        { type = "Replace", pattern = { String = "▁" }, content = " " }, { type = "ByteFallback" }, { type = "Fuse" } } }
      local added = {}
      for id, content in ipairs { "<unk>", "<s>", "</s>" } do
        added[id] = added_token(id - 1, content)
      end
      object.added_tokens = core.json_array(added)
      put(object, { bos_token = "<s>", eos_token = "</s>", unk_token = "<unk>", add_bos_token = true })
      local v, why = values(n)
      assert.is_truthy(v, why)
      assert.same({ "llama", prepend }, { v["tokenizer.ggml.model"], v["tokenizer.ggml.add_space_prefix"] })
      assert.same({ 2, 3, 3, 6 }, { table.unpack(v["tokenizer.ggml.token_type"], 1, 4) })
      assert.equal(0.0, v["tokenizer.ggml.scores"][vocab.ab + 1])
      assert.equal(-1.0, v["tokenizer.ggml.scores"][vocab.abc + 1])
    end
  end)

  it("gives a reason where GGUF has no such kind", function()
    put(bytewise(split "[a-c]"))
    local v, why = values()
    assert.is_nil(v)
    assert.equal("no pre-tokenizer that GGUF has a name for gives the same token ids", why)
    put(bytewise(byte_level(true)))
    v, why = values(10)
    assert.is_nil(v)
    assert.matches("the tokenizer has %d+ tokens, but the embedding has 10 rows", why)
    os.remove(path "tokenizer.json")
    v, why = values()
    assert.is_nil(v)
    assert.matches("neither tokenizer.json nor tokenizer.model", why)
  end)
end)
