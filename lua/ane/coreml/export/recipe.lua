--- What a recipe read from its source and configuration, so that it can build the same graph from a package set.
-- Needs ane.coreml.plan. Usage: `local graph, record = recipe.graph(bundle); meta.recipe = recipe.section(bundle, record, options)`
--
-- The section `recipe` of runtime_meta.json:
--   config     fields of the configuration (ane.model.config), without functions and without what belongs to the source's files
--   keys       answers of cfg.meta by key
--   tensors    shapes of tensors by name: those that exist, of those that were asked for
--   numbers    values of weights with one element, by name (the builder's `number`)
--   same       list of {name, name} of weights with equal numbers (the builder's `same`)
--   options    list with a table for each profile: what core.mil_exporter took

local planner = require "ane.coreml.plan"

local M = {}

-- Fields of the configuration that describe the source's files.
local OF_FILES = { folder = true, tensors = true, ignored = true, name = true }

-- The part of a value that can be written as JSON.
local function plain(t)
  if type(t) == "function" then return nil end
  if type(t) ~= "table" then return t end
  local out = {}
  for key, value in pairs(t) do
    if type(key) == "string" or math.type(key) == "integer" then out[key] = plain(value) end
  end
  return out
end

--- The graph of a bundle, as ane.coreml.plan makes it, and what was asked on the way.
-- @return graph, record; or nil, message, code
function M.graph(bundle)
  local cfg, source = bundle.config, bundle.source
  local meta, holds = cfg.meta, cfg.holds
  local record = { keys = {}, held = {} }
  if meta then
    function cfg.meta(key, kind)
      local v = meta(key, kind)
      record.keys[key] = plain(v)
      return v
    end
  end
  if holds then
    function cfg.holds(name)
      local held = holds(name)
      if held then record.held[name] = source:tensor(name).shape end
      return held
    end
  end
  local graph, message, code = planner.graph(bundle, function(b)
    record.asked = b.asked
    return true
  end)
  cfg.meta, cfg.holds = meta, holds
  if not graph then return nil, message, code end
  return graph, record
end

--- The section.
-- @param record of graph
-- @param options list with the options of each profile
function M.section(bundle, record, options)
  local config, tensors = {}, {}
  for key, value in pairs(bundle.config) do
    if not OF_FILES[key] then config[key] = plain(value) end
  end
  for _, shapes in ipairs { record.held, record.asked.tensors } do
    for name, shape in pairs(shapes) do tensors[name] = table.move(shape, 1, #shape, 1, {}) end
  end
  return {
    config = config, keys = record.keys, tensors = tensors, numbers = record.asked.numbers, same = record.asked.same, options = options,
  }
end

return M
