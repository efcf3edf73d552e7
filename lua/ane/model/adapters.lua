--- The LoRA adapters of a model. Each is loaded once and chosen per session.
-- Needs ane.adapter and ane.util.schema.
-- Usage: `local chosen = adapters.resolve(model, bundle, { "folder", { path = "other", scale = 0.5 } })`

local adapter = require "ane.adapter"
local schema = require "ane.util.schema"

local M = {}

local SCALE = { type = "number", default = 1 }
local OPTIONS = { scale = SCALE }

local Adapter = {}
Adapter.__index = Adapter
Adapter.__name = "ane.lora"

local function is_adapter(v) return getmetatable(v) == Adapter end

-- ---- Options -----------------------------------------------------------------------------------------------------------

-- Returns what is wrong with one entry of a list, or nil. handles: an entry may be an adapter instead of a path.
local function entry_fault(entry, handles)
  if type(entry) == "string" or (handles and is_adapter(entry)) then return nil end
  if type(entry) ~= "table" or is_adapter(entry) then
    return ("must be a path%s, or {path = ..., scale = ...}, or a list of these"):format(handles and " or an adapter of the model" or "")
  end
  for key in pairs(entry) do
    if key ~= "path" and key ~= "adapter" and key ~= "scale" then
      return ("has no field %s: choose path, %sscale"):format(tostring(key), handles and "adapter, " or "")
    end
  end
  local what = entry.path or handles and entry.adapter
  if type(what) ~= "string" and not (handles and is_adapter(what)) then return "must name a path in each entry" end
  if entry.scale ~= nil and type(entry.scale) ~= "number" then return "must have a number as scale" end
end

-- Wraps a single entry in a list.
local function listed(v)
  if type(v) == "string" or is_adapter(v) or v.path or v.adapter then return { v } end
  return v
end

local function list_fault(handles)
  return function(v)
    for key, entry in pairs(listed(v)) do
      if math.type(key) ~= "integer" then return ("has no field %s: choose path, scale"):format(tostring(key)) end
      local fault = entry_fault(entry, handles)
      if fault then return fault end
    end
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
  return { path = file.path, sha256 = file.sha256, rank = rank, modules = #file.modules }
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

-- Returns the adapter of a path, which a model loads once; or nil, message, code.
local function loaded(model, bundle, path)
  model._adapters = model._adapters or {}
  local known = model._adapters[path]
  if known and not known.closed then return known end
  if not bundle.places then
    return nil, ("%s: adapters are for models that a recipe computes from safetensors or GGUF files"):format(path), "unsupported"
  end
  local core, facts, code = make(bundle, bundle.program, path)
  if not core then return nil, facts, code end
  facts.core, facts.scale, facts.bytes, facts.closed = core, 1, core:bytes(), false
  model._adapters[path] = setmetatable(facts, Adapter)
  return facts
end

--- Implements Model:adapter.
-- @param level of the public function that was called, as for error()
function M.load(model, bundle, path, opts, level)
  schema.argument({ type = "string" }, path, "adapter: path", level + 1)
  opts = schema.check(OPTIONS, opts, "adapter", level + 1)
  local made, message, code = loaded(model, bundle, path)
  if not made then return nil, message, code end
  return opts.scale == 1 and made or made:with(opts.scale)
end

--- Returns the same adapter with another scale. It is closed when the original is.
function Adapter:with(scale)
  schema.argument(SCALE, scale, "with: scale", 2)
  local out = { of = self.of or self }
  for _, key in ipairs { "path", "sha256", "rank", "modules", "bytes", "core" } do out[key] = self[key] end
  out.scale, out.closed = scale, self.closed
  return setmetatable(out, Adapter)
end

--- Frees the adapter once no session uses it. Closing twice is allowed.
function Adapter:close()
  local first = self.of or self
  if not first.closed then first.core:close() end
  first.closed, self.closed = true, true
end
Adapter.__close = Adapter.close

function Adapter:__tostring() return ("adapter (%s, rank %d, scale %g)"):format(self.path, self.rank, self.scale) end

--- Resolves the adapters that a session uses.
-- @param wanted a checked value of `adapters`, or nil
-- @return list of {core adapter, scale} with a `key` that identifies it; false for the model's own; or nil, message, code
function M.resolve(model, bundle, wanted)
  if wanted == nil then return false end
  local out, key = {}, {}
  for i, entry in ipairs(M.entries(wanted)) do
    local made, message, code = entry.path, nil, nil
    if type(made) == "string" then made, message, code = loaded(model, bundle, made) end
    if not made then return nil, message, code end
    if made.closed or made.of and made.of.closed then return nil, ("adapter %s is closed"):format(made.path), "invalid" end
    out[i] = { made.core, entry.scale }
    if entry.scale ~= 0 then key[#key + 1] = ("%s*%a"):format(made.sha256, entry.scale) end
  end
  out.key = table.concat(key, "+")
  return out
end

--- Sets the adapters of all sessions of a model's program that are not given others.
-- @param entries list of {path, scale}
-- @return true; or nil, message, code
function M.set_default(model, bundle, entries)
  local list = {}
  for i, entry in ipairs(entries) do
    local made, message, code = loaded(model, bundle, entry.path)
    if not made then return nil, message, code end
    list[i] = { made.core, entry.scale }
  end
  bundle.program:adapt(list)
  model._default, bundle.adapters = entries, entries
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
  for _, made in pairs(model._adapters or {}) do made:close() end
  model._adapters = nil
end

return M
