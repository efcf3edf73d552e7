--- The engine of package sets: how tokens become calls of packages, and what a sequence keeps between calls.
-- Needs ane.core, ane.coreml.calls, ane.generate.op_session, ane.util.siphash and ane.util.units. Tokens are cut into calls of as
-- many columns as the packages take. A call runs the packages in order, each by the function for its columns and positions; roles
-- say what its inputs are. Results do not depend on how tokens are cut into calls.
-- Usage: `local program = require("ane.coreml.session").program(meta, facts); local s = program:session()`

local calls = require "ane.coreml.calls"
local core = require "ane.core"
local op_session = require "ane.generate.op_session"
local siphash = require "ane.util.siphash"
local units = require "ane.util.units"

local M = {}

local HIDDEN = -1e4 -- what hides a key: -inf would give NaN where all are hidden

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
local function run_package(session, i, p, call)
  local f = calls.function_for(p, call.count, call.length + call.first + call.count)
  if not f then return nil, ("%s: no function takes %d columns at %d"):format(p.path, call.count, call.length + call.first), "range" end
  local program, message, code = p.package:program(f.name)
  local outputs
  if program then outputs, message, code = program:run(inputs_of(session.engine, f, call), session.hold.states[i]) end
  if not outputs then return nil, ("%s: %s"):format(p.path, message), code end
  return outputs, f
end

-- Runs all packages on n tokens behind the session's, in one call of so many columns.
-- @param want as of a session's feed
-- @return rows of one call {logits, best, columns, count, skip (columns before the first row)}; or nil, message, code
local function run_call(session, ids, n, columns, want)
  local program = session.engine
  local meta = program.meta
  local call = { ids = ids, n = n, columns = columns, first = 0, count = columns, length = session.len, total = session.settled,
    origin = session.origin, values = {}, cache = {} }
  if meta.embedding then call.values[meta.embedding] = meta.table:take(ids, columns, meta.embed_scale or 1) end
  local results = { values = call.values, logits = {}, best = {} }
  for i, p in ipairs(meta.packages) do
    if p.kind == "head" then
      if want == "none" then break end
      if want == "last" and program.heads_bend then call.first, call.count = n - 1, 1 end
    end
    local outputs, f, code = run_package(session, i, p, call)
    if not outputs then return nil, f, code end
    take_results(p, f, outputs, results)
  end
  if want == "none" then return { count = 0 } end
  local last = want == "last"
  return {
    logits = results.logits, best = results.best, columns = call.count, count = last and 1 or n,
    skip = last and call.count > 1 and n - 1 or 0,
  }
end

-- The next call for n tokens. Near the end of the states the smallest one may have more columns than there are places: it then
-- begins earlier, with tokens that were fed before, whose keys and values come out the same. Convolutions cannot go back so.
-- @return columns, tokens of the n, tokens to be fed again; nil: no call fits
local function next_call(session, n)
  local program = session.engine
  local room = program.meta.max_seq_len - session.len
  local columns, fed = calls.choose(program, n, room)
  if columns then return columns, fed, 0 end
  local back = program.meta.low - room
  if program.forgets or not program.fragile or room < 1 or back < 1 or back > session.len then return nil end
  return program.meta.low, math.min(n, room), back
end

-- ---- Rows ---------------------------------------------------------------------------------------------------------------

local Rows = {}
Rows.__index = Rows

-- The call that gave row i, and the column there.
local function call_of(self, i)
  for _, rows in ipairs(self) do
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

function Rows:logits(i)
  local rows, t = call_of(self, i)
  if self.no_logits then
    error("the packages give only the best token (they were exported with argmax): use temperature 0 and no logprobs", 4)
  end
  return column(rows, t)
end

function Rows:argmax(i)
  local rows, t = call_of(self, i)
  local best = rows.best[t]
  if best then return best.id, best.value end
  return column(rows, t):argmax()
end

-- ---- States -------------------------------------------------------------------------------------------------------------

-- The states of one sequence: `states` by package. Those that grow have their full size from the first token on; what lies beyond
-- the length is never seen.
local Hold = {}
Hold.__index = Hold

-- Elements of a state after `length` tokens.
local function count_of(s, length)
  local n = 1
  for k, d in ipairs(s.shape) do n = n * (k == 3 and not s.columns and length or d) end
  return n
end

-- All states of a set: the package, and how it names and shapes the state.
local function list_states(meta)
  local list = {}
  for i, p in ipairs(meta.packages) do
    for _, s in ipairs(p.states) do
      list[#list + 1] = {
        name = ("%d %s"):format(i, s.name), grows = not s.columns, count = function(length) return count_of(s, length) end,
        package = i, state = s,
      }
    end
  end
  return list
end

