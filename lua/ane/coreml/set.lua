--- Package sets: a folder with runtime_meta.json, Core ML packages or Core AI assets, and the table of embeddings, as `ane export`
-- writes it.
-- Needs ane.core, ane.coreml.files, ane.coreml.meta, ane.coreml.open, ane.coreml.pooling, ane.coreml.rebuild, ane.coreml.session,
-- ane.model.loader, ane.tokenizer and ane.util.failure.
-- Usage: `local bundle = assert(require("ane.coreml.set").load("out/", opts))`
--
-- meta.read reads and checks runtime_meta.json. files.check compares sizes and, by option, hashes. If a recipe computes exactly what
-- the packages do (ane.coreml.rebuild), the model runs by it, with their weights. Else open.packages opens every package and checks it
-- against the set, and session.program makes the engine that runs them, op by op, by the roles of their inputs and outputs; no
-- architecture is known there.

local core = require "ane.core"
local failure = require "ane.util.failure"
local files = require "ane.coreml.files"
local meta_file = require "ane.coreml.meta"
local open = require "ane.coreml.open"
local pooling = require "ane.coreml.pooling"

local M = {}

--- Name of the file that marks a folder as a set.
M.META = meta_file.NAME

local refuse = failure.raise -- caught by load

local function loader() return require "ane.model.loader" end

