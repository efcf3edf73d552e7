-- GGUF metadata with one fault each: whatever stands in it, load, feed, info, quantise and the tokenizer give a result, or nil,
-- message, code.
local ane = require "ane"
local core = require "ane.core"
local gguf = require "support.gguf_writer"
local odd = require "support.odd_configs"
local quantise = require "ane.quantise"
local tiny_llama = require "support.tiny_llama"

-- Every STEP-th change is tried; each architecture begins elsewhere. All of them take some minutes.
local STEP = tonumber(os.getenv "ANE_FUZZ_STEP") or 13

-- What stands where something else is wanted: type and value, the largest and smallest of each type, empty and mixed lists.
local ODD = {
  { "uint32", 0 }, { "uint32", 1 }, { "uint32", 3 }, { "uint32", 65537 }, { "uint32", 0x7FFFFFFF }, { "uint32", 0xFFFFFFFF },
  { "uint64", -1 }, { "uint64", 1 << 40 }, { "int32", -1 }, { "int32", -0x80000000 }, { "int64", math.mininteger }, { "uint8", 255 },
  { "float32", 0 }, { "float32", -1 }, { "float32", 0.5 }, { "float32", math.huge }, { "float32", 0 / 0 }, { "float64", 1e308 },
  { "bool", true }, { "bool", false }, { "string", "" }, { "string", "x" }, { "string", ("y"):rep(5000) }, { "string", "\0\xFF\xC3" },
  { "array", { "uint32", {} } }, { "array", { "uint32", { 1 } } }, { "array", { "uint32", { 0, 0xFFFFFFFF, 7, 7, 7 } } },
  { "array", { "int32", { -1, -2, -3 } } }, { "array", { "float32", { 0 / 0, 1e30 } } }, { "array", { "string", {} } },
  { "array", { "string", { "", "", "a a" } } }, { "array", { "bool", { true, false } } },
  { "array", { "array", { { "int8", { 1 } }, { "int8", {} } } } },
}

-- Keys that a file may lack and readers ask for; the prefix stands for the architecture.
local ABSENT = {
  "general.alignment", "general.file_type", "general.size_label", "*.rope.dimension_count", "*.rope.freq_base", "*.rope.scaling.type",
  "*.rope.scaling.factor", "*.rope.scaling.original_context_length", "*.rope.scaling.attn_factor", "*.expert_count", "*.expert_used_count",
  "*.expert_feed_forward_length", "*.attention.key_length", "*.attention.value_length", "*.attention.sliding_window", "*.attention.scale",
  "*.attention.layer_norm_epsilon", "*.final_logit_softcapping", "*.shortconv.l_cache", "*.logit_scale", "*.embedding_scale",
  "*.residual_scale", "*.pooling_type", "split.count", "split.no", "split.tensors.count",
}

local BPE = {
  { "tokenizer.ggml.model", "string", "gpt2" }, { "tokenizer.ggml.pre", "string", "default" },
  { "tokenizer.ggml.tokens", "array", { "string", { "a", "b", "c", "ab", "abc", "Ġ", "<s>", "</s>", "d", "e", "f", "g", "h", "i", "j", "k",
    "l", "m", "n", "o" } } },
  { "tokenizer.ggml.token_type", "array", { "int32", { 1, 1, 1, 1, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 } } },
  { "tokenizer.ggml.merges", "array", { "string", { "a b", "ab c" } } },
  { "tokenizer.ggml.bos_token_id", "uint32", 6 }, { "tokenizer.ggml.eos_token_id", "uint32", 7 },
  { "tokenizer.ggml.eot_token_id", "uint32", 7 }, { "tokenizer.ggml.add_bos_token", "bool", true },
  { "tokenizer.ggml.add_eos_token", "bool", false }, { "tokenizer.chat_template", "string", "{{ messages[0].content }}" },
}

local UNIGRAM = {
  { "tokenizer.ggml.model", "string", "llama" },
  { "tokenizer.ggml.tokens", "array", { "string", { "<unk>", "<s>", "</s>", "▁", "a", "b", "c", "ab", "▁ab", "<0x41>", "d", "e", "f", "g",
    "h", "i", "j", "k", "l", "m" } } },
  { "tokenizer.ggml.scores", "array",
    { "float32", { 0, 0, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17 } } },
  { "tokenizer.ggml.token_type", "array", { "int32", { 2, 3, 3, 1, 1, 1, 1, 1, 1, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 } } },
  { "tokenizer.ggml.unknown_token_id", "uint32", 0 }, { "tokenizer.ggml.bos_token_id", "uint32", 1 },
  { "tokenizer.ggml.eos_token_id", "uint32", 2 }, { "tokenizer.ggml.add_space_prefix", "bool", true },
}

local WORDPIECE = {
  { "tokenizer.ggml.model", "string", "bert" },
  { "tokenizer.ggml.tokens", "array", { "string", { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "▁b", "c", "ab", "▁ab", "d", "e", "f", "g",
    "h", "i", "j", "k", "l", "m", "n" } } },
  { "tokenizer.ggml.unknown_token_id", "uint32", 1 }, { "tokenizer.ggml.cls_token_id", "uint32", 2 },
  { "tokenizer.ggml.seperator_token_id", "uint32", 3 }, { "tokenizer.ggml.token_type_count", "uint32", 2 },
}

