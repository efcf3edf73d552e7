--- Token classification: windows over ids, labels, spans with byte offsets.
-- Needs ane.classify.bioes, ane.core, ane.model, ane.util.empty_sessions, ane.util.failure, ane.util.list and
-- ane.util.schema.
-- Usage: `for _, s in ipairs(model:classify(text)) do print(s.label, s.text) end`
--
-- A model that sees tokens on both sides takes a sequence at once. A longer sequence runs in windows that overlap. A label
-- depends on at most `reach` tokens on each side (layers x attention window). Only the labels of tokens that have this
-- many neighbours in their window are used, so they equal those of one run over the whole sequence.

local bioes = require "ane.classify.bioes"
local core = require "ane.core"
local empty_sessions = require "ane.util.empty_sessions"
local failure = require "ane.util.failure"
local list_of = require "ane.util.list"
local schema = require "ane.util.schema"

local M = {}

local MANY = 32 -- maximum inputs of a run

--- Options of classify.
--   threshold: spans with a lower score are left out; default 0
--   window: maximum tokens of one run; default the model's limit
--   progress: function("classify", done, total), called after each window with the number of tokens that are done, by classify_many
--     after each run with the number of inputs; it may yield
--   details: the result is a table with spans, ids, labels (the best of each token alone), path (those of the best legal path),
--   logits (tensor [tokens, labels])
M.rules = {
  threshold = { type = "number", min = 0, max = 1, default = 0 },
  window = { type = "integer", min = 1 },
  details = { type = "boolean", default = false },
  progress = { type = "callable" },
}

-- ---- Windows over tokens -----------------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

