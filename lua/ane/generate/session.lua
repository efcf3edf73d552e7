--- Sessions: the cached state of one sequence. A session takes tokens and gives logits. It is the only interface to all engines:
-- generation, chat and the other Lua code that computes with a model do not depend on the engine.
-- Needs ane.generate, ane.generate.stream, ane.util.list, ane.util.methods, ane.util.schema, and a program: of ane.core (recipes),
-- ane.onnx or ane.coreml.
-- Usage: `local s <close> = model:session(); s:feed({1, 2, 3}, {want = "all"}); print(s.length, s:argmax(), s:logits(-1):topk(5))`
--
-- The interface. A call that fails gives nil, message, code, and leaves the session unchanged unless stated otherwise; misuse raises.
--   feed(ids, opts)      adds tokens after the cached ones. Checks all of them first: an id that the model does not have, or more
--                        tokens than fit in the context, is code "range". Long feeds run in chunks: code "stopped" after
--                        stop(), or an error that a callback raises, leaves the earlier chunks in place
--   rows()               rows of the last feed: 1 for want = "last" and "best", one for each token for "all" and "argmax", 0 for "none".
--                        0 after rewind and in a fork; 1 after restore of a session that is not empty
--   logits(i), argmax(i), topk(k, i)   of a row, from 1, or negative from the end; default -1. argmax: of equal logits the lowest id
--   recall(want)         makes the row of the last token available: nothing is computed if the last feed has left it, else the last
--                        token is fed again
--   rewind(n)            removes all tokens from position n on; feeding the same tokens again gives the same rows (see exact)
--   fork()               a second session with the same past and no rows
--   save(path, note), restore(path)    tokens, states and the logits of the last token, as a file that appears whole or not at all.
--                        A file of another model, of other options, of another engine or of another version of the arithmetic is
--                        code "state", a damaged one "format", one that is longer than the context "range"
--   stop(), unstop()     stop ends the feed in progress before its next chunk, or else the next feed; unstop cancels a stop
--   generate(opts), stream(opts)       continue from the cached tokens; the tokens of the reply are cached afterwards
--   part(n)              of models that see tokens on both sides
--   kv_bytes(), close()
--   length, ids, context, closed, stopping, n_ids, searches: see PROPERTIES
--   exact                rows are bit-identical for any division of the tokens into feeds
--   price                in a pool: function(more) -> what a feed of 1 + more tokens costs, as a multiple of a single one's
--   most_rows            in a pool: chunks of a feed with want = "all" must not have more tokens
--   switch_at            sequences longer than this have other rope factors, for all positions; nil: none have
--
-- A program has session{context, kv}, max_chunk(), context(), n_ids() and exact(). Its session() gives the core, which has
-- feed(ids, want, until, mask), rows, logits, argmax, length, ids, kv_bytes, rewind, part, save(path, note), restore(path, context), fork
-- and close, for at most max_chunk tokens at a time. want = "best" and masks are only for programs that have mask_size().

local generate = require "ane.generate"
local list_of = require "ane.util.list"
local methods = require "ane.util.methods"
local schema = require "ane.util.schema"
local stream = require "ane.generate.stream"

local M = {}

local Session = {}

local function mask_fault(v)
  if schema.type_name(v) ~= "ane.mask" then return "must be a mask of core.mask, but is " .. schema.shown(v) end
end

local FEED = {
  want = { type = "string", choices = { "last", "all", "argmax", "best", "none" }, default = "last" },
  mask = { type = "any", check = mask_fault, internal = true },
  chunk = { type = "integer", min = 1 },
  progress = { type = "callable" },
  each = { type = "callable" },
}

-- The open core session; raises at the level of the method's caller.
local function opened(self)
  return self._core or error("session is closed", 3)
end

-- Sessions that are being fed, with a mark that the feed holds. It ends with the feed, or when the coroutine of an abandoned feed is
-- closed or collected.
local fed = setmetatable({}, { __mode = "kv" })

-- Marks the session as being fed, until the result is closed.
local function feeding(self)
  fed[self] = setmetatable({}, { __close = function() fed[self] = nil end })
  return fed[self]
end

-- Raises at the level of the method's caller if a reply is in progress that is not the caller, or a feed whose callback is.
local function unused(self, by)
  if fed[self] then error("session: a feed is in progress, and would continue after other tokens", 3) end
  if self._replying and self._replying ~= by then
    error("session: a reply is in progress, and would continue from other tokens; close its stream first", 3)
  end
end

