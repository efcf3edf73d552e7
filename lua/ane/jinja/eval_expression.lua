--- Expressions, from tree to Lua closures `function(env, rt)`: env holds the slots of the running function, rt the budget.
-- Needs ane.jinja.access, call, filters, limits, operators, tests and value. No expression reaches the libraries of Lua: a name
-- is a slot, a template variable or a global of ane.jinja.globals. The statement pays for the nodes of its expressions with
-- M.cost; calls, filters and operators pay for their own work.
-- Usage: `local run = expressions.compile(c, node); local v = run(env, rt)` with c = { frame, soft }

local access = require "ane.jinja.access"
local call = require "ane.jinja.call"
local filters = require "ane.jinja.filters"
local limits = require "ane.jinja.limits"
local operators = require "ane.jinja.operators"
local tests = require "ane.jinja.tests"
local value = require "ane.jinja.value"

local fail, tick = limits.fail, limits.tick
local truth = value.truth

local M = {}

local COMPILE = {}

--- A closure for a node. c.frame is the scope. c.soft is set within an if, where an unknown filter is a fault only at render time.
local function compile(c, node)
  return COMPILE[node.tag](c, node)
end
M.compile = compile

local function weight(node)
  local n = node.tag and 1 or 0
  for _, child in pairs(node) do
    if type(child) == "table" and child.kind == nil then n = n + weight(child) end
  end
  return n
end

-- Nodes per step: a node without its call or operator takes about 0.1 microseconds.
local NODES_PER_STEP = 4

--- The steps that a statement pays for evaluating an expression, or a list of them, once. nil costs nothing.
function M.cost(node)
  return node and weight(node) // NODES_PER_STEP or 0
end

local function compile_all(c, nodes)
  local out = {}
  for i, node in ipairs(nodes) do out[i] = compile(c, node) end
  return out
end

function COMPILE.const(_, node)
  local v = node.v
  return function() return v end
end

--- A reader of a slot of this function or of one around it; it returns nil for an empty slot.
function M.slot_reader(frame, slot)
  local index, hops = slot.index, frame.fn.depth - slot.fn.depth
  if hops == 0 then return function(env) return env[index] end end
  if hops == 1 then return function(env) return env.up[index] end end
  return function(env)
    for _ = 1, hops do env = env.up end
    return env[index]
  end
end

function COMPILE.name(c, node)
  local name, slot = node.name, c.frame:find(node.name)
  if c.frame.fn == slot.fn then
    local index = slot.index
    return function(env, rt)
      local v = env[index]
      if v == nil then return value.new_undefined(rt, nil, name) end
      return v
    end
  end
  local read = M.slot_reader(c.frame, slot)
  return function(env, rt)
    local v = read(env)
    if v == nil then return value.new_undefined(rt, nil, name) end
    return v
  end
end

-- Renders share a constant literal: no template can change it.
local function sequence(make)
  return function(c, node)
    local items, constants = compile_all(c, node.items), {}
    for i, item in ipairs(node.items) do constants[i] = item.v end
    if #constants == #node.items then
      local v = make(nil, constants)
      return function() return v end
    end
    local n = #items
    return function(env, rt)
      local out = {}
      for i = 1, n do out[i] = items[i](env, rt) end
      return make(rt, out)
    end
  end
end

COMPILE.list = sequence(value.new_list)
COMPILE.tuple = sequence(value.new_tuple)

