-- Faults by injection: a sample of what `make faults` tries.
local tree = require "support.tree"

describe("a call that fails", function()
  local build = os.getenv "ANE_BUILD" or "build/release"
  local made, text = tree.run(("make --no-print-directory config=%s %s/bin/faults"):format(build:match "[^/]*$", build))

  it("leaves no leak, no half-written file and no broken object, whichever of a sample it is", function()
    if not made and not text:find "error:" then return pending "needs Linux, a compiler and the library of Lua" end
    assert(made, text)
    local ok, report = tree.run(("scripts/faults/run %s --sample 2"):format(build))
    assert(ok, report)
    local scenarios, runs = report:match "(%d+) scenarios, (%d+) runs with a fault, 0 problems"
    assert(tonumber(scenarios) >= 12 and tonumber(runs) > 300, report)
  end)
end)

describe("a call that fails in a rank of mpirun", function()
  it("ends both ranks with a message, whichever of a sample it is", function()
    local build = os.getenv "ANE_BUILD" or "build/release"
    if not tree.has "mpirun" then return pending "mpirun is not installed" end
    if not pcall(require, "ane.mpi") then return pending "the module ane.mpi is not built: make mpi" end
    local made, text = tree.run(("make --no-print-directory config=%s %s/bin/faults"):format(build:match "[^/]*$", build))
    if not made and not text:find "error:" then return pending "needs Linux, a compiler and the library of Lua" end
    assert(made, text)
    local ok, report = tree.run(("ANE_BUILD='%s' %s/bin/faults scripts/faults/ranks.lua --sample 1 lua"):format(build, build))
    assert(ok, report)
    assert.truthy(report:find("8 runs with a fault, 0 problems", 1, true), report)
  end)
end)

describe("a command that is killed", function()
  it("leaves outputs whole or as before, and work that the next run ends", function()
    if not tree.run "timeout --version" then return pending "needs timeout" end
    local ok, report = tree.run((os.getenv "LUA" or "lua5.4") .. " scripts/faults/kills.lua --kills 2 quantise export coreai save batch")
    assert(ok, report)
  end)
end)