-- Returns row i (from 1, or negative from the end) of n; raises like opened.
local function row_of(i, n, what)
  i = i == nil and -1 or i
  if math.type(i) ~= "integer" then error(("%s: row must be an integer, but is %s"):format(what, list_of.shown(i)), 3) end
  local at = i < 0 and n + 1 + i or i
  if at < 1 or at > n then
    if n == 0 then error(what .. ": the last feed left no rows; request them with want = \"last\", \"all\" or \"argmax\"", 3) end
    error(("%s: row must be 1 .. %d, or -%d .. -1 from the end, but is %d"):format(what, n, n, i), 3)
  end
  return at
end

-- Returns the ids as a list; nil, message, code if one is not in the model's vocabulary. All chunks are checked before the first is fed.
local function check_ids(ids, vocab)
  if math.type(ids) == "integer" then ids = { ids } end
  if type(ids) ~= "table" then error("feed: ids must be a list of token ids, but is " .. list_of.kind(ids), 3) end
  for i = 1, rawlen(ids) do
    local id = ids[i]
    if math.type(id) ~= "integer" then error(("feed: id %d is %s, not a token id"):format(i, list_of.shown(id)), 3) end
    if id < 0 or id >= vocab then return nil, ("id %d at place %d is not in 0 .. %d"):format(id, i, vocab - 1), "range" end
  end
  local fault = list_of.stray(ids)
  if fault then error("feed: ids " .. fault, 3) end
  return ids
end

-- Handles a restored session whose file has no logits: feeds its last token again when its row is asked for.
local function recall_restored(self, what)
  if not self._restored then return end
  local ok, message = self:recall("last", self._replying)
  if not ok then error(what .. ": " .. message, 3) end
end

