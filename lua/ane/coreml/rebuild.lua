--- Rebuilds a package set by a recipe: the recipe's graph with the weights that the packages hold.
-- Needs ane.core, ane.coreml.export.recipe, ane.coreml.meta, ane.model.loader, ane.recipe, ane.recipe.shapes and ane.util.failure.
-- Usage: `local found, reason = rebuild.find(folder, meta, given)`
--
-- runtime_meta.json says how the recipe was asked (ane.coreml.export.recipe); of a set without this section, a config.json beside it
-- and the list of its packages do. That is only a hint: the recipe's graph is lowered
-- again, shard by shard (for Core AI assets also translated), and compared with the packages (csrc/mil/match.h), and what the host makes
-- (ropes, masks, the order of values) with the rest of the file. Only if nothing differs, the packages' weights become those of the graph.

local core = require "ane.core"
local exported = require "ane.coreml.export.recipe"
local failure = require "ane.util.failure"
local meta_file = require "ane.coreml.meta"
local recipe = require "ane.recipe"
local shapes = require "ane.recipe.shapes"

local M = {}

local refuse, try, whole = failure.raise, failure.try, meta_file.whole

local function differs(format, ...) refuse("unsupported", format, ...) end

-- ---- What the set says of the recipe ------------------------------------------------------------------------------------

local function object(t, key)
  local v = t[key]
  if v == nil then return {} end
  return type(v) == "table" and v or differs("recipe.%s of %s must be an object", key, meta_file.NAME)
end

-- Shapes of tensors by name.
local function read_tensors(section)
  local tensors = {}
  for name, shape in pairs(object(section, "tensors")) do
    if type(shape) ~= "table" or #shape < 1 or #shape > 5 then differs("recipe.tensors of %s: %s has no shape", meta_file.NAME, name) end
    for _, d in ipairs(shape) do
      if not whole(d, 1) or d > 1 << 31 then differs("recipe.tensors of %s: a dimension of %s is %s", meta_file.NAME, name, tostring(d)) end
    end
    tensors[name] = shape
  end
  return tensors
end

-- The configuration as the recipe saw it.
local function read_config(folder, section, tensors)
  local cfg, keys = object(section, "config"), object(section, "keys")
  local layers = whole(cfg.n_layer, 1)
  if type(cfg.architecture) ~= "string" or not layers or layers > 1 << 16 then
    differs("recipe.config of %s is incomplete", meta_file.NAME)
  end
  local copy = { folder = folder, tensors = {} }
  for key, value in pairs(cfg) do copy[key] = value end
  function copy.meta(key) return keys[key] end
  function copy.holds(name) return tensors[name] ~= nil end
  function copy.key_of(field) return field end
  return copy
end

