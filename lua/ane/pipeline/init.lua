--- A model over several processes or machines: its layers are cut into stages, and each rank of an MPI program holds one.
-- Needs ane.core, ane.pipeline.team, ane.pipeline.work and the optional module ane.mpi (make mpi).
-- Usage, in a program that mpirun starts:
--   local ranks = require "ane.pipeline"
--   local rank = assert(ranks.join())
--   if rank > 0 then return assert(ranks.work()) end
--   local model = assert(ane.load("model.gguf", { ranks = true }))   -- rank 0 uses it like any model; at the end
--   model:close(); ranks.leave()

local core = require "ane.core"
local schema = require "ane.util.schema"

local M = {}

-- Environment variables in which launchers give the number of processes: Open MPI; MPICH and Slurm's PMI-2.
local SIZES = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE" }

-- The number of processes that a launcher has started: the largest value of these variables; 0: none is set.
local function launched(names)
  local most = 0
  for _, name in ipairs(names) do most = math.max(most, tonumber(os.getenv(name)) or 0) end
  return most
end

--- Returns whether a launcher has started this process as a rank. Under srun --mpi=pmix, PMIx gives the rank and Slurm the number of ranks.
-- @param least minimum number of ranks that counts; default 2
function M.is_launched(least)
  local by_slurm = os.getenv "PMIX_RANK" and math.max(1, launched { "SLURM_STEP_NUM_TASKS" }) or 0
  return math.max(launched(SIZES), by_slurm) >= (least or 2)
end

--- The rank of this process as its launcher gives it; nil: not known. MPI need not be initialised.
function M.launched_rank() return tonumber(os.getenv "OMPI_COMM_WORLD_RANK" or os.getenv "PMI_RANK" or os.getenv "PMIX_RANK") end

--- Checks that MPI has found all processes that the launcher has started. If ane.mpi was built for another MPI, it finds only one.
-- @param size number of ranks that MPI has found
-- @return true; or nil, message, code
function M.check_size(size)
  local n = launched { SIZES[1], SIZES[2], "SLURM_STEP_NUM_TASKS" }
  if size > 1 or n <= 1 then return true end
  local what = "the launcher has started %d processes, and MPI finds only this one: ane.mpi is built for another MPI than the launcher's "
    .. "(make mpi MPICC=...), or srun needs --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
  return nil, what:format(n), "unsupported"
end

--- Options of load's `ranks`, a table or true.
--   parallel: "pipeline" gives each rank some layers; "tensor" gives each some rows of every matrix, and the ranks exchange rows after each
--     projection, for fast links inside a machine. Default "pipeline". The options below are for pipelines
--   cut: the layers that ranks 1, 2, ... begin with; default: chosen to minimise the time of the slowest rank, and each part fits
--     the memory of its rank
--   fp16: activations go from rank to rank as fp16: half the bytes, other bits
--   tail: the weight of the tail in the choice of the cut: 0 for long prompts, 1 for long replies; default 0.5. A head that is
--     divided over the ranks does not count
M.rules = {
  parallel = { type = "string", choices = { "pipeline", "tensor" }, default = "pipeline" },
  cut = { type = "list", check = function(list)
    for _, layer in ipairs(list) do
      if math.type(layer) ~= "integer" or layer < 0 then return "must be a list of layers" end
    end
  end },
  fp16 = { type = "boolean", default = false },
  tail = { type = "number", min = 0, max = 16 },
}

local JOIN = { timeout = { type = "number", above = 0 }, mpi = { type = "table", open = true, internal = true } }
local WORK = { threads = { type = "integer", min = 1, max = 1024 } }

-- The team that this process has joined, or nil. MPI allows this once.
local team

--- Joins the other processes that the launcher has started.
-- @param opts timeout (seconds after which a rank that should answer counts as lost; default 300)
-- @return the number of this rank from 0, the number of ranks; or nil, message, code
function M.join(opts)
  opts = schema.check(JOIN, opts, "join", 2)
  if team then return team.rank, team.size end
  local found, mpi = true, opts.mpi
  if not mpi then found, mpi = pcall(require, "ane.mpi") end
  if not found then
    return nil, "the ranks of an MPI program need the module ane.mpi, which is not built: make mpi", "unsupported"
  end
  local made, message, code = require("ane.pipeline.team").new(mpi, {
    timeout = opts.timeout, version = ("%s, protocol 2"):format(require("ane")._VERSION),
  })
  if not made then return nil, message, code end
  local ok
  ok, message, code = M.check_size(made.size)
  if not ok then return nil, message, code end
  team = made
  return team.rank, team.size
end

--- The ranks, for ane.model.loader.
-- @return a team of at least two ranks; or nil, message, code
function M.team()
  if not team then return nil, "option ranks: call join() of ane.pipeline first", "state" end
  if team.rank > 0 then return nil, "option ranks: only rank 0 loads models; the others call work()", "state" end
  return team
end

--- Number of ranks; 1 if this process has joined none.
function M.size() return team and team.size or 1 end

--- Works for rank 0, on all other ranks, until it leaves.
-- @param opts threads (default: this rank's share of the cores of its host)
-- @return true; or nil, message, code
function M.work(opts)
  opts = schema.check(WORK, opts, "work", 2)
  if not team then return nil, "work: call join() first", "state" end
  local done, message, code = require("ane.pipeline.work").run(team, opts)
  return done, message, code -- no tail call: error levels count this function
end

--- The default number of threads of this rank: its share of the cores of its host.
function M.threads() return math.max(1, core.cpu_cores() // (team and team.near or 1)) end

--- Ends the work of all ranks. Rank 0 calls it.
function M.leave()
  if team then team:leave() end
end

return M
