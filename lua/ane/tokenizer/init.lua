--- Text to token ids and back, with the vocabulary of a model file or of a folder in Hugging Face layout.
-- Needs ane.core, ane.util.list, ane.util.methods and ane.util.schema; ane.tokenizer.folder for folders.
--
-- Texts are byte strings. A byte outside of valid UTF-8 is encoded as that byte, so a byte-level vocabulary with all 256 bytes
-- has decode(encode(text)) == text for every text. A control token spelled in a text is text unless the option `special` is
-- set. A user-defined token of the vocabulary is always recognised.
-- Usage: `local tokenizer = require "ane.tokenizer".new("folder"); local ids = tokenizer:encode("Hello")`

local core = require "ane.core"
local list_of = require "ane.util.list"
local methods = require "ane.util.methods"
local schema = require "ane.util.schema"

local M = {}

local Tokenizer = {}
local Stream = {}
Stream.__index = Stream
Stream.__name = "ane.stream"

--- Names of control tokens that end a reply, by model family. Many files declare only one of their end tokens.
local END_NAMES = {
  "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
  "<|endoftext|>", "<|end_of_text|>", "<|endofturn|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<EOT>", "[EOT]", "<eos>",
  "<end_of_utterance>", "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
}

--- When both tokens of a pair exist, <|end|> ends one message of a reply, not the reply: the harmony format and its variants.
local CHANNELS = { { "<|return|>", "<|call|>" }, { "<|flush|>", "<|call|>" }, { "<|flush|>", "<|calls|>" } }

local function control_id(raw, name)
  local id = raw:id(name)
  return id and raw:token_type(id) == "control" and id or nil
end