-- The options of the profile that is opened. Slices of the head of `rows` rows must not be many more than there are packages.
local function read_options(section, meta, tensors)
  local list = object(section, "options")
  local options = list[meta.profile or #list]
  if type(options) ~= "table" then differs("recipe.options of %s has no options for the profile of these packages", meta_file.NAME) end
  local rows, most = options.rows, 0
  for _, shape in pairs(tensors) do most = math.max(most, #shape == 2 and shape[1] or 0) end
  if whole(options.context, 1) ~= meta.max_seq_len or rows ~= nil and (whole(rows, 1) or 0) * 64 * #meta.packages < most then
    differs("recipe.options of %s does not fit the set", meta_file.NAME)
  end
  return options
end

-- ---- What a config.json says ---------------------------------------------------------------------------------------------

-- Returns the options that partition the graph as the packages of the set do: layers of a package, slices of the head.
local function options_of(meta)
  local most, options = meta.packages[1].functions, {
    weights = meta.weights, schemes = {}, layout = meta.layout, norm = meta.norm, rope = "constants", argmax = meta.argmax == true,
    context = meta.max_seq_len, max_t = meta.rangedim_max_t, fixed_t = meta.packages[1].fixed_t, target = 1 << 60, size_limit = 1 << 60,
    rows = 1 << 30, layers = 1, slices = 0,
  }
  for _, p in ipairs(meta.packages) do
    if p.parts or p.kind == "experts" or p.kind == "whole" then differs("%s: is not a package of whole layers or of the head", p.path) end
    if p.kind == "layers" then options.layers = math.max(options.layers, p["end"] - p.start + 1) end
    if p.kind == "head" then options.slices = options.slices + 1 end
    if #p.functions > #most then most = p.functions end
    for _, port in ipairs(p.inputs or most[1].inputs) do
      if port.role == "rope_cos" then options.rope = "inputs" end
    end
  end
  if most[1].name then
    options.functions = {}
    for i, f in ipairs(most) do options.functions[i] = { fixed_t = f.fixed_t, max_t = f.max_t, context = f.context } end
  end
  return options
end

-- The section that an export of the model of a config.json would write; nil: there is no such file beside the set.
local function section_of(folder, meta)
  local path = folder .. "config.json"
  if core.path_kind(path) ~= "file" then return nil end
  local source = shapes.source(path)
  local r, cfg, code = require("ane.model.loader").identify(source, path, {})
  if not r then refuse(code, "%s", cfg) end
  local bundle = { recipe = r, config = cfg, source = source }
  local graph, record = try(exported.graph(bundle))
  graph:close()
  meta.profile = nil -- all packages there are
  return exported.section(bundle, record, { options_of(meta) })
end

-- ---- The source ---------------------------------------------------------------------------------------------------------

-- What the builder reads from: shapes first, then the packages' weights too.
local Source = {}
Source.__index = Source

local function new_source(folder, section)
  local same = {}
  for _, pair in ipairs(object(section, "same")) do
    if type(pair) == "table" then same[("%s %s"):format(pair[1], pair[2])] = true end
  end
  return setmetatable({ folder = folder, shapes = read_tensors(section), numbers = object(section, "numbers"), equal = same }, Source)
end

function Source:path() return self.folder end
function Source.format() return "package set" end
function Source:bytes() return self.size or 0 end
function Source.tensors() return {} end
function Source:tensor(name) return self.shapes[name] and { name = name, shape = self.shapes[name] } end
function Source:number(name) return tonumber(self.numbers[name]) end
function Source:same(a, b) return self.equal[("%s %s"):format(a, b)] or false end

function Source:close()
  if self.weights then self.weights:close() end
end

-- A constant of the graph. A table of embeddings that is a file of its own is another constant than a head of the same name.
function Source:constant(graph, name, label, view)
  local held = self.weights
  if not held then return graph:blank(label, shapes.viewed(self.shapes[name], view)) end
  local matrix, other, rows = "matrix " .. label, "plain " .. label, "table " .. label
  if view and view.table then
    local stored = held:tensor(rows) and rows or held:tensor(other) and other or matrix
    return graph:const(stored ~= matrix and held:tensor(matrix) and label .. " (table)" or label, held, stored)
  end
  return graph:const(label, held, held:tensor(matrix) and matrix or other)
end

-- ---- Comparing ----------------------------------------------------------------------------------------------------------

-- Pairs a value of the set that goes from package to package with one of the recipe. Raises if either is paired with another one.
local function same_edge(edges, p, port, ours, theirs)
  local known, back = edges.ours[ours], edges.theirs[theirs]
  if known and known ~= theirs or back and back ~= ours then
    differs("%s: %s is the value %s, but in the recipe %s", p.path, port.name, theirs, ours)
  end
  edges.ours[ours], edges.theirs[theirs] = theirs, ours
end

local function same_numbers(a, b)
  if (a == nil) ~= (b == nil) or a and #a ~= #b then return false end
  for i, f in ipairs(a or {}) do
    if f ~= string.unpack("<f", string.pack("<f", b[i])) then return false end
  end
  return true
end

-- Does the host make the same rotations? Long factors that the context never reaches are in no set.
local function same_rope(meta, want, given)
  if type(given) ~= "table" then return false end
  local long = want.long_freq and meta.max_seq_len > want.original
  local magnitude = string.unpack("<f", string.pack("<f", given.magnitude or 1))
  return same_numbers(want.inv_freq, given.inv_freq) and same_numbers(long and want.long_freq or nil, given.long_freq)
    and (not long or want.original == given.original) and magnitude == string.unpack("<f", string.pack("<f", want.magnitude))
end

-- Do a port of the file and one of the lowered shard mean the same?
local function same_port(run, p, port, want)
  local role = meta_file.results[port.role] and "logits" or port.role
  if role ~= want.role then differs("%s: %s is %s, but in the recipe %s", p.path, port.name, port.role, want.role) end
  if role == "hidden" or role == "edge" then
    same_edge(run.edges, p, port, want.edge, port.edge or role == "hidden" and "hidden" or port.name)
  elseif role == "rope_cos" or role == "rope_sin" then
    local given = whole(port.rope, 0) and run.meta.ropes and run.meta.ropes[port.rope + 1]
    if not same_rope(run.meta, run.tables.ropes[want.index + 1], given) then
      differs("%s: the rope of %s differs from the recipe's", p.path, port.name)
    end
  elseif role == "mask" then
    local mask = run.tables.masks[want.index + 1]
    if mask.window ~= (port.window or 0) or mask.ahead ~= (port.ahead or 0) then
      differs("%s: the mask of %s differs from the recipe's", p.path, port.name)
    end
  end
end

local function same_ports(run, p, ports, wanted)
  local by = {}
  for _, want in ipairs(wanted) do by[want.name] = want end
  for _, port in ipairs(ports) do
    if not by[port.name] then differs("%s: the recipe has no %s", p.path, port.name) end
    same_port(run, p, port, by[port.name])
    by[port.name] = nil
  end
  local missing = next(by)
  if missing then differs("%s: %s does not list %s, which the recipe has", p.path, meta_file.NAME, missing) end
end

-- Compares one package with a shard.
local function same_package(run, i, p)
  local shard, message, code = run.matcher:match(i, run.folder .. p.path)
  if not shard then refuse(code, "%s: %s", p.path, message) end
  if shard.kind ~= p.kind then differs("%s: is of kind %s, but in the recipe of kind %s", p.path, p.kind, shard.kind) end
  if p.kind == "head" and (shard.from ~= p.vocab_start or shard.to ~= p.vocab_end) then
    differs("%s: holds rows %d to %d, but in the recipe %d to %d", p.path, p.vocab_start, p.vocab_end, shard.from, shard.to)
  end
  local functions = shard.functions or { shard }
  if #functions ~= #p.functions then differs("%s: has %d functions, but the recipe has %d", p.path, #p.functions, #functions) end
  local by = {}
  for _, f in ipairs(functions) do by[f.name or ""] = f end
  for _, f in ipairs(p.functions) do
    local want = by[f.name or ""] or differs("%s: the recipe has no function %s", p.path, f.name)
    if f.context and want.context and f.context ~= want.context then
      differs("%s: function %s sees %d positions, but in the recipe %d", p.path, f.name, f.context, want.context)
    end
    same_ports(run, p, f.inputs, want.inputs)
    same_ports(run, p, f.outputs, want.outputs)
  end
end

local function compare(folder, meta, graph, options)
  local matcher <close> = try(core.mil_matcher(graph, options))
  if matcher:count() ~= #meta.packages then differs("the set has %d packages, but the recipe gives %d", #meta.packages, matcher:count()) end
  if meta.embed_scale ~= nil and meta.embed_scale ~= 1 then differs("the set scales its embeddings by %s", tostring(meta.embed_scale)) end
  local run = { folder = folder, meta = meta, matcher = matcher, tables = try(matcher:tables()), edges = { ours = {}, theirs = {} } }
  for i, p in ipairs(meta.packages) do same_package(run, i, p) end
  local source, message, code
  if meta.embed_bin then
    meta_file.inside(meta.embed_bin, "embed_bin")
    source, message, code = matcher:weights(folder, folder .. meta_file.NAME, meta.embed_bin, meta.d_embed)
  else
    source, message, code = matcher:weights(folder)
  end
  if not source then refuse(code, "%s", message) end
  return source
end

-- ---- Finding ------------------------------------------------------------------------------------------------------------

local function find_recipe(cfg, given)
  if given then return given end
  return try(recipe.find(cfg.architecture))
end

local function find(folder, meta, given)
  local section = meta.recipe or section_of(folder, meta)
  if type(section) ~= "table" then
    differs("%s has no section recipe, and there is no config.json beside it", meta_file.NAME)
  end
  local source = new_source(folder, section)
  local cfg, options = read_config(folder, section, source.shapes), read_options(section, meta, source.shapes)
  local r = find_recipe(cfg, given)
  local graph <close> = try(recipe.build(r, cfg, source))
  try(graph:pass "dead_code")
  source.weights = compare(folder, meta, graph, options)
  for _, p in ipairs(meta.packages) do source.size = (source.size or 0) + p.bytes end
  return { recipe = r, config = read_config(folder, section, source.shapes), source = source }
end

--- The recipe that computes a set.
-- @param folder with a trailing slash
-- @param meta as ane.coreml.meta reads it
-- @param given a recipe, or nil: the one that the set names
-- @return {recipe, config, source (of the packages' weights; close it)}; or nil and why no recipe computes the set
-- @raise if memory runs out
function M.find(folder, meta, given)
  local found, message, code = failure.border(folder .. meta_file.NAME, find, folder, meta, given)
  if not found and code == "memory" then refuse(code, "%s", message) end
  return found, message
end

return M
