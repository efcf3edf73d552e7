--- Name resolution at compile time, by the rules of jinja2/idtracking.py.
-- A frame is the scope of a template, a for, a with, a macro or a capturing block; an if has no frame. A name that a frame only
-- reads is looked up on entry to the frame. A name that it stores is its own and starts as a copy of the outer name, so a loop
-- forgets its assignments. Frames of one function (the template, a macro, a recursive loop) share one table of slots.
-- A frame has refs: name -> slot; loads: slot -> what fills it on entry; stores: set of stored names; slots: name -> slot.
-- Needs nothing. Usage: `scope.visit(frame, statements); local slot = frame:slot("x")`

local M = {}

local Frame = {}
Frame.__index = Frame

--- A function of a template: n slots at run time, and the function around it.
function M.new_function(outer)
  return { outer = outer, depth = outer and outer.depth + 1 or 0, n = 0 }
end

--- A frame of a function within another frame (nil for the template).
function M.new_frame(parent, fn)
  return setmetatable({ parent = parent, fn = fn, refs = {}, loads = {}, stores = {}, slots = {} }, Frame)
end

-- Each name of a frame has one slot, which the branches of an if share.
local function define(frame, name, action, source)
  local slot = frame.slots[name]
  if not slot then
    frame.fn.n = frame.fn.n + 1
    slot = { fn = frame.fn, index = frame.fn.n, name = name }
    frame.slots[name] = slot
  end
  frame.refs[name] = slot
  if action then frame.loads[slot] = { action = action, source = source } end
  return slot
end

--- The slot of a name in this frame or an outer one, or nil.
function Frame:find(name)
  local frame = self
  while frame do
    if frame.refs[name] then return frame.refs[name] end
    frame = frame.parent
  end
  return nil
end

function Frame:load(name)
  if not self:find(name) then define(self, name, "resolve", name) end
end

function Frame:store(name)
  self.stores[name] = true
  if self.refs[name] then return end
  local outer = self.parent and self.parent:find(name)
  if outer then
    define(self, name, "alias", outer)
  else
    define(self, name, "undefined")
  end
end

--- A name whose value comes from outside when the frame starts.
function Frame:parameter(name)
  self.stores[name] = true
  return define(self, name, "parameter")
end

local function layer(t)
  return setmetatable({}, { __index = t })
end

-- The frame of one branch of an if. It stores only the changes over the outer frame, so an if costs no more than its own names.
function Frame:branch()
  return setmetatable({
    parent = self.parent, fn = self.fn, slots = self.slots,
    refs = layer(self.refs), loads = layer(self.loads), stores = layer(self.stores),
  }, Frame)
end

-- Joins the branches of an if. A name that only some branch stores starts with the outer or the given value.
function Frame:merge(branches)
  local stored = {}
  for _, branch in ipairs(branches) do
    for name in pairs(branch.stores) do
      if not self.stores[name] then stored[name] = true end
    end
  end
  for _, branch in ipairs(branches) do
    for name, slot in pairs(branch.refs) do self.refs[name] = slot end
    for slot, load in pairs(branch.loads) do self.loads[slot] = load end
    for name in pairs(branch.stores) do self.stores[name] = true end
  end
  for name in pairs(stored) do
    local outer = self.parent and self.parent:find(name)
    self.loads[self:find(name)] = outer and { action = "alias", source = outer } or { action = "resolve", source = name }
  end
end

--- Calls found(name, node) for each name an expression reads.
function M.each_name(node, found)
  if node.tag == "name" then return found(node.name, node) end
  for _, child in pairs(node) do
    if type(child) == "table" and child.kind == nil then M.each_name(child, found) end
  end
end

local function read(frame, node)
  if node then M.each_name(node, function(name) frame:load(name) end) end
end