-- Returns the ids that end a reply: first `first`, which the files declare, then those of `special`, then those known by name.
local function find_ends(raw, special, first)
  local list, seen = {}, {}
  local function add(id)
    if id and not seen[id] then
      seen[id] = true
      list[#list + 1] = id
    end
  end
  for _, pair in ipairs(CHANNELS) do
    if control_id(raw, pair[1]) and control_id(raw, pair[2]) then seen[raw:id("<|end|>") or -1] = true end
  end
  for _, id in ipairs(first or {}) do add(id) end
  add(special.eos)
  add(special.eot)
  add(special.eom)
  for _, name in ipairs(END_NAMES) do add(control_id(raw, name)) end
  return list
end

local ENCODE = {
  special = { type = "boolean", default = false },
  bos = { type = "boolean" },
  eos = { type = "boolean" },
  offsets = { type = "boolean", default = false },
}

local DECODE = {
  skip_special = { type = "boolean", default = false },
  utf8 = { type = "string", choices = { "raw", "replace" }, default = "raw" },
}

local STREAM = { skip_special = { type = "boolean", default = false } }

local function make(raw, special, ends, templates)
  return setmetatable({
    _raw = raw, _has_byte = {},
    bos = special.bos, eos = special.eos, eot = special.eot, eom = special.eom, unk = special.unk, pad = special.pad,
    add_bos = special.add_bos, add_eos = special.add_eos,
    _head = special.head or { special.add_bos and special.bos or nil }, _tail = special.tail or { special.add_eos and special.eos or nil },
    _pair = special.pair,
    eos_ids = find_ends(raw, special, ends),
    chat_templates = templates,
  }, Tokenizer)
end

local function from_source(source)
  local wordpiece = require "ane.tokenizer.wordpiece"
  local template = source:meta "tokenizer.chat_template"
  if template ~= nil and type(template) ~= "string" then
    local message = "%s: metadata key tokenizer.chat_template must be a string, but is %s"
    return nil, message:format(source:path(), schema.shown(template)), "format"
  end
  if wordpiece.is_in(source) then
    local found, why, word = wordpiece.open(source)
    if not found then return nil, why, word end
    return make(found.raw, found, found.ends, found.chat_templates)
  end
  local raw, message, code = core.tokenizer(source)
  if not raw then return nil, message, code end
  return make(raw, raw:special(), nil, raw:chat_templates())
end

local function from_folder(path)
  local found, message, code = require("ane.tokenizer.folder").open(path)
  if not found then return nil, message, code end
  return make(found.raw, found, found.ends, found.chat_templates)
end

--- The tokenizer of an open source (see ane.core.open), of a folder, or of a tokenizer.json or tokenizer.model with the files
-- beside it. The source may be closed afterwards.
-- @param x open source, or path
-- @return tokenizer; or nil, message, code: "notfound" (no tokenizer), "unsupported" (an unknown kind or step), "format" (a
-- wrong file), "range" (a decoder makes too much text)
function M.new(x)
  if type(x) == "string" then return from_folder(x) end
  return from_source(x)
end

--- A text in a normal form of Unicode. GGUF files do not record whether the original tokenizer normalises; those of Qwen use
-- NFC. Normalise a decomposed text first to get the ids of the original.
-- @param form "nfc", "nfd", "nfkc" or "nfkd"
function M.normalise(text, form) return core.normalise(text, form) end

--- Fields: bos, eos, eot, eom, unk, pad (ids or nil); add_bos, add_eos (the defaults of the model); eos_ids (list of the ids
-- that end a reply); chat_templates (texts by name, the main one is `default`). #tokenizer is the size of the vocabulary.
Tokenizer.__index = Tokenizer
Tokenizer.__name = "ane.tokenizer"

function Tokenizer:__len() return self._raw:n_vocab() end

function Tokenizer:__tostring() return tostring(self._raw) end

--- The ids of a text.
-- @param text bytes
-- @param opts special: recognise control tokens spelled in the text (default false); bos, eos: add the begin or end token
-- (default: as the model does); offsets: also return the spans (default false)
-- @return list of ids; with offsets also a list of {start, stop}: the token stands for text:sub(start, stop), which is empty
-- (stop = start - 1) for added tokens; or nil, message, code: "range" when a normaliser makes more than 32 bytes per byte of
-- the text and 65,536 more, "format" when the vocabulary lacks a token that the text needs
-- @raise when an option is unknown or wrong
function Tokenizer:encode(text, opts)
  schema.argument({ type = "string" }, text, "encode: text", 2)
  opts = schema.check(ENCODE, opts, "encode", 2)
  local bos, eos = opts.bos, opts.eos
  if bos == nil then bos = self.add_bos end
  if eos == nil then eos = self.add_eos end
  local ids, flat, code = self._raw:encode(text, opts.special, bos, opts.offsets, eos)
  if not ids or not opts.offsets then return ids, flat, code end
  local spans = {}
  for i = 1, #ids do spans[i] = { flat[2 * i - 1], flat[2 * i] } end
  return ids, spans
end

--- The tokens of a text, with the control tokens that it spells, for callers with very many short texts.
-- @return list of ids; list with the first and the last byte of each token; or nil, message, code
function Tokenizer:_spans(text) return self._raw:encode(text, true, false, true, false) end

local function body_of(self, text, special) return self:encode(text, { special = special, bos = false, eos = false }) end

--- The first byte of a text that is not UTF-8 and that encode() leaves out, as the tokenizers of Hugging Face do.
-- @return its position, or nil
function Tokenizer:_lost(text)
  local count, at = utf8.len(text)
  while not count do
    local byte = text:sub(at, at)
    if self._has_byte[byte] == nil then
      self._has_byte[byte] = #(body_of(self, byte) or byte) > #(body_of(self, "") or "")
    end
    if not self._has_byte[byte] then return at end
    count, at = utf8.len(text, at + 1)
  end
end

local MOST = 0x7fffffff -- the largest id

-- The id, for methods that take ids beyond the vocabulary. Raises at the level of the method's caller.
local function id_of(what, id)
  local whole = type(id) == "number" and math.tointeger(id)
  if not whole then error(("%s: id must be an integer, but is %s"):format(what, schema.shown(id)), 3) end
  if whole < 0 or whole > MOST then error(("%s: id must be 0 .. %d, but is %d"):format(what, MOST, whole), 3) end
  return whole
end

local AROUND = {
  special = { type = "boolean", default = false },
  max_length = { type = "integer", min = 1 },
}

-- The first n of a list.
local function cut(list, n) return #list > n and table.move(list, 1, math.max(n, 0), 1, {}) or list end

-- As sequence, with checked options.
-- @return list of ids, whether tokens of the text were left out; or nil, message, code
function Tokenizer:_sequence(text, opts)
  local body, message, code = body_of(self, text, opts.special)
  if not body then return nil, message, code end
  local head, tail, n = self._head, self._tail, #body
  local around = #head + #tail
  if opts.max_length and opts.max_length < around then
    return nil, ("option max_length is %d, but %d tokens stand around each text"):format(opts.max_length, around), "range"
  end
  if opts.max_length then body = cut(body, opts.max_length - around) end
  local ids = table.move(head, 1, #head, 1, {})
  table.move(body, 1, #body, #ids + 1, ids)
  return table.move(tail, 1, #tail, #ids + 1, ids), #body < n
end

--- Returns the ids of a text as an encoder takes it: with the family's tokens around it, truncated to a length.
-- @param opts special: as for encode; max_length: maximum tokens, including those around the text
-- @return list of ids; or nil, message, code
function Tokenizer:sequence(text, opts)
  schema.argument({ type = "string" }, text, "sequence: text", 2)
  local ids, message, code = self:_sequence(text, schema.check(AROUND, opts, "sequence", 2))
  if not ids then return nil, message, code end
  return ids
end

-- Returns the lengths to which two texts are truncated so that they have at most `room` tokens together. The longer text is truncated
-- first (tokenizers library, LongestFirst).
local function shares(a, b, room)
  if a + b <= room then return a, b end
  local short = math.min(a, b)
  local long = short > room and short or math.max(short, room - short)
  if short + long > room then
    short = room // 2
    long = short + room % 2
  end
  if a > b then return long, short end
  return short, long
end

--- Returns the ids and token types of two texts, joined as in the tokenizers library.
-- @param opts as for sequence
-- @return list of ids, list of token types, whether the texts lost tokens; or nil, message, code
function Tokenizer:pair(first, second, opts)
  schema.argument({ type = "string" }, first, "pair: first", 2)
  schema.argument({ type = "string" }, second, "pair: second", 2)
  opts = schema.check(AROUND, opts, "pair", 2)
  local parts = self._pair or { { text = 1, type = 0 }, { text = 2, type = 0 } }
  local texts, room = {}, opts.max_length or math.maxinteger
  for i, text in ipairs { first, second } do
    local message, code
    texts[i], message, code = body_of(self, text, opts.special)
    if not texts[i] then return nil, message, code end
  end
  for _, part in ipairs(parts) do room = room - (part.id and 1 or 0) end
  if room < 0 then
    return nil, ("option max_length is %d, but %d tokens stand around each pair"):format(opts.max_length, opts.max_length - room), "range"
  end
  local lengths = { shares(#texts[1], #texts[2], math.max(room, 0)) }
  local truncated = lengths[1] < #texts[1] or lengths[2] < #texts[2]
  local ids, types = {}, {}
  for _, part in ipairs(parts) do
    local list = part.id and { part.id } or cut(texts[part.text], lengths[part.text])
    for _, id in ipairs(list) do ids[#ids + 1], types[#types + 1] = id, part.type end
  end
  return ids, types, truncated
end

local function check_id(id, size, what)
  if math.type(id) == "float" then id = math.tointeger(id) or id end
  if math.type(id) ~= "integer" or id < 0 or id >= size then
    local shown = type(id) == "number" and tostring(id) or schema.shown(id)
    what = type(what) == "number" and ("ids[%d]"):format(what) or what
    error(("decode: %s must be 0 .. %d, but is %s"):format(what, size - 1, shown), 3)
  end
end

--- The text of ids.
-- @param ids list of ids, or one id; from 0 to #tokenizer - 1
-- @param opts skip_special: leave control tokens out (default false); utf8: "raw" (default) returns the bytes unchanged,
-- "replace" puts U+FFFD for invalid UTF-8, as Python's errors="replace" does
-- @raise when an id is outside of the vocabulary, or an option is unknown or wrong. A streaming decoder takes such ids: some
-- models have a larger output than vocabulary
function Tokenizer:decode(ids, opts)
  opts = schema.check(DECODE, opts, "decode", 2)
  local size = #self
  if type(ids) == "table" then
    for i = 1, rawlen(ids) do check_id(ids[i], size, i) end
    local fault = list_of.stray(ids)
    if fault then error("decode: ids " .. fault, 2) end
  else
    check_id(ids, size, "id")
  end
  return self._raw:decode(ids, opts.skip_special, opts.utf8 == "replace")
end

--- Makes a streaming decoder. It never returns part of a UTF-8 character.
-- @param opts skip_special: leave control tokens out (default false)
-- @return stream with push(id) -> the complete bytes, flush() -> the bytes held back, reset(). An id beyond the vocabulary has no
-- text: some models have a larger output than vocabulary
function Tokenizer:stream(opts)
  opts = schema.check(STREAM, opts, "stream", 2)
  return setmetatable({ _raw = self._raw:decoder(opts.skip_special) }, Stream)
end

function Stream:push(id)
  local text = self._raw:push(id_of("push", id))
  return text
end

function Stream:flush() return self._raw:flush() end

function Stream:reset() self._raw:reset() end

--- The bytes of a token; nil beyond the vocabulary.
function Tokenizer:token(id)
  local text = self._raw:token(id_of("token", id))
  return text
end

--- The spelling of a token in the vocabulary; nil beyond the vocabulary.
function Tokenizer:piece(id)
  local text = self._raw:piece(id_of("piece", id))
  return text
end

--- The id of the token with a spelling, or nil.
function Tokenizer:id(piece)
  schema.argument({ type = "string" }, piece, "id: piece", 2)
  return self._raw:id(piece)
end

--- "normal", "control", "user", "unknown", "unused" or "byte"; nil beyond the vocabulary.
function Tokenizer:token_type(id)
  local kind = self._raw:token_type(id_of("token_type", id))
  return kind
end

--- Frees the vocabulary. Streams of this tokenizer then raise.
function Tokenizer:close() self._raw:close() end

Tokenizer.__close = Tokenizer.close
methods.guard(Tokenizer, Tokenizer, "tokenizer")
methods.guard(Stream, Stream, "stream")

return M