--- The folder of a set, with a trailing slash; nil if the path is not a set.
function M.find(path)
  if core.path_kind(path) == "folder" then
    local folder = path:sub(-1) == "/" and path or path .. "/"
    return core.path_kind(folder .. M.META) == "file" and folder or nil
  end
  if path:sub(-#M.META) ~= M.META or core.path_kind(path) ~= "file" then return nil end
  return path:sub(1, -#M.META - 1) == "" and "./" or path:sub(1, -#M.META - 1)
end

-- ---- The bundle ---------------------------------------------------------------------------------------------------------

-- Reads the meta file. Unexpected errors become messages too.
local function read(folder, context)
  return failure.try(failure.border(folder .. M.META, meta_file.read, folder, context))
end

local function find_tokenizer(folder, meta)
  local from = folder
  if meta.tokenizer ~= nil then
    from = folder .. meta_file.inside(meta.tokenizer, "tokenizer")
    if from:match "%.gguf$" then
      local source, message, code = core.open(from)
      if not source then refuse(code, "%s", message) end
      from = source
    end
  end
  local tokenizer, message, code = failure.border(type(from) == "string" and from or from:path(), require("ane.tokenizer").new, from)
  if tokenizer then return tokenizer end
  if code == "notfound" or code == "unsupported" then return nil, message end
  refuse(code, "%s", message)
end

local function config_of(folder, meta)
  return {
    architecture = meta.model_family or "package", labels = meta.labels,
    kind = meta.kind ~= "causal" and meta.kind or nil, both_sides = meta.both_sides == true or nil, score = meta.score,
    reach = meta_file.whole(meta.reach, 0), context_length = meta.max_seq_len, vocab_size = meta.vocab_size, n_layer = meta.n_layers,
    d_model = meta.d_model, n_head = meta_file.whole(meta.n_heads, 1), n_head_kv = meta_file.whole(meta.n_kv_heads, 1),
    head_dim = meta_file.whole(meta.d_head, 1), folder = folder,
  }
end

-- Names of a package's functions, where it has several.
local function function_names(p)
  if not p.functions[1].name then return nil end
  local names = {}
  for i, f in ipairs(p.functions) do names[i] = f.name end
  return names
end

-- Each package once, for info.
local function listed(meta)
  local out, seen = {}, {}
  for _, p in ipairs(meta.packages) do
    if not seen[p.path] then out[#out + 1] = { path = p.path, kind = p.kind, bytes = p.bytes, functions = function_names(p) } end
    seen[p.path] = true
  end
  return out
end

-- The fields that ane.model needs of a source.
local function source_of(folder, meta)
  local bytes = 0
  for _, p in ipairs(meta.packages) do bytes = bytes + p.bytes end
  return {
    path = function() return folder end, format = function() return "package set" end, bytes = function() return bytes end,
    tensors = function() return {} end,
  }
end

-- The option that only one engine has, which was given a value that the other one does not support; nil: there is none.
local function only_packages(opts)
  if opts.precision then return "precision" end
  if opts.backend == "coreml" then return "backend" end
end

local function check_options(opts)
  if opts.weights and opts.weights ~= "file" then
    refuse("unsupported", "option weights is %s: packages run with the weights that they hold", opts.weights)
  end
  if opts.mixed then refuse("unsupported", "option mixed: packages run with the weights that they hold") end
  local name = only_packages(opts)
  if name and (opts.engine == "recipe" or opts.recipe) then
    refuse("invalid", "option %s is for packages that run op by op (engine \"graph\")", name)
  end
  if opts.recipe and opts.engine == "graph" then refuse("invalid", "option recipe has no meaning with engine = \"graph\"") end
end

-- The fields of a bundle that do not depend on the engine.
local function common(folder, meta, opts)
  local tokenizer, tokenizer_error = find_tokenizer(folder, meta)
  local eos = type(meta.eos_ids) == "table" and #meta.eos_ids > 0 and meta.eos_ids or tokenizer and tokenizer.eos_ids or {}
  if tokenizer then tokenizer.eos_ids = eos end
  return {
    tokenizer = tokenizer, tokenizer_error = tokenizer_error, eos_ids = eos, context = opts.context or meta.max_seq_len,
    packages = listed(meta), most_context = meta.most_context,
    modules = meta.kind == "embedding" and pooling.read(folder, meta.pooling) or nil,
  }
end

-- Runs the set by the recipe that computes it.
-- @return bundle; or nil and why there is none
local function by_recipe(folder, meta, opts)
  local given, message, code
  if opts.recipe then
    given, message, code = loader().find_recipe(meta.model_family, opts.recipe)
    if not given then refuse(code, "%s", message) end
  end
  local found, reason = require("ane.coreml.rebuild").find(folder, meta, given)
  if not found then return nil, reason end
  local facts, options = common(folder, meta, opts), {}
  for key, value in pairs(opts) do options[key] = value end
  options.context = facts.context
  found.config.labels, found.config.score = meta.labels, meta.score
  local bundle
  bundle, message, code = loader().complete(folder, found.recipe, found.config, found.source, options,
    { facts.tokenizer, facts.tokenizer_error })
  if not bundle then
    found.source:close()
    refuse(code, "%s", message)
  end
  bundle.engine, bundle.packages, bundle.eos_ids, bundle.modules = "recipe", facts.packages, facts.eos_ids, facts.modules
  bundle.most_context = facts.most_context
  return bundle
end

-- Runs the packages themselves, op by op.
local function by_packages(folder, meta, text, opts)
  local bundle = common(folder, meta, opts)
  local ok, failed = pcall(function()
    open.packages(folder, meta, opts)
    meta.table = open.embedding(folder, meta)
  end)
  if not ok then
    for _, pkg in ipairs(meta.opened or {}) do pkg:close() end
    error(failed, 0)
  end
  opts.kv, opts.activations = "fp32", "fp32" -- this engine has no other, so info reports these
  bundle.program = require("ane.coreml.session").program(meta, { context = bundle.context, text = text, opts = opts })
  bundle.source, bundle.config, bundle.bytes = source_of(folder, meta), config_of(folder, meta), 0
  bundle.architecture, bundle.engine = bundle.config.architecture, "packages"
  return bundle
end

local function load(folder, opts)
  check_options(opts)
  local meta, text = read(folder, opts.context)
  if opts.context and opts.context > meta.max_seq_len then
    local what = "option context must be 1 .. %d, the positions that the states hold, but is %d"
    refuse("unsupported", what, meta.most_context, opts.context)
  end
  local whole_set, message, code = files.check(folder, meta, opts)
  if not whole_set then refuse(code, "%s", message) end
  local name = only_packages(opts)
  local reason = opts.engine == "graph" and "asked for" or name and ("option %s asks for it"):format(name)
  if not reason then
    local made, why = by_recipe(folder, meta, opts)
    if made then return made end
    reason = "no recipe computes these packages: " .. why
    if opts.engine == "recipe" or opts.recipe then
      refuse("unsupported", "engine recipe: %s; engine = \"graph\" runs them op by op", reason)
    end
  end
  local bundle = by_packages(folder, meta, text, opts)
  bundle.engine_reason = reason
  return bundle
end

-- Calls f. Returns its results; or nil, message, code of a refusal, with the file at fault.
local function caught(folder, f, ...)
  local result, message, code = failure.catch(f, ...)
  if result ~= nil or not code then return result, message end
  local names_file = message:sub(1, #folder) == folder
  return nil, names_file and message or folder .. M.META .. ": " .. message, code
end

--- The tokenizer of a set. Nothing else is opened.
-- @param path the folder, or its runtime_meta.json
-- @return it; or nil, message, code: "notfound" where the set has none
function M.tokenizer(path)
  local folder = M.find(path)
  if not folder then return nil, path .. ": there is no " .. M.META, "notfound" end
  local tokenizer, message, code = caught(folder, function() return find_tokenizer(folder, (read(folder))) end)
  return tokenizer, message, code or not tokenizer and "notfound" or nil
end

--- Opens a set. All of it is checked before anything runs.
-- @param path the folder, or its runtime_meta.json
-- @param opts threads, isa, context, precision, backend, progress, verify (true: hashes of all files); weights only "file"; engine:
-- "recipe" (an error where no recipe computes the packages), "graph" (op by op); nil: recipe where one matches. Op by op, kv and
-- activations become "fp32". With the recipe, all options of its engine
-- @return a bundle for ane.model; or nil, message, code: gaps, overlaps, missing or resized files, paths that leave the folder
function M.load(path, opts)
  local folder = M.find(path)
  if not folder then return nil, path .. ": there is no " .. M.META, "notfound" end
  return caught(folder, load, folder, opts)
end

return M
