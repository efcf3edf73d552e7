--- The `loop` variable of a for statement.
-- Needs ane.jinja.limits and value. A loop runs over a table of items, or over a range or generator with one item of
-- lookahead, as in jinja2's LoopContext. A lazy filter therefore runs no earlier than in jinja2.
-- Usage: `local l = loop.new(rt, iterable, keep, depth0, recurse); while loop.advance(l) do use(l.current) end`

local limits = require "ane.jinja.limits"
local value = require "ane.jinja.value"

local fail = limits.fail

local M = {}

--- A loop over an iterable. keep(item), if given, runs when the item is needed and returns the item to use, or nil to skip it.
function M.new(rt, iterable, keep, depth0, recurse)
  local l = { index0 = -1, depth0 = depth0, call = recurse }
  local k = value.kind(iterable)
  if k ~= "iter" and k ~= "range" and not keep then
    l.items = value.collect(rt, iterable)
    l.n = #l.items
    return value.make(rt, "loop", l)
  end
  local next_item = value.iterate(rt, iterable)
  l.next = next_item
  if k == "range" and not keep then l.n = iterable.n end
  if keep then
    l.next = function()
      while true do
        local item = next_item()
        if item == nil then return nil end
        local kept = keep(item)
        if kept ~= nil then return kept end
        limits.tick(rt)
      end
    end
  end
  return value.make(rt, "loop", l)
end

local function peek(l)
  if l.items then return l.items[l.index0 + 2] end
  if not l.peeked then
    l.after, l.peeked = l.next(), true
  end
  return l.after
end

--- Goes to the next item, which is then l.current; false at the end.
function M.advance(l)
  local item = peek(l)
  if item == nil then return false end
  l.peeked, l.after = false, nil
  l.before, l.current, l.index0 = l.current, item, l.index0 + 1
  return true
end

-- The length of a generator: the rest of it becomes a table.
local function length(l, rt)
  if not l.n then
    local rest = {}
    if l.peeked then rest[1] = l.after end
    if not (l.peeked and l.after == nil) then
      for item in l.next do
        limits.tick(rt)
        limits.make(rt, limits.ITEM)
        rest[#rest + 1] = item
      end
    end
    local i = 0
    l.peeked, l.after = false, nil
    l.next = function()
      i = i + 1
      return rest[i]
    end
    l.n = #rest + l.index0 + 1
  end
  return l.n
end

local function cycle(l)
  return function(_, args, n)
    if n == 0 then fail("type", "no items for cycling given") end
    return args[l.index0 % n + 1]
  end
end

local function changed(l)
  return function(rt, args, n)
    limits.tick(rt, 1 + n)
    local now = value.new_tuple(rt, table.move(args, 1, n, 1, {}))
    if l.last_changed and value.eq(rt, l.last_changed, now) then return false end
    l.last_changed = now
    return true
  end
end

local FIELDS = {
  index = function(l) return l.index0 + 1 end,
  index0 = function(l) return l.index0 end,
  first = function(l) return l.index0 == 0 end,
  last = function(l) return peek(l) == nil end,
  length = length,
  revindex = function(l, rt) return length(l, rt) - l.index0 end,
  revindex0 = function(l, rt) return length(l, rt) - l.index0 - 1 end,
  depth = function(l) return l.depth0 + 1 end,
  depth0 = function(l) return l.depth0 end,
  previtem = function(l, rt)
    if l.index0 == 0 then return value.new_undefined(rt, "there is no previous item") end
    return l.before
  end,
  nextitem = function(l, rt)
    local item = peek(l)
    if item == nil then return value.new_undefined(rt, "there is no next item") end
    return item
  end,
  cycle = function(l, rt) return value.new_func(rt, "cycle", cycle(l)) end,
  changed = function(l, rt) return value.new_func(rt, "changed", changed(l)) end,
}

--- loop.name, or nil.
function M.getattr(rt, l, name)
  local field = FIELDS[name]
  return field and field(l, rt)
end

return M
