--- The LoRA adapters of a model. Each is loaded once and chosen per session.
-- Needs ane.adapter, ane.util.list, ane.util.methods and ane.util.schema.
-- Usage: `local chosen = adapters.resolve(model, bundle, { "folder", { path = "other", scale = 0.5 } })`

local adapter = require "ane.adapter"
local list_of = require "ane.util.list"
local methods = require "ane.util.methods"
local schema = require "ane.util.schema"

local M = {}

local SCALE = { type = "number", min = -3.4e38, max = 3.4e38, default = 1 }
local OPTIONS = { scale = SCALE }

local Adapter = {}
local meta = { __name = "ane.lora" }

local function is_adapter(v) return getmetatable(v) == meta end

-- ---- Options -----------------------------------------------------------------------------------------------------------

local function path_fault(path)
  if path == "" then return "must have paths that are not empty" end
  if path:find("\0", 1, true) then return "must have paths without a NUL byte, but has " .. schema.shown(path) end
end

-- Returns what is wrong with one entry of a list, or nil. handles: an entry may be an adapter instead of a path.
local function entry_fault(entry, handles)
  if type(entry) == "string" then return path_fault(entry) end
  if handles and is_adapter(entry) then return nil end
  if type(entry) ~= "table" or is_adapter(entry) then
    return ("must be a path%s, or {path = ..., scale = ...}, or a list of these"):format(handles and " or an adapter of the model" or "")
  end
  if list_of.gives_more(entry) then return "has an entry that " .. list_of.MORE end
  for key in pairs(entry) do
    if key ~= "path" and key ~= "scale" and not (handles and key == "adapter") then
      return ("has no field %s: choose path, %sscale"):format(list_of.shown(key), handles and "adapter, " or "")
    end
  end
  if entry.path ~= nil and entry.adapter ~= nil then return "must not have both path and adapter in an entry" end
  if entry.adapter ~= nil and not is_adapter(entry.adapter) then
    return "must have an adapter of the model as adapter, but has " .. schema.shown(entry.adapter)
  end
  local what = entry.path or entry.adapter
  if what == nil then return "must name a path in each entry" end
  if entry.path ~= nil and type(what) ~= "string" then return "must have a text as path, but has " .. schema.shown(what) end
  local scale = entry.scale
  local wrong = scale ~= nil and schema.fault(SCALE, scale)
  if wrong then return "has a scale that " .. wrong end
  return type(what) == "string" and path_fault(what) or nil
end

-- Wraps a single entry in a list.
local function listed(v)
  if type(v) == "string" or is_adapter(v) or v.path or v.adapter then return { v } end
  return v
end

local function list_fault(handles)
  return function(v)
    for key, entry in pairs(listed(v)) do
      if math.type(key) ~= "integer" then return ("has no field %s: choose path, scale"):format(list_of.shown(key)) end
      local fault = entry_fault(entry, handles)
      if fault then return fault end
    end
    local given = listed(v)
    return type(given) == "table" and list_of.fault(given) or nil
  end
end

--- The rule of `adapters` of load: paths.
M.paths_rule = { type = { "string", "table" }, check = list_fault(false) }
--- The rule of `adapters` of a session or a reply: paths and adapters.
M.rule = { type = { "string", "table" }, check = list_fault(true) }

--- Converts a checked value of `adapters` to a list of {path (or adapter), scale}.
function M.entries(v)
  local out = {}
  for i, entry in ipairs(listed(v)) do
    local plain = type(entry) == "string" or is_adapter(entry)
    local what = plain and entry or entry.path or entry.adapter
    out[i] = { path = what, scale = not plain and entry.scale or is_adapter(what) and what.scale or 1 }
  end
  return out
end

-- ---- Adapters of a model -----------------------------------------------------------------------------------------------

