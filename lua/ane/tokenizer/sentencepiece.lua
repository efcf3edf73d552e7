--- A SentencePiece model (tokenizer.model) as a description for core.tokenizer.
-- Needs ane.core and ane.tokenizer.fields. The semantics are those of google/sentencepiece: normalizer.cc, bpe_model.cc,
-- unigram_model.cc.
-- Usage: `local vocabulary, description, info = sentencepiece.read(bytes)`

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"

local M = {}

--- The character that stands for a space in pieces.
local MARK = "\u{2581}"

--- Bits of ane_added_flags: a token that is matched in the normalised text; a token that only the model produces.
local LATE, BY_MODEL = 8, 64

local MODEL_TYPES = { "unigram", "scores", "words", "characters" }

-- The steps of Normalizer::Normalize. With remove_extra_whitespaces a blank text gets no dummy prefix, so the prefix is added
-- after blanks are removed. Without that option, the prefix is added first.
local function normalisers(info)
  local out = {}
  local function add(kind, from, to) out[#out + 1] = { kind = kind, from = from, to = to, place = "normalizer_spec" } end
  local front = info.add_dummy_prefix and not info.whitespace_suffix
  local space = info.escape_whitespaces and MARK or " "
  if front and not info.remove_extra_whitespaces then add("prepend", nil, " ") end
  if info.charsmap ~= "" then add("charsmap", info.charsmap) end
  if info.remove_extra_whitespaces then
    add "squeeze"
    if front then add("prepend", nil, " ") end
  end
  if info.escape_whitespaces then add("replace", " ", MARK) end
  local back = info.add_dummy_prefix and info.whitespace_suffix and space or nil
  if info.remove_extra_whitespaces then add("trim_end", space, back)
  elseif back then add("append", nil, back) end
  return out
end

local function decoders(info)
  local out = {}
  if info.add_dummy_prefix or info.remove_extra_whitespaces then
    out[1] = { kind = "lead", from = MARK, start = info.remove_extra_whitespaces and 1 or 0 }
  end
  out[#out + 1] = { kind = "replace", from = MARK, to = " " }
  if info.byte_fallback then out[#out + 1] = { kind = "bytes" } end
  out[#out + 1] = { kind = "fuse" }
  return out
end

--- Reads the bytes of a model. Raises failures of fields.fail.
-- @return vocabulary (an ane.vocabulary of the core), description (see core.tokenizer), fields of the model (bos, eos, pad,
-- unk: ids or nil)
function M.read(bytes)
  local vocabulary, info, code = core.vocabulary_sentencepiece(bytes)
  if not vocabulary then fields.fail(code, "%s", info) end
  local kind = MODEL_TYPES[info.model_type]
  if kind ~= "unigram" and kind ~= "scores" then
    fields.fail("unsupported", "model type '%s' is not supported; known are unigram and BPE", kind or info.model_type)
  end
  if not info.unk then fields.fail("format", "no piece has the type UNKNOWN") end
  if info.denormaliser ~= "" then fields.fail("unsupported", "denormalizer_spec: rules for decoding are not supported") end
  if info.user_blanks and info.remove_extra_whitespaces then
    fields.fail("unsupported", "user-defined pieces with spaces are not supported together with remove_extra_whitespaces")
  end
  for _, name in ipairs { "bos", "eos", "pad" } do
    if info[name] < 0 or info[name] >= info.n then info[name] = nil end
  end
  return vocabulary, {
    model = kind, single = kind == "unigram", byte_fallback = info.byte_fallback, fuse_unk = true, unk = info.unk,
    unk_text = info.unk_surface, normalisers = normalisers(info), decoders = decoders(info), user = info.user,
    user_flags = kind == "unigram" and BY_MODEL or LATE,
  }, info
end

return M
