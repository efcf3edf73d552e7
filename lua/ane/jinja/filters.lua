--- The builtin filters of jinja2 on sequences, mappings and numbers, and the lookup of all filters by name.
-- Needs ane.jinja.access, call, filters_text, json, limits, number, operators, sort, strings, tests, text and value. Left out
-- are urlize and xmlattr, which make HTML. A filter pays a step for each item it takes and for the tables it makes.
-- Usage: `filters.find("length")` returns a signature of ane.jinja.call

local access = require "ane.jinja.access"
local call = require "ane.jinja.call"
local filters_text = require "ane.jinja.filters_text"
local json = require "ane.jinja.json"
local limits = require "ane.jinja.limits"
local number = require "ane.jinja.number"
local operators = require "ane.jinja.operators"
local sort = require "ane.jinja.sort"
local strings = require "ane.jinja.strings"
local tests = require "ane.jinja.tests"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local fail, tick = limits.fail, limits.tick
local truth, typename = value.truth, value.typename

local M = {}

local FILTERS = setmetatable({}, { __index = filters_text })

local function def(names, parameters, min, fn)
  for name in names:gmatch("%S+") do FILTERS[name] = call.signature(name, parameters, min, fn) end
end

-- Is an argument left out or None?
local function absent(v)
  return v == nil or v == value.NONE
end

local function flag(v)
  return v ~= nil and truth(v)
end

-- A generator that starts with its first item, like Python's: start() returns the function that returns items.
local function generator(rt, start)
  local next_item
  return value.new_iter(rt, function()
    next_item = next_item or start()
    return next_item()
  end)
end

-- attributes --------------------------------------------------------------------------------------------------------------

