local core = require "ane.core"

local testing = core.testing

local folder

--- Names in the folder, sorted.
local function list()
  local pipe = assert(io.popen("ls -A '" .. folder .. "'"))
  local names = {}
  for name in pipe:lines() do names[#names + 1] = name end
  pipe:close()
  return names
end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function()
  testing.alloc_fail_after(-1)
  os.execute("chmod -R u+rwx '" .. folder .. "'; rm -r '" .. folder .. "'")
end)

describe("core.write_file and core.read_file", function()
  it("give back every byte", function()
    local bytes = {}
    for i = 0, 255 do bytes[i + 1] = string.char(i) end
    bytes = table.concat(bytes):rep(5000)
    assert.is_true(core.write_file(folder .. "/a", bytes))
    assert.equal(bytes, core.read_file(folder .. "/a"))
    assert.is_true(core.write_file(folder .. "/a", ""))
    assert.equal("", core.read_file(folder .. "/a"))
    assert.same({ "a" }, list())
  end)

  it("replace a file whole and keep its mode", function()
    local path = folder .. "/a"
    assert(core.write_file(path, "old"))
    assert(os.execute("chmod 640 '" .. path .. "'"))
    assert(core.write_file(path, "new"))
    assert.equal("new", core.read_file(path))
    local pipe = assert(io.popen("ls -l '" .. path .. "'"))
    assert.matches("^%-rw%-r%-%-%-%-%-", pipe:read "l")
    pipe:close()
  end)

  it("write through a symbolic link, which stays one", function()
    assert(core.write_file(folder .. "/target", "old"))
    assert(os.execute(("cd '%s' && ln -s target link"):format(folder)))
    assert(core.write_file(folder .. "/link", "new"))
    assert.equal("new", core.read_file(folder .. "/target"))
    assert.is_true((os.execute(("test -L '%s/link'"):format(folder))))
    assert.same({ "link", "target" }, list())
  end)

  it("give the reason, and leave nothing behind, if a file cannot be locked", function()
    local library = os.tmpname()
    finally(function() os.execute(("rm -f '%s' '%s.c' '%s.so'"):format(library, library, library)) end)
    local code = "#include <errno.h>\nint flock(int fd, int how) { (void)fd; (void)how; errno = EIO; return -1; }\n"
    assert(core.write_file(library .. ".c", code))
    if not os.execute(("env -u LD_PRELOAD cc -shared -fPIC -o %s.so %s.c 2>/dev/null"):format(library, library)) then
      return pending "needs a compiler"
    end
    local program = ("local core = require 'ane.core'; print(core.write_file('%s/a', 'x')); print(core.folder('%s/b'))")
      :format(folder, folder)
    local pipe = assert(io.popen(("LUA_PATH='%s' LUA_CPATH='%s' LD_PRELOAD=\"$LD_PRELOAD %s.so\" %s -e \"%s\" 2>&1"):format(package.path,
      package.cpath, library, os.getenv "LUA" or "lua5.4", program)))
    local said = pipe:read "a"
    pipe:close()
    assert.equal(("nil\t%s/a: cannot create: Input/output error\tio\nnil\t%s/b: cannot create: Input/output error\tio\n")
      :format(folder, folder), said)
    assert.same({}, list())
  end)

  it("give the reason, and leave nothing behind", function()
    local function refused(pattern, path)
      local ok, message, code = core.write_file(path, "x")
      assert.is_nil(ok)
      assert.matches(pattern, message)
      assert.equal("io", code)
    end
    refused("no/such/a: cannot create: No such file or directory", folder .. "/no/such/a")
    refused("must be a file, but is a folder", folder)
    refused("/dev/null: is not a regular file", "/dev/null") -- must not become a file
    assert.equal("other", core.path_kind "/dev/null")
    assert.same({}, list())

    local bytes, message, code = core.read_file(folder .. "/missing")
    assert.same({ nil, folder .. "/missing: No such file or directory", "io" }, { bytes, message, code })
    assert.matches("is a folder", select(2, core.read_file(folder)))
    assert.matches("is not a regular file", select(2, core.read_file "/dev/zero"))
  end)

  it("keep the old file where the disk is full", function()
    -- A limit on the size of files stands for the full disk: write() then fails, and raises a signal that ends the process
    -- where nothing is done about it.
    local script = ([[
      local core = require "ane.core"
      local ok, message, code = core.write_file("%s/a", ("x"):rep(1 << 20))
      io.write(tostring(ok), " ", code or "", " ", message or "")
    ]]):format(folder)
    assert(core.write_file(folder .. "/a", "old"))
    assert(core.write_file(folder .. "/script.lua", script))
    for _, trap in ipairs { "trap '' XFSZ; ", "" } do
      local pipe = assert(io.popen(("%sulimit -f 8; LUA_CPATH='%s' lua5.4 '%s/script.lua' 2>&1"):format(trap, package.cpath, folder)))
      local said = pipe:read "a"
      pipe:close()
      assert.matches("^nil io .*/a: cannot write a%.%d+%-%d+%.tmp: File too large$", said)
      assert.equal("old", core.read_file(folder .. "/a"))
    end
    assert.same({ "a", "script.lua" }, list())
  end)

  it("survive failing allocations", function()
    assert(core.write_file(folder .. "/a", "old"))
    local n = 0
    while true do
      testing.alloc_fail_after(n)
      local ok, _, code = core.write_file(folder .. "/a", "new")
      testing.alloc_fail_after(-1)
      if ok then break end
      assert.equal("memory", code)
      assert.equal("old", core.read_file(folder .. "/a"))
      n = n + 1
    end
    assert.is_true(n >= 2)
    assert.same({ "a" }, list())
  end)

  it("raise on a path with a NUL", function()
    for _, name in ipairs { "write_file", "read_file", "path_kind" } do
      assert.error_matches(function() core[name]("a\0b", "") end, "holds a NUL byte")
    end
  end)
end)

