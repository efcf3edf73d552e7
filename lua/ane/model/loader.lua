--- Loads a path as a planned program.
-- Needs ane.adapter, ane.model.config, ane.core, ane.coreml.set, ane.recipe, ane.recipe.names, ane.tokenizer, ane.model.weights and
-- ane.util.failure.
-- Usage: `local bundle = assert(loader.load(path, opts))`

local adapter = require "ane.adapter"
local config = require "ane.model.config"
local core = require "ane.core"
local failure = require "ane.util.failure"
local names = require "ane.recipe.names"
local recipe = require "ane.recipe"
local weights = require "ane.model.weights"

local M = {}

--- Registers a recipe (ane.register).
M.register = recipe.register

-- Returns the number of key-value heads of all layers together.
local function kv_heads(cfg)
  local list = cfg.per_layer and cfg.per_layer.n_head_kv
  if not list then return cfg.n_layer * cfg.n_head_kv end
  local sum = 0
  for _, n in ipairs(list) do sum = sum + n end
  return sum
end

-- Maximum tokens of the default context: of models in general, and of models that take whole texts.
local MOST_CONTEXT, MOST_TEXT = 4096, 32768

-- The type of cached keys and values. Integer codes make long prompts of models that generate faster, and are nearer to fp32
-- arithmetic than fp16 (docs/notes/attention-int16.md). The graph sets cfg.kind; before it is built, only the bytes are right.
local function default_kv(cfg, activations)
  if activations == "fp32" then return "fp32" end
  return cfg.kind == nil and "int16" or "fp16"
end

-- Returns the tokens of a default context: the model's own maximum, but at most `most` and what fits in half of the free memory.
local function default_context(cfg, opts, most)
  local bytes = ({ int16 = 2, fp16 = 2, fp32 = 4, int8 = 1 })[opts.kv or default_kv(cfg, opts.activations)]
  local bytes_per_token = 2 * kv_heads(cfg) * cfg.head_dim * bytes
  local free = core.memory().available
  local fits = free > 0 and bytes_per_token > 0 and free // 2 // bytes_per_token or MOST_CONTEXT
  return math.min(cfg.context_length or MOST_CONTEXT, most, math.max(fits, 64))
end

local function find_recipe(architecture, given)
  if given == nil then return recipe.find(architecture) end
  if type(given) == "string" then return recipe.from_file(given) end
  local ok, r = pcall(recipe.given, given, "option recipe")
  if not ok then return nil, tostring(r), failure.code(r, "invalid") end
  return r
end

-- Does a model take whole texts and give one result for each?
local function takes_texts(cfg) return cfg.kind ~= nil and cfg.kind ~= "token_classifier" end

-- Maximum tokens of one run (the chunk). A bidirectional model takes a whole text at once. An embedding model also takes many short
-- texts in one run.
local MOST_TOKENS, MANY_TEXTS = 4096, 2048
local function chunk_of(cfg, context)
  if cfg.kind == "token_classifier" then return math.min(context, MOST_TOKENS) end
  return cfg.kind and math.min(math.max(context, MANY_TEXTS), cfg.both_sides and MOST_TEXT or MOST_TOKENS) or 512
end

-- Options that a model on several ranks does not support.
local ALONE = { "adapters", "importance", "transform" }

-- Plans a graph for the ranks of this process's team.
local function on_ranks(graph, options, cfg, source, opts)
  local team, message, code = require("ane.pipeline").team()
  if not team then return nil, message, code end
  for _, name in ipairs(ALONE) do
    if opts[name] then return nil, ("option %s is not supported for a model on several ranks"):format(name), "unsupported" end
  end
  if type(opts.recipe) == "table" then
    return nil, "option recipe must be a path for a model on several ranks, which all read it", "unsupported"
  end
  local program
  program, message, code = require("ane.pipeline.lead").program(team, graph, options, {
    path = source:path(), recipe = opts.recipe, soft_experts = cfg.soft_experts, pipeline = opts.pipeline or "cpu", whole = cfg.kind ~= nil,
  }, opts.ranks)
  return program, message, code
