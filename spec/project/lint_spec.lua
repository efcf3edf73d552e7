-- luacheck over all Lua files.
local tree = require "support.tree"

describe("luacheck", function()
  it("has nothing to say", function()
    if not tree.has "luacheck" then pending "luacheck is not installed" end
    local ok, text = tree.run "luacheck --no-color -q bench fuzz lua models spec examples scripts types .busted .luacheckrc *.rockspec"
    assert.is_true(ok, text)
  end)
end)
