--- Replaces the spans that a token classifier finds in a text. A text may come in parts.
-- Needs ane.classify, schema and siphash. Usage: `print(model:redact "My name is Ada.")`
--
-- A long text is divided into segments after a line end or before a space. A position is used only if both sides, encoded
-- separately, give the same tokens as together. Where there is none (tokenizers that see whole texts), the segment grows. Labels
-- come from windows over the tokens (ane.classify), so the result equals one run over the whole text. Memory holds a segment, a
-- window and the undecided spans.

local classify = require "ane.classify"
local schema = require "ane.util.schema"
local siphash = require "ane.util.siphash"

local M = {}

--- Options.
--   pseudonyms: equal originals get the same name, [PERSON_1]; with `key` a name that depends on the original and the key only,
--   [PERSON_3f29c01d77aa]
--   key: secret that those names are made from; not empty
--   replace: function(span) -> text, instead; span = {label, text, start, stop, score}
--   threshold, window: as for classify
--   segment: bytes after which a text is split
--   progress: function("redact", done, total), called after each window with the bytes done and the bytes received so far; it may
--     yield
M.rules = {
  pseudonyms = { type = "boolean", default = false },
  key = { type = "string", check = function(key) return key == "" and "is empty" or nil end },
  replace = { type = "callable" },
  threshold = classify.rules.threshold,
  window = classify.rules.window,
  progress = { type = "callable" },
  segment = { type = "integer", min = 16, default = 1 << 16 },
}

-- ---- Replacements ------------------------------------------------------------------------------------------------------

local function tag(label) return (label:upper():gsub("[^%w]+", "_")) end

-- function(span) -> text
local function replacer(opts)
  if opts.replace then return opts.replace end
  if opts.key then
    local key = siphash.key(opts.key)
    return function(span)
      return ("[%s_%012x]"):format(tag(span.label), siphash.hash(key, span.label .. "\0" .. span.text) & 0xFFFFFFFFFFFF)
    end
  end
  if not opts.pseudonyms then return function(span) return "[" .. tag(span.label) .. "]" end end
  local names, counts = {}, {}
  return function(span)
    local id = span.label .. "\0" .. span.text
    if not names[id] then
      counts[span.label] = (counts[span.label] or 0) + 1
      names[id] = ("[%s_%d]"):format(tag(span.label), counts[span.label])
    end
    return names[id]
  end
end

-- The text that a replacer has returned.
local function text_of(v)
  if type(v) ~= "string" and type(v) ~= "number" then error("redact: option replace must return a text, but returned a " .. type(v), 0) end
  return tostring(v)
end

-- ---- Segments ----------------------------------------------------------------------------------------------------------

-- Bytes on both sides of a split that are encoded to check it; number of positions that are tried.
local CONTEXT, TRIES = 256, 12

local function back_to_char(text, at)
  while at > 1 and (text:byte(at) or 0) & 0xC0 == 0x80 do at = at - 1 end
  return at
end

