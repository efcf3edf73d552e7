-- What a release is packed from (scripts/dist). That it builds, installs and runs is tried by scripts/checks/dist_spec.lua.
local tree = require "support.tree"

local VERSION = require("ane")._VERSION
local RELEASE, SCM = ("ane-%s-1.rockspec"):format(VERSION), "ane-scm-1.rockspec"

-- The tables that a rockspec sets.
local function rockspec(path)
  local set = {}
  assert(loadfile(path, "t", set))()
  return set
end

describe("a release", function()
  it("has the version of the module in its rockspec and in the changelog", function()
    assert.equal(VERSION .. "-1", rockspec(RELEASE).version)
    assert.equal(("file://ane-%s.tar.gz"):format(VERSION), rockspec(RELEASE).source.url)
    assert.equal("ane-" .. VERSION, rockspec(RELEASE).source.dir)
    assert.is_truthy(tree.read("CHANGELOG.md"):find(("\n## [%s]"):format(VERSION), 1, true))
    local ok, text = tree.run("find . -maxdepth 1 -name '*.rockspec' | LC_ALL=C sort")
    assert.is_true(ok)
    assert.equal(("./%s\n./%s\n"):format(RELEASE, SCM), text)
  end)

  it("has a rockspec that says what the one of a checkout says, but for version and source", function()
    local release, scm = rockspec(RELEASE), rockspec(SCM)
    release.version, release.source, scm.version, scm.source = nil, nil, nil, nil
    assert.same(scm, release)
    if not tree.has "luarocks" then return pending "luarocks is not installed" end
    local ok, text = tree.run("luarocks lint " .. RELEASE)
    assert.is_true(ok, text)
  end)

  it("is packed with all files of the last commit, the same bytes each time", function()
    if not tree.run "git rev-parse HEAD" then return pending "this is not a git repository" end
    for _, program in ipairs { "luarocks", "zip", "unzip" } do
      if not tree.has(program) then return pending(program .. " is not installed") end
    end
    local folder = tree.folder()
    finally(function() tree.remove(folder) end)
    local sums = {}
    for i = 1, 2 do
      local ok, text = tree.run(("scripts/dist pack '%s'"):format(folder))
      assert.is_true(ok, text)
      sums[i] = select(2, tree.run(("cd '%s' && sha256sum *"):format(folder)))
    end
    assert.equal(sums[1], sums[2])
    assert.matches(("^%%x+  ane%%-%s%%-1.src.rock\n%%x+  ane%%-%s.tar.gz\n$"):format(VERSION, VERSION), sums[1])
    local _, packed = tree.run(("tar -tzf '%s/ane-%s.tar.gz' | grep -v '/$' | LC_ALL=C sort"):format(folder, VERSION))
    local _, files = tree.run(("git ls-tree -r --name-only HEAD | sed 's|^|ane-%s/|' | LC_ALL=C sort"):format(VERSION))
    assert.equal(files, packed)
    local _, inside = tree.run(("unzip -Z1 '%s/ane-%s-1.src.rock'"):format(folder, VERSION))
    assert.equal(("%s\nane-%s.tar.gz\n"):format(RELEASE, VERSION), inside)
  end)
end)