end

-- The graph of a recipe.
-- @param named true: the names of its weights in GGUF files are wanted
-- @return graph, the places that adapters may act at (ane.adapter.places), the names or nil; or nil, message, code
local function build(r, cfg, source, named)
  local places, gguf_names
  local graph, message, code = recipe.build(r, cfg, source, function(b)
    places, gguf_names = adapter.places(b, r), named and names.in_gguf(b, r) or nil
    return true
  end)
  if not graph then return nil, message, code end
  return graph, places, gguf_names
end

-- In embedding models and rerankers "int8" has one scale for each 32 columns of a row. With one per tensor the vectors of
-- all-MiniLM-L6-v2 have a cosine of 0.94 to those of the stored weights, with one per row 0.998, with blocks 0.9996
-- (bench/results/embeddings.md).
local function weights_of(cfg, name) return name == "int8" and takes_texts(cfg) and "int8-block" or name end

-- Positions of the sessions of a model.
local function context_of(cfg, opts)
  if opts.context_given then return opts.context end
  local context = takes_texts(cfg) and default_context(cfg, opts, MOST_TEXT) or opts.context
  return math.min(context, cfg.max_positions or context)
end

--- Plans the graph of a recipe for this machine.
-- @param r the recipe
-- @param cfg the configuration
-- @param source of the weights
-- @param opts as load's, context given; pipeline (default "cpu"; "cpu-plain" keeps every value of the recipe)
-- @return program, the places that adapters may act at (ane.adapter.places); or nil, message, code
function M.plan(r, cfg, source, opts)
  local graph, places, found = build(r, cfg, source, opts.mixed ~= nil)
  if not graph then return nil, places, found end
  local _ <close> = graph -- the program keeps what it needs
  local context = context_of(cfg, opts)
  local program, code
  local ok, message
  ok, message, code = graph:passes(opts.pipeline or "cpu")
  if not ok then return nil, ("%s: %s"):format(source:path(), message), code end
  local progress = opts.progress
  local importance = opts.importance
  if importance then
    importance, message, code = failure.catch(weights.importance, importance)
    if not importance then return nil, message, code end
  end
  local options = {
    isa = opts.isa, threads = opts.threads, int8 = opts.activations ~= "fp32", head = opts.head,
    weights = weights_of(cfg, opts.weights),
    mixed = weights.rules(opts.mixed), names = found,
    importance = importance and weights.bytes(importance), context = context, chunk = chunk_of(cfg, context),
    progress = progress and function(done, total) progress("load", done, total) end,
  }
  if opts.ranks then
    program, message, code = on_ranks(graph, options, cfg, source, opts)
  else
    program, message, code = core.program(graph, options)
  end
  if not program then return nil, ("%s: %s"):format(source:path(), message), code end
  if importance and not opts.ranks then
    ok, message, code = failure.catch(weights.check_importance, program, source, importance)
    if not ok then
      program:close()
      return nil, message, code
    end
  end
  return program, places
end

--- The weights of a model with adapters merged into them.
-- @param adapters list of {path, scale}
-- @return a source, which keeps the given one open; or nil, message, code
function M.merged(r, cfg, source, adapters)
  local graph, places, code = build(r, cfg, source)
  if not graph then return nil, places, code end
  graph:close()
  local files <close> = setmetatable({}, { __close = function(list)
    for _, entry in ipairs(list) do entry.file:close() end
  end })
  for i, entry in ipairs(adapters) do
    local file, message, kind = adapter.read(entry.path)
    if not file then return nil, message, kind end
    files[i] = { file = file, scale = entry.scale }
  end
  local merged, message, kind = adapter.merged(files, places, source)
  return merged, message, kind
end