describe("core.path_kind", function()
  it("tells files, folders, others and nothing apart", function()
    assert(core.write_file(folder .. "/a", ""))
    assert.equal("file", core.path_kind(folder .. "/a"))
    assert.equal("folder", core.path_kind(folder))
    assert.equal("other", core.path_kind "/dev/null")
    assert.is_nil(core.path_kind(folder .. "/b"))
  end)
end)

describe("the machine", function()
  it("has kernel levels, weakest first, ref always among them", function()
    local names = core.isa_list()
    assert.equal("ref", names[1])
    assert.equal(names[#names], core.isa_best())
    local order = { ref = 1, avx2 = 2, avxvnni = 3, avx512 = 4, avx512vnni = 5, neon = 6, dotprod = 7, i8mm = 8 }
    for i = 2, #names do assert.is_true(order[names[i]] > order[names[i - 1]]) end
  end)

  it("claims no level that the system does not list", function()
    local info = core.path_kind "/proc/cpuinfo" and io.open("/proc/cpuinfo"):read "a" or ""
    local flags = info:match "flags%s*:([^\n]*)"
    if not flags then return end
    local words = { avx2 = "avx2", avxvnni = "avx_vnni", avx512 = "avx512bw", avx512vnni = "avx512_vnni" }
    for _, name in ipairs(core.isa_list()) do
      if words[name] then assert.is_truthy((flags .. " "):find(" " .. words[name] .. " ", 1, true), name) end
    end
  end)

  it("tells what each level can do at most", function()
    for _, name in ipairs(core.isa_list()) do
      local limits = assert(core.limits(1, name))
      assert.is_true(limits.read > 0)
      if name:find "avx" then -- not measured elsewhere
        assert.is_true(limits.dot > 0 and limits.fma > 0)
      else
        assert.is_nil(limits.dot)
      end
    end
    assert.error_matches(function() core.limits(1, "sse9") end, "level not available")
  end)

  it("has cores, a name, memory and a clock", function()
    assert.is_true(core.cpu_cores() >= 1)
    assert.is_string(core.cpu_name())
    local memory = core.memory()
    assert.is_true(memory.resident > 0 and memory.peak >= memory.resident // 2 and memory.available > 0)
    local before = core.clock()
    assert.is_true(core.clock() >= before)
    assert.is_boolean(core.isatty(0))
    assert.error_matches(function() core.isatty(-1) end, "not in 0")
  end)
end)
