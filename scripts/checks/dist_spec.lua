-- A release builds from its tarball and from its rock, installs into an empty prefix and runs there.
local tree = require "support.tree"

describe("make dist", function()
  it("makes a tarball and a rock that install and run", function()
    if not tree.run "git rev-parse HEAD" then return pending "this is not a git repository" end
    if not tree.has "luarocks" then return pending "luarocks is not installed" end
    local ok, text = tree.run "make --no-print-directory dist"
    assert.is_true(ok, text)
    assert.matches("ane%-[%d.]+%.tar%.gz: installs and runs\nane%-[%d.]+%-1%.src%.rock: installs and runs\n$", text)
  end)
end)
