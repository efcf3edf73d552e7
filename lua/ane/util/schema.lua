--- Checks of option tables: types, ranges, choices, defaults. The error for an unknown key lists the valid ones.
-- Needs ane.util.keys and ane.util.list. A rule is a table with
--   type      a name of TYPES, or a list of them
--   wanted    the words for these types in messages; default: those of TYPES
--   default   the value of an option that is not given
--   min, max  limits that are allowed values; above: a limit that is itself too low
--   choices   list of the allowed values; aliases = {old name = choice}
--   of        the rule of each entry of a list
--   open      true: a table may have a metatable that adds entries (ane.util.list)
--   check     function(value) -> a message if the value is wrong
--   made_of   the options that users give instead of this one, as messages list them
--   internal  true: messages do not list the option
-- Usage: `opts = schema.check({max_tokens = {type = "integer", min = 0}}, opts, "generate", 2)`

local keys_of = require "ane.util.keys"
local list_of = require "ane.util.list"

local M = {}

local function is_callable(v)
  local mt = getmetatable(v)
  return type(v) == "function" or type(mt) == "table" and mt.__call ~= nil
end

--- Is a value a function, or can it be called like one?
M.is_callable = is_callable

--- The name of the type of a value of this library, such as "ane.grammar"; nil: it has none, or hides it.
function M.type_name(v)
  local mt = getmetatable(v)
  return type(mt) == "table" and mt.__name or nil
end

-- For each type: its check, and its name in messages.
local TYPES = {
  integer = { function(v) return math.type(v) == "integer" end, "an integer" },
  number = { function(v) return type(v) == "number" and v == v end, "a number" },
  string = { function(v) return type(v) == "string" end, "a string" },
  path = { function(v) return type(v) == "string" and v ~= "" and not v:find("\0", 1, true) end, "a string" },
  list = { function(v) return type(v) == "table" and not list_of.fault(v) end, "a list" },
  boolean = { function(v) return type(v) == "boolean" end, "true or false" },
  table = { function(v) return type(v) == "table" end, "a table" },
  callable = { is_callable, "a function" },
  any = { function() return true end, "any value" },
}

local function names_of(kinds)
  local names = {}
  for i, kind in ipairs(kinds) do names[i] = TYPES[kind][2] end
  return table.concat(names, " or ")
end

local SHOWN = 80 -- bytes of a text in a message

local function shown(v)
  if type(v) == "string" then
    if #v > SHOWN then return ("%q... (%d bytes)"):format(v:sub(1, SHOWN), #v) end
    return ("%q"):format(v)
  end
  if v ~= v then return "NaN" end
  if type(v) == "number" or type(v) == "boolean" then return tostring(v) end
  return list_of.kind(v)
end

--- A value as messages show it: numbers and short texts as they are, other values by their type.
M.shown = shown

-- The normalised value: 4096.0 becomes 4096 if an integer is expected, an alias becomes its choice.
local function normal(rule, v)
  if rule.type == "integer" and math.type(v) == "float" then return math.tointeger(v) or v end
  if rule.aliases and type(v) == "string" then return rule.aliases[v] or v end
  return v
end

local function fits(rule, v)
  local kinds = type(rule.type) == "table" and rule.type or { rule.type }
  for _, kind in ipairs(kinds) do
    if TYPES[kind][1](v) then return true end
  end
  return false, rule.wanted or names_of(kinds)
end

local function range_of(rule)
  if rule.above then return ("above %s"):format(rule.above) .. (rule.max and (" and at most %s"):format(rule.max) or "") end
  local min, max = rule.min and math.tointeger(rule.min) or rule.min, rule.max and math.tointeger(rule.max) or rule.max
  if min and max then return ("%s .. %s"):format(min, max) end
  return min and ("%s or more"):format(min) or ("%s or less"):format(max)
end

-- The fault of v, whose type is wrong; said: v as messages show it.
local function misfit(rule, v, wanted, said)
  if rule.type == "list" and type(v) == "table" then return list_of.fault(v) end
  local of = type(rule.type) == "table" and table.concat(rule.type, " ") or rule.type
  if of:find "path" and v == "" then return "is empty" end
  if of:find "path" and type(v) == "string" then return ("must be a path without a NUL byte, but is %s"):format(shown(v)) end
  if rule.type == "integer" and math.type(v) == "float" and v % 1 == 0 then -- beyond 64 bits
    wanted = rule.max and range_of(rule) or "an integer of 64 bits"
  end
  return ("must be %s, but is %s"):format(wanted, said)
end

local fault

