--- The global functions of a chat template: those of jinja2 and those that transformers adds.
-- Needs ane.jinja.call, clock, limits and value. `dict` and `namespace` follow the versions of transformers.
-- Usage: `globals.new(now).range`

local call = require "ane.jinja.call"
local clock = require "ane.jinja.clock"
local limits = require "ane.jinja.limits"
local value = require "ane.jinja.value"

local fail = limits.fail

local M = {}

local function range_size(start, stop, step)
  if step > 0 then return start < stop and (stop - start - 1) // step + 1 or 0 end
  return start > stop and (start - stop - 1) // -step + 1 or 0
end

local BIGGEST = 1 << 62

local function range(rt, args, n, kwargs)
  if kwargs and kwargs.keys[1] ~= nil then fail("type", "range() takes no keyword arguments") end
  if n < 1 or n > 3 then fail("type", "range expected 1 to 3 arguments, got %d", n) end
  local first, second, step = call.integer(args[1]), call.integer(args[2]), call.integer(args[3], 1)
  local start, stop = first, second
  if n == 1 then
    start, stop = 0, first
  end
  if step == 0 then fail("value", "range() arg 3 must not be zero") end
  if math.max(start, stop, step) > BIGGEST or math.min(start, stop, step) < -BIGGEST then
    fail("limit", "range() with numbers of more than 62 bits")
  end
  local size = range_size(start, stop, step)
  if size > limits.MAX_ITEMS or size < 0 then
    fail("limit", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", limits.MAX_ITEMS)
  end
  return value.new_range(rt, start, stop, step, size)
end

-- dict(mapping or pairs, **kwargs)
local function dict(rt, args, n, kwargs)
  if n > 1 then fail("type", "dict expected at most 1 argument, got %d", n) end
  local source, d = args[1], value.new_dict(rt)
  if source ~= nil and value.kind(source) == "dict" then
    d = value.copy_dict(rt, source)
  elseif source ~= nil then
    for item in value.iterate(rt, source) do
      limits.tick(rt, 2)
      local pair = value.collect(rt, item)
      if #pair ~= 2 then fail("value", "dictionary update sequence element has length %d; 2 is required", #pair) end
      value.put(rt, d, pair[1], pair[2])
    end
  end
  for _, key in ipairs(kwargs and kwargs.keys or {}) do value.put(rt, d, key, kwargs.map[key]) end
  return d
end

local function namespace(rt, args, n, kwargs)
  local attrs = dict(rt, args, n, kwargs)
  limits.tick(rt, 1 + #attrs.keys)
  for _, key in ipairs(attrs.keys) do
    local name = value.as_string(key)
    if name and name:sub(1, 1) == "_" then fail("security", "a namespace cannot have the attribute %s", value.quote_brief(name)) end
  end
  return value.make(rt, "namespace", { attrs = attrs })
end

local function cycler(rt, args, n)
  if n == 0 then fail("type", "at least one item has to be provided") end
  limits.table(rt, n)
  return value.make(rt, "cycler", { items = table.move(args, 1, n, 1, {}), at = 1 })
end

local function joiner(rt, args, n, kwargs)
  local sep = args[1] or kwargs and kwargs.map.sep or ", "
  if n > 1 then fail("type", "joiner() takes one separator") end
  local j = value.make(rt, "joiner", { sep = value.str(rt, sep), used = false })
  j.call = function()
    if j.used then return j.sep end
    j.used = true
    return ""
  end
  return j
end

local function raise_exception(rt, args, n, kwargs)
  local message = args[1]
  if message == nil and kwargs then message = kwargs.map.message end
  if message == nil or n > 1 then fail("type", "raise_exception() takes one message") end
  fail("template", "%s", value.str(rt, message))
end

local function strftime_now(now)
  return function(rt, args, n, kwargs)
    local fmt = args[1]
    if fmt == nil and kwargs then fmt = kwargs.map.format end
    if n > 1 then fail("type", "strftime_now() takes one format") end
    return clock.format(rt, now, call.string(fmt))
  end
end

local SHARED = {
  range = value.new_func(nil, "range", range),
  dict = value.make(nil, "dicttype", { call = dict }),
  namespace = value.new_func(nil, "namespace", namespace),
  cycler = value.new_func(nil, "cycler", cycler),
  joiner = value.new_func(nil, "joiner", joiner),
  raise_exception = value.new_func(nil, "raise_exception", raise_exception),
}

--- The names of all globals, sorted.
function M.names()
  local out = { "strftime_now" }
  for name in pairs(SHARED) do out[#out + 1] = name end
  table.sort(out)
  return out
end

--- The globals by name; now: a time of ane.jinja.clock for strftime_now.
function M.new(now)
  return setmetatable({ strftime_now = value.new_func(nil, "strftime_now", strftime_now(now)) }, { __index = SHARED })
end

return M
