--- The options that the files in types/ document, but for those of recipes, and which values their types allow.
-- Usage: `for _, f in ipairs(documented.functions()) do print(f.name, #f.options) end`

local schema = require "ane.util.schema"
local tree = require "support.tree"
local reference = dofile "scripts/reference.lua"

local M = {}

local classes, aliases = {}, {}
local list
do
  local text = {}
  for i, path in ipairs(tree.files("types", "lua")) do text[i] = path ~= "types/recipe.lua" and tree.read(path) or "" end
  local read, named = reference.read(table.concat(text, "\n"))
  list = read
  for _, class in ipairs(read) do classes[class.name] = class end
  for _, alias in ipairs(named) do aliases[alias.name] = alias.text end
end

-- ---- Types -----------------------------------------------------------------------------------------------------------------

-- The end of the part of text that begins at `at`: before the first of the separators that stands in no brackets and no quotes.
local function part_end(text, at, separators)
  local depth, quoted = 0, false
  for i = at, #text do
    local c = text:sub(i, i)
    if c == '"' then quoted = not quoted end
    if not quoted then
      if depth == 0 and separators:find(c, 1, true) then return i - 1 end
      if c:find "[%(%[{<]" then depth = depth + 1 elseif c:find "[%)%]}>]" then depth = depth - 1 end
      if depth < 0 then return i - 1 end
    end
  end
  return #text
end

local function trim(text) return text:match "^%s*(.-)%s*$" end

local function split(text, separator)
  local parts, at = {}, 1
  while at <= #text do
    local last = part_end(text, at, separator)
    parts[#parts + 1] = trim(text:sub(at, last))
    at = last + 2
  end
  return parts
end

-- The members of a union. What a function returns belongs to it.
local function members(text)
  local parts = split(text, "|")
  for i, part in ipairs(parts) do
    if part:find "^fun%(.*%)%s*:" then return { table.unpack(parts, 1, i) } end
  end
  return parts
end

-- The named fields of "{ a: T, b?: U }"; nil: it is none of this form.
local function fields(text)
  local inner = text:match "^{(.*)}$"
  if not inner then return nil end
  local out = {}
  for _, part in ipairs(split(inner, ",")) do
    local name, optional, type = part:match "^([%a_][%w_]*)(%??)%s*:%s*(.*)$"
    if name then out[#out + 1] = { name = name, optional = optional ~= "", type = type } end
  end
  return out
end

local function fields_of_class(class)
  local out = class.extends and fields_of_class(assert(classes[class.extends])) or {}
  for _, field in ipairs(class.fields) do
    local last = part_end(field.text, 1, " ")
    while field.text:sub(last, last):find "[:,|]" do last = part_end(field.text, last + 2, " ") end
    local name = field.name:gsub("%?$", "")
    out[#out + 1] = { name = name, optional = name ~= field.name, type = field.text:sub(1, last), text = field.text:sub(last + 2) }
  end
  return out
end

-- Has the class methods?
local function is_object(class)
  for _, field in ipairs(class.fields) do
    if field.text:find "^fun%(self" then return true end
  end
  return class.variable ~= nil
end

-- The fields of a type that is a table with names: of the form { a: T }, or a class of values without methods.
local function record(text)
  if aliases[text] then text = aliases[text] end
  local class = classes[text]
  if not class then return fields(text) end
  if not is_object(class) then return fields_of_class(class) end
end

local is = {
  integer = function(v) return math.tointeger(v) ~= nil and type(v) == "number" end,
  number = function(v) return type(v) == "number" and v == v end,
  any = function() return true end,
}
for _, name in ipairs { "string", "boolean", "table", "nil" } do is[name] = function(v) return type(v) == name end end

local function is_list(v, type_of)
  local n = rawlen(v)
  for key, value in next, v do
    if math.type(key) ~= "integer" or key < 1 or key > n or not M.allows(type_of, value) then return false end
  end
  return true
end

local function is_record(v, of)
  for _, field in ipairs(of) do
    local value = rawget(v, field.name)
    if value == nil and not field.optional or value ~= nil and not M.allows(field.type, value) then return false end
  end
  return true
end

local function one_allows(text, v)
  if is[text] then return is[text](v) end
  if aliases[text] then return M.allows(aliases[text], v) end
  if text:find '^"' then return v == text:sub(2, -2) end
  if text:find "^fun%(" then return schema.is_callable(v) end
  if text:find "^%(.*%)$" then return M.allows(text:sub(2, -2), v) end
  if text:find "%?$" then return v == nil or M.allows(text:sub(1, -2), v) end
  if type(v) ~= "table" then return type(v) == "userdata" and classes[text] ~= nil end
  if text:find "%[%]$" then return is_list(v, text:sub(1, -3)) end
  if classes[text] and is_object(classes[text]) then return getmetatable(v) ~= nil end
  local of = record(text)
  if of then return is_record(v, of) end
  return text:find "^table<" ~= nil or classes[text] ~= nil
end

--- Is this a value of the type, as far as its text says?
function M.allows(text, v)
  for _, member in ipairs(members(text)) do
    if one_allows(member, v) then return true end
  end
  return false
end

-- ---- Options ---------------------------------------------------------------------------------------------------------------

-- The fields of tables that are values of an option or entries of its list: {name, type, wrap}, where wrap makes the option's value.
local function nested(text)
  local out = {}
  for _, member in ipairs(members(text)) do
    if aliases[member] and not record(member) then
      table.move(nested(aliases[member]), 1, #nested(aliases[member]), #out + 1, out)
    end
    local entry = member:match "^(.*)%[%]$"
    if entry then entry = aliases[entry] or entry:match "^%((.*)%)$" or entry end
    for _, inner in ipairs(entry and members(entry) or { member }) do
      for _, field in ipairs(record(inner) or {}) do
        out[#out + 1] = { name = field.name, type = field.type, text = field.text, wrap = function(v)
          local t = { [field.name] = v }
          return entry and { t } or t
        end }
      end
    end
  end
  return out
end

--- The options that a text describes: their type, and after a space what is said of them. nil: the type only says that it is a table.
-- @param separator that ends the type; default a space
-- @return list of {name, type, optional, text, nested}; see functions
function M.options(text, separator)
  local last = part_end(text, 1, separator or " ")
  local out, rest = record(text:sub(1, last)), text:sub(last + 2)
  for _, option in ipairs(out or {}) do
    option.text = option.text or rest
    option.nested = nested(option.type)
    for _, field in ipairs(option.nested) do field.text = field.text or option.text end
  end
  return out
end

--- The functions that take options.
-- @return list of {name, options}: the name as in types/, "model:generate"; the options a list of {name, type, optional, text, nested}, nil
-- where the type only says that it is a table. text: what is said of the option; nested: its fields, {name, type, text, wrap}
function M.functions()
  local out = {}
  for _, class in ipairs(list) do
    for _, f in ipairs(class.functions) do
      for _, note in ipairs(f.notes) do
        if note.kind == "param" and note.name:gsub("%?$", "") == "opts" then
          out[#out + 1] = { name = f.object .. f.separator .. f.name, options = M.options(note.text) }
        end
      end
    end
    for _, field in ipairs(class.fields) do
      local at = select(2, field.text:find "^fun%(.-opts%??: ")
      if at then
        out[#out + 1] = { name = class.name .. "." .. field.name, options = M.options(field.text:sub(at + 1), ",") }
      end
    end
  end
  return out
end

return M
