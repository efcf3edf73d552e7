--- The values of a template: Python's types over Lua's.
-- str, int, float and bool are Lua strings, integers, floats and booleans; everything else is a table with a metatable from
-- this file, whose `kind` names the type. None is `value.NONE`; nil never is a value. Lists and dicts are never changed
-- once a template can see them, as in jinja2's ImmutableSandboxedEnvironment, so they may be shared freely.
-- Needs ane.jinja.limits, number and text. Usage: `value.list { 1, 2 }`, `value.str(rt, v)`, `value.eq(rt, a, b)`

local limits = require "ane.jinja.limits"
local number = require "ane.jinja.number"
local text = require "ane.jinja.text"

local fail, tick, grow, scan = limits.fail, limits.tick, limits.grow, limits.scan
local mtype = math.type

local M = {}

local function class(kind, python)
  local mt = { kind = kind, python = python, __name = "ane.jinja." .. kind }
  mt.__index = mt
  M[kind] = mt
  return mt
end

local List = class("list", "list")           -- [1..n] items
local Tuple = class("tuple", "tuple")        -- [1..n] items; names: field -> position, for groupby's pairs
local Dict = class("dict", "dict")           -- keys: in order; map: hash(key) -> value
local Range = class("range", "range")        -- start, stop, step, n
local Iter = class("iter", "generator")      -- next(): a value, or nil when done
local View = class("view", "dict_items")     -- items: table of values; python: which view
local Undefined = class("undefined", "Undefined") -- hint, or name and owner; code
local Func = class("func", "builtin_function_or_method") -- call(rt, args, n, kwargs); name
local Markup = class("markup", "Markup")     -- text
local Bigint = class("bigint", "int")        -- text: an int that only passes through
class("macro", "Macro")                      -- call; name, arguments, catch_kwargs, catch_varargs, caller
class("loop", "LoopContext")                 -- see ane.jinja.loop
class("namespace", "Namespace")              -- attrs: dict
class("cycler", "Cycler")
class("joiner", "Joiner")
class("dicttype", "TemplateDict")            -- the global `dict`

--- None of Python, null of JSON.
M.NONE = setmetatable({}, class("none", "NoneType"))
local NONE = M.NONE
M.none.__tostring = function() return "null" end

function M.make(kind, fields)
  return setmetatable(fields, M[kind])
end

function M.new_list(items) return setmetatable(items, List) end
function M.new_tuple(items) return setmetatable(items, Tuple) end
function M.new_dict() return setmetatable({ keys = {}, map = {} }, Dict) end
function M.new_iter(next_item) return setmetatable({ next = next_item }, Iter) end
function M.new_view(python, items) return setmetatable({ python = python, items = items }, View) end
function M.new_markup(s) return setmetatable({ text = s }, Markup) end
function M.new_bigint(digits) return setmetatable({ text = digits }, Bigint) end
function M.new_range(start, stop, step, n) return setmetatable({ start = start, stop = stop, step = step, n = n }, Range) end

--- A callable of the engine.
function M.new_func(name, call)
  return setmetatable({ name = name, call = call }, Func)
end

--- An undefined value: a hint to be shown when it is used, or the name that was looked for, and in what.
function M.new_undefined(hint, name, owner, code)
  return setmetatable({ hint = hint, name = name, owner = owner, code = code }, Undefined)
end

--- str, int, float, bool, or the kind of a table.
function M.kind(v)
  local t = type(v)
  if t == "table" then return v.kind end
  if t == "string" then return "str" end
  if t == "boolean" then return "bool" end
  return mtype(v) == "integer" and "int" or "float"
end
local kind = M.kind

--- The name Python would give to the type.
function M.typename(v)
  return type(v) == "table" and v.python or kind(v)
end
local typename = M.typename

--- What an undefined value says when it is used.
function M.undefined_message(v)
  if v.hint then return v.hint end
  local name = type(v.name) == "string" and text.quote(v.name) or tostring(v.name)
  if v.owner == nil then return name .. " is undefined" end
  local owner = v.owner == NONE and "None" or typename(v.owner) .. " object"
  if type(v.name) == "string" then return ("'%s' has no attribute %s"):format(owner, name) end
  return ("%s has no element %s"):format(owner, name)