-- A whole state of its used part: zeros behind.
local function filled(s, bytes, length)
  local rows, width = 1, s.shape[4] * 4
  for k = 1, 2 do rows = rows * s.shape[k] end
  local parts, rest = {}, ("\0"):rep((s.shape[3] - length) * width)
  for r = 0, rows - 1 do
    parts[#parts + 1] = bytes:sub(r * length * width + 1, (r + 1) * length * width)
    parts[#parts + 1] = rest
  end
  return core.tensor(s.shape, table.concat(parts))
end

function Hold:get(i, length)
  local entry = self.program.states[i]
  local tensor = self.states[entry.package]:get(entry.state.name)
  return entry.grows and tensor:slice(3, 1, length) or tensor
end

function Hold:put(length, tensors)
  for i, tensor in pairs(tensors) do
    local entry = self.program.states[i]
    local s = entry.state
    local whole = entry.grows and filled(s, tensor:tostring(), length) or tensor:reshape(s.shape)
    local ok, message, code = self.states[entry.package]:set(s.name, whole)
    if not ok then return nil, message, code end
  end
  return true
end

function Hold:reset()
  for _, state in pairs(self.states) do
    local ok, message, code = state:reset()
    if not ok then return nil, message, code end
  end
  return true
end

function Hold:close()
  for _, state in pairs(self.states) do state:close() end
  self.states = {}
end

-- Is there memory for the states of one more session? They have their full size from the first token on, and a call holds up to a
-- third more for what it makes of them; a system that promises more than it has would end the process.
local function states_fit(program)
  local bytes = 0
  for _, entry in ipairs(program.states) do bytes = bytes + 4 * entry.count(program.meta.max_seq_len) end
  local free = core.memory().available
  if free == 0 or bytes + bytes // 3 < free then return true end
  return nil, ("the states of %d positions take %s, and %s of memory are free: export with a smaller context"):format(
    program.meta.max_seq_len, units.bytes(bytes), units.bytes(free)), "memory"
end

-- A hold whose states make(i) gives, for each package that has some.
local function new_hold(program, make)
  local fits, message, code = states_fit(program)
  if not fits then return nil, message, code end
  local self = setmetatable({ program = program, states = {} }, Hold)
  for i, p in ipairs(program.meta.packages) do
    if #p.states > 0 then
      self.states[i], message, code = make(i, p)
      if not self.states[i] then
        self:close()
        return nil, message, code
      end
    end
  end
  return self
end

function Hold:copy()
  return new_hold(self.program, function(i) return self.states[i]:copy() end)
end

-- ---- The engine ---------------------------------------------------------------------------------------------------------

function Program:open()
  return new_hold(self, function(_, p) return p.package:state(p.functions[1].name) end)
end

-- Why no call fits n tokens after `length`.
local function no_call(program, n, length)
  local low = program.meta.low
  if program.exact_calls and n < low then
    return ("a call takes %d columns, and states of convolutions allow no padding: %d tokens cannot be fed"):format(low, n)
  end
  local text = "a call takes %d columns, after %d tokens the states have room for %d"
  return text:format(low, length, program.meta.max_seq_len - length)
end

function Program:check(session, n)
  if self.bidirectional and session.len > 0 then
    return nil, ("%d tokens after %d: the packages keep nothing between calls"):format(n, session.len), "range"
  end
  if next_call(session, n) then return true end
  return nil, no_call(self, n, session.len), "range"
end

--- Runs tokens, call after call; the session's length goes with them.
-- @return rows; or nil, message, code: then some may have been run
function Program:feed(session, ids, want)
  local results, done, before = setmetatable({ count = 0 }, Rows), 0, session.len
  if want == "argmax" then want = "all" end
  while done < #ids do
    local columns, n, back = next_call(session, #ids - done)
    if not columns then return nil, no_call(self, #ids - done, session.len), "range" end
    local fed = table.move(session.tokens, session.len - back + 1, math.min(session.len, before), 1, {})
    table.move(ids, done - (back - #fed) + 1, done + n, #fed + 1, fed)
    session.len = session.len - back
    local last = done + n == #ids
    local rows, message, code = run_call(session, fed, back + n, columns, want == "last" and not last and "none" or want)
    if not rows then return nil, message, code end
    if want == "all" then rows.count, rows.skip = rows.count - back, rows.skip + back end
    if rows.count > 0 then results[#results + 1], results.count = rows, results.count + rows.count end
    done, session.len = done + n, session.len + back + n
  end
  results.no_logits = results[1] and #results[1].logits == 0
  return results
end

--- How many ropes have long factors where the sequence has `total` tokens. They turn all positions, those of cached keys too.
function Program:side(total)
  local side = 0
  for _, rope in ipairs(self.meta.ropes or {}) do
    if rope.long_freq and total > rope.original then side = side + 1 end
  end
  return side
end

-- ---- Programs -----------------------------------------------------------------------------------------------------------

function Program:session() return op_session.open(self) end
function Program:max_chunk() return math.min(self.meta.high, self.most) end
function Program:context() return self.most end
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
-- @param facts context, text (of the meta file), opts (precision, isa, backend)
function M.program(meta, facts)
  local opts = facts.opts
  local made_by = ("%s %s %s\n%s"):format(opts.precision or "fp32", opts.isa, opts.backend or "cpu", facts.text)
  local self = setmetatable({
    name = "packages", fingerprint = siphash.hash(siphash.key "package set", made_by), meta = meta, most = facts.context,
    states = list_states(meta), heads_bend = true, sizes = meta.sizes,
  }, Program)
  for _, entry in ipairs(self.states) do self.fragile, self.forgets = true, self.forgets or not entry.grows end
  for _, p in ipairs(meta.packages) do
    -- a head of a fixed number of columns takes all of them
    if p.kind == "head" then self.heads_bend = self.heads_bend and calls.takes(p, 1) end
  end
  self.bidirectional = not self.fragile
  self.whole, self.exact_calls = self.bidirectional, self.forgets
  return self
end

return M
