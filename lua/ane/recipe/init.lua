--- Finds the recipe of an architecture and builds its graph.
-- Needs ane.core, ane.recipe.builder, names, ane.util.failure, keys and list.
-- Usage: `local graph = recipe.build(recipe.find("llama"), cfg, source)`
--
-- A recipe is a table. Required fields: architectures = list of the names it serves, from GGUF and config.json; build = function(b, cfg) ->
-- logits; version = the recipe API version it is written for (builder.version; default 1). Optional fields:
--   names = {hf = {role = name}, gguf = ...}   tensor names that differ from those in ane.recipe.names
--   defaults = {hf = {field = value}, ...}     values of configuration fields that files of a format do not set; tables are filled
--                                              field by field. norm_offset is a number added to norm weights;
--                                              keys = {key = value} gives results of cfg.meta for keys that the file lacks
--   config = {key = value}                     values of keys of config.json that files may lack, before the configuration is read; or
--                                              function(architecture) -> such a table or nil
--   whole_rope = true                          a config.json with rope type "default" rotates whole heads, whatever its
--                                              partial_rotary_factor is, as these models in transformers do
--   modules = function(place, cfg) -> name     names of the modules of transformers, for adapters, where they differ from the names in its
--                                              files; place: see ane.adapter.places; nil: no other name
--   gguf_differs = function(place, cfg) -> why  how the numbers of a weight in GGUF files differ from those of the folder, but for the rows
--                                              of queries and keys (ane.adapter.places); nil: they are the same
--   ignore = list of patterns                  names of tensors that the computation does not need
--   shapes = function(cfg, common) -> {role = shape} or nil   shapes of weights that differ from ane.recipe.shapes, for plans from a
--                                              config.json without weights; it may also change common, the table of the shared shapes
--   transposed_experts = true                  Hugging Face files store stacked experts as [experts, in, out] (ane.quantise.types)
--   settings = {name = function(cfg)}          what ane.quantise.known asks of a folder's configuration
--   interleaved_experts = true                 in the parameters of transformers, the rows of gate and up alternate (ane.adapter.places)

local builder = require "ane.recipe.builder"
local core = require "ane.core"
local failure = require "ane.util.failure"
local keys = require "ane.util.keys"
local list_of = require "ane.util.list"
local names = require "ane.recipe.names"

local M = {}

local registered = {}

-- The module of "some-name" is models/some_name.lua. The name comes from a model file, so only letters, digits, - and _ may reach require.
local function module_name(architecture)
  if #architecture > 64 or not architecture:find "^[%w_-]+$" then return nil end
  return "ane.models." .. architecture:gsub("-", "_")
end

--- Checks a recipe. Raises an error that says what is wrong.
-- @param r the recipe
-- @param where prefix of error messages
-- @return r
function M.check(r, where)
  local function bad(what) error(("%s: %s"):format(where, what), 0) end
  if type(r) ~= "table" then bad("a recipe must be a table, but is " .. list_of.kind(r)) end
  if type(r.architectures) ~= "table" or type(r.architectures[1]) ~= "string" then bad "architectures must be a list of names" end
  if type(r.build) ~= "function" then bad "build must be a function(b, cfg)" end
  if r.shapes ~= nil and type(r.shapes) ~= "function" then bad "shapes must be a function(cfg)" end
  for _, key in ipairs { "modules", "gguf_differs" } do
    if r[key] ~= nil and type(r[key]) ~= "function" then bad(key .. " must be a function(place, cfg)") end
  end
  for _, key in ipairs { "ignore", "names", "defaults" } do
    local what = key == "ignore" and "a list of patterns" or "a table"
    if r[key] ~= nil and type(r[key]) ~= "table" then bad(("%s must be %s"):format(key, what)) end
  end
  local kind = type(r.config)
  if kind ~= "nil" and kind ~= "table" and kind ~= "function" then bad "config must be a table or function(architecture)" end
  if r.version ~= nil and type(r.version) ~= "number" then bad "version must be a number" end
  if (r.version or 1) > builder.version then
    bad(("written for recipe API %s, but this version has %d"):format(r.version, builder.version))
  end
  return r
end

-- Recipes of the user -> what debug.getinfo(build, "S") says of them. Messages about their errors name their lines.
local defined = setmetatable({}, { __mode = "k" })

--- Checks a recipe of the user. Messages about its errors name its lines.
-- @param r the recipe
-- @param where prefix of error messages
-- @return r
function M.given(r, where)
  M.check(r, where)
  defined[r] = debug.getinfo(r.build, "S")
  return r
end

