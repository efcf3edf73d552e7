--- `ane predict`: runs a Core ML package or a Core AI asset on the calls of a case file.
-- Needs ane.cli.common, ane.cli.options, ane.core, ane.util.failure, ane.util.keys, ane.util.units and ane.coreml.package.
-- A case: {calls = [{inputs = {name = {shape, dtype, data}}, outputs, state, reset_state, function, silent}], tolerance = {atol, rtol},
-- tolerance_fp16}. Calls with the same `state` share one set of states. An input {call = number, output = name} is what an earlier call
-- gave (calls are numbered from 1). The outputs that a call lists are compared; a silent call writes no others. null is the same as an
-- absent key. A call may have a name and a description; the case, any other keys. Other keys of a call, an input or an output are errors.

local core = require "ane.core"
local common = require "ane.cli.common"
local failure = require "ane.util.failure"
local keys = require "ane.util.keys"
local options = require "ane.cli.options"
local units = require "ane.util.units"

local M = {}

M.summary = "Run a Core ML package or a Core AI asset on the calls of a case file."

function M.options(parser)
  options.file(parser, "package", "Folder of the .mlpackage or .aimodel.")
  options.file(parser, "case", 'JSON file; - is standard input: {"calls": [{"inputs": {NAME: {"shape": [...], "data": [...]}}, '
    .. '"outputs": expected outputs, "state": NAME, "reset_state": true, "function": NAME, "silent": true}], "tolerance": {"atol": X, '
    .. '"rtol": X}}; only inputs are required. An input {"call": N, "output": NAME} is an output of call N, counted from 1.')
  parser:option("--precision", "fp32 computes without rounding to fp16; fp16 rounds every result of type fp16.")
    :choices { "fp32", "fp16" }:default "fp32"
  parser:option("--function", "Function of calls that name none; default: the package's own default."):argname "NAME"
  options.add(parser, "--run-memory", "Maximum memory for the states and values of runs: 2G, 512M; default: half of the free memory.",
    units.bytes_rule):argname "SIZE"
  options.threads(parser)
  options.progress(parser)
  options.json(parser)
end

local CALL = {
  inputs = true, outputs = true, state = true, reset_state = true, ["function"] = true, silent = true, name = true, description = true,
}
local VALUE = { shape = true, dtype = true, data = true }
local TOLERANCE = { atol = true, rtol = true }
local REFERENCE = { call = true, output = true }

-- What is wrong with the names of an object, or nil. Lists have none.
local function fault_of_keys(object, known)
  for _, key in ipairs(keys(object)) do
    if type(key) == "string" and not known[key] then
      return ("unknown key \"%s\"; known are: %s"):format(key, table.concat(keys(known), ", "))
    end
  end
end

-- What is wrong with a tolerance of the case, or nil.
local function fault_of_tolerance(case)
  for _, key in ipairs { "tolerance", "tolerance_fp16" } do
    local t = case[key]
    if t ~= nil and t ~= core.null then
      if type(t) ~= "table" or t[1] ~= nil then return key .. ": must be {atol, rtol}" end
      local fault = fault_of_keys(t, TOLERANCE)
      if fault then return ("%s: %s"):format(key, fault) end
      for _, name in ipairs(keys(t)) do
        if type(t[name]) ~= "number" then return ("%s: %s is not a number"):format(key, name) end
      end
    end
  end
end

local function read_case(path)
  local name = common.name_of(path)
  local text, message = common.read(path)
  if not text then return nil, message end
  local case, fault = core.json_decode(text)
  if case == nil then return nil, ("%s: %s"):format(name, fault) end
  if type(case) ~= "table" or type(case.calls) ~= "table" or #case.calls == 0 then
    return nil, name .. ": must be an object with a list `calls`"
  end
  fault = fault_of_tolerance(case)
  if fault then return nil, ("%s: %s"):format(name, fault) end
  return case
end

