local progress = require "ane.util.progress"

describe("progress", function()
  it("draws a bar and clears it at the end", function()
    local parts = {}
    local file = {}
    function file.write(_, ...) parts[#parts + 1] = table.concat { ... } end
    function file.flush() end
    local report = progress.bar(file)
    report("load", 1, 4)
    report("load", 2, 4) -- too soon after the first
    report("load", 4, 4)
    assert.equal(2, #parts)
    assert.matches("^\rload +%[#######%.+%]  25%%$", parts[1])
    assert.matches("^\r\27%[K$", parts[2])
    report("prefill", 5, 5) -- was never drawn
    assert.equal("", parts[3] or "")
  end)

  it("shows the remaining time after two seconds", function()
    local core = require "ane.core"
    local clock, now, parts = core.clock, 0, {}
    core.clock = function() return now end
    local report = progress.bar { write = function(_, ...) parts[#parts + 1] = table.concat { ... } end, flush = function() end }
    report("calibrate", 0, 100)
    now = 30
    report("calibrate", 25, 100)
    core.clock = clock
    assert.is_nil(parts[1]:find "left")
    assert.matches(" 25%%  1:30 left", parts[2])
  end)

  it("takes the remaining time of a resumed stage from what this run has done", function()
    local core = require "ane.core"
    local clock, now, parts = core.clock, 0, {}
    core.clock = function() return now end
    local report = progress.bar { write = function(_, ...) parts[#parts + 1] = table.concat { ... } end, flush = function() end }
    report("quantise", 60, 100)
    now = 30
    report("quantise", 80, 100)
    core.clock = clock
    assert.matches(" 80%%  0:30 left", parts[2])
  end)

  it("is silent where standard error is no terminal", function()
    local core = require "ane.core"
    local isatty = core.isatty
    core.isatty = function() return false end
    local report = progress.bar()
    core.isatty = isatty
    assert.is_nil(report("load", 1, 2))
  end)
end)
