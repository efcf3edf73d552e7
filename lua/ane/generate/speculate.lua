--- Drafts tokens from earlier text (prompt lookup), and decides when to draft.
-- Needs ane.util.list and ane.util.schema. A drafter indexes the positions of all n-grams of 2, 3 and 4 tokens. It finds the earlier
-- position whose past agrees longest with the end of the text, and proposes the tokens that followed it. A pace decides how many of those
-- tokens are worth checking: a call of T tokens takes longer than one of a single token, and a draft may be wrong.
-- Sources: Saxena 2023, "Prompt Lookup Decoding"; Leviathan et al. 2023 for the expected number of tokens per call.
-- Usage: `local d = speculate.drafter(ids); local draft, match = d:draft(7); d:push(id)`

local list_of = require "ane.util.list"
local schema = require "ane.util.schema"

local M = {}

-- ---- Drafter -----------------------------------------------------------------------------------------------------------

local ORDERS = { 4, 3, 2 } -- longest first
local CANDIDATES = 8 -- maximum earlier positions that are compared for each order
local LONGEST = 32 -- longer agreement makes no difference
local MOST = 1 << 16 -- tokens of a draft

local Drafter = {}
Drafter.__index = Drafter

-- Returns a key for the n tokens that end at index i. Two n-grams may share a key: agreement is counted on the tokens themselves.
local function key_of(ids, i, n)
  local key = n
  for at = i - n + 1, i do key = key * 1000003 + ids[at] end
  return key
end

local function ids_fault(ids)
  local fault = list_of.ids_fault(ids)
  return fault and "must be a list of token ids, but " .. fault:gsub("^the ids must be a list, but ", ""):gsub(" of the ids", "") or nil
end

-- Appends the next token of the text.
local function push(self, id)
  local ids = self.ids
  local i = #ids + 1
  ids[i] = id
  for _, n in ipairs(ORDERS) do
    if i - n >= self.start then
      local last, key = self.last[n], key_of(ids, i, n)
      self.before[n][i], last[key] = last[key], i
    end
  end
end

--- Makes a drafter of a text.
-- @param ids the tokens so far; copied
-- @param corpus list of more tokens to draft from, or nil; they count as text before everything else
function M.drafter(ids, corpus)
  schema.argument({ type = "table", check = ids_fault }, ids, "drafter: ids", 2)
  if corpus ~= nil then schema.argument({ type = "table", check = ids_fault }, corpus, "drafter: corpus", 2) end
  local self = setmetatable({ ids = {}, start = 0, last = {}, before = {} }, Drafter)
  for _, n in ipairs(ORDERS) do self.last[n], self.before[n] = {}, {} end
  for i = 1, corpus and #corpus or 0 do push(self, corpus[i]) end
  self.start = #self.ids -- agreement does not reach back beyond the text's own start
  for i = 1, #ids do push(self, ids[i]) end
  return self
end

--- Appends the next token of the text.
function Drafter:push(id)
  if math.type(id) ~= "integer" then error("push: id must be an integer, but is " .. schema.shown(id), 2) end
  push(self, id)
end

-- Counts the tokens on which the texts that end at indices a < b agree, at most LONGEST.
local function agreement(self, a, b)
  local ids, n = self.ids, 0
  local most = math.min(LONGEST, b - self.start, a)
  while n < most and ids[a - n] == ids[b - n] do n = n + 1 end
  return n
end

-- Returns the earlier index whose past agrees longest with the end of the text, the latest among equals; nil if none agrees.
local function best_match(self)
  local last = #self.ids
  for _, n in ipairs(ORDERS) do
    local best, longest = nil, n - 1
    local at = last - n >= self.start and self.before[n][last] or nil
    for _ = 1, CANDIDATES do
      if not at then break end
      local agreed = agreement(self, at, last)
      if agreed > longest then best, longest = at, agreed end
      at = self.before[n][at]
    end
    if best then return best, longest end
  end
end

--- Drafts the tokens that may come next.
-- @param most maximum number of tokens, 1 or more
-- @return list of 1 .. most tokens and the number of tokens of agreement before it; or nil if nothing agrees
function Drafter:draft(most)
  if math.type(most) ~= "integer" or most < 1 then error("draft: the maximum must be 1 or more, but is " .. schema.shown(most), 2) end
  local at, agreed = best_match(self)
  if not at then return nil end
  local ids, draft = self.ids, {}
  local period = #ids - at -- a repeating text is expected to go on repeating
  for i = 1, math.min(most, MOST) do draft[i] = ids[at + i] or draft[i - period] end
  return draft, agreed
end

-- ---- Pace --------------------------------------------------------------------------------------------------------------