end

--- Raise what an undefined value stands for.
function M.use_undefined(v)
  fail(v.code or "undefined", "%s", M.undefined_message(v))
end

--- Truth as bool() has it.
function M.truth(v)
  local t = type(v)
  if t == "boolean" then return v end
  if t == "string" then return v ~= "" end
  if t == "number" then return v ~= 0 end
  local k = v.kind
  if k == "list" or k == "tuple" then return v[1] ~= nil end
  if k == "dict" then return v.keys[1] ~= nil end
  if k == "none" or k == "undefined" then return false end
  if k == "range" then return v.n > 0 end
  if k == "view" then return v.items[1] ~= nil end
  if k == "markup" then return v.text ~= "" end
  return true
end

--- A str or Markup as a Lua string; nil for other types.
function M.as_string(v)
  if type(v) == "string" then return v end
  if type(v) == "table" and v.kind == "markup" then return v.text end
  return nil
end

--- An int, float or bool as a Lua number; nil for other types.
function M.as_number(v)
  if type(v) == "number" then return v end
  if v == true then return 1 elseif v == false then return 0 end
  return nil
end

--- An int or bool as a Lua integer; nil for other types.
function M.as_integer(v)
  if mtype(v) == "integer" then return v end
  if v == true then return 1 elseif v == false then return 0 end
  return nil
end

