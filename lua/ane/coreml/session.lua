--- Sessions on package sets: tokens in, logits out, the states of each package carried from call to call.
-- Needs ane.core, ane.coreml.calls and ane.util.units. Tokens are cut into calls of as many columns as the packages take; a call
-- runs them in order, each by the function for its columns and positions; what they need is told by roles.
-- Results do not depend on how tokens are cut into calls. States of convolutions forget: a rewind takes a snapshot from
-- before and feeds the tokens behind it again.

local calls = require "ane.coreml.calls"
local core = require "ane.core"
local units = require "ane.util.units"

local M = {}

-- Snapshots of states that forget, of the last calls.
local SNAPSHOTS = 16

local HIDDEN = -1e4 -- what hides a key: -inf would give NaN where all are hidden

local Session = {}
Session.__index = Session

local Program = {}
Program.__index = Program

-- ---- Inputs of a call ---------------------------------------------------------------------------------------------------

-- The shape of a port for n columns.
local function shape_for(port, n)
  local shape = {}
  for i, d in ipairs(port.shape) do shape[i] = d == -1 and n or d end
  return shape
end

-- cos or sin of the positions of n columns: [1, channels, n, 1].
local function rope_input(rope, fn, first, n, long)
  local values, magnitude = {}, rope.magnitude or 1
  for _, f in ipairs(long and rope.long_freq or rope.inv_freq) do
    for t = 0, n - 1 do values[#values + 1] = fn((first + t) * f) * magnitude end
  end
  return values
end

-- What is added to the scores of n queries from position `first` on: key j is seen from `low` to `high`. `known`: positions
-- that have keys; `from`: position of key 0.
local function mask_input(port, first, n, keys, known, from)
  local values = {}
  for t = first, first + n - 1 do
    local high = math.min(t + port.ahead, known - 1)
    local low = port.window > 0 and t - port.window + 1 or 0
    for j = from, from + keys - 1 do values[#values + 1] = j >= low and j <= high and 0 or HIDDEN end
  end
  return values
end

-- Columns [first, first + count) of a value with `n`, for a port.
local function cut(value, n, first, count, port)
  local shape = shape_for(port, count)
  if first == 0 and count == n then return value:reshape(shape) end
  return value:reshape({ #value // n, n }):slice(2, first + 1, first + count):reshape(shape)
end

-- A rope table or a mask, made once for all packages of a call that take the same one. f: the function that is called.
local function table_of(program, f, port, call)
  local shape, at = shape_for(port, call.count), call.length + call.first
  local key = ("%s %s %s %s %d %s"):format(port.role, port.rope, port.window, port.ahead, at, table.concat(shape, ","))
  if call.cache[key] then return call.cache[key] end
  local values
  if port.role == "mask" then
    local from = #f.states == 0 and call.length or 0 -- without states keys are the columns of the call
    values = mask_input(port, at, call.count, shape[4], call.length + call.n, from)
  else
    local rope = program.meta.ropes[port.rope + 1]
    local long = rope.long_freq and call.total > rope.original
    values = rope_input(rope, port.role == "rope_cos" and math.cos or math.sin, call.origin + at, call.count, long)
  end
  call.cache[key] = core.tensor(shape, values)
  return call.cache[key]
end

-- Everything a function takes in a call. `call`: {ids, n (columns with tokens), columns (with padding), first (column taken),
-- count, length, values, cache}
local function inputs_of(program, f, call)
  local inputs = {}
  for _, port in ipairs(f.inputs) do
    local role = port.role
    if role == "hidden" or role == "edge" then
      inputs[port.name] = cut(call.values[port.edge], call.columns, call.first, call.count, port)
    elseif role == "position" then
      inputs[port.name] = core.tensor({ 1 }, { call.length + call.first })
    elseif role == "ids" then
      local ids = table.move(call.ids, 1, call.n, 1, {})
      for t = call.n + 1, call.columns do ids[t] = 0 end
      inputs[port.name] = core.tensor({ 1, call.columns }, ids)
    else
      inputs[port.name] = table_of(program, f, port, call)
    end
  end
  return inputs
end

-- ---- A call -------------------------------------------------------------------------------------------------------------

-- Keeps what a head gave: rows of logits by slice, or the best of each column.
local function take_results(p, f, outputs, results)
  for _, port in ipairs(f.outputs) do
    local value = outputs[port.name]
    if port.role == "hidden" or port.role == "edge" then results.values[port.edge] = value
    elseif port.role == "logits" then table.insert(results.logits, value)
    elseif port.role == "argmax" then results.argmax = value
    elseif port.role == "max" then results.max = value end
  end
  if not results.argmax then return end
  local from = p.vocab_start or 0
  local max = results.max:reshape({ #results.max }):totable()
  for t = 1, #max do
    local best = results.best[t]
    if not best or max[t] > best.value then results.best[t] = { id = from + results.argmax[t], value = max[t] } end
  end
  results.argmax, results.max = nil, nil
end

-- Runs a package by the function for the call's columns.
local function run_package(self, i, p, call)
  local f = calls.function_for(p, call.count, call.length + call.first + call.count)
  if not f then return nil, ("%s: no function takes %d columns at %d"):format(p.path, call.count, call.length + call.first), "range" end
  local program, message, code = p.package:program(f.name)
  local outputs
  if program then outputs, message, code = program:run(inputs_of(self.program, f, call), self.states[i]) end
  if not outputs then return nil, ("%s: %s"):format(p.path, message), code end
  return outputs, f
end

-- Runs all packages on n tokens behind the session's, in one call of so many columns. want: as Session:feed; total: length after
-- the feed.
-- @return rows of results {logits, best, columns, count, skip}
local function run(self, ids, n, columns, want, total)
  local program = self.program
  local meta = program.meta
  local call = { ids = ids, n = n, columns = columns, first = 0, count = columns, length = self.len, total = total,
    origin = self.origin or 0, values = {}, cache = {} }
  if meta.embedding then call.values[meta.embedding] = meta.table:take(ids, columns, meta.embed_scale or 1) end
  local results = { values = call.values, logits = {}, best = {} }
  for i, p in ipairs(meta.packages) do
    if p.kind == "head" then
      if want == "none" then break end
      if want == "last" and program.heads_bend then call.first, call.count = n - 1, 1 end
    end
    local outputs, f, code = run_package(self, i, p, call)
    if not outputs then return nil, f, code end
    take_results(p, f, outputs, results)
  end
  if want == "none" then return { count = 0 } end
  local last = want == "last"
  return { -- `skip`: columns before the first row
    logits = results.logits, best = results.best, columns = call.count, count = last and 1 or n,
    skip = last and call.count > 1 and n - 1 or 0,
  }
end

-- The next call for n tokens. Near the end of the states the smallest one may have more columns than there are places: it then
-- begins earlier, with tokens that were fed before, whose keys and values come out the same. Convolutions cannot go back so.
-- @return columns, tokens of the n, tokens to be fed again; nil: no call fits
local function next_call(self, n)
  local program = self.program
  local room = program.meta.max_seq_len - self.len
  local columns, fed = calls.choose(program, n, room)
  if columns then return columns, fed, 0 end
  local back = program.meta.low - room
  if program.forgets or not program.has_state or room < 1 or back < 1 or back > self.len then return nil end
  return program.meta.low, math.min(n, room), back
end

-- Runs all tokens, call after call; the session's length goes with them.
-- @return list of rows of results, with `count`; or nil, message, code: then some may have been run
local function run_all(self, ids, want)
  local results, done, total, before = { count = 0 }, 0, self.total or self.len + #ids, self.len
  while done < #ids do
    local columns, n, back = next_call(self, #ids - done)
    if not columns then return nil, self.program:no_call(#ids - done, self.len), "range" end
    local fed = table.move(self.tokens, self.len - back + 1, math.min(self.len, before), 1, {})
    table.move(ids, done - (back - #fed) + 1, done + n, #fed + 1, fed)
    self.len = self.len - back
    local last = done + n == #ids
    local rows, message, code = run(self, fed, back + n, columns, want == "last" and not last and "none" or want, total)
    if not rows then return nil, message, code end
    if want == "all" then rows.count, rows.skip = rows.count - back, rows.skip + back end
    if rows.count > 0 then results[#results + 1], results.count = rows, results.count + rows.count end
    done, self.len = done + n, self.len + back + n
  end
  return results
end

-- ---- Sessions -----------------------------------------------------------------------------------------------------------

local function each_column_state(self, fn)
  for i, p in ipairs(self.program.meta.packages) do
    for _, s in ipairs(p.states) do
      if s.columns then fn(self.states[i], s.name, ("%d %s"):format(i, s.name)) end
    end
  end
end

local function snapshot(self)
  if not self.program.forgets then return end
  local shot = { length = self.len, tensors = {} }
  each_column_state(self, function(state, name, key) shot.tensors[key] = state:get(name) end)
  table.insert(self.shots, shot)
  if #self.shots > SNAPSHOTS then table.remove(self.shots, 1) end
end

local function reset(self)
  for _, state in pairs(self.states) do
    local ok, message, code = state:reset()
    if not ok then return nil, message, code end
  end
  self.len, self.shots, self.results = 0, {}, { count = 0 }
  return true
end

-- Is there memory for the states of one more session? They have their full size from the first token on, and a call holds up to a
-- third more for what it makes of them; a system that promises more than it has would end the process.
local function states_fit(program)
  local bytes = 0
  for _, p in ipairs(program.meta.packages) do
    for _, s in ipairs(p.states) do
      local n = 4
      for _, d in ipairs(s.shape) do n = n * d end
      bytes = bytes + n
    end
  end
  local free = core.memory().available
  if free == 0 or bytes + bytes // 3 < free then return true end
  return nil, ("the states of %d positions take %s, and %s of memory are free: export with a smaller context"):format(
    program.meta.max_seq_len, units.bytes(bytes), units.bytes(free)), "memory"
end

local function new_session(program, context)
  local fits, message, code = states_fit(program)
  if not fits then return nil, message, code end
  local self = setmetatable({
    program = program, most = context, len = 0, tokens = {}, states = {}, shots = {}, results = { count = 0 }, side = 0,
  }, Session)
  for i, p in ipairs(program.meta.packages) do
    if #p.states > 0 then
      local state
      state, message, code = p.package:state(p.functions[1].name)
      if not state then return nil, message, code end
      self.states[i] = state
    end
  end
  program.users = program.users + 1
  return self
end

-- How many ropes have changed to their long factors where the sequence has n tokens.
local function side_of(program, n)
  local side = 0
  for _, rope in ipairs(program.meta.ropes or {}) do
    if rope.long_freq and n > rope.original then side = side + 1 end
  end
  return side
end

local replay

-- Longrope turns all positions, those of cached keys too, by the factors for the whole length: where a call changes them, the
-- tokens so far are fed again.
local function turn(self, total)
  local side = side_of(self.program, total)
  if self.total or side == self.side then return true end
  local upto = self.len
  self.side = side
  if upto == 0 then return true end
  local ok, message, code = reset(self)
  if not ok then return nil, message, code end
  self.total = total
  ok, message, code = replay(self, upto)
  self.total = nil
  if not ok then self.broken, self.tokens = true, {} end
  return ok, message, code
end

--- Feeds tokens: true; or nil, message, code.
function Session:feed(ids, want)
  if math.type(ids) == "integer" then ids = { ids } end
  want = want or "last"
  local meta, n = self.program.meta, #ids
  if n < 1 or n > meta.high then return nil, ("%d tokens at once, wanted 1 .. %d"):format(n, meta.high), "invalid" end
  if self.len + n > self.most then
    return nil, ("%d tokens after %d do not fit in a context of %d"):format(n, self.len, self.most), "range"
  end
  if self.program.both_sides and self.len > 0 then
    return nil, ("%d tokens after %d: the packages keep nothing between calls"):format(n, self.len), "range"
  end
  if not next_call(self, n) then return nil, self.program:no_call(n, self.len), "range" end
  for i = 1, n do
    if ids[i] < 0 or ids[i] >= meta.vocab_size then return nil, ("id %d is not in 0 .. %d"):format(ids[i], meta.vocab_size - 1), "range" end
  end
  self.results = { count = 0 }
  if self.broken then
    local ok, message, code = reset(self)
    if not ok then return nil, message, code end
    self.broken = nil
  end
  local turned, why, word = turn(self, self.len + n)
  if not turned then return nil, why, word end
  local before = self.len
  local results, message, code = run_all(self, ids, want == "argmax" and "all" or want)
  if not results then
    self.len = before
    -- States of convolutions may be in the middle of an update; keys and values beyond the length are written again.
    if self.program.has_state then self.broken, self.tokens = true, {} end
    return nil, message, code
  end
  self.results = results
  table.move(ids, 1, n, before + 1, self.tokens)
  snapshot(self)
  return true
end

-- The rows of the call that gave row i, and the column there.
local function row_of(self, i)
  i = i or -1
  if i < 0 then i = self.results.count + 1 + i end
  if i < 1 or i > self.results.count then error(("no such row of logits: the last feed left %d"):format(self.results.count), 3) end
  for _, rows in ipairs(self.results) do
    if i <= rows.count then return rows, i + rows.skip end
    i = i - rows.count
  end
end

local function column(rows, t)
  local parts = {}
  for k, slice in ipairs(rows.logits) do
    local n = rows.columns
    if n > 1 then slice = slice:reshape({ #slice // n, n }):slice(2, t, t) end
    parts[k] = slice
  end
  if #parts == 1 then return parts[1]:reshape { #parts[1] } end
  for k, slice in ipairs(parts) do parts[k] = slice:tostring() end
  local bytes = table.concat(parts)
  return core.tensor({ #bytes // 4 }, bytes)
end

--- Logits of a row as a tensor.
function Session:logits(i)
  local rows, t = row_of(self, i)
  if #rows.logits == 0 then
    error("the packages give only the best token (they were exported with argmax): use temperature 0 and no logprobs", 3)
  end
  return column(rows, t)
end

--- Best token of a row and its logit.
function Session:argmax(i)
  local rows, t = row_of(self, i)
  local best = rows.best[t]
  if best then return best.id, best.value end
  return column(rows, t):argmax()
end

function Session:rows() return self.results.count end
function Session:length() return self.len end
function Session:context() return self.most end
function Session:replayed() return self.replays or 0 end
function Session:stop() self.stopping = true end

function Session:ids() return table.move(self.tokens, 1, self.len, 1, {}) end

--- Bytes of state that the tokens so far occupy.
function Session:kv_bytes()
  local sum = 0
  for _, p in ipairs(self.program.meta.packages) do
    for _, s in ipairs(p.states) do
      local n = 4
      for k, d in ipairs(s.shape) do n = n * (k == 3 and not s.columns and self.len or d) end
      sum = sum + (self.len > 0 and n or 0)
    end
  end
  return sum
end

-- Feeds tokens[from + 1 .. upto] again.
function replay(self, upto)
  local tokens, high = self.tokens, self.program.meta.high
  while self.len < upto do
    local n = math.min(high, upto - self.len)
    local ok, message, code = self:feed(table.move(tokens, self.len + 1, self.len + n, 1, {}), "none")
    if not ok then return nil, message, code end
    self.replays = (self.replays or 0) + n
  end
  return true
end

--- Forgets all; what is fed next is the part of a longer sequence that stands behind n tokens: its rope is turned as there.
-- For packages without states.
function Session:part(n)
  if self.program.has_state then return nil, "parts of sequences are for packages without states", "unsupported" end
  local ok, message, code = self:rewind(0)
  if ok then self.origin = n end
  return ok, message, code
end

--- Forgets the tokens from n on.
function Session:rewind(n)
  if n < 0 or n > self.len then return nil, ("length is %d, not in 0 .. %d"):format(n, self.len), "range" end
  self.results = { count = 0 }
  if n == self.len then return true end
  if not self.program.forgets then
    self.len = n
    return true
  end
  while #self.shots > 0 and self.shots[#self.shots].length > n do table.remove(self.shots) end
  local shot = self.shots[#self.shots]
  if n == 0 or not shot then
    local ok, message, code = reset(self)
    if not ok then return nil, message, code end
    return replay(self, n)
  end
  local failed, failure, code
  each_column_state(self, function(state, name, key)
    local ok, why, word = state:set(name, shot.tensors[key])
    if not ok then failed, failure, code = true, why, word end
  end)
  if failed then return nil, failure, code end
  self.len = shot.length
  return replay(self, n)
end

--- A second session with the same past.
function Session:fork()
  local other, message, code = new_session(self.program, self.most)
  if not other then return nil, message, code end
  for i, state in pairs(self.states) do
    other.states[i]:close()
    other.states[i], message, code = state:copy()
    if not other.states[i] then return nil, message, code end
  end
  other.side = self.side
  other.len, other.tokens, other.shots = self.len, self:ids(), table.move(self.shots, 1, #self.shots, 1, {})
  return other
end

-- ---- Files --------------------------------------------------------------------------------------------------------------

local MAGIC = "ane package session 1\n"

-- The used part of a state.
local function used(tensor, s, length)
  if s.columns then return tensor end
  return tensor:slice(3, 1, length)
end

--- Writes tokens and states.
function Session:save(path)
  local turned, message, code = turn(self, self.len) -- a rewind may have left keys of the other factors
  if not turned then return nil, message, code end
  local parts = { MAGIC, string.pack("<s4I4", self.program.fingerprint, self.len) }
  for i = 1, self.len do parts[#parts + 1] = string.pack("<i4", self.tokens[i]) end
  for i, p in ipairs(self.program.meta.packages) do
    for _, s in ipairs(p.states) do
      local bytes = self.len > 0 and used(self.states[i]:get(s.name), s, self.len):tostring() or ""
      parts[#parts + 1] = string.pack("<s4", bytes)
    end
  end
  return core.write_file(path, table.concat(parts))
end

local function parse(self, text, path)
  if text:sub(1, #MAGIC) ~= MAGIC then return nil, path .. ": no session of a package set" end
  local print_, length, at = string.unpack("<s4I4", text, #MAGIC + 1)
  if print_ ~= self.program.fingerprint then return nil, path .. ": the session belongs to another package set" end
  if length > self.most then return nil, ("%s: %d tokens do not fit in a context of %d"):format(path, length, self.most) end
  local found = { length = length, tokens = {}, states = {} }
  for i = 1, length do found.tokens[i], at = string.unpack("<i4", text, at) end
  for i, p in ipairs(self.program.meta.packages) do
    found.states[i] = {}
    for _, s in ipairs(p.states) do
      local bytes
      bytes, at = string.unpack("<s4", text, at)
      local n = 4
      for k, d in ipairs(s.shape) do n = n * (k == 3 and not s.columns and length or d) end
      if #bytes ~= (length > 0 and n or 0) then return nil, ("%s: state %s has %d bytes, wanted %d"):format(path, s.name, #bytes, n) end
      found.states[i][s.name] = bytes
    end
  end
  if at ~= #text + 1 then return nil, path .. ": more bytes than states" end
  return found
end

-- The whole state of its used part: zeros behind.
local function filled(s, bytes, length)
  if s.columns then return core.tensor(s.shape, bytes) end
  local rows, width = 1, s.shape[4] * 4
  for k = 1, 2 do rows = rows * s.shape[k] end
  local parts, rest = {}, ("\0"):rep((s.shape[3] - length) * width)
  for r = 0, rows - 1 do
    parts[#parts + 1] = bytes:sub(r * length * width + 1, (r + 1) * length * width)
    parts[#parts + 1] = rest
  end
  return core.tensor(s.shape, table.concat(parts))
end

--- Reads what save wrote. A failure leaves the session as it was.
function Session:restore(path)
  local text, message, code = core.read_file(path)
  if not text then return nil, message, code end
  local ok, found, why = pcall(parse, self, text, path)
  if not ok then return nil, path .. ": the file is cut", "state" end
  if not found then return nil, why, "state" end
  local ready, failed, word = reset(self)
  if not ready then return nil, failed, word end
  for i, p in ipairs(self.program.meta.packages) do
    for _, s in ipairs(p.states) do
      if found.length > 0 then
        ready, failed, word = self.states[i]:set(s.name, filled(s, found.states[i][s.name], found.length))
        if not ready then return nil, failed, word end
      end
    end
  end
  self.len, self.tokens, self.broken, self.side = found.length, found.tokens, nil, side_of(self.program, found.length)
  snapshot(self)
  return true
end

function Session:close()
  if not self.program then return end
  for _, state in pairs(self.states) do state:close() end
  self.states, self.shots = {}, {}
  self.program.users = self.program.users - 1
  self.program = nil
end
Session.__gc, Session.__close = Session.close, Session.close

-- ---- Programs -----------------------------------------------------------------------------------------------------------

function Program:session(opts) return new_session(self, opts.context or self.most) end
function Program:max_chunk() return math.min(self.meta.high, self.most) end
function Program:context() return self.most end
--- Why no call fits n tokens after `length`.
function Program:no_call(n, length)
  local low = self.meta.low
  if self.exact_calls and n < low then
    return ("a call takes %d columns, and states of convolutions allow no padding: %d tokens cannot be fed"):format(low, n)
  end
  local text = "a call takes %d columns, after %d tokens the states have room for %d"
  return text:format(low, length, self.meta.max_seq_len - length)
end
function Program:vocab() return self.meta.rows end
function Program:n_ids() return self.meta.vocab_size end
--- Does it make no difference how tokens are cut into calls? Not where rope depends on the length after the call: then also the
-- length at which it changes.
function Program:exact()
  local least
  for _, rope in ipairs(self.meta.ropes or {}) do
    if rope.long_freq then least = math.min(least or rope.original, rope.original) end
  end
  return least == nil, least
end

--- Several sequences, one after the other: items = list of {session of ane.generate.session, ids}.
function Program.run(_, items, want)
  for _, item in ipairs(items) do
    local ok, message, code = item[1]:feed(item[2], want)
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

--- What ane.model runs, of a checked set.
-- @param meta as ane.coreml.set reads it
-- @param facts context, text (of the meta file)
function M.program(meta, facts)
  local siphash = require "ane.util.siphash"
  local self = setmetatable({ meta = meta, most = facts.context, users = 0, heads_bend = true }, Program)
  self.fingerprint = ("%016x"):format(siphash.hash(siphash.key "package set", facts.text))
  for _, p in ipairs(meta.packages) do
    for _, s in ipairs(p.states) do self.has_state, self.forgets = true, self.forgets or s.columns end
    -- a head of a fixed number of columns takes all of them
    if p.kind == "head" then self.heads_bend = self.heads_bend and calls.takes(p, 1) end
  end
  self.both_sides = not self.has_state
  self.sizes, self.whole, self.exact_calls = meta.sizes, self.both_sides, self.forgets
  return self
end

return M