-- The fault of the first wrong entry of a list; nil: none.
local function entry_fault(rule, list)
  for i, entry in ipairs(list) do
    local message = fault(rule, entry)
    if message then return ("has the entry %d, which %s"):format(i, message) end
  end
end

-- The fault of v; nil: none. said: v as messages show it; default: shown(v).
function fault(rule, v, said)
  local ok, wanted = fits(rule, v)
  said = said or shown(v)
  if not ok then return misfit(rule, v, wanted, said) end
  if type(v) == "table" and not rule.open and not is_callable(v) and list_of.gives_more(v) then return list_of.MORE end
  if type(v) == "number" and (rule.min and v < rule.min or rule.max and v > rule.max or rule.above and v <= rule.above) then
    return ("must be %s, but is %s"):format(range_of(rule), said)
  end
  if rule.choices then
    local list = {}
    for i, choice in ipairs(rule.choices) do
      if v == choice then return nil end
      list[i] = tostring(choice)
    end
    return ("is %s: choose %s"):format(said, table.concat(list, ", "))
  end
  local wrong = rule.of and type(v) == "table" and entry_fault(rule.of, v)
  return wrong or rule.check and rule.check(v)
end

--- What is wrong with a value: "must be 0 .. 1, but is 2"; nil: nothing.
function M.fault(rule, value) return fault(rule, value) end

-- The names of the options, as users give them.
local function listed(rules)
  local names = {}
  for _, key in ipairs(keys_of(rules)) do
    if not rules[key].internal then names[#names + 1] = rules[key].made_of or key end
  end
  return table.concat(names, ", ")
end

-- The fault of an option table; nil: none. Options of a metatable would be seen by some functions and not by others.
local function table_fault(opts)
  if type(opts) ~= "table" then return ("options must be a table, not %s"):format(shown(opts)) end
  local mt = getmetatable(opts)
  if mt == nil then return nil end
  if type(mt) ~= "table" or rawget(mt, "__index") ~= nil or rawget(mt, "__pairs") ~= nil then
    return "options must be a table of their own, not one with a metatable that gives more (__index, __pairs)"
  end
end

--- Checks that options are a plain table or nil, for functions that pass them on.
-- @param what, level as for check
function M.plain(opts, what, level)
  local message = opts ~= nil and table_fault(opts)
  if message then error(("%s: %s"):format(what, message), level and level > 0 and level + 1 or 0) end
end

--- Checks an option table against its rules and gives a new table with the defaults filled in.
-- @param rules name -> rule
-- @param opts the user's options: a table or nil
-- @param what the function's name, for messages
-- @param level as error()'s, seen from the caller of check: 2 blames its caller; 0 adds no position
-- @param bare true leaves defaults out
-- @raise if an option is unknown, of a wrong type or out of its range
function M.check(rules, opts, what, level, bare)
  level = level and level > 0 and level + 1 or 0
  local wrong = opts ~= nil and table_fault(opts)
  if wrong then error(("%s: %s"):format(what, wrong), level) end
  local out = {}
  for key, value in pairs(opts or {}) do
    local rule = rules[key]
    if not rule then
      error(("%s: unknown option %s; the options are %s"):format(what, shown(key), listed(rules)), level)
    end
    value = normal(rule, value)
    local message = fault(rule, value)
    if message then error(("%s: option %s %s"):format(what, key, message), level) end
    out[key] = value
  end
  for key, rule in pairs(rules) do
    if out[key] == nil and not bare then out[key] = rule.default end
  end
  return out
end

-- Converts a text to a number if the rule expects one.
local function read(rule, text)
  local kind = type(rule.type) == "table" and rule.type[1] or rule.type
  if kind == "integer" or kind == "number" then return normal({ type = kind }, tonumber(text) or text) end
  return normal(rule, text)
end

--- Parses and checks an option given as text, as on a command line.
-- @return the value; or nil, the fault: "must be 0 .. 1, but is 1.5"
function M.parse(rule, text)
  local value = read(rule, text)
  local message = fault(rule, value, type(value) == "number" and text or nil)
  if message then return nil, message end
  return value
end

--- Merges tables of rules; later ones win.
function M.merge(...)
  local out = {}
  for _, rules in ipairs { ... } do
    for key, rule in pairs(rules) do out[key] = rule end
  end
  return out
end

--- Checks an argument that is not in an option table.
-- @param rule as in check
-- @param value the argument
-- @param name of the function and the argument: "feed: ids"
-- @param level as for check
function M.argument(rule, value, name, level)
  value = normal(rule, value)
  local message = fault(rule, value)
  if message then error(name .. " " .. message, level and level > 0 and level + 1 or 0) end
  return value
end

return M
