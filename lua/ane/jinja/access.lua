--- Attributes, subscripts and slices, by the rules of jinja2's ImmutableSandboxedEnvironment.
-- `a.b` tries the attribute and then the key, `a["b"]` the key and then the attribute. Methods that would change a list or
-- a dict, and names with two underscores at both ends, are undefined values that raise a security fault when they are used.
-- Needs ane.jinja.call, limits, loop, strings, text and value. Usage: `access.getattr(rt, v, "strip")`

local call = require "ane.jinja.call"
local limits = require "ane.jinja.limits"
local loop = require "ane.jinja.loop"
local strings = require "ane.jinja.strings"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local fail, tick = limits.fail, limits.tick

local M = {}

local function index_of(rt, items, item, first, last)
  local n = #items
  first, last = call.integer(first, 0), call.integer(last, n)
  if first < 0 then first = math.max(first + n, 0) end
  if last < 0 then last = last + n end
  for i = first + 1, math.min(last, n) do
    tick(rt)
    if value.eq(rt, items[i], item) then return i - 1 end
  end
  fail("value", "%s is not in list", value.brief(rt, item))
end

local function count_of(rt, items, item)
  local n = 0
  tick(rt, #items)
  for i = 1, #items do
    if value.eq(rt, items[i], item) then n = n + 1 end
  end
  return n
end

local function signatures(list)
  local out = {}
  for _, entry in ipairs(list) do out[entry[1]] = call.signature(table.unpack(entry)) end
  return out
end

--- The entries of a dict, a table of (key, value) tuples.
function M.pairs_of(rt, d)
  limits.table(rt, #d.keys)
  local items = {}
  for i, key in ipairs(d.keys) do
    tick(rt)
    items[i] = value.new_tuple(rt, { key, value.get(rt, d, key) })
  end
  return items
end

local TUPLE = signatures {
  { "index", "value start stop", 1, index_of, true },
  { "count", "value", 1, count_of, true },
}

local LIST = signatures {
  { "index", "value start stop", 1, index_of, true },
  { "count", "value", 1, count_of, true },
  { "copy", "", 0, function(rt, items)
    tick(rt, 1 + (#items >> 2))
    return value.new_list(rt, table.move(items, 1, #items, 1, {}))
  end },
}

local DICT = signatures {
  { "get", "key default", 1, function(rt, d, key, default)
    local v = value.get(rt, d, key)
    if v ~= nil then return v end
    return default == nil and value.NONE or default
  end, true },
  { "items", "", 0, function(rt, d) return value.new_view(rt, "dict_items", M.pairs_of(rt, d)) end },
  { "keys", "", 0, function(rt, d) return value.new_view(rt, "dict_keys", d.keys) end },
  { "values", "", 0, function(rt, d)
    limits.table(rt, 2 * #d.keys)
    local items = {}
    for i, key in ipairs(d.keys) do items[i] = value.get(rt, d, key) end
    return value.new_view(rt, "dict_values", items)
  end },
  { "copy", "", 0, function(rt, d) return value.copy_dict(rt, d) end },
}

local INT = signatures {
  { "bit_length", "", 0, function(rt, x)
    local n = 0
    tick(rt, 4)
    x = math.abs(x)
    while x ~= 0 do
      n, x = n + 1, x >> 1
    end
    return n
  end },
}

local FLOAT = signatures {
  { "is_integer", "", 0, function(_, x) return x - x == 0 and x == math.floor(x) end },
}

local RANGE = signatures {
  { "index", "value", 1, function(rt, r, item) return index_of(rt, value.items(rt, r), item) end, true },
  { "count", "value", 1, function(rt, r, item) return count_of(rt, value.items(rt, r), item) end, true },
}

local CYCLER = signatures {
  { "next", "", 0, function(_, c)
    local v = c.items[c.at]
    c.at = c.at % #c.items + 1
    return v
  end },
  { "reset", "", 0, function(_, c)
    c.at = 1
    return value.NONE
  end },
}

local DICTTYPE = signatures {
  { "fromkeys", "iterable value", 1, function(rt, _, iterable, v)
    local d = value.new_dict(rt)
    for _, key in ipairs(value.collect(rt, iterable)) do
      tick(rt)
      value.put(rt, d, key, v == nil and value.NONE or v)
    end
    return d
  end },
}
DICT.fromkeys = DICTTYPE.fromkeys

local METHODS = {
  str = strings, markup = strings, list = LIST, tuple = TUPLE, dict = DICT, range = RANGE, int = INT, float = FLOAT,
  cycler = CYCLER, dicttype = DICTTYPE,
}

-- jinja2.sandbox._mutable_spec
local MUTATORS = {
  list = { append = 1, clear = 1, pop = 1, reverse = 1, insert = 1, sort = 1, extend = 1, remove = 1 },
  dict = { clear = 1, pop = 1, popitem = 1, setdefault = 1, update = 1 },
}

-- Plain attributes by kind: functions of the value that return nil when it has no such attribute.
local FIELDS = {
  int = function(_, x, name)
    if name == "real" or name == "numerator" then return x end
    if name == "imag" then return 0 end
    if name == "denominator" then return 1 end
  end,
  float = function(_, x, name)
    if name == "real" then return x end
    if name == "imag" then return 0.0 end
  end,
  range = function(_, r, name)
    if name == "start" or name == "stop" or name == "step" then return r[name] end
  end,
  tuple = function(_, t, name)
    local i = t.names and t.names[name]
    return i and t[i]
  end,
  namespace = function(rt, ns, name) return value.get(rt, ns.attrs, name) end,
  loop = loop.getattr,
  cycler = function(rt, c, name)
    if name == "current" then return c.items[c.at] end
    if name == "items" then
      tick(rt, 1 + (#c.items >> 2))
      return value.new_tuple(rt, table.move(c.items, 1, #c.items, 1, {}))
    end
    if name == "pos" then return c.at - 1 end
  end,
  joiner = function(_, j, name)
    if name == "sep" or name == "used" then return j[name] end
  end,
  macro = function(_, m, name)
    if name == "name" or name == "arguments" or name == "catch_kwargs" or name == "catch_varargs" or name == "caller" then
      return m[name]
    end
  end,
}

local function unsafe(rt, v, name)
  local hint = ("access to attribute %s of '%s' object is unsafe."):format(value.quote_brief(name), value.typename(v))
  return value.new_undefined(rt, hint, name, v, "security")
end

local function as_markup(rt, v)
  if type(v) == "string" then return value.new_markup(rt, v) end
  local k = value.kind(v)
  if k ~= "list" and k ~= "tuple" then return v end
  tick(rt, 1 + #v)
  for i, part in ipairs(v) do v[i] = as_markup(rt, part) end -- the result of a split or partition: no template has seen it
  return v
end

-- A method of Markup returns Markup.
local function rewrap(rt, f)
  local inner = f.call
  return value.new_func(rt, f.name, function(budget, ...) return as_markup(budget, inner(budget, ...)) end)
end

-- getattr(v, name), or nil.
local function attribute(rt, v, name)
  tick(rt, 1 + (#name >> 8))
  local k = value.kind(v)
  local field = FIELDS[k] and FIELDS[k](rt, v, name)
  if field ~= nil then return field end
  local spec = METHODS[k] and METHODS[k][name]
  if type(spec) == "table" then
    if k == "markup" then return rewrap(rt, call.bind(rt, spec, v.text)) end
    return call.bind(rt, spec, v)
  end
  if MUTATORS[k] and MUTATORS[k][name] or #name > 3 and name:sub(1, 2) == "__" and name:sub(-2) == "__" then
    return unsafe(rt, v, name)
  end
  return nil
end

local function undefined(rt, v, key)
  return value.new_undefined(rt, nil, key, v)
end

-- The item under a key, or nil.
local function item(rt, v, key)
  local k = value.kind(v)
  if k == "dict" then return value.get(rt, v, key) end
  local i = value.as_integer(key)
  if not i then return nil end
  if k == "list" or k == "tuple" then return v[i < 0 and i + #v + 1 or i + 1] end
  if k == "range" then
    if i < 0 then i = i + v.n end
    return i >= 0 and i < v.n and v.start + i * v.step or nil
  end
  local s = value.as_string(v)
  if s then
    limits.read(rt, 2 * #s)
    local n = text.length(s)
    if i < 0 then i = i + n end
    if i < 0 or i >= n then return nil end
    return text.slice(s, i, i + 1)
  end
  return nil
end

--- v.name
function M.getattr(rt, v, name)
  if type(v) == "table" then
    local k = v.kind
    if k == "undefined" then value.use_undefined(v) end
    if k == "dict" and not DICT[name] then -- the most frequent case
      local found = v.map[name]
      if found ~= nil and not MUTATORS.dict[name] then return found end
    end
  end
  local found = attribute(rt, v, name)
  if found == nil and value.kind(v) == "dict" then found = value.get(rt, v, name) end
  if found == nil then return undefined(rt, v, name) end
  return found
end

--- v|attr(name): the attribute, never the key.
function M.attribute_only(rt, v, name)
  local found = attribute(rt, v, name)
  if found == nil then return undefined(rt, v, name) end
  return found
end

--- v[key]
function M.getitem(rt, v, key)
  if type(v) == "table" and v.kind == "undefined" then value.use_undefined(v) end
  local found
  local k = type(key) == "table" and key.kind
  if k == "list" or k == "dict" then return undefined(rt, v, value.brief(rt, key)) end
  found = item(rt, v, key)
  if found ~= nil then return found end
  local name = value.as_string(key)
  found = name and attribute(rt, v, name)
  if found ~= nil then return found end
  return undefined(rt, v, type(key) == "table" and value.brief(rt, key) or key)
end

-- slice.indices(n) of Python.
local function indices(n, start, stop, step)
  local low, high = 0, n
  if step < 0 then low, high = -1, n - 1 end
  local function clamp(i, default)
    if i == nil then return default end
    if i < 0 then return math.max(i + n, low) end
    return math.min(i, high)
  end
  if step < 0 then return clamp(start, high), clamp(stop, low) end
  return clamp(start, low), clamp(stop, high)
end

local function bound(v)
  if v == nil or v == value.NONE then return nil end
  local i = value.as_integer(v)
  if not i then
    if value.kind(v) == "undefined" then value.use_undefined(v) end
    fail("type", "slice indices must be integers or None or have an __index__ method")
  end
  return i
end

local function pick(items, first, stop, step)
  local out = {}
  for i = first, step > 0 and stop - 1 or stop + 1, step do out[#out + 1] = items[i + 1] end
  return out
end

local function slice_string(rt, s, first, stop, step)
  if step == 1 then
    limits.read(rt, 2 * #s)
    limits.spare(rt, #s)
    s = text.slice(s, first, stop)
    limits.grow(rt, #s)
    return s
  end
  limits.walk(rt, #s)
  limits.spare(rt, 2 * limits.ITEM * #s)
  s = table.concat(pick(text.characters(s), first, stop, step))
  limits.grow(rt, #s)
  return s
end

--- v[start:stop:step]
function M.slice(rt, v, start, stop, step)
  local k = value.kind(v)
  if k == "undefined" then value.use_undefined(v) end
  local n = value.length(rt, v)
  if not n or not (value.as_string(v) or k == "list" or k == "tuple" or k == "range") then
    if k == "dict" then fail("type", "unhashable type: 'slice'") end
    fail("type", "'%s' object is not subscriptable", value.typename(v))
  end
  start, stop, step = bound(start), bound(stop), bound(step) or 1
  if step == 0 then fail("value", "slice step cannot be zero") end
  local first, last = indices(n, start, stop, step)
  local s = value.as_string(v)
  if s then
    s = slice_string(rt, s, first, last, step)
    return k == "markup" and value.new_markup(rt, s) or s
  end
  tick(rt, 1 + (n >> 2))
  if k == "range" then
    local size = math.max(0, step > 0 and (last - first + step - 1) // step or (first - last - step - 1) // -step)
    return value.new_range(rt, v.start + first * v.step, v.start + last * v.step, v.step * step, size)
  end
  local items = pick(v, first, last, step)
  return k == "list" and value.new_list(rt, items) or value.new_tuple(rt, items)
end

--- The names of the methods by kind of value: { str = { "upper", ... }, ... }, each list sorted.
function M.methods()
  local out = {}
  for k, methods in pairs(METHODS) do
    out[k] = {}
    for name, spec in pairs(methods) do
      if type(spec) == "table" then table.insert(out[k], name) end
    end
    table.sort(out[k])
  end
  return out
end

--- The signature of a str method, for calls without a bound method; nil when there is none.
function M.string_method(name)
  local spec = strings[name]
  return type(spec) == "table" and spec or nil
end

return M
