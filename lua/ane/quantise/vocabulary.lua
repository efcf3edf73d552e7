--- The tokenizer of a Hugging Face folder as GGUF metadata.
-- Needs ane.core, ane.tokenizer and ane.util.failure. Usage: `local values, why = vocabulary.read("models/x", 32000)`
--
-- GGUF has three matching kinds: "gpt2", byte-level BPE with merges and the name of a pre-tokenizer; "llama", pieces with
-- scores; "bert", WordPiece (ane.tokenizer.wordpiece). Names of pre-tokenizers are conventions of llama.cpp. The name for a
-- tokenizer.json is found by trial: the vocabulary is written with a name and read back, and must give the folder's own ids for the
-- texts below.

local core = require "ane.core"
local failure = require "ane.util.failure"
local tokenizer = require "ane.tokenizer"

local M = {}

-- Ids of gguf.md's token types.
local TYPES = { normal = 1, unknown = 2, control = 3, user = 4, unused = 5, byte = 6 }

-- Texts that distinguish pre-tokenizers: letters and marks, contractions, digits in groups, blanks, line ends, signs, scripts.
local PROBES = {
  "Hello, world! It's I'm you'll THEY'RE they've we'd", "1 22 333 4444 55555 1234567890 3.14159 1,000,000 v2.0b3",
  "  two   spaces\n\nand\r\n\tlines \n  \n end  ", "def f(x):\n    return x**2  # comment\n\n\n    pass\n",
  "CamelCaseWords snake_case kebab-case",
  "a/b\\c d|e <f> [g] {h} (i) \"j\" 'k' `l` ~m @n #o $p %q ^r &s *t", "!!! ... ??? --- ___ +++ ===", "https://example.org/a?b=c&d=e#f",
  "Äpfel Öl über naïve café señor Ångström", "Привет, мир! Κόσμος", "你好，世界。東京タワー 한국어 문장", "नमस्ते दुनिया สวัสดี שלום مرحبا 123",
  "🙂🚀👩‍👩‍👧 e", "٣٤٥ ½ ² Ⅷ", "x\u{A0}y\u{3000}z", "ALLCAPS MiXeD iPhone15 H2O", "",
}

-- Names tried for byte-level BPE, after the likely one. Each has a different way to split.
local PRES = {
  "llama-bpe", "qwen2", "gpt-4o", "smollm", "gpt-2", "deepseek-v3", "deepseek-llm", "deepseek-coder", "dbrx", "tekken", "falcon",
  "qwen35", "stablelm2", "bloom", "seed-coder", "superbpe", "viking", "chameleon", "kimi-k2", "youtu", "minicpm5",
}
-- The name that llama.cpp's converter writes for a family, if another name splits in the same way.
local FAMILY = {
  lfm2 = "lfm2", lfm2_moe = "lfm2", hunyuan_v1_dense = "hunyuan-dense", starcoder2 = "starcoder", cohere = "command-r",
  cohere2 = "command-r", glm4 = "glm4", glm4_moe = "glm4", falcon_h1 = "falcon-h1", deepseek_v2 = "deepseek-llm",
  modernbert = "modern-bert",
}

local function json_of(folder, name)
  local text = core.read_file(folder .. "/" .. name)
  return text and core.json_decode(text) or nil
end

-- ---- Tokens ------------------------------------------------------------------------------------------------------------

-- Spellings and types of ids 0 .. size - 1. Models pad their embedding: ids beyond the vocabulary get generated names.
local function tokens_of(tok, size, bytewise)
  local tokens, kinds = {}, {}
  for id = 0, size - 1 do
    local piece = tok:piece(id)
    local kind = piece and TYPES[tok:token_type(id)] or TYPES.unused
    if bytewise and kind == TYPES.unknown then kind = TYPES.control end -- byte-level BPE has no unknown texts
    tokens[id + 1], kinds[id + 1] = piece or ("[PAD%d]"):format(id), kind
  end
  return tokens, kinds
end

-- "a b" of each merge.
local function merges_of(model)
  local out, merges = {}, type(model.merges) == "table" and model.merges or {} -- null: none
  for i, merge in ipairs(merges) do out[i] = type(merge) == "string" and merge or merge[1] .. " " .. merge[2] end
  return out
end