-- The tiny llama with these tokenizer values, its keys under the name of an architecture.
local function file_of(architecture, tokenizer)
  local file = tiny_llama.file()
  for i = #file.values, 1, -1 do
    local v = file.values[i]
    if v[1]:find("^tokenizer") then table.remove(file.values, i) end
    v[1] = v[1]:gsub("^llama%.", architecture:gsub("%%", "%%%%") .. ".")
  end
  file.values[1][3] = architecture
  file.alignment = 32
  table.move(tokenizer, 1, #tokenizer, #file.values + 1, file.values)
  return file
end

-- All changes of the values of a file: list of {where, change(values)}.
local function changes_of(file, architecture)
  local keys, out = {}, {}
  for _, v in ipairs(file.values) do keys[#keys + 1] = v[1] end
  for _, key in ipairs(ABSENT) do keys[#keys + 1] = (key:gsub("^%*", architecture)) end
  for _, key in ipairs(keys) do
    local function put(values, entry)
      for i, v in ipairs(values) do
        if v[1] == key then
          values[i] = entry or values[#values]
          if not entry then values[#values] = nil end
          return
        end
      end
      values[#values + 1] = entry
    end
    out[#out + 1] = { where = key .. " missing", change = function(values) put(values) end }
    out[#out + 1] = { where = key .. " twice", change = function(values) values[#values + 1] = { key, "uint32", 1 } end }
    for _, o in ipairs(ODD) do
      local shown = o[1] == "array" and o[2][1] .. " list of " .. #o[2][2] or ("%s %s"):format(o[1], tostring(o[2]):sub(1, 20))
      out[#out + 1] = { where = key .. " = " .. shown, change = function(values) put(values, { key, o[1], o[2] }) end }
    end
  end
  return out
end

local path, target

setup(function()
  path, target = gguf.temp(), os.tmpname()
end)

teardown(function()
  os.remove(path)
  os.remove(target)
end)

-- Loads and runs: whatever is loaded feeds tokens, tells about itself and tokenizes.
local function run()
  local model <close>, message, code = ane.load(path, { threads = 1 })
  if not model then return nil, message, code end
  model:info()
  if model.kind == "embedding" or not model.session then return true end
  local session <close>, why, what = model:session()
  if not session then return nil, why, what end
  local ok
  ok, why, what = session:feed { 1, 2, 3 }
  if not ok then return nil, why, what end
  local reply
  reply, why, what = model:generate({ 1, 2 }, { max_tokens = 2 })
  if not reply then return nil, why, what end
  return true
end

local function tokenize()
  local source <close>, why, word = core.open(path)
  if not source then return nil, why, word end
  local tokenizer, message, code = require("ane.tokenizer").new(source)
  if not tokenizer then return nil, message, code end
  local ids = tokenizer:encode "ab cab \xF0\x9F\x98\x80"
  if ids then tokenizer:decode(ids) end
  return true
end

local function write()
  local source <close>, message, code = core.open(path)
  if not source then return nil, message, code end
  return quantise.run(source, target, { weights = "q8_0", threads = 1 })
end

local WAYS = { load = run, tokenizer = tokenize, quantise = write }

describe("GGUF metadata with a fault", function()
  for _, case in ipairs {
    { "llama", BPE }, { "llama", UNIGRAM }, { "qwen2", BPE }, { "qwen3", BPE }, { "phi3", UNIGRAM }, { "gemma3", UNIGRAM }, { "lfm2", BPE },
    { "qwen3moe", BPE }, { "bert", WORDPIECE }, { "modern-bert", BPE },
  } do
    local architecture, tokenizer = case[1], case[2]
    it(("of %s with the tokenizer %s gives a message and a code"):format(architecture, tokenizer[1][3]), function()
      local bad, changes = {}, changes_of(file_of(architecture, tokenizer), architecture)
      for i = 1 + (#architecture + #tokenizer) % STEP, #changes, STEP do
        local file = file_of(architecture, tokenizer)
        changes[i].change(file.values)
        gguf.write(path, file)
        for name, fn in pairs(WAYS) do odd.try(bad, ("%s %s: %s"):format(name, architecture, changes[i].where), fn) end
      end
      assert.same({}, bad)
    end)
  end

  it("is the only reason: without a fault the file loads and runs", function()
    for _, tokenizer in ipairs { BPE, UNIGRAM } do
      gguf.write(path, file_of("llama", tokenizer))
      for name, fn in pairs(WAYS) do assert.is_truthy(assert(fn()), name) end
    end
  end)
end)

describe("tensors of a GGUF file with a fault", function()
  it("give a message and a code", function()
    local bad = {}
    local shapes = { { 16 }, { 1 }, { 16, 16 }, { 20, 15 }, { 16, 20 }, { 2, 8, 16 }, { 0, 16 }, { 1, 1, 1, 1 } }
    for _, t in ipairs(tiny_llama.file().tensors) do
      local function try(where, ...)
        local shape = table.pack(...)
        os.rename(tiny_llama.write(function(_, _, replace) replace(t.name, table.unpack(shape)) end), path)
        for name, fn in pairs { load = run, quantise = write } do odd.try(bad, name .. " " .. t.name .. " " .. where, fn) end
      end
      try "missing"
      for _, shape in ipairs(shapes) do try("[" .. table.concat(shape, ", ") .. "]", table.unpack(shape)) end
    end
    assert.same({}, bad)
  end)
end)
