-- The recipes of docs/batch.md, as they stand there, where their tools are installed. ANE_RECIPES_PYTHON: a Python with pyspark or ray.
local command = require "support.command"
local core = require "ane.core"
local slurm = require "support.slurm"
local tiny = require "support.tiny"
local tree = require "support.tree"

local ROWS = 90
local PYTHON = os.getenv "ANE_RECIPES_PYTHON" or "python3"
local here = select(2, tree.run "pwd"):gsub("\n", "")
local folder

-- The code of the page between a sentence and the next one that begins a line.
local function recipe(start, language)
  local page = tree.read "docs/batch.md"
  local _, at = page:find(start, 1, true)
  local code = assert(page:match("\n```" .. language .. "\n(.-)\n```", assert(at, start)))
  return (code:gsub("MODEL", here .. "/" .. tiny.path()):gsub("%-%-threads %d", "--threads 1"))
end

-- Runs lines in the folder of the rows, where `ane` is found.
local function sh(text)
  local ok, out = tree.run(("cd '%s' && export PATH='%s/%s':$PATH\n%s"):format(folder, here, command.path():match "^(.*)/", text))
  assert.is_true(ok, out)
  return out
end

-- The lines of files, sorted.
local function sorted(pattern)
  return sh("cat " .. pattern .. " | LC_ALL=C sort")
end

setup(function()
  folder = tree.folder()
  local list = {}
  for i = 1, ROWS do list[i] = core.json_encode { id = i, prompt = "Once " .. i, max_tokens = 1 + i % 5 } end
  assert(core.write_file(folder .. "/in.jsonl", table.concat(list, "\n") .. "\n"))
  sh(("ane batch '%s/%s' in.jsonl -o want --ordered"):format(here, tiny.path()))
end)

teardown(function() tree.remove(folder) end)

local function merged_is_right()
  assert.equal(tree.read(folder .. "/want"), tree.read(folder .. "/out.jsonl"))
  sh "rm -f out.*"
end

describe("recipes for batches", function()
  it("stand in the page, whichever tools are installed", function()
    for _, one in ipairs { { "GNU parallel", "text" }, { "The same with `xargs`", "text" }, { "A Slurm array", "text" },
      { "Spark, with one process", "python" }, { "Ray Data", "python" } } do
      assert.matches("ane", recipe(one[1], one[2]))
    end
  end)

  it("of GNU parallel", function()
    if not tree.has "parallel" then return pending "GNU parallel is not installed" end
    sh(recipe("GNU parallel", "text"))
    merged_is_right()
  end)

  it("of xargs", function()
    if not tree.has "xargs" then return pending "xargs is not installed" end
    sh(recipe("The same with `xargs`", "text"))
    sh "ane batch --merge out.[1-4].jsonl -o out.jsonl"
    merged_is_right()
  end)

  it("of a Slurm array, whose tasks go on after a kill and a requeue", function()
    if slurm.missing() then return pending("no Slurm: " .. slurm.missing()) end
    local own = tree.folder()
    local cluster, text = slurm.start(own)
    if not cluster then
      tree.remove(own)
      return pending("Slurm does not start here: " .. text)
    end
    local script = recipe("A Slurm array", "text"):gsub("1%-16", "1-2"):gsub("/16", "/2"):gsub("cpus%-per%-task=8", "cpus-per-task=1")
    assert(core.write_file(folder .. "/corpus.sh", script))
    local ok, out = pcall(function()
      local job = select(2, cluster.run(("cd '%s' && PATH='%s/%s':$PATH sbatch --parsable corpus.sh"):format(folder, here,
        command.path():match "^(.*)/"))):match "%d+"
      assert(job, "no job")
      -- Task 1 is killed and task 2 requeued when they have begun. A requeued task waits for two minutes unless it is told not to.
      return select(2, cluster.run(([[
        cd '%s'; job=%s
        for i in $(seq 1200); do [ -f out.1.jsonl.journal ] && [ -f out.2.jsonl.journal ] && break; sleep 0.05; done
        scancel --signal=KILL ${job}_1
        scontrol requeue ${job}_2
        for i in $(seq 1200); do
          [ -f out.1.jsonl ] && [ -f out.2.jsonl ] && [ -z "$(squeue -h)" ] && break
          for t in 1 2; do
            [ -f out.$t.jsonl ] || [ -n "$(squeue -h -j ${job}_$t 2>/dev/null)" ] || scontrol requeue ${job}_$t
            scontrol update jobid=${job}_$t StartTime=now 2>/dev/null
          done
          sleep 0.1
        done
        squeue; cat slurm*.out
      ]]):format(folder, job)))
    end)
    cluster.stop()
    tree.remove(own)
    assert.is_true(ok, out)
    assert.is_truthy(core.path_kind(folder .. "/out.1.jsonl"), out)
    sh "ane batch --merge out.*.jsonl -o out.jsonl"
    merged_is_right()
  end)

  it("of Spark", function()
    if not tree.run(PYTHON .. " -c 'import pyspark'") or not tree.has "java" then return pending "pyspark or Java is not installed" end
    local code = [[
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
]] .. recipe("Spark, with one process", "python"):gsub(", 16%)", ", 3)")
    assert(core.write_file(folder .. "/spark.py", code))
    sh("timeout 200 " .. PYTHON .. " spark.py")
    assert.equal(sorted "want", sorted "out/part-*")
    sh "rm -r out"
  end)

  it("of Ray Data", function()
    if not tree.run(PYTHON .. " -c 'import ray.data'") then return pending "ray is not installed" end
    local code = "import ray\nray.init(num_cpus=2, include_dashboard=False)\n" .. recipe("Ray Data", "python"):gsub("4096", "40")
    assert(core.write_file(folder .. "/ray_data.py", code .. "\n"))
    sh("timeout 200 " .. PYTHON .. " ray_data.py")
    assert.equal(ROWS, tonumber(sh "cat out/* | wc -l"))
    sh "rm -r out"
  end)
end)