--- Registers a recipe in this process. It takes precedence over those in ane.models.
function M.register(r)
  M.given(r, "register")
  for _, name in ipairs(r.architectures) do registered[name] = r end
end

-- Names of the files in the folder of ane.models; or nil, message, code.
local function models()
  local llama = package.searchpath("ane.models.llama", package.path)
  if not llama then
    for template in package.path:gmatch "[^;]+" do
      local path = template:gsub("%?", "ane/models/llama")
      if core.path_kind(path) then
        return nil, ("%s: cannot be opened, because there is no memory or too many files are open"):format(path), "io"
      end
    end
    return nil, "no recipe can be read: ane.models.llama is not below package.path", "io"
  end
  return core.list_dir(llama:match "^(.*)/[^/]*$")
end

-- Iterates over the recipes of ane.models: file name, recipe. Skips files that do not load.
local function each_model()
  local files = models() or {}
  table.sort(files)
  local i = 0
  return function()
    while i < #files do
      i = i + 1
      local name = files[i]:match "^([%w_]+)%.lua$"
      local ok, r = pcall(require, "ane.models." .. tostring(name))
      if failure.is_interrupt(r) then error(r, 0) end
      if name and ok and type(r) == "table" then return name, r end
    end
  end
end

--- The sorted names of all architectures that find() knows.
function M.known()
  local set = {}
  for name in pairs(registered) do set[name] = true end
  for _, r in each_model() do
    for _, name in ipairs(r.architectures or {}) do set[name] = true end
  end
  return keys(set)
end

--- Finds the recipe of an architecture: a registered one, else the file of this name, else a recipe that lists the name.
-- @return the recipe; or nil, message, code
function M.find(architecture)
  if registered[architecture] then return registered[architecture] end
  local module = module_name(architecture)
  if module and package.searchpath(module, package.path) then
    local ok, r = pcall(function() return M.check(require(module), module) end)
    if not ok then return nil, tostring(r), failure.code(r, "invalid") end
    return r
  end
  for name, r in each_model() do
    for _, served in ipairs(r.architectures or {}) do
      if served == architecture then
        local ok, message = pcall(M.check, r, "ane.models." .. name)
        if not ok then return nil, tostring(message), failure.code(message, "invalid") end
        return r
      end
    end
  end
  local listed, message, code = models()
  if not listed then return nil, message, code end
  local known, file = table.concat(M.known(), ", "), architecture:gsub("[^%w_]", "_")
  return nil, ("architecture '%s' is not known; known are: %s. A recipe for it can be given with the option recipe, or put in " ..
    "models/%s.lua"):format(architecture, known, file), "unsupported"
end

--- Loads a recipe from a Lua file.
-- @return the recipe; or nil, message, code
function M.from_file(path)
  local chunk, message = loadfile(path, "t")
  if not chunk then return nil, message, "io" end
  local ok, r = pcall(function() return M.given(chunk(), path) end)
  if not ok then return nil, tostring(r), failure.code(r, "invalid") end
  return r
end

-- Buffers in old files that the computation does not need.
local BUFFERS = { "%.rotary_emb%.inv_freq$" }

local function matches(name, patterns)
  for _, pattern in ipairs(patterns or {}) do
    if name:find(pattern) then return true end
  end
  return false
end

