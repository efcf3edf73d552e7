--- Values that callers nest: refused if they contain themselves, or are nested so deeply or refer so often to the same tables that a
-- copy of them would not end.
-- Needs ane.util.list. Usage: `local fault = nested.fault(messages); if fault then return nil, "messages " .. fault, "invalid" end`

local list_of = require "ane.util.list"

local M = {}

--- The deepest nesting, and the most values of a copy, each reference counted.
M.DEPTH, M.VALUES = 256, 10000000

local measure

-- Height of a table and number of the values in it; or nil, what is wrong. seen: both by table; 0 while a table is measured.
local function measure_table(t, depth, seen)
  if depth > M.DEPTH then return nil, ("is nested deeper than %d tables"):format(M.DEPTH) end
  if list_of.gives_more(t) then return nil, "has a table that " .. list_of.MORE end
  seen[t] = 0
  local height, count = 0, 1
  for key, value in next, t do
    if type(key) == "table" then return nil, "has a table as a key" end
    if type(value) == "table" then
      local h, n = measure(value, depth + 1, seen)
      if not h then return nil, n end
      height, count = math.max(height, h), count + n
    else
      count = count + 1
    end
    if count > M.VALUES then return nil, ("has more than %d values"):format(M.VALUES) end
  end
  seen[t] = { height + 1, count }
  return height + 1, count
end

function measure(t, depth, seen)
  local known = seen[t]
  if known == 0 then return nil, "contains itself" end
  if not known then return measure_table(t, depth, seen) end
  if depth + known[1] - 1 > M.DEPTH then return nil, ("is nested deeper than %d tables"):format(M.DEPTH) end
  return known[1], known[2]
end

--- What is wrong with a value of nested tables; nil: nothing. Takes time in proportion to its tables.
function M.fault(v)
  if type(v) ~= "table" then return nil end
  local height, fault = measure(v, 1, {})
  if not height then return fault end
end

return M