function COMPILE.dict(c, node)
  local keys, values, at = compile_all(c, node.keys), compile_all(c, node.values), node.at
  return function(env, rt)
    local d = value.new_dict(rt)
    tick(rt, 1 + #keys)
    for i = 1, #keys do
      local key, v = keys[i](env, rt), values[i](env, rt)
      rt.at = at
      value.put(rt, d, key, v)
    end
    return d
  end
end

function COMPILE.attr(c, node)
  local object, name, at, getattr = compile(c, node.object), node.name, node.at, access.getattr
  return function(env, rt)
    local v = object(env, rt)
    rt.at = at
    return getattr(rt, v, name)
  end
end

function COMPILE.item(c, node)
  local object, key, at, getitem = compile(c, node.object), compile(c, node.key), node.at, access.getitem
  return function(env, rt)
    local v, k = object(env, rt), key(env, rt)
    rt.at = at
    return getitem(rt, v, k)
  end
end

local function nothing() return nil end

function COMPILE.slice(c, node)
  local object, at = compile(c, node.object), node.at
  local start = node.start and compile(c, node.start) or nothing
  local stop = node.stop and compile(c, node.stop) or nothing
  local step = node.step and compile(c, node.step) or nothing
  return function(env, rt)
    local v, i, j, k = object(env, rt), start(env, rt), stop(env, rt), step(env, rt)
    rt.at = at
    return access.slice(rt, v, i, j, k)
  end
end

local function star_items(rt, args, n, v)
  local items = value.collect(rt, v)
  tick(rt, 1 + (#items >> 2))
  for _, item in ipairs(items) do
    n = n + 1
    args[n] = item
  end
  return n
end

local function star_entries(rt, kwargs, v)
  if value.kind(v) ~= "dict" then fail("type", "argument after ** must be a mapping, not %s", value.typename(v)) end
  tick(rt, 1 + 2 * #v.keys)
  for _, key in ipairs(v.keys) do
    if not value.as_string(key) then fail("type", "keywords must be strings") end
    if value.get(rt, kwargs, key) ~= nil then fail("type", "got multiple values for keyword argument %s", value.brief(rt, key)) end
    value.put(rt, kwargs, key, value.get(rt, v, key))
  end
end

local NO_ARGS = {}

--- The arguments of a call: a closure that returns args, their number, and a dict of keywords or nil, all read-only.
function M.arguments(c, node)
  local plain, n = compile_all(c, node.args), #node.args
  if #node.kwargs == 0 and not node.star and not node.stars then
    if n == 0 then return function() return NO_ARGS, 0 end end
    if n == 1 then
      local first = plain[1]
      return function(env, rt) return { first(env, rt) }, 1 end
    end
    return function(env, rt)
      local args = {}
      for i = 1, n do args[i] = plain[i](env, rt) end
      return args, n
    end
  end
  local named = {}
  for i, pair in ipairs(node.kwargs) do named[i] = compile(c, pair.value) end
  local star, stars = node.star and compile(c, node.star), node.stars and compile(c, node.stars)
  return function(env, rt)
    local args, count, kwargs = {}, n, value.new_dict(rt)
    for i = 1, n do args[i] = plain[i](env, rt) end
    if star then count = star_items(rt, args, n, star(env, rt)) end
    for i = 1, #named do
      local key = node.kwargs[i].key
      if kwargs.map[key] ~= nil then fail("syntax", "keyword argument repeated: %s", key) end
      value.put(rt, kwargs, key, named[i](env, rt))
    end
    if stars then star_entries(rt, kwargs, stars(env, rt)) end
    return args, count, kwargs
  end
end

-- v.name(...): no bound method is made when v is a str.
local function method_call(c, node, arguments)
  local object, name, at = compile(c, node.callee.object), node.callee.name, node.at
  local spec = access.string_method(name)
  return function(env, rt)
    local v = object(env, rt)
    if spec and type(v) == "string" then
      local args, n, kwargs = arguments(env, rt)
      rt.at = at
      return call.apply(rt, spec, v, args, n, kwargs)
    end
    rt.at = at
    local f = access.getattr(rt, v, name)
    local args, n, kwargs = arguments(env, rt)
    rt.at = at
    return call.call(rt, f, args, n, kwargs)
  end
end

--- A call. with_caller(env, rt), if given, makes the `caller` of a call block.
function M.call(c, node, with_caller)
  local arguments, at = M.arguments(c, node), node.at
  if node.callee.tag == "attr" and not with_caller then return method_call(c, node, arguments) end
  local callee = compile(c, node.callee)
  return function(env, rt)
    local f = callee(env, rt)
    local args, n, kwargs = arguments(env, rt)
    rt.at = at
    if with_caller then
      kwargs = kwargs or value.new_dict(rt)
      value.put(rt, kwargs, "caller", with_caller(env, rt))
    end
    return call.call(rt, f, args, n, kwargs)
  end
end

COMPILE.call = M.call

-- A signature applied to an object. Up to two plain arguments have a fast path.
local function apply(c, node, object, spec)
  local at, n = node.at, #node.args
  local fixed = not spec.raw and #node.kwargs == 0 and not node.star and not node.stars and n >= spec.min and n <= spec.max
  if not fixed or n > 2 then
    local arguments = M.arguments(c, node)
    return function(env, rt)
      local v = object(env, rt)
      local args, count, kwargs = arguments(env, rt)
      rt.at = at
      return call.apply(rt, spec, v, args, count, kwargs)
    end
  end
  local fn = spec.fn
  local a = n > 0 and compile(c, node.args[1]) or nothing
  local b = n > 1 and compile(c, node.args[2]) or nothing
  return function(env, rt)
    local v, x, y = object(env, rt), a(env, rt), b(env, rt)
    tick(rt)
    rt.at = at
    return fn(rt, v, x, y)
  end
end

-- An unknown filter or test is a compile fault; within an if it is a render fault, as in jinja2.
local function unknown(c, node, what)
  local at, message = node.at, ("No %s named '%s'."):format(what, node.name)
  if not c.soft then error({ code = "syntax", message = message, at = at }, 0) end
  return function(_, rt)
    rt.at = at
    fail("runtime", "%s", message)
  end
end

--- A chain of filters. captured(env, rt) returns the object of a filter block.
function M.filter(c, node, captured)
  local object = captured
  if node.object then
    local is_chain = captured and node.object.tag == "filter"
    object = is_chain and M.filter(c, node.object, captured) or compile(c, node.object)
  end
  local spec = filters.find(node.name)
  if not spec then return unknown(c, node, "filter") end
  return apply(c, node, object, spec)
end

COMPILE.filter = M.filter

function COMPILE.test(c, node)
  local spec = tests.find(node.name)
  if not spec then return unknown(c, node, "test") end
  return apply(c, node, compile(c, node.object), spec)
end

COMPILE["not"] = function(c, node)
  local a = compile(c, node.a)
  return function(env, rt) return not truth(a(env, rt)) end
end

local function unary(compute)
  return function(c, node)
    local a, at = compile(c, node.a), node.at
    return function(env, rt)
      local v = a(env, rt)
      rt.at = at
      return compute(rt, v)
    end
  end
end

COMPILE.neg = unary(operators.neg)
COMPILE.pos = unary(operators.pos)

function COMPILE.bin(c, node)
  local a, b, at = compile(c, node.a), compile(c, node.b), node.at
  local compute = operators.binary[node.op]
  return function(env, rt)
    local x, y = a(env, rt), b(env, rt)
    rt.at = at
    return compute(rt, x, y)
  end
end

-- `and` stops at the first false value, `or` at the first true one. Both return that value.
local function logical(stops_at)
  return function(c, node)
    local items = compile_all(c, node.items)
    local n = #items
    return function(env, rt)
      local v
      for i = 1, n do
        v = items[i](env, rt)
        if truth(v) == stops_at then return v end
      end
      return v
    end
  end
end

COMPILE["and"] = logical(false)
COMPILE["or"] = logical(true)

function COMPILE.concat(c, node)
  local items, at = compile_all(c, node.items), node.at
  local n = #items
  return function(env, rt)
    local parts = {}
    for i = 1, n do parts[i] = items[i](env, rt) end
    rt.at = at
    return operators.concat(rt, parts, n)
  end
end

function COMPILE.compare(c, node)
  local first, rest, at = compile(c, node.first), compile_all(c, node.rest), node.at
  local compares = {}
  for i, op in ipairs(node.ops) do compares[i] = operators.compare[op] end
  local n, compare, second = #rest, compares[1], rest[1]
  if n == 1 then
    return function(env, rt)
      local x, y = first(env, rt), second(env, rt)
      rt.at = at
      return compare(rt, x, y)
    end
  end
  return function(env, rt)
    local x = first(env, rt)
    for i = 1, n do
      local y = rest[i](env, rt)
      rt.at = at
      if not compares[i](rt, x, y) then return false end
      x = y
    end
    return true
  end
end

function COMPILE.cond(c, node)
  local soft = { frame = c.frame, soft = true }
  local test, a = compile(soft, node.test), compile(soft, node.a)
  local b = node.b and compile(soft, node.b) or function(_, rt)
    return value.new_undefined(rt, "the inline if-expression evaluated to false and no else section was defined.")
  end
  return function(env, rt)
    if truth(test(env, rt)) then return a(env, rt) end
    return b(env, rt)
  end
end

return M
