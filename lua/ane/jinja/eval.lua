--- Statements, from tree to Lua closures `function(env, rt)`. They write to rt.out and return BREAK, CONTINUE or nil.
-- Each statement pays a step for itself and the cost of its expressions.
-- Needs ane.jinja.eval_expression, limits, loop, scope and value.
-- Usage: `local run = eval.template(parser.parse(source)); run(rt)`

local expressions = require "ane.jinja.eval_expression"
local limits = require "ane.jinja.limits"
local loop = require "ane.jinja.loop"
local scope = require "ane.jinja.scope"
local value = require "ane.jinja.value"

local fail, tick, write = limits.fail, limits.tick, limits.write
local compile, cost = expressions.compile, expressions.cost
local truth, str = value.truth, value.str

local M = {}

local BREAK, CONTINUE = 1, 2

local COMPILE = {}

local function stop(at, fmt, ...)
  error({ code = "syntax", message = fmt:format(...), at = at }, 0)
end

-- A compiler state for a frame within another frame.
local function within(c, frame, changes)
  local inner = { frame = frame, in_loop = c.in_loop }
  for k, v in pairs(changes or {}) do inner[k] = v end
  return inner
end

-- One closure for a list of statements.
local function compile_body(c, statements)
  local list = {}
  for _, node in ipairs(statements) do list[#list + 1] = COMPILE[node.tag](c, node) end
  local n = #list
  if n == 1 then return list[1] end
  return function(env, rt)
    for i = 1, n do
      local signal = list[i](env, rt)
      if signal then return signal end
    end
    return nil
  end
end

-- The closure that fills the slots of a frame on entry.
local function entry_code(frame)
  local resolves, aliases, clears = {}, {}, {}
  for _, entry in ipairs(frame:entries()) do
    local index = entry.slot.index
    if entry.action == "resolve" then
      resolves[#resolves + 1] = { index, entry.source }
    elseif entry.action == "alias" then
      aliases[#aliases + 1] = { index, expressions.slot_reader(frame, entry.source) }
    elseif entry.action == "undefined" then
      clears[#clears + 1] = index
    end
  end
  if not (resolves[1] or aliases[1] or clears[1]) then return function() end end
  local price = (#resolves + #aliases + #clears) // 4
  return function(env, rt)
    if price > 0 then tick(rt, price) end
    for i = 1, #resolves do env[resolves[i][1]] = rt.resolve(resolves[i][2]) end
    for i = 1, #aliases do env[aliases[i][1]] = aliases[i][2](env) end
    for i = 1, #clears do env[clears[i]] = nil end
  end
end

-- The closure that empties the slots of a frame on exit.
local function exit_code(frame)
  local entries = frame:entries()
  return function(env)
    for i = 1, #entries do env[entries[i].slot.index] = nil end
  end
end

local function unpack_error(want, got)
  if got < want then fail("value", "not enough values to unpack (expected %d, got %d)", want, got) end
  fail("value", "too many values to unpack (expected %d)", want)
end

-- A closure (env, rt, v) that stores v in a target.
local function assigner(c, target)
  if target.tag == "name" then
    local index = c.frame:find(target.name).index
    return function(env, _, v) env[index] = v end
  elseif target.tag == "attr_target" then
    local read, attr = expressions.slot_reader(c.frame, c.frame:find(target.name)), target.attr
    return function(env, rt, v)
      local namespace = read(env)
      if not (type(namespace) == "table" and namespace.kind == "namespace") then
        fail("runtime", "cannot assign attribute on non-namespace object")
      end
      if attr:sub(1, 1) == "_" then fail("security", "a namespace cannot have the attribute '%s'", attr) end
      value.put(rt, namespace.attrs, attr, v)
    end
  end
  local parts, n = {}, #target.items
  for i, item in ipairs(target.items) do parts[i] = assigner(c, item) end
  return function(env, rt, v)
    local items = value.collect(rt, v)
    if #items ~= n then unpack_error(n, #items) end
    for i = 1, n do parts[i](env, rt, items[i]) end
  end
end

function COMPILE.data(_, node)
  local data = node.text
  return function(_, rt)
    tick(rt)
    write(rt, data)
  end
end

local function print_code(c, node)
  if node.tag == "const" then
    return COMPILE.data(c, { text = str(limits.new(), node.v) })
  end
  local v, price = compile(c, node), 1 + cost(node)
  return function(env, rt)
    tick(rt, price)
    local out = v(env, rt)
    write(rt, type(out) == "string" and out or str(rt, out))
  end
end

function COMPILE.print(c, node)
  return print_code(c, node.value)
end

function COMPILE.print_list(c, node)
  local list = {}
  for i, item in ipairs(node.values) do list[i] = print_code(c, item) end
  return function(env, rt)
    for i = 1, #list do list[i](env, rt) end
  end
end

COMPILE["do"] = function(c, node)
  local v, price = compile(c, node.value), 1 + cost(node.value)
  return function(env, rt)
    tick(rt, price)
    v(env, rt)
  end
end

COMPILE["if"] = function(c, node)
  local soft = within(c, c.frame, { soft = true })
  local tests, bodies = {}, {}
  for i, test in ipairs(node.tests) do
    tests[i], bodies[i] = compile(soft, test), compile_body(soft, node.bodies[i])
  end
  local n, otherwise = #tests, compile_body(soft, node.otherwise or {})
  local price = 1 + cost(node.tests)
  return function(env, rt)
    tick(rt, price)
    for i = 1, n do
      if truth(tests[i](env, rt)) then return bodies[i](env, rt) end
    end
    return otherwise(env, rt)
  end
end

function COMPILE.set(c, node)
  local v, assign, at = compile(c, node.value), assigner(c, node.target), node.at
  local price = 1 + cost(node.value) + cost(node.target)
  return function(env, rt)
    tick(rt, price)
    local new = v(env, rt)
    rt.at = at
    assign(env, rt, new)
  end
end

-- The body of a block that captures its output, as a function (env, rt) to the text and a loop signal.
local function capture_code(c, statements, filter)
  local frame = scope.new_frame(c.frame, c.frame.fn)
  scope.read(frame, filter)
  scope.visit(frame, statements)
  local inner = within(c, frame)
  local body, enter, leave = compile_body(inner, statements), entry_code(frame), exit_code(frame)
  local captured
  local run = filter and expressions.filter(inner, filter, function() return captured end)
  local price = 1 + cost(filter)
  return function(env, rt)
    tick(rt, price)
    enter(env, rt)
    local s, signal = limits.capture(rt, body, env)
    if run and not signal then
      captured = s
      s = run(env, rt)
    end
    leave(env)
    return s, signal
  end
end

function COMPILE.set_block(c, node)
  local assign, capture = assigner(c, node.target), capture_code(c, node.body, node.filter)
  return function(env, rt)
    local v, signal = capture(env, rt)
    if signal then return signal end
    assign(env, rt, v)
    return nil
  end
end

function COMPILE.filter_block(c, node)
  local capture = capture_code(c, node.body, node.filter)
  return function(env, rt)
    local v, signal = capture(env, rt)
    if signal then return signal end
    write(rt, str(rt, v))
    return nil
  end
end

COMPILE["with"] = function(c, node)
  local frame = scope.new_frame(c.frame, c.frame.fn)
  for _, target in ipairs(node.targets) do scope.store_target(frame, target, true) end
  scope.visit(frame, node.body)
  local inner = within(c, frame)
  local values, assigns = {}, {}
  for i, target in ipairs(node.targets) do
    values[i], assigns[i] = compile(c, node.values[i]), assigner(inner, target)
  end
  local body, enter, leave = compile_body(inner, node.body), entry_code(frame), exit_code(frame)
  local price = 1 + cost(node.values) + cost(node.targets)
  return function(env, rt)
    tick(rt, price)
    enter(env, rt)
    for i = 1, #values do assigns[i](env, rt, values[i](env, rt)) end
    local signal = body(env, rt)
    leave(env)
    return signal
  end
end

-- loops -------------------------------------------------------------------------------------------------------------------

-- The values of a target as one value.
local function gatherer(c, target)
  if target.tag == "name" then
    local index = c.frame:find(target.name).index
    return function(env) return env[index] end
  end
  local parts, n = {}, #target.items
  for i, item in ipairs(target.items) do parts[i] = gatherer(c, item) end
  return function(env, rt)
    local items = {}
    for i = 1, n do items[i] = parts[i](env, rt) end
    return value.new_tuple(rt, items)
  end
end

-- The keep(item) of a loop with an `if`. Its test has its own slots for the target; an unpacked item is passed on as a tuple.
local function test_code(c, node, fn)
  if not node.test then return nil end
  local frame = scope.new_frame(c.frame, fn)
  scope.store_target(frame, node.target, true)
  scope.read(frame, node.test)
  local inner = within(c, frame)
  local assign, test, enter = assigner(inner, node.target), compile(inner, node.test), entry_code(frame)
  local gather, price = gatherer(inner, node.target), 1 + cost(node.test) + cost(node.target)
  return function(env, rt)
    enter(env, rt)
    return function(item)
      tick(rt, price)
      assign(env, rt, item)
      if truth(test(env, rt)) then return gather(env, rt) end
      return nil
    end
  end
end

-- Iterates over all items of a loop. Returns whether any item ran through the whole body. As in jinja2, the else branch runs if
-- every item ended in a continue or break.
local function iteration_code(c, node, frame, slot)
  local inner = within(c, frame, { in_loop = true })
  local assign, enter, body, at = assigner(inner, node.target), entry_code(frame), compile_body(inner, node.body), node.at
  local price = 1 + cost(node.target)
  return function(env, rt, l)
    local completed, outer, positions = false, rt.position, rt.positions
    while true do
      rt.at = at
      if not loop.advance(l) then
        rt.position = outer
        return completed
      end
      tick(rt, price)
      if positions then rt.position = positions[l.current] or outer end
      assign(env, rt, l.current)
      if slot then env[slot] = l end
      enter(env, rt)
      local signal = body(env, rt)
      if signal == BREAK then
        rt.position = outer
        return completed
      end
      if not signal then completed = true end
    end
  end
end

local function else_code(c, node, fn)
  if not node.otherwise then return function() end end
  local frame = scope.new_frame(c.frame, fn)
  scope.visit(frame, node.otherwise)
  local inner = within(c, frame)
  local enter, body, leave = entry_code(frame), compile_body(inner, node.otherwise), exit_code(frame)
  return function(env, rt)
    enter(env, rt)
    local signal = body(env, rt)
    leave(env)
    return signal
  end
end

local function check_loop_target(node)
  scope.walk_names(node, false, function(name, is_target, n)
    if is_target and name == "loop" then stop(n.at, "Can't assign to special loop variable in for-loop target") end
  end)
end

-- A recursive loop is a function of its iterable: loop(items) runs it one level deeper and returns its text.
local function recursive_code(run, keep, iterable, at, price)
  local function start(env, rt, items, depth0)
    limits.enter(rt)
    local inner = { up = env }
    local function again(rt2, args, n)
      if n ~= 1 then fail("type", "loop() takes one iterable") end
      return (start(env, rt2, args[1], depth0 + 1))
    end
    local l = loop.new(rt, items, keep and keep(inner, rt), depth0, again)
    local s, signal = limits.capture(rt, function() return run(inner, rt, l) end, inner)
    rt.depth = rt.depth - 1
    return s, signal
  end
  return function(env, rt)
    tick(rt, price)
    local items = iterable(env, rt)
    rt.at = at
    write(rt, (start(env, rt, items, 0)))
  end
end

local function not_recursive()
  fail("type", "The loop must have the 'recursive' marker to be called recursively.")
end

COMPILE["for"] = function(c, node)
  check_loop_target(node)
  local at, iterable = node.at, compile(c, node.iterable)
  local fn = node.recursive and scope.new_function(c.frame.fn) or c.frame.fn
  local frame = scope.new_frame(c.frame, fn)
  local slot = (node.recursive or scope.undeclared(node.body, { "loop" }).loop) and frame:parameter("loop").index
  scope.store_target(frame, node.target, true)
  scope.visit(frame, node.body)
  local around = node.recursive and within(c, scope.new_frame(c.frame, fn), { in_loop = false }) or c
  local keep, iterate = test_code(around, node, fn), iteration_code(around, node, frame, slot)
  local otherwise, leave = else_code(around, node, fn), exit_code(frame)
  local function run(env, rt, l)
    if not iterate(env, rt, l) then
      leave(env)
      return otherwise(env, rt)
    end
    leave(env)
    return nil
  end
  local price = 2 + cost(node.iterable)
  if node.recursive then return recursive_code(run, keep, iterable, at, price) end
  return function(env, rt)
    tick(rt, price)
    local items = iterable(env, rt)
    rt.at = at
    return run(env, rt, loop.new(rt, items, keep and keep(env, rt), 0, not_recursive))
  end
end

COMPILE["break"] = function(c, node)
  if not c.in_loop then stop(node.at, "'break' outside loop") end
  return function() return BREAK end
end

COMPILE["continue"] = function(c, node)
  if not c.in_loop then stop(node.at, "'continue' outside loop") end
  return function() return CONTINUE end
end

-- macros ------------------------------------------------------------------------------------------------------------------

local SPECIAL = { "caller", "kwargs", "varargs" }

-- The frame of a macro, and the slots of its parameters and of the special names that its body uses.
local function macro_frame(c, node)
  local frame = scope.new_frame(c.frame, scope.new_function(c.frame.fn))
  local slots, declared = {}, {}
  for i, name in ipairs(node.parameters) do
    slots[i], declared[name] = frame:parameter(name).index, i
  end
  local used = scope.undeclared(node.body, SPECIAL)
  for _, name in ipairs(SPECIAL) do
    if used[name] and name == "caller" and declared.caller and not node.defaults[declared.caller] then
      stop(node.at, 'the special "caller" argument must be omitted or be given a default')
    end
    if used[name] and not declared[name] then slots[name] = frame:parameter(name).index end
  end
  for _, default in pairs(node.defaults) do scope.read(frame, default) end
  scope.visit(frame, node.body)
  return frame, slots
end

local function too_many(name, node)
  fail("type", "macro %s takes not more than %d argument(s)", name, #node.parameters)
end

-- The keyword arguments that no parameter took. The others are removed from kwargs.map, but not from kwargs.keys.
local function rest_of(rt, kwargs)
  local keys = {}
  for _, key in ipairs(kwargs.keys) do
    if value.get(rt, kwargs, key) ~= nil then keys[#keys + 1] = key end
  end
  kwargs.keys = keys
  return kwargs
end

-- Puts the arguments of a call into the slots of a macro, by the rules of jinja2.runtime.Macro.
local function bind_arguments(node, slots, name)
  local count = #node.parameters
  return function(rt, env, args, n, kwargs)
    local rest = kwargs and value.copy_dict(rt, kwargs)
    local function take(key)
      local v = rest and rest.map[key]
      if v ~= nil then rest.map[key] = nil end
      return v
    end
    for i = 1, count do
      local v = args[i]
      if i > n then v = take(node.parameters[i]) end
      env[slots[i]] = v
    end
    if slots.caller then
      env[slots.caller] = take("caller") or value.new_undefined(rt, "No caller defined", "caller")
    end
    rest = rest and rest_of(rt, rest)
    if slots.kwargs then
      env[slots.kwargs] = rest or value.new_dict(rt)
    elseif rest and rest.keys[1] ~= nil then
      fail("type", "macro %s takes no keyword argument %s", name, value.brief(rt, rest.keys[1]))
    end
    if slots.varargs then
      limits.tick(rt, 1 + (n >> 2))
      env[slots.varargs] = value.new_tuple(rt, table.move(args, count + 1, n, 1, {}))
    elseif n > count then
      too_many(name, node)
    end
  end
end

-- A closure (rt, env) that returns the macro value, or the caller of a call block. A call pays for its slots.
local function macro_code(c, node)
  local frame, slots = macro_frame(c, node)
  local inner = within(c, frame, { in_loop = false })
  local defaults = {}
  for i, name in ipairs(node.parameters) do
    local default = node.defaults[i]
    defaults[i] = default and compile(inner, default)
      or function(_, rt) return value.new_undefined(rt, ("parameter '%s' was not provided"):format(name), name) end
  end
  local body, enter, fn = compile_body(inner, node.body), entry_code(frame), frame.fn
  local name = node.name or value.NONE
  local bind = bind_arguments(node, slots, node.name and "'" .. node.name .. "'" or "None")
  local arguments = value.new_tuple(nil, node.parameters)
  local price = 1 + #defaults // 2 + cost(node.defaults)
  return function(rt_outer, outer)
    tick(rt_outer)
    return value.make(rt_outer, "macro", {
      name = name, arguments = arguments, catch_kwargs = slots.kwargs ~= nil, catch_varargs = slots.varargs ~= nil,
      caller = slots.caller ~= nil,
      call = function(rt, args, n, kwargs)
        limits.enter(rt)
        tick(rt, price)
        limits.make(rt, limits.OBJECT + fn.n * limits.ITEM)
        local env = { up = outer }
        bind(rt, env, args, n, kwargs)
        enter(env, rt)
        for i = 1, #defaults do
          if env[slots[i]] == nil then env[slots[i]] = defaults[i](env, rt) end
        end
        local s = limits.capture(rt, body, env)
        rt.depth = rt.depth - 1
        return s
      end,
    })
  end
end

function COMPILE.macro(c, node)
  local make, assign = macro_code(c, node), assigner(c, { tag = "name", name = node.name })
  return function(env, rt)
    tick(rt)
    assign(env, rt, make(rt, env))
  end
end

function COMPILE.call_block(c, node)
  local make = macro_code(c, node)
  local call, price = expressions.call(c, node.call, function(env, rt) return make(rt, env) end), 1 + cost(node.call)
  return function(env, rt)
    tick(rt, price)
    write(rt, str(rt, call(env, rt)))
  end
end

function COMPILE.generation(c, node)
  local make = macro_code(c, node)
  return function(env, rt)
    tick(rt)
    write(rt, make(rt, env).call(rt, {}, 0))
  end
end

--- A template: a function of rt that writes to rt.out. rt.resolve(name) returns a template variable, a global or nil.
function M.template(statements)
  local frame = scope.new_frame(nil, scope.new_function(nil))
  scope.visit(frame, statements)
  local c = { frame = frame, in_loop = false }
  local body, enter = compile_body(c, statements), entry_code(frame)
  return function(rt)
    local env = {}
    enter(env, rt)
    body(env, rt)
  end
end

return M