--- Labels tokens that are pushed in several parts.
-- @param model a token classifier
-- @param opts window; each = function(t, logits) called with the row of each token t (from 1), in order; progress = function(done)
-- called after each window with the number of tokens that have labels
-- @return run; or nil, message, code
function M.run(model, opts)
  local bundle = require("ane.model").bundle(model, 2)
  local cfg = bundle.config
  if cfg.kind ~= "token_classifier" then
    return nil, ("%s is not a token classifier"):format(tostring(model)), "unsupported"
  end
  local scores = bundle.program:vocab()
  if #cfg.labels ~= scores then
    return nil, ("%s has %d labels (id2label of config.json), but its head gives %d scores per token"):format(tostring(model),
      #cfg.labels, scores), "format"
  end
  local grammar, message, code = bioes.grammar(cfg.labels)
  if not grammar then return nil, message, code end
  local most = math.min(bundle.program:max_chunk(), bundle.program:context())
  local session
  session, message, code = model:session()
  if not session then return nil, message, code end
  return setmetatable({
    session = session, most = most, window = math.min(opts.window or most, most), reach = cfg.reach,
    each = opts.each, progress = opts.progress,
    decoder = bioes.decoder(grammar), ids = {}, n = 0, done = 0, -- ids by index; tokens pushed; tokens with labels
  }, Run)
end

--- Frees the session.
function Run:close() self.session:close() end
Run.__close = Run.close

-- A window keeps the positions of its tokens in the whole sequence and begins at a KV tile, so its results equal those of a run
-- over the whole sequence to the bit. Beyond EXACT tokens, which no run takes, rope angles of such positions lose precision.
local TILE, EXACT = 64, 1 << 15

-- The first token of the next window.
local function window_start(self)
  local tile = self.window > 2 * self.reach + TILE and TILE or 1
  return math.max(self.done - self.reach, 0) // tile * tile + 1
end

-- Is one of the scores a number? The weights of a broken file may give none, and a text without spans would look clean.
local function has_number(scores)
  for _, v in ipairs(scores) do
    if v == v then return true end
  end
  return false
end

-- The scores of token t, a list; or nil, message, code.
local function scores_of(row, t)
  local scores = row:totable()
  if has_number(scores) then return scores end
  return nil, ("all scores of token %d are not numbers"):format(t), "invalid"
end

-- Runs tokens [first, last] and decodes the labels of those from `done` + 1 up to `upto`.
local function run_window(self, first, last, upto)
  local s = self.session
  if s.closed then return nil, failure.CLOSED, "state" end
  local ok, message, code = s:part(last <= EXACT and first - 1 or 0)
  if ok then ok, message, code = s:feed(table.move(self.ids, first, last, 1, {}), { want = "all" }) end
  if not ok then return nil, message, code end
  for t = self.done + 1, upto do
    local row = s:logits(t - first + 1)
    local scores
    scores, message, code = scores_of(row, t)
    if not scores then return nil, message, code end
    self.decoder:push(scores)
    if self.each then self.each(t, row) end
  end
  self.done = upto
  if self.progress then self.progress(upto) end
  return true
end

-- Checks that a sequence longer than one run can be divided into windows.
local function check_window(self)
  local least = self.reach and 2 * self.reach + 1 or self.n
  if self.window >= least then return true end
  if self.window < self.most then
    local what = "option window must be %d or more for %d tokens, but is %d"
    return nil, what:format(least, self.n, self.window), "range"
  end
  if not self.reach then return nil, ("the text has %d tokens, but the model takes at most %d"):format(self.n, self.window), "range" end
  local what = "%d tokens need windows of %d tokens or more (margins of %d on both sides), but a run takes %d: load the model with a "
    .. "larger context"
  return nil, what:format(self.n, least, self.reach, self.window), "range"
end

-- Runs the windows that are complete; with `final`, at the end of the text, all of them.
local function advance(self, final)
  while self.done < self.n do
    local ok, message, code
    if self.n <= self.window then
      if not final then return true end -- one run may hold the whole text
      return run_window(self, 1, self.n, self.n)
    end
    ok, message, code = check_window(self)
    if not ok then return nil, message, code end
    local first = window_start(self)
    local last = first + self.window - 1
    if last >= self.n then
      if not final then return true end
      return run_window(self, first, self.n, self.n)
    end
    ok, message, code = run_window(self, first, last, last - self.reach)
    if not ok then return nil, message, code end
    for t = first, window_start(self) - 1 do self.ids[t] = nil end
  end
  return true
end

--- Adds tokens.
-- @param ids list
-- @return true; or nil, message, code
function Run:push(ids)
  table.move(ids, 1, #ids, self.n + 1, self.ids)
  self.n = self.n + #ids
  return advance(self, false)
end

--- Spans that no later token can change, the number of decided tokens, and their classes; see bioes.
function Run:take() return self.decoder:take() end

--- The first token of an open span, whose end is not decided; nil if there is none.
function Run:open_since() return self.decoder.open and self.decoder.open.first end

--- Ends the text.
-- @return the last spans, number of tokens, classes; or nil, message, code
function Run:finish()
  local ok, message, code = advance(self, true)
  if not ok then return nil, message, code end
  return self.decoder:finish()
end

-- ---- Many short sequences ------------------------------------------------------------------------------------------------

local Batch = {}
Batch.__index = Batch

--- Labels many short sequences, several in each run: the weights are read once for all of them.
-- @param model a token classifier
-- @param size maximum sequences of one run
-- @return batch with spans(list of lists of ids) -> list of lists of spans, close(); or nil, message, code
function M.batch(model, size)
  local run <close>, message, code = M.run(model, {}) -- fails unless it is a classifier
  if not run then return nil, message, code end
  local bundle = require("ane.model").bundle(model, 2)
  return setmetatable({
    model = model, program = bundle.program, grammar = run.decoder.g, size = size,
    sessions = empty_sessions.new(bundle.program, model.kv),
  }, Batch)
end

function Batch:close() self.sessions:close() end
Batch.__close = Batch.close

-- The last sequence of the run that begins with sequence `first`, and the length of its longest sequence.
local function extent(self, sequences, first)
  local most, total, longest, last = self.program:max_chunk(), 0, 0, first
  for i = first, math.min(first + self.size - 1, #sequences) do
    total = total + #sequences[i]
    if i > first and total > most then break end
    longest, last = math.max(longest, #sequences[i]), i
  end
  return last, longest
end

--- Spans of each sequence.
-- @param sequences list of lists of ids, none empty
-- @param progress function(done), called after each run with the number of sequences that are done; nil: none
-- @return list of lists of spans; or nil, message, code
function Batch:spans(sequences, progress)
  local out, first = {}, 1
  while first <= #sequences do
    if self.model.closed then return nil, failure.CLOSED, "state" end
    local last, longest = extent(self, sequences, first)
    local ok, message, code = self.sessions:ready(last - first + 1, longest)
    if not ok then return nil, message, code end
    local items = {}
    for i = first, last do items[#items + 1] = { self.sessions[i - first + 1], sequences[i] } end
    ok, message, code = self.program:run(items, "all")
    if not ok then return nil, message, code end
    for i = first, last do
      local rows, session = {}, self.sessions[i - first + 1]
      for t = 1, #sequences[i] do
        rows[t], message, code = scores_of(session:logits(t), t)
        if not rows[t] then return nil, message, code end
      end
      out[i] = bioes.decode(self.grammar, rows)
    end
    if progress then progress(last) end
    first = last + 1
  end
  return out
end

-- ---- Bytes -------------------------------------------------------------------------------------------------------------

local function is_inside_char(byte) return byte and byte >= 0x80 and byte < 0xC0 end

--- Bytes of consecutive tokens, without blanks at the ends. They never begin or end inside a character.
-- @param first, last token numbers
-- @param starts, stops by token: its bytes (from 1, both included; stop < start: none)
-- @param text, base: byte i of the whole text is byte i - base of `text`
-- @param used the last byte of other spans (nil: none); the bytes begin after it
-- @return start, stop; nil if no bytes are left
function M.bytes(first, last, starts, stops, text, base, used)
  local start, stop
  for t = first, last do
    if stops[t] >= starts[t] then
      start, stop = math.min(start or starts[t], starts[t]), math.max(stop or stops[t], stops[t])
    end
  end
  if not start then return nil end
  local from, to = start - base, stop - base
  while is_inside_char(text:byte(from)) and from > 1 do from = from - 1 end
  while is_inside_char(text:byte(to + 1)) do to = to + 1 end
  local rest = used and from <= used - base
  if rest then from = used - base + 1 end -- before blanks are removed, since earlier text may be gone already
  if to < from then return nil end
  local first_byte, last_byte = text:match("^%s*()", from), to
  while last_byte >= first_byte and text:find("^%s", last_byte) do last_byte = last_byte - 1 end
  if first_byte <= last_byte then from, to = first_byte, last_byte
  elseif rest then return nil end
  return from + base, to + base
end

--- Sets the bytes of spans of tokens, in place. A span without bytes of its own, or with a lower score than the threshold, is dropped.
-- @param spans list of {label, first, last, score}
-- @param at {starts, stops, text, base, used = last byte of the spans before}; used is updated
-- @param threshold minimum score
-- @return list of {label, start, stop, text, score, first, last}
function M.set_bytes(spans, at, threshold)
  local out = {}
  for _, span in ipairs(spans) do
    local start, stop = M.bytes(span.first, span.last, at.starts, at.stops, at.text, at.base, at.used)
    if start and span.score >= threshold then
      span.start, span.stop, span.text = start, stop, at.text:sub(start - at.base, stop - at.base)
      at.used = stop
      out[#out + 1] = span
    end
  end
  return out
end

-- The spans of ids whose score is at least the threshold.
local function sure(spans, threshold)
  local out = {}
  for _, span in ipairs(spans) do
    if span.score >= threshold then out[#out + 1] = span end
  end
  return out
end

-- ---- Whole texts -------------------------------------------------------------------------------------------------------

-- Ids of the input; if it is a text, also the first and the last byte of each token.
local function read_input(model, input, level)
  if type(input) == "string" then
    if not model.tokenizer then return nil, "the model has no tokenizer: give token ids instead of text", "unsupported" end
    local ids, spans, code = model.tokenizer:encode(input, { offsets = true })
    if not ids then return nil, spans, code end
    local at = { starts = {}, stops = {}, text = input, base = 0, used = 0 }
    for t, span in ipairs(spans) do at.starts[t], at.stops[t] = span[1], span[2] end
    return ids, at
  end
  if type(input) ~= "table" then
    error(("classify: the input must be a text or a list of token ids, but is %s"):format(list_of.kind(input)), level + 1)
  end
  local fault = list_of.ids_fault(input)
  if fault then error("classify: " .. fault, level + 1) end
  return input
end

local function details_of(labels, ids, rows, path, spans)
  local out = { spans = spans, ids = ids, labels = {}, path = {}, logits = nil }
  for t, row in ipairs(rows) do
    out.labels[t] = labels[row:argmax() + 1]
    out.path[t] = labels[path[t]]
    rows[t] = row:tostring()
  end
  out.logits = core.tensor({ #rows, #labels }, table.concat(rows))
  return out
end

--- Finds spans. See Model:classify.
function M.classify(model, input, opts, level)
  opts = schema.check(M.rules, opts, "classify", level + 1)
  local ids, at, code = read_input(model, input, level + 1)
  if not ids then return nil, at, code end
  local rows = {}
  local run <close>, message, why = M.run(model, {
    window = opts.window, each = opts.details and function(t, row) rows[t] = row end,
    progress = opts.progress and function(done) opts.progress("classify", done, #ids) end,
  })
  if not run then return nil, message, why end
  local ok
  ok, message, code = run:push(ids)
  if not ok then return nil, message, code end
  local spans, _, path = run:finish()
  if not spans then return nil, _, path end
  spans = at and M.set_bytes(spans, at, opts.threshold) or sure(spans, opts.threshold)
  if not opts.details then return spans end
  return details_of(model.config.labels, ids, rows, path, spans)
end

-- Sets the spans of all inputs that fit a run, many in each run. Returns true; or nil, message, code.
local function classify_short(model, list, opts, spans)
  local batch <close>, message, code = M.batch(model, MANY)
  if not batch then return nil, message, code end
  local ids = {}
  for i, one in ipairs(list) do ids[i] = one.ids end
  local found
  found, message, code = batch:spans(ids, opts.progress and function(done) opts.progress("classify", done, #list) end)
  if not found then return nil, message, code end
  for i, one in ipairs(list) do
    spans[one.index] = one.at and M.set_bytes(found[i], one.at, opts.threshold) or sure(found[i], opts.threshold)
  end
  return true
end

--- Classifies many inputs, several in a run. Each gets the same spans as alone. See Model:classify_many.
function M.classify_many(model, inputs, opts, level)
  opts = schema.check(M.rules, opts, "classify_many", level + 1)
  schema.argument({ type = "list" }, inputs, "classify_many: inputs", level + 1)
  local bundle = require("ane.model").bundle(model, level + 1)
  local room = bundle.program.run and not opts.details and not opts.window and bundle.program:max_chunk() or 0
  local spans, failed, short = {}, nil, {}
  local function alone(index)
    if model.closed then return end
    local found, message, code = M.classify(model, inputs[index], opts, level + 2)
    spans[index] = found or false
    if not found then
      failed = failed or {}
      failed[index] = { message, code }
    end
  end
  for index, input in ipairs(inputs) do
    local ids, at = read_input(model, input, level + 1)
    if ids and #ids > 0 and #ids <= room then
      short[#short + 1] = { ids = ids, at = at, index = index }
    else
      alone(index)
    end
  end
  if #short > 0 and not classify_short(model, short, opts, spans) then
    for _, one in ipairs(short) do alone(one.index) end -- one of them is at fault; the others succeed alone
  end
  for index = 1, #inputs do
    if spans[index] == nil then return nil, failure.CLOSED, "state" end
  end
  return spans, failed
end

return M
