local core = require "ane.core"
local output = require "ane.util.output"
local tree = require "support.tree"

describe("an output", function()
  local folder

  before_each(function() folder = tree.folder() end)
  after_each(function() tree.remove(folder) end)

  it("appears when it is complete", function()
    local path = folder .. "/out"
    assert(core.write_file(path, "old"))
    local out <close> = assert(output.open(path))
    assert(out:write "new")
    assert(out:write "er")
    assert.equal("old", core.read_file(path))
    assert(out:commit())
    assert.equal("newer", core.read_file(path))
    assert.same({ "out" }, core.list_dir(folder))
    assert.error_matches(function() out:write "more" end, "file is closed")
  end)

  it("leaves nothing where it is closed before", function()
    local path = folder .. "/out"
    do
      local out <close> = assert(output.open(path))
      assert(out:write "text")
    end
    assert.same({}, core.list_dir(folder))
  end)

  it("does not replace a pipe", function()
    local path = folder .. "/pipe"
    assert(tree.run(("mkfifo '%s'"):format(path)))
    local reader <close> = assert(io.popen(("exec timeout 60 cat '%s'"):format(path)))
    do
      local out <close> = assert(output.open(path))
      assert(out:write "text")
      assert(out:commit())
    end
    assert.equal("text", reader:read "a")
    assert.equal("other", core.path_kind(path))
  end)

  it("names the path that cannot be written", function()
    for path, reason in pairs { [folder] = "is a folder", [folder .. "/none/out"] = "No such file" } do
      local out, message, code = output.open(path)
      assert.is_nil(out)
      assert.equal(path, message:sub(1, #path))
      assert.matches(reason, message)
      assert.equal("io", code)
    end
    if core.path_kind "/dev/full" ~= "other" then return pending "no /dev/full" end
    local out <close> = assert(output.open "/dev/full")
    local ok, message, code = out:write "text"
    assert.is_nil(ok)
    assert.equal("/dev/full: cannot write: No space left on device", message)
    assert.equal("io", code)
  end)
end)