local function facts_of(file)
  local rank = 0
  for _, m in ipairs(file.modules) do rank = math.max(rank, m.rank or 0) end
  return { path = file.path, sha256 = file.sha256, rank = rank, modules = #file.modules, scale = file.scale }
end

-- Reads a file and makes an adapter of the program; or nil, message, code.
local function make(bundle, program, path)
  local file <close>, message, code = adapter.read(path)
  if not file then return nil, message, code end
  local core
  core, message, code = adapter.load(file, program, bundle.places, bundle.source)
  if not core then return nil, message, code end
  return core, facts_of(file)
end

-- Returns what a model holds of the adapter of a path, which it loads once: {core, facts, users (open handles), kept (the model itself uses
-- it), closed}; or nil, message, code.
local function loaded(model, bundle, path)
  model._adapters = model._adapters or {}
  local known = model._adapters[path]
  if known and not known.closed then return known end
  if not bundle.places then
    return nil, ("%s: adapters are for models that a recipe computes from safetensors or GGUF files"):format(path), "unsupported"
  end
  local core, facts, code = make(bundle, bundle.program, path)
  if not core then return nil, facts, code end
  facts.bytes = core:bytes()
  model._adapters[path] = { core = core, facts = facts, users = 0, closed = false }
  return model._adapters[path]
end

local function free(held)
  if not held.closed then held.core:close() end
  held.closed = true
end

-- Makes a handle. of: the one that it is a copy of, with another scale.
local function handle(held, scale, of)
  local out = { scale = scale, _held = held, _of = of }
  for _, key in ipairs { "path", "sha256", "rank", "modules", "bytes" } do out[key] = held.facts[key] end
  return setmetatable(out, meta)
end

--- Implements Model:adapter.
-- @param level of the public function that was called, as for error()
function M.load(model, bundle, path, opts, level)
  schema.argument({ type = "path" }, path, "adapter: path", level + 1)
  opts = schema.check(OPTIONS, opts, "adapter", level + 1)
  local held, message, code = loaded(model, bundle, path)
  if not held then return nil, message, code end
  held.users = held.users + 1
  return handle(held, opts.scale)
end

--- Returns the same adapter with another scale. It is closed when the original is.
function Adapter:with(scale)
  schema.argument({ type = "number", min = SCALE.min, max = SCALE.max }, scale, "with: scale", 2)
  return handle(self._held, scale, self._of or self)
end

--- Frees the adapter once no session and no other handle of it uses it. Closing twice is allowed.
function Adapter:close()
  if self._closed then return end
  self._closed = true
  local held = self._held
  if self._of then return end
  held.users = held.users - 1
  if held.users == 0 and not held.kept then free(held) end
end

local PROPERTIES = {
  closed = function(self) return self._closed == true or self._held.closed or self._of ~= nil and self._of.closed end,
}

meta.__close = Adapter.close
methods.guard(Adapter, meta, "adapter")
meta.__index = methods.index(Adapter, PROPERTIES)

function meta:__tostring() return ("adapter (%s, rank %d, scale %g)"):format(self.path, self.rank, self.scale) end

--- Resolves the adapters that a session uses.
-- @param wanted a checked value of `adapters`, or nil
-- @return list of {core adapter, scale} with a `key` that identifies it; false for the model's own; or nil, message, code
function M.resolve(model, bundle, wanted)
  if wanted == nil then return false end
  local out, key = {}, {}
  for i, entry in ipairs(M.entries(wanted)) do
    local held, message, code
    if type(entry.path) == "string" then
      held, message, code = loaded(model, bundle, entry.path)
      if not held then return nil, message, code end
      held.kept = true
    else
      if entry.path.closed then return nil, ("adapter %s is closed"):format(entry.path.path), "invalid" end
      held = entry.path._held
    end
    message = adapter.scale_fault(held.facts, entry.scale)
    if message then return nil, message, "invalid" end
    out[i] = { held.core, entry.scale }
    if entry.scale ~= 0 then key[#key + 1] = ("%s*%a"):format(held.facts.sha256, entry.scale) end
  end
  out.key = table.concat(key, "+")
  return out
end

--- Sets the adapters of all sessions of a model's program that are not given others.
-- @param entries list of {path, scale}
-- @return true; or nil, message, code
function M.set_default(model, bundle, entries)
  local list, key = {}, {}
  for i, entry in ipairs(entries) do
    local made, message, code = loaded(model, bundle, entry.path)
    if not made then return nil, message, code end
    made.kept = true
    message = adapter.scale_fault(made.facts, entry.scale)
    if message then return nil, message, "invalid" end
    list[i], key[i] = { made.core, entry.scale }, ("%s*%a"):format(made.facts.sha256, entry.scale)
  end
  bundle.program:adapt(list)
  model._default, bundle.adapters, bundle.adapters_key = entries, entries, table.concat(key, "+")
  return true
end

--- Gives another program of the same graph the adapters that the model was loaded with.
-- @return true; or nil, message, code
function M.repeat_default(bundle, program)
  local list = {}
  for i, entry in ipairs(bundle.adapters or {}) do
    local core, message, code = make(bundle, program, entry.path)
    if not core then return nil, message, code end
    list[i] = { core, entry.scale }
  end
  if #list > 0 then program:adapt(list) end
  return true
end

--- Lists the adapters that a model was loaded with: list of {path, scale, merged}, or nil.
function M.describe(model)
  local entries = model._default or model._merged
  if not entries then return nil end
  local out = {}
  for i, entry in ipairs(entries) do out[i] = { path = entry.path, scale = entry.scale, merged = model._merged ~= nil } end
  return out
end

--- Frees all adapters of a model.
function M.close(model)
  for _, held in pairs(model._adapters or {}) do free(held) end
  model._adapters = nil
end

return M
