--- Finds the recipe of an architecture and builds its graph.
-- Needs ane.core, ane.recipe.builder and names. Usage: `local graph = recipe.build(recipe.find("llama"), cfg, source)`
--
-- A recipe is a table: architectures = list of the names it serves; build = function(b, cfg) -> logits; optional
-- ignore = list of patterns of tensor names that the computation does not need; version = the recipe API it was written
-- for (builder.version).

local builder = require "ane.recipe.builder"
local core = require "ane.core"
local names = require "ane.recipe.names"

local M = {}

local registered = {}

-- "hunyuan-dense" lives in models/hunyuan_dense.lua. The name comes from a file: nothing but letters, digits, - and _
-- may reach require.
local function module_name(architecture)
  if #architecture > 64 or not architecture:find "^[%w_-]+$" then return nil end
  return "ane.models." .. architecture:gsub("-", "_")
end

--- Is `r` a usable recipe? Raises with what is wrong.
function M.check(r, where)
  local function bad(what) error(("%s: %s"):format(where, what), 0) end
  if type(r) ~= "table" then bad("a recipe is a table, got a " .. type(r)) end
  if type(r.architectures) ~= "table" or type(r.architectures[1]) ~= "string" then bad "architectures must be a list of names" end
  if type(r.build) ~= "function" then bad "build must be a function(b, cfg)" end
  if r.ignore ~= nil and type(r.ignore) ~= "table" then bad "ignore must be a list of patterns" end
  if r.version ~= nil and type(r.version) ~= "number" then bad "version must be a number" end
  if (r.version or 1) > builder.version then bad(("written for recipe API %d, this is %d"):format(r.version, builder.version)) end
  return r
end

--- Makes a recipe known for this process; it goes before those in ane.models.
function M.register(r)
  M.check(r, "register")
  for _, name in ipairs(r.architectures) do registered[name] = r end
end

--- Names of all architectures that find() would find, sorted.
function M.known()
  local seen, list = {}, {}
  local function add(name)
    if not seen[name] then
      seen[name] = true
      list[#list + 1] = name
    end
  end
  for name in pairs(registered) do add(name) end
  local llama = package.searchpath("ane.models.llama", package.path)
  for _, file in ipairs(llama and core.list_dir(llama:match "^(.*)/[^/]*$") or {}) do
    local base = file:match "^([%w_]+)%.lua$"
    local ok, r = pcall(require, "ane.models." .. tostring(base))
    if base and ok and type(r) == "table" then
      for _, name in ipairs(r.architectures or {}) do add(name) end
    end
  end
  table.sort(list)
  return list
end

--- The recipe of an architecture.
-- @return the recipe; or nil, message, code
function M.find(architecture)
  if registered[architecture] then return registered[architecture] end
  local module = module_name(architecture)
  if module and package.searchpath(module, package.path) then
    local ok, r = pcall(function() return M.check(require(module), module) end)
    if not ok then return nil, tostring(r), "invalid" end
    return r
  end
  local message = "architecture '%s' is not known; known are: %s. A recipe for it can be given with the option recipe, or put in " ..
    "models/%s.lua"
  return nil, message:format(architecture, table.concat(M.known(), ", "), (architecture:gsub("[^%w_]", "_"))), "unsupported"
end

--- A recipe from a Lua file.
-- @return the recipe; or nil, message, code
function M.from_file(path)
  local chunk, message = loadfile(path, "t")
  if not chunk then return nil, message, "io" end
  local ok, r = pcall(function() return M.check(chunk(), path) end)
  if not ok then return nil, tostring(r), "invalid" end
  return r
end

-- Weights that the file holds and the recipe never asked for: the file is not what the recipe computes.
local function check_unused(r, b)
  for _, t in ipairs(b.source:tensors()) do
    local known = b.used[t.name] or t.name == "rope_freqs.weight"
    for _, pattern in ipairs(r.ignore or {}) do known = known or t.name:find(pattern) end
    if not known then
      local message = "%s: tensor %s is not used by the recipe for %s: the result would be wrong"
      return nil, message:format(b.source:path(), t.name, b.cfg.architecture), "unsupported"
    end
  end
  return true
end

--- Builds and checks the graph of a model.
-- @return graph; or nil, message, code
function M.build(r, cfg, source)
  local b = builder.new(cfg, source, names.gguf)
  local ok, result = xpcall(r.build, function(e) return type(e) == "table" and e or { message = tostring(e) } end, b, cfg)
  if not ok then
    local where = result.path and result.path .. ": " or ""
    return nil, ("%s: %s%s"):format(source:path(), where, result.message), "shape"
  end
  local given, complaint = pcall(b.graph.results, b.graph, result)
  if not given then
    local wrong = "%s: the recipe for %s gives %s, not the value of its logits (%s)"
    return nil, wrong:format(source:path(), cfg.architecture, tostring(result), complaint), "invalid"
  end
  local fine, message, code = check_unused(r, b)
  if not fine then return nil, message, code end
  fine, message, code = b.graph:verify()
  if not fine then return nil, message, code end
  return b.graph
end

return M
