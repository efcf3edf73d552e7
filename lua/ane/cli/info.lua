--- `ane info`: the contents of a model file and how it runs here.
-- Needs ane, ane.cli.common, ane.cli.options, ane.core, ane.model, ane.coreml.aimodel, ane.coreml.set and ane.util.keys.

local aimodel = require "ane.coreml.aimodel"
local common = require "ane.cli.common"
local core = require "ane.core"
local keys_of = require "ane.util.keys"
local options = require "ane.cli.options"

local M = {}

M.summary = "Show the contents of a model file and the kernels that run it; without a file, describe the machine."
M.ranks = true
M.excludes = { { "program", "json" } }
-- All options but --json are about a model.
M.needs = {}
for i, name in ipairs {
  "keys", "program", "report", "threads", "context", "weights", "mixed", "activations", "kv", "head", "engine", "recipe", "adapter",
  "run_memory", "verify", "sandbox",
} do M.needs[i] = { name, "MODEL" } end

function M.options(parser)
  options.model(parser, true)
  parser:flag("--keys", "Show all metadata of the file.")
  parser:flag("--program", "Show the program of a .mlpackage or .aimodel as text, one operation per line.")
  parser:flag("--report", "Show the type of each weight in memory, and the error that --weights causes.")
  options.json(parser)
end

