--- The sections normalizer, pre_tokenizer, decoder and post_processor of a tokenizer.json as steps of csrc/text.
-- Needs ane.core and ane.tokenizer.fields. The semantics are those of version 0.23 of the Hugging Face tokenizers library.
-- A step is a table with a kind and its arguments, as csrc/text/text.h defines them. `place` is its field in the file, for the
-- messages of csrc/text: "normalizer.normalizers[0]".

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"

local M = {}

local get, fail = fields.get, fields.fail

--- A pattern given as {"String": text} or {"Regex": text}.
-- @return the text, and whether it is plain text
local function pattern(object, path)
  local p = get(object, "pattern", "object", path)
  local text, plain = p.String, true
  if text == nil then text, plain = p.Regex, false end
  fields.check(text, "string", path .. ".pattern")
  if text:find("\0", 1, true) then fail("unsupported", "%s.pattern: contains a NUL", path) end
  return text, plain
end

-- Calls known[object.type](object, place, ...) for each object of a list.
local function each(known, list, path, ...)
  for i, object in ipairs(list) do
    local place = ("%s[%d]"):format(path, i - 1)
    fields.kind(known, object, place)(object, place, ...)
  end
end

-- ---- Normalisers ---------------------------------------------------------------------------------------------------

-- Each appends the steps of one object to `out`.
local NORMALISERS = {}