-- The key under which a dict files a value: 1, 1.0 and True are one key in Python, and Lua already joins 1 and 1.0.
-- Texts that begin with NUL make room for the keys that have to be written as text.
local function hash(rt, v)
  local t = type(v)
  if t == "string" then
    if rt then scan(rt, #v) end
    if v:byte(1) == 0 then return "\0" .. v end
    return v
  end
  if t == "number" then return v == v and v or "\0nan" end
  if t == "boolean" then return v and 1 or 0 end
  local k = v.kind
  if k == "markup" then return hash(rt, v.text) end
  if k == "bigint" then return "\0b" .. v.text end
  if k == "undefined" then return "\0u" end
  if k == "list" or k == "dict" then fail("type", "unhashable type: '%s'", k) end
  if k ~= "tuple" then return v end
  local parts = {}
  if rt then limits.enter(rt) end
  for i, item in ipairs(v) do
    local h = hash(rt, item)
    if type(h) == "table" then h = ("%p"):format(h) end
    parts[i] = math.type(h) and "n" .. h or #h .. ":" .. h
  end
  if rt then rt.depth = rt.depth - 1 end
  local key = "\0t" .. table.concat(parts, ",")
  if rt then grow(rt, #key) end
  return key
end
M.hash = hash

--- Add or replace an entry of a dict that no template has seen yet.
function M.put(rt, d, key, v)
  local h = hash(rt, key)
  if d.map[h] == nil then d.keys[#d.keys + 1] = key end
  d.map[h] = v
end

--- The value under a key, or nil.
function M.get(rt, d, key)
  return d.map[hash(rt, key)]
end

--- A copy of a dict that may still be filled.
function M.copy_dict(rt, d)
  local out = M.new_dict()
  tick(rt, #d.keys)
  for i, key in ipairs(d.keys) do out.keys[i] = key end
  for h, v in pairs(d.map) do out.map[h] = v end
  return out
end

local write_repr

local function write_items(rt, add, items, open, close)
  add(open)
  for i, item in ipairs(items) do
    if i > 1 then add(", ") end
    write_repr(rt, add, item)
  end
  add(close)
end

local REPR = {
  none = function() return "None" end,
  undefined = function() return "Undefined" end,
  bigint = function(v) return v.text end,
  range = function(v)
    return ("range(%d, %d%s)"):format(v.start, v.stop, v.step == 1 and "" or ", " .. v.step)
  end,
  markup = function(v) return "Markup(" .. text.quote(v.text) .. ")" end,
  loop = function(v) return ("<LoopContext %d/%d>"):format(v.index0 + 1, v.n or -1) end,
  macro = function(v) return v.name == NONE and "<Macro anonymous>" or "<Macro " .. text.quote(v.name) .. ">" end,
}

local REPR_DEEP = {
  list = function(rt, add, v) write_items(rt, add, v, "[", "]") end,
  tuple = function(rt, add, v) write_items(rt, add, v, "(", #v == 1 and ",)" or ")") end,
  view = function(rt, add, v) write_items(rt, add, v.items, v.python .. "([", "])") end,
  dict = function(rt, add, v)
    add("{")
    for i, key in ipairs(v.keys) do
      if i > 1 then add(", ") end
      write_repr(rt, add, key)
      add(": ")
      write_repr(rt, add, v.map[hash(nil, key)])
    end
    add("}")
  end,
  namespace = function(rt, add, v)
    add("<Namespace ")
    write_repr(rt, add, v.attrs)
    add(">")
  end,
}

function write_repr(rt, add, v)
  tick(rt)
  local t = type(v)
  if t == "string" then return add(text.quote(v)) end
  if t == "number" then return add(number.text(v)) end
  if t == "boolean" then return add(v and "True" or "False") end
  local k = v.kind
  if REPR[k] then return add(REPR[k](v)) end
  if not REPR_DEEP[k] then return add("<" .. v.python .. " object>") end
  limits.enter(rt)
  REPR_DEEP[k](rt, add, v)
  rt.depth = rt.depth - 1
end

--- repr(v)
function M.repr(rt, v)
  local parts, n = {}, 0
  write_repr(rt, function(s)
    n = n + 1
    parts[n] = s
    grow(rt, #s)
  end, v)
  local s = table.concat(parts)
  grow(rt, #s)
  return s
end

--- str(v)
function M.str(rt, v)
  local t = type(v)
  if t == "string" then return v end
  if t == "number" then return number.text(v) end
  if t == "boolean" then return v and "True" or "False" end
  local k = v.kind
  if k == "none" then return "None" end
  if k == "undefined" then return "" end
  if k == "markup" or k == "bigint" then return v.text end
  return M.repr(rt, v)
end

--- repr(v) cut to what an error message can bear.
function M.brief(rt, v)
  if type(v) == "string" and #v > 60 then v = v:sub(1, utf8.offset(v, 0, 60) - 1) .. "..." end
  local ok, s = pcall(M.repr, rt, v)
  if not ok then return typename(v) end
  return #s > 80 and s:sub(1, utf8.offset(s, 0, 80) - 1) .. "..." or s
end

local eq

local function eq_items(rt, a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if not eq(rt, a[i], b[i]) then return false end
  end
  return true
end

local function eq_dict(rt, a, b)
  if #a.keys ~= #b.keys then return false end
  for h, v in pairs(a.map) do
    local w = b.map[h]
    if w == nil or not eq(rt, v, w) then return false end
  end
  return true
end

local EQ = {
  list = eq_items, tuple = eq_items, dict = eq_dict,
  undefined = function() return true end,
  bigint = function(_, a, b) return a.text == b.text end,
  range = function(_, a, b)
    return a.n == b.n and (a.n == 0 or a.start == b.start and (a.n == 1 or a.step == b.step))
  end,
  view = function(rt, a, b) -- keys and items compare as sets, values by identity
    if a.python ~= b.python or a.python == "dict_values" or #a.items ~= #b.items then return false end
    for _, item in ipairs(a.items) do
      if not M.contains_item(rt, b.items, item) then return false end
    end
    return true
  end,
}

--- a == b
function eq(rt, a, b)
  local ta, tb = type(a), type(b)
  if ta ~= "table" and tb ~= "table" then
    if ta == tb then
      if ta == "string" and #a == #b then scan(rt, #a) end
      return a == b
    end
    a, b = M.as_number(a), M.as_number(b)
    return a ~= nil and a == b
  end
  if rawequal(a, b) then return true end
  local x, y = M.as_string(a), M.as_string(b)
  if x and y then return x == y end
  if ta ~= tb or a.kind ~= b.kind or not EQ[a.kind] then return false end
  tick(rt)
  limits.enter(rt)
  local same = EQ[a.kind](rt, a, b)
  rt.depth = rt.depth - 1
  return same
end
M.eq = eq

--- Is an item equal to v among a table of values?
function M.contains_item(rt, items, v)
  tick(rt, 1 + (#items >> 3))
  for i = 1, #items do
    if eq(rt, items[i], v) then return true end
  end
  return false
end

local ORDER = {
  ["<"] = function(a, b) return a < b end,
  ["<="] = function(a, b) return a <= b end,
  [">"] = function(a, b) return a > b end,
  [">="] = function(a, b) return a >= b end,
}

--- a op b with op one of < <= > >=
function M.order(rt, op, a, b)
  local test = ORDER[op]
  local x, y = M.as_number(a), M.as_number(b)
  if x and y then return test(x, y) end
  x, y = M.as_string(a), M.as_string(b)
  if x and y then
    tick(rt, 1 + (math.min(#x, #y) >> 6))
    return test(text.compare(x, y), 0)
  end
  if kind(a) == "undefined" then M.use_undefined(a) end
  if kind(b) == "undefined" then M.use_undefined(b) end
  if kind(a) == kind(b) and (kind(a) == "list" or kind(a) == "tuple") then
    tick(rt)
    limits.enter(rt)
    local result
    for i = 1, math.min(#a, #b) do
      if not eq(rt, a[i], b[i]) then
        result = M.order(rt, op, a[i], b[i])
        break
      end
    end
    if result == nil then result = test(#a, #b) end
    rt.depth = rt.depth - 1
    return result
  end
  fail("type", "'%s' not supported between instances of '%s' and '%s'", op, typename(a), typename(b))
end

--- len(v), or nil when the type has no length.
function M.length(rt, v)
  local s = M.as_string(v)
  if s then
    scan(rt, #s)
    return text.length(s)
  end
  local k = kind(v)
  if k == "list" or k == "tuple" then return #v end
  if k == "dict" then return #v.keys end
  if k == "undefined" then return 0 end
  if k == "range" or k == "loop" then return v.n end
  if k == "view" then return #v.items end
  return nil
end

--- The items of a value that is not a generator, as a table that must not be changed; nil when it has none.
function M.items(rt, v)
  local s = M.as_string(v)
  if s then
    if #s > 10 * limits.MAX_ITEMS then fail("limit", "a string of %d bytes is too long to go through its characters", #s) end
    tick(rt, 1 + (#s >> 1))
    return text.characters(s)
  end
  local k = kind(v)
  if k == "list" or k == "tuple" then return v end
  if k == "dict" then return v.keys end
  if k == "view" then return v.items end
  if k == "undefined" then return {} end
  if k == "range" then
    tick(rt, 1 + (v.n >> 2))
    local items = {}
    for i = 1, v.n do items[i] = v.start + (i - 1) * v.step end
    return items
  end
  return nil
end

local function not_iterable(v)
  fail("type", "'%s' object is not iterable", typename(v))
end

--- All items of any iterable as a table that must not be changed; a generator is used up.
function M.collect(rt, v)
  local items = M.items(rt, v)
  if items then return items end
  if kind(v) ~= "iter" then not_iterable(v) end
  items = {}
  for item in v.next do
    tick(rt)
    items[#items + 1] = item
    if #items > limits.MAX_ITEMS then fail("limit", "more than %d items", limits.MAX_ITEMS) end
  end
  return items
end

--- A function that returns the next item, or nil at the end.
function M.iterate(rt, v)
  if kind(v) == "iter" then return v.next end
  local items = M.items(rt, v)
  if not items then not_iterable(v) end
  local i = 0
  return function()
    i = i + 1
    return items[i]
  end
end

--- item in v
function M.contains(rt, v, item)
  local s = M.as_string(v)
  if s then
    local needle = M.as_string(item)
    if not needle then
      if kind(item) == "undefined" then M.use_undefined(item) end
      fail("type", "'in <string>' requires string as left operand, not %s", typename(item))
    end
    limits.search(rt, #s, #needle)
    scan(rt, #s)
    return s:find(needle, 1, true) ~= nil
  end
  local k = kind(v)
  if k == "dict" then return M.get(rt, v, item) ~= nil end
  if k == "iter" then
    for other in v.next do
      tick(rt)
      if eq(rt, other, item) then return true end
    end
    return false
  end
  local items = M.items(rt, v)
  if not items then fail("type", "argument of type '%s' is not iterable", typename(v)) end
  return M.contains_item(rt, items, item)
end

return M
