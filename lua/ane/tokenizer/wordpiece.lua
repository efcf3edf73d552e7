--- The WordPiece vocabulary of a GGUF file (tokenizer.ggml.model "bert") as a tokenizer.json.
-- Needs ane.core, ane.tokenizer.fields, ane.tokenizer.json and ane.tokenizer.steps. Usage: `local found = wordpiece.open(source)`
--
-- llama.cpp's converter writes "\u{2581}word" for a token that begins a word and "ing" for "##ing"; control tokens do not change.
-- The keys normalizer.lowercase and normalizer.strip_accents say what happens to letters. Files without them are lowercased, unless a token
-- that begins a word has a capital letter.

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"
local json = require "ane.tokenizer.json"
local steps = require "ane.tokenizer.steps"

local M = {}

local MARK, CONTROL = "\u{2581}", 3
-- The ids that llama.cpp assumes if a file names none. "seperator" is how the key is spelled.
local IDS = { bos = 101, seperator = 102, unknown = 100, padding = 0 }

--- Returns whether the source has such a vocabulary.
function M.is_in(source) return source:format() == "gguf" and source:meta "tokenizer.ggml.model" == "bert" end

-- Returns vocab {token = id}, the list of control tokens, and whether the vocabulary is cased.
local function vocabulary(source)
  local tokens, kinds = source:meta "tokenizer.ggml.tokens", source:meta "tokenizer.ggml.token_type" or {}
  if type(tokens) ~= "table" or #tokens == 0 then fields.fail("format", "metadata key tokenizer.ggml.tokens is missing") end
  local vocab, added, cased = {}, {}, false
  for i, token in ipairs(tokens) do
    if type(token) ~= "string" then
      fields.fail("format", "metadata key tokenizer.ggml.tokens has a %s at index %d, but must have strings", type(token), i - 1)
    end
    local word = token:sub(1, #MARK) == MARK and token:sub(#MARK + 1)
    if kinds[i] == CONTROL then
      added[#added + 1] = {
        id = i - 1, content = token, special = true, single_word = false, lstrip = false, rstrip = false, normalized = false,
      }
    elseif word then cased = cased or word:find "^%u" ~= nil end
    vocab[kinds[i] == CONTROL and token or word or "##" .. token] = i - 1
  end
  return vocab, core.json_array(added), cased, tokens
end

local function special_id(source, name, tokens)
  local id = source:meta(("tokenizer.ggml.%s_token_id"):format(name)) or IDS[name]
  if math.type(id) ~= "integer" or not tokens[id + 1] then
    fields.fail("format", "metadata key tokenizer.ggml.%s_token_id is %s, the vocabulary has %d tokens", name, tostring(id), #tokens)
  end
  return id
end

-- A key of the normalizer; `usual` if the file has none.
local function flag(source, name, usual)
  local v = source:meta("tokenizer.ggml.normalizer." .. name)
  if v == nil then return usual end
  if type(v) ~= "boolean" then
    fields.fail("format", "metadata key tokenizer.ggml.normalizer.%s must be true or false, but is %s", name, tostring(v))
  end
  return v
end

local function open(source)
  local vocab, added, cased, tokens = vocabulary(source)
  local cls, sep = special_id(source, "bos", tokens), special_id(source, "seperator", tokens)
  local unk, pad = special_id(source, "unknown", tokens), special_id(source, "padding", tokens)
  local text = core.json_encode {
    version = "1.0", added_tokens = added,
    normalizer = {
      type = "BertNormalizer", clean_text = true, handle_chinese_chars = true, lowercase = flag(source, "lowercase", not cased),
      strip_accents = flag(source, "strip_accents", core.null),
    },
    pre_tokenizer = { type = "BertPreTokenizer" }, decoder = { type = "WordPiece", prefix = "##", cleanup = true },
    model = {
      type = "WordPiece", unk_token = tokens[unk + 1], continuing_subword_prefix = "##", max_input_chars_per_word = 100, vocab = vocab,
    },
  }
  local words, d = json.read(text)
  d.head, d.tail = { cls }, { sep }
  local raw, message, code = core.tokenizer(words, d)
  if not raw then fields.fail(code, "%s", message) end
  return {
    raw = raw, bos = cls, eos = sep, unk = unk, pad = pad, add_bos = true, add_eos = true, head = d.head, tail = d.tail,
    pair = steps.bert_pair(cls, sep), ends = {}, chat_templates = {},
  }
end

--- Opens the tokenizer of a source.
-- @return what ane.tokenizer.folder returns; or nil, message, code
function M.open(source)
  local found, message, code = fields.try(open, source)
  if not found then return nil, ("%s: %s"):format(source:path(), message), code end
  return found
end

return M
