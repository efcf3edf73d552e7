--- Methods that raise a helpful error when called with a dot: `model.generate("hi")` instead of `model:generate("hi")`.
-- Also objects with properties. Needs nothing. Usage, after the last method of a class: `methods.guard(Chat, Chat, "chat")`

local M = {}

local function named(v)
  if v == nil then return "nothing" end
  local mt = getmetatable(v)
  return "a " .. (type(v) ~= "string" and type(mt) == "table" and type(mt.__name) == "string" and mt.__name or type(v))
end

--- Replaces each method of a class by one that checks its object first.
-- The check is a tail call away from the method, so levels of errors in the method stay as they are.
-- @param class table of methods; metamethods (names with __) stay
-- @param metatable of the objects
-- @param what an object is called in messages
function M.guard(class, metatable, what)
  for name, method in pairs(class) do
    if type(method) == "function" and not name:find "^__" then
      class[name] = function(self, ...)
        if getmetatable(self) ~= metatable then
          error(("%s: called on %s instead of a %s; write %s:%s(...), with a colon"):format(name, named(self), what, what, name), 2)
        end
        return method(self, ...)
      end
    end
  end
end

--- The __index of objects with methods and properties.
-- @param class table of methods
-- @param properties name -> function(self) -> value; nil under other names
function M.index(class, properties)
  return function(self, key)
    local method = class[key]
    if method ~= nil then return method end
    local property = properties[key]
    if property then return property(self) end
    return nil
  end
end

return M
