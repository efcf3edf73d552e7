-- Folders that are replaced as a whole, by what uses them: the writer of packages.
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local tree = require "support.tree"

local swap = core.testing.folder_can_swap
local A, B = "spec/fixtures/mlpackage/mlp_lut4/model.mlpackage", "spec/fixtures/mlpackage/mlp_int4_block/model.mlpackage"

local folder, path

local function sh(command)
  local ok, text = tree.run(command)
  assert.is_true(ok, text)
  return text
end

before_each(function()
  folder = mlpackage.folder()
  path = folder .. "/out.mlpackage"
end)

after_each(function()
  swap(true)
  sh("chmod -R u+rwx '" .. folder .. "'")
  tree.remove(folder)
end)

local function dump(from)
  local pkg <close> = assert(core.package(from))
  return (pkg:dump())
end

local function write(from, to)
  local pkg <close> = assert(core.package(from))
  return pkg:rewrite(to)
end

local function names() return sh("ls -A '" .. folder .. "'") end

for _, can in ipairs { true, false } do
  describe(can and "a folder that is swapped" or "a folder that is replaced in two steps", function()
    before_each(function() swap(can) end)

    it("appears, replaces the old one and leaves nothing else", function()
      assert(write(A, path))
      assert.equal(dump(A), dump(path))
      assert(write(B, path))
      assert.equal(dump(B), dump(path))
      assert(write(A, path .. "//"))
      assert.equal(dump(A), dump(path))
      assert.equal("out.mlpackage\n", names())
    end)

    it("takes an empty folder's place, and keeps its mode", function()
      sh(("mkdir -m 750 '%s'"):format(path))
      assert(write(A, path))
      assert.equal("750\n", sh(("stat -c %%a '%s'"):format(path)))
      assert(write(B, path))
      assert.equal("750\n", sh(("stat -c %%a '%s'"):format(path)))
    end)

    it("is replaced where a symbolic link leads", function()
      assert(write(A, path))
      sh(("ln -s out.mlpackage '%s/link'"):format(folder))
      assert(write(B, folder .. "/link"))
      assert.equal(dump(B), dump(path))
      assert.equal("link\nout.mlpackage\n", names())
      assert.equal("out.mlpackage\n", sh(("readlink '%s/link'"):format(folder)))
    end)

    it("is whole whenever its writer is killed", function()
      assert(write(A, path))
      local texts = { [dump(A)] = "old", [dump(B)] = "new" }
      local build = os.getenv "ANE_BUILD" or "build/release"
      local code = ([[package.cpath = '%s/?.so' local core = require 'ane.core' core.testing.folder_can_swap(%s)
        local a, b = assert(core.package('%s')), assert(core.package('%s'))
        for i = 1, 1000 do assert(b:rewrite('%s')) assert(a:rewrite('%s')) end]]):format(build, can, A, B, path, path)
      local lua = os.getenv "LUA" or "lua5.4"
      local seen = {}
      for i = 1, 40 do
        os.execute(('timeout --foreground -s KILL %.3f %s -e "%s" >/dev/null 2>&1'):format(0.03 + (i * 37 % 40) / 1000, lua, code))
        seen[assert(texts[dump(path)], "neither the old nor the new package")] = true
      end
      assert.truthy(seen.old)
      assert(write(A, path)) -- what the killed ones left goes away with the next
      assert.equal("out.mlpackage\n", names())
    end)
  end)
end

describe("a folder", function()
  it("comes back where a kill left it aside", function()
    assert(write(A, path))
    sh(("mv '%s' '%s.old.tmp'"):format(path, path))
    assert.equal(dump(A), dump(path))
    sh(("mv '%s' '%s.old.tmp'"):format(path, path))
    assert(write(B, path))
    assert.equal(dump(B), dump(path))
    assert.equal("out.mlpackage\n", names())
  end)

  it("that is being written is left alone by others", function()
    -- Locked, as a living writer's is; without the lock it would be a dead one's.
    local temp = path .. ".1-0.tmp"
    sh(("mkdir '%s'"):format(temp))
    local lock = assert(io.popen(("flock '%s' sh -c 'echo locked; sleep 100 & echo $!; wait'"):format(temp)))
    assert.equal("locked", lock:read "l")
    local sleeper = lock:read "l"
    assert(write(A, path))
    assert.equal("out.mlpackage\nout.mlpackage.1-0.tmp\n", names())
    sh("kill " .. sleeper)
    lock:close()
    sh(("mkdir '%s/out.mlpackage.tmp' '%s/out.mlpackage.1-0.tmpx' '%s/xout.mlpackage.1-0.tmp'"):format(folder, folder, folder))
    assert(write(A, path))
    assert.equal("out.mlpackage\nout.mlpackage.1-0.tmpx\nout.mlpackage.tmp\nxout.mlpackage.1-0.tmp\n", names())
  end)

  it("with other things in it is not replaced", function()
    sh(("mkdir '%s'; touch '%s/notes.txt'"):format(path, path))
    local ok, message, code = write(A, path)
    assert.same({ nil, path .. ": is a folder with other things in it, not a package to be replaced", "invalid" }, { ok, message, code })
    assert.equal("notes.txt\n", sh(("ls '%s'"):format(path)))
    ok, message, code = write(A, path .. "/notes.txt")
    assert.same({ nil, path .. "/notes.txt: is not a folder", "io" }, { ok, message, code })
    assert.equal("out.mlpackage\n", names())
  end)

  it("that cannot be made says why", function()
    local ok, message, code = write(A, folder .. "/none/out")
    assert.same({ nil, folder .. "/none/out: cannot create: No such file or directory", "io" }, { ok, message, code })
    ok, message, code = write(A, "")
    assert.same({ nil, ": cannot create: No such file or directory", "io" }, { ok, message, code })
    ok, message, code = write(A, "/dev/null")
    assert.same({ nil, "/dev/null: is not a folder", "io" }, { ok, message, code })
    sh(("ln -s nowhere '%s/link'"):format(folder))
    ok, message, code = write(A, folder .. "/link")
    assert.same({ nil, folder .. "/link: cannot create: No such file or directory", "io" }, { ok, message, code })
    assert.equal("link\n", names())
  end)

  it("is not left half where the disk is full", function()
    if not tree.run "test -w /dev/full" or not tree.has "prlimit" then pending "no prlimit" end
    assert(write(A, path))
    local build = os.getenv "ANE_BUILD" or "build/release"
    local code = ([[package.cpath = '%s/?.so' local core = require 'ane.core' local b = assert(core.package('%s'))
      local ok, message, code = b:rewrite('%s') print(ok, code, message)]]):format(build, B, path)
    -- A limit of the size of files stands for a full disk: writing fails with EFBIG, as SIGXFSZ is ignored.
    local text = sh(('trap "" XFSZ; prlimit --fsize=3000 %s -e "%s"'):format(os.getenv "LUA" or "lua5.4", code))
    assert.matches("^nil\tio\t.*cannot write: File too large\n$", text)
    assert.equal(dump(A), dump(path))
    assert.equal("out.mlpackage\n", names())
  end)
end)
