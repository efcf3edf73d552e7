--- Changes JSON by its tokens: a value is replaced by one of VALUES or of the same text, removed, duplicated or wrapped.
-- Usage: `M.mutate = mutate_json.mutator { "rope_theta", "linear" }`; the words are texts that the format knows

local numbers = require "lib.numbers"

local M = {}

local VALUES = {
  "null", "true", "false", "0", "1", "-1", "2", "0.5", "1e308", "-1e-308", "65537", "2147483648", "9007199254740993", "1e999", '""', '"x"',
  '"\\u0000"', '"\\ud83d\\ude00"', "[]", "{}", "[1]", '["x"]', '{"a":1}', "[[[[]]]]",
}

-- The tokens of a text: list of {first, last, kind}; kind: "string", "scalar", or the character itself.
local function tokens(text)
  local list, at = {}, 1
  while #list < 20000 do
    at = text:find("%S", at)
    if not at then return list end
    local c = text:sub(at, at)
    local last, kind
    if c == '"' then
      last, kind = at, "string"
      repeat
        last = text:find('["\\]', last + 1)
        if last and text:sub(last, last) == "\\" then last = last + 1 elseif last then break end
      until not last
      last = last or #text
    elseif c:find "[%[%]{}:,]" then last, kind = at, c
    else last, kind = (text:find("[%s%[%]{}:,\"]", at) or #text + 1) - 1, "scalar" end
    list[#list + 1] = { at, last, kind }
    at = last + 1
  end
  return list
end

-- The last token of the value that starts at token i.
local function value_end(list, i)
  local depth = 0
  for j = i, #list do
    local kind = list[j][3]
    if kind == "[" or kind == "{" then depth = depth + 1
    elseif kind == "]" or kind == "}" then depth = depth - 1 end
    if depth <= 0 then return j end
  end
  return #list
end

-- A value or a key somewhere: its first and last byte, and its kind.
local function pick(text, random)
  local list = tokens(text)
  local starts = {}
  for i, t in ipairs(list) do
    if not t[3]:find "^[%]}:,]$" then starts[#starts + 1] = i end
  end
  if #starts == 0 then return nil end
  local i = starts[1 + random(#starts)]
  local j = value_end(list, i)
  return list[i][1], list[j][2], list[i][3], list[j + 1] and list[j + 1][3] == ":"
end

local function replace(text, first, last, by) return text:sub(1, first - 1) .. by .. text:sub(last + 1) end

local function change(text, most, random, bytes, words)
  local first, last, kind, key = pick(text, random)
  if not first then return bytes(text, most) end
  local way = random(8)
  if way == 0 then -- another value of the text
    local from, to = pick(text, random)
    return replace(text, first, last, text:sub(from, to))
  elseif way == 1 then -- remove it, with a comma on either side
    local before = text:sub(1, first - 1):gsub(",%s*$", "")
    return before .. text:sub(last + 1)
  elseif way == 2 then -- double it, rarely so often that recursion along the list would overflow the stack
    local n = random(20) == 0 and math.min(50000, (most - #text) // (last - first + 2)) or 1
    return text:sub(1, last) .. ("," .. text:sub(first, last)):rep(math.max(1, n)) .. text:sub(last + 1)
  elseif way == 3 and kind == "string" and not key and random(10) == 0 then -- a long text
    return replace(text, first + 1, last - 1, text:sub(first + 1, last - 1):rep(1000))
  elseif way == 3 and kind == "string" and last - first > 1 then
    return replace(text, first + 1, last - 1, bytes(text:sub(first + 1, last - 1), 64))
  elseif way == 4 then -- wrap it
    local open, close = table.unpack(({ { "[", "]" }, { '{"a":', "}" } })[1 + random(2)])
    local n = random(10) == 0 and 1 + random(3000) or 1
    return replace(text, first, last, open:rep(n) .. text:sub(first, last) .. close:rep(n))
  elseif way == 5 and kind == "scalar" then
    return replace(text, first, last, ("%d"):format(numbers[1 + random(#numbers)]))
  elseif (way == 6 or key) and #words > 0 then
    return replace(text, first, last, ('"%s"'):format(words[1 + random(#words)]))
  end
  return replace(text, first, last, VALUES[1 + random(#VALUES)])
end

--- A mutator of JSON texts.
-- @param words list of keys and names that the format knows; default none
function M.mutator(words)
  return function(text, most, random, bytes)
    for _ = 1, 1 + random(3) do text = change(text, most, random, bytes, words or {}) end
    return text:sub(1, most)
  end
end

return M
