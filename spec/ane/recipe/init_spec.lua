-- Finding recipes where no file can be opened.
local core = require "ane.core"
local tree = require "support.tree"

describe("a recipe", function()
  it("that cannot be opened for want of open files is told from one that is not there, by the file's name", function()
    local script = os.tmpname()
    assert(core.write_file(script, [[
      local recipe = require "ane.recipe"
      local paths, files = package.path, {}
      while true do
        local file = io.open "/dev/null"
        if not file then break end
        files[#files + 1] = file
      end
      print(select(2, recipe.find "llama"), select(3, recipe.find "llama"))
      package.path = "/nowhere/?.lua"
      print(recipe.find "llama")
      package.path = paths
      for _, file in ipairs(files) do file:close() end
      print(type(recipe.find "llama"))
    ]]))
    local ok, text = tree.run(("ulimit -n 32; LUA_PATH='%s' LUA_CPATH='%s' %s '%s'"):format(package.path, package.cpath,
      os.getenv "LUA" or "lua5.4", script))
    os.remove(script)
    assert.is_true(ok, text)
    local full, missing, free = text:match "^(.-)\n(.-)\n(.-)\n$"
    assert.matches("/ane/models/llama.lua: cannot be opened, because there is no memory or too many files are open\tio$", full)
    assert.equal("nil\tno recipe can be read: ane.models.llama is not below package.path\tio", missing)
    assert.equal("table", free)
  end)
end)