--- The weights of a transformed model.
-- @param kind nil or "none": as they are; "rotate": see ane.quantise.rotate
-- @param later true: matrices are computed for each use (ane.quantise.overlay)
-- @return a source, which keeps the given one open; or nil, message, code
function M.transformed(r, cfg, source, kind, later)
  if kind == nil or kind == "none" then return source end
  local rotated
  local graph, message, code = recipe.build(r, cfg, source, function(b, logits)
    local why, word
    rotated, why, word = require("ane.quantise.rotate").source(b, logits, source, later)
    if rotated then return true end
    return nil, why, word
  end)
  if not graph then return nil, message, code end
  graph:close()
  return rotated
end

-- With plain dynamic scaling, rope changes with each length beyond the model's own, so sessions stay below that length.
local function check_context(cfg, context)
  for _, rope in pairs(cfg.ropes or { cfg.rope }) do
    if rope.limit and context > rope.limit then
      local what = "option context is %d, but rope type %s is computed for at most %d positions"
      return nil, what:format(context, rope.scaling, rope.limit), "unsupported"
    end
  end
  return true
end

-- The tokenizer of a source, from the file itself or from the folder of config.json.
-- @return tokenizer; or nil and why there is none (a model without a vocabulary takes ids); or nil, message, code
local function find_tokenizer(cfg, source)
  local tokenizer, message, code = require("ane.tokenizer").new(cfg.folder or source)
  if tokenizer then return tokenizer end
  if code == "notfound" or (cfg.folder and code == "unsupported") then return nil, message end
  return nil, message, code
end

-- Returns the ids that end a reply: those of the configuration, then those of the tokenizer.
local function end_ids(cfg, tokenizer)
  local ids, seen = {}, {}
  for _, list in ipairs { cfg.eos_ids or {}, tokenizer and tokenizer.eos_ids or {} } do
    for _, id in ipairs(list) do
      if not seen[id] then
        seen[id] = true
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end

--- The ids that end a reply, of a source that is not loaded as a model.
function M.end_ids(cfg, source)
  local tokenizer = find_tokenizer(cfg, source)
  return end_ids(cfg, tokenizer)
end

--- The recipe and the configuration of a source.
-- @param opts recipe
-- @return recipe, configuration; or nil, message, code
function M.identify(source, path, opts)
  local architecture, cfg, r, message, code
  architecture, message, code = config.architecture(source)
  if not architecture then return nil, message, code end
  -- This precedes the configuration, because the keys of an unknown architecture have unknown meanings.
  r, message, code = find_recipe(architecture, opts.recipe)
  if not r then return nil, ("%s: %s"):format(path, message), code end
  cfg, message, code = config.read(source, r.config, r.whole_rope)
  if not cfg then return nil, message, code end
  return r, cfg
end

--- Returns the given recipe (a table, or the path of a Lua file), or with nil that of the architecture.
-- @return the recipe; or nil, message, code
M.find_recipe = find_recipe

--- The model of a recipe and a configuration.
-- @param path as the user gave it, for messages
-- @param opts as load's
-- @param found nil: the tokenizer is looked for beside the weights; or {tokenizer, message (why there is none)}
-- @return as load
function M.complete(path, r, cfg, source, opts, found)
  cfg.soft_experts = opts.soft_experts
  local tokenizer, message, code
  if found then tokenizer, message = found[1], found[2] else tokenizer, message, code = find_tokenizer(cfg, source) end
  if code then return nil, message, code end
  local tokenizer_error, eos_ids = message, end_ids(cfg, tokenizer)
  if tokenizer then tokenizer.eos_ids = eos_ids end
  local options = {}
  for key, value in pairs(opts) do options[key] = value end
  options.context, options.context_given = opts.context or default_context(cfg, opts, MOST_CONTEXT), opts.context ~= nil
  local fits, program, places
  fits, message, code = check_context(cfg, options.context)
  if not fits then return nil, ("%s: %s"):format(path, message), code end
  if opts.merge and opts.adapters then
    source, message, code = M.merged(r, cfg, source, opts.adapters)
    if not source then return nil, message, code end
  end
  source, message, code = M.transformed(r, cfg, source, opts.transform, opts.unplanned)
  if not source then return nil, message, code end
  local bundle = {
    source = source, config = cfg, tokenizer = tokenizer or nil, tokenizer_error = tokenizer_error, eos_ids = eos_ids,
    architecture = cfg.architecture, recipe = r, bytes = source:bytes(), context = context_of(cfg, options), options = options,
  }
  if opts.unplanned then return bundle end
  program, places, code = M.plan(r, cfg, source, options)
  if not program then return nil, places, code end
  bundle.program, bundle.places, bundle.context = program, places, program:context()
  bundle.kv = opts.kv or default_kv(cfg, opts.activations)
  return bundle
