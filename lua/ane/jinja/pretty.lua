--- Python's pprint.pformat(), for the pprint filter: lines of at most 80 columns where possible, sorted keys.
-- Needs ane.jinja.limits, sort, text and value. Usage: `pretty.format(rt, v)`

local limits = require "ane.jinja.limits"
local sort = require "ane.jinja.sort"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local M = {}

local WIDTH = 80

-- pprint's _safe_key: keys without a common order are ordered by the name of their type.
local function sorted_keys(rt, d)
  return sort.stable(rt, d.keys, function(a, b)
    local x, y = value.kind(a), value.kind(b)
    if value.as_number(a) and value.as_number(b) or x == y and x == "str" then return value.order(rt, "<", a, b) end
    return value.typename(a) < value.typename(b)
  end)
end

-- repr() with the keys of dicts sorted.
local function flat(rt, v)
  limits.tick(rt, 8)
  local k = value.kind(v)
  if k ~= "dict" and k ~= "list" and k ~= "tuple" then return value.repr(rt, v) end
  limits.enter(rt)
  limits.table(rt, k == "dict" and 2 * #v.keys or #v)
  local parts = {}
  if k == "dict" then
    for i, key in ipairs(sorted_keys(rt, v)) do parts[i] = flat(rt, key) .. ": " .. flat(rt, value.get(rt, v, key)) end
  else
    for i, item in ipairs(v) do parts[i] = flat(rt, item) end
  end
  rt.depth = rt.depth - 1
  limits.spare(rt, rt.max_string)
  local inside = table.concat(parts, ", ")
  limits.grow(rt, #inside + 3)
  if k == "dict" then return "{" .. inside .. "}" end
  if k == "list" then return "[" .. inside .. "]" end
  return "(" .. inside .. (#v == 1 and ",)" or ")")
end

local write

local function write_items(e, n, part, indent, allowance)
  for i = 1, n do
    if i > 1 then e.add(",\n" .. e.blank(indent)) end
    part(i, i == n and allowance or 1)
  end
end

local function write_dict(e, d, indent, allowance)
  local keys = sorted_keys(e.rt, d)
  e.add("{")
  write_items(e, #keys, function(i, room)
    local key = flat(e.rt, keys[i])
    e.add(key .. ": ")
    limits.read(e.rt, #key)
    write(e, value.get(e.rt, d, keys[i]), indent + 1 + text.length(key) + 2, room)
  end, indent + 1, allowance + 1)
  e.add("}")
end

local function write_sequence(e, v, open, close, indent, allowance)
  e.add(open)
  write_items(e, #v, function(i, room) write(e, v[i], indent + 1, room) end, indent + 1, allowance + #close)
  e.add(close)
end

-- The pieces of a line of a long string, each with the white space after it: re.findall(r'\S*\s*', line).
local function pieces_of(line)
  local out, current, blank = {}, {}, false
  for _, c in ipairs(text.characters(line)) do
    local is_space = text.SPACE[c] == true
    if blank and not is_space then
      out[#out + 1], current = table.concat(current), {}
    end
    current[#current + 1], blank = c, is_space
  end
  out[#out + 1] = table.concat(current)
  return out
end

-- One line of a string as literals of at most `room` columns, the last of at most `last_room`.
local function split_line(line, room, last_room, add)
  local quoted = text.quote(line)
  if text.length(quoted) <= last_room then return add(quoted) end
  local pieces, current = pieces_of(line), ""
  for i, piece in ipairs(pieces) do
    local limit = i == #pieces and last_room or room
    if current ~= "" and text.length(text.quote(current .. piece)) > limit then
      add(text.quote(current))
      current = piece
    else
      current = current .. piece
    end
  end
  if current ~= "" then add(text.quote(current)) end
end

local function write_string(e, s, indent, allowance, level)
  limits.tick(e.rt, 1 + 3 * #s)
  limits.spare(e.rt, 2 * limits.ITEM * #s)
  if s == "" then return e.add("''") end
  local lines, chunks = text.lines(e.rt, s, true), {}
  if level == 1 then indent, allowance = indent + 1, allowance + 1 end
  local room = WIDTH - indent
  for i, line in ipairs(lines) do
    local last_room = i == #lines and room - allowance or room
    split_line(line, room, last_room, function(chunk)
      limits.make(e.rt, #chunk + limits.OBJECT)
      chunks[#chunks + 1] = chunk
    end)
  end
  if #chunks == 1 then return e.add(chunks[1]) end
  if level == 1 then e.add("(") end
  for i, chunk in ipairs(chunks) do
    if i > 1 then e.add("\n" .. e.blank(indent)) end
    e.add(chunk)
  end
  if level == 1 then e.add(")") end
end

function write(e, v, indent, allowance)
  e.level = e.level + 1
  limits.enter(e.rt)
  local k, s = value.kind(v), flat(e.rt, v)
  limits.read(e.rt, #s)
  if text.length(s) <= WIDTH - indent - allowance then
    e.add(s)
  elseif k == "dict" then
    write_dict(e, v, indent, allowance)
  elseif k == "list" then
    write_sequence(e, v, "[", "]", indent, allowance)
  elseif k == "tuple" then
    write_sequence(e, v, "(", #v == 1 and ",)" or ")", indent, allowance)
  elseif k == "str" then
    write_string(e, v, indent, allowance, e.level)
  else
    e.add(s)
  end
  e.rt.depth = e.rt.depth - 1
  e.level = e.level - 1
end

--- pformat(v)
function M.format(rt, v)
  local add, finish = limits.buffer(rt)
  local function blank(n)
    limits.spare(rt, 2 * n)
    return (" "):rep(n)
  end
  write({ rt = rt, level = 0, add = add, blank = blank }, v, 0, 0)
  return finish()
end

return M
