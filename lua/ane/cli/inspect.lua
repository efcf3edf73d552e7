--- Values as text for people: tables with their parts, tensors and other objects by their own tostring.
-- Needs nothing. Usage: `print(inspect.text({1, 2, {name = "x"}}))`

local M = {}

local WIDTH, DEPTH, ITEMS = 100, 4, 40

local function key_text(key)
  if type(key) == "string" and key:match "^[%a_][%w_]*$" then return key end
  return "[" .. (type(key) == "string" and ("%q"):format(key) or tostring(key)) .. "]"
end

local function order(a, b)
  if type(a) == "number" and type(b) == "number" then return a < b end
  if type(a) ~= type(b) then return type(a) < type(b) end
  return tostring(a) < tostring(b)
end

local value_text

-- Returns the parts of a table, list part first.
local function parts_of(t, depth, seen)
  local parts, n = {}, #t
  for i = 1, math.min(n, ITEMS) do parts[i] = value_text(t[i], depth + 1, seen) end
  if n > ITEMS then parts[#parts + 1] = ("... %d more"):format(n - ITEMS) end
  local keys = {}
  for key in next, t do
    if math.type(key) ~= "integer" or key < 1 or key > n then keys[#keys + 1] = key end
  end
  table.sort(keys, order)
  for i = 1, math.min(#keys, ITEMS) do
    parts[#parts + 1] = key_text(keys[i]) .. " = " .. value_text(t[keys[i]], depth + 1, seen)
  end
  if #keys > ITEMS then parts[#parts + 1] = ("... %d more"):format(#keys - ITEMS) end
  return parts
end

local function table_text(t, depth, seen)
  if seen[t] then return "{...}" end
  if depth > DEPTH then return tostring(t) end
  seen[t] = true
  local parts = parts_of(t, depth, seen)
  seen[t] = nil
  local length = 0
  for _, part in ipairs(parts) do
    if part:find("\n", 1, true) then length = WIDTH end
    length = length + #part + 2
  end
  if length + 2 * depth < WIDTH then return "{" .. table.concat(parts, ", ") .. "}" end
  local indent = ("  "):rep(depth + 1)
  return "{\n" .. indent .. table.concat(parts, ",\n" .. indent) .. "\n" .. ("  "):rep(depth) .. "}"
end

function value_text(v, depth, seen)
  if type(v) == "string" then return depth == 0 and v or (("%q"):format(v):gsub("\\\n", "\\n")) end
  if type(v) ~= "table" then return tostring(v) end
  local mt = getmetatable(v)
  if type(mt) == "table" and mt.__tostring then return tostring(v) end
  return table_text(v, depth, seen)
end

--- Returns the text of a value; of a string, the string itself.
function M.text(v)
  return value_text(v, 0, {})
end

return M
