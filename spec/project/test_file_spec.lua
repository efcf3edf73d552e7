--- scripts/test-file, by which `make test` runs a spec file: what it counts where a file ends in an unusual way.
local core = require "ane.core"
local tree = require "support.tree"

local folder
setup(function() folder = tree.folder() end)
teardown(function() tree.remove(folder) end)

-- The counts of a file: passed, failed, skipped.
local function counts(code)
  local path = folder .. "/some_spec.lua"
  assert(core.write_file(path, code))
  local _, text = tree.run(("TEST_RESULTS='%s/results' TEST_LIMIT= LUA=%s scripts/test-file release %s"):format(folder,
    os.getenv "LUA" or "lua5.4", path))
  return core.read_file(("%s/results/release/%s.count"):format(folder, path)), text
end

describe("scripts/test-file", function()
  it("counts specs", function()
    assert.equal("1 1 1\n", (counts 'it("a", function() end) it("b", function() error "x" end) pending "c"'))
  end)

  it("counts a file as failed whose code ends the process, whatever the status", function()
    for _, status in ipairs { 0, 3 } do
      local found, text = counts(('it("a", function() end) it("b", function() os.exit(%d) end)'):format(status))
      assert.equal("0 1 0\n", found)
      assert.matches("FAILED: %S+: ended with status " .. status .. "\n", text)
    end
  end)
end)
