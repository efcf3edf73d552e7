--- Writes a model as one Core AI asset, in a bundle as Apple's runner of language models takes it.
-- Needs ane.core, ane.coreml.export.errors, ane.coreml.export.recipe, ane.coreml.export.tokens, ane.coreml.files,
-- ane.coreml.plan, ane.embed.*, ane.util.digest and ane.util.failure.
-- Usage: `local report = coreai.write(bundle, "out", opts)`
--
-- The bundle is a folder: NAME.aimodel (NAME is the folder's own), tokenizer/, and metadata.json (version 0.2: kind "llm", or
-- "encoder" where a call takes a whole sequence, which Apple's runner does not know). The names and shapes of the functions are in
-- csrc/mil/coreai_export.h. The bundle is built in OUT.partial, which then replaces OUT in one step. After an interruption, the next
-- call with the same model and options takes over the weights that were encoded. Nothing here was ever compiled for or run on a
-- Neural Engine.

local core = require "ane.core"
local digest = require "ane.util.digest"
local errors = require "ane.coreml.export.errors"
local failure = require "ane.util.failure"
local package_files = require "ane.coreml.files"
local modules = require "ane.embed.modules"
local planner = require "ane.coreml.plan"
local recipe = require "ane.coreml.export.recipe"
local record = require "ane.coreml.export.record"
local rerank = require "ane.embed.rerank"
local rules = require "ane.coreml.plan.coreai"
local tokens = require "ane.coreml.export.tokens"

local M = {}

local try, refuse = failure.try, failure.raise
local META, VERSION = "metadata.json", "0.2"

--- Tokens of a call and the smallest context that Apple's runner has functions for; contexts double from there.
M.tokens, M.context = { 8, 16, 64 }, 256

-- The files of an asset.
local ASSET = { ["main.mlirb"] = true, ["main.hash"] = true, ["metadata.json"] = true, [".DS_Store"] = true }

-- Refuses a folder of the old bundle with a name that no export writes: it would be lost.
local function check_folder(path, is_own)
  if core.path_kind(path) ~= "folder" then return end
  for _, name in ipairs(try(core.list_dir(path))) do
    if not is_own(name) then
      refuse("invalid", "%s: holds %s, which no export wrote; name another output, or move that away", path, name)
    end
  end
end

-- May `out` be written? Yes if it is absent, an empty folder, or a bundle.
local function check_out(out)
  local kind = core.path_kind(out)
  if not kind then return end
  if kind ~= "folder" then refuse("invalid", "%s: is not a folder: the bundle needs a folder", out) end
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
  check_folder(out .. "/" .. old.assets.main, function(name) return ASSET[name] end)
  check_folder(out .. "/tokenizer", tokens.is_own)
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
  if made.truncate then refuse("unsupported", "truncate_dim of config_sentence_transformers.json cannot be exported in an asset") end
  for i, d in ipairs(try(modules.dense(made))) do
    local shape = d.weight:shape()
    dense[i] = { rows = shape[1], columns = shape[2], weight = d.weight:tostring(), bias = d.bias and d.bias:tostring(),
                 tanh = d.act == "Tanh" }
  end
  return {
    poolings = made.poolings, dense = dense, normalise = made.normalise, prompt_mask = not made.include_prompt, name = "embedding",
  }, {
    prompts = made.prompts, default_prompt = made.default_prompt, similarity = made.similarity or "cosine",
    max_length = made.max_length,
  }
end

local function metadata(run, asset, full)
  local cfg, embedded = run.config, core.path_kind(run.folder:path() .. "/tokenizer/tokenizer.json") == "file"
  return {
    encoder = run.facts, metadata_version = VERSION, kind = run.encoder and "encoder" or "llm", name = cfg.name, assets = { main = asset },
    language = {
      tokenizer = embedded and "tokenizer" or nil, vocab_size = cfg.vocab_size, max_context_length = full, embedded_tokenizer = embedded,
    },
  }
end

-- Options of the core; the largest context.
local function options_of(run)
  local variant = run.parts[#run.parts]
  variant = variant[#variant] or variant
  return planner.core_options(run.graph, run.config, run.opts, variant), variant.context
end

-- Describes in a text what an encoder's asset computes after the model.
local function result_text(result)
  local parts = { core.json_encode { result.poolings, result.normalise or false, result.prompt_mask or false } }
  for _, d in ipairs(result.dense or {}) do
    parts[#parts + 1] = ("%d %d %s %s"):format(d.rows, d.columns, tostring(d.tanh), core.sha256(d.weight .. (d.bias or "")))
  end
  return table.concat(parts, "\n")
end

-- The record of the export, after all else was removed from OUT.partial but what it continues.
local function read_record(run, options, contexts, tokens_)
  local recorded, opts = { contexts = contexts, tokens = tokens_, target = "coreai", name = run.name }, run.opts
  for key, value in pairs(options) do recorded[key] = value end
  recorded.importance = digest.of_importance(opts.importance)
  recorded.result = run.result and result_text(run.result)
  recorded.method = record.method_of(opts, run.follows)
  local is_tuned = run.bundle.is_tuned
  local done = record.read(run.folder, record.fingerprint(run.bundle, run.graph, recorded), is_tuned)
  for _, name in ipairs(try(core.list_dir(run.folder:path()))) do
    local stays = name == record.NAME or name == run.asset or name == run.asset .. ".partial" or is_tuned and record.is_of_tuned(name)
    if not stays then try(run.folder:remove(name)) end
  end
  record.save(run.folder, done)
  return done
end

-- Collects the written weights, and shows the progress.
local function watch(run, list, total)
  local collect, done = errors.collect(list), 0
  return function(w)
    collect(w)
    done = done + w.bytes
    if run.opts.progress then run.opts.progress("export", math.min(done, total), total) end
  end
end

-- Writes the asset unless an earlier run has finished it. Returns its entry of the record: bytes, sha256, functions, weights; and the
-- number of weights that an earlier run has encoded.
local function write_asset(run, options, contexts, tokens_, total)
  local done = read_record(run, options, contexts, tokens_)
  local entry = record.find(run.folder, done, run.asset)
  if entry then return entry, #entry.weights end
  options.threads, options.importance, options.resume = run.opts.threads, run.opts.importance, not run.follows
  local exporter <close> = try(core.mil_exporter(run.graph, options))
  local path, weights = run.folder:path() .. "/" .. run.asset, {}
  local functions = try(exporter:coreai(path, contexts, tokens_, watch(run, weights, total), run.factor, run.result))
  local size, hash, code = package_files.measure(path)
  try(size, hash, code)
  done.done[run.asset] = { bytes = size, sha256 = hash, functions = functions, weights = weights }
  record.save(run.folder, done)
  return done.done[run.asset], exporter:kept()
end

-- What the reader of the report should know: of the weights, calls that Apple's runner cannot make, a tokenizer that it does not find.
local function warnings_of(run, weights, full, why)
  local list = errors.warnings(weights, run.opts, true)
  if not run.encoder and rules.ragged(full, run.opts) then
    list[#list + 1] = "a context is not a multiple of the tokens of a call: Apple's runner would write beyond the states"
  end
  if core.path_kind(run.folder:path() .. "/tokenizer/tokenizer.json") ~= "file" then
    list[#list + 1] = "the bundle has no tokenizer.json: " .. (why or "the model's folder has none")
  end
  return list
end

local function write(run, out)
  local options, full = options_of(run)
  local partition = try(core.mil_plan(run.graph, options))
  local bytes = 0
  for _, p in ipairs(partition.shards) do bytes = bytes + p.bytes end
  if run.encoder then
    run.result, run.facts = encoder_of(run)
    run.facts.task = run.config.kind
  end
  local contexts = run.encoder and { full } or contexts_of(run.opts, full)
  local entry, kept = write_asset(run, options, contexts, tokens_of(run, full), bytes)
  try(run.folder:make "tokenizer")
  tokens.write(run.bundle, inner(run.folder), try)
  local _, why = tokens.write_json(run.bundle, inner(run.folder), try)
  try(core.write_file(run.folder:path() .. "/" .. META,
    core.json_encode(metadata(run, run.asset, full), { sort = true, indent = 1 })))
  local warnings = warnings_of(run, entry.weights, full, why)
  for _, name in ipairs(try(core.list_dir(run.folder:path()))) do
    if name == record.NAME or record.is_of_tuned(name) then try(run.folder:remove(name)) end
  end
  try(run.folder:commit())
  return {
    path = out .. "/" .. run.asset, bundle = out, ok = true, target = "coreai", functions = entry.functions, weights = entry.weights,
    kept = kept, warnings = warnings,
    shards = { { path = run.asset, kind = "whole", bytes = entry.bytes, weight_bytes = bytes, sha256 = entry.sha256, verdict = "risk" } },
    embed_bytes = partition.embedding and partition.embedding.bytes or 0,
    weight_bytes = bytes, seconds = core.clock() - run.started,
  }
end

--- Raises unless `out` may be written.
M.check_out = check_out

--- Writes the bundle `out` as a whole or not at all. An existing bundle is replaced. The same model and options give the same bytes.
-- @param opts as ane.coreml.export.run takes them; of these layout, norm, rope, max_t, functions and argmax have no effect: the
--   runner's contract settles them. fixed_t: tokens of a call (default 8, 16, 64; with causal convolutions always 1 too), tiers:
--   smaller contexts (default: 256 doubling)
-- @param factor as exporter:write of the core takes it, or nil
-- @param follows true: factors depend on earlier matrices, so an interrupted asset starts again
-- @return report: as ane.coreml.export.run; path is that of the asset, `bundle` that of the folder, kept = the
--   number of weights that an interrupted run has encoded, functions = list of {name,
--   inputs, outputs, states (lists of {name, dtype, shape}), operations}, warnings = list of texts; or nil, message, code
function M.write(bundle, out, opts, factor, follows)
  local started = core.clock()
  out = #out > 1 and out:gsub("/+$", "") or out
  check_out(out)
  local graph <close> = try(recipe.graph(bundle))
  local parts = try(planner.parts(bundle.config, opts, graph))
  local folder <close> = try(core.folder(out))
  local name = out:match "([^/]+)$" or "model"
  return write({
    bundle = bundle, config = bundle.config, opts = opts, graph = graph, folder = folder, parts = parts, started = started,
    factor = factor, follows = follows, encoder = planner.takes_whole(bundle.config), name = name, asset = name .. ".aimodel",
  }, out)
end

return M
