local core = require "ane.core"
require "ane.util.tensor_view"

describe("tensor plots", function()
  it("draw a histogram", function()
    local t = core.tensor({ 8 }, { 0, 0.5, 1, 1.5, 2, 2.5, 3.5, 4 })
    assert.equal(table.concat({
      "           0  #### 2",
      "           1  #### 2",
      "           2  #### 2",
      "           3  #### 2",
    }, "\n"), t:histogram { bins = 4, width = 4, ascii = true })
    assert.matches("^           1  \u{2588}\u{2588} 3$", core.tensor({ 3 }):fill(1):histogram { width = 2, ascii = false })
  end)

  it("draw a heat strip", function()
    local t = core.tensor({ 2, 4 }, { 0, 0, 4, 4, 8, 8, 1, 3 })
    assert.equal("| =|\n|@:|\n' ' is 0, '@' is 8", t:heat { width = 2, ascii = true })
    assert.equal("|\u{2588} |", t:slice(1, 2):heat({ width = 2, ascii = false }):match "^[^\n]*")
  end)

  it("leave out what is not finite", function()
    local t = core.tensor({ 4 }, { 1, 0 / 0, math.huge, 2 })
    assert.equal("           1  # 1\n         1.5  # 1", t:histogram { bins = 2, width = 1, ascii = true })
    assert.equal("| ??@|", t:heat({ ascii = true }):match "^[^\n]*")
    assert.equal("no finite elements", core.tensor({ 1 }, { -math.huge }):heat())
    assert.equal("no elements", core.tensor({ 0 }):heat())
    assert.equal("no elements", core.tensor({ 0 }):histogram())
    assert.equal("           2  # 2", core.tensor({ 4 }, { 2, 0 / 0, math.huge, 2 }):histogram { width = 1, ascii = true })
  end)

  it("name options that they do not have", function()
    local fn = function() core.tensor({ 1 }):heat { wide = 1 } end
    assert.error_matches(fn, "unknown option \"wide\"; the options are ascii, height, width")
    assert.error_matches(function() core.tensor({ 1 }):histogram { bins = 0 } end, "bins must be 1 .. 4096")
  end)
end)
