--- JSON for template variables and for `tojson`: a strict decoder that keeps the order of keys, and Python's json.dumps.
-- Needs ane.jinja.limits, number, sort and value. The decoder follows RFC 8259: no comments, no NaN, valid UTF-8, whole
-- surrogate pairs. Of equal keys the last value wins at the position of the first, as in a Python dict. Both directions take
-- time and memory in proportion to the text. core.json_decode keeps neither the order of keys nor integers beyond 64 bits,
-- both of which `tojson` writes; ane.jinja also needs no C module of this project.
-- Usage: `local vars, err = json.decode('{"messages": []}')`

local limits = require "ane.jinja.limits"
local number = require "ane.jinja.number"
local sort = require "ane.jinja.sort"
local value = require "ane.jinja.value"

local fail = limits.fail

local M = {}

--- Deepest nesting that decode() accepts.
M.MAX_DEPTH = 128

local SHORT = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- Raises a fault at a byte: one pass over the newlines before it.
local function stop(src, at, message)
  local line, start = 1, 0
  while true do
    local newline = src:find("\n", start + 1, true)
    if not newline or newline >= at then break end
    line, start = line + 1, newline
  end
  fail("syntax", "line %d column %d (byte %d): %s", line, at - start, at, message)
end

-- One escape, at its backslash: its character, and the byte after it.
local function read_escape(src, at)
  local c = src:sub(at + 1, at + 1)
  if SHORT[c] then return SHORT[c], at + 2 end
  local hex = src:match("^u(%x%x%x%x)", at + 1)
  if not hex then stop(src, at, "invalid escape") end
  local code = tonumber(hex, 16)
  if code >= 0xD800 and code < 0xDC00 then
    local low = src:match("^\\u([dD][c-fC-F]%x%x)", at + 6)
    if not low then stop(src, at, "half of a surrogate pair") end
    return utf8.char(0x10000 + ((code - 0xD800) << 10) + tonumber(low, 16) - 0xDC00), at + 12
  elseif code >= 0xDC00 and code < 0xE000 then
    stop(src, at, "half of a surrogate pair")
  end
  return utf8.char(code), at + 6
end

