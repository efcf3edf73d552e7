--- Sessions of the engines that run op by op: ONNX graphs and Core ML package sets.
-- Needs ane.core. Both keep for a sequence its tokens, its states, snapshots of the states that forget, and files. They differ in the
-- engine, a table with
--   name, fingerprint    whose sessions these are, in files
--   states               list of {name, grows, count(length)}: a state grows by a row for each token, or it forgets (convolutions,
--                        sliding windows); count gives its elements, fp32, after `length` tokens
--   fragile              a call that fails leaves states in the middle of an update
--   bidirectional        nothing is kept between calls
--   n_ids(self), vocab(self), max_chunk(self)   ids that may be fed; logits of a row; maximum tokens of a call
--   open(self)           states of an empty sequence: get(i, length) gives a tensor, put(length, tensors) sets those that are given
--                        and cuts the others to `length`, reset(), copy(), close(); or nil, message, code
--   check(self, s, n)    may n tokens be fed now? true; or nil, message, code
--   feed(self, s, ids, want)   computes; gives rows: count, logits(self, i), argmax(self, i); or nil, message, code
--   rope_factors(self, total)   optional: a number that identifies the rope factors of a sequence of `total` tokens
-- A session has the methods that ane.generate.session needs from its core.
-- Usage: `local s = op_session.open(engine)`

local core = require "ane.core"

local M = {}

local Session = {}
Session.__index = Session

local SNAPSHOTS = 16 -- of the states that forget, after the last calls
local SNAPSHOT_BYTES = 1 << 20 -- states that forget and are larger are computed again instead

local NO_ROWS = { count = 0 }

-- ---- Snapshots ----------------------------------------------------------------------------------------------------------

-- Returns the number of elements of the states that forget; nil if there are none.
local function forgetting(engine)
  local count
  for _, s in ipairs(engine.states) do
    if not s.grows then count = (count or 0) + s.count(1) end
  end
  return count
end

local function snapshot(self)
  if not self.forgets or 4 * self.forgets > SNAPSHOT_BYTES then return end
  local shot = { length = self.len, tensors = {} }
  for i, s in ipairs(self.engine.states) do
    if not s.grows then shot.tensors[i] = self.hold:get(i, self.len) end
  end
  table.insert(self.shots, shot)
  if #self.shots > SNAPSHOTS then table.remove(self.shots, 1) end
end

