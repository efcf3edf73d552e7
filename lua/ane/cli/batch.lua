--- `ane batch`: runs a corpus through a model, and joins the outputs of shards.
-- Needs ane.batch, ane.batch.merge, ane.cli.common, ane.cli.options, ane.cli.ranks, ane.cli.relations, ane.core, ane.generate,
-- ane.pipeline and ane.util.json_value.

local batch = require "ane.batch"
local common = require "ane.cli.common"
local core = require "ane.core"
local generate = require "ane.generate"
local json_value = require "ane.util.json_value"
local options = require "ane.cli.options"
local pipeline = require "ane.pipeline"
local ranks = require "ane.cli.ranks"
local relations = require "ane.cli.relations"

local M = {}

M.summary = "Answer the rows of a file, folder or pipe with one line of JSON each."
M.needs = { { "merge" } } -- without --adapter it joins outputs

function M.options(parser)
  options.model(parser, true, "join the outputs of all shards, in the order of the rows.")
  options.file(parser, "inputs", "JSONL file (in OpenAI's Batch form or plain), text file or folder; - is standard input. With --merge: "
    .. "the outputs of all shards."):args "*"
  options.add(parser, "-o --output", "JSONL file to write; - is standard output.", options.path):argname "OUT"
  parser:option("--form", "Form of the rows: jsonl; lines (each line is a text); files (each file is a text). Default: files for a folder "
    .. "and for .txt, .text and .md, else jsonl."):choices(batch.rules.form.choices)
  parser:option("--task", "Task of plain rows without a task field; default: it follows from the model and the row's fields.")
    :choices(batch.rules.task.choices)
  parser:option("--body", "JSON object with defaults of the rows' fields; @FILE reads it from a file."):argname "JSON|@FILE"
  options.add(parser, "-n --max-tokens", "max_tokens of rows that have none.", generate.rules.max_tokens):argname "N"
  options.add(parser, "--temperature", "temperature of rows that have none; default 0, or 1 for rows in OpenAI's form.",
    batch.rules.temperature):argname "X"
  parser:flag("--ordered", "Write lines in the order of the rows.")
  parser:flag("--resume", "Continue an earlier run.")
  parser:flag("--restart", "Discard an incomplete run and start again.")
  options.add(parser, "--shard", "Process only rows I, I + N, I + 2 N, ...; I is 1 to N.", batch.rules.shard):argname "I/N"
  options.add(parser, "--max-errors", "End the run when more than N rows have failed.", batch.rules.max_errors):argname "N"
  options.add(parser, "--max-row", "Maximum bytes of a row; larger rows fail. Default 16777216.", batch.rules.max_row):argname "N"
  options.add(parser, "--sessions", "Maximum replies computed at once. Default 32.", batch.rules.sessions):argname "N"
  options.add(parser, "--memory", "Maximum memory for the state of all replies: 2G, 512M.", batch.rules.memory):argname "SIZE"
  options.add(parser, "--threshold", "For classify and redact: leave out spans with a lower score.", batch.rules.threshold):argname "P"
  options.add(parser, "--window", "For classify and redact: maximum tokens of one run.", batch.rules.window):argname "N"
  parser:flag("--pseudonyms", "For redact: replace each distinct text of a span in a row by a pseudonym of its own, such as [PERSON_1].")
  options.add(parser, "--key",
    "For redact: derive pseudonyms from the replaced text and this secret, so that they are the same in every run.",
    batch.rules.key):argname "KEY"
  parser:flag("--mpi", "Run as a rank of an MPI program: rank 0 reads and writes, all ranks compute. Default if mpirun started the "
    .. "command with several ranks, without --shard.")
  options.add(parser, "--rank-timeout", "Seconds after which a silent rank counts as dead. Default 300.", batch.rules.rank_timeout)
    :argname "S"
  options.json(parser)
end

-- Has a launcher started several processes of this program? With --shard each of them runs alone.
local function is_rank(args)
  if args.mpi or args.shard then return args.mpi or false end
  return pipeline.is_launched()
end

M.joins = is_rank

-- Does the command join outputs? With adapters --merge is an option of loading.
local function is_merge(args) return args.merge and not args.adapter[1] end

function M.loads(args) return not is_merge(args) end

