--- Checks of request bodies: types, ranges, unknown fields. A field that is null counts as absent. In objects below the body, this holds
-- for unknown fields too, because clients send objects back with all fields of their own types, the unused ones as null.
-- Needs ane.core, ane.serve.errors, ane.util.exact, failure, keys and schema. Numbers of schemas are kept as they are written
-- (ane.util.exact).
-- A rule is one of ane.util.schema, with: list or object = true (which kind of table), fields = rules of the object's own fields,
-- only = list of the values that are supported, unused = true (accepted; it changes nothing here), required = true.
-- Usage: `local values = fields.check({ n = { type = "integer", min = 1 } }, body)`

local core = require "ane.core"
local errors = require "ane.serve.errors"
local exact = require "ane.util.exact"
local failures = require "ane.util.failure"
local keys_of = require "ane.util.keys"
local schema = require "ane.util.schema"

local M = {}

local null = core.null

-- "array" or "object": the kind of JSON value that a table was decoded from.
local function kind_of(v)
  local mt = getmetatable(v)
  return type(mt) == "table" and mt.__jsontype or "object"
end

--- Is this a JSON array?
function M.is_list(v) return type(v) == "table" and kind_of(v) == "array" end

--- Is this a JSON object?
function M.is_object(v) return type(v) == "table" and kind_of(v) == "object" end

--- Throws a failure that names a field.
function M.wrong(path, format, ...)
  errors.raise(400, ("field %s %s"):format(path, format:format(...)), { param = path, code = "invalid_value" })
end

--- Throws the failure of a field or value that OpenAI's API has but this server does not support.
function M.unsupported(path, format, ...)
  errors.raise(400, ("field %s %s"):format(path, format:format(...)), { param = path, code = "unsupported_parameter" })
end

-- What was found, for messages: short values as JSON.
local function shown(value)
  local text = core.json_encode(value)
  return #text <= 40 and text or "a JSON text of " .. #text .. " bytes"
end

--- The field `type` of an object, a string; nil if it is absent or null.
-- @raise a failure that names it
function M.type_of(object, at)
  local value = object.type
  if value == nil or value == null then return nil end
  if type(value) ~= "string" then M.wrong(at .. ".type", "must be a string, but is %s", shown(value)) end
  return value
end

local function check_only(rule, value, path)
  local list = {}
  for i, one in ipairs(rule.only) do
    if value == one then return end
    list[i] = core.json_encode(one)
  end
  if #list == 0 then M.unsupported(path, "is not supported") end
  M.unsupported(path, "is supported only as %s, not as %s", table.concat(list, ", "), shown(value))
end

local function check_value(rule, value, path)
  if rule.type then value = exact.number(value) end
  if rule.only then return check_only(rule, value, path) or value end
  if rule.list and not M.is_list(value) then M.wrong(path, "must be a list, but is %s", shown(value)) end
  if rule.object and not M.is_object(value) then M.wrong(path, "must be an object, but is %s", shown(value)) end
  if rule.fields then return M.check(rule.fields, value, path) end
  if not rule.type then return value end
  local ok, result = pcall(schema.argument, rule, value, "field " .. path, 0)
  if not ok then
    if failures.is_interrupt(result) then error(result, 0) end
    if type(value) == "table" then result = result:gsub("but is a table$", M.is_list(value) and "but is a list" or "but is an object") end
    errors.raise(400, result, { param = path, code = "invalid_value" })
  end
  return result
end

-- The names of the fields that have a supported value, sorted.
local function supported(rules)
  local names = {}
  for _, name in ipairs(keys_of(rules)) do
    if not rules[name].only or #rules[name].only > 0 then names[#names + 1] = name end
  end
  return names
end

--- Checks an object.
-- @param rules name -> rule
-- @param body from JSON
-- @param at path of the object, for messages; nil: the body itself
-- @return table of the fields that are given and not null, with defaults
-- @raise a failure of ane.serve.errors that names the field
function M.check(rules, body, at)
  local function path_of(name) return at and at .. "." .. tostring(name) or tostring(name) end
  if not M.is_object(body) then
    if at then M.wrong(at, "must be an object") end
    errors.raise(400, "the body must be a JSON object", { code = "invalid_json" })
  end
  local out, names = {}, keys_of(body)
  for _, name in ipairs(names) do -- first the known ones, so that a body with several faults always gets the same error
    if rules[name] and body[name] ~= null then out[name] = check_value(rules[name], body[name], path_of(name)) end
  end
  for _, name in ipairs(names) do
    if not rules[name] and not (at and body[name] == null) then
      errors.raise(400, ("unknown field %s; the fields are %s"):format(path_of(name), table.concat(supported(rules), ", ")),
        { param = path_of(name), code = "unknown_parameter" })
    end
  end
  for name, rule in pairs(rules) do
    if out[name] == nil then
      if rule.required then
        errors.raise(400, ("field %s is missing"):format(path_of(name)), { param = path_of(name), code = "missing_parameter" })
      end
      out[name] = rule.default
    end
  end
  return out
end

--- Rules of several tables in one; later ones win.
M.merge = schema.merge

return M
