--- The engine of package sets: it divides tokens into calls of packages and keeps the states of a sequence between calls.
-- Needs ane.coreml.call, ane.coreml.calls, ane.coreml.rows, ane.coreml.states, ane.generate.op_session and ane.util.siphash.
-- Usage: `local program = require("ane.coreml.session").program(meta, facts); local s = program:session()`
--
-- In a feed, calls.choose chooses the size of the next call. call.run runs the packages in order, each with its function for that
-- size; inputs are identified by their roles. States keep keys, values and rings; rows keep the logits. Results do not depend on
-- how tokens are divided into calls.

local call = require "ane.coreml.call"
local calls = require "ane.coreml.calls"
local op_session = require "ane.generate.op_session"
local rows = require "ane.coreml.rows"
local siphash = require "ane.util.siphash"
local states = require "ane.coreml.states"

local M = {}

local Program = {}
Program.__index = Program

-- ---- Calls --------------------------------------------------------------------------------------------------------------

-- The next call for n tokens. Near the end of the states the smallest call may be larger than the remaining room. It then begins
-- earlier and feeds some tokens again: their keys and values come out the same. Rings cannot be rewound like this.
-- @return size of the call, how many of the n tokens it takes, tokens to feed again before them; nil: no call fits
local function next_call(session, n)
  local program = session.engine
  local room = program.meta.max_seq_len - session.len
  local size, fed = calls.choose(program, n, room)
  if size then return size, fed, 0 end
  local back = program.meta.low - room
  if program.forgets or not program.fragile or room < 1 or back < 1 or back > session.len then return nil end
  return program.meta.low, math.min(n, room), back
end

-- ---- The engine ---------------------------------------------------------------------------------------------------------

function Program:open() return states.open(self) end

-- Explains why no call fits n tokens after `length`.
local function no_call(program, n, length)
  local low = program.meta.low
  if program.exact_calls and n < low then
    return ("a call takes %d tokens, and states of convolutions allow no padding: %d tokens cannot be fed"):format(low, n)
  end
  local text = "a call takes %d tokens, and after %d tokens the states have room for %d"
  return text:format(low, length, program.meta.max_seq_len - length)
end

function Program:check(session, n)
  if self.bidirectional and session.len > 0 then
    return nil, ("%d tokens cannot follow %d cached tokens: the packages keep no state between calls"):format(n, session.len), "range"
  end
  if next_call(session, n) then return true end
  return nil, no_call(self, n, session.len), "range"
end

-- The tokens of a call: `back` tokens that are fed again, then n of `ids` from `done` on. before: length before the feed.
local function tokens_of_call(session, before, ids, done, n, back)
  local fed = table.move(session.tokens, session.len - back + 1, math.min(session.len, before), 1, {})
  return table.move(ids, done - (back - #fed) + 1, done + n, #fed + 1, fed)
end

--- Runs tokens, call after call, and advances the session's length.
-- @return rows; or nil, message, code: some calls may have run by then
function Program:feed(session, ids, want)
  local results, done, before = rows.new(), 0, session.len
  if want == "argmax" then want = "all" end
  while done < #ids do
    local size, n, back = next_call(session, #ids - done)
    if not size then return nil, no_call(self, #ids - done, session.len), "range" end
    local fed = tokens_of_call(session, before, ids, done, n, back)
    session.len = session.len - back
    local last = done + n == #ids
    local made, message, code = call.run(session, fed, back + n, size, want == "last" and not last and "none" or want)
    if not made then return nil, message, code end
    if want == "all" then made.count, made.skip = made.count - back, made.skip + back end
    if made.count > 0 then results[#results + 1], results.count = made, results.count + made.count end
    done, session.len = done + n, session.len + back + n
  end
  results.no_logits = results[1] and #results[1].logits == 0
  return results
end

--- The number of ropes that use their long factors in a sequence of `total` tokens. These rotate all positions, those of cached
-- keys too.
function Program:rope_factors(total)
  local n = 0
  for _, rope in ipairs(self.meta.ropes or {}) do
    if rope.long_freq and total > rope.original then n = n + 1 end
  end
  return n
end

-- ---- Programs -----------------------------------------------------------------------------------------------------------

function Program:session() return op_session.open(self) end
function Program:max_chunk() return math.min(self.meta.high, self.most) end
function Program:context() return self.most end
function Program:vocab() return self.meta.rows end
function Program:n_ids() return self.meta.vocab_size end
--- Are results independent of how tokens are divided into calls? They depend on it if rope depends on the length after the call,
-- or if a state is recurrent: the tokens of a call are one chunk, after which it is rounded.
-- @return boolean; the length at which the rope changes, or nil
function Program:exact()
  local least
  for _, rope in ipairs(self.meta.ropes or {}) do
    if rope.long_freq then least = math.min(least or rope.original, rope.original) end
  end
  return least == nil and not self.chunks, least
end

--- Runs several sequences, one after the other: items = list of {session of ane.generate.session, ids, token types (nil: all 0)}.
function Program.run(_, items, want)
  for _, item in ipairs(items) do
    item[1].types = item[3]
    local ok, message, code = item[1]:feed(item[2], want)
    item[1].types = nil
    if not ok then return nil, message, code end
  end
  return true
end

function Program:info()
  local weights, constants, nodes, first = 0, 0, 0, nil
  for _, p in ipairs(self.meta.packages) do
    local info = p.program:info()
    first = first or info
    weights, constants, nodes = weights + info.weight_bytes, constants + info.constant_bytes, nodes + info.nodes
  end
  return {
    isa = first.isa, threads = first.threads, activations = "fp32", engine = "packages", context = self.most, chunk = self:max_chunk(),
    vocab = self.meta.rows, weight_bytes = weights, scratch_bytes = constants, steps = nodes, packages = #self.meta.packages,
  }
end

function Program:dump()
  local parts = {}
  for i, p in ipairs(self.meta.packages) do parts[i] = ("# %s\n%s"):format(p.path, p.program:dump()) end
  return table.concat(parts, "\n")
end

function Program:close()
  for _, pkg in ipairs(self.meta.opened) do pkg:close() end
  if self.meta.table then self.meta.table:close() end
end

--- The program that ane.model runs, from a checked set.
-- @param meta as ane.coreml.set reads it
-- @param facts context, text (of the meta file), opts (precision, isa, backend)
function M.program(meta, facts)
  local opts = facts.opts
  local made_by = ("%s %s %s\n%s"):format(opts.precision or "fp32", opts.isa, opts.backend or "cpu", facts.text)
  local self = setmetatable({
    name = "packages", fingerprint = siphash.hash(siphash.key "package set", made_by), meta = meta, most = facts.context,
    states = states.list(meta), heads_bend = true, sizes = meta.sizes,
  }, Program)
  for _, entry in ipairs(self.states) do
    self.fragile, self.forgets = true, self.forgets or not entry.grows
    self.chunks = self.chunks or entry.state.role == "recurrent"
  end
  for _, p in ipairs(meta.packages) do
    -- a head with a fixed number of tokens takes all tokens of a call
    if p.kind == "head" then self.heads_bend = self.heads_bend and calls.takes(p, 1) end
  end
  self.bidirectional = not self.fragile
  self.whole, self.exact_calls = self.bidirectional, self.forgets
  return self
end

return M
