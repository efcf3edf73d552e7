--- Package sets: a folder with runtime_meta.json, Core ML packages and the table of embeddings, as `ane export` writes it.
-- Needs ane.core, ane.coreml.files, ane.coreml.meta, ane.coreml.open, ane.coreml.session, ane.tokenizer and ane.util.failure.
-- Usage: `local bundle = assert(require("ane.coreml.set").load("out/", opts))`
--
-- meta.read reads and checks runtime_meta.json. files.check compares sizes and, by option, hashes. open.packages opens every
-- package and checks it against the set. session.program makes the engine that runs them. Packages are run by the roles of their
-- inputs and outputs; no architecture is known here.

local core = require "ane.core"
local failure = require "ane.util.failure"
local files = require "ane.coreml.files"
local meta_file = require "ane.coreml.meta"
local open = require "ane.coreml.open"

local M = {}

--- Name of the file that marks a folder as a set.
M.META = meta_file.NAME

local refuse = failure.raise -- caught by load

--- The folder of a set, with a trailing slash; nil if the path is no set.
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
  local called, tokenizer, message, code = pcall(require("ane.tokenizer").new, from)
  if not called then return nil, tostring(tokenizer) end
  if tokenizer then return tokenizer end
  if code == "notfound" or code == "unsupported" then return nil, message end
  refuse(code, "%s", message)
end

local function config_of(folder, meta)
  return {
    architecture = meta.model_family or "package", labels = meta.labels,
    kind = meta.kind == "token_classifier" and "token_classifier" or nil,
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

local function check_options(opts)
  if opts.weights and opts.weights ~= "file" then
    refuse("unsupported", "option weights is %s: packages run with the weights that they hold", opts.weights)
  end
  if opts.recipe or opts.engine then refuse("unsupported", "options recipe and engine have no meaning for a package set") end
end

local function load(folder, opts)
  check_options(opts)
  local meta, text = read(folder, opts.context)
  if opts.context and opts.context > meta.max_seq_len then
    refuse("unsupported", "option context is %d, the states hold %d positions", opts.context, meta.max_seq_len)
  end
  local whole_set, message, code = files.check(folder, meta, opts)
  if not whole_set then refuse(code, "%s", message) end
  local tokenizer, tokenizer_error = find_tokenizer(folder, meta)
  local ok, failed = pcall(function()
    open.packages(folder, meta, opts)
    meta.table = open.embedding(folder, meta)
  end)
  if not ok then
    for _, pkg in ipairs(meta.opened or {}) do pkg:close() end
    error(failed, 0)
  end
  local cfg = config_of(folder, meta)
  local eos = type(meta.eos_ids) == "table" and #meta.eos_ids > 0 and meta.eos_ids or tokenizer and tokenizer.eos_ids or {}
  if tokenizer then tokenizer.eos_ids = eos end
  opts.kv, opts.activations = "fp32", "fp32" -- this engine has no other, so info reports these
  local context = opts.context or meta.max_seq_len
  local program = require("ane.coreml.session").program(meta, { context = context, text = text, opts = opts })
  return {
    program = program, source = source_of(folder, meta), config = cfg, tokenizer = tokenizer, tokenizer_error = tokenizer_error,
    eos_ids = eos, architecture = cfg.architecture, engine = "packages", bytes = 0, context = context,
    packages = listed(meta),
  }
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
-- @param opts threads, isa, context, precision, backend, progress, verify (true: hashes of all files); weights only "file". kv and
-- activations become "fp32"
-- @return a bundle for ane.model; or nil, message, code: gaps, overlaps, missing or resized files, paths that leave the folder
function M.load(path, opts)
  local folder = M.find(path)
  if not folder then return nil, path .. ": there is no " .. M.META, "notfound" end
  return caught(folder, load, folder, opts)
end

return M