-- Classes of agreement, with the initial chance that the next drafted token is right: reference texts repeat more reliably the
-- longer they agree.
local CLASSES = { { 2, 0.45 }, { 3, 0.6 }, { 5, 0.7 }, { 9, 0.8 }, { math.huge, 0.88 } }
local MEMORY = 0.9 -- weight of the past in the running averages of acceptance
local COST_MEMORY = 0.7 -- the same for seconds
local SLOPE = 0.15 -- assumed cost of one more token, as a share of a plain step, where nothing is measured
local WORTH = 1.05 -- a draft must promise this many times the tokens per second of plain steps
local BUDGET = 0.015 -- the share of the time so far that may have been lost on wrong drafts
local GRACE, CREDIT = 2, 3 -- plain steps that may be lost at the start; the most that earlier gains can pay for

local Pace = {}
Pace.__index = Pace

--- Makes a pace, which learns how fast drafts are on this machine and text. It starts without measurements.
-- @param most maximum tokens of a draft
function M.pace(most)
  local chance = {}
  for i, class in ipairs(CLASSES) do chance[i] = class[2] end
  return setmetatable({ most = most, chance = chance, cost = {}, spent = 0, lost = 0, calls = 0, drafted = 0, accepted = 0,
    plain = 0, saved = 0 }, Pace)
end

local function class_of(agreed)
  for i, class in ipairs(CLASSES) do
    if agreed <= class[1] then return i end
  end
end

-- Returns the seconds of a call of t tokens as a multiple of one: given, measured, or estimated from the next smaller measured one.
local function relative_cost(self, t, price)
  local told = price and price(t - 1)
  if told then return told end
  for known = t, 2, -1 do
    local c = self.cost[known]
    if c then return c / self.cost[1] + SLOPE * (t - known) end
  end
  return 1 + SLOPE * (t - 1)
end

--- Returns how many tokens of a draft to check.
-- @param agreed as Drafter:draft returns it
-- @param most upper limit
-- @param price function(k) -> the cost of k more tokens in a call, as a multiple of a plain step, in a pool; if nil, or if it returns
-- nil, measurements are used
-- @return number of tokens; 0 if a plain step is the better choice
function Pace:length(agreed, most, price)
  if not self.cost[1] then return 0 end -- first measure a plain step
  local room = GRACE + (BUDGET * self.spent - self.lost) / self.cost[1] -- plain steps that may be lost
  local best, best_rate, tokens, right = 0, WORTH, 1, 1
  for k = 1, math.min(most, self.most) do
    local cost = relative_cost(self, k + 1, price)
    if cost - 1 > room then break end
    right = right * self.chance[class_of(agreed + k - 1)]
    tokens = tokens + right -- one is certain; each drafted one counts if it and all before it are right
    if tokens / cost > best_rate then best, best_rate = k, tokens / cost end
  end
  return best
end

local function average(old, new, memory) return old and memory * old + (1 - memory) * new or new end

--- Records the seconds of a plain step.
function Pace:stepped(seconds)
  self.cost[1] = average(self.cost[1], seconds, COST_MEMORY)
  self.spent, self.plain = self.spent + seconds, self.plain + 1
end

-- Records whether the next token of a text that agrees so far was right.
local function learn(self, agreed, right)
  local class = class_of(agreed)
  self.chance[class] = average(self.chance[class], right and 1 or 0, MEMORY)
end

--- Records whether an unchecked draft began right, as a plain step has shown. Watching drafts that do not pay costs nothing.
function Pace:seen(agreed, right) learn(self, agreed, right) end

--- Records a checked draft.
-- @param agreed tokens of agreement before it
-- @param drafted its tokens
-- @param accepted the tokens that were right
-- @param seconds of the call
function Pace:checked(agreed, drafted, accepted, seconds)
  for i = 1, math.min(accepted + 1, drafted) do learn(self, agreed + i - 1, i <= accepted) end
  self.cost[drafted + 1] = average(self.cost[drafted + 1], seconds, COST_MEMORY)
  self.spent = self.spent + seconds
  self.calls, self.drafted, self.accepted = self.calls + 1, self.drafted + drafted, self.accepted + accepted
  local gain = (accepted + 1) * self.cost[1] - seconds
  self.saved = self.saved + gain
  self.lost = math.max(-CREDIT * self.cost[1], self.lost - gain) -- gains pay for losses
end

--- Returns counts and the estimated gain.
-- @return {calls, drafted, accepted, speedup: the seconds of plain steps for the same tokens, divided by the seconds taken}
function Pace:stats()
  return {
    calls = self.calls, drafted = self.drafted, accepted = self.accepted,
    speedup = self.spent > 0 and (self.spent + self.saved) / self.spent or 1,
  }
end

return M