-- Numbers of a result in row-major order.
local function numbers(result)
  if type(result) == "userdata" then return result:reshape({ #result }):totable() end
  local list = {}
  for i, v in ipairs(result) do list[i] = type(v) == "boolean" and (v and 1 or 0) or v end
  return list
end

local function shape_of(result)
  return type(result) == "userdata" and result:shape() or result.shape
end

local function same_shape(a, b)
  if type(b) ~= "table" or #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- The largest error of a result, and whether it is within the tolerance: |got - want| <= atol + rtol |want|; integers must be equal.
local function compare(got, want, exact, tolerance)
  local worst, ok = 0, #got == #want
  for i = 1, math.min(#got, #want) do
    local expected = want[i]
    if type(expected) == "boolean" then expected = expected and 1 or 0 end
    if type(expected) ~= "number" then return worst, false end
    local d = math.abs(got[i] - expected)
    if d ~= d then d = math.huge end
    worst = math.max(worst, d)
    local allowed = exact and 0 or tolerance.atol + tolerance.rtol * math.abs(expected)
    if d > allowed and got[i] ~= expected then ok = false end
  end
  return worst, ok
end

-- The tolerance of the case at this precision.
local function tolerance_of(case, precision)
  local t = precision == "fp16" and case.tolerance_fp16 or case.tolerance
  t = type(t) == "table" and t or {}
  return { atol = tonumber(t.atol) or 1e-4, rtol = tonumber(t.rtol) or 1e-4 }
end

-- One output for the result, with the comparison if the call gives expected values.
local function describe(result, want, tolerance)
  local data = numbers(result)
  local out = { shape = common.list(shape_of(result)), data = common.list(data) }
  if want then
    local exact = type(result) ~= "userdata"
    out.max_abs_err, out.ok = compare(data, want.data, exact, tolerance)
    if not same_shape(out.shape, want.shape) then out.ok, out.wanted_shape = false, common.list(want.shape) end
  end
  return out
end

-- ---- Calls ---------------------------------------------------------------------------------------------------------------

-- A copy without the keys that are null.
local function without_null(t)
  local out = {}
  for key, value in pairs(t) do
    if value ~= core.null then out[key] = value end
  end
  return out
end

local function all_are(kind, list)
  for _, v in ipairs(list) do
    if math.type(v) ~= kind and type(v) ~= kind and not (kind == "number" and type(v) == "boolean") then return false end
  end
  return true
end

-- What is wrong with the outputs that a call expects, or nil.
local function fault_of_outputs(outputs)
  if type(outputs) ~= "table" or outputs[1] ~= nil then return "outputs: must be an object of {shape, data} by name" end
  for name, want in pairs(outputs) do
    local ok = type(want) == "table" and type(want.shape) == "table" and type(want.data) == "table" and all_are("integer", want.shape)
      and all_are("number", want.data)
    if not ok then return ("output %s: must be {shape, data} with lists of numbers"):format(name) end
    local fault = fault_of_keys(want, VALUE)
    if fault then return ("output %s: %s"):format(name, fault) end
  end
end

local function is_reference(value) return type(value) == "table" and value.call ~= nil and value.data == nil end

-- What is wrong with the names of the objects among the inputs, or nil.
local function fault_of_inputs(inputs)
  for _, name in ipairs(keys(inputs)) do
    local value = inputs[name]
    local fault = type(value) == "table" and fault_of_keys(value, is_reference(value) and REFERENCE or VALUE)
    if fault then return ("input %s: %s"):format(name, fault) end
  end
end

-- A call with all its parts of the right type; or nil, message.
local function read_call(call)
  if type(call) ~= "table" then return nil, "must be an object with `inputs`" end
  call = without_null(call)
  if type(call.inputs) ~= "table" then return nil, "must be an object with `inputs`" end
  if call["function"] ~= nil and type(call["function"]) ~= "string" then return nil, "function is not a name" end
  if call.state ~= nil and type(call.state) ~= "string" and type(call.state) ~= "number" then return nil, "state is not a name" end
  for _, key in ipairs { "reset_state", "silent" } do
    if call[key] ~= nil and type(call[key]) ~= "boolean" then return nil, key .. " is neither true nor false" end
  end
  call.inputs = without_null(call.inputs)
  local fault = fault_of_keys(call, CALL) or fault_of_inputs(call.inputs) or call.outputs ~= nil and fault_of_outputs(call.outputs)
  if fault then return nil, fault end
  return call
end

-- ---- Outputs of earlier calls -----------------------------------------------------------------------------------------------

-- The outputs that later calls take: kept[number of a call][name] = true, replaced by the result when the call has run.
local function references_of(calls)
  local kept = {}
  for _, call in ipairs(calls) do
    for _, value in pairs(type(call) == "table" and type(call.inputs) == "table" and call.inputs or {}) do
      if is_reference(value) and type(value.output) == "string" then
        kept[value.call] = kept[value.call] or {}
        kept[value.call][value.output] = true
      end
    end
  end
  return kept
end

-- Replaces references among the inputs of call `number` by the results. Returns inputs; or nil, message.
local function resolved(inputs, number, kept)
  local out = {}
  for name, value in pairs(inputs) do
    if is_reference(value) then
      if math.type(value.call) ~= "integer" or value.call < 1 or value.call >= number or type(value.output) ~= "string" then
        return nil, ("input %s: must be {call, output} with the number of an earlier call, from 1, and the name of an output"):format(name)
      end
      local result = kept[value.call][value.output]
      if result == true then return nil, ("input %s: call %d has no output \"%s\""):format(name, value.call, value.output) end
      value = result
    end
    out[name] = value
  end
  return out
end

-- Does a function have states?
local function has_states(info, name)
  for _, f in ipairs(info.functions) do
    if f.name == name then return #f.states > 0 end
  end
  return false -- predict names the function that is not there
end

-- The set of states for a call of function `name`; nil if the function has none; or nil, message. The first call of a function
-- with states makes the set.
-- @param states {info (of the package), by_key, kept (see references_of)}
local function state_of(pkg, states, call, name)
  local key = call.state == nil and "default" or call.state
  local state = states.by_key[key]
  if not has_states(states.info, name) then return nil end
  if not state then
    local message
    state, message = pkg:state(name)
    if not state then return nil, message end
    states.by_key[key] = state
  elseif call.reset_state then
    local ok, message = state:reset()
    if not ok then return nil, message end
  end
  return state
end

-- Runs call `number`; its outputs as they are written.
local function run_call(pkg, call, number, states, args, tolerance)
  local message
  call, message = read_call(call)
  if not call then return nil, message end
  local inputs, state
  inputs, message = resolved(call.inputs, number, states.kept)
  if not inputs then return nil, message end
  local f = call["function"] or args["function"] or states.info.default_function
  state, message = state_of(pkg, states, call, f)
  if message then return nil, message end
  local called, outputs, failed = pcall(pkg.predict, pkg, inputs, state, { ["function"] = f })
  if not called and failure.is_interrupt(outputs) then error(outputs, 0) end
  if not called then return nil, outputs end
  if not outputs then return nil, failed end
  local wanted, out = call.outputs or {}, {}
  for name, result in pairs(outputs) do
    if states.kept[number] and states.kept[number][name] then states.kept[number][name] = result end
    if wanted[name] or not call.silent then out[name] = describe(result, wanted[name], tolerance) end
  end
  for name in pairs(wanted) do
    if not out[name] then return nil, ("the package has no output \"%s\""):format(name) end
  end
  return out
end

local function show(calls)
  for i, call in ipairs(calls) do
    for _, name in ipairs(keys(call.outputs)) do
      local o = call.outputs[name]
      local verdict = o.ok == nil and "" or (", largest error %.3g: %s"):format(o.max_abs_err, o.ok and "ok" or "too large")
      if o.wanted_shape then verdict = (", but the shape must be [%s]"):format(table.concat(o.wanted_shape, ", ")) end
      local first = {}
      for k = 1, math.min(6, #o.data) do first[k] = ("%.6g"):format(o.data[k]) end
      io.stdout:write(("call %d: %s [%s] = %s%s%s\n"):format(i, name, table.concat(o.shape, ", "), table.concat(first, " "),
        #o.data > 6 and " ..." or "", verdict))
    end
  end
end

--- A wrong output is a failure, whose exit code is 1. With --json all outputs are written too, and `ok` says whether they are right.
function M.run(args)
  local case, message = read_case(args.case)
  if not case then return nil, message end
  local path, several = common.package_path(args.package)
  if not path then return nil, several end
  local pkg <close>, failed = require("ane.coreml.package").open(path, {
    precision = args.precision, threads = args.threads, run_memory = args.run_memory, progress = common.progress(args),
  })
  if not pkg then return nil, failed end
  local calls, tolerance, all = {}, tolerance_of(case, args.precision), true
  local states = { info = pkg:info(), by_key = {}, kept = references_of(case.calls) }
  for i, call in ipairs(case.calls) do
    local outputs, why = run_call(pkg, call, i, states, args, tolerance)
    if not outputs then return nil, ("%s: call %d: %s"):format(common.name_of(args.case), i, why) end
    for _, o in pairs(outputs) do all = all and o.ok ~= false end
    calls[i] = { outputs = outputs }
  end
  if args.json then common.print_json { calls = common.list(calls), ok = all } else show(calls) end
  if all then return true end
  return nil, "an output differs from the expected one"
end

return M