-- Rejects a file that holds weights the recipe does not use: the file then holds a different model from the one the recipe computes.
local function check_unused(r, b)
  local read = b.cfg.tensors or {}
  local prefix, seen = b.cfg.text_prefix, {}
  for _, t in ipairs(b.source:tensors()) do
    if prefix and t.name:sub(1, #prefix) ~= prefix and not b.used[t.name] then
      local part = t.name:gsub("^model%.", ""):match "^[^.]+"
      if not seen[part] then
        seen[part], b.cfg.ignored = true, b.cfg.ignored or {}
        table.insert(b.cfg.ignored, part)
      end
    elseif not (b.used[t.name] or read[t.name] or matches(t.name, BUFFERS) or matches(t.name, r.ignore)) then
      local what = "%s: tensor %s is not used by the recipe for %s: the result would be wrong"
      return nil, what:format(b.source:path(), t.name, b.cfg.architecture), "unsupported"
    end
  end
  local key, value, path = (b.cfg.unread or function() end)()
  if not key then return true end
  return nil, ("%s: key %s is %s, which the recipe for %s does not compute"):format(path, key, value, b.cfg.architecture), "unsupported"
end

-- Rejects a file that lacks an optional weight of one layer which another layer has: the file is incomplete.
local function check_missing(b)
  for _, of in pairs(b.optional) do
    if of.held and of.absent then
      return nil, ("%s: no tensor %s, which other layers have (%s)"):format(b.source:path(), of.absent, of.held), "shape"
    end
  end
  return true
end

-- Sets the fields of t that are nil, recursively.
local function fill(t, defaults)
  for key, value in pairs(defaults) do
    if type(value) == "table" then
      if t[key] == nil then t[key] = {} end
      fill(t[key], value)
    elseif t[key] == nil then
      t[key] = value
    end
  end
end

-- Checks that a recipe reads the per-layer lists of the file. If it read the plain field only, the result would be wrong.
-- @return function() -> true; or nil, message, code if the recipe did not read a list
local function watch_per_layer(cfg, source)
  local lists, asked = cfg.per_layer, {}
  if not lists then return function() return true end end
  cfg.per_layer = setmetatable({}, { __index = function(_, field)
    asked[field] = true
    return lists[field]
  end })
  return function()
    cfg.per_layer = lists
    for field, list in pairs(lists) do
      local i = 2
      while i < #list and list[i] == list[1] do i = i + 1 end
      local what = "%s: metadata key %s differs from layer to layer (%d in layer 0, %d in layer %d)"
      if not asked[field] and list[i] ~= list[1] then
        return nil, what:format(source:path(), cfg.key_of(field), list[1], list[i], i - 1), "format"
      end
    end
    return true
  end
end

--- Fills the fields that the file does not set with the defaults of the architecture.
-- @param r the recipe
-- @param cfg configuration from ane.model.config.read
function M.complete(r, cfg)
  local defaults = r.defaults and r.defaults[cfg.format] or {}
  local fields, stored, given = {}, cfg.meta, defaults.keys
  for key, value in pairs(defaults) do
    if key ~= "keys" then fields[key] = value end
  end
  fill(cfg, fields)
  function cfg.meta(key, kind)
    local v = stored(key, kind)
    if v == nil and given then return given[key] end
    return v
  end
  for _, rope in pairs(cfg.ropes or { cfg.rope }) do
    if not rope.inv_freq then rope.theta = rope.theta or 10000.0 end
  end
  cfg.norm_eps = cfg.norm_eps or 1e-6
end

-- The message for an error of a recipe. The core puts the position in builder.lua before its messages; it is removed, since it says nothing
-- about the model file.
-- @param unread false, or the message about a per-layer list that the recipe has not read, which may be the cause
local function complaint_of(source, result, unread)
  local where = result.path and result.path .. ": " or ""
  local text = result.message:gsub("[^%s:]*ane/recipe/builder%.lua:%d+: ", "")
  local more = unread and "; " .. unread:sub(#source:path() + 3) or ""
  local line = result.line and (" (%s)"):format(result.line) or ""
  return ("%s: %s%s%s%s"):format(source:path(), where, text, more, line)
end

--- Builds and checks the graph of a model.
-- @param examine nil, or function(b, logits) -> true; or nil, message, code. It checks the built graph (see ane.recipe.builder)
-- @return graph; or nil, message, code
function M.build(r, cfg, source, examine)
  local complete, why, word = failure.border(source:path(), function()
    M.complete(r, cfg)
    if source.learn then source:learn(cfg, r.shapes) end
    return true
  end)
  if not complete then return nil, why, word end
  local finish = watch_per_layer(cfg, source)
  local b = builder.new(cfg, source, names.for_source(r, cfg), defined[r], M.build)
  local ok, result = xpcall(r.build, function(e) return b:_explained(e) end, b, cfg)
  if not ok and failure.is_interrupt(result) then error(result, 0) end
  if not ok and type(result) == "string" then return nil, source:path() .. ": out of memory", "memory" end -- the handler is not called then
  if not ok and result.code then return nil, result.message, result.code end -- of a key of the configuration
  local fine, message, code = finish()
  if not ok then return nil, complaint_of(source, result, not fine and message), failure.code(result.message, "shape") end
  if not fine then return nil, message, code end
  local given, complaint = pcall(b.graph.results, b.graph, result)
  if not given then
    local what = "%s: build of the recipe for %s must return the value of its logits, but returns %s"
    return nil, what:format(source:path(), cfg.architecture, list_of.shown(result)), failure.code(complaint, "invalid")
  end
  fine, message, code = check_unused(r, b)
  if not fine then return nil, message, code end
  fine, message, code = check_missing(b)
  if not fine then return nil, message, code end
  if examine then
    fine, message, code = examine(b, result)
    if not fine then return nil, message, code end
  end
  fine, message, code = b.graph:verify()
  if not fine then return nil, message, code end
  return b.graph
end

return M