-- Scores that make readers of "llama" vocabularies merge in the order of the merges: earlier merges have higher scores.
local function scores_of_merges(model, tokens)
  local rank, merges = {}, merges_of(model)
  for i, merge in ipairs(merges) do
    local a, b = merge:match "^(.-) (.+)$"
    if a and not rank[a .. b] then rank[a .. b] = i - 1 end
  end
  local scores, rest = {}, #merges
  for i, token in ipairs(tokens) do
    if rank[token] then
      scores[i] = -1.0 * rank[token]
    else
      scores[i], rest = -1.0 * rest, rest + 1
    end
  end
  return scores
end

local function varint(s, at)
  local v, shift = 0, 0
  repeat
    local b = s:byte(at) or error { message = "tokenizer.model ends too early", code = "format" }
    v, shift, at = v | (b & 127) << shift, shift + 7, at + 1
  until b < 128
  return v, at
end

-- Calls fn(number, value) for each field of a protobuf message; varints are skipped.
local function each_field(s, fn)
  local at = 1
  while at <= #s do
    local key, v
    key, at = varint(s, at)
    local wire = key & 7
    if wire == 0 then
      v, at = varint(s, at)
    else
      local size = wire == 5 and 4 or wire == 1 and 8
      if not size then size, at = varint(s, at) end
      if size > #s - at + 1 then failure.raise("format", "tokenizer.model ends too early") end
      v, at = s:sub(at, at + size - 1), at + size
    end
    fn(key >> 3, v)
  end
end

