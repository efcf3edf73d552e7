--- A Slurm cluster of one node in a folder, for specs. Needs root, slurm-wlm and munge.
-- Usage: `local cluster = slurm.start(folder); cluster.run "sbatch --wait job.sh"; cluster.stop()`

local core = require "ane.core"
local tree = require "support.tree"

local M = {}

-- Ports of the cluster, away from those of one that the machine may have.
local CONTROLLER, NODE = 26817, 26818

local CONF = [[
ClusterName=spec
SlurmctldHost=%HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%DIR/munge.sock
CredType=cred/munge
StateSaveLocation=%DIR/state
SlurmdSpoolDir=%DIR/spool
SlurmctldPidFile=%DIR/slurmctld.pid
SlurmdPidFile=%DIR/slurmd.pid
SlurmctldLogFile=%DIR/slurmctld.log
SlurmdLogFile=%DIR/slurmd.log
SlurmctldPort=%CONTROLLER
SlurmdPort=%NODE
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
KillWait=2
NodeName=%HOST NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=%HOST Default=YES MaxTime=INFINITE State=UP
]]

local START = [[
set -e
mkdir -m 700 state spool munge
head -c 128 /dev/urandom > munge/key
chmod 400 munge/key
munged --force --key-file=$PWD/munge/key --socket=$PWD/munge.sock --pid-file=$PWD/munged.pid --log-file=$PWD/munge/log \
  --seed-file=$PWD/munge/seed
slurmctld -f $PWD/slurm.conf
slurmd -f $PWD/slurm.conf
for i in $(seq 1000); do
  case $(sinfo -h -o %T 2>/dev/null) in idle) exit 0 ;; esac
  sleep 0.1
done
exit 1
]]

--- What is missing; nil: nothing.
function M.missing()
  for _, program in ipairs { "slurmctld", "slurmd", "sbatch", "munged" } do
    if not tree.has(program) then return "no " .. program end
  end
  if select(2, tree.run "id -u") ~= "0\n" then return "not root" end
end

--- Starts a cluster.
-- @param folder an empty one of its own
-- @return run(line) -> whether it succeeded, its text; stop(); or nil, what it printed
function M.start(folder)
  local host = select(2, tree.run "hostname -s"):gsub("\n", "")
  local words = { HOST = host, DIR = folder, CONTROLLER = CONTROLLER, NODE = NODE }
  assert(core.write_file(folder .. "/slurm.conf", (CONF:gsub("%%(%u+)", words))))
  assert(core.write_file(folder .. "/start.sh", START))
  os.execute(("chmod 755 '%s'"):format(folder))
  local function run(line) return tree.run(("export SLURM_CONF='%s/slurm.conf'\n%s"):format(folder, line)) end
  local cluster = { run = run }
  function cluster.stop()
    for _, name in ipairs { "slurmd", "slurmctld", "munged" } do
      local pid = tonumber((core.read_file(("%s/%s.pid"):format(folder, name))))
      if pid then os.execute("kill -KILL " .. pid) end -- its state goes with the folder
    end
  end
  local ok, text = run(("cd '%s' && timeout 120 sh start.sh"):format(folder))
  if ok then return cluster end
  cluster.stop()
  return nil, text
end

return M
