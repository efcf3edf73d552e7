--- The decode loop: prefill, choose, decode, stop; one token a step, so that callers may pause anywhere.
-- Needs ane.core (clock), ane.generate.sampler, ane.util.list, ane.util.schema, ane.generate.speculate, ane.generate.stops; works on an
-- ane.generate.session. No coroutine and no C call stands between a callback and the caller, so callbacks may yield.
-- Usage: `local run = generate.start(session, tokenizer, ids, opts); for piece in function() return run:next() end do ... end`

local core = require "ane.core"
local calling = require "ane.generate.calling"
local constrain = require "ane.generate.constrain"
local list_of = require "ane.util.list"
local sampler = require "ane.generate.sampler"
local schema = require "ane.util.schema"
local speculate = require "ane.generate.speculate"
local stops = require "ane.generate.stops"

local M = {}

local function check_strings(v)
  local list = type(v) == "table" and v or { v }
  local fault = list_of.fault(list)
  if fault then return fault end
  for _, s in ipairs(list) do
    if type(s) ~= "string" or s == "" then return "must be a string or a list of strings that are not empty" end
  end
end

local function check_ngram(v)
  if math.type(v) == "integer" and v > 0 then return nil end
  if type(v) == "number" then return "must be an integer of 1 or more, but is " .. v end
  for key, n in pairs(v) do
    if key ~= "size" and key ~= "times" then return ("has no field %s: choose size, times"):format(list_of.shown(key)) end
    if math.type(n) ~= "integer" or n < 1 then
      return ("must have an integer of 1 or more as %s, but has %s"):format(key, schema.shown(n))
    end
  end
  if not v.size then return "must have a size" end
end

local function check_grammar(v)
  if schema.type_name(v) ~= "ane.grammar" then return "must be a grammar, as ane.grammar makes them" end
end

-- A mask is made before a run while masks take less than this share of the time of runs. Without a mask, a second run is needed if the
-- grammar does not allow the best token, which happens for about 5 of 100 tokens.
local MASK_SHARE = 1 / 20

-- Tokens of a prompt whose logits are held at once for their log probabilities.
local PROBED = 32

local MOST_DRAFTED = 7 -- one call takes the last token and these drafted ones

-- Returns a message if an entry of a corpus is not a token id.
local function check_corpus(list)
  for i = 1, #list do
    if math.type(list[i]) ~= "integer" or list[i] < 0 then
      return ("must have token ids as corpus, its entry %d is %s"):format(i, list_of.shown(list[i]))
    end
  end
  local fault = list_of.stray(list)
  if fault then return "has a corpus that " .. fault end
end

local function check_speculate(v)
  if type(v) ~= "table" then return nil end
  for key, value in pairs(v) do
    if key == "max" then
      if math.type(value) ~= "integer" or value < 1 or value > MOST_DRAFTED then
        return ("must have a max of 1 .. %d"):format(MOST_DRAFTED)
      end
    elseif key ~= "corpus" then
      return ("has no field %s: choose max, corpus"):format(list_of.shown(key))
    elseif type(value) ~= "string" and type(value) ~= "table" then
      return "must have a text file's path or a list of token ids as corpus"
    elseif type(value) == "string" and (value == "" or value:find("\0", 1, true)) then
      return "must have a path without a NUL byte as corpus, but has " .. schema.shown(value)
    elseif type(value) == "table" then
      local wrong = list_of.gives_more(value) and "has a corpus that " .. list_of.MORE or check_corpus(value)
      if wrong then return wrong end
    end
  end
end