local function simple(kind)
  return function(_, path, out) out[#out + 1] = { kind = kind, place = path } end
end

for type_name, kind in pairs {
  NFC = "nfc", NFD = "nfd", NFKC = "nfkc", NFKD = "nfkd", Lowercase = "lower", StripAccents = "strip_marks", Nmt = "nmt",
  ByteLevel = "alphabet",
} do
  NORMALISERS[type_name] = simple(kind)
end

function NORMALISERS.Sequence(object, path, out)
  each(NORMALISERS, get(object, "normalizers", "array", path), path .. ".normalizers", out)
end

function NORMALISERS.Strip(object, path, out)
  if get(object, "strip_left", "boolean", path) then out[#out + 1] = { kind = "strip_left" } end
  if get(object, "strip_right", "boolean", path) then out[#out + 1] = { kind = "strip_right" } end
end

function NORMALISERS.Replace(object, path, out)
  local text, plain = pattern(object, path)
  if text == "" then fail("unsupported", "%s.pattern: is empty", path) end
  out[#out + 1] = { kind = plain and "replace" or "pattern", from = text, to = get(object, "content", "string", path), place = path }
end

function NORMALISERS.Prepend(object, path, out)
  out[#out + 1] = { kind = "prepend", to = get(object, "prepend", "string", path), place = path .. ".prepend" }
end

function NORMALISERS.Precompiled(object, path, out)
  local blob = core.base64_decode(get(object, "precompiled_charsmap", "string", path))
  if not blob then fail("format", "%s.precompiled_charsmap: must be base64", path) end
  out[#out + 1] = { kind = "charsmap_clusters", from = blob, place = path .. ".precompiled_charsmap" }
end

function NORMALISERS.BertNormalizer(object, path, out)
  local lowercase = get(object, "lowercase", "boolean", path)
  if get(object, "clean_text", "boolean", path) then out[#out + 1] = { kind = "clean" } end
  if get(object, "handle_chinese_chars", "boolean", path) then out[#out + 1] = { kind = "apart_han", place = path } end
  if get(object, "strip_accents", "boolean", path, lowercase) then
    out[#out + 1] = { kind = "nfd", place = path }
    out[#out + 1] = { kind = "strip_nonspacing" }
  end
  if lowercase then out[#out + 1] = { kind = "lower", place = path } end
end

--- The steps of the section "normalizer", or of nil.
function M.normalisers(section)
  local out = {}
  if section then fields.kind(NORMALISERS, section, "normalizer")(section, "normalizer", out) end
  return out
end

-- ---- Pre-tokenizers ------------------------------------------------------------------------------------------------

local GPT2 = [['s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+]]

--- The inside of a set for \w of Rust's regex crate: Alphabetic, M, Nd, Pc, Join_Control.
local WORD = [[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]]

local PUNCTUATION = [=[[!-/:-@\[-`{-~\p{P}]]=]

local BEHAVIOURS = {
  Removed = "removed", Isolated = "isolated", Contiguous = "contiguous", MergedWithPrevious = "merged_with_previous",
  MergedWithNext = "merged_with_next",
}

local function behaviour(object, path, default)
  local name = get(object, "behavior", "string", path, default)
  return BEHAVIOURS[name] or fail("unsupported", "%s.behavior: '%s' is not supported", path, name)
end

local SPLITS = {}

function SPLITS.Sequence(object, path, out)
  each(SPLITS, get(object, "pretokenizers", "array", path), path .. ".pretokenizers", out)
end

function SPLITS.Split(object, path, out)
  local text, plain = pattern(object, path)
  out[#out + 1] = {
    pattern = text, literal = plain, behaviour = behaviour(object, path), invert = get(object, "invert", "boolean", path, false),
    place = path .. ".pattern",
  }
end

-- M.splits may replace a final step that has alphabet = true with a property of the model.
function SPLITS.ByteLevel(object, path, out)
  if get(object, "add_prefix_space", "boolean", path) then out[#out + 1] = { change = { kind = "prefix", to = " ", place = path } } end
  if get(object, "use_regex", "boolean", path, true) then out[#out + 1] = { pattern = GPT2, behaviour = "isolated" } end
  out[#out + 1] = { alphabet = true, change = { kind = "alphabet", place = path } }
end

local SCHEMES = { always = true, first = true, never = true }

-- prepend_scheme, or add_prefix_space in older files.
local function scheme(object, path)
  local name = get(object, "prepend_scheme", "string", path, "always")
  if not SCHEMES[name] then fail("unsupported", "%s.prepend_scheme: '%s' is not supported", path, name) end
  return get(object, "add_prefix_space", "boolean", path, true) and name or "never"
end

function SPLITS.Metaspace(object, path, out)
  local mark, when = fields.character(object, "replacement", path), scheme(object, path)
  out[#out + 1] = { change = { kind = "replace", from = " ", to = mark, place = path } }
  if when ~= "never" then
    out[#out + 1] = { change = { kind = "prefix", to = mark, place = path }, only_first = when == "first" }
  end
  if get(object, "split", "boolean", path, true) then
    out[#out + 1] = { pattern = mark, literal = true, behaviour = "merged_with_next" }
  end
end

function SPLITS.Whitespace(_, _, out)
  out[#out + 1] = { pattern = ("[%s]+|[^%s\\s]+"):format(WORD, WORD), behaviour = "removed", invert = true }
end

function SPLITS.WhitespaceSplit(_, _, out) out[#out + 1] = { pattern = "\\s", behaviour = "removed" } end

function SPLITS.Punctuation(object, path, out)
  out[#out + 1] = { pattern = PUNCTUATION, behaviour = behaviour(object, path, "Isolated") }
end

function SPLITS.BertPreTokenizer(_, _, out)
  out[#out + 1] = { pattern = "\\s", behaviour = "removed" }
  out[#out + 1] = { pattern = PUNCTUATION, behaviour = "isolated" }
end

function SPLITS.Digits(object, path, out)
  local apart = get(object, "individual_digits", "boolean", path)
  out[#out + 1] = { pattern = "\\p{N}", behaviour = apart and "isolated" or "contiguous" }
end

function SPLITS.CharDelimiterSplit(object, path, out)
  out[#out + 1] = { pattern = fields.character(object, "delimiter", path), literal = true, behaviour = "removed" }
end

function SPLITS.FixedLength(object, path, out)
  local length = get(object, "length", "natural", path, 5)
  if length < 1 or length > 65535 then fail("unsupported", "%s.length: is %d, must be 1 to 65535", path, length) end
  out[#out + 1] = { pattern = ("(?m:.{1,%d})"):format(length), behaviour = "isolated" }
end

--- The steps of the section "pre_tokenizer", or of nil.
-- @param bytes can the model take bytes instead of their spellings in GPT-2's alphabet?
-- @return the steps, and whether the model must take bytes
function M.splits(section, bytes)
  local out = {}
  if section then fields.kind(SPLITS, section, "pre_tokenizer")(section, "pre_tokenizer", out) end
  local level = bytes and #out > 0 and out[#out].alphabet == true
  if level then out[#out] = nil end
  return out, level
end

-- ---- Decoders ------------------------------------------------------------------------------------------------------

local DECODERS = {}

function DECODERS.Sequence(object, path, out) each(DECODERS, get(object, "decoders", "array", path), path .. ".decoders", out) end

function DECODERS.ByteLevel(_, _, out) out[#out + 1] = { kind = "byte_level" } end

function DECODERS.ByteFallback(_, _, out) out[#out + 1] = { kind = "bytes" } end

function DECODERS.Fuse(_, _, out) out[#out + 1] = { kind = "fuse" } end

DECODERS.Replace = NORMALISERS.Replace

function DECODERS.Strip(object, path, out)
  out[#out + 1] = {
    kind = "strip", from = fields.character(object, "content", path),
    start = math.min(get(object, "start", "natural", path), 0xffffffff), stop = math.min(get(object, "stop", "natural", path), 0xffffffff),
  }
end

function DECODERS.Metaspace(object, path, out)
  out[#out + 1] = {
    kind = "metaspace", from = fields.character(object, "replacement", path), start = scheme(object, path) ~= "never" and 1 or 0,
  }
end

function DECODERS.WordPiece(object, path, out)
  out[#out + 1] = { kind = "wordpiece", from = get(object, "prefix", "string", path) }
  if get(object, "cleanup", "boolean", path) then out[#out + 1] = { kind = "cleanup" } end
end

function DECODERS.BPEDecoder(object, path, out)
  local suffix = get(object, "suffix", "string", path)
  if suffix == "" then fail("unsupported", "%s.suffix: is empty", path) end
  out[#out + 1] = { kind = "suffix", from = suffix }
end

--- The steps of the section "decoder", or of nil.
function M.decoders(section)
  if not section then return { { kind = "spaced" } } end
  local out = {}
  fields.kind(DECODERS, section, "decoder")(section, "decoder", out)
  return #out > 0 and out or { { kind = "fuse" } }
end

-- ---- Post-processors -----------------------------------------------------------------------------------------------

-- Each sets out.head and out.tail, the lists of ids before and after a single text, and out.pair, the layout of two texts: a list of
-- {id, type} and {text = 1 or 2, type}.
local PROCESSORS = {}

function PROCESSORS.ByteLevel() end

local function append_ids(list, ids, path)
  for i, id in ipairs(ids) do list[#list + 1] = fields.check(id, "natural", ("%s[%d]"):format(path, i - 1)) end
end

local TEXTS = { A = 1, B = 2 }

-- Parts of the template of two texts.
local function pair_of(object, path, tokens)
  local list = {}
  for i, part in ipairs(get(object, "pair", "array", path, {})) do
    local place = ("%s.pair[%d]"):format(path, i - 1)
    local is_text = fields.check(part, "object", place).Sequence ~= nil
    local inner = get(part, is_text and "Sequence" or "SpecialToken", "object", place)
    local name, kind = get(inner, "id", "string", place), get(inner, "type_id", "natural", place, 0)
    if is_text then
      list[#list + 1] = { text = TEXTS[name] or fail("format", "%s: must be sequence A or B", place), type = kind }
    else
      local ids = {}
      append_ids(ids, get(get(tokens, name, "object", path .. ".special_tokens"), "ids", "array", path), path .. ".special_tokens." .. name)
      for _, id in ipairs(ids) do list[#list + 1] = { id = id, type = kind } end
    end
  end
  return list
end

-- A template contains the text once, with tokens around it.
function PROCESSORS.TemplateProcessing(object, path, out)
  local tokens = get(object, "special_tokens", "object", path)
  local head, tail, seen = {}, {}, false
  for i, part in ipairs(get(object, "single", "array", path)) do
    local place = ("%s.single[%d]"):format(path, i - 1)
    fields.check(part, "object", place)
    if part.Sequence ~= nil then
      if seen then fail("unsupported", "%s: the template has the text twice", place) end
      if get(get(part, "Sequence", "object", place), "id", "string", place) ~= "A" then fail("format", "%s: must be sequence A", place) end
      seen = true
    else
      local name = get(get(part, "SpecialToken", "object", place), "id", "string", place .. ".SpecialToken")
      local where = path .. ".special_tokens." .. name
      append_ids(seen and tail or head, get(get(tokens, name, "object", path .. ".special_tokens"), "ids", "array", where), where .. ".ids")
    end
  end
  if not seen then fail("unsupported", "%s.single: the template has no place for the text", path) end
  if #head + #tail == 0 then return end
  if #out.head + #out.tail > 0 then fail("unsupported", "%s: a second post-processor that adds tokens", path) end
  out.head, out.tail, out.pair = head, tail, pair_of(object, path, tokens)
end

local function named_id(object, key, path)
  local pair = get(object, key, "array", path)
  return fields.check(pair[2], "natural", ("%s.%s[1]"):format(path, key))
end

function PROCESSORS.BertProcessing(object, path, out)
  if #out.head + #out.tail > 0 then fail("unsupported", "%s: a second post-processor that adds tokens", path) end
  local cls, sep = named_id(object, "cls", path), named_id(object, "sep", path)
  out.head, out.tail, out.pair = { cls }, { sep }, M.bert_pair(cls, sep)
end

function PROCESSORS.RobertaProcessing(object, path, out)
  PROCESSORS.BertProcessing(object, path, out)
  out.pair = M.roberta_pair(out.head[1], out.tail[1])
end

--- [CLS] a [SEP] b [SEP]: the second text and its end have type 1.
function M.bert_pair(cls, sep)
  return { { id = cls, type = 0 }, { text = 1, type = 0 }, { id = sep, type = 0 }, { text = 2, type = 1 }, { id = sep, type = 1 } }
end

--- <s> a </s></s> b </s>
function M.roberta_pair(cls, sep)
  return {
    { id = cls, type = 0 }, { text = 1, type = 0 }, { id = sep, type = 0 }, { id = sep, type = 0 }, { text = 2, type = 0 },
    { id = sep, type = 0 },
  }
end

function PROCESSORS.Sequence(object, path, out)
  each(PROCESSORS, get(object, "processors", "array", path), path .. ".processors", out)
end

--- The ids before and after a text, from the section "post_processor" or nil.
-- @return two lists; the layout of two texts: see PROCESSORS (nil: one after the other)
function M.ends(section)
  local out = { head = {}, tail = {} }
  if section then fields.kind(PROCESSORS, section, "post_processor")(section, "post_processor", out) end
  return out.head, out.tail, out.pair
end

return M
