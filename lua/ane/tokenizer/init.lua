--- Text to token ids and back, by the vocabulary of a model file or of a folder in Hugging Face layout.
-- Needs ane.core, ane.util.methods and ane.util.schema; ane.tokenizer.folder for folders.
--
-- Texts are byte strings. A byte that is no part of valid UTF-8 is encoded as that byte, so with a byte-level vocabulary
-- that has all 256 bytes decode(encode(text)) is the text again, whatever it holds. Control tokens spelled in a text are
-- text unless `special` asks for them; user-defined tokens of the vocabulary are always found.
-- Usage: `local tokenizer = require "ane.tokenizer".new("folder"); local ids = tokenizer:encode("Hello")`

local core = require "ane.core"
local methods = require "ane.util.methods"
local schema = require "ane.util.schema"

local M = {}

local Tokenizer = {}
local Stream = {}
Stream.__index = Stream
Stream.__name = "ane.stream"

--- Control tokens that end a reply, by the names that model families give them: many files name only one end token.
local END_NAMES = {
  "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
  "<|endoftext|>", "<|end_of_text|>", "<|endofturn|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<EOT>", "[EOT]", "<eos>",
  "<end_of_utterance>", "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
}

--- Where both tokens of a pair exist <|end|> closes one message and the reply goes on: the harmony format and its kin.
local CHANNELS = { { "<|return|>", "<|call|>" }, { "<|flush|>", "<|call|>" }, { "<|flush|>", "<|calls|>" } }

local function control_id(raw, name)
  local id = raw:id(name)
  return id and raw:token_type(id) == "control" and id or nil
end

-- List of the ids that end a reply: those the files name first, then by name.
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
    _raw = raw,
    bos = special.bos, eos = special.eos, eot = special.eot, eom = special.eom, unk = special.unk, pad = special.pad,
    add_bos = special.add_bos, add_eos = special.add_eos,
    eos_ids = find_ends(raw, special, ends),
    chat_templates = templates,
  }, Tokenizer)
end

local function from_source(source)
  local raw, message, code = core.tokenizer(source)
  if not raw then return nil, message, code end
  return make(raw, raw:special(), nil, raw:chat_templates())
end

local function from_folder(path)
  local found, message, code = require("ane.tokenizer.folder").open(path)
  if not found then return nil, message, code end
  return make(found.raw, found, found.ends, found.chat_templates)
end

--- A tokenizer of an open source (see ane.core.open), which may be closed afterwards; or of a folder, or of a tokenizer.json
-- or tokenizer.model and the files beside it.
-- @param x open source, or path
-- @return tokenizer; or nil, message, code: "notfound" where there is no tokenizer, "unsupported" where its kind or a part of
-- it is not known here, "format" where the file is wrong
function M.new(x)
  if type(x) == "string" then return from_folder(x) end
  return from_source(x)
end

--- A text in one of Unicode's normal forms. GGUF files do not say whether a family's own tokenizer normalises (those of
-- Qwen make NFC); who wants its ids for decomposed text normalises first.
-- @param form "nfc", "nfd", "nfkc" or "nfkd"
function M.normalise(text, form) return core.normalise(text, form) end

--- Fields: bos, eos, eot, eom, unk, pad (ids or nil); add_bos, add_eos (what the model wishes); eos_ids (list of the ids
-- that end a reply); chat_templates (name -> text; the plain one is `default`). #tokenizer is the size of the vocabulary.
Tokenizer.__index = Tokenizer
Tokenizer.__name = "ane.tokenizer"

function Tokenizer:__len() return self._raw:n_vocab() end

function Tokenizer:__tostring() return tostring(self._raw) end

--- Ids of a text.
-- @param text bytes
-- @param opts special: control tokens spelled in the text become those tokens (false); bos, eos: add the begin or end token
-- (nil: as the model wishes); offsets: give the spans too (false)
-- @return list of ids; with offsets also a list of {start, stop}, such that text:sub(start, stop) is what the token stands
-- for (empty, stop = start - 1, for added tokens); or nil, message, code
-- @raise where an option is unknown or wrong
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

--- The text of ids. Ids beyond the vocabulary (models pad their head) stand for nothing.
-- @param ids list of ids, or one
-- @param opts skip_special: control tokens give nothing (false); utf8: "raw" gives the bytes as they are, "replace" puts
-- U+FFFD for what is no UTF-8, as Python's errors="replace" does
function Tokenizer:decode(ids, opts)
  opts = schema.check(DECODE, opts, "decode", 2)
  return self._raw:decode(ids, opts.skip_special, opts.utf8 == "replace")
end

--- A streaming decoder: what it gives is never cut inside a UTF-8 character.
-- @param opts skip_special: control tokens give nothing (false)
-- @return stream with push(id) -> bytes that are complete now, flush() -> the bytes held back, reset()
function Tokenizer:stream(opts)
  opts = schema.check(STREAM, opts, "stream", 2)
  return setmetatable({ _raw = self._raw:decoder(opts.skip_special) }, Stream)
end

function Stream:push(id) return self._raw:push(id) end

function Stream:flush() return self._raw:flush() end

function Stream:reset() self._raw:reset() end

--- The bytes that a token stands for; nil beyond the vocabulary.
function Tokenizer:token(id) return self._raw:token(id) end

--- The token as the vocabulary spells it; nil beyond the vocabulary.
function Tokenizer:piece(id) return self._raw:piece(id) end

--- The id of the token that the vocabulary spells so, or nil.
function Tokenizer:id(piece) return self._raw:id(piece) end

--- "normal", "control", "user", "unknown", "unused" or "byte"; nil beyond the vocabulary.
function Tokenizer:token_type(id) return self._raw:token_type(id) end

--- Frees the vocabulary; streams of it end too.
function Tokenizer:close() self._raw:close() end

Tokenizer.__close = Tokenizer.close
methods.guard(Tokenizer, Tokenizer, "tokenizer")
methods.guard(Stream, Stream, "stream")

return M