-- Keeps the rows of a chunk, for a feed of several chunks: the core's results are valid only until the next chunk.
local function keep(rows, core, want)
  for i = 1, want == "none" and 0 or core:rows() do
    if want == "argmax" then
      local id, value = core:argmax(i)
      rows[#rows + 1] = { id = id, value = value }
    else
      rows[#rows + 1] = { logits = core:logits(i) }
    end
  end
end

--- Feeds tokens that follow the cached ones.
-- @param ids list of 0-based token ids, or one id
-- @param opts want = "last" (default: logits of the last token), "all" (of every token), "argmax" (only the best id and its
-- logit for every token), "best" (the same for the last token only) or "none"; mask = of "best", the ids among which the best one is
-- searched (of core.mask with mask_size ids); progress = function("prefill", done, total); chunk = maximum tokens at a time;
-- each = function(session, first, count), called after each chunk with the rows of that chunk in session:logits(1 .. count)
-- (rows are then not kept beyond the chunk: for long inputs with want = "all")
-- @param by the reply in progress, if it feeds
-- @return true; or nil, message, code: "range" if the context is full or an id is not a token (nothing is fed then),
-- "stopped" after stop() (what was fed before stays: see length)
function Session:feed(ids, opts, by)
  local core = opened(self)
  unused(self, by)
  local message, code
  ids, message, code = check_ids(ids, self.n_ids)
  if not ids then return nil, message, code end
  opts = schema.check(FEED, opts, "feed", 2)
  if opts.mask and not (opts.want == "best" and self.mask_size) then
    error("feed: option mask is for want = \"best\", in sessions with a mask_size", 2)
  end
  local n, length, context = #ids, core:length(), self.context
  if n == 0 then return true end -- the rows stay
  if length + n > context then
    return nil, ("%d tokens after %d do not fit in a context of %d"):format(n, length, context), "range"
  end
  local size = math.min(self._program:max_chunk(), opts.chunk or math.huge)
  local several = n > size and (opts.want == "all" or opts.want == "argmax") and not opts.each
  self._rows, self._restored = several and {} or nil, nil
  self._best_only = (opts.want == "argmax" or opts.want == "best") and opts.want or nil
  self._masked = opts.mask ~= nil
  local _ <close> = not by and (opts.progress or opts.each) and feeding(self) or nil
  for first = 1, n, size do
    if self._stop then
      self._stop, self._rows = nil, nil
      return nil, ("stopped after %d of %d tokens"):format(first - 1, n), "stopped"
    end
    local last = math.min(first + size - 1, n)
    local want, mask = opts.want, opts.mask
    if last < n and (want == "last" or want == "best") then want, mask = "none", nil end
    local part = (first == 1 and last == n) and ids or table.move(ids, first, last, 1, {})
    local ok
    local compute = self._compute
    if compute then
      ok, message, code = compute(core, part, want, length + n, mask)
    else
      ok, message, code = core:feed(part, want, length + n, mask)
    end
    if not ok then
      self._rows = nil
      return nil, message, code
    end
    if several then keep(self._rows, core, want) end
    if opts.each then opts.each(self, first, last - first + 1) end
    if opts.progress then opts.progress("prefill", last, n) end
    if by and not self._core then return nil, "the session was closed by a callback", "state" end
    core = opened(self)
  end
  return true
end

--- Returns the number of rows of the last feed that can be asked for.
function Session:rows()
  local core = opened(self)
  if self._restored then return 1 end
  return self._rows and #self._rows or core:rows()
end

--- Logits of a row of the last feed, as a tensor of one value per token id (a copy).
-- @param i row, from 1, or negative from the end; default -1
-- @raise if the last feed did not request logits
function Session:logits(i)
  local core = opened(self)
  recall_restored(self, "logits")
  local at = row_of(i, self:rows(), "logits")
  if self._best_only then error(("logits: the last feed had want = \"%s\", which keeps no logits"):format(self._best_only), 2) end
  if self._rows then return self._rows[at].logits end
  return core:logits(at)
end

--- Draws a token from a row of the last feed, for ane.generate.
-- @param chain of core.sampler
-- @param i row, as for logits
-- @param position, recent as chain:draw takes them
function Session:_draw(chain, i, position, recent)
  local core = opened(self)
  if self._rows or self._restored or self._best_only or type(core) ~= "userdata" then
    return chain:draw(self:logits(i), position, recent)
  end
  return chain:draw_row(core, row_of(i, core:rows(), "logits"), position, recent)
end

--- Best token of a row of the last feed (the lowest id where several are equal).
-- @param i as for logits
-- @return its id, its logit
function Session:argmax(i)
  local core = opened(self)
  recall_restored(self, "argmax")
  local at = row_of(i, self:rows(), "argmax")
  local row = self._rows and self._rows[at]
  if not row then return core:argmax(at) end
  if row.id then return row.id, row.value end
  return row.logits:argmax()
end

--- The k best tokens of a row: list of {id, logit}, best first.
-- @param k how many
-- @param i as for logits
function Session:topk(k, i)
  opened(self)
  schema.argument({ type = "integer", min = 0, max = 0x7fffffff }, k, "topk: k", 2)
  local at = row_of(i, self:rows(), "topk")
  return self:logits(at):topk(k)
end

--- Makes the row of the last token available, as row -1. The last token is fed again if the last feed has not left its row (after
-- rewind, in a fork, after want = "none", or after "argmax" if logits are requested).
-- @param want "last" (default: logits), or "argmax": the best token is enough
-- @return true; or nil, message, code: "invalid" if the session is empty, "stopped" after stop(). A failure while the token is fed
-- again leaves the session one token shorter
function Session:recall(want, by)
  local core = opened(self)
  unused(self, by)
  schema.argument({ type = "string", choices = { "last", "argmax" } }, want or "last", "recall: want", 2)
  local n = core:length()
  if n == 0 then return nil, "the session is empty: feed it tokens first", "invalid" end
  if self._stop then
    self._stop = nil
    return nil, "stopped before the last token was fed again", "stopped"
  end
  if core:rows() > 0 and not self._masked and (want == "argmax" or not self._best_only) then return true end
  local last = core:ids()[n]
  self._rows, self._best_only, self._restored, self._masked = nil, nil, nil, nil
  local ok, message, code = core:rewind(n - 1)
  if ok then ok, message, code = core:feed({ last }, "last") end
  return ok, message, code
end

--- Forgets all tokens from position n on. The logits of the last feed are lost.
-- @param n the length to go back to, 0 .. length; if negative, the number of tokens to remove
-- @return true; or nil, message, code
function Session:rewind(n, by)
  local core = opened(self)
  unused(self, by)
  local length = core:length()
  schema.argument({ type = "integer", min = -length, max = length }, n, "rewind: length", 2)
  self._rows, self._restored, self._spilled = nil, nil, nil
  return core:rewind(n < 0 and length + n or n)
end

--- Forgets everything. The next feed is the part of a longer sequence that begins after n tokens. For models that see tokens on
-- both sides: positions whose whole receptive field is fed get the results of a run of the whole sequence, to the bit if n is a
-- multiple of 64.
-- @return true; or nil, message, code
function Session:part(n)
  local core = opened(self)
  unused(self)
  schema.argument({ type = "integer", min = 0 }, n, "part: tokens before", 2)
  self._rows, self._restored, self._spilled = nil, nil, nil
  return core:part(n)
end

--- Writes tokens, states and the logits of the last token (if the last feed has kept them) to a file, whole or not at all.
-- @param path of the file
-- @param note a text of the caller's that is kept with them, or nil
-- @return true; or nil, message, code
function Session:save(path, note)
  local core = opened(self)
  schema.argument({ type = "path" }, path, "save: path", 2)
  if note ~= nil then schema.argument({ type = "string" }, note, "save: note", 2) end
  return core:save(path, note)
end

--- Reads what save wrote with the same model and options. The row of the last token is then available: from the file, or computed
-- when it is first asked for. A failure leaves the session as it was.
-- @return true, the note (nil if there is none); or nil, message, code: "state" if the file is of another model, engine, option or
-- version, "format" if it is damaged or no saved session, "range" if it does not fit the context
function Session:restore(path)
  local core = opened(self)
  unused(self)
  schema.argument({ type = "path" }, path, "restore: path", 2)
  local ok, note, code = core:restore(path, self.context)
  if not ok then return nil, note, code end
  self._rows, self._best_only, self._spilled, self._restored = nil, nil, nil, core:length() > 0 and core:rows() == 0
  return true, note
end

--- A second session with the same past (without the logits of the last feed).
-- @return a session; or nil, message, code
function Session:fork()
  local core, message, code = opened(self):fork()
  if not core then return nil, message, code end
  local other = M.wrap(core, self._program, self.context, self._owner, self._host, self._adapters)
  other._spilled = self._spilled
  return other
end

-- ---- Replies ------------------------------------------------------------------------------------------------------------

local RULES = schema.merge(generate.rules, { details = { type = "boolean", default = false } })

--- Begins a reply in a session. The session holds all of it once it has ended.
-- @param self the session
-- @param ids the whole prompt; cached tokens are kept up to the common prefix
-- @param opts checked options of ane.generate
-- @param level of the public function that was called, as for error()
-- @return a stream; or nil, message, code
function M.reply(self, ids, opts, level)
  if self._replying then error("session: the previous reply is not complete; close its stream first", level + 1) end
  local host = self._host or {}
  if host.unsupported then return nil, host.unsupported, "unsupported" end
  opts.eos = opts.eos or host.eos_ids
  local run, message, code = generate.start(self, host.tokenizer, ids, opts, true)
  if not run then return nil, message, code end
  run.result.timings.load_s = host.load_s
  self._replying = run
  return stream.new(run, function(_, collected)
    self._replying = nil
    if self._core and not collected then
      self:unstop()
      run:settle()
    end
  end, host.streams)
end

local function reply(self, opts, what)
  local ids = opened(self):ids()
  opts = schema.check(RULES, opts, what, 3)
  local fits, why, word = generate.check_ids(opts, self._program:vocab())
  if not fits then return nil, why, word end
  if #ids == 0 then return nil, "the session is empty: feed it tokens first", "invalid" end
  local pieces, message, code = M.reply(self, ids, opts, 3)
  if not pieces then return nil, message, code end
  self._replying.spent = self._spilled
  return pieces, opts
end

--- Continues from the tokens that were fed or restored. The session then holds the reply too, so that the next call continues after it.
-- @param opts as for model:generate, without those about prompts
-- @return the text (a list of ids if the model has no tokenizer), or with details a table; or nil, message, code
function Session:generate(opts)
  local pieces <close>, checked, code = reply(self, opts, "generate")
  if not pieces then return nil, checked, code end
  local result, message
  result, message, code = pieces:finish()
  if not result then return nil, message, code end
  if checked.details then return result end
  return result.text or result.ids
end

--- The same piece by piece: `for piece in s:stream { max_tokens = 20 } do io.write(piece) end`.
-- @return an iterator as model:stream gives; or nil, message, code
function Session:stream(opts)
  local pieces, message, code = reply(self, opts, "stream")
  if not pieces then return nil, message, code end
  return pieces, nil, nil, pieces
end

-- ---- Stopping and closing ---------------------------------------------------------------------------------------------

--- Ends the feed in progress before its next chunk (called from a callback, hook or other coroutine), or the next feed,
-- with nil, message, "stopped".
function Session:stop()
  opened(self)
  self._stop = true
end

--- Cancels a stop that no feed has seen yet.
function Session:unstop()
  opened(self)
  self._stop = nil
end

--- Call when a reply has ended with a token that does not fit in the context: replies that continue after it have no tokens.
-- @return true
function Session:_spill()
  self._spilled = true
  return true
end

--- Call after the last feed with a mask: the row of the last token is then computed without a mask when it is asked for.
function Session:_unmask()
  if self._masked then self._restored = true end
end

--- Sets the function that computes the chunks of a feed, instead of the core: function(core, ids, want, until, mask) -> true; or nil,
-- message, code. For pools, which compute several sessions in one run. nil: use the core again.
-- @param price function(more) -> the cost of that many more tokens, as a multiple of a single one's; nil: unknown
-- @param most_rows tokens of a feed with want = "all" that is computed at once; nil: any number
function Session:_compute_with(fn, price, most_rows)
  self._compute, self.price, self.most_rows = fn, price, most_rows
end

--- Returns the core's session, for pools; nil while there is none.
function Session:_raw() return self._core end

--- Closes the core's session and replaces it with another, empty one. For pools; nil: none for now.
function Session:_replace_raw(core)
  if self._core then self._core:close() end
  self._core, self._rows = core, nil
end

--- Takes the core's session out of this one, which closes this session.
function Session:_release_raw()
  local core = self._core
  self._core, self._rows = nil, nil
  if self._owner then self._owner[self] = nil end
  return core
end

--- Bytes of cached state that the tokens so far occupy.
function Session:kv_bytes()
  return opened(self):kv_bytes()
end

--- Frees the state. Closing twice is fine; any other use of a closed session raises.
function Session:close()
  local core = self._core
  self._core, self._rows = nil, nil
  if core then core:close() end
  if self._owner then self._owner[self] = nil end
end

-- Properties: length (tokens cached), ids (their list, a copy), context (maximum tokens), closed, stopping (stop was called
-- and no feed has seen it yet); adapters_key (identifies the session's adapters; nil: the model's own); n_ids (ids
-- 0 .. n_ids - 1 may be fed); exact (results do not depend on how tokens are divided into feeds), switch_at (sequences longer than
-- this have other rope factors; nil: none has); searches (of the pruned head, since loading and by all
-- sessions of the program: {runs whose head was pruned, bytes read, bytes of the whole head}; nil if the head is never pruned);
-- mask_size (the ids of a feed's mask; nil: feeds take none).
local PROPERTIES = {
  length = function(self) return opened(self):length() end,
  ids = function(self) return opened(self):ids() end,
  closed = function(self) return self._core == nil end,
  stopping = function(self) return self._stop == true end,
  adapters_key = function(self) return self._adapters and self._adapters.key end,
  mask_size = function(self) return self._program.mask_size and self._program:mask_size() end,
  searches = function(self)
    local program = self._program
    if not program.head or not self._core then return nil end
    local count, read, whole = program:head()
    return whole > 0 and { count, read, whole } or nil
  end,
}

-- __names lists the names for completion.
local meta = { __name = "ane.session.handle", __gc = Session.close, __close = Session.close, __names = Session }
methods.guard(Session, meta, "session")

meta.__index = methods.index(Session, PROPERTIES)

function meta:__tostring()
  if not self._core then return "session (closed)" end
  return ("session (%d of %d tokens)"):format(self._core:length(), self.context)
end

--- Wraps a session of the core.
-- @param core what program:session() gives
-- @param program the program it belongs to
-- @param context maximum tokens that it holds
-- @param owner table in which it stands as a key while open (the model closes those when it is closed)
-- @param host what replies need of the model: tokenizer, eos_ids, streams (their registry), load_s, unsupported (why there are none)
-- @param adapters that it carries in place of the program's own, as ane.model.adapters resolves them; nil: none were chosen
function M.wrap(core, program, context, owner, host, adapters)
  local exact, switch_at = program:exact()
  local self = setmetatable({
    _core = core, _program = program, n_ids = program:n_ids(), _owner = owner, _host = host, context = context, exact = exact,
    switch_at = switch_at, _adapters = adapters or nil,
  }, meta)
  if owner then owner[self] = true end
  return self
end

--- Opens a session on a program.
-- @param program see the head of this file
-- @param opts context (tokens), kv ("fp16", "fp32", "int16", "int8"), adapters (as wrap), prefixes (of the core, whose pages are to be
-- shared; for pools)
-- @param owner, host see wrap
-- @return a session; or nil, message, code
function M.open(program, opts, owner, host)
  local context = opts.context or program:context()
  local core, message, code = program:session { context = context, kv = opts.kv, prefixes = opts.prefixes }
  if not core then return nil, message, code end
  if opts.adapters and (#opts.adapters > 0 or core.adapt) then -- an engine without adapters has none to replace by {}
    local ok
    ok, message, code = core:adapt(opts.adapters)
    if not ok then
      core:close()
      return nil, message, code
    end
  end
  return M.wrap(core, program, context, owner, host, opts.adapters)
end

--- Returns whether this is an open session of this owner.
function M.is_of(value, owner)
  return getmetatable(value) == meta and rawget(value, "_core") ~= nil and rawget(value, "_owner") == owner
end

return M