--- Options of generate, stream and chat, as ane.util.schema takes them, in addition to those of ane.generate.sampler.
--   max_tokens: maximum tokens of the reply; default: up to an end token or the end of the context
--   stop: a string or a list of strings; the reply ends before the first that appears
--   ignore_eos: treat end tokens like any other token; eos: list of ids that end the reply, instead of the model's own
--   stop_ngram: {size = n, times = 3}, or n: the reply ends when the same n tokens occur for the third time
--   logprobs: n; the log probability of each token and the n best at its position, from raw logits
--   prompt_logprobs: n; result.prompt_logprobs has the same for the tokens of the prompt, the first without a log probability. The whole
--   prompt is then computed, cached or not
--   logits_processor: function(logits, ids), may change the tensor or return another; ids are prompt and reply, read only
--   skip_special: false shows control tokens in the text
--   speculate: true, or {max = drafted tokens per call, corpus = path of a text or list of ids}: drafts tokens from earlier text
--   and checks several in one call, if that is faster (ane.generate.speculate). The reply does not change
--   grammar: of ane.grammar; the reply is a text of it. Forced tokens are accepted without a run of the model. result.stop is
--   "grammar" if nothing may follow; result.grammar_complete says whether the reply is a complete text of the grammar
--   progress: function("prefill", done, total)
M.rules = schema.merge(sampler.rules, {
  max_tokens = { type = "integer", min = 0 },
  stop = { type = { "string", "table" }, check = check_strings },
  eos = { type = "list", of = { type = "integer", min = 0 } },
  ignore_eos = { type = "boolean", default = false },
  stop_ngram = { type = { "integer", "table" }, check = check_ngram },
  logprobs = { type = "integer", min = 0, max = 0x7fffffff },
  prompt_logprobs = { type = "integer", min = 0, max = 0x7fffffff },
  logits_processor = { type = "callable" },
  skip_special = { type = "boolean", default = true },
  speculate = { type = { "boolean", "table" }, check = check_speculate },
  grammar = { type = "table", check = check_grammar },
  progress = { type = "callable" },
})

--- Checks the ids that options name against the vocabulary. The model's own end tokens are not among them.
-- @param opts checked options (see rules)
-- @param vocab number of logits
-- @return true; or nil, message, code "range"
function M.check_ids(opts, vocab)
  for i, id in ipairs(opts.eos or {}) do
    if id >= vocab then return nil, ("option eos: id %d at place %d is not in 0 .. %d"):format(id, i, vocab - 1), "range" end
  end
  for id in pairs(opts.logit_bias or {}) do
    if id >= vocab then return nil, ("option logit_bias: id %d is not in 0 .. %d"):format(id, vocab - 1), "range" end
  end
  return true
end

local Run = {}
Run.__index = Run
Run.__name = "ane.run"

local function set_of(ids)
  local set = {}
  for _, id in ipairs(ids or {}) do set[id] = true end
  return set
end

local function repeats_of(opt)
  if not opt then return nil end
  if type(opt) == "table" then return stops.repeats(opt.size, opt.times or 3) end
  return stops.repeats(opt, 3)
end

-- Ids of a text in a file.
local function read_text(tokenizer, path)
  if not tokenizer then return nil, "option speculate: a text as corpus needs a tokenizer; give a list of ids", "unsupported" end
  local text, message, code = core.read_file(path)
  if not text then return nil, message, code end
  return tokenizer:encode(text, { bos = false, eos = false })
end

-- Returns the ids of a corpus: a list, or the path of a text. Drafted ids are fed, so all must be in the model's vocabulary.
local function read_corpus(session, tokenizer, corpus)
  if type(corpus) == "string" then
    local message, code
    corpus, message, code = read_text(tokenizer, corpus)
    if not corpus then return nil, message, code end
  end
  local n = session.n_ids or math.huge
  for i = 1, #corpus do
    if corpus[i] >= n then
      return nil, ("option speculate: id %d at place %d of the corpus is not in 0 .. %d"):format(corpus[i], i, n - 1), "range"
    end
  end
  return corpus
end

-- Returns what a run needs to draft: {drafter, pace}; or nil, message, code.
local function ahead_of(session, tokenizer, ids, opt)
  if session.exact == false then
    return nil, "option speculate: this engine's results depend on how tokens are divided into calls", "unsupported"
  end
  opt = opt == true and {} or opt
  local corpus
  if opt.corpus then
    local message, code
    corpus, message, code = read_corpus(session, tokenizer, opt.corpus)
    if not corpus then return nil, message, code end
  end
  return { drafter = speculate.drafter(ids, corpus), pace = speculate.pace(opt.max or MOST_DRAFTED) }
end

