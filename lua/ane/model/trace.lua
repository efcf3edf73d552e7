--- Intermediate values of a model by name. Fused steps hide the values between them, so the first trace plans a second program from
-- the same source without fusion. It is freed with the model.
-- Needs ane.model.adapters, ane.model.loader, ane.util.schema and ane.util.tensor_view.
-- Usage: `local t = model:trace(ids, "layers.3.*"); print(t["layers.3.attn_q"])`

local adapters = require "ane.model.adapters"
local loader = require "ane.model.loader"
local schema = require "ane.util.schema"
require "ane.util.tensor_view"

local M = {}

-- A glob as a Lua pattern: * is any run of characters, ? is one.
local function pattern_of(glob)
  local pattern = glob:gsub("[%^%$%(%)%%%.%[%]%+%-]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".")
  return "^" .. pattern .. "$"
end

--- Returns whether a name matches one of the globs.
function M.fits(name, globs)
  for _, glob in ipairs(globs) do
    if name:find(pattern_of(glob)) then return true end
  end
  return false
end

--- Plans the program that keeps all values.
-- @param bundle of ane.model.loader
-- @param recipe instead of the bundle's, for experiments
-- @param config instead of the bundle's
-- @return program; or nil, message, code
function M.plan(bundle, recipe, config)
  local opts = {}
  for key, value in pairs(bundle.options) do opts[key] = value end
  opts.pipeline, opts.progress = "cpu-plain", nil
  local program, message, code = loader.plan(recipe or bundle.recipe, config or bundle.config, bundle.source, opts)
  if not program then return nil, message, code end
  local ok
  ok, message, code = adapters.repeat_default(bundle, program)
  if ok then return program end
  program:close()
  return nil, message, code
end

--- Returns whether the values of a bundle have names in this process.
-- @return true; or nil, message, code
function M.check(bundle)
  if not bundle.options then
    return nil, "no recipe built this model: its values have no names", "unsupported"
  end
  if bundle.options.ranks then return nil, "values of a model on several ranks cannot be traced", "unsupported" end
  return true
end

--- The program of a bundle that keeps all values, planned at the first call.
-- @return program; or nil, message, code
function M.program(bundle)
  local fine, why, word = M.check(bundle)
  if not fine then return nil, why, word end
  if not bundle.plain then
    local program, message, code = M.plan(bundle)
    if not program then return nil, message, code end
    bundle.plain = program
  end
  return bundle.plain
end

--- Frees what program() planned.
function M.close(bundle)
  if bundle.plain then bundle.plain:close() end
  bundle.plain = nil
end

--- Runs a program on ids from position 0 and keeps values.
-- @param program planned by plan()
-- @param ids list of token ids, at most program:max_chunk()
-- @param names list of values
-- @param kv format of the session's state
-- @return name -> tensor [tokens, channels]; or nil, message, code
function M.run(program, ids, names, kv)
  local most = program:max_chunk()
  if #ids < 1 or #ids > most then
    return nil, ("a trace needs 1 .. %d tokens, but the input has %d"):format(most, #ids), "range"
  end
  local session <close>, message, code = program:session { context = math.max(#ids, 1), kv = kv }
  if not session then return nil, message, code end
  return session:trace(ids, names)
end

--- Names and channels of all values of a bundle, in the order in which they are computed.
-- @return list of {name, channels}; or nil, message, code
function M.values(bundle)
  local program, message, code = M.program(bundle)
  if not program then return nil, message, code end
  return program:values()
end

-- The names that match; nil, message, code if a glob matches none.
local function select_names(program, globs)
  local names, seen = {}, {}
  for _, value in ipairs(program:values()) do
    for i, glob in ipairs(globs) do
      if value.name:find(pattern_of(glob)) then
        seen[i] = true
        if names[#names] ~= value.name then names[#names + 1] = value.name end
      end
    end
  end
  for i, glob in ipairs(globs) do
    if not seen[i] then return nil, ("trace: no value matches '%s'; model:values() lists them"):format(glob), "notfound" end
  end
  return names
end

--- Values of a bundle on ids.
-- @param globs list of globs
-- @return name -> tensor [tokens, channels]; or nil, message, code
function M.trace(bundle, ids, globs, kv)
  local program, message, code = M.program(bundle)
  if not program then return nil, message, code end
  local names
  names, message, code = select_names(program, globs)
  if not names then return nil, message, code end
  return M.run(program, ids, names, kv)
end

--- The globs of an argument: a string, a list of strings, or nil (all).
function M.globs(patterns, level)
  if patterns == nil then return { "*" } end
  if type(patterns) == "string" then return { patterns } end
  if type(patterns) ~= "table" then
    error(("trace: patterns must be a glob or a list of them, but is a %s"):format(type(patterns)), level + 1)
  end
  for i, glob in ipairs(patterns) do schema.argument({ type = "string" }, glob, ("trace: pattern %d"):format(i), level + 1) end
  return patterns
end

return M
