--- Runs many sequences through a model, several in each run: the weights are read once for all of them.
-- Needs ane.util.empty_sessions, ane.util.failure and the model's program.
-- Usage: `local b <close> = batch.new(model, bundle); b:each(sequences, "all", function(i, session) ... end)`
--
-- Sequences are sorted by length, so that those of one run have similar lengths and sessions stay small.

local empty_sessions = require "ane.util.empty_sessions"
local failure = require "ane.util.failure"

local M = {}

-- Limits of a run: tokens and sequences. More tokens do not make a run faster, and their activations no longer fit the caches.
local MOST_TOKENS, MOST_SEQUENCES = 1024, 64

local Batch = {}
Batch.__index = Batch

--- A batch with its own sessions. Close it.
-- @param model, bundle a loaded model and its bundle
-- @param progress function(done), called after each run with the number of sequences that are done; it may yield. nil: none
function M.new(model, bundle, progress)
  local program = bundle.program
  local most = math.min(MOST_TOKENS, program:max_chunk())
  return setmetatable({
    model = model, program = program, sessions = empty_sessions.new(program, model.kv), most = most, progress = progress or function() end,
  }, Batch)
end

function Batch:close() self.sessions:close() end
Batch.__close = Batch.close

-- The last index, in the sorted order, of a run that begins at index `first`.
local function extent(self, sequences, order, first)
  local total, last = #sequences[order[first]].ids, first
  while last < #order and last - first + 1 < MOST_SEQUENCES do
    total = total + #sequences[order[last + 1]].ids
    if total > self.most then break end
    last = last + 1
  end
  return last
end

-- Runs the sequences order[first .. last]. A sequence longer than a run is fed in several runs.
local function run(self, sequences, order, first, last, want)
  if self.model.closed then return nil, failure.CLOSED, "state" end
  local ok, message, code = self.sessions:ready(last - first + 1, #sequences[order[first]].ids) -- the longest comes first
  if not ok then return nil, message, code end
  local one, chunk = sequences[order[first]], self.program:max_chunk()
  if #one.ids > chunk then
    for at = 1, #one.ids, chunk do
      local final = at + chunk > #one.ids
      local piece = table.move(one.ids, at, math.min(at + chunk - 1, #one.ids), 1, {})
      ok, message, code = self.sessions[1]:feed(piece, final and want or "none", #one.ids)
      if not ok then return nil, message, code end
      if not final then self.progress(first - 1) end
      if not final and self.model.closed then return nil, failure.CLOSED, "state" end
    end
    return true
  end
  local items = {}
  for i = first, last do
    local s = sequences[order[i]]
    items[#items + 1] = { self.sessions[i - first + 1], s.ids, s.types }
  end
  return self.program:run(items, want)
end

--- Runs all sequences.
-- @param sequences list of {ids = list, types = list of token types (nil: all 0)}; none empty
-- @param want "last" or "all": the output rows that sessions hold after each feed
-- @param each function(i, session): called once for each sequence, in any order
-- @return true; or nil, message, code
function Batch:each(sequences, want, each)
  local order = {}
  for i = 1, #sequences do order[i] = i end
  table.sort(order, function(a, b)
    local x, y = #sequences[a].ids, #sequences[b].ids
    if x ~= y then return x > y end
    return a < b
  end)
  local first = 1
  while first <= #order do
    local last = extent(self, sequences, order, first)
    local ok, message, code = run(self, sequences, order, first, last, want)
    if not ok then return nil, message, code end
    for i = first, last do each(order[i], self.sessions[i - first + 1]) end
    self.progress(last)
    first = last + 1
  end
  return true
end

return M