-- Returns whether the tokens around byte `at` stay the same if the text is split after it.
local function is_clean(tokenizer, text, at)
  local first = back_to_char(text, math.max(at - CONTEXT, 1))
  local last = back_to_char(text, math.min(at + CONTEXT, #text) + 1) - 1
  local plain = { bos = false, eos = false }
  local left, right, both = text:sub(first, at), text:sub(at + 1, last), text:sub(first, last)
  local a, b, whole = tokenizer:encode(left, plain), tokenizer:encode(right, plain), tokenizer:encode(both, plain)
  if not a or not b or not whole or #a + #b ~= #whole then return false end
  table.move(b, 1, #b, #a + 1, a)
  for i, id in ipairs(whole) do
    if a[i] ~= id then return false end
  end
  return true
end

-- Patterns of positions for a split, the preferred one first: after a line end, and before a space; a letter or digit follows.
local SPLITS = { "\n()%f[%w]", "[%w%p]() %w" }

-- Returns the last position in the second half of a text where it can be split; nil if there is none.
local function find_split(tokenizer, text)
  local half = #text // 2
  local tail = text:sub(half + 1)
  for _, pattern in ipairs(SPLITS) do
    local positions = {}
    for position in tail:gmatch(pattern) do positions[#positions + 1] = half + position - 1 end
    for i = #positions, math.max(#positions - TRIES, 0) + 1, -1 do
      if is_clean(tokenizer, text, positions[i]) then return positions[i] end
    end
  end
end

-- ---- The stream --------------------------------------------------------------------------------------------------------

local Stream = {}
Stream.__index = Stream
Stream.__name = "ane.redaction"

--- Starts a redaction of a text that comes in parts.
-- @return stream with push(bytes) -> text, spans; finish() -> text, spans; close(); or nil, message, code
function M.stream(model, opts, level)
  opts = schema.check(M.rules, opts, "redact", (level or 1) + 1)
  if not model.tokenizer then return nil, "the model has no tokenizer: texts cannot be redacted", "unsupported" end
  local self
  local run, message, code = classify.run(model, { window = opts.window, progress = opts.progress and function(done)
    opts.progress("redact", self.stops[done] or self.encoded, self.encoded + self.size)
  end })
  if not run then return nil, message, code end
  self = setmetatable({
    tokenizer = model.tokenizer, run = run, opts = opts, replace = replacer(opts),
    pending = {}, size = 0, look_at = opts.segment,         -- bytes not encoded yet; the size from which they are split
    text = "", base = 0, starts = {}, stops = {}, n = 0,    -- bytes from base + 1, not written yet; bytes of tokens
    encoded = 0, used = 0, decided = 0, begun = false,      -- bytes encoded; last byte of a span; tokens decided
  }, Stream)
  return self
end

function Stream:close() self.run:close() end
Stream.__close = Stream.close

-- Encodes a segment and pushes its tokens to the model.
local function encode(self, segment, final)
  local opts = { offsets = true }
  if self.begun then opts.bos = false end
  if not final then opts.eos = false end
  self.begun = true
  local ids, spans, code = self.tokenizer:encode(segment, opts)
  if not ids then return nil, spans, code end
  for t, span in ipairs(spans) do
    self.starts[self.n + t], self.stops[self.n + t] = span[1] + self.encoded, span[2] + self.encoded
  end
  self.n = self.n + #ids
  self.text, self.encoded = self.text .. segment, self.encoded + #segment
  return self.run:push(ids)
end

-- The last byte before all tokens that follow token `last`.
local function safe_byte(self, last)
  local first = self.encoded + 1
  for t = last + 1, self.n do
    if self.stops[t] >= self.starts[t] then first = math.min(first, self.starts[t]) end
  end
  return back_to_char(self.text, first - self.base) + self.base - 1
end

-- The text up to the last byte of the decided tokens, with spans replaced.
local function emit(self, spans, decided, final)
  local placed, out = classify.set_bytes(spans, self, self.opts.threshold), {}
  local at = self.base -- bytes up to here are written
  for _, span in ipairs(placed) do
    span.replacement = text_of(self.replace(span))
    out[#out + 1] = self.text:sub(at - self.base + 1, span.start - 1 - self.base)
    out[#out + 1] = span.replacement
    at = span.stop
  end
  local last = math.min(decided, (self.run:open_since() or math.huge) - 1)
  local upto = final and self.encoded or math.max(at, safe_byte(self, last))
  out[#out + 1] = self.text:sub(at - self.base + 1, upto - self.base)
  for t = self.decided + 1, last do self.starts[t], self.stops[t] = nil, nil end
  self.decided = last
  self.text, self.base = self.text:sub(upto - self.base + 1), upto
  return table.concat(out), placed
end

--- Adds bytes.
-- @return the text that is ready and the spans replaced in it; or nil, message, code
function Stream:push(bytes)
  self.pending[#self.pending + 1], self.size = bytes, self.size + #bytes
  if self.size < self.look_at then return "", {} end
  local text = table.concat(self.pending)
  local cut = find_split(self.tokenizer, text)
  self.pending = { cut and text:sub(cut + 1) or text }
  self.size = #self.pending[1]
  self.look_at = cut and math.max(self.opts.segment, self.size + self.opts.segment // 2) or 2 * self.size
  if not cut then return "", {} end
  local ok, message, code = encode(self, text:sub(1, cut), false)
  if not ok then return nil, message, code end
  local spans, decided = self.run:take()
  return emit(self, spans, decided, false)
end

--- Ends the text.
-- @return the rest and its spans; or nil, message, code
function Stream:finish()
  local ok, message, code = encode(self, table.concat(self.pending), true)
  if not ok then return nil, message, code end
  self.pending, self.size = {}, 0
  local spans, decided
  spans, decided, code = self.run:finish()
  if not spans then return nil, decided, code end
  return emit(self, spans, decided, true)
end

--- Returns the text with its spans replaced.
-- @param text as it was classified
-- @param spans of the text, in order, with start, stop, label, text and score (ane.classify); each gets its replacement
-- @param opts pseudonyms, key, replace: see rules
-- @return the text
function M.apply(text, spans, opts)
  local replace, out, at = replacer(opts), {}, 0
  for _, span in ipairs(spans) do
    span.replacement = text_of(replace(span))
    out[#out + 1] = text:sub(at + 1, span.start - 1)
    out[#out + 1] = span.replacement
    at = span.stop
  end
  out[#out + 1] = text:sub(at + 1)
  return table.concat(out)
end

--- Redacts a text. See Model:redact.
function M.redact(model, text, opts, level)
  schema.argument({ type = "string" }, text, "redact: text", level + 1)
  local stream <close>, message, code = M.stream(model, opts, level + 1)
  if not stream then return nil, message, code end
  local parts, spans = {}, {}
  local function keep(part, some)
    parts[#parts + 1] = part
    table.move(some or {}, 1, #(some or {}), #spans + 1, spans)
    return part
  end
  local part, some
  for at = 1, #text, stream.opts.segment do
    part, some, code = stream:push(text:sub(at, at + stream.opts.segment - 1))
    if not keep(part, part and some) then return nil, some, code end
  end
  part, some, code = stream:finish()
  if not keep(part, part and some) then return nil, some, code end
  return table.concat(parts), spans
end

return M
