--- The values of a template: Python types as Lua values.
-- str, int, float and bool are Lua strings, integers, floats and booleans. Every other type is a table whose metatable comes
-- from this file; its `kind` names the type. None is `value.NONE`; nil is never a value. Lists and dicts do not change once a
-- template can see them, as in jinja2's ImmutableSandboxedEnvironment, so values share them.
-- Each constructor takes the budget of the render and pays for the object and the items of its table. The budget is nil at
-- compile time and when variables are converted.
-- Needs ane.jinja.limits, number and text. Usage: `value.new_list(rt, { 1, 2 })`, `value.str(rt, v)`, `value.eq(rt, a, b)`

local limits = require "ane.jinja.limits"
local number = require "ane.jinja.number"
local text = require "ane.jinja.text"

local fail, tick, grow, scan, read, walk = limits.fail, limits.tick, limits.grow, limits.scan, limits.read, limits.walk
local charge = limits.make
local OBJECT, ITEM, ENTRY = limits.OBJECT, limits.ITEM, limits.ENTRY
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

--- An object of a kind without a constructor of its own.
function M.make(rt, kind, fields)
  charge(rt, 4 * OBJECT)
  return setmetatable(fields, M[kind])
end

local function sequence(class_of)
  return function(rt, items)
    charge(rt, OBJECT + #items * ITEM)
    return setmetatable(items, class_of)
  end
end

--- A list or tuple. The table of items becomes the value.
M.new_list = sequence(List)
M.new_tuple = sequence(Tuple)

--- An empty dict. M.put pays for its entries.
function M.new_dict(rt)
  charge(rt, 3 * OBJECT)
  return setmetatable({ keys = {}, map = {} }, Dict)
end

--- A generator. next_item() returns a value, or nil at the end.
function M.new_iter(rt, next_item)
  charge(rt, 7 * OBJECT)
  return setmetatable({ next = next_item }, Iter)
end

--- A view of a dict. python: its Python type.
function M.new_view(rt, python, items)
  charge(rt, 2 * OBJECT)
  return setmetatable({ python = python, items = items }, View)
end

function M.new_markup(rt, s)
  charge(rt, 2 * OBJECT)
  return setmetatable({ text = s }, Markup)
end

--- An int beyond 64 bits, as decimal digits with an optional minus sign.
function M.new_bigint(rt, digits)
  charge(rt, 2 * OBJECT + #digits)
  return setmetatable({ text = digits }, Bigint)
end

function M.new_range(rt, start, stop, step, n)
  charge(rt, 2 * OBJECT)
  return setmetatable({ start = start, stop = stop, step = step, n = n }, Range)
end

--- A callable of the engine.
function M.new_func(rt, name, call)
  charge(rt, 3 * OBJECT)
  return setmetatable({ name = name, call = call }, Func)
end

--- An undefined value. It carries a hint for the error message of its first use, or the name that was looked up and the
-- object of the lookup. code: of that error, default "undefined".
function M.new_undefined(rt, hint, name, owner, code)
  charge(rt, 2 * OBJECT)
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

--- The Python name of the type.
function M.typename(v)
  return type(v) == "table" and v.python or kind(v)
end
local typename = M.typename

-- The longest string that an error message quotes in full, in bytes.
local LONGEST_QUOTE = 60

--- repr() of the start of a string, for an error message.
function M.quote_brief(s)
  if #s > LONGEST_QUOTE then s = s:sub(1, utf8.offset(s, 0, LONGEST_QUOTE) - 1) .. "..." end
  return text.quote(s)
end

--- The error message of an undefined value.
function M.undefined_message(v)
  if v.hint then return v.hint end
  local name = type(v.name) == "string" and M.quote_brief(v.name) or tostring(v.name)
  if v.owner == nil then return name .. " is undefined" end
  local owner = v.owner == NONE and "None" or typename(v.owner) .. " object"
  if type(v.name) == "string" then return ("'%s' has no attribute %s"):format(owner, name) end
  return ("%s has no element %s"):format(owner, name)
end

--- Raises the error of an undefined value.
function M.use_undefined(v)
  fail(v.code or "undefined", "%s", M.undefined_message(v))
end

--- bool(v)
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

-- The key of a value in a dict's map. 1, 1.0 and True are one key in Python; Lua unifies 1 and 1.0. Keys without a Lua
-- equivalent become strings that begin with NUL, so a string that begins with NUL gets another NUL in front.
local function hash(rt, v)
  local t = type(v)
  if t == "string" then
    if rt then scan(rt, #v) end
    if v:byte(1) ~= 0 then return v end
    charge(rt, #v)
    return "\0" .. v
  end
  if t == "number" then return v == v and v or "\0nan" end
  if t == "boolean" then return v and 1 or 0 end
  local k = v.kind
  if k == "markup" then return hash(rt, v.text) end
  if k == "bigint" then
    charge(rt, #v.text)
    return "\0b" .. v.text
  end
  if k == "undefined" then return "\0u" end
  if k == "list" or k == "dict" then fail("type", "unhashable type: '%s'", k) end
  if k ~= "tuple" then return v end
  tick(rt, 1 + #v)
  local parts, size = {}, 0
  limits.enter(rt)
  for i, item in ipairs(v) do
    local h = hash(rt, item)
    if type(h) == "table" then h = ("%p"):format(h) end
    parts[i] = math.type(h) and "n" .. h or #h .. ":" .. h
    size = size + #parts[i]
    limits.spare(rt, 2 * size)
  end
  rt.depth = rt.depth - 1
  local key = "\0t" .. table.concat(parts, ",")
  grow(rt, #key)
  return key
end
M.hash = hash

--- Adds or replaces an entry of a dict that no template has seen yet. rt may be nil when the key is not a tuple.
function M.put(rt, d, key, v)
  local h = hash(rt, key)
  if d.map[h] == nil then
    charge(rt, ENTRY)
    d.keys[#d.keys + 1] = key
  end
  d.map[h] = v
end

--- The value of a key, or nil.
function M.get(rt, d, key)
  return d.map[hash(rt, key)]
end

--- A copy of a dict that may still be filled.
function M.copy_dict(rt, d)
  local n = #d.keys
  tick(rt, 1 + n)
  local out = M.new_dict(rt)
  charge(rt, n * ENTRY)
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
  loop = function(v) return ("<LoopContext %d/%d>"):format(v.index0 + 1, v.n or -1) end,
  macro = function(v) return v.name == NONE and "<Macro anonymous>" or "<Macro " .. text.quote(v.name) .. ">" end,
}

-- repr() of a string, paid for. An escape is up to four times as long as its character.
local function quote(rt, s)
  walk(rt, #s)
  limits.spare(rt, 8 * #s)
  return text.quote(s)
end

--- escape() of markupsafe, paid for. An escape is up to five times as long as its character.
function M.escape(rt, s)
  walk(rt, #s)
  limits.spare(rt, 10 * #s)
  local out = text.escape(s)
  grow(rt, #out)
  return out
end

local REPR_DEEP = {
  markup = function(rt, add, v) add("Markup(" .. quote(rt, v.text) .. ")") end,
  list = function(rt, add, v) write_items(rt, add, v, "[", "]") end,
  tuple = function(rt, add, v) write_items(rt, add, v, "(", #v == 1 and ",)" or ")") end,
  view = function(rt, add, v) write_items(rt, add, v.items, v.python .. "([", "])") end,
  dict = function(rt, add, v)
    add("{")
    for i, key in ipairs(v.keys) do
      if i > 1 then add(", ") end
      write_repr(rt, add, key)
      add(": ")
      write_repr(rt, add, M.get(rt, v, key))
    end
    add("}")
  end,
  namespace = function(rt, add, v)
    add("<Namespace ")
    write_repr(rt, add, v.attrs)
    add(">")
  end,
}

--- str() of an int or float, paid for.
function M.number_text(rt, x)
  if rt and mtype(x) == "float" then tick(rt, 8) end
  return number.text(x)
end

function write_repr(rt, add, v)
  tick(rt)
  local t = type(v)
  if t == "string" then return add(quote(rt, v)) end
  if t == "number" then return add(M.number_text(rt, v)) end
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
  local add, finish = limits.buffer(rt)
  write_repr(rt, add, v)
  return finish()
end

--- str(v)
function M.str(rt, v)
  local t = type(v)
  if t == "string" then return v end
  if t == "number" then return M.number_text(rt, v) end
  if t == "boolean" then return v and "True" or "False" end
  local k = v.kind
  if k == "none" then return "None" end
  if k == "undefined" then return "" end
  if k == "markup" or k == "bigint" then return v.text end
  return M.repr(rt, v)
end

--- The start of repr(v), for an error message.
function M.brief(rt, v)
  if type(v) == "string" then return M.quote_brief(v) end
  local ok, s = pcall(M.repr, rt, v)
  if not ok then return typename(v) end
  return #s > 80 and s:sub(1, utf8.offset(s, 0, 80) - 1) .. "..." or s
end

local eq

local function eq_items(rt, a, b)
  if #a ~= #b then return false end
  tick(rt, 1 + (#a >> 2))
  for i = 1, #a do
    if not eq(rt, a[i], b[i]) then return false end
  end
  return true
end

local function eq_dict(rt, a, b)
  if #a.keys ~= #b.keys then return false end
  tick(rt, 1 + (#a.keys >> 2))
  for h, v in pairs(a.map) do
    local w = b.map[h]
    if w == nil or not eq(rt, v, w) then return false end
  end
  return true
end

local EQ = {
  list = eq_items, tuple = eq_items, dict = eq_dict,
  undefined = function() return true end,
  bigint = function(rt, a, b)
    scan(rt, #a.text)
    return a.text == b.text
  end,
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
  if x and y then
    if #x == #y then scan(rt, #x) end
    return x == y
  end
  tick(rt)
  if ta ~= tb or a.kind ~= b.kind or not EQ[a.kind] then return false end
  limits.enter(rt)
  local same = EQ[a.kind](rt, a, b)
  rt.depth = rt.depth - 1
  return same
end
M.eq = eq

--- Returns whether a table of values has an item equal to v.
function M.contains_item(rt, items, v)
  tick(rt, 1 + (#items >> 1))
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
    tick(rt, 1 + (math.min(#x, #y) >> 7))
    return test(text.compare(x, y), 0)
  end
  if kind(a) == "undefined" then M.use_undefined(a) end
  if kind(b) == "undefined" then M.use_undefined(b) end
  if kind(a) == kind(b) and (kind(a) == "list" or kind(a) == "tuple") then
    tick(rt, 1 + (math.min(#a, #b) >> 2))
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
    read(rt, #s)
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

--- The items of a value other than a generator, as a table that the caller must not change; nil when the type has none.
function M.items(rt, v)
  local s = M.as_string(v)
  if s then
    if #s > 10 * limits.MAX_ITEMS then fail("limit", "a string of %d bytes is too long to iterate over", #s) end
    walk(rt, #s)
    charge(rt, OBJECT + #s * ITEM)
    return text.characters(s)
  end
  local k = kind(v)
  if k == "list" or k == "tuple" then return v end
  if k == "dict" then return v.keys end
  if k == "view" then return v.items end
  if k == "undefined" then return {} end
  if k == "range" then
    limits.table(rt, v.n)
    local items = {}
    for i = 1, v.n do items[i] = v.start + (i - 1) * v.step end
    return items
  end
  return nil
end

local function not_iterable(v)
  fail("type", "'%s' object is not iterable", typename(v))
end

--- All items of any iterable as a table that the caller must not change; consumes a generator.
function M.collect(rt, v)
  local items = M.items(rt, v)
  if items then return items end
  if kind(v) ~= "iter" then not_iterable(v) end
  items = {}
  for item in v.next do
    tick(rt)
    items[#items + 1] = item
    charge(rt, ITEM)
    if #items > limits.MAX_ITEMS then fail("limit", "more than %d items", limits.MAX_ITEMS) end
  end
  return items
end

--- A function that returns the next item, or nil at the end.
function M.iterate(rt, v)
  local k = kind(v)
  if k == "iter" then return v.next end
  if k == "range" then
    local i, n = -1, v.n
    return function()
      i = i + 1
      if i < n then return v.start + i * v.step end
      return nil
    end
  end
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
