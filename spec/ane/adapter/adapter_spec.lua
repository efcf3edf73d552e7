-- LoRA adapters: while the model runs, merged, chosen per session and request, and what is refused.
local adapters = require "support.adapters"
local ane = require "ane"
local st = require "support.safetensors_writer"
local tiny = require "support.tiny"
local tree = require "support.tree"

local LLAMA, PHI3, GEMMA3 = "spec/fixtures/hf/llama", "spec/fixtures/hf/phi3", "spec/fixtures/hf/gemma3"
local IDS = { 1, 17, 5, 20, 31, 9, 70, 4, 8, 15, 16, 23 }

local made = {}
local function keep(path)
  made[#made + 1] = path
  return path
end

local function logits(model, opts)
  local session <close> = assert(model:session(opts))
  assert(session:feed(IDS, { want = "all" }))
  local rows = {}
  for i = 1, session:rows() do rows[i] = session:logits(i):tostring() end
  return table.concat(rows)
end

local function apart(a, b)
  assert(#a == #b)
  local most = 0
  for i = 1, #a, 4 do most = math.max(most, math.abs(string.unpack("<f", a, i) - string.unpack("<f", b, i))) end
  return most
end

local function load(path, opts)
  local all = { activations = "fp32", threads = 2 }
  for key, value in pairs(opts or {}) do all[key] = value end
  return ane.load(path, all)
end

-- The logits of a model with an adapter, while it runs and merged; both within 1e-4.
local function both(path, adapter)
  local base <close> = assert(load(path))
  local running <close> = assert(load(path, { adapters = { adapter } }))
  local merged <close> = assert(load(path, { adapters = { adapter }, merge = true }))
  local a, b, c = logits(base), logits(running), logits(merged)
  assert.is_true(apart(a, b) > 0.01)
  assert.is_true(apart(b, c) < 1e-4, "apart by " .. apart(b, c))
  return b, a
end

-- Dimension i of a tensor.
local function width_of(path, name, i)
  local source <close> = assert(require("ane.core").open(path))
  return source:tensor(name).shape[i]
end

local ATTENTION, ALL = { "q_proj", "v_proj" }, { "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj" }

local function folder(path, targets, config, seed)
  return keep(adapters.peft { tensors = adapters.pairs_of(path, targets, config and config.r or 4, seed or 1), config = config })
end

local function fails(code, pattern, path, adapter, opts)
  local all = { adapters = { adapter } }
  for key, value in pairs(opts or {}) do all[key] = value end
  local model, message, word = load(path, all)
  if model then model:close() end
  assert.is_nil(model)
  assert.equal(code, word)
  assert.is_truthy(message:find(pattern), message)
end

describe("LoRA adapters", function()
  teardown(function() for _, path in ipairs(made) do st.remove(path) end end)

  describe("of PEFT", function()
    it("give while they run what merged weights give", function()
      both(LLAMA, folder(LLAMA, ALL))
      both(PHI3, folder(PHI3, { "qkv_proj", "o_proj", "gate_up_proj", "down_proj" }))
      both(GEMMA3, folder(GEMMA3, ALL, { r = 20, lora_alpha = 3 }))
    end)

    it("of Nemotron-H have the module names of transformers, whose prefix is not that of the files", function()
      local NEMOTRON, list = "spec/fixtures/hf/nemotron_h-odd", {}
      for _, t in ipairs(adapters.pairs_of(NEMOTRON, { "in_proj", "q_proj", "up_proj" }, 4, 2)) do
        if not t.name:find "experts" then
          t.name = t.name:gsub("%.backbone%.", ".model.")
          list[#list + 1] = t
        end
      end
      assert.matches("model.model.layers", list[1].name)
      both(NEMOTRON, keep(adapters.peft { tensors = list }))
    end)

    it("of NomicBERT have the module names of its files or of transformers' class, whose q, k and v are three", function()
      local NOMIC, by_class, by_file = "spec/fixtures/hf/nomic_bert", {}, {}
      local function add(list, ...)
        for _, t in ipairs { ... } do list[#list + 1] = t end
      end
      local stem, file_stem = "base_model.model.layers.1.self_attn.", "base_model.model.encoder.layers.1.attn.Wqkv."
      local a, rows = adapters.numbers(4 * 64, 3), {}
      for i, name in ipairs { "q_proj", "k_proj", "v_proj" } do
        local part = adapters.numbers(64 * 4, 10 + i)
        table.move(part, 1, #part, #rows + 1, rows)
        add(by_class, { name = stem .. name .. ".lora_A.weight", dtype = "F32", shape = { 4, 64 }, data = st.f32(a) },
          { name = stem .. name .. ".lora_B.weight", dtype = "F32", shape = { 64, 4 }, data = st.f32(part) })
      end
      add(by_file, { name = file_stem .. "lora_A.weight", dtype = "F32", shape = { 4, 64 }, data = st.f32(a) },
        { name = file_stem .. "lora_B.weight", dtype = "F32", shape = { 192, 4 }, data = st.f32(rows) })
      local down = adapters.pair("layers.0.mlp.down_proj", 128, 64, 4, 5)
      add(by_class, table.unpack(down))
      for _, t in ipairs(down) do
        local name = t.name:gsub("layers.0.mlp.down_proj", "encoder.layers.0.mlp.fc2")
        add(by_file, { name = name, dtype = "F32", shape = t.shape, data = t.data })
      end
      local function write(tensors) return keep(adapters.peft { tensors = tensors }) end
      assert.equal(both(NOMIC, write(by_file)), (both(NOMIC, write(by_class))))
      local values = { adapters.tensor(stem .. "q_proj.base_layer.weight", { 64, 64 }, 1) }
      add(values, table.unpack(adapters.pair("layers.1.self_attn.q_proj", 64, 64, 4, 5)))
      fails("unsupported", "q_proj.base_layer.weight is for rows 0 to 63 of encoder.layers.1.attn.Wqkv.weight: only products of these rows "
        .. "are merged", NOMIC, write(values), { merge = true })
    end)

    it("give the logits that transformers gives", function()
      local golden = assert(require("ane.core").json_decode(tree.read "spec/fixtures/hf/lora_llama/golden.json"))
      local values = assert(ane.tensors "spec/fixtures/hf/lora_llama/golden.safetensors")
      local model <close> = assert(load(LLAMA, { adapters = "spec/fixtures/hf/lora_llama" }))
      for _, prompt in ipairs(golden.prompts) do
        local session <close> = assert(model:session())
        assert(session:feed(prompt.input_ids, { want = "all" }))
        local want = values[prompt.name .. ".logits"]
        for i = 1, session:rows() do
          local row, wanted = session:logits(i), want:row(i)
          for k = 1, #row do assert.is_true(math.abs(row:get(k) - wanted:get(k)) <= 2e-3 * (1 + math.abs(wanted:get(k)))) end
        end
      end
    end)

    it("act on the embedding and on the head; in tied models, on each apart", function()
      for _, path in ipairs { LLAMA, GEMMA3 } do
        local source <close> = assert(require("ane.core").open(path))
        local rows, width = table.unpack(source:tensor("model.embed_tokens.weight").shape)
        local head = adapters.pair("lm_head", width, rows, 4, 5)
        local embedding = {
          adapters.tensor("base_model.model.model.embed_tokens.lora_embedding_A", { 4, rows }, 7),
          adapters.tensor("base_model.model.model.embed_tokens.lora_embedding_B", { width, 4 }, 8),
        }
        local first = both(path, keep(adapters.peft { tensors = head }))
        local second = both(path, keep(adapters.peft { tensors = embedding }))
        assert.is_true(apart(first, second) > 0.01)
        both(path, keep(adapters.peft { tensors = { head[1], head[2], embedding[1], embedding[2] } }))
      end
    end)

    it("change nothing with the scale 0, and more with a larger one", function()
      local adapter = folder(LLAMA, ATTENTION)
      local base <close> = assert(load(LLAMA))
      local zero <close> = assert(load(LLAMA, { adapters = { { path = adapter, scale = 0 } } }))
      local half <close> = assert(load(LLAMA, { adapters = { { path = adapter, scale = 0.5 } } }))
      local whole <close> = assert(load(LLAMA, { adapters = adapter }))
      local a = logits(base)
      assert.equal(a, logits(zero))
      assert.is_true(apart(a, logits(half)) < apart(a, logits(whole)))
    end)

    it("are refused with a scale that is not finite, or makes weights that are not", function()
      local adapter = folder(LLAMA, ATTENTION) -- alpha / r is 2
      local product = adapter .. ": scale 3e+38 times the adapter's own, 2, is not a finite fp32 number"
      local entries = { { path = adapter, scale = 3e38 } }
      assert.same({ nil, product, "invalid" }, { load(LLAMA, { adapters = entries }) })
      local base <close> = assert(load(LLAMA))
      assert.same({ nil, product, "invalid" }, { base:session { adapters = entries } })
      local handle <close> = assert(base:adapter(adapter, { scale = 3e38 }))
      assert.same({ nil, product, "invalid" }, { base:session { adapters = handle } })
      local wide = folder(LLAMA, ATTENTION, { lora_alpha = 4000 })
      local model, message, code = load(LLAMA, { adapters = { { path = wide, scale = 3e38 } }, merge = true })
      assert.same({ nil, "invalid" }, { model, code })
      assert.matches(wide .. ": with it, tensor model.layers.0.self_attn.%a_proj.weight has an element that is not finite", message)
      local own = folder(LLAMA, ATTENTION, { lora_alpha = 1e40 })
      assert.same({ nil, own .. ": scale 1 times the adapter's own, 2.5e+39, is not a finite fp32 number", "invalid" },
        { load(LLAMA, { adapters = { { path = own } } }) })
    end)

    it("give the same bits at every level of instructions, for any rank and chunk", function()
      local function of(path, adapter, opts)
        opts.adapters = { adapter }
        local model <close> = assert(load(path, opts))
        return logits(model)
      end
      local gguf = tiny.path()
      for _, rank in ipairs { 1, 7, 18 } do
        local adapter = folder(LLAMA, ALL, { r = rank })
        local tensors = adapters.pair("model.layers.1.mlp.down_proj", width_of(gguf, "blk.1.ffn_down.weight", 2),
          width_of(gguf, "blk.1.ffn_down.weight", 1), rank, rank)
        local other = keep(adapters.peft { tensors = tensors, config = { r = rank } })
        for _, level in ipairs(require("ane.core").isa_list()) do
          assert.equal(of(LLAMA, adapter, { isa = "ref" }), of(LLAMA, adapter, { isa = level }), level)
          local a = of(gguf, other, { isa = "ref", activations = "int8" })
          assert.equal(a, of(gguf, other, { isa = level, activations = "int8" }), level)
        end
        for _, level in ipairs(require("ane.core").isa_list()) do
          local model <close> = assert(load(gguf, { activations = "int8", adapters = { other }, isa = level, threads = 3 }))
          local session <close> = assert(model:session())
          for _, id in ipairs(IDS) do assert(session:feed(id)) end
          assert.equal(session:logits():tostring(), logits(model):sub(-4 * model.vocab), level)
        end
      end
    end)

    it("scale by alpha / r, by alpha / sqrt(r), and by patterns of which the first counts", function()
      local tensors = adapters.pairs_of(LLAMA, ATTENTION, 4, 1)
      local function of(config)
        local model <close> = assert(load(LLAMA, { adapters = { keep(adapters.peft { tensors = tensors, config = config }) } }))
        return logits(model)
      end
      local two = of { lora_alpha = 8 }
      assert.equal(two, of { lora_alpha = 4, use_rslora = true })
      assert.equal(two, of { lora_alpha = 1, alpha_pattern = { [".*_proj"] = 8 } })
      assert.equal(two, of { lora_alpha = 1, alpha_pattern = { ["q_proj"] = 8, ["self_attn\\.v_proj"] = 8 } })
      assert.not_equal(two, of { lora_alpha = 8, alpha_pattern = { ["layers.0.self_attn.q_proj"] = 1 } })
      assert.equal(two, of { r = 16, lora_alpha = 8, rank_pattern = { q_proj = 4, v_proj = 4 } })
      -- As re.match(r"(.*\.)?(KEY)$", module) of PEFT 0.21 does.
      for _, key in ipairs { "(q|v)_proj", "^model.*_proj$", "layers\\.\\d+\\.self_attn\\.[qv]_proj", "[a-z]+_proj",
        "self_attn.(q|v)_pro?j", "\\w_proj", ".{6}", "self.attn.._proj" } do
        assert.equal(two, of { lora_alpha = 1, alpha_pattern = { [key] = 8 } }, key)
      end
      for _, key in ipairs { "_proj", "^q_proj", "^self_attn.*", "q", "proj$", "q_proj.",
        "(q|v)_pro", "\\d+", "elf_attn.q_proj", "model", "self_attn-q_proj" } do
        assert.equal(two, of { lora_alpha = 8, alpha_pattern = { [key] = 1 } }, key)
      end
    end)

    it("may have a rank of their own for each of many modules", function()
      local tensors, ranks = {}, require("ane.core").json_object()
      for i = 1, 300 do
        local module = ("model.layers.%d.self_attn.q_proj"):format(i)
        ranks[module:sub(7)] = i % 3 + 1
        for _, t in ipairs(adapters.pair(module, 2, 2, i % 3 + 1, i)) do tensors[#tensors + 1] = t end
      end
      local started = os.clock()
      local file <close> = assert(require("ane.adapter").read(keep(adapters.peft { tensors = tensors, config = { rank_pattern = ranks } })))
      for i, m in ipairs(file.modules) do assert.equal(tonumber(m.module:match "%d+") % 3 + 1, m.rank, i) end
      assert.is_true(os.clock() - started < 2) -- a grammar for each key takes ten times as long
    end)

    it("have biases, of the products of B and of whole modules", function()
      local source <close> = assert(require("ane.core").open "spec/fixtures/hf/qwen2_swa")
      local rows, cols = table.unpack(source:tensor("model.layers.0.self_attn.q_proj.weight").shape)
      local stem = "base_model.model.model.layers.0.self_attn.q_proj"
      local pair = adapters.pair("model.layers.0.self_attn.q_proj", cols, rows, 4, 3)
      both("spec/fixtures/hf/qwen2_swa", keep(adapters.peft { tensors = {
        pair[1], pair[2], adapters.tensor(stem .. ".base_layer.bias", { rows }, 9), adapters.tensor(stem .. ".lora_B.bias", { rows }, 10),
      } }))
    end)

    it("of DoRA are computed merged and refused otherwise", function()
      local module = "model.layers.1.mlp.down_proj"
      local source <close> = assert(require("ane.core").open(LLAMA))
      local rows, cols = table.unpack(source:tensor(module .. ".weight").shape)
      local w, pair = source:read(module .. ".weight"), adapters.pair(module, cols, rows, 4, 3)
      local magnitude = adapters.tensor("base_model.model." .. module .. ".lora_magnitude_vector", { rows }, 4, 1)
      local adapter = keep(adapters.peft { tensors = { pair[1], pair[2], magnitude }, config = { use_dora = true } })
      fails("unsupported", "lora_magnitude_vector.*merge = true", LLAMA, adapter)
      for _, key in ipairs { "use_dora", "use_rslora", "fan_in_fan_out" } do
        local wrong = keep(adapters.peft { tensors = { pair[1], pair[2] }, config = { [key] = 1 } })
        fails("format", key .. " must be true or false, but is 1", LLAMA, wrong)
      end
      local merged = assert(require("ane.model.loader")).merged
      local r, cfg = require("ane.model.loader").identify(source, LLAMA, {})
      local changed <close> = assert(merged(r, cfg, source, { { path = adapter, scale = 1 } }))
      local got, a, b, m = ane.tensor(changed:read(module .. ".weight")), pair[1].data, pair[2].data, magnitude.data
      local function at(bytes, i) return (string.unpack("<f", bytes, 4 * i + 1)) end
      for row = 0, rows - 1, 7 do
        local v, sum = {}, 0
        for c = 0, cols - 1 do
          v[c] = at(w, row * cols + c)
          for k = 0, 3 do v[c] = v[c] + 2 * at(b, row * 4 + k) * at(a, k * cols + c) end
          sum = sum + v[c] ^ 2
        end
        for c = 0, cols - 1 do
          local want = v[c] * at(m, row) / math.sqrt(sum)
          assert.is_true(math.abs(got:get(row * cols + c + 1) - want) < 1e-5 * (1 + math.abs(want)))
        end
      end
    end)

    it("of encoders may change modules that the computation leaves out and, merged, the biases of norms", function()
      local path = "spec/fixtures/hf/bert"
      local function vector(tensors, opts)
        opts.adapters, opts.activations = keep(adapters.peft { tensors = tensors }), "fp32"
        local model <close> = assert(ane.load(path, opts))
        return assert(model:embed { 2, 60, 17, 3 }):totable()
      end
      local query = adapters.pair("encoder.layer.1.attention.self.query", 64, 64, 4, 1)
      local pooler = adapters.pair("pooler.dense", 64, 64, 4, 3)
      local both_ = { query[1], query[2], pooler[1], pooler[2] }
      assert.same(vector(query, {}), vector(both_, {}))
      assert.same(vector(query, { merge = true }), vector(both_, { merge = true }))
      local norm = adapters.tensor("base_model.model.encoder.layer.2.output.LayerNorm.bias", { 64 }, 9)
      local plain <close> = assert(ane.load(path, { activations = "fp32" }))
      local base, source <close> = plain:embed({ 2, 60, 17, 3 }, { normalise = false }):totable(), assert(require("ane.core").open(path))
      local old = source:read "encoder.layer.2.output.LayerNorm.bias"
      local other = keep(adapters.peft { tensors = { norm } })
      local moved <close> = assert(ane.load(path, { activations = "fp32", merge = true, adapters = other }))
      for i, x in ipairs(moved:embed({ 2, 60, 17, 3 }, { normalise = false }):totable()) do
        local shift = string.unpack("<f", norm.data, 4 * i - 3) - string.unpack("<f", old, 4 * i - 3)
        assert.near(base[i] + shift, x, 1e-5)
      end
      fails("unsupported", "LayerNorm.bias is for a weight of a fused step or a norm", path, other)
    end)

    it("with whole modules are merged; at run time they are refused, unless the modules equal the model's", function()
      local source <close> = assert(require("ane.core").open(LLAMA))
      local shape, bytes = source:tensor("lm_head.weight").shape, source:read "lm_head.weight"
      local pairs_ = adapters.pairs_of(LLAMA, ATTENTION, 4, 1)
      local name = "base_model.model.lm_head.weight"
      local function with(t)
        local tensors = table.move(pairs_, 1, #pairs_, 1, {})
        tensors[#tensors + 1] = t
        return keep(adapters.peft { tensors = tensors, config = { modules_to_save = { "lm_head" } } })
      end
      both(LLAMA, with { name = name, dtype = "F32", shape = shape, data = bytes })
      local other = with(adapters.tensor(name, shape, 3))
      fails("unsupported", "lm_head%.weight replaces a whole weight", LLAMA, other)
      local model <close> = assert(load(LLAMA, { adapters = { other }, merge = true }))
      assert.is_true(#logits(model) > 0)
    end)
  end)

  describe("in GGUF, and in the other format than the base", function()
    it("give what the same adapter of PEFT gives", function()
      local path = os.tmpname()
      made[#made + 1] = path
      local source <close> = assert(require("ane.core").open(LLAMA))
      assert(require("ane.quantise").run(source, path, { weights = "fp32" }))
      local names = { q_proj = "attn_q", v_proj = "attn_v", down_proj = "ffn_down" }
      local tensors, other = adapters.pairs_of(LLAMA, { "q_proj", "v_proj", "down_proj" }, 4, 1), {}
      for i, t in ipairs(tensors) do
        local layer, module, part = t.name:match "layers%.(%d+)%.[%w_]+%.([%w_]+)%.lora_([AB])"
        other[i] = { name = ("blk.%s.%s.weight.lora_%s"):format(layer, names[module], part:lower()), shape = t.shape, data = t.data }
      end
      local peft = keep(adapters.peft { tensors = tensors })
      local plain = keep(adapters.gguf { tensors = other, alpha = 8, architecture = "llama" })
      local a <close> = assert(load(LLAMA, { adapters = { peft } }))
      local b <close> = assert(load(path, { adapters = { peft } }))
      local first = logits(a)
      assert.is_true(apart(first, logits(b)) < 1e-4)
      -- The rows of q lie otherwise in GGUF: the same numbers are another adapter, the same on both bases.
      local c <close> = assert(load(path, { adapters = { plain } }))
      local d <close> = assert(load(LLAMA, { adapters = { plain } }))
      local second = logits(c)
      assert.is_true(apart(second, logits(d)) < 1e-4)
      assert.is_true(apart(first, second) > 1e-3)
      local e <close> = assert(load(path, { adapters = { plain }, merge = true }))
      assert.is_true(apart(second, logits(e)) < 1e-4)
      fails("invalid", "architecture qwen2", path, keep(adapters.gguf { tensors = other, alpha = 8, architecture = "qwen2" }))
      local unknown = keep(adapters.gguf { tensors = other, alpha = 0 / 0, architecture = "llama" })
      for _, merge in ipairs { true, false } do
        local model, message, code = load(path, { adapters = { unknown }, merge = merge })
        assert.same({ nil, "invalid" }, { model, code })
        assert.matches("^" .. unknown .. ": scale 1 times the adapter's own, %-?nan, is not a finite fp32 number$", message)
      end
    end)
  end)

  it("of PEFT give a GGUF file what they give the folder, with rope and without", function()
    for _, name in ipairs { "smollm3-odd", "granitemoehybrid-odd", "granitemoehybrid_dense-odd" } do
      local from = "spec/fixtures/hf/" .. name
      local adapter = folder(from, { "q_proj", "k_proj", "o_proj" }, { r = 8, lora_alpha = 32 })
      local got = {}
      for i, path in ipairs { from, tiny.path(name) } do
        local model <close> = assert(load(path, { adapters = { adapter } }))
        got[i] = logits(model)
      end
      assert(apart(got[1], got[2]) < 1e-4, name)
    end
  end)

  it("of PEFT are refused for GGUF files whose numbers are not the folder's", function()
    local function refused(name, path, adapter, pattern)
      for _, merge in ipairs { false, true } do
        local model, message, code = load(path, { adapters = { adapter }, merge = merge or nil })
        assert.same({ nil, "unsupported" }, { model, code }, name)
        assert.matches(pattern, message)
        assert.matches(": load the folder, or give the adapter as GGUF$", message)
      end
    end
    local function norm(name, module)
      local source <close> = assert(require("ane.core").open("spec/fixtures/hf/" .. name))
      local shape = source:tensor(module .. ".weight").shape
      return keep(adapters.peft { tensors = { adapters.tensor("base_model.model." .. module .. ".modules_to_save.weight", shape, 1) } })
    end
    for name, targets in pairs {
      ["qwen3_5-odd"] = { "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj" },
      ["falcon_h1-odd"] = { "q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "out_proj", "gate_proj", "up_proj", "down_proj" },
    } do
      local from = "spec/fixtures/hf/" .. name
      for _, target in ipairs(targets) do
        local adapter = folder(from, { target })
        both(from, adapter)
        refused(name, tiny.path(name), adapter, name:find "qwen" and "has the value heads in another order" or "times the multipliers")
      end
    end
    local saved = norm("qwen3_5-odd", "model.layers.0.input_layernorm")
    refused("qwen3_5", tiny.path "qwen3_5-odd", saved, "is for model.layers.0.input_layernorm of the folder, but .* has 1 %+ w")
    both(tiny.path "qwen3_5-odd", folder("spec/fixtures/hf/qwen3_5-odd", { "down_proj" }))
  end)

  it("are written merged by export and quantise", function()
    local command = require "support.command"
    local adapter, path, out = folder(LLAMA, ALL), os.tmpname(), os.tmpname()
    made[#made + 1], made[#made + 2] = path, out
    os.remove(out)
    local model <close> = assert(load(LLAMA, { adapters = { adapter } }))
    local want = logits(model)
    assert.equal(0, (command.run { "quantise", LLAMA, path, "--weights", "fp32", "--adapter", adapter }))
    local gguf <close> = assert(load(path))
    assert.is_true(apart(want, logits(gguf)) < 1e-4)
    assert.equal(0, (command.run { "export", LLAMA, out, "--weights", "fp16", "--adapter", adapter }))
    local set <close> = assert(ane.load(out))
    local base <close> = assert(load(LLAMA))
    assert.is_true(apart(want, logits(set)) < 0.05 * apart(want, logits(base)))
  end)

  it("are merged once where weights are rounded with gptq, rotated or not, for either inputs", function()
    local command, core = require "support.command", require "ane.core"
    local text, path, tensors = os.tmpname(), os.tmpname(), {}
    made[#made + 1], made[#made + 2] = text, path
    assert(core.write_file(text, ("All that glitters is not gold.\n"):rep(20)))
    local base = require("support.tiny").path()
    for layer = 0, 2 do
      for module, name in pairs { ["self_attn.v_proj"] = "attn_v", ["mlp.down_proj"] = "ffn_down" } do
        name = ("blk.%d.%s.weight"):format(layer, name)
        module = ("model.layers.%d.%s"):format(layer, module)
        local more = adapters.pair(module, width_of(base, name, 2), width_of(base, name, 1), 4, layer + 1)
        table.move(more, 1, 2, #tensors + 1, tensors)
      end
    end
    local adapter = keep(adapters.peft { tensors = tensors, config = { lora_alpha = 40 } })
    local plain <close> = assert(load(base))
    local model <close> = assert(load(base, { adapters = { adapter } }))
    local want = logits(model)
    for _, transform in ipairs { "none", "rotate" } do
      for _, inputs in ipairs { "source", "rounded" } do
        local report = command.json { "quantise", base, path, "--weights", "int8-channel", "--method", "gptq", "--calibrate", text,
          "--adapter", adapter, "--transform", transform, "--inputs", inputs }
        assert.same({ transform, inputs }, { report.transform, report.inputs })
        local small <close> = assert(load(path))
        assert.is_true(apart(want, logits(small)) < 0.1 * apart(want, logits(plain)), transform .. inputs)
      end
    end
    -- The importance of columns is that of the merged model, too.
    assert.equal(0, (command.run { "quantise", base, path, "--weights", "q4_k", "--fallback", "iq4_nl", "--calibrate", text,
                                   "--adapter", adapter }))
    local merged <close> = assert(ane.load(base, { adapters = { adapter }, merge = true }))
    local importance = assert(ane.calibrate(merged, core.read_file(text)))
    local other = keep(os.tmpname())
    local opts = { weights = "q4_k", fallback = "iq4_nl", importance = importance }
    assert(require("ane.quantise").run(require("ane.model").bundle(merged).source, other, opts))
    assert.equal(core.sha256(core.read_file(other)), core.sha256(core.read_file(path)))
  end)

  describe("chosen", function()
    it("by a session, by a reply, for one model", function()
      local one, two = folder(LLAMA, ATTENTION, nil, 1), folder(LLAMA, ALL, nil, 50)
      local model <close> = assert(load(LLAMA, { activations = "int8" }))
      local plain = logits(model)
      local first = assert(model:adapter(one))
      assert.equal(4, first.rank)
      local a, b = logits(model, { adapters = { first } }), logits(model, { adapters = { two } })
      assert.is_true(a ~= plain and b ~= plain and a ~= b)
      assert.equal(plain, logits(model))
      assert.equal(plain, logits(model, { adapters = { first:with(0) } }))
      assert.not_equal(a, logits(model, { adapters = { first, { path = two, scale = 0.5 } } }))
      local opts = { max_tokens = 8, details = true, logprobs = 1 }
      local function reply(list)
        opts.adapters = list
        return assert(model:generate(IDS, opts)).logprobs[1].logprob
      end
      local of_plain, of_one = reply(nil), reply { one }
      assert.not_equal(of_plain, of_one)
      assert.equal(of_plain, reply(nil))
      assert.equal(of_one, reply { first })
    end)

    it("survive forks and rewinds, and keep saved sessions apart", function()
      local adapter = folder(LLAMA, ALL)
      local model <close> = assert(load(LLAMA))
      local session <close> = assert(model:session { adapters = { adapter } })
      assert(session:feed(IDS))
      local want = session:logits():tostring()
      local fork <close> = assert(session:fork())
      assert(fork:rewind(4))
      assert(fork:feed(table.move(IDS, 5, #IDS, 1, {})))
      assert.equal(want, fork:logits():tostring())
      local path = keep(os.tmpname())
      assert(session:save(path))
      local same <close> = assert(model:session { adapters = { adapter } })
      local other <close> = assert(model:session())
      local half <close> = assert(model:session { adapters = { { path = adapter, scale = 0.5 } } })
      assert(same:restore(path))
      assert.equal(want, same:logits():tostring())
      assert.equal("state", select(3, other:restore(path)))
      assert.equal("state", select(3, half:restore(path)))
    end)

    it("keep known prefixes apart", function()
      local adapter, ids = folder(LLAMA, ALL), {}
      for i = 1, 140 do ids[i] = 1 + i * 7 % 900 end
      local model <close> = assert(load(LLAMA))
      local prefixes <close> = assert(require("ane.model").bundle(model, 1).program:prefixes(model.kv))
      local one <close> = assert(model:session { adapters = { adapter } })
      assert(one:feed(ids))
      assert(one:_raw():keep(prefixes, false))
      local key = one:_raw():adapters_key()
      assert.equal(128, prefixes:known(ids, key))
      assert.equal(0, prefixes:known(ids))
      local path = keep(os.tmpname())
      assert(prefixes:save(path))
      local again <close> = assert(require("ane.model").bundle(model, 1).program:prefixes(model.kv))
      assert(again:restore(path))
      assert.equal(128, again:known(ids, key))
      assert.equal(0, again:known(ids, key + 1))
    end)

    it("by the requests of a pool: ten at once give what each gives alone", function()
      local list = {}
      for i = 1, 9 do list[i] = folder(LLAMA, i % 2 == 0 and ALL or ATTENTION, { r = i, lora_alpha = 2 * i }, 100 * i) end
      local model <close> = assert(load(LLAMA, { activations = "int8" }))
      local alone, together = {}, {}
      local opts = { max_tokens = 12, details = true, logprobs = 1, ignore_eos = true }
      for i = 0, 9 do
        opts.adapters = list[i] and { list[i] } or nil
        alone[i] = assert(model:generate(IDS, opts))
      end
      local pool <close> = assert(model:pool { sessions = 10 })
      for round = 1, 2 do -- the second finds the sessions of the first
        for i = 0, 9 do
          opts.adapters = list[i] and { list[i] } or nil
          together[i] = assert(pool:add(IDS, opts))
        end
        pool:run()
        for i = 0, 9 do
          assert.same(alone[i].ids, together[i].result.ids)
          for k, row in ipairs(alone[i].logprobs) do assert.equal(row.logprob, together[i].result.logprobs[k].logprob, round) end
        end
      end
      assert.not_same(alone[0].logprobs, alone[1].logprobs)
    end)
  end)

  describe("are refused by name", function()
    it("where a tensor is stray, has no partner, or stands for another base", function()
      local tensors = adapters.pairs_of(LLAMA, ATTENTION, 4, 1)
      local function with(t, config)
        local list = table.move(tensors, 1, #tensors, 1, {})
        list[#list + 1] = t
        return keep(adapters.peft { tensors = list, config = config })
      end
      local c = adapters.tensor("base_model.model.model.layers.0.lora_C", { 2 }, 1)
      fails("format", "base_model%.model%.model%.layers%.0%.lora_C does not belong to", LLAMA, with(c))
      fails("notfound", "the folder has no adapter_config.json", LLAMA, LLAMA)
      fails("format", "holds no tensors", LLAMA, keep(adapters.peft { tensors = {} }))
      fails("format", "lora_alpha must be a number, but is null", LLAMA, with(nil, { lora_alpha = ane.null }))
      fails("format", "bias must be none, all or lora_only, but is 'weird'", LLAMA, with(nil, { bias = "weird" }))
      fails("format", "rank_pattern must be an object of modules and numbers", LLAMA, with(nil, { rank_pattern = { 1 } }))
      fails("format", "tensor stray does not belong to", LLAMA, with(adapters.tensor("stray", { 2 }, 1)))
      local lone = adapters.pair("model.layers.0.self_attn.o_proj", 64, 64, 4, 1)[1]
      fails("format", "o_proj%.lora_A%.weight has no lora_B beside it", LLAMA, with(lone))
      fails("format", "q_proj.*target_modules does not name", LLAMA, with(nil, { target_modules = { "v_proj" } }))
      local function q_of(layer, cols)
        local module = ("model.layers.%d.self_attn.q_proj"):format(layer)
        return keep(adapters.peft { tensors = adapters.pair(module, cols, 96, 4, 1) })
      end
      fails("notfound", "layers%.99%..*does not have", LLAMA, q_of(99, 64))
      fails("shape", "q_proj.*for a weight of %[96, 65%]", LLAMA, q_of(0, 65))
      fails("shape", "not of rank 5", LLAMA, keep(adapters.peft { tensors = tensors, config = { r = 5 } }))
    end)

    it("where the configuration asks for what is not known", function()
      local tensors = adapters.pairs_of(LLAMA, ATTENTION, 4, 1)
      local function of(config) return keep(adapters.peft { tensors = tensors, config = config }) end
      fails("unsupported", "peft_type must be LORA, but is 'LOHA'", LLAMA, of { peft_type = "LOHA" })
      fails("unsupported", "use_qalora is set", LLAMA, of { use_qalora = true })
      fails("unsupported", "layer_replication is set", LLAMA, of { layer_replication = { { 0, 2 } } })
      fails("unsupported", "regular expression", LLAMA, of { alpha_pattern = { ["(q)_proj\\1"] = 3 } })
      fails("unsupported", "regular expression", LLAMA, of { alpha_pattern = { ["(q_proj"] = 3 } })
      fails("format", "use_dora is set", LLAMA, of { use_dora = true })
    end)

    it("where there is none, or no recipe runs the model", function()
      fails("io", "no%-such", LLAMA, "no-such-folder")
      fails("unsupported", "not for ONNX", "spec/fixtures/onnx/odd", folder(LLAMA, ATTENTION))
    end)

    it("where options are wrong", function()
      assert.error_matches(function() load(LLAMA, { adapters = { 5 } }) end, "option adapters must be a path")
      assert.error_matches(function() load(LLAMA, { adapters = { { path = "x", strength = 1 } } }) end, "has no field strength")
      local model <close> = assert(load(LLAMA))
      local session <close> = assert(model:session())
      assert.error_matches(function() model:generate(IDS, { session = session, adapters = {} }) end, "cannot be combined with session")
    end)
  end)
end)
