--- Lists that callers give: tables with the keys 1 .. n and no others.
-- Needs nothing. Usage: `local fault = list.fault(prompts); if fault then error("prompts " .. fault, 2) end`

local M = {}

-- A key, as messages show it. Addresses of tables say nothing.
local function shown(key)
  local kind = type(key)
  if kind == "string" and #key <= 60 and key:find "^[%w_.-]+$" then return key end
  if kind == "string" then return ("%q"):format(#key > 60 and key:sub(1, 60) .. "..." or key) end
  return (kind == "number" or kind == "boolean" or kind == "nil") and tostring(key) or "a " .. kind
end
M.shown = shown

--- The type of a value, as messages name it: "a table", or "nil".
function M.kind(v) return v == nil and "nil" or "a " .. type(v) end

--- The fault of a table for which gives_more() is true, as the end of a message.
M.MORE = "must be a plain table, not one with a metatable that gives more (__index, __len, __pairs)"

-- Is __index a class: a table without list entries, whose own __index, if any, is such a table too?
local function is_class(index)
  for _ = 1, 100 do
    if type(index) ~= "table" or rawlen(index) > 0 then return false end
    local mt = getmetatable(index)
    if mt == nil then return true end
    index = type(mt) == "table" and rawget(mt, "__index")
    if index == nil then return true end
  end
  return false
end

--- Does a metatable add entries to a table? Functions that read without metamethods would not see them. Values of this library may have any
-- metatable, and a list may have a class with methods.
function M.gives_more(t)
  local mt = getmetatable(t)
  if mt == nil then return false end
  if type(mt) ~= "table" then return true end -- hidden
  local name, index = rawget(mt, "__name"), rawget(mt, "__index")
  if type(name) == "string" and name:find "^ane%." then return false end
  if rawget(mt, "__len") ~= nil or rawget(mt, "__pairs") ~= nil then return true end
  return index ~= nil and not (rawlen(t) > 0 and is_class(index))
end

-- The fault of a table that has more than the keys 1 .. n.
local function stray(t, n)
  local key = next(t)
  while key ~= nil do
    local inside = math.type(key) == "integer" and key >= 1 and key <= n
    if not inside and math.type(key) == "integer" and key > n then return ("must be a list, but has no entry %d"):format(n + 1) end
    if not inside then return ("must be a list, but has the key %s"):format(shown(key)) end
    key = next(t, key)
  end
end

--- What is wrong with a table as a list, for callers that look at each entry 1 .. #t themselves. It takes constant time unless a part of
-- the table is a hash.
-- @return a text such as "must be a list, but has the key x"; nil: nothing
function M.stray(t)
  if M.gives_more(t) then return M.MORE end
  local n = rawlen(t)
  local after
  if n > 0 then after = next(t, n) else after = next(t) end
  return after ~= nil and stray(t, n) or nil
end

--- What is wrong with a table as a list: holes and other keys.
-- @return a text such as "must be a list, but has no entry 2"; nil: nothing
function M.fault(t)
  for i = 1, rawlen(t) do
    if rawget(t, i) == nil then return ("must be a list, but has no entry %d"):format(i) end
  end
  return M.stray(t)
end

--- Returns the length of the longest common prefix of two lists.
function M.common_prefix(a, b)
  local n = math.min(#a, #b)
  for i = 1, n do
    if a[i] ~= b[i] then return i - 1 end
  end
  return n
end

--- What is wrong with a table as a list of token ids, but for their maximum.
-- @return a text such as "entry 2 of the ids is x, not a token id"; nil: nothing
function M.ids_fault(t)
  for i = 1, rawlen(t) do
    local id = rawget(t, i)
    if math.type(id) ~= "integer" or id < 0 then return ("entry %d of the ids is %s, not a token id"):format(i, shown(id)) end
  end
  local fault = M.stray(t)
  return fault and "the ids " .. fault or nil
end

return M