-- A value in one line; a long one is shortened.
local function brief(value)
  if type(value) == "string" then
    local line = #value > 60 and value:sub(1, 57) .. "..." or value
    return (line:gsub("%c", " "))
  end
  if type(value) ~= "table" then return tostring(value) end
  if #value == 0 then
    local parts = {}
    for _, key in ipairs(keys_of(value)) do parts[#parts + 1] = tostring(key) .. "=" .. brief(value[key]) end
    return "{" .. table.concat(parts, ", ") .. "}"
  end
  local parts = {}
  for i = 1, math.min(#value, 6) do parts[i] = brief(value[i]) end
  return "[" .. table.concat(parts, ", ") .. (#value > 6 and (", ... (%d)]"):format(#value) or "]")
end

local function write(...)
  io.stdout:write(string.format(...), "\n")
end

-- What a set consists of.
local function things(info) return info.format == "set of assets" and "assets" or "packages" end

local function show_packages(info)
  write("%s: %s, %s, %d %s%s", info.path, info.format, common.bytes(info.bytes), #info.packages, things(info),
    info.verified and "; all hashes are right" or "")
  for _, p in ipairs(info.packages) do
    write("  %-40s %-8s %12s  %s", p.path, p.kind, common.bytes(p.bytes), table.concat(p.functions or {}, " "))
  end
end

local function show_file(info)
  write("%s: %s, %s, %d tensors, %.1f M parameters", info.path, info.format, common.bytes(info.bytes), info.n_tensors,
    info.parameters / 1e6)
end

local function show_tensors(info)
  write "tensors:"
  for _, row in ipairs(info.tensors) do
    write("  %-8s %4d tensors %10.1f M values  %s", row.dtype, row.tensors, row.elements / 1e6, common.bytes(row.bytes))
  end
end

-- Keys of the configuration that are not shown. `tensors` has the names of tensors whose values are part of it.
local HIDDEN = { tensors = true }

local function show(info)
  if info.packages then show_packages(info) else show_file(info) end
  write("architecture: %s", info.architecture or "none named")
  for _, key in ipairs(keys_of(info.config or {})) do
    local value = info.config[key]
    if not HIDDEN[key] and (type(value) ~= "table" or next(value) ~= nil) then write("  %-24s %s", key, brief(value)) end
  end
  if not info.packages then show_tensors(info) end
  if info.keys then
    write "metadata:"
    for _, key in ipairs(keys_of(info.keys)) do write("  %-40s %s", key, brief(info.keys[key])) end
  end
  if info.unsupported then
    write("does not run here: %s", info.unsupported)
    return
  end
  write("runs with: %s kernels, %d threads, activations %s, KV %s, context %d", info.isa, info.threads, info.activations, info.kv,
    info.context)
  if info.engine == "graph" then write("the graph runs op by op: %s", info.engine_reason or "no recipe matches") end
  if info.engine == "packages" then write("the %s run op by op: %s", things(info), info.engine_reason or "no recipe matches") end
  if info.packages and info.engine == "recipe" then
    write("the %s run by the recipe for %s, with the weights that they hold", things(info), info.architecture)
  end
  for _, row in ipairs(info.kernels) do
    write("  %-8s %4d matrices as %-12s times %-5s %s", row.dtype, row.matrices, row.form, row.activations, common.bytes(row.bytes))
  end
  write("memory: weights %s, scratch %s, process %s (peak %s); loaded in %.2f s", common.bytes(info.weight_bytes),
    common.bytes(info.scratch_bytes), common.bytes(info.memory.resident), common.bytes(info.memory.peak), info.load_s)
end

local function show_report(rows)
  write("%-44s %-6s %-12s %-9s %-5s %10s %9s %9s %9s", "weight", "from", "weights", "kernel", "times", "bytes", "max error", "rms", "SNR")
  for _, t in ipairs(rows) do
    local cells = { "", "", "exact" }
    if not t.exact then cells = { ("%.3g"):format(t.max_abs), ("%.3g"):format(t.rms), t.snr_db and ("%.1f dB"):format(t.snr_db) or "" } end
    write("%-44s %-6s %-12s %-9s %-5s %10s %9s %9s %9s", t.name, t.from, t.weights, t.form, t.activations, common.bytes(t.bytes),
      table.unpack(cells))
  end
end

local function show_ranks(ranks)
  write "ranks:"
  for _, r in ipairs(ranks) do
    local layers = r.first and ("layers %d .. %d"):format(r.first, r.last) or "no layer"
    if r.head_rows then layers = ("%s, %d rows of the head"):format(layers, r.head_rows) end
    local sent = r.sends > 0 and (" and %s sent"):format(common.bytes(r.sends)) or ""
    write("  %d %s: %d threads, %s, weights %s, %s of cached state%s a token, %s resident", r.rank, r.host, r.threads, layers,
      common.bytes(r.weight_bytes), common.bytes(r.kv_bytes_per_token), sent, common.bytes(r.resident))
  end
end

-- Returns the facts of a file that need no recipe. Those of a package set are known when it is loaded.
local function file_facts(path, keys)
  if require("ane.coreml.set").find(path) then return {} end
  local source <close>, message = core.open(path)
  if not source then return nil, message end
  local info = require("ane.model").describe(source)
  info.n_tensors = source:n_tensors()
  info.architecture = require("ane.model.config").architecture(source)
  if keys then
    info.keys = {}
    for _, key in ipairs(source:keys()) do info.keys[key] = source:meta(key) end
  end
  return info
end

local function machine(args)
  local info, message = require("ane").info()
  if not info then return nil, message end
  if args.json then return common.print_json(info) end
  write("ane %s; %s, %d cores; kernels %s (this machine has %s); memory %s free", info.version, info.cpu, info.cores, info.isa,
    table.concat(info.isa_list, ", "), common.bytes(info.memory.available))
  return true
end

local function is_package(path)
  local file <close> = io.open(path .. "/Manifest.json", "rb")
  return file ~= nil
end

local function package_info(args)
  local pkg <close>, message = require("ane").package(args.model)
  if not pkg then return nil, message end
  if args.program then
    local text, failed = pkg:dump()
    if not text then return nil, failed end
    io.stdout:write(text)
    return true
  end
  if args.json then return common.print_json(pkg:info()) end
  write("%s", tostring(pkg))
  return true
end

-- An asset is described whether or not it can be run here. A wrong hash is an error after the description.
local function asset_info(args)
  local text, message
  if args.program then
    text, message = aimodel.text(args.model)
    if text then io.stdout:write(text) end
    return text ~= nil, message
  end
  local contents
  contents, message = aimodel.contents(args.model)
  if not contents then return nil, message end
  contents.hash, message = aimodel.hash(args.model)
  if not contents.hash then return nil, message end
  if args.json then
    contents.functions = common.list(contents.functions)
    local ok, failed = common.print_json(contents)
    if not ok then return nil, failed end
  else
    write("%s", aimodel.summary(contents))
  end
  if contents.hash == "differs" then return nil, message end
  return true
end

-- Codes of a file that can be read but not run here: the command describes the file and says why.
local DESCRIBED = { format = true, notfound = true, shape = true, unsupported = true }

function M.run(args)
  if not args.model then return machine(args) end
  local path, several = common.package_path(args.model)
  if not path then return nil, several end
  args.model = path
  if aimodel.found(args.model) then return asset_info(args) end
  if is_package(args.model) then return package_info(args) end
  if args.program then return nil, args.model .. ": is not a .mlpackage or .aimodel, so it has no program to show" end
  local info, message = file_facts(args.model, args.keys)
  if not info then return nil, message end
  local model <close>, failed, code = common.load(args)
  if model then
    for key, value in pairs(model:info()) do info[key] = value end
    info.verified = args.verify
    info.matrices, info.n_tensors = nil, 0
    for _, row in ipairs(info.tensors) do info.n_tensors = info.n_tensors + row.tensors end
    if args.report then info.weights_report = common.list(model:weights_report()) end
  elseif DESCRIBED[code] and info.path then
    info.unsupported = failed
  else
    return nil, failed
  end
  info.memory = core.memory()
  if args.json then return common.print_json(info) end
  show(info)
  if info.ranks then show_ranks(info.ranks) end
  if info.weights_report then show_report(info.weights_report) end
  return true
end

return M