local function read_string(src, at)
  local from, parts = at + 1, nil
  while true do
    local i = src:find('["\\\0-\31]', from)
    if not i then stop(src, at, "string without an end") end
    local c = src:sub(i, i)
    if c == '"' then
      local last = src:sub(from, i - 1)
      if not parts then return last, i + 1 end
      parts[#parts + 1] = last
      return table.concat(parts), i + 1
    elseif c ~= "\\" then
      stop(src, i, "control character in a string")
    end
    parts = parts or {}
    parts[#parts + 1] = src:sub(from, i - 1)
    parts[#parts + 1], from = read_escape(src, i)
  end
end

local function read_number(src, at)
  local whole = src:match("^%-?%d+", at)
  if not whole or whole:find("^%-?0%d") then stop(src, at, "invalid number") end
  local fraction = src:match("^%.%d+", at + #whole) or ""
  local exponent = src:match("^[eE][+-]?%d+", at + #whole + #fraction) or ""
  local after = at + #whole + #fraction + #exponent
  if fraction == "" and exponent == "" then
    local int, big = number.parse_int(whole, 10)
    return int or value.new_bigint(nil, big), after
  end
  return tonumber(whole .. fraction .. exponent), after
end

local function skip(src, at)
  return src:find("[^ \t\r\n]", at) or #src + 1
end

local read_value

local function read_array(src, at, depth)
  local items = {}
  at = skip(src, at + 1)
  if src:sub(at, at) == "]" then return value.new_list(nil, items), at + 1 end
  while true do
    items[#items + 1], at = read_value(src, at, depth)
    at = skip(src, at)
    local c = src:sub(at, at)
    if c == "]" then return value.new_list(nil, items), at + 1 end
    if c ~= "," then stop(src, at, "',' or ']' expected") end
    at = skip(src, at + 1)
  end
end

local function read_object(src, at, depth)
  local dict = value.new_dict(nil)
  at = skip(src, at + 1)
  if src:sub(at, at) == "}" then return dict, at + 1 end
  while true do
    if src:sub(at, at) ~= '"' then stop(src, at, "a key in double quotes expected") end
    local key, item
    key, at = read_string(src, at)
    at = skip(src, at)
    if src:sub(at, at) ~= ":" then stop(src, at, "':' expected") end
    item, at = read_value(src, skip(src, at + 1), depth)
    value.put(nil, dict, key, item)
    at = skip(src, at)
    local c = src:sub(at, at)
    if c == "}" then return dict, at + 1 end
    if c ~= "," then stop(src, at, "',' or '}' expected") end
    at = skip(src, at + 1)
  end
end

local WORDS = { t = { "true", true }, f = { "false", false }, n = { "null", value.NONE } }

function read_value(src, at, depth)
  local c = src:sub(at, at)
  if c == '"' then return read_string(src, at) end
  if c == "{" or c == "[" then
    if depth >= M.MAX_DEPTH then stop(src, at, "nested more than " .. M.MAX_DEPTH .. " levels") end
    return (c == "{" and read_object or read_array)(src, at, depth + 1)
  end
  local word = WORDS[c]
  if word and src:sub(at, at + #word[1] - 1) == word[1] then return word[2], at + #word[1] end
  if not c:find("^[-0-9]") then stop(src, at, "a value expected") end
  return read_number(src, at)
end

--- Decodes one JSON text to values for a template.
-- @return the value; or nil and a message with line, column and byte
function M.decode(src)
  local bad = select(2, utf8.len(src))
  local ok, result, after = pcall(function()
    if bad then stop(src, bad, "invalid UTF-8") end
    return read_value(src, skip(src, 1), 0)
  end)
  if ok and skip(src, after) <= #src then
    ok, result = pcall(stop, src, skip(src, after), "something after the value")
  end
  if ok then return result end
  return nil, "json: " .. (type(result) == "table" and result.message or tostring(result))
end

--- The text of a member of an object, with its numbers as they are written.
-- @param src a text that decode() accepts
-- @return the text of the value that decode() takes; nil if there is no such member
function M.member(src, name)
  local at, found = skip(src, 1), nil
  if src:sub(at, at) ~= "{" then return nil end
  at = skip(src, at + 1)
  while src:sub(at, at) == '"' do
    local key, from
    key, at = read_string(src, at)
    from = skip(src, skip(src, at) + 1)
    at = select(2, read_value(src, from, 1))
    if key == name then found = src:sub(from, at - 1) end
    at = skip(src, skip(src, at) + 1)
  end
  return found
end

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b", ["\f"] = "\\f" }
for code = 0, 31 do
  local c = string.char(code)
  ESCAPES[c] = ESCAPES[c] or ("\\u%04x"):format(code)
end

local function escape_wide(c)
  local code = utf8.codepoint(c)
  if code < 0x10000 then return ("\\u%04x"):format(code) end
  code = code - 0x10000
  return ("\\u%04x\\u%04x"):format(0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF))
end

-- A string literal, paid for. An escape is up to six times as long as its character.
local function quoted(rt, s, ascii)
  limits.walk(rt, #s)
  limits.spare(rt, 12 * #s)
  s = s:gsub('["\\\0-\31]', ESCAPES)
  if ascii then s = s:gsub("\127", "\\u007f"):gsub("[\192-\255][\128-\191]*", escape_wide) end
  return '"' .. s .. '"'
end

local function float(x)
  if x ~= x then return "NaN" end
  if x == math.huge then return "Infinity" elseif x == -math.huge then return "-Infinity" end
  return number.float_text(x)
end

local function number_text(rt, v)
  if math.type(v) == "integer" then return number.text(v) end
  limits.tick(rt, 8)
  return float(v)
end

local function key_text(rt, v)
  local s = value.as_string(v)
  if s then return s end
  if type(v) == "boolean" then return v and "true" or "false" end
  if type(v) == "number" then return number_text(rt, v) end
  if v == value.NONE then return "null" end
  if v.kind == "bigint" then return v.text end
  fail("type", "keys must be str, int, float, bool or None, not %s", value.typename(v))
end

local function sorted_keys(rt, keys)
  return sort.stable(rt, keys, function(a, b) return value.order(rt, "<", a, b) end)
end

local write

-- A list or dict: brackets, commas and, with an indent, one part per line.
local function write_block(e, open, close, n, part, level)
  local rt, add = e.rt, e.add
  if n == 0 then return add(open .. close) end
  limits.enter(rt)
  add(open)
  local newline
  if e.indent then
    limits.grow(rt, #e.indent * (level + 1))
    newline = "\n" .. e.indent:rep(level + 1)
  end
  for i = 1, n do
    if i > 1 then add(e.item_separator) end
    if newline then add(newline) end
    part(i)
  end
  if newline then add("\n" .. e.indent:rep(level)) end
  add(close)
  rt.depth = rt.depth - 1
end

function write(e, v, level)
  limits.tick(e.rt, 2)
  local s = value.as_string(v)
  if s then return e.add(quoted(e.rt, s, e.ascii)) end
  if type(v) == "number" then return e.add(number_text(e.rt, v)) end
  if type(v) == "boolean" then return e.add(v and "true" or "false") end
  local k = v and v.kind -- nil: undefined
  if k == "none" then return e.add("null") end
  if k == "bigint" then return e.add(v.text) end
  if k == "list" or k == "tuple" then
    return write_block(e, "[", "]", #v, function(i) write(e, v[i], level + 1) end, level)
  elseif k == "dict" then
    local keys = e.sort and sorted_keys(e.rt, v.keys) or v.keys
    return write_block(e, "{", "}", #keys, function(i)
      e.add(quoted(e.rt, key_text(e.rt, keys[i]), e.ascii))
      e.add(e.key_separator)
      write(e, value.get(e.rt, v, keys[i]), level + 1)
    end, level)
  end
  fail("type", "Object of type %s is not JSON serializable", value.typename(v))
end

local function indent_text(rt, indent)
  if indent == nil or indent == value.NONE then return nil end
  local s = value.as_string(indent)
  if s then return s end
  local width = value.as_integer(indent)
  if not width then fail("type", "indent must be an int or a str, not %s", value.typename(indent)) end
  limits.grow(rt, math.max(width, 0))
  return (" "):rep(width)
end

local function separator_texts(rt, separators, indent)
  if separators == nil or separators == value.NONE then return indent and "," or ", ", ": " end
  local pair = value.collect(rt, separators)
  local item, key = pair[1] and value.as_string(pair[1]), pair[2] and value.as_string(pair[2])
  if #pair ~= 2 or not item or not key then fail("type", "separators must be two strings") end
  return item, key
end

--- json.dumps(v) for a running template.
-- @param opts ensure_ascii (bool), indent (int, str or None), separators (pair), sort_keys (bool), all template values
function M.dumps(rt, v, opts)
  local add, finish = limits.buffer(rt)
  local e = { rt = rt, add = add, ascii = opts.ensure_ascii, sort = opts.sort_keys, indent = indent_text(rt, opts.indent) }
  e.item_separator, e.key_separator = separator_texts(rt, opts.separators, e.indent)
  write(e, v, 0)
  return finish()
end

--- JSON of a value outside of a render, for messages and tests.
function M.encode(v)
  return M.dumps(limits.new(), v, {})
end

return M