--- Prepares a run. Nothing is computed before the first next().
-- @param session its cached tokens are kept up to the common prefix with ids; the rest is forgotten
-- @param tokenizer or nil: pieces are then token ids
-- @param ids the prompt, at least one token
-- @param opts checked options (see rules); calls: of ane.tools.plan, if the reply may call tools
-- @param kept true: the caller goes on in the session, which is to hold the prompt of a reply without tokens too
-- @return a run; or nil, message, code ("range": the prompt does not fit; "unsupported": speculate is impossible)
function M.start(session, tokenizer, ids, opts, kept)
  if #ids == 0 then return nil, "the prompt is empty: there is no token to continue", "invalid" end
  if #ids > session.context then
    return nil, ("the prompt has %d tokens, but the context has room for %d"):format(#ids, session.context), "range"
  end
  local ahead, message, code
  if opts.speculate then
    ahead, message, code = ahead_of(session, tokenizer, ids, opts.speculate)
    if not ahead then return nil, message, code end
  end
  local ends = opts.ignore_eos and {} or set_of(opts.eos or tokenizer and tokenizer.eos_ids)
  local grammar
  if opts.grammar or opts.calls then
    if not tokenizer then return nil, "option grammar needs a tokenizer", "unsupported" end
    if opts.calls then
      grammar, message, code = calling.constraint(opts.calls, opts.grammar, tokenizer, ends)
    else
      grammar, message, code = constrain.start(opts.grammar, tokenizer, ends)
    end
    if not grammar then return nil, message, code end
  end
  local all = table.move(ids, 1, #ids, 1, {})
  local strings = opts.stop or {}
  local self = setmetatable({
    session = session, kept = kept, opts = opts, all = all, ahead = ahead, row = -1, grammar = grammar,
    decoder = tokenizer and tokenizer:stream { skip_special = opts.skip_special },
    sampler = sampler.new(opts),
    watch = stops.watch(type(strings) == "table" and strings or { strings }),
    repeats = repeats_of(opts.stop_ngram),
    eos = ends,
    mask_size = grammar and session.mask_size, cost = { mask = 0, run = 0 }, -- running averages, seconds
    pieces = {},
  }, Run)
  self.turn = setmetatable({}, { __close = function() self.computing = nil end }) -- also where a callback raises
  if opts.calls then self.decoder, self.watch, self.reader = calling.view(opts.calls, tokenizer, opts, self.watch) end
  self.searches = session.searches
  self.plain = self.sampler.plain and not opts.logits_processor and not opts.logprobs
  -- The sampler takes the logits as they are, so they need not be copied.
  self.draws = session._draw and not (self.plain or opts.logits_processor or opts.logprobs or grammar)
  self.result = {
    ids = {}, prompt_ids = ids, seed = self.sampler.seed, logprobs = opts.logprobs and {} or nil,
    grammar_complete = grammar and false or nil,
    timings = { prefill_s = 0, decode_s = 0, prompt_tokens = #ids, cached_tokens = 0, tokens = 0 },
  }
  if self.decoder then self.decoder:push(ids[#ids]) end -- a leading space is dropped only from the start of the whole text
  return self
end

-- Feeds the whole prompt and collects the log probabilities of its tokens.
local function feed_probed(self)
  local session, ids, top = self.session, self.all, self.opts.prompt_logprobs
  local list = { { id = ids[1] } }
  local ok, message, code = session:rewind(0, self)
  if not ok then return nil, message, code end
  self.result.prompt_logprobs = list
  local chunk = math.min(PROBED, session.most_rows or PROBED)
  return session:feed(ids, { want = "all", chunk = chunk, progress = self.opts.progress, each = function(_, first, count)
    for i = 1, count do
      local id = ids[first + i] -- the token after row i
      local logprob, best
      if id then logprob, best = sampler.logprobs(session:logits(i), id, top) end
      list[first + i] = id and { id = id, logprob = logprob, top = best }
    end
  end }, self)
end

-- Feeds the session up to the end of the prompt; tokens that an earlier attempt fed are kept.
local function prefill(self)
  local started = core.clock()
  local session, ids = self.session, self.all
  local common = list_of.common_prefix(session.ids, ids)
  local ok, message, code
  if self.opts.prompt_logprobs then
    common = 0
    ok, message, code = feed_probed(self)
  elseif common == #ids and session.length == #ids then
    ok, message, code = session:recall(self.plain and "argmax" or "last", self)
  else
    common = math.min(common, #ids - 1) -- the last one is fed for its logits
    ok, message, code = session:rewind(common, self)
    if not ok then return nil, message, code end
    local rest = common == 0 and ids or table.move(ids, common + 1, #ids, 1, {})
    ok, message, code = session:feed(rest, { want = "last", progress = self.opts.progress }, self)
  end
  self.result.timings.prefill_s = core.clock() - started
  self.result.timings.cached_tokens = common
  return ok, message, code
end

-- Returns how many tokens may be drafted after the last one. The reply's limit, the context and the rope bound it.
local function most_drafted(self)
  local length, opts = #self.all, self.opts
  local most = math.min(MOST_DRAFTED, self.session.context - length)
  if opts.max_tokens then most = math.min(most, opts.max_tokens - #self.result.ids - 1) end
  local switch = self.session.switch_at -- beyond it the rope factors of all positions change
  if switch and length <= switch then most = math.min(most, switch - length) end
  return most
end

-- Returns the tokens that the grammar allows next, for a run that searches the best one; false: there is no such mask, or masks have
-- taken too much of the time of runs. A failure is left to the choice of the token, which needs no mask if the best one is allowed.
local function next_mask(self)
  local cost = self.cost
  if not self.mask_size then return false end
  if cost.mask > MASK_SHARE * cost.run then
    cost.mask = cost.mask * 0.9 -- so that it is tried again
    return false
  end
  local started = core.clock()
  local mask = self.grammar:allowed(self.mask_size)
  cost.mask = cost.mask + (core.clock() - started - cost.mask) * 0.25
  return mask or false
end

-- Feeds the last token and the draft after it. Row i of the logits then belongs to the i-th token fed.
local function step(self)
  local session, all, ahead = self.session, self.all, self.ahead
  if session.length > #all - 1 then -- fed before, but no token was chosen: a callback raised
    local ok, message, code = session:rewind(#all - 1, self)
    if not ok then return nil, message, code end
  end
  local waiting = #all - session.length -- more than one after tokens that a grammar forced
  local draft, agreed
  local most = ahead and waiting == 1 and most_drafted(self) or 0
  self.unchecked = nil
  if most > 0 then
    draft, agreed = ahead.drafter:draft(most)
    local length = draft and ahead.pace:length(agreed, most, session.price) or 0
    if draft and length == 0 then self.unchecked = { id = draft[1], agreed = agreed } end
    draft = length > 0 and table.move(draft, 1, length, 1, {}) or nil
  end
  local fed = draft and table.move(draft, 1, #draft, 2, { all[#all] }) or all[#all]
  if waiting > 1 then fed = table.move(all, session.length + 1, #all, 1, {}) end
  local mask = self.plain and not draft and next_mask(self) or nil
  local started = core.clock()
  self.want = mask and "best" or self.plain and "argmax" or draft and "all" or "last"
  local ok, message, code = session:feed(fed, { want = self.want, mask = mask }, self)
  self.cost.run = self.cost.run + (core.clock() - started - self.cost.run) * 0.25
  local seconds = session.price and session.price(draft and #draft or 0) or core.clock() - started
  self.row = draft and 1 or -1
  self.draft = draft and { ids = draft, agreed = agreed, seconds = seconds }
  if ok and ahead and not draft and waiting == 1 then ahead.pace:stepped(seconds) end
  return ok, message, code
end

-- Compares the chosen token with the draft. If they agree, the logits of the next row are already there; otherwise the session
-- forgets the tokens that were fed after it.
local function compare(self, id)
  local draft, row = self.draft, self.row
  local count = #draft.ids
  if draft.ids[row] == id then
    self.row = row + 1
    return true
  end
  self.ahead.pace:checked(draft.agreed, count, row - 1, draft.seconds)
  self.draft = nil
  if row > count then return true end
  return self.session:rewind(#self.all, self)
end

-- Discards the rest of a draft: removes from the session what was fed beyond `length` tokens.
local function drop(self, length)
  self.draft = nil
  return self.session:rewind(length, self)
end

-- The logits after a logits_processor, which returns a tensor as long as the logits, or nothing.
local function processed(returned, logits)
  if returned == nil then return logits end
  if schema.type_name(returned) ~= "ane.tensor" then
    error("logits_processor must return a tensor or nothing, but has returned a " .. type(returned), 0)
  end
  if #returned ~= #logits then
    error(("logits_processor must return a tensor of %d numbers or nothing, but has returned one of %d"):format(#logits, #returned), 0)
  end
  return returned
end

-- Computes all logits of the last token's row where only the best id was asked for. Discards the draft.
local function look_again(self)
  local draft, row = self.draft, self.row
  if not self.want then return self.session:recall("last", self) end -- the prompt was cached, perhaps with its best id only
  if self.want ~= "argmax" and self.want ~= "best" then return true end
  if draft then self.ahead.pace:checked(draft.agreed, #draft.ids, row - 1, draft.seconds) end
  self.draft, self.row, self.want = nil, -1, "last"
  local ok, message, code = self.session:rewind(#self.all - 1, self)
  if not ok then return nil, message, code end
  return self.session:feed(self.all[#self.all], { want = "last" }, self)
end

-- Chooses the best token if no option changes logits. After a run without a mask, one is made if the grammar does not allow it.
-- @return id; nil if it is not allowed; nil, message, code
local function choose_plain(self)
  local best, value = self.session:argmax(self.row)
  if value == -math.huge then return nil, "no token has a number above minus infinity: nothing to choose from", "invalid" end
  if not self.grammar then return best end
  local accepted, message, code = self.grammar:accept(best)
  if accepted then return best end
  if accepted == false then return nil, look_again(self) end
  return nil, message, code
end

-- The ids for a logits_processor: a list of its own, so that it cannot change the reply's.
local function ids_for(self)
  local given, all = self.given or { ids = {}, n = 0 }, self.all
  for i = given.n + 1, #all do given.ids[i] = all[i] end
  self.given, given.n = given, #all
  return given.ids
end

-- Chooses the next token from the current logits.
local function choose(self)
  local session, opts = self.session, self.opts
  if self.plain then
    local id, message, code = choose_plain(self)
    if id or message ~= true then return id, message, code end
  end
  if self.draws then return self.sampler:next_of(session, self.row, #self.all, self.all) end
  local raw = session:logits(self.row)
  local logits = raw
  if opts.logits_processor then
    logits = processed(opts.logits_processor(logits, ids_for(self)), logits)
    if session.closed then return nil, "the session was closed by a callback", "state" end
  end
  if self.grammar then
    local ok, message, code = self.grammar:mask(logits)
    if not ok then return nil, message, code end
  end
  local id, message, code = self.sampler:next(logits, #self.all, self.all)
  if not id then return nil, message, code end
  if self.grammar then
    local accepted
    accepted, message, code = self.grammar:accept(id)
    while accepted == false and self.grammar.banned do -- a token of free text may begin a call that is invalid
      logits:set(id + 1, -math.huge)
      id, message, code = self.sampler:next(logits, #self.all, self.all)
      if not id then return nil, message, code end
      accepted, message, code = self.grammar:accept(id)
    end
    if not accepted then return nil, message or "option grammar: the chosen token is not allowed", code or "invalid" end
  end
  if opts.logprobs then
    if opts.logits_processor or self.grammar then raw = session:logits(self.row) end -- the processor may have changed the first copy
    local logprob, top = sampler.logprobs(raw, id, opts.logprobs)
    table.insert(self.result.logprobs, { id = id, logprob = logprob, top = top })
  end
  return id
end

-- Ends the run; returns the text that was still held back, or nil.
local function finish(self, reason, found)
  local tail = ""
  if self.decoder and not found then
    local text, stop = self.watch:push(self.decoder:flush())
    tail, found = text, stop
    if not found then tail = tail .. self.watch:flush() end
  end
  self.done = true
  if self.grammar then self.result.grammar_complete = self.grammar:complete() end
  self.result.stop = found and "stop" or reason
  if self.reader then calling.settle(self.reader, self.result) end
  self.result.stop_string = found
  return tail
end

-- Returns the text of a new token, checked for stop strings; ends the run if there is a reason to.
local function take(self, id)
  local result, opts = self.result, self.opts
  if self.eos[id] then
    result.eos_id = id
    if result.logprobs then table.remove(result.logprobs) end
    return finish(self, "eos")
  end
  table.insert(self.all, id)
  table.insert(result.ids, id)
  local text, found = "", nil
  if self.decoder then text, found = self.watch:push(self.decoder:push(id)) end
  if found then return text .. finish(self, "stop", found) end
  if self.repeats and self.repeats:push(result.ids) then return text .. finish(self, "repeat") end
  if self.grammar and self.grammar:finished() then return text .. finish(self, "grammar") end
  if opts.max_tokens and #result.ids >= opts.max_tokens then return text .. finish(self, "length") end
  if #self.all > self.session.context then return text .. finish(self, "context") end
  return text
end

-- Takes the tokens that the grammar forces. Takes none with logprobs, which only a run of the model gives, or a logits_processor.
-- @return `text` followed by their text; or nil, message, code
local function take_forced(self, text)
  if not self.grammar or self.opts.logprobs or self.opts.logits_processor then return text end
  while not self.done do
    local id = self.grammar:next_forced()
    if not id then break end
    if self.draft then
      local ok, message, code = compare(self, id)
      if not ok then return nil, message, code end
    end
    local length = #self.all
    text = text .. take(self, id)
    if self.ahead then self.ahead.drafter:push(id) end
    if self.done and self.draft then
      local ok, message, code = drop(self, length)
      if not ok then return nil, message, code end
    end
  end
  return text
end

-- Returns how much of a pruned head was read: {searched = runs whose head was pruned, share = mean}; nil if none was.
local function head_use(self)
  local before, now = self.searches, self.session.searches
  local count = before and now and now[1] - before[1] or 0
  return count > 0 and { searched = count, share = (now[2] - before[2]) / count / now[3] } or nil
end

-- self.spent: the reply that it continues has filled the context.
local function advance(self)
  if self.spent then return finish(self, "context") end
  if self.opts.max_tokens == 0 and not self.opts.prompt_logprobs and not self.kept then return finish(self, "length") end
  local started = core.clock()
  local ok, message, code = true, nil, nil
  if not self.begun then
    ok, message, code = prefill(self)
    self.begun = true -- not before: a callback may have raised
    started = core.clock()
  else
    if self.draft and self.session.stopping then ok, message, code = drop(self, #self.all - 1) end
    if ok and not self.draft then ok, message, code = step(self) end
  end
  if ok and self.opts.max_tokens == 0 then return finish(self, "length") end
  local id
  if ok then id, message, code = choose(self) end
  if id and self.draft then ok, message, code = compare(self, id) end
  local piece
  if id and ok then
    local length = #self.all
    piece = take(self, id)
    if self.done and self.draft then
      ok, message, code = drop(self, length)
      piece = ok and piece or nil
    end
  elseif code == "stopped" then
    piece = finish(self, "stopped")
  end
  local timings = self.result.timings
  timings.decode_s = timings.decode_s + (core.clock() - started)
  timings.tokens = #self.result.ids
  if self.ahead then
    if id then self.ahead.drafter:push(id) end
    if id and self.unchecked then self.ahead.pace:seen(self.unchecked.agreed, id == self.unchecked.id) end
    self.unchecked = nil
    timings.speculation = self.ahead.pace:stats()
  end
  if piece and not self.done then
    piece, message, code = take_forced(self, piece)
    timings.tokens = #self.result.ids
  end
  timings.first_token_s = timings.first_token_s or timings.prefill_s + timings.decode_s
  timings.head = head_use(self)
  return piece, message, code, id
end

--- Returns the next piece: text (possibly empty, while bytes or a possible stop string are held back), or an id if there is no
-- tokenizer. Returns nil once the reply has ended (see result.stop: eos, grammar, stop, length, context, repeat, stopped); nil,
-- message, code on failure.
function Run:next()
  if self.done then return nil end
  if self.computing then error("the reply is already computing (a callback asked for its next piece)", 0) end
  if self.session.closed then
    self.done = true
    return nil, "the session was closed while the reply was in progress", "state"
  end
  local _ <close> = self.turn
  self.computing = true
  local count = #self.result.ids
  local piece, message, code, id = advance(self)
  if not piece then
    self.done = true
    return nil, message, code
  end
  if self.decoder then
    self.pieces[#self.pieces + 1] = piece
    if self.done then self.result.text = table.concat(self.pieces) end
    return piece
  end
  if #self.result.ids == count then return nil end
  return id
end

--- Call after the end: makes the session hold the prompt and the whole reply, so that it can continue from there. If the reply ended
-- at the end of the context, its last token does not fit and is left out.
-- @return true; or nil, message, code
function Run:settle()
  local session, n = self.session, #self.all
  if not self.begun then return true end
  session:_unmask()
  self.draft = nil
  if session.length > n then return session:rewind(n, self) end -- drafted tokens
  if n > session.context then return session:_spill() end
  if session.length == n then return true end
  if n - session.length > math.max(1, #self.result.ids) then return true end -- stopped during prefill
  return session:feed(table.move(self.all, session.length + 1, n, 1, {}), { want = "last" }, self) -- the last token, and forced ones
end

--- For pools: what program:draw needs to draw the token that a feed with want = "last" in progress is for; nil: it is not drawn from the
-- logits as they are.
function Run:draw_item() return self.draws and self.sampler:item(self.session:_raw(), #self.all, self.all) or nil end

--- Takes the token that was drawn.
function Run:drawn(id, value) self.sampler:drawn(#self.all, id, value) end

--- Text so far.
function Run:text()
  return self.decoder and table.concat(self.pieces) or nil
end

return M
