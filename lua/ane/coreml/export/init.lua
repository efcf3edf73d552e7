--- Writes a model as Core ML packages for the Neural Engine, with all files that are needed to run them.
-- Needs ane.core, ane.coreml.export.*, ane.coreml.files, ane.coreml.plan, ane.coreml.pooling, ane.embed.*, ane.util.digest,
-- ane.util.failure, ane.util.schema and ane.util.units.
-- Usage: `assert(model:export("out/", {weights = "int8", context = 512}))`
--
-- The set is a folder: packages, embed.bin (fp16 rows [vocab_size, d_embed]), the files of the tokenizer, and runtime_meta.json,
-- which ane.coreml.export.meta makes and ane.coreml.set reads. The set is built in OUT.partial. Each package is checked and
-- hashed as it is written. At the end OUT.partial replaces OUT in one step. After an interruption, the next call with the same
-- model and options keeps the packages whose hashes match. The same model and options give the same bytes.

local coreai = require "ane.coreml.export.coreai"
local core = require "ane.core"
local digest = require "ane.util.digest"
local errors = require "ane.coreml.export.errors"
local failure = require "ane.util.failure"
local held = require "ane.model.weights"
local loader = require "ane.model.loader"
local meta = require "ane.coreml.export.meta"
local modules = require "ane.embed.modules"
local package_files = require "ane.coreml.files"
local planner = require "ane.coreml.plan"
local pooling = require "ane.coreml.pooling"
local recipe = require "ane.coreml.export.recipe"
local record = require "ane.coreml.export.record"
local rerank = require "ane.embed.rerank"
local schema = require "ane.util.schema"
local tokens = require "ane.coreml.export.tokens"
local tuned = require "ane.coreml.export.tuned"
local units = require "ane.util.units"

local M = {}

-- With target = "coreai-sharded" the set consists of Core AI assets, with the same inputs, outputs and states, instead of packages.

