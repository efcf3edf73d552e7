--- Plain Lua data as template values. Takes time and memory in proportion to the data.
-- Needs ane.jinja.limits, text and value. Usage: `convert.from_lua({ role = "user", content = "hi" })`

local limits = require "ane.jinja.limits"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local fail = limits.fail

local M = {}

--- Deepest nesting of the data. A table that contains itself exceeds it.
M.MAX_DEPTH = 128

-- The types of keys, in the order of mixed keys.
local KEY_RANK = { boolean = 1, number = 2, string = 3 }

local function key_before(a, b)
  local x, y = KEY_RANK[type(a)], KEY_RANK[type(b)]
  if x ~= y then return x < y end
  if type(a) == "boolean" then return not a and b end
  return a < b
end

-- The path of a value as text, for messages. A path is a text at the root, else { parent, key, list = is the key an index? }.
local function path_text(path)
  if type(path) == "string" then return path end
  local key = path[2]
  if type(key) == "string" and #key > 60 then key = key:sub(1, 60) .. "..." end
  return path_text(path[1]) .. (path.list and "[" .. key .. "]" or "." .. tostring(key))
end

local function keys_of(t, path)
  local order = (getmetatable(t) or {}).__order
  local keys = {}
  for key in pairs(t) do
    if not KEY_RANK[type(key)] then fail("type", "%s: a key is a %s", path_text(path), type(key)) end
    keys[#keys + 1] = key
  end
  table.sort(keys, key_before)
  if type(order) ~= "table" then return keys end
  local ordered, seen = {}, {}
  for _, key in ipairs(order) do
    if t[key] ~= nil and not seen[key] then
      ordered[#ordered + 1], seen[key] = key, true
    end
  end
  for _, key in ipairs(keys) do
    if not seen[key] then ordered[#ordered + 1] = key end
  end
  return ordered
end

local function check_text(s, path)
  if not utf8.len(s) then fail("value", "%s", text.fault(s, path_text(path))) end
  return s
end

local convert

local function is_array(t)
  local n = 0
  for key in pairs(t) do
    if math.type(key) ~= "integer" or key < 1 then return false end
    n = n + 1
  end
  return n == #t
end

local function convert_table(t, path, depth)
  if depth > M.MAX_DEPTH then fail("limit", "%s: nested more than %d levels", path_text(path), M.MAX_DEPTH) end
  if is_array(t) then
    local items = {}
    for i = 1, #t do items[i] = convert(t[i], { path, i, list = true }, depth + 1) end
    return value.new_list(nil, items)
  end
  local d = value.new_dict(nil)
  for _, key in ipairs(keys_of(t, path)) do
    if type(key) == "string" and not utf8.len(key) then check_text(key, path_text(path) .. ": a key") end
    value.put(nil, d, key, convert(t[key], { path, key }, depth + 1))
  end
  return d
end

function convert(v, path, depth)
  local t = type(v)
  if t == "string" then return check_text(v, path) end
  if t == "boolean" or t == "number" then return v end
  if t == "nil" then return value.NONE end
  if t ~= "table" then fail("type", "%s: a %s cannot be a template value", path_text(path), t) end
  local mt = getmetatable(v)
  if mt and mt.kind and value[mt.kind] == mt then return v end
  if v == value.NONE then return v end
  return convert_table(v, path, depth)
end

--- A template value for Lua data; faults name the path. Tables with keys 1..n and empty tables become lists. Other tables
-- become dicts, in the order of `__order` in their metatable, else with sorted keys. Values of the engine stay as they are.
function M.from_lua(v, path)
  return convert(v, path or "value", 0)
end

--- A dict in a given order: `dict { { "role", "user" }, { "content", "hi" } }`. Other tables get sorted keys.
function M.dict(t)
  local d, is_pairs = value.new_dict(nil), #t > 0
  for _, pair in ipairs(t) do is_pairs = is_pairs and type(pair) == "table" and #pair == 2 and type(pair[1]) == "string" end
  if is_pairs then
    for _, pair in ipairs(t) do value.put(nil, d, check_text(pair[1], "a key"), M.from_lua(pair[2], pair[1])) end
    return d
  end
  for _, key in ipairs(keys_of(t, "dict")) do value.put(nil, d, key, M.from_lua(t[key], tostring(key))) end
  return d
end

--- A list, also for an empty table.
function M.list(t)
  local items = {}
  for i = 1, #t do items[i] = M.from_lua(t[i], ("[%d]"):format(i)) end
  return value.new_list(nil, items)
end

return M