-- "a.b.0" as the list of keys { "a", "b", 0 }.
local function path_of(rt, attribute)
  if absent(attribute) then return {} end
  local s = value.as_string(attribute)
  if not s then return { attribute } end
  limits.walk(rt, #s)
  local parts = {}
  for part in (s .. "."):gmatch("(.-)%.") do
    limits.make(rt, #part + limits.OBJECT)
    parts[#parts + 1] = part:find("^%d+$") and math.tointeger(tonumber(part)) or part
  end
  return parts
end

local function follow(rt, item, path, default)
  for _, key in ipairs(path) do
    tick(rt)
    item = access.getitem(rt, item, key)
    if not absent(default) and value.kind(item) == "undefined" then item = default end
  end
  return item
end

-- The `reverse` of sorted() takes an int, not any true value.
local function is_reversed(v)
  return call.integer(v, 0) ~= 0
end

local function ignore_case(rt, v)
  local s = value.as_string(v)
  return s and strings.change_case(rt, s, text.lower) or v
end

-- key(item) for sorting and grouping.
local function getter(rt, attribute, case_sensitive, default)
  local path = path_of(rt, attribute)
  return function(item)
    local v = follow(rt, item, path, default)
    return flag(case_sensitive) and v or ignore_case(rt, v)
  end
end

-- Items sorted by key_of(item), called once per item.
local function sorted_by(rt, items, key_of, reverse)
  limits.make(rt, #items * 2 * limits.OBJECT)
  local keyed = {}
  for i, item in ipairs(items) do
    tick(rt)
    keyed[i] = { key = key_of(item), item = item }
  end
  local op = reverse and ">" or "<" -- a reversed sort of Python is stable too
  local sorted = sort.stable(rt, keyed, function(a, b) return value.order(rt, op, a.key, b.key) end)
  for i, entry in ipairs(sorted) do sorted[i] = entry.item end
  return sorted
end

def("sort", "reverse case_sensitive attribute", 0, function(rt, v, reverse, case_sensitive, attribute)
  local s, keys = not absent(attribute) and value.as_string(attribute), {}
  if s then
    limits.walk(rt, #s)
    for part in (s .. ","):gmatch("(.-),") do
      limits.make(rt, #part + 4 * limits.OBJECT)
      keys[#keys + 1] = getter(rt, part, case_sensitive)
    end
  else
    keys[1] = getter(rt, attribute, case_sensitive)
  end
  return value.new_list(rt, sorted_by(rt, value.collect(rt, v), function(item)
    local key = {}
    tick(rt, #keys)
    for i, get in ipairs(keys) do key[i] = get(item) end
    return value.new_list(rt, key)
  end, is_reversed(reverse)))
end)

def("dictsort", "case_sensitive by reverse", 0, function(rt, d, case_sensitive, by, reverse)
  local which = by == nil and "key" or value.as_string(by)
  if which ~= "key" and which ~= "value" then fail("value", 'You can only sort by either "key" or "value"') end
  if value.kind(d) ~= "dict" then
    if value.kind(d) == "undefined" then value.use_undefined(d) end
    fail("type", "'%s' object has no attribute 'items'", typename(d))
  end
  local items, position = access.pairs_of(rt, d), which == "key" and 1 or 2
  return value.new_list(rt, sorted_by(rt, items, function(pair)
    return flag(case_sensitive) and pair[position] or ignore_case(rt, pair[position])
  end, is_reversed(reverse)))
end)

local GROUP_NAMES = { grouper = 1, list = 2 }

def("groupby", "attribute default case_sensitive", 1, function(rt, v, attribute, default, case_sensitive)
  local key_of, groups = getter(rt, attribute, case_sensitive, default), {}
  local last
  local path = path_of(rt, attribute)
  for _, item in ipairs(sorted_by(rt, value.collect(rt, v), key_of, false)) do
    tick(rt, 2)
    local key = key_of(item)
    if #groups == 0 or not value.eq(rt, key, last) then
      groups[#groups + 1] = value.new_tuple(rt, { follow(rt, item, path, default), value.new_list(rt, {}) })
      groups[#groups].names = GROUP_NAMES
      last = key
    end
    local list = groups[#groups][2]
    limits.make(rt, limits.ITEM)
    list[#list + 1] = item
  end
  return value.new_list(rt, groups)
end)

def("unique", "case_sensitive attribute", 0, function(rt, v, case_sensitive, attribute)
  return generator(rt, function()
    local key_of, seen, next_item = getter(rt, attribute, case_sensitive), {}, value.iterate(rt, v)
    return function()
      for item in next_item do
        tick(rt)
        local key = value.hash(rt, key_of(item))
        if not seen[key] then
          limits.make(rt, limits.ENTRY)
          seen[key] = true
          return item
        end
      end
      return nil
    end
  end)
end)

local function extreme(name, op)
  def(name, "case_sensitive attribute", 0, function(rt, v, case_sensitive, attribute)
    local key_of, best, best_key = getter(rt, attribute, case_sensitive), nil, nil
    for item in value.iterate(rt, v) do
      tick(rt)
      local key = key_of(item)
      if best == nil or value.order(rt, op, key, best_key) then
        best, best_key = item, key
      end
    end
    if best == nil then return value.new_undefined(rt, "No aggregated item, sequence was empty.") end
    return best
  end)
end

extreme("min", "<")
extreme("max", ">")

def("sum", "attribute start", 0, function(rt, v, attribute, start)
  local path, total = path_of(rt, attribute), start == nil and 0 or start
  if value.as_string(total) then fail("type", "sum() can't sum strings [use ''.join(seq) instead]") end
  for item in value.iterate(rt, v) do
    tick(rt)
    total = operators.binary["+"](rt, total, follow(rt, item, path))
  end
  return total
end)

def("attr", "name", 1, function(rt, v, name)
  if value.kind(v) == "undefined" then value.use_undefined(v) end
  return access.attribute_only(rt, v, call.string(name))
end)

-- choosing and mapping ----------------------------------------------------------------------------------------------------

local function rest_of(args, n, from)
  return table.move(args, from, n, 1, {}), math.max(n - from + 1, 0)
end

local function done() return nil end

-- check(item) of select, reject, selectattr and rejectattr, from their arguments.
local function checker(rt, by_attribute, args, n, kwargs)
  if by_attribute and n == 0 then fail("type", "Missing parameter for attribute name") end
  local path = by_attribute and path_of(rt, args[1]) or {}
  local first = by_attribute and 2 or 1
  if n < first then return function(item) return truth(follow(rt, item, path)) end end
  local spec = tests.find(value.as_string(args[first]) or false)
  if not spec then fail("runtime", "No test named %s.", value.brief(rt, args[first])) end
  local rest, count = rest_of(args, n, first + 1)
  return function(item) return truth(call.apply(rt, spec, follow(rt, item, path), rest, count, kwargs)) end
end

-- One of the four filters. A false value of any type has no items.
local function chooser(name, by_attribute, wanted)
  FILTERS[name] = call.raw(name, function(rt, v, args, n, kwargs)
    return generator(rt, function()
      if not truth(v) then return done end
      local check, next_item = checker(rt, by_attribute, args, n, kwargs), value.iterate(rt, v)
      return function()
        for item in next_item do
          tick(rt)
          if check(item) == wanted then return item end
        end
        return nil
      end
    end)
  end)
end

chooser("select", false, true)
chooser("reject", false, false)
chooser("selectattr", true, true)
chooser("rejectattr", true, false)

-- map(attribute=...) or map("filter", ...) as a function of one item.
local function mapping(rt, args, n, kwargs)
  local attribute = n == 0 and kwargs and kwargs.map.attribute
  if attribute then
    for _, key in ipairs(kwargs.keys) do
      if key ~= "attribute" and key ~= "default" then fail("type", "Unexpected keyword argument '%s'", key) end
    end
    local path, default = path_of(rt, attribute), kwargs.map.default
    return function(item) return follow(rt, item, path, default) end
  end
  if n == 0 then fail("type", "map requires a filter argument") end
  local spec = M.find(value.as_string(args[1]) or false)
  if not spec then fail("runtime", "No filter named %s.", value.brief(rt, args[1])) end
  local rest, count = rest_of(args, n, 2)
  return function(item) return call.apply(rt, spec, item, rest, count, kwargs) end
end

FILTERS.map = call.raw("map", function(rt, v, args, n, kwargs)
  return generator(rt, function()
    if not truth(v) then return done end
    local change, next_item = mapping(rt, args, n, kwargs), value.iterate(rt, v)
    return function()
      tick(rt)
      local item = next_item()
      if item == nil then return nil end
      return change(item)
    end
  end)
end)

-- sequences ---------------------------------------------------------------------------------------------------------------

def("length count", "", 0, function(rt, v)
  local n = value.length(rt, v)
  if not n then fail("type", "object of type '%s' has no len()", typename(v)) end
  return n
end)

def("first", "", 0, function(rt, v)
  local item = value.iterate(rt, v)()
  if item == nil then return value.new_undefined(rt, "No first item, sequence was empty.") end
  return item
end)

def("last", "", 0, function(rt, v)
  local items = value.items(rt, v)
  if not items then fail("type", "'%s' object is not reversible", typename(v)) end
  if items[1] == nil then return value.new_undefined(rt, "No last item, sequence was empty.") end
  return items[#items]
end)

def("random", "", 0, function(rt, v)
  local items = value.items(rt, v)
  if not items or value.kind(v) == "dict" then fail("type", "'%s' object is not a sequence", typename(v)) end
  if items[1] == nil then return value.new_undefined(rt, "No random item, sequence was empty.") end
  return items[math.random(#items)]
end)

def("list", "", 0, function(rt, v)
  local items = value.collect(rt, v)
  limits.tick(rt, 1 + (#items >> 2))
  return value.new_list(rt, table.move(items, 1, #items, 1, {}))
end)

def("items", "", 0, function(rt, v)
  return generator(rt, function()
    local k = value.kind(v)
    if k ~= "dict" and k ~= "undefined" then fail("type", "Can only get item pairs from a mapping.") end
    local i, keys = 0, k == "dict" and v.keys or {}
    return function()
      i = i + 1
      local key = keys[i]
      if key == nil then return nil end
      tick(rt)
      return value.new_tuple(rt, { key, value.get(rt, v, key) })
    end
  end)
end)

def("reverse", "", 0, function(rt, v)
  local s = type(v) == "string" and v
  if s and text.is_ascii(s) then
    limits.read(rt, 2 * #s)
    limits.grow(rt, #s)
    return s:reverse()
  end
  local items = value.kind(v) == "iter" and value.collect(rt, v) or value.items(rt, v)
  if not items then fail("type", "argument must be iterable") end
  tick(rt, 1 + #items)
  if s then
    limits.grow(rt, #s)
    local out = {}
    for i = #items, 1, -1 do out[#out + 1] = items[i] end
    return table.concat(out)
  end
  local i = #items + 1
  return value.new_iter(rt, function()
    i = i - 1
    return items[i]
  end)
end)

def("slice", "slices fill_with", 1, function(rt, v, slices, fill)
  return generator(rt, function()
    slices = call.integer(slices)
    local items = value.collect(rt, v)
    if slices == 0 then fail("value", "integer division or modulo by zero") end
    local size, extra, made, from = #items // slices, #items % slices, 0, 1
    return function()
      if made >= slices then return nil end
      made = made + 1
      local take = size + (made <= extra and 1 or 0)
      tick(rt, 1 + take)
      local part = table.move(items, from, from + take - 1, 1, {})
      from = from + take
      if not absent(fill) and made > extra then part[#part + 1] = fill end
      return value.new_list(rt, part)
    end
  end)
end)

-- A table of the given first item and up to count - 1 more, and the item after them. Only the last table may be shorter.
local function take_batch(rt, first, next_item, count)
  local part, item = { first }, next_item()
  while item ~= nil and #part ~= count do
    tick(rt)
    part[#part + 1] = item
    item = next_item()
  end
  return part, item
end

def("batch", "linecount fill_with", 1, function(rt, v, linecount, fill)
  return generator(rt, function()
    local count, next_item = value.as_number(linecount), value.iterate(rt, v)
    local item = next_item()
    return function()
      if item == nil then return nil end
      local part
      part, item = take_batch(rt, item, next_item, count)
      if item == nil and not absent(fill) then
        count = call.integer(linecount)
        limits.items(rt, math.max(count, 0))
        for i = #part + 1, count do part[i] = fill end
      end
      return value.new_list(rt, part)
    end
  end)
end)

def("join", "d attribute", 0, function(rt, v, separator, attribute)
  local path, parts, size = path_of(rt, attribute), {}, 0
  local sep = separator == nil and "" or value.str(rt, separator)
  for item in value.iterate(rt, v) do
    tick(rt)
    limits.make(rt, limits.ITEM)
    local s = value.str(rt, follow(rt, item, path))
    if #parts > 0 then size = size + #sep end
    parts[#parts + 1], size = s, size + #s
    if size > rt.max_string then limits.grow(rt, size) end
  end
  limits.grow(rt, size)
  return table.concat(parts, sep)
end)

-- values ------------------------------------------------------------------------------------------------------------------

def("default d", "default_value boolean", 0, function(_, v, default, boolean)
  if value.kind(v) == "undefined" or flag(boolean) and not truth(v) then return default == nil and "" or default end
  return v
end)

def("abs", "", 0, function(_, v)
  local x = value.as_number(v)
  if x then return x < 0 and number.neg(x) or math.abs(x) end
  if value.kind(v) == "undefined" then value.use_undefined(v) end
  fail("type", "bad operand type for abs(): '%s'", typename(v))
end)

-- int(float(s)) for a text that int() does not take; nil when float() does not take it either.
local function int_by_float(s)
  local x = s and number.parse_float(s)
  if not x or x - x ~= 0 then return nil end
  return number.truncate(x)
end

def("int", "default base", 0, function(rt, v, default, base)
  local x = value.as_number(v)
  if math.type(x) == "float" and x ~= x then return default == nil and 0 or default end
  if x then return number.truncate(x) end
  if value.kind(v) == "undefined" then value.use_undefined(v) end
  if value.kind(v) == "bigint" then return v end
  local s = value.as_string(v)
  if s then
    limits.walk(rt, 2 * #s)
    limits.spare(rt, 4 * #s)
    local int, big = number.parse_int(s, call.integer(base, 10))
    if int then return int end
    if big then return value.new_bigint(rt, big) end
  end
  return int_by_float(s) or (default == nil and 0 or default)
end)

def("float", "default", 0, function(rt, v, default)
  local x = value.as_number(v)
  if x then return x * 1.0 end
  if value.kind(v) == "undefined" then value.use_undefined(v) end
  if value.kind(v) == "bigint" then
    limits.walk(rt, #v.text)
    return tonumber(v.text) + 0.0
  end
  local s = value.as_string(v)
  if s then
    limits.walk(rt, #s)
    limits.spare(rt, 4 * #s)
  end
  return s and number.parse_float(s) or (default == nil and 0.0 or default)
end)

local function scaled(x, places, round)
  local factor = places >= 0 and 10 ^ math.min(places, 308) or 1 / 10 ^ math.min(-places, 308)
  return round(x * factor) / factor
end

def("round", "precision method", 0, function(rt, v, precision, method)
  tick(rt, 8)
  local how, places = method == nil and "common" or value.as_string(method), call.integer(precision, 0)
  if how ~= "common" and how ~= "ceil" and how ~= "floor" then fail("value", "method must be common, ceil or floor") end
  local x = value.as_number(v)
  if not x then
    if value.kind(v) == "undefined" then value.use_undefined(v) end
    fail("type", "type %s doesn't define __round__ method", typename(v))
  end
  if how == "common" then return number.round(x, places) end
  return scaled(x, places, how == "ceil" and math.ceil or math.floor)
end)

def("tojson", "ensure_ascii indent separators sort_keys", 0, function(rt, v, ascii, indent, separators, sort_keys)
  return json.dumps(rt, v, { ensure_ascii = flag(ascii), indent = indent, separators = separators, sort_keys = flag(sort_keys) })
end)

--- The names of all filters, sorted.
function M.names()
  local out = {}
  for name in pairs(FILTERS) do out[#out + 1] = name end
  for name in pairs(filters_text) do out[#out + 1] = name end
  table.sort(out)
  return out
end

--- The signature of a filter, or nil.
function M.find(name)
  return FILTERS[name]
end

return M
