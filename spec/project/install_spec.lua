-- make install, make uninstall, luarocks make: the module and the command work from where they are put.
local tree = require "support.tree"
local tiny = require "support.tiny"

local function pwd()
  return (select(2, tree.run "pwd"):gsub("\n", ""))
end

describe("an installation", function()
  local folder
  before_each(function() folder = tree.folder() end)
  after_each(function() tree.remove(folder) end)

  -- Every module of the tree loads there, and a model runs.
  local function check(environment)
    local modules = {}
    for _, path in ipairs(tree.files("lua/ane", "lua")) do
      local name = path:gsub("^lua/", ""):gsub("%.lua$", ""):gsub("/init$", ""):gsub("/", ".")
      modules[#modules + 1] = ("%q"):format(name)
    end
    for _, path in ipairs(tree.files("models", "lua")) do
      modules[#modules + 1] = ("%q"):format("ane.models." .. path:match "([%w_]+)%.lua$")
    end
    local script = folder .. "/check.lua"
    local file <close> = assert(io.open(script, "w"))
    file:write(([[
      local folder, model = ...
      for _, name in ipairs { %s } do require(name) end
      for name, path in pairs { ane = package.path, ["ane.core"] = package.cpath } do
        assert(package.searchpath(name, path):find(folder, 1, true), "another " .. name .. " was found")
      end
      local m <close> = assert(require("ane").load(model))
      io.write(#m:generate({ 1, 2, 3 }, { max_tokens = 4, ignore_eos = true, details = true }).ids)
    ]]):format(table.concat(modules, ", ")))
    file:close()
    local ok, text = tree.run(("cd / && %s lua5.4 '%s' '%s' '%s/%s'"):format(environment, script, folder, pwd(), tiny.path()))
    assert.is_true(ok, text)
    assert.equal("4", text)
  end

  it("works at any prefix, and goes away again", function()
    local ok, text = tree.run(("make --no-print-directory install PREFIX='%s'"):format(folder))
    assert.is_true(ok, text)
    check((("LUA_PATH='@/share/lua/5.4/?.lua;@/share/lua/5.4/?/init.lua;;' LUA_CPATH='@/lib/lua/5.4/?.so;;'"):gsub("@", folder)))
    ok, text = tree.run(("cd / && env -u LUA_PATH -u LUA_CPATH '%s/bin/ane' --version"):format(folder))
    assert.is_true(ok, text)
    ok, text = tree.run(("make --no-print-directory uninstall PREFIX='%s'"):format(folder))
    assert.is_true(ok, text)
    assert.equal(folder .. "/check.lua\n", select(2, tree.run(("find '%s' -type f"):format(folder))))
  end)

  it("is staged below DESTDIR", function()
    local ok, text = tree.run(("make --no-print-directory install PREFIX=/usr DESTDIR='%s'"):format(folder))
    assert.is_true(ok, text)
    for _, path in ipairs { "usr/bin/ane", "usr/lib/lua/5.4/ane/core.so", "usr/share/lua/5.4/ane/models/llama.lua" } do
      tree.read(folder .. "/" .. path)
    end
    assert.is_nil(tree.read(folder .. "/usr/bin/ane"):find(folder, 1, true))
  end)

  it("is made by luarocks", function()
    if not tree.has "luarocks" then pending "luarocks is not installed" end
    -- The flags of the tree, so that it is not built again.
    local rocks = ("luarocks --lua-version 5.4 --tree '%s'"):format(folder)
    local ok, text = tree.run(rocks .. " make --deps-mode none ane-scm-1.rockspec CFLAGS='-O2 -g'")
    assert.is_true(ok, text)
    local environment = ([[eval "$(luarocks path --lua-version 5.4 --tree '%s')" && ]]):format(folder)
    check(environment)
    ok, text = tree.run(("cd / && %s '%s/bin/ane' --version"):format(environment, folder))
    assert.is_true(ok, text)
    ok, text = tree.run("luarocks lint ane-scm-1.rockspec")
    assert.is_true(ok, text)
  end)
end)