end

--- Returns the warning for a context that is longer than the model's own, or nil.
-- @param context tokens that were asked for, or nil
-- @param own tokens of the model's own context, or nil
function M.context_warning(context, own)
  if not context or not own or context <= own then return nil end
  return ("a context of %d tokens is longer than the %d that the model was made for: text beyond those may be wrong"):format(context, own)
end

-- Options that change or divide weights, for safetensors and GGUF files only, and the beginning of a message about each.
local OF_WEIGHTS = { { "adapters", "adapters are" }, { "ranks", "ranks are" }, { "transform", "option transform is" } }

-- Options of package sets.
local OF_SETS = { "precision", "backend", "verify" }

-- Refuses options for weights. kind: what the model is instead, in the plural.
-- @return true; or nil, message, code
local function without_weights(path, opts, kind)
  for _, row in ipairs(OF_WEIGHTS) do
    if opts[row[1]] then
      return nil, ("%s: %s for safetensors and GGUF files, not for %s"):format(path, row[2], kind), "unsupported"
    end
  end
  return true
end

-- Refuses options that a model that is not a package set cannot have.
-- @param format of its source
-- @return true; or nil, message, code
local function without_set(path, opts, format)
  for _, name in ipairs(OF_SETS) do
    if opts[name] then return nil, ("%s: option %s is for package sets"):format(path, name), "unsupported" end
  end
  if format == "onnx" then return without_weights(path, opts, "ONNX") end
  if opts.run_memory then return nil, ("%s: option run_memory is for ONNX models and package sets"):format(path), "unsupported" end
  if opts.engine == "graph" then
    return nil, ("%s: option engine is \"graph\", which is for ONNX models and package sets"):format(path), "unsupported"
  end
  if not opts.transform or not opts.adapters or opts.merge then return true end
  local what = "%s: adapters are for the weights as they are: with option transform, load them with merge = true"
  return nil, what:format(path), "unsupported"
end

--- Opens a file or folder, builds its graph and packs its weights.
-- @param path a GGUF file, or the first of a split one; a folder with safetensors and config.json, or a file in it
-- @param opts threads, isa, activations ("int8" | "fp32"), kv, weights, context (nil: chosen), recipe, progress; unplanned: no program is
-- made, and no weight is read
-- @return {program, source, config, tokenizer (nil: none; tokenizer_error says why), eos_ids, architecture, recipe, bytes,
-- context, options (as plan takes them)}; or nil, message, code
function M.load(path, opts)
  local set = require "ane.coreml.set"
  local ok, message, code
  if set.find(path) then
    ok, message, code = without_weights(path, opts, "packages")
    if not ok then return nil, message, code end
    return set.load(path, opts)
  end
  local source
  source, message, code = core.open(path)
  if not source then return nil, message, code end
  ok, message, code = without_set(path, opts, source:format())
  if not ok then
    source:close()
    return nil, message, code
  end
  if source:format() == "onnx" then return require("ane.onnx").load(source, path, opts) end
  local r, cfg
  r, cfg, code = M.identify(source, path, opts)
  if not r then return nil, cfg, code end
  return M.complete(path, r, cfg, source, opts)
end

return M
