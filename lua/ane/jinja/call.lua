--- Calls: keyword arguments to positions, and the callables of a template.
-- Needs ane.jinja.limits and value. A signature is a table of fn(rt, self, ...), name, names (parameters by position), min and
-- max (numbers of arguments); with raw = true, fn takes (rt, self, args, n, kwargs).
-- Usage: `call.apply(rt, call.signature("center", "width fillchar", 1, fn), "x", { 5 }, 1)`

local limits = require "ane.jinja.limits"
local value = require "ane.jinja.value"

local fail = limits.fail

local M = {}

--- A signature. parameters: names in one text, "width fillchar"; the first `min` are required.
-- positional_only: keywords are a fault, as for C functions of Python.
function M.signature(name, parameters, min, fn, positional_only)
  local names = {}
  for parameter in parameters:gmatch("%S+") do names[#names + 1] = parameter end
  return { name = name, names = names, min = min, max = #names, fn = fn, positional_only = positional_only }
end

--- The signature of a builtin that checks its own arguments.
function M.raw(name, fn)
  return { name = name, fn = fn, raw = true }
end

local function position_of(spec, key)
  if not spec.positional_only then
    for i, name in ipairs(spec.names) do
      if name == key then return i end
    end
  end
  fail("type", "%s() got an unexpected keyword argument %s", spec.name, value.quote_brief(tostring(key)))
end

-- Positional arguments, with the keyword arguments at their positions.
local function merge(spec, args, n, kwargs)
  local all = table.move(args, 1, n, 1, {})
  for _, key in ipairs(kwargs.keys) do
    local i = position_of(spec, key)
    if all[i] ~= nil then fail("type", "%s() got multiple values for argument '%s'", spec.name, key) end
    all[i] = kwargs.map[key]
  end
  return all
end

--- Calls a builtin on self. kwargs is a dict or nil.
function M.apply(rt, spec, self, args, n, kwargs)
  limits.tick(rt)
  if spec.raw then return spec.fn(rt, self, args, n, kwargs) end
  if n > spec.max then fail("type", "%s() takes at most %d arguments (%d given)", spec.name, spec.max, n) end
  if kwargs and kwargs.keys[1] ~= nil then args = merge(spec, args, n, kwargs) end
  for i = 1, spec.min do
    if args[i] == nil then fail("type", "%s() missing required argument '%s'", spec.name, spec.names[i]) end
  end
  return spec.fn(rt, self, table.unpack(args, 1, spec.max))
end

--- A bound method: a builtin with its first argument, as a template value.
function M.bind(rt, spec, self)
  return value.new_func(rt, spec.name, function(budget, args, n, kwargs)
    return M.apply(budget, spec, self, args, n, kwargs)
  end)
end

--- Calls any value.
function M.call(rt, f, args, n, kwargs)
  limits.tick(rt)
  if type(f) == "table" then
    if f.call then return f.call(rt, args, n, kwargs) end
    if f.kind == "undefined" then value.use_undefined(f) end
  end
  fail("type", "'%s' object is not callable", value.typename(f))
end

--- An int argument, or the default when it is left out.
function M.integer(v, default)
  if v == nil then return default end
  local i = value.as_integer(v)
  if not i then
    if value.kind(v) == "undefined" then value.use_undefined(v) end
    fail("type", "'%s' object cannot be interpreted as an integer", value.typename(v))
  end
  return i
end

--- A str argument. When optional, None and a missing argument are nil.
function M.string(v, optional)
  if optional and (v == nil or v == value.NONE) then return nil end
  local s = v ~= nil and value.as_string(v)
  if not s then
    if value.kind(v) == "undefined" then value.use_undefined(v) end
    fail("type", "expected str, got %s", value.typename(v))
  end
  return s
end

return M