-- Initialises MPI. Sets args.rank, args.host, args.mpi and args.threads: the ranks of a host share its cores equally.
local function join(args)
  args.rank = 0
  if not is_rank(args) then return true end
  local found, mpi = pcall(require, "ane.mpi")
  if not found then return nil, "the ranks of mpirun need the module ane.mpi, which is not built: make mpi" end
  local rank, size, near, host = mpi.init()
  if not rank then return nil, size, near end
  local ok, message, code = pipeline.check_size(size)
  if not ok then return nil, message, code end
  args.rank, args.host, args.mpi = rank, host, true
  args.threads = args.threads or math.max(1, core.cpu_cores() // near)
  return true
end

-- ---- Progress ----------------------------------------------------------------------------------------------------------------

local INTERVAL = 0.2 -- seconds between two drawings

local function duration(seconds)
  if seconds >= 3600 then return ("%d:%02d:%02d"):format(seconds // 3600, seconds // 60 % 60, seconds % 60) end
  return ("%d:%02d"):format(seconds // 60, seconds % 60)
end

-- A line about a run: rows, rates, and the time that is left if the size of the input is known.
-- @param since bytes of the input that an earlier run had done
local function line_of(state, since)
  local seconds = math.max(state.seconds, 1e-9)
  local parts = { ("%d rows"):format(state.rows) }
  if state.errors > 0 then parts[#parts + 1] = ("%d errors"):format(state.errors) end
  if state.resumed > 0 then parts[#parts + 1] = ("%d resumed"):format(state.resumed) end
  parts[#parts + 1] = ("%.1f rows/s"):format((state.rows - state.resumed) / seconds)
  parts[#parts + 1] = ("%.0f tokens/s"):format(state.tokens / seconds)
  if state.total and state.total > 0 then
    local done = state.done - since
    parts[#parts + 1] = ("%d %%"):format(100 * state.done // state.total)
    if done > 0 and state.done < state.total then
      parts[#parts + 1] = duration(math.ceil(seconds / done * (state.total - state.done))) .. " left"
    end
  end
  return table.concat(parts, ", ")
end

-- Returns a progress function that draws on a terminal, or nil; and a function that removes the line.
local function drawing(args)
  if args.no_progress or not core.isatty(2) then return nil, function() end end
  local last, since, open = -math.huge, nil, false
  local function draw(state)
    since = since or (state.resumed > 0 and state.done or 0)
    local now = core.clock()
    if now - last < INTERVAL then return end
    last, open = now, true
    io.stderr:write("\r\27[K", line_of(state, since))
    io.stderr:flush()
  end
  return draw, function()
    if open then io.stderr:write "\r\27[K" end
  end
end

-- ---- Running -----------------------------------------------------------------------------------------------------------------

-- The fields of --body, --max-tokens and --temperature.
local function body_of(args)
  local text, body = args.body, {}
  local message, code
  if text and text:sub(1, 1) == "@" then
    text, message, code = core.read_file(text:sub(2))
    if not text then return nil, message, code end
  end
  if text then
    body, message = core.json_decode(text)
    if type(body) ~= "table" or json_value.is_array(body) then
      return options.wrong("--body is not a JSON object%s", message and ": " .. message or "")
    end
  end
  body.max_tokens = body.max_tokens or args.max_tokens
  body.temperature = body.temperature or args.temperature
  return body
end

local NAMES = {
  "output", "form", "task", "ordered", "resume", "restart", "shard", "max_errors", "max_row", "sessions", "memory", "threshold", "window",
  "pseudonyms", "key", "rank_timeout",
}

-- Options of rows and of the run that ane.batch does not take by these names.
local OTHERS = { "max_tokens", "temperature", "body", "mpi" }

-- Options of loading a model, except adapters, with which --merge means something else.
local OF_MODEL = {
  "threads", "context", "weights", "mixed", "calibrate", "activations", "kv", "head", "engine", "recipe", "run_memory", "verify", "sandbox",
}

-- A message names importance, which the command computes from a text, by the option of that text.
local function show(args, result, message, code)
  if not result then return nil, message and (message:gsub("option importance", "option calibrate")), code end
  if args.json then
    local failed = result.message
    result.message = nil
    local out = args.output == "-" and io.stderr or io.stdout
    out:write(core.json_encode(result, { sort = true }), "\n")
    result.message = failed
  else
    common.remark(args, "%d rows, %d errors, %d resumed, %d tokens in %.1f s", result.rows, result.errors, result.resumed, result.tokens,
      result.seconds)
  end
  if result.ok then return true end
  return nil, result.message
end

local function run_merge(args)
  local paths = { args.model, table.unpack(args.inputs) }
  if #paths == 0 then return options.wrong "--merge needs the outputs of shards" end
  for _, list in ipairs { NAMES, OTHERS } do
    for _, name in ipairs(list) do
      if name ~= "output" and args[name] then return options.wrong("%s cannot be combined with --merge", relations.spelling(name)) end
    end
  end
  for _, name in ipairs(OF_MODEL) do
    if relations.given(args, name) then
      return options.wrong("%s cannot be combined with --merge, which loads no model", relations.spelling(name))
    end
  end
  local result, message, code = require("ane.batch.merge").run(paths, args.output)
  return show(args, result, message, code)
end

local function run_batch(args, opts)
  opts.mpi = args.mpi
  args.no_progress = args.no_progress or args.rank > 0
  local model <close>, failed = common.load(args)
  if not model then return nil, args.host and ("rank %d (%s): %s"):format(args.rank, args.host, failed) or failed end
  local draw, ended = drawing(args)
  opts.progress = draw
  local ran, result, why, kind = core.interruptible(batch.run, model, opts, 0)
  ended()
  if not ran then error(result, 0) end
  if result and args.rank > 0 then return true end
  return show(args, result, why, kind)
end

function M.run(args)
  if not args.output then return options.wrong "-o OUT is missing; - is standard output" end
  if is_merge(args) then return run_merge(args) end
  if not args.model or #args.inputs ~= 1 then return options.wrong "give a model and one input; - is standard input" end
  local ok, message, code = ranks.check(args)
  if not ok then return nil, message, code end
  local body
  body, message, code = body_of(args)
  if not body then return nil, message, code end
  local opts = { input = args.inputs[1], body = next(body) and body or nil }
  for _, name in ipairs(NAMES) do opts[name] = args[name] end
  ok, message, code = join(args)
  if ok and args.rank == 0 then ok, message, code = batch.check(opts) end
  if not ok then return nil, message, code end
  return run_batch(args, opts)
end

return M