-- Scores of a SentencePiece model (sentencepiece_model.proto: pieces = 1, score = 2), extended for added tokens.
local function scores_of_pieces(bytes, n)
  local scores = {}
  each_field(bytes, function(field, piece)
    if field ~= 1 then return end
    local score = 0.0
    each_field(piece, function(inner, v)
      if inner == 2 then score = string.unpack("<f", v) end
    end)
    scores[#scores + 1] = score
  end)
  for i = #scores + 1, n do scores[i] = -1000.0 end
  return table.move(scores, 1, n, 1, {})
end

-- ---- Trial -------------------------------------------------------------------------------------------------------------

local function write_values(path, values)
  local w <close> = failure.try(core.gguf_writer(path, 1))
  for _, v in ipairs(values) do failure.try(w:set(v[1], v[2], v[3])) end
  failure.try(w:begin())
  failure.try(w:commit())
end

-- A file that is removed at the end of its block, also after an error.
local function removed_at_end(path) return setmetatable({}, { __close = function() os.remove(path) end }) end

-- Does a vocabulary, read back from a file, tokenize the texts as `tok` does?
local function agrees(tok, values, scratch)
  local _ <close> = removed_at_end(scratch)
  write_values(scratch, values)
  local source <close> = core.open(scratch)
  local same = source and failure.border(scratch, function()
    local again = assert(tokenizer.new(source))
    for _, text in ipairs(PROBES) do
      local want, got = tok:encode(text, { bos = false, eos = false }), again:encode(text, { bos = false, eos = false })
      if table.concat(want, " ") ~= table.concat(got, " ") then return false end
    end
    return true
  end)
  return same == true
end

local function with(values, key, kind, value)
  local out = table.move(values, 1, #values, 1, {})
  out[#out + 1] = { key, kind, value }
  return out
end

local function find_pre(tok, values, first, scratch)
  for i = 0, #PRES do
    local name = i == 0 and first or PRES[i]
    local tried = name and with(values, "tokenizer.ggml.pre", "string", name)
    if tried and agrees(tok, tried, scratch) then return tried end
  end
  return nil, "no pre-tokenizer that GGUF has a name for gives the same token ids"
end

local function find_prefix(tok, values, scratch)
  for _, prefix in ipairs { true, false } do
    local tried = with(values, "tokenizer.ggml.add_space_prefix", "bool", prefix)
    if agrees(tok, tried, scratch) then return tried end
  end
  return nil, "a vocabulary of GGUF's kind \"llama\" gives other token ids"
end

-- The steps of a pre-tokenizer as one text: patterns, "digits", "bytes".
local function steps_of(pre, out)
  if type(pre) ~= "table" then return out end
  for _, inner in ipairs(pre.type == "Sequence" and pre.pretokenizers or {}) do steps_of(inner, out) end
  if pre.type == "Split" then out[#out + 1] = pre.pattern.Regex or pre.pattern.String end
  if pre.type == "Digits" then out[#out + 1] = "digits" end
  if pre.type == "ByteLevel" and pre.use_regex ~= false then out[#out + 1] = "bytes" end
  return out
end

-- The name that the pattern suggests before any trial. Small vocabularies distinguish few names.
local function likely_pre(json, family)
  local steps = table.concat(steps_of(json.pre_tokenizer, {}), "\0"):gsub("\r", "\\r"):gsub("\n", "\\n")
  local function has(text) return steps:find(text, 1, true) ~= nil end
  if FAMILY[family] then return FAMILY[family] end
  if steps == "bytes" then return "gpt-2" end
  if steps == "digits\0bytes" then return "smollm" end
  if has "\\p{P}\\p{S}" then return "deepseek-v3" end
  if has "\\p{Lu}\\p{Lt}" then return has "\\p{N}{1,3}" and "gpt-4o" or "tekken" end
  if not has "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" then return nil end
  if not has "\\p{N}{1,3}" then return "qwen2" end
  return json.model.ignore_merges and "llama-bpe" or "dbrx"
end

-- ---- Values ------------------------------------------------------------------------------------------------------------

-- The token that the template of tokenizer.json puts before (bos) or after (eos) each text, if it is one; else that of the
-- configuration. Qwen3-Embedding ends texts with <|endoftext|> and names <|im_end|> as eos_token.
local function end_of(tok, name)
  local ids = tok["add_" .. name] and tok:encode("", { bos = name == "bos", eos = name == "eos" }) or {}
  return #ids == 1 and ids[1] or tok[name]
end

local function add_special(values, tok)
  local function add(name, id)
    if id then values[#values + 1] = { ("tokenizer.ggml.%s_token_id"):format(name), "uint32", id } end
  end
  local eos = end_of(tok, "eos")
  add("bos", end_of(tok, "bos"))
  add("eos", eos)
  add("unknown", tok.unk)
  add("padding", tok.pad)
  local others = table.move(tok.eos_ids or {}, 1, #(tok.eos_ids or {}), 2, { tok.eos or -1 })
  for _, id in ipairs(others) do
    if id ~= eos and id >= 0 then
      add("eot", id)
      break
    end
  end
  values[#values + 1] = { "tokenizer.ggml.add_bos_token", "bool", tok.add_bos and end_of(tok, "bos") ~= nil }
  if tok.add_eos then values[#values + 1] = { "tokenizer.ggml.add_eos_token", "bool", eos ~= nil } end
end

local function add_templates(values, templates)
  local names = {}
  for name in pairs(templates or {}) do
    if name ~= "default" then names[#names + 1] = name end
  end
  table.sort(names)
  if names[1] then values[#values + 1] = { "tokenizer.chat_templates", "string[]", names } end
  for _, name in ipairs(names) do values[#values + 1] = { "tokenizer.chat_template." .. name, "string", templates[name] } end
  if templates and templates.default then values[#values + 1] = { "tokenizer.chat_template", "string", templates.default } end
end

local function is_bytewise(json)
  local text = core.json_encode { json.pre_tokenizer or core.null, json.decoder or core.null }
  return text:find('"ByteLevel"', 1, true) ~= nil
end

-- The two kinds: values without pre or prefix, and a function that finds these.
local function bytewise(tok, model, size)
  local tokens, kinds = tokens_of(tok, size, true)
  return {
    { "tokenizer.ggml.model", "string", "gpt2" }, { "tokenizer.ggml.tokens", "string[]", tokens },
    { "tokenizer.ggml.token_type", "int32[]", kinds }, { "tokenizer.ggml.merges", "string[]", merges_of(model) },
  }
end

local function scored(tok, size, scores)
  local tokens, kinds = tokens_of(tok, size, false)
  if tok.unk then kinds[tok.unk + 1] = TYPES.unknown end
  for i, token in ipairs(tokens) do
    if kinds[i] == TYPES.normal and token:find "^<0x%x%x>$" then kinds[i] = TYPES.byte end
  end
  return {
    { "tokenizer.ggml.model", "string", "llama" }, { "tokenizer.ggml.pre", "string", "default" },
    { "tokenizer.ggml.tokens", "string[]", tokens }, { "tokenizer.ggml.scores", "fp32[]", scores(tokens) },
    { "tokenizer.ggml.token_type", "int32[]", kinds },
  }
end

-- ---- WordPiece ---------------------------------------------------------------------------------------------------------

local MARK = "\u{2581}"

-- The spellings of llama.cpp's converter: "\u{2581}word" for the beginning of a word, "ing" for "##ing"; control tokens do not change.
local function phantom(tokens, kinds)
  for i, token in ipairs(tokens) do
    if kinds[i] ~= TYPES.control then tokens[i] = token:match "^##(.*)$" or MARK .. token end
  end
end

-- The ids of the special tokens by the names of their keys. bos is the first token of a text, as llama.cpp reads it; "seperator" is how
-- the key is spelled. nil and the reason where a text gets other tokens than one before and one after it.
local function wordpiece_ids(tok, model, folder)
  local ends, ids = tok:encode "", {}
  if #ends ~= 2 then return nil, ("GGUF has no WordPiece vocabulary that adds %d tokens to a text"):format(#ends) end
  for id = 0, #tok - 1 do ids[tok:piece(id)] = id end
  local config = json_of(folder, "tokenizer_config.json") or {}
  local function named(key, usual)
    local v = config[key]
    return ids[type(v) == "table" and v.content or type(v) == "string" and v or usual]
  end
  return {
    { "bos", ends[1] }, { "cls", ends[1] }, { "seperator", ends[2] }, { "unknown", ids[model.unk_token] },
    { "padding", named("pad_token", "[PAD]") }, { "mask", named("mask_token", "[MASK]") },
  }
end

-- What the BertNormalizer of a tokenizer does to letters; llama.cpp has keys for it since 2026.
local function normalizer_values(normalizer)
  local lower = normalizer.lowercase ~= false
  local strip = normalizer.strip_accents
  if type(strip) ~= "boolean" then strip = lower end
  return { "tokenizer.ggml.normalizer.lowercase", "bool", lower }, { "tokenizer.ggml.normalizer.strip_accents", "bool", strip }
end

local function find_wordpiece(tok, json, folder, size, scratch)
  local model = json.model
  if (json.normalizer or {}).type ~= "BertNormalizer" then return nil, "GGUF has no WordPiece vocabulary without a BertNormalizer" end
  if (model.continuing_subword_prefix or "##") ~= "##" then return nil, "GGUF has no WordPiece vocabulary with another prefix than ##" end
  local special, why = wordpiece_ids(tok, model, folder)
  if not special then return nil, why end
  local tokens, kinds = tokens_of(tok, size, true)
  phantom(tokens, kinds)
  local values = {
    { "tokenizer.ggml.model", "string", "bert" }, { "tokenizer.ggml.tokens", "string[]", tokens },
    { "tokenizer.ggml.token_type", "int32[]", kinds },
  }
  values[4], values[5] = normalizer_values(json.normalizer)
  for _, row in ipairs(special) do
    if row[2] then values[#values + 1] = { ("tokenizer.ggml.%s_token_id"):format(row[1]), "uint32", row[2] } end
  end
  if agrees(tok, values, scratch) then return values end
  return nil, "a WordPiece vocabulary of GGUF gives other token ids"
end

local function find_values(tok, folder, family, size, scratch)
  local json = json_of(folder, "tokenizer.json")
  local model = json and json.model or {}
  if model.type == "BPE" and is_bytewise(json) then return find_pre(tok, bytewise(tok, model, size), likely_pre(json, family), scratch) end
  if model.type == "BPE" and model.byte_fallback then
    return find_prefix(tok, scored(tok, size, function(tokens) return scores_of_merges(model, tokens) end), scratch)
  end
  if model.type == "WordPiece" then return find_wordpiece(tok, json, folder, size, scratch) end
  local pieces = core.read_file(folder .. "/tokenizer.model")
  if pieces then return find_prefix(tok, scored(tok, size, function(tokens) return scores_of_pieces(pieces, #tokens) end), scratch) end
  return nil, ("GGUF has no kind of vocabulary for a %s tokenizer"):format(tostring(model.type))
end

--- The metadata of a folder's tokenizer.
-- @param folder with tokenizer.json or tokenizer.model
-- @param family model_type of config.json
-- @param size rows of the embedding
-- @param scratch path of a file that may be made and removed
-- @return list of {key, type, value} as writer:set takes them; or nil and the reason
function M.read(folder, family, size, scratch)
  local tok, why = tokenizer.new(folder)
  if not tok then return nil, why end
  if #tok > size then return nil, ("the tokenizer has %d tokens, but the embedding has %d rows"):format(#tok, size) end
  local values
  values, why = find_values(tok, folder, family, size, scratch)
  if values then
    if values[1][3] ~= "bert" then add_special(values, tok) end
    add_templates(values, tok.chat_templates)
  end
  tok:close()
  return values, why
end

return M