-- Returns the latest snapshot of at most n tokens; drops later ones.
local function snapshot_before(self, n)
  while #self.shots > 0 and self.shots[#self.shots].length > n do table.remove(self.shots) end
  return self.shots[#self.shots]
end

-- ---- Moving on ----------------------------------------------------------------------------------------------------------

local function reset(self)
  local ok, message, code = self.hold:reset()
  if not ok then return nil, message, code end
  self.len, self.shots, self.results = 0, {}, NO_ROWS
  return true
end

-- Computes tokens after those that are cached.
-- @return rows; or nil, message, code: the session keeps its previous length
local function advance(self, ids, want)
  local before = self.len
  local rows, message, code = self.engine:feed(self, ids, want)
  if not rows then
    self.len, self.broken = before, self.engine.fragile
    return nil, message, code
  end
  table.move(ids, 1, #ids, before + 1, self.tokens)
  self.len = before + #ids
  snapshot(self)
  return rows
end

-- Recomputes tokens[length + 1 .. upto]. On failure the session is marked broken, and the next call tries again.
local function replay(self, upto)
  while self.len < upto do
    local n = math.min(self.engine:max_chunk(), upto - self.len)
    local rows, message, code = advance(self, table.move(self.tokens, self.len + 1, self.len + n, 1, {}), "none")
    if not rows then
      self.len, self.broken = upto, true
      return nil, message, code
    end
    self.replays = self.replays + n
  end
  return true
end

-- Prepares the states for a sequence of `total` tokens. Recomputes all tokens if the states are broken or were made with other rope
-- factors.
local function settle(self, total)
  local factors = self.engine.rope_factors and self.engine:rope_factors(total) or 0
  if factors == self.rope_factors and not self.broken then return true end
  local upto = self.len
  if upto > 0 or self.broken then
    local ok, message, code = reset(self)
    if not ok then return nil, message, code end
  end
  self.rope_factors, self.settled, self.broken = factors, total, nil
  return replay(self, upto)
end

--- Feeds tokens, at most max_chunk.
-- @param want "last" (default), "all", "argmax", "best" or "none"
-- @return true; or nil, message, code: the session is as before, but for its rows
function Session:feed(ids, want)
  if math.type(ids) == "integer" then ids = { ids } end
  self.results = NO_ROWS
  local ok, message, code = self.engine:check(self, #ids)
  if ok then ok, message, code = settle(self, self.len + #ids) end
  local rows
  if ok then rows, message, code = advance(self, ids, want or "last") end
  if not rows then return nil, message, code end
  self.results, self.best_only = rows, want == "argmax" or want == "best"
  return true
end

--- Forgets the tokens from n on.
function Session:rewind(n)
  if n < 0 or n > self.len then return nil, ("length must be 0 .. %d, but is %d"):format(self.len, n), "range" end
  self.results = NO_ROWS
  if n == 0 then self.origin = 0 end
  if n == self.len then return true end
  if self.broken then
    self.len = n
    return settle(self, n)
  end
  local shot = self.forgets and n > 0 and snapshot_before(self, n)
  local ok, message, code
  if not self.forgets then ok, message, code = self.hold:put(n, {})
  elseif shot then ok, message, code = self.hold:put(shot.length, shot.tensors)
  else ok, message, code = reset(self) end
  if not ok then return nil, message, code end
  self.len = self.forgets and (shot and shot.length or 0) or n
  return replay(self, n)
end

--- Forgets everything. The next feed is the part of a longer sequence that begins after n tokens.
function Session:part(n)
  if not self.engine.bidirectional then
    return nil, "this model sees all of the past: a part of a sequence cannot be fed alone", "unsupported"
  end
  local ok, message, code = self:rewind(0)
  if ok then self.origin = n end
  return ok, message, code
end

-- ---- Results ------------------------------------------------------------------------------------------------------------

function Session:rows() return self.results.count end
function Session:length() return self.len end
function Session:replayed() return self.replays end
function Session:ids() return table.move(self.tokens, 1, self.len, 1, {}) end

-- Returns row i of the last feed, from 1, or negative from the end.
local function row_of(self, i)
  local count = self.results.count
  i = i or -1
  local at = i < 0 and count + 1 + i or i
  if at < 1 or at > count then error(("the row of logits does not exist: the last feed left %d"):format(count), 3) end
  return at
end

--- Logits of a row as a tensor.
function Session:logits(i)
  return self.results:logits(row_of(self, i))
end

--- Best token of a row and its logit.
function Session:argmax(i)
  return self.results:argmax(row_of(self, i))
end

-- Sums over rows, each times its factor.
local function weighted(self, from, factor)
  local sum
  for i = from, self.results.count do
    local row = self:logits(i) * factor(i)
    sum = sum and sum + row or row
  end
  return sum
end

local POOLINGS = {
  cls = function(self, from) return self:logits(from) end,
  last = function(self) return self:logits(-1) end,
  mean = function(self, from, n) return weighted(self, from, function() return 1 / n end) end,
  mean_sqrt = function(self, from, n) return weighted(self, from, function() return 1 / math.sqrt(n) end) end,
  weighted_mean = function(self, from, n)
    local total = n * (from + self.results.count) / 2
    return weighted(self, from, function(i) return i / total end)
  end,
  max = function(self, from)
    local most = self:logits(from):totable()
    for i = from + 1, self.results.count do
      for k, x in ipairs(self:logits(i):totable()) do most[k] = math.max(most[k], x) end
    end
    return core.tensor({ #most }, most)
  end,
}

--- The rows of the last feed from `from` on (from 1) as one vector.
-- @param how cls (the first row), last, mean, max, mean_sqrt (sum / sqrt(n)) or weighted_mean (row i has weight i)
function Session:pooled(how, from)
  from = from or 1
  return POOLINGS[how](self, from, self.results.count - from + 1)
end

--- Bytes of state that the tokens so far occupy.
function Session:kv_bytes()
  local sum = 0
  for _, s in ipairs(self.engine.states) do sum = sum + (self.len > 0 and 4 * s.count(self.len) or 0) end
  return sum
end

-- ---- Copies and files ---------------------------------------------------------------------------------------------------

local function wrap(engine, hold)
  return setmetatable({
    engine = engine, hold = hold, forgets = forgetting(engine), len = 0, tokens = {}, shots = {}, results = NO_ROWS, origin = 0,
    rope_factors = engine.rope_factors and engine:rope_factors(0) or 0, settled = 0, replays = 0,
  }, Session)
end

--- A second session with the same past, without the rows of the last feed.
function Session:fork()
  local hold, message, code = self.hold:copy()
  if not hold then return nil, message, code end
  local other = wrap(self.engine, hold)
  other.len, other.tokens, other.shots = self.len, self:ids(), table.move(self.shots, 1, #self.shots, 1, {})
  other.rope_factors, other.settled, other.broken, other.origin = self.rope_factors, self.settled, self.broken, self.origin
  return other
end

-- Returns the logits of the last token if the last feed has kept them.
local function last_logits(self)
  local results = self.results
  if results.count == 0 or self.best_only or results.no_logits then return nil end
  return results:logits(results.count)
end

--- Writes tokens, states, the logits of the last token if the last feed has kept them, and a note.
function Session:save(path, note)
  local ok, message, code = settle(self, self.len) -- a rewind may have left keys of other rope factors
  if not ok then return nil, message, code end
  local parts = { { "ids", self:ids() } }
  for i, s in ipairs(self.engine.states) do
    if self.len > 0 then parts[#parts + 1] = { "state " .. s.name, self.hold:get(i, self.len) } end
  end
  parts[#parts + 1] = { "logits", last_logits(self) }
  if not parts[#parts][2] then parts[#parts] = nil end
  if note then parts[#parts + 1] = { "note", note } end
  return core.save_session(path, self.engine.name, self.engine.fingerprint, parts)
end

-- Reads a part of `count` fp32 numbers as a tensor; or nil and why it cannot.
local function floats(parts, name, count)
  local bytes = parts[name]
  if not bytes then return nil, "there is no part " .. name end
  if #bytes ~= 4 * count then return nil, ("part %s has %d bytes, but must have %d"):format(name, #bytes, 4 * count) end
  return core.tensor({ count }, bytes)
end

-- Makes the rows of a feed of one token whose logits are known.
local function one_row(logits)
  return { count = 1, logits = function() return logits:slice(1) end, argmax = function() return logits:argmax() end }
end

--- Reads what save wrote. A failure leaves the session as it was.
-- @param context maximum tokens
-- @return true, the note; or nil, message, code
function Session:restore(path, context)
  local engine = self.engine
  local ids, parts, code = core.load_session(path, engine.name, engine.fingerprint, engine:n_ids(), context)
  if not ids then return nil, parts, code end
  local tensors, logits, why = {}, nil, nil
  for i, s in ipairs(engine.states) do
    if #ids > 0 and not why then tensors[i], why = floats(parts, "state " .. s.name, s.count(#ids)) end
  end
  if parts.logits and not why then logits, why = floats(parts, "logits", engine:vocab()) end
  if why then return nil, ("%s is damaged: %s"):format(path, why), "format" end
  local ok, message
  if #ids > 0 then ok, message, code = self.hold:put(#ids, tensors) else ok, message, code = self.hold:reset() end
  if not ok then
    self.broken = true
    return nil, message, code
  end
  self.len, self.tokens, self.shots, self.broken, self.best_only = #ids, ids, {}, nil, nil
  self.settled, self.rope_factors = #ids, engine.rope_factors and engine:rope_factors(#ids) or 0
  self.results = logits and one_row(logits) or NO_ROWS
  snapshot(self)
  return true, parts.note
end

--- Frees the states. Closing twice is fine.
function Session:close()
  if self.hold then self.hold:close() end
  self.hold = nil
end
Session.__gc, Session.__close = Session.close, Session.close

--- A session without tokens.
-- @param engine see above
-- @return session; or nil, message, code
function M.open(engine)
  local hold, message, code = engine:open()
  if not hold then return nil, message, code end
  return wrap(engine, hold)
end

return M
