--- A tokenizer.json of the Hugging Face tokenizers library as a description for core.tokenizer.
-- Needs ane.core, ane.tokenizer.fields and ane.tokenizer.steps.
-- Usage: `local vocabulary, description = json.read(text)`

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"
local steps = require "ane.tokenizer.steps"

local M = {}

local get, fail, NONE = fields.get, fields.fail, fields.NONE

--- Bits of ane_added_flags.
local SINGLE_WORD, LSTRIP, RSTRIP, NORMALISED = 1, 2, 4, 16

--- The ane_added_flags of an added token of tokenizer.json or tokenizer_config.json.
function M.added_flags(token, path)
  local function bit(key, value) return get(token, key, "boolean", path, false) and value or 0 end
  return bit("single_word", SINGLE_WORD) | bit("lstrip", LSTRIP) | bit("rstrip", RSTRIP) | bit("normalized", NORMALISED)
end

local function added_tokens(list)
  local out = {}
  for i, token in ipairs(list) do
    local path = ("added_tokens[%d]"):format(i - 1)
    fields.check(token, "object", path)
    local id, content = get(token, "id", "natural", path), get(token, "content", "string", path)
    if id >= 0x7fffffff then fail("format", "%s.id: is %d, must be below 2^31 - 1", path, id) end
    if content ~= "" then
      local special = get(token, "special", "boolean", path, false)
      out[#out + 1] = { id = id, content = content, special = special, flags = M.added_flags(token, path) }
    end
  end
  return out
end

-- ---- Models --------------------------------------------------------------------------------------------------------

-- Each fills a description d from the section "model". `vocabulary` holds its tokens and merges.
local MODELS = {}

-- As in the library, a missing unknown token is an error only if a text needs it. Some files name a token that they lack.
local function unknown(vocabulary, name, d)
  d.unk = name and vocabulary:find(name) or nil
  d.unk_needed = name ~= nil and not d.unk
end

local function mapped(vocabulary, scored)
  local n, _, has_scores = vocabulary:counts()
  if n == 0 then fail("format", "model.vocab has no tokens") end
  if has_scores ~= scored then fail("format", scored and "model.vocab: must be an array" or "model.vocab: must be an object") end
end

function MODELS.BPE(model, vocabulary, d)
  mapped(vocabulary, false)
  if not model.merges then fail("format", "model.merges is missing") end
  if get(model, "dropout", "number", "model", 0) ~= 0 then fail("unsupported", "model.dropout: only 0 is supported") end
  d.model = "merges"
  d.prefix = get(model, "continuing_subword_prefix", "string", "model", "")
  d.suffix = get(model, "end_of_word_suffix", "string", "model", "")
  d.byte_fallback = get(model, "byte_fallback", "boolean", "model", false)
  d.fuse_unk = get(model, "fuse_unk", "boolean", "model", false)
  d.whole = get(model, "ignore_merges", "boolean", "model", false)
  if d.byte_fallback and d.prefix .. d.suffix ~= "" then
    fail("unsupported", "model.byte_fallback: not supported with continuing_subword_prefix or end_of_word_suffix")
  end
  unknown(vocabulary, get(model, "unk_token", "string", "model", NONE), d)
end

function MODELS.Unigram(model, vocabulary, d)
  mapped(vocabulary, true)
  d.model = "unigram"
  d.byte_fallback = get(model, "byte_fallback", "boolean", "model", false)
  d.unk = get(model, "unk_id", "natural", "model", NONE)
  d.unk_needed = d.unk == nil
  d.fuse_unk = true
  if d.unk and d.unk >= vocabulary:counts() then fail("format", "model.unk_id: is %d, no token has this id", d.unk) end
end

function MODELS.WordPiece(model, vocabulary, d)
  mapped(vocabulary, false)
  d.model = "wordpiece"
  d.prefix = get(model, "continuing_subword_prefix", "string", "model")
  d.max_chars = math.min(get(model, "max_input_chars_per_word", "natural", "model"), 0xffffffff)
  unknown(vocabulary, get(model, "unk_token", "string", "model"), d)
end

function MODELS.WordLevel(model, vocabulary, d)
  mapped(vocabulary, false)
  d.model = "words"
  unknown(vocabulary, get(model, "unk_token", "string", "model"), d)
end

-- Files from before 2021 have no type.
local function model_type(model, vocabulary)
  if model.type ~= nil then return fields.kind(MODELS, model, "model") end
  local _, _, scored = vocabulary:counts()
  if scored then return MODELS.Unigram end
  if model.merges then return MODELS.BPE end
  return model.max_input_chars_per_word and MODELS.WordPiece or MODELS.WordLevel
end

-- ---- File ----------------------------------------------------------------------------------------------------------

local function section(whole, key) return get(whole, key, "object", "", NONE) end

local function describe(vocabulary, whole)
  local version = get(whole, "version", "string", "", "1.0")
  if version ~= "1.0" then fail("unsupported", "version: '%s' is not supported, known is 1.0", version:sub(1, 40)) end
  local model = get(whole, "model", "object", "")
  if not model.vocab then fail("format", "model.vocab is missing") end
  local d = { library_rules = true }
  model_type(model, vocabulary)(model, vocabulary, d)
  d.normalisers = steps.normalisers(section(whole, "normalizer"))
  local bytes = d.model == "merges" and not d.byte_fallback and d.prefix .. d.suffix == ""
  d.splits, d.byte_level = steps.splits(section(whole, "pre_tokenizer"), bytes)
  d.decoders = steps.decoders(section(whole, "decoder"))
  d.head, d.tail, d.pair = steps.ends(section(whole, "post_processor"))
  d.added = added_tokens(get(whole, "added_tokens", "array", "", {}))
  return d
end

--- Reads the text of a tokenizer.json. Raises failures of fields.fail.
-- @return vocabulary (an ane.vocabulary of the core), description (see core.tokenizer)
function M.read(text)
  local vocabulary, whole, code = core.vocabulary_json(text)
  if not vocabulary then fail(code, "%s", whole) end
  return vocabulary, describe(vocabulary, whole)
end

return M
