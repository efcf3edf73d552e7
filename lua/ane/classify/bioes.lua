--- Spans from the scores of labels per token: the best path that BIOES allows (Viterbi).
-- Needs nothing. Labels: O, and for each kind B-kind (begin), I-kind (inside), E-kind (end), S-kind (single). B and I are
-- followed by I or E of their kind; O, E and S are followed by O, B or S of any kind. A text begins with O, B or S and ends with O,
-- E or S. BILOU's L and U are E and S; a kind without E may end anywhere (BIO).
-- Usage: `local d = bioes.decoder(bioes.grammar(labels)); d:push(row); ...; local spans = d:finish()`

local M = {}

local MARKS = { B = "B", I = "I", E = "E", S = "S", L = "E", U = "S" }

--- Reads label names.
-- @param labels list; index 1 is class 0
-- @return grammar {labels, outside = class of O (from 1), kinds = list of {name, B, I, E, S = classes}}; or nil, message, code
function M.grammar(labels)
  local g = { labels = labels, kinds = {} }
  local by_name = {}
  for class, label in ipairs(labels) do
    local mark, name = label:match "^(%u)[-_](.+)$"
    local role = MARKS[mark]
    if label == "O" then g.outside = class
    elseif role then
      local kind = by_name[name]
      if not kind then
        kind = { name = name }
        by_name[name], g.kinds[#g.kinds + 1] = kind, kind
      end
      kind[role] = class
    else
      return nil, ("label '%s' must be O, B-x, I-x, E-x or S-x"):format(label), "unsupported"
    end
  end
  if not g.outside then return nil, "there is no label O", "unsupported" end
  return g
end

-- Replaces NaN and minus infinity. Twice this value is finite.
local LEAST = -1e300

--- Log-softmax of a list of numbers.
function M.log_softmax(row)
  local most, out = LEAST, {}
  for i = 1, #row do
    local v = row[i]
    v = v > LEAST and math.min(v, -LEAST) or LEAST -- NaN compares false and becomes LEAST
    out[i], most = v, v > most and v or most
  end
  local sum = 0
  for i = 1, #row do sum = sum + math.exp(out[i] - most) end
  local z = most + math.log(sum)
  for i = 1, #row do out[i] = math.max(out[i] - z, LEAST) end
  return out
end

local Decoder = {}
Decoder.__index = Decoder

--- Makes a decoder, which takes tokens one by one and returns a span as soon as no later token can change it.
-- @param grammar see grammar()
function M.decoder(grammar)
  return setmetatable({
    g = grammar, score = nil, n = 0, first = 1, -- tokens pushed; the first undecided one
    back = {}, logp = {}, path = {}, open = nil, -- by token: best predecessor of each class; log probabilities; decided classes
  }, Decoder)
end

-- Calls fn(class) for each class that may end a text: O, and the last class of a span.
local function each_end(g, fn)
  fn(g.outside)
  for _, kind in ipairs(g.kinds) do
    if kind.S then fn(kind.S) end
    if kind.E then fn(kind.E) end
    if not kind.E then
      if kind.B then fn(kind.B) end
      if kind.I then fn(kind.I) end
    end
  end
end

local NEVER = -math.huge

-- The best class after which any span may begin; of equal ones the lower class.
local function best_end(g, score)
  local best, at = NEVER, nil
  each_end(g, function(class)
    if score[class] > best or (score[class] == best and at and class < at) then best, at = score[class], class end
  end)
  return best, at
end

--- Pushes the next token's logits, a list of one number per label.
function Decoder:push(row)
  local g, before = self.g, self.score
  local logp, score, back = M.log_softmax(row), {}, {}
  local free, from = 0.0, 0
  if before then free, from = best_end(g, before) end
  local function enter(class, value, at)
    if class then score[class], back[class] = value + logp[class], at end
  end
  enter(g.outside, free, from)
  for _, kind in ipairs(g.kinds) do
    local inside, at = NEVER, nil
    for _, class in ipairs { kind.B or false, kind.I or false } do
      if class and before and before[class] > inside then inside, at = before[class], class end
    end
    enter(kind.B, free, from)
    enter(kind.S, free, from)
    enter(kind.I, inside, at)
    enter(kind.E, inside, at)
  end
  self.n = self.n + 1
  self.score, self.back[self.n], self.logp[self.n] = score, back, logp
end

-- The classes of the undecided tokens on the best path to a class of the last token.
local function trace(self, class)
  local path = {}
  for t = self.n, self.first, -1 do
    path[t] = class
    class = self.back[t][class]
  end
  return path
end

-- Decides the classes of tokens up to `last`. Returns the spans that end there.
local function decide(self, path, last)
  local spans = {}
  for t = self.first, last do
    local class = path[t]
    local mark, name = self.g.labels[class]:match "^(%u)[-_](.+)$"
    local role = MARKS[mark]
    if self.open and role ~= "I" and role ~= "E" then -- only for kinds without E
      spans[#spans + 1], self.open = self.open, nil
    end
    if role == "B" or role == "S" then self.open = { label = name, first = t, last = t, sum = 0 } end
    if self.open then
      self.open.sum, self.open.last = self.open.sum + math.exp(self.logp[t][class]), t
      if role == "E" or role == "S" then spans[#spans + 1], self.open = self.open, nil end
    end
    self.back[t], self.logp[t] = nil, nil
  end
  self.first = last + 1
  for _, span in ipairs(spans) do span.score, span.sum = span.sum / (span.last - span.first + 1), nil end
  return spans
end

--- Returns the spans that no later token can change: all paths that can still win agree on them.
-- @return list of {label, first, last (tokens, from 1), score = mean probability of the path's classes}; and the number of
-- tokens that are decided; and their classes by token, since the last call
function Decoder:take()
  if self.n < self.first then return {}, self.n, {} end
  local common, agreed
  for class in pairs(self.g.labels) do
    if self.score[class] and self.score[class] > NEVER then
      local path = trace(self, class)
      if not common then common, agreed = path, self.n
      else
        while agreed >= self.first and path[agreed] ~= common[agreed] do agreed = agreed - 1 end
      end
    end
  end
  return decide(self, common, agreed), agreed, common
end

--- Ends the text and returns the remaining spans.
-- @return as take()
function Decoder:finish()
  if self.n < self.first then return {}, self.n, {} end
  local _, class = best_end(self.g, self.score)
  local path = trace(self, class)
  local spans = decide(self, path, self.n)
  if self.open then
    local open = self.open
    open.score, open.sum, self.open = open.sum / (open.last - open.first + 1), nil, nil
    spans[#spans + 1] = open
  end
  return spans, self.n, path
end

--- Returns the spans of a whole text.
-- @param grammar see grammar()
-- @param rows list of lists of logits
-- @return list of spans, as take() gives them; the class of each token
function M.decode(grammar, rows)
  local d = M.decoder(grammar)
  for i = 1, #rows do d:push(rows[i]) end
  local spans, _, path = d:finish()
  return spans, path
end

return M
