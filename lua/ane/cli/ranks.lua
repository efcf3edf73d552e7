--- Commands as MPI programs: rank 0 runs the command, the others hold their layers of its model.
-- Needs ane.cli.options, ane.core and ane.pipeline. Usage: `local done, message, code = ranks.run(command, args)`
--
-- A command whose module has `ranks` joins where mpirun or srun has started it with others, or --mpi says so.

local core = require "ane.core"
local options = require "ane.cli.options"
local pipeline = require "ane.pipeline"

local M = {}

local LINKS = { "fp32", "fp16" }

--- The options of such commands.
function M.options(parser)
  parser:flag("--mpi", "Run as a rank of an MPI program; the layers of the model are divided among all ranks. Default if mpirun started "
    .. "the command with several ranks.")
  parser:option("--parallel", "Under mpirun: pipeline (default) divides the layers among the ranks; tensor divides the rows of each "
    .. "matrix, for fast links."):choices(pipeline.rules.parallel.choices)
  options.add(parser, "--cut", "Under mpirun: first layers of ranks 1, 2, ...: 8,16. Default: chosen for the speed and the memory of "
    .. "the ranks.", options.integers("layer", 0)):argname "LIST"
  parser:option("--link", "Under mpirun: type of activations between ranks: fp32 (default; results equal those of one process) or fp16 "
    .. "(half the bytes)."):choices(LINKS)
  options.add(parser, "--tail", "Under mpirun: weight of the head's time in the choice of the cut, 0 .. 16: 0 for long prompts, 1 for long "
    .. "replies; default 0.5.", pipeline.rules.tail):argname "X"
  options.add(parser, "--rank-timeout", "Under mpirun: seconds after which a silent rank counts as dead. Default 300.",
    { type = "number", above = 0 }):argname "S"
end

-- Names of the options that only ranks have, as given.
local ONLY_RANKS = { "parallel", "cut", "link", "tail", "rank-timeout" }

--- Refuses options of ranks where no launcher has started the command.
-- @return true; or nil, message, code
function M.check(args)
  if args.mpi or pipeline.is_launched(1) then return true end
  for _, name in ipairs(ONLY_RANKS) do
    if args[name:gsub("-", "_")] ~= nil then
      return options.wrong("--%s is for the ranks of an MPI program: start the command with mpirun or srun", name)
    end
  end
  return true
end

--- Returns whether this process is a rank other than 0. Such a rank does not report wrong options, because rank 0 does.
function M.is_silent()
  if not pipeline.is_launched() then return false end
  local rank = pipeline.launched_rank()
  return rank ~= nil and rank > 0
end

-- Runs the command on rank 0, after the other ranks have joined.
local function lead(command, args)
  args.ranks = { parallel = args.parallel, cut = args.cut, fp16 = args.link == "fp16", tail = args.tail }
  args.threads = args.threads or pipeline.threads()
  local ran, done, message, code = pcall(command.run, args)
  io.stdout:flush()
  pipeline.leave()
  if not ran then error(done, 0) end
  return done, message, code
end

--- Returns whether a command joins other processes.
function M.joins(command, args)
  if command.joins then return command.joins(args) end
  return command.ranks and (args.mpi or pipeline.is_launched()) or false
end

--- Runs a command, on one rank or on several. On ranks other than 0 it works for rank 0 until that ends.
-- @return as the command's run; the code "told" says that rank 0 reports the failure
function M.run(command, args)
  if not command.ranks then return command.run(args) end
  local ok, message, code = M.check(args)
  if not ok then return nil, message, code end
  if not M.joins(command, args) then return command.run(args) end
  local rank
  rank, message, code = pipeline.join { timeout = args.rank_timeout }
  if not rank then -- "unsupported" is what all ranks find, and rank 0 alone reports
    return nil, message, code == "unsupported" and M.is_silent() and "told" or code
  end
  if pipeline.size() == 1 then return command.run(args) end
  if rank == 0 then return lead(command, args) end
  core.hold_interrupts(true) -- Ctrl-C reaches all ranks: rank 0 answers it
  ok, message, code = pipeline.work { threads = args.threads }
  if ok then return true end
  return nil, message, code == "io" and "told" or code
end

return M