--- Notes what an assignment target stores; as_parameter for the target of a for or a with.
function M.store_target(frame, node, as_parameter)
  if node.tag == "tuple" then
    for _, item in ipairs(node.items) do M.store_target(frame, item, as_parameter) end
  elseif node.tag == "attr_target" then
    frame:load(node.name)
  elseif as_parameter then
    frame:parameter(node.name)
  else
    frame:store(node.name)
  end
end

local function visit_if(frame, node)
  -- An elif is an if in its own branch, which reads its test.
  read(frame, node.tests[1])
  local branches = { frame:branch() }
  M.visit(branches[1], node.bodies[1])
  local rest = frame:branch()
  for i = 2, #node.tests do
    M.visit(rest, { { tag = "if", tests = { node.tests[i] }, bodies = { node.bodies[i] } } })
  end
  branches[2], branches[3] = rest, frame:branch()
  M.visit(branches[3], node.otherwise or {})
  frame:merge(branches)
end

-- By tag. A statement with its own frame is visited here only in its parts outside of that frame.
local VISIT = {
  data = function() end,
  print = function(frame, node) read(frame, node.value) end,
  print_list = function(frame, node) read(frame, node.values) end,
  ["do"] = function(frame, node) read(frame, node.value) end,
  ["if"] = visit_if,
  ["for"] = function(frame, node) read(frame, node.iterable) end,
  set = function(frame, node)
    read(frame, node.value)
    M.store_target(frame, node.target)
  end,
  set_block = function(frame, node) M.store_target(frame, node.target) end,
  macro = function(frame, node) frame:store(node.name) end,
  call_block = function(frame, node) read(frame, node.call) end,
  filter_block = function(frame, node) read(frame, node.filter) end,
  with = function(frame, node) read(frame, node.values) end,
  generation = function() end,
  ["break"] = function() end,
  ["continue"] = function() end,
}

--- Notes what statements read and store in a frame.
function M.visit(frame, statements)
  for _, node in ipairs(statements) do VISIT[node.tag](frame, node) end
end

--- Notes what an expression of a frame reads.
M.read = read

-- The children of statements, in the order of jinja2's walk.
local PARTS = {
  print = { "value" }, print_list = { "values" }, ["do"] = { "value" }, set = { "target", "value" },
  set_block = { "target", "filter", "body" }, ["if"] = { "tests", "bodies", "otherwise" },
  ["for"] = { "target", "iterable", "body", "otherwise", "test" }, macro = { "defaults", "body" },
  call_block = { "call", "defaults", "body" }, filter_block = { "body", "filter" }, with = { "targets", "values", "body" },
  generation = { "body" },
}
local TARGETS = { target = true, targets = true }

local function walk_names(node, is_target, found)
  local parts = PARTS[node.tag]
  if parts then
    for _, field in ipairs(parts) do
      if node[field] then walk_names(node[field], TARGETS[field] or false, found) end
    end
  elseif node.tag == "name" then
    found(node.name, is_target, node)
  elseif node.tag then
    M.each_name(node, function(name, n) found(name, is_target, n) end)
  else
    local last = 0
    for i in pairs(node) do last = math.max(last, i) end
    for i = 1, last do
      if node[i] then walk_names(node[i], is_target, found) end
    end
  end
end

--- Calls found(name, is_target, node) for each name in statements and all that they contain, in order.
M.walk_names = walk_names

--- The names of a list that statements read before they store them, as a set.
function M.undeclared(statements, names)
  local open, result = {}, {}
  for _, name in ipairs(names) do open[name] = true end
  walk_names(statements, false, function(name, is_target)
    if not open[name] then return end
    if is_target then
      open[name] = nil
    else
      result[name] = true
    end
  end)
  return result
end

--- The work on entry to a frame: a list of { action, slot, source }, in the order of the slots.
function Frame:entries()
  local out = {}
  for slot, load in pairs(self.loads) do
    out[#out + 1] = { action = load.action, slot = slot, source = load.source }
  end
  table.sort(out, function(a, b) return a.slot.index < b.slot.index end)
  return out
end

return M
