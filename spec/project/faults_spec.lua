-- Faults by injection: a sample of what `make faults` tries.
local tree = require "support.tree"

describe("a call that fails", function()
  local build = os.getenv "ANE_BUILD" or "build/release"
  local made, text = tree.run(("make --no-print-directory config=%s %s/bin/faults"):format(build:match "[^/]*$", build))

  it("leaves no leak, no half-written file and no broken object, whichever of a sample it is", function()
    if not made and not text:find "error:" then return pending "needs Linux, a compiler and the library of Lua" end
    assert(made, text)
    local ok, report = tree.run(("scripts/faults/run %s --sample 4"):format(build))
    assert(ok, report)
    local scenarios, runs = report:match "(%d+) scenarios, (%d+) runs with a fault, 0 problems"
    assert(tonumber(scenarios) >= 12 and tonumber(runs) > 600, report)
  end)
end)
