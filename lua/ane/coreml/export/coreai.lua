--- Writes a model as one Core AI asset, in a bundle as Apple's runner of language models takes it.
-- Needs ane.core, ane.coreml.export.errors, ane.coreml.export.recipe, ane.coreml.export.tokens, ane.coreml.files,
-- ane.coreml.plan, ane.embed.* and ane.util.failure.
-- Usage: `local report = coreai.write(bundle, "out", opts)`
--
-- The bundle is a folder: NAME.aimodel (NAME is the folder's own), tokenizer/, and metadata.json (version 0.2: kind "llm", or
-- "encoder" where a call takes a whole sequence, which Apple's runner does not know). The names and shapes of the functions are in
-- csrc/mil/coreai_export.h. The bundle is built in OUT.partial, which then replaces OUT in one step. Nothing here was ever compiled
-- for or run on a Neural Engine.

local core = require "ane.core"
local errors = require "ane.coreml.export.errors"
local failure = require "ane.util.failure"
local package_files = require "ane.coreml.files"
local modules = require "ane.embed.modules"
local planner = require "ane.coreml.plan"
local recipe = require "ane.coreml.export.recipe"
local rerank = require "ane.embed.rerank"
local tokens = require "ane.coreml.export.tokens"

local M = {}

local try, refuse = failure.try, failure.raise
local META, VERSION = "metadata.json", "0.2"

--- Tokens of a call and the smallest context that Apple's runner has functions for; contexts double from there.
M.tokens, M.context = { 8, 16, 64 }, 256

-- May `out` be written? Yes if it is absent, an empty folder, or a bundle.
local function check_out(out)
  local kind = core.path_kind(out)
  if not kind then return end
  if kind ~= "folder" then refuse("invalid", "%s: is a %s, wanted a folder for the bundle", out, kind) end
  local names = try(core.list_dir(out))
  if #names == 0 then return end
  local text = core.read_file(out .. "/" .. META)
  local old = text and core.json_decode(text)
  if type(old) ~= "table" or type(old.assets) ~= "table" or type(old.assets.main) ~= "string" then
    refuse("invalid", "%s: is a folder with other things than a bundle (no %s of one); name another one or remove it", out, META)
  end
  local own = { [META] = true, [old.assets.main] = true, tokenizer = true, [".DS_Store"] = true }
  for _, name in ipairs(names) do
    if not own[name] then refuse("invalid", "%s: holds %s beside a bundle; name another output, or move that away", out, name) end
  end
end

-- The numbers of tokens of a call.
local function tokens_of(run, context)
  if run.encoder then return planner.profiles(run.config, run.opts) end
  local list = run.opts.fixed_t
  if not list then
    list = {}
    for _, t in ipairs(M.tokens) do
      if t <= context then list[#list + 1] = t end
    end
  end
  return planner.with_one(run.graph, list[1] and list or { math.min(context, M.tokens[1]) })
end

-- The contexts: those of `tiers`, else 256 doubling, and the full one.
local function contexts_of(opts, full)
  local list = {}
  if opts.tiers then
    table.move(opts.tiers, 1, #opts.tiers, 1, list)
  else
    local context = M.context
    while context < full do
      list[#list + 1], context = context, 2 * context
    end
  end
  list[#list + 1] = full
  return list
end

-- The folder of the tokenizer, as tokens.write takes it.
local function inner(folder)
  return {
    path = function() return folder:path() .. "/tokenizer" end,
    make = function(_, name) return folder:make("tokenizer/" .. name) end,
    remove = function(_, name) return folder:remove("tokenizer/" .. name) end,
  }
end

-- What a model that takes whole sequences gives, as exporter:coreai takes it; the facts that a program needs beside the asset.
local function encoder_of(run)
  local cfg = run.config
  if cfg.kind == "reranker" then
    return { poolings = { cfg.both_sides and "cls" or "last" } }, { score = cfg.both_sides and try(rerank.activation_name(cfg)) or nil }
  end
  if cfg.kind ~= "embedding" then return nil, { labels = cfg.labels and core.json_array(cfg.labels) } end
  local made, dense = try(modules.read(run.bundle)), {}
  for i, d in ipairs(made.dense) do
    local shape = d.weight:shape()
    dense[i] = { rows = shape[1], columns = shape[2], weight = d.weight:tostring(), bias = d.bias and d.bias:tostring(),
                 tanh = d.act == "tanh" }
  end
  return {
    poolings = made.poolings, dense = dense, normalise = made.normalise, prompt_mask = not made.include_prompt, name = "embedding",
  }, {
    prompts = made.prompts, default_prompt = made.default_prompt, similarity = made.similarity or "cosine",
    max_length = made.max_length,
  }
end

local function metadata(run, asset, full, files)
  local cfg = run.config
  return {
    encoder = run.facts, metadata_version = VERSION, kind = run.encoder and "encoder" or "llm", name = cfg.name, assets = { main = asset },
    language = {
      tokenizer = #files.names > 0 and "tokenizer" or nil, vocab_size = cfg.vocab_size, max_context_length = full,
      embedded_tokenizer = #files.names > 0,
    },
  }
end

local function write(run, out)
  local opts, variant = run.opts, run.parts[#run.parts]
  variant = variant[#variant] or variant
  local full = variant.context
  local options = planner.core_options(run.graph, run.config, opts, variant)
  options.threads, options.importance = opts.threads, opts.importance
  local partition = try(core.mil_plan(run.graph, options))
  local exporter <close> = try(core.mil_exporter(run.graph, options))
  local asset, weights, bytes = run.name .. ".aimodel", {}, 0
  for _, p in ipairs(partition.shards) do bytes = bytes + p.bytes end
  local result
  if run.encoder then
    result, run.facts = encoder_of(run)
    run.facts.task = run.config.kind
  end
  local contexts = run.encoder and { full } or contexts_of(opts, full)
  local functions = try(exporter:coreai(run.folder:path() .. "/" .. asset, contexts, tokens_of(run, full), errors.collect(weights),
    run.factor, result))
  try(run.folder:make "tokenizer")
  local files = tokens.write(run.bundle, inner(run.folder), try)
  try(core.write_file(run.folder:path() .. "/" .. META,
    core.json_encode(metadata(run, asset, full, files), { sort = true, indent = 1 })))
  local size, hash = package_files.measure(run.folder:path() .. "/" .. asset)
  try(size, hash)
  try(run.folder:commit())
  return {
    path = out .. "/" .. asset, bundle = out, ok = true, target = "coreai", functions = functions, weights = weights, kept = 0,
    shards = { { path = asset, kind = "whole", bytes = size, weight_bytes = bytes, sha256 = hash, verdict = "risk" } },
    embed_bytes = partition.embedding and 2 * partition.embedding.shape[1] * partition.embedding.shape[2] or 0,
    weight_bytes = bytes, seconds = core.clock() - run.started,
  }
end

--- Writes the bundle `out` as a whole or not at all. An existing bundle is replaced. The same model and options give the same bytes.
-- @param opts as ane.coreml.export.run takes them; of these layout, norm, rope, max_t, functions and argmax have no effect: the
--   runner's contract settles them. fixed_t: tokens of a call (default 8, 16, 64; with causal convolutions always 1 too), tiers:
--   smaller contexts (default: 256 doubling)
-- @param factor as exporter:write of the core takes it, or nil
-- @return report: as ane.coreml.export.run; path is that of the asset, `bundle` that of the folder, functions = list of {name,
--   inputs, outputs, states (lists of {name, dtype, shape}), operations}; or nil, message, code
function M.write(bundle, out, opts, factor)
  local started = core.clock()
  out = #out > 1 and out:gsub("/+$", "") or out
  check_out(out)
  local graph <close> = try(recipe.graph(bundle))
  local parts = try(planner.parts(bundle.config, opts, graph))
  local folder <close> = try(core.folder(out))
  for _, name in ipairs(try(core.list_dir(folder:path()))) do try(folder:remove(name)) end
  return write({
    bundle = bundle, config = bundle.config, opts = opts, graph = graph, folder = folder, parts = parts, started = started,
    factor = factor, encoder = planner.takes_whole(bundle.config), name = out:match "([^/]+)$" or "model",
  }, out)
end

return M