--- Options: those of ane.coreml.plan (with target = "coreai" the result is a bundle of ane.coreml.export.coreai), and
--   argmax: the head gives the best row and its value instead of logits
--   importance: {weight's name = tensor}: the weight of each column's error, for int4 and lut4
--   method: "rtn" (default): rounds each number to the nearest; "gptq": later columns compensate the errors of earlier ones, which needs
--     calibration
--   calibration: of ane.quantise.moments
--   inputs: of gptq: "rounded" (default) or "source", as for model:quantise
--   tune: of gptq: "norms": the norm weights are tuned at the end, as by model:quantise (ane.coreml.export.tuned); only for int4-block
--     and tables, without the option mixed and with inputs = "rounded". "auto" (default): if that is possible, the numbers have at most
--     4 bits, and it takes little time; "none"
--   memory: bytes that statistics may take at a time with inputs = "source"; default 2 GiB
--   threads, progress (function(stage, done, total), or true for a bar)
M.rules = schema.merge(planner.rules, {
  argmax = { type = "boolean", default = false },
  importance = { type = "table" },
  method = { type = "string", choices = { "rtn", "gptq" }, default = "rtn" },
  calibration = { type = "table", made_of = "calibrate, tokens" },
  inputs = { type = "string", choices = { "rounded", "source" }, default = "rounded" },
  tune = { type = "string", choices = { "auto", "norms", "none" }, default = "auto" },
  memory = { type = "integer", min = 1, default = 2 << 30 },
  threads = { type = "integer", min = 1, max = 1024 },
  progress = { type = { "callable", "boolean" } },
})

local META = "runtime_meta.json"

local try, refuse = failure.try, failure.raise -- caught by run

-- ---- Files ---------------------------------------------------------------------------------------------------------------

-- The first name in a folder that neither an export writes nor a set (its meta file, or nil) lists. It would be lost if the
-- folder were replaced.
local function foreign(folder, set)
  local named = { [".DS_Store"] = true, [set and set.embed_bin or ""] = true, [set and set.tokenizer or ""] = true }
  for _, p in ipairs(set and set.packages or {}) do
    if type(p) == "table" and type(p.path) == "string" then named[p.path:match "^[^/]*"] = true end
  end
  for _, name in ipairs(try(core.list_dir(folder))) do
    if not (named[name] or record.is_own(name)) then return name end
  end
end

-- May `out` be written? Yes if it is absent, an empty folder, or a package set.
local function check_out(out)
  local kind = core.path_kind(out)
  if not kind then return end
  if kind ~= "folder" then refuse("invalid", "%s: is not a folder: the packages need a folder", out) end
  if #try(core.list_dir(out)) == 0 then return end
  local text = core.read_file(out .. "/" .. META)
  local old = text and core.json_decode(text)
  if type(old) ~= "table" or type(old.packages) ~= "table" or not old.format_version then
    refuse("invalid", "%s: is a folder with other things than a package set (no %s of one); name another one or remove it", out, META)
  end
  local name = foreign(out, old)
  if name then refuse("invalid", "%s: holds %s beside a package set; name another output, or move that away", out, name) end
end

-- ---- Packages ------------------------------------------------------------------------------------------------------------

local function residency_of(path)
  local package <close> = try(core.package(path)) -- the exporter has checked its contents
  return core.mil_judge(package)
end

-- Requests the factors of matrices that an earlier run has written, so that later ones compensate the same changes.
local function request_factors(run, weights)
  for _, w in ipairs(weights) do
    local _, cols = run.opts.calibration:input(w.name:match "^[^%[]+")
    if cols and w.form ~= "fp16" then run.factor(w.name, w.form, cols) end
  end
end

-- Writes shard i unless it is written already. Returns its entry of the record: bytes, sha256, files, ports, functions, weights.
local function write_shard(run, exporter, i, name)
  if run.written[name] then return run.written[name] end -- another variant shares it
  local entry = record.find(run.folder, run.record, name)
  if entry then
    run.kept, run.written[name] = run.kept + 1, entry
    if run.follows then request_factors(run, entry.weights) end
    return entry
  end
  local path, weights = run.folder:path() .. "/" .. name, {}
  local write = run.opts.assets and exporter.write_asset or exporter.write
  local written = try(write(exporter, i, path, errors.collect(weights), run.factor))
  local residency = not run.opts.assets and residency_of(path) or nil
  local bytes, hash, files = package_files.measure(path)
  try(bytes, hash, files)
  entry = { bytes = bytes, sha256 = hash, files = files, version = written.version, inputs = written.inputs, outputs = written.outputs,
            states = written.states, functions = written.functions, weights = weights, residency = residency }
  run.record.done[name], run.written[name] = entry, entry
  record.save(run.folder, run.record)
  return entry
end

-- part: one of ane.coreml.plan's parts
local function write_part(run, part)
  local options, recorded = planner.core_options(run.graph, run.config, run.opts, part), {}
  options.argmax = run.opts.argmax
  for key, value in pairs(options) do recorded[key] = value end
  options.threads, options.importance = run.opts.threads, run.opts.importance
  options.resume = run.opts.assets and not run.follows
  local partition = try(core.mil_plan(run.graph, options))
  local exporter <close> = try(core.mil_exporter(run.graph, options))
  local names = planner.package_names(partition.shards, part, run.opts.assets)
  local profile = { fixed_t = part.fixed_t, context = part.context, tiered = part.tiered, assets = run.opts.assets,
                    many = part[1] and part, partition = partition, options = recorded, tables = try(exporter:tables()),
                    names = names, entries = {} }
  for i, name in ipairs(names) do
    profile.entries[i] = write_shard(run, exporter, i, name)
    run.done = run.done + partition.shards[i].bytes
    if run.progress then run.progress("export", run.done, run.total) end
  end
  if not run.embedding and partition.embedding then
    run.embedding = try(exporter:table(run.folder:path() .. "/embed.bin"))
  end
  return profile
end

local function total_bytes(run, parts)
  local sum = 0
  for _, part in ipairs(parts) do
    local partition = try(core.mil_plan(run.graph, planner.core_options(run.graph, run.config, run.opts, part)))
    for _, p in ipairs(partition.shards) do sum = sum + p.bytes end
  end
  return sum
end

-- Removes files left by an export with other shards, or by one that was killed.
local function keep_only(folder, wanted)
  for _, name in ipairs(try(core.list_dir(folder:path()))) do
    if not wanted[name] then try(folder:remove(name)) end
  end
end

local function names_of(functions)
  if not functions then return nil end
  local names = {}
  for i, f in ipairs(functions) do names[i] = f.name end
  return names
end

-- Calls fn(name, shard, entry, profile) once for each package.
local function each_package(profiles, fn)
  local seen = {}
  for _, profile in ipairs(profiles) do
    for i, name in ipairs(profile.names) do
      if not seen[name] then fn(name, profile.partition.shards[i], profile.entries[i], profile) end
      seen[name] = true
    end
  end
end

local function shards_of(profiles)
  local list = {}
  each_package(profiles, function(name, p, entry, profile)
      list[#list + 1] = {
        path = name, kind = p.kind, bytes = entry.bytes, weight_bytes = p.bytes, sha256 = entry.sha256, fixed_t = profile.fixed_t,
        layers = p.first and { p.first, p.last } or nil, part = p.parts and { p.part, p.parts } or nil,
        rows = p.kind == "head" and p.to and { p.from, p.to } or nil,
        experts = p.kind == "experts" and { p.from, p.to } or nil, functions = names_of(entry.functions), verdict = p.finding.verdict,
        residency = entry.residency,
      }
  end)
  return list
end

local function weights_of(profiles)
  local list = {}
  each_package(profiles, function(_, _, entry) table.move(entry.weights, 1, #entry.weights, #list + 1, list) end)
  return list
end

-- What the host does with the results of an embedding model or a reranker: sections of runtime_meta.json, names of files.
local function write_host(run)
  if run.config.kind == "embedding" then
    local section, names = pooling.write(try(modules.read(run.bundle)), run.folder, try)
    return { pooling = section }, names
  end
  if run.config.kind == "reranker" then return { score = try(rerank.activation_name(run.config)) }, {} end
  return {}, {}
end

-- {path = {bytes, sha256}} of files, those in folders included.
local function hash_tokens(path, names)
  local out = {}
  for _, name in ipairs(names) do
    if core.path_kind(path .. "/" .. name) == "folder" then
      local bytes, hash, files = package_files.measure(path .. "/" .. name)
      try(bytes, hash, files)
      for file, entry in pairs(files) do out[name .. "/" .. file] = entry end
    else
      local hash, bytes = core.sha256_file(path .. "/" .. name)
      out[name] = { sha256 = try(hash, bytes, "io"), bytes = bytes }
    end
  end
  return out
end

local function write_all(run, out)
  local profiles = {}
  run.total = total_bytes(run, run.parts)
  for i, part in ipairs(run.parts) do profiles[i] = write_part(run, part) end
  local wanted = { [META] = true, ["embed.bin"] = run.embedding and true or nil }
  for _, profile in ipairs(profiles) do
    for _, name in ipairs(profile.names) do wanted[name] = true end
  end
  local files = tokens.write(run.bundle, run.folder, try)
  if run.opts.assets then -- other programs run the set
    local more = tokens.write_json(run.bundle, run.folder, try)
    table.move(more, 1, #more, #files.names + 1, files.names)
  end
  for _, name in ipairs(files.names) do wanted[name] = true end
  local host, names = write_host(run)
  table.move(names, 1, #names, #files.names + 1, files.names)
  for _, name in ipairs(names) do wanted[name] = true end
  files.hashes = hash_tokens(run.folder:path(), files.names)
  local options = {}
  for i, profile in ipairs(profiles) do options[i] = profile.options end
  local object = meta.of(run, profiles, files)
  object.pooling, object.score = host.pooling, host.score
  object.recipe = recipe.section(run.bundle, run.asked, options)
  local weights = weights_of(profiles)
  local text = core.json_encode(object, { sort = true, indent = 1 })
  try(core.write_file(run.folder:path() .. "/" .. META, text))
  keep_only(run.folder, wanted)
  try(run.folder:commit())
  return {
    path = out, ok = true, target = run.opts.assets and "coreai-sharded" or nil, shards = shards_of(profiles), kept = run.kept,
    weights = weights, warnings = errors.warnings(weights, run.opts, run.opts.assets),
    embed_bytes = run.embedding and run.embedding.bytes or 0, seconds = core.clock() - run.started, weight_bytes = run.total,
  }
end

-- Do the matrices follow what those before them have changed?
local function follows(opts) return opts.method == "gptq" and opts.inputs == "rounded" and opts.calibration:has_stages() end

-- function(weight, scheme, columns) -> the factor of its inputs, or nil; nil if none is wanted. Then what is to be closed, or nil.
local function factor_function(opts)
  if opts.method ~= "gptq" then return nil end
  local compensate = require "ane.quantise.compensate"
  local function wanted(name, scheme, cols) return compensate.wanted(opts.calibration, { name, name:match "^[^%[]+" }, scheme, cols) end
  if follows(opts) then
    local factors = compensate.exported(opts.calibration, opts.threads)
    return function(name, scheme, cols)
      local w = wanted(name, scheme, cols)
      return w and factors:of(name:match "^[^%[]+", scheme, w)
    end, factors
  end
  local factors = compensate.new(opts.calibration, opts.calibration.order, opts.memory)
  return function(name, scheme, cols)
    local w = wanted(name, scheme, cols)
    return w and factors:of(w)
  end
end

local function without_slash(out) return #out > 1 and (out:gsub("/+$", "")) or out end

-- Does a message say that a file could not be written?
local function is_of_writing(message) return message:find "cannot write" ~= nil or message:find "cannot create" ~= nil end

-- Raises if the head of a model cannot give the best row.
local function check_argmax(bundle, opts)
  if opts.argmax and (bundle.config.kind == "embedding" or bundle.config.kind == "reranker") then
    refuse("unsupported", "option argmax: this model gives no logits of tokens")
  end
end

local function export(bundle, out, opts)
  local started = core.clock()
  out = without_slash(out)
  check_out(out)
  local graph <close>, asked = try(recipe.graph(bundle))
  local parts = try(planner.parts(bundle.config, opts, graph))
  check_argmax(bundle, opts)
  local folder <close> = try(core.folder(out))
  local run = {
    bundle = bundle, config = bundle.config, opts = opts, graph = graph, folder = folder, progress = opts.progress or nil, kept = 0,
    done = 0, started = started, parts = parts, written = {}, asked = asked,
  }
  local options = planner.core_options(graph, bundle.config, opts, parts[#parts])
  options.argmax, options.parts, options.assets = opts.argmax, parts, opts.assets
  options.importance = digest.of_importance(opts.importance)
  local factors
  run.factor, factors = factor_function(opts)
  local _ <close> = factors
  run.follows = follows(opts)
  options.method = record.method_of(opts, run.follows)
  run.record = record.read(folder, record.fingerprint(bundle, graph, options), bundle.is_tuned)
  local report, message, code = failure.catch(write_all, run, out)
  if report then return report end
  if code == "io" and is_of_writing(message) and run.total then
    message = ("%s; the weights of all have %s"):format(message, units.bytes(run.total))
  end
  refuse(code, "%s", message)
end

-- The results of an export. Messages about files in OUT.partial name the path that they would have in OUT. If a file could not be
-- written, the message names the output and the file itself.
local function results(out, report, message, code)
  if report then return report end
  if code == "io" and is_of_writing(message) and message:find(".partial", 1, true) then
    return nil, ("%s: %s; what is finished stays for the next export"):format(without_slash(out), message), code
  end
  local base = without_slash(out):match "([^/]+)$" or out
  for _, name in ipairs { base, base .. ".aimodel" } do
    local unfinished, complete = (name .. ".partial/"):gsub("%p", "%%%0"), name:gsub("%%", "%%%%")
    message = message:gsub(unfinished, complete .. "/")
  end
  return nil, message, code
end

--- Can `out` be written? An export says so too, but only after its calibration.
-- @param opts options of the export; of these only the target counts
-- @return true; or nil, message, code
function M.check_output(out, opts)
  local _, target = planner.split_target(opts)
  return failure.catch(function()
    local place = without_slash(out)
    if target == "coreai" then coreai.check_out(place) else check_out(place) end
    try(core.folder(place)):leave()
    return true
  end)
end

-- Writes the set or the bundle of checked options. Returns its report; or nil, message, code.
local function write(bundle, out, opts, target)
  if target ~= "coreai" then return results(out, failure.catch(export, bundle, out, opts)) end
  return results(out, failure.catch(function()
    local factor, factors = factor_function(opts)
    local _ <close> = factors
    return (try(coreai.write(bundle, out, opts, factor, follows(opts))))
  end))
end

-- Checks the options of an export. Returns a copy of them without the name of the target, and this name; or nil, message, code. Raises
-- for wrong ones.
local function checked(bundle, out, opts, level)
  schema.argument({ type = "path" }, out, "export: path", level + 1)
  local given = opts or {}
  opts = schema.check(M.rules, opts, "export", level + 1)
  opts.threads = opts.threads or core.cpu_cores()
  local target
  opts, target = planner.split_target(opts)
  if target == "both" then error("export: option target is both: choose coreml or coreai", level + 1) end
  if opts.progress == true then opts.progress = require("ane.util.progress").bar() end
  local fits, fault, code = planner.check_target(given)
  if not fits then return nil, fault, code end
  if given.inputs and opts.method ~= "gptq" then return nil, "option inputs needs method gptq", "invalid" end
  if bundle.blank then return nil, bundle.source:path() .. ": has no weights to export", "unsupported" end
  if opts.importance then
    opts.importance, fault, code = failure.catch(held.importance, opts.importance)
    if not opts.importance then return nil, fault, code end
  end
  return opts, target
end

--- What run says of the output and of options for this model, before a text is read for it. Raises as run does.
-- @param opts of run, without calibration
-- @return true; or nil, message, code
function M.check(bundle, out, opts, level)
  local target, code
  opts, target, code = checked(bundle, out, opts, (level or 1) + 1)
  if not opts then return nil, target, code end
  local fine, message
  fine, message, code = tuned.check(opts)
  if fine then fine, message, code = M.check_output(out, { target = target }) end
  if not fine then return nil, message, code end
  return failure.catch(function()
    local graph <close> = try(planner.graph(bundle))
    try(planner.parts(bundle.config, opts, graph))
    if target ~= "coreai" then check_argmax(bundle, opts) end
    return true
  end)
end

--- The same for a model file or a folder.
-- @param opts also recipe, and adapters and transform, which are not checked
function M.check_path(path, out, opts)
  local own = {}
  for key, value in pairs(opts or {}) do own[key] = value end
  own.recipe, own.adapters, own.transform = nil, nil, nil
  local bundle, message, code = planner.open(path, { recipe = opts.recipe })
  if not bundle then return nil, message, code end
  local fine
  fine, message, code = M.check(bundle, out, own, 2)
  bundle.source:close()
  return fine, message, code
end

--- Writes `out` as a whole or not at all. An existing package set is replaced.
-- @param bundle an open bundle of ane.model.loader, or of ane.coreml.plan's open
-- @param out path of the folder
-- @param opts see rules
-- @return report: path, ok, shards = list of {path, kind, bytes, weight_bytes, sha256, layers = {first, last} (with part = {i from 0,
-- of how many} where one layer is several) or rows = {from, to} (not included) or experts, functions (names, where there are several),
-- verdict, residency (of packages: convolutions by predicted device, residency rules that hold of the operations)},
-- kept (packages of an earlier run), weights = list of {name, form, bytes, max_abs, snr_db}, warnings = list of texts, embed_bytes,
-- weight_bytes, seconds, target ("coreai-sharded" if that was chosen), tuned or untuned of gptq (as model:quantise reports them);
-- or nil, message, code
-- @raise if an option is unknown or has a wrong value
function M.run(bundle, out, opts, level)
  local target, report, message, code
  opts, target, code = checked(bundle, out, opts, (level or 1) + 1)
  if not opts then return nil, target, code end
  if opts.method == "gptq" and not opts.calibration then
    error("export: method gptq needs a text: option calibrate", (level or 1) + 1)
  end
  if opts.method == "gptq" then -- before the work on its text
    report, message, code = M.check_output(out, { target = target })
    if not report then return nil, message, code end
  end
  local place = without_slash(out)
  local tunes, why, word = tuned.wanted(opts, place)
  if tunes == nil then return nil, why, word end
  if tunes then
    report, message, code = tuned.export(bundle, place, opts, function(other) return write(other, out, opts, target) end)
    if not report and message:find(record.TUNED, 1, true) then report, message, code = results(out, nil, message, code) end
  else
    report, message, code = write(bundle, out, opts, target)
  end
  if not report then return nil, message, code end
  report.untuned = report.untuned or why
  return report
end

--- Exports a model file or a folder.
-- @param opts also recipe; adapters (list of {path, scale}, merged into the weights); transform ("none" or "rotate": of the weights
-- before they are rounded; a calibration must be of a model loaded with the same)
function M.of_path(path, out, opts)
  local own = {}
  for key, value in pairs(opts or {}) do own[key] = value end
  own.recipe, own.adapters, own.transform = nil, nil, nil
  schema.check(M.rules, own, "export", 2)
  opts = opts or {}
  local bundle, message, code = planner.open(path, { recipe = opts.recipe, adapters = opts.adapters, transform = opts.transform })
  if not bundle then return nil, message, code end
  bundle.eos_ids = loader.end_ids(bundle.config, bundle.source)
  local report
  report, message, code = M.run(bundle, out, own, 2)
  bundle.source:close()
  return report, message, code
end

return M
