--- One call of a package set: the inputs of each function, the order in which packages run, and their results.
-- Needs ane.core and ane.coreml.calls. Usage: `local row, message, code = call.run(session, ids, n, size, "last")`
--
-- A call has a size: the tokens that every function of it takes. Its first n are tokens of the sequence, the others are padding.
-- While it runs it is a table:
--   ids, n, size        token ids, how many are tokens, how many the call has with padding
--   types               token types, or nil: all 0
--   first, count        the part of the call that the next package takes: 0 and size, or the last token alone for a head
--   length, total       positions before the call; length after the whole feed, which chooses the factors of longrope
--   origin              position that rope gives to position 0
--   values              values by edge, from package to package
--   cache               rope tables and masks that several packages take

local calls = require "ane.coreml.calls"
local core = require "ane.core"

local M = {}

-- The mask value of a hidden key. -inf would give NaN where all keys are hidden.
local HIDDEN = -1e4

-- ---- Inputs -------------------------------------------------------------------------------------------------------------

-- The shape of a port for n tokens.
local function shape_for(port, n)
  local shape = {}
  for i, d in ipairs(port.shape) do shape[i] = d == -1 and n or d end
  return shape
end

-- Cosines or sines of n positions from `first` on: [1, channels, n, 1].
local function rope_input(rope, fn, first, n, long)
  local values, magnitude = {}, rope.magnitude or 1
  for _, f in ipairs(long and rope.long_freq or rope.inv_freq) do
    for t = 0, n - 1 do values[#values + 1] = fn((first + t) * f) * magnitude end
  end
  return values
end

-- The mask that is added to the scores of n queries from position `first` on. A query at position t sees the keys of positions
-- low .. high.
-- known: positions that have keys; from: position of key 0.
local function mask_input(port, first, n, keys, known, from)
  local values = {}
  for t = first, first + n - 1 do
    local high = math.min(t + port.ahead, known - 1)
    local low = port.window > 0 and t - port.window + 1 or 0
    for j = from, from + keys - 1 do values[#values + 1] = j >= low and j <= high and 0 or HIDDEN end
  end
  return values
end

-- Tokens [first, first + count) of a value of n tokens, in the shape of a port.
local function slice(value, n, first, count, port)
  local shape = shape_for(port, count)
  if first == 0 and count == n then return value:reshape(shape) end
  return value:reshape({ #value // n, n }):slice(2, first + 1, first + count):reshape(shape)
end

-- A rope table or a mask. It is made once and shared by all packages of a call that need the same one.
local function table_of(meta, f, port, call)
  local shape, at = shape_for(port, call.count), call.length + call.first
  local key = ("%s %s %s %s %d %s"):format(port.role, port.rope, port.window, port.ahead, at, table.concat(shape, ","))
  if call.cache[key] then return call.cache[key] end
  local values
  if port.role == "mask" then
    local from = #f.states == 0 and call.length or 0 -- without states the keys are those of the call
    values = mask_input(port, at, call.count, shape[4], call.length + call.n, from)
  else
    local rope = meta.ropes[port.rope + 1]
    local long = rope.long_freq and call.total > rope.original
    values = rope_input(rope, port.role == "rope_cos" and math.cos or math.sin, call.origin + at, call.count, long)
  end
  call.cache[key] = core.tensor(shape, values)
  return call.cache[key]
end

-- A whole number for each token of a call, [1, size]; 0 where the list has none.
local function padded(list, call)
  local numbers = {}
  for t = 1, call.size do numbers[t] = t <= call.n and list[t] or 0 end
  return core.tensor({ 1, call.size }, numbers)
end

-- All inputs of function f in a call: tensors by name.
local function inputs_of(meta, f, call)
  local inputs = {}
  for _, port in ipairs(f.inputs) do
    local role = port.role
    if role == "hidden" or role == "edge" then
      inputs[port.name] = slice(call.values[port.edge], call.size, call.first, call.count, port)
    elseif role == "position" then
      inputs[port.name] = core.tensor({ 1 }, { call.length + call.first })
    elseif role == "ids" then
      inputs[port.name] = padded(call.ids, call)
    elseif role == "types" then
      inputs[port.name] = padded(call.types or {}, call)
    else
      inputs[port.name] = table_of(meta, f, port, call)
    end
  end
  return inputs
end

-- ---- Running ------------------------------------------------------------------------------------------------------------

-- Updates the best id and logit of each token with one more slice of the head.
local function keep_best(results, argmax, max, from)
  max = max:reshape({ #max }):totable()
  for t = 1, #max do
    local best = results.best[t]
    if not best or max[t] > best.value then results.best[t] = { id = from + argmax[t], value = max[t] } end
  end
end

-- Stores the outputs of a package: values for later packages, slices of logits, or the best id of each token.
local function keep_outputs(p, f, outputs, results)
  local argmax, max
  for _, port in ipairs(f.outputs) do
    local value, role = outputs[port.name], port.role
    if role == "hidden" or role == "edge" then results.values[port.edge] = value
    elseif role == "logits" then table.insert(results.logits, value)
    elseif role == "argmax" then argmax = value
    elseif role == "max" then max = value end
  end
  if argmax then keep_best(results, argmax, max, p.vocab_start or 0) end
end

-- Runs package i, with the function that fits the call's tokens.
-- @return outputs by name, the function; or nil, message, code
local function run_package(session, i, p, call)
  local at = call.length + call.first
  local f = calls.function_for(p, call.count, at + call.count)
  if not f then return nil, ("%s: no function takes %d tokens at position %d"):format(p.path, call.count, at), "range" end
  local program, message, code = p.package:program(f.name)
  local outputs
  if program then outputs, message, code = program:run(inputs_of(session.engine.meta, f, call), session.hold.states[i]) end
  if not outputs then return nil, ("%s: %s"):format(p.path, message), code end
  return outputs, f
end

-- Runs the packages in order. Heads run only for the tokens whose logits are asked for.
-- @return {values, logits (list of slices), best}; or nil, message, code
local function run_packages(session, call, want)
  local program, results = session.engine, { values = call.values, logits = {}, best = {} }
  for i, p in ipairs(program.meta.packages) do
    if p.kind == "head" then
      if want == "none" then break end
      if want == "last" and program.heads_bend then call.first, call.count = call.n - 1, 1 end
    end
    local outputs, f, code = run_package(session, i, p, call)
    if not outputs then return nil, f, code end
    keep_outputs(p, f, outputs, results)
  end
  return results
end

--- Runs all packages on n tokens that follow those of the session.
-- @param size tokens of the call, padding included
-- @param want as in a session's feed: "none", "last" or "all"
-- @return {logits, best, size (tokens of each slice of logits), count (of rows), skip (tokens before the first row)}; or nil, message, code
function M.run(session, ids, n, size, want)
  local meta = session.engine.meta
  local call = { ids = ids, types = session.types, n = n, size = size, first = 0, count = size, length = session.len,
    total = session.settled, origin = session.origin, values = {}, cache = {} }
  if meta.embedding then call.values[meta.embedding] = meta.table:gather(ids, size, meta.embed_scale or 1) end
  local results, message, code = run_packages(session, call, want)
  if not results then return nil, message, code end
  if want == "none" then return { count = 0 } end
  local last = want == "last"
  return {
    logits = results.logits, best = results.best, size = call.count, count = last and 1 or n,
    skip = last and call.count > 1 and n - 1 or 0,
  }
end

return M
