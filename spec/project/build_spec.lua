-- What the build makes.
local tree = require "support.tree"

local build = os.getenv "ANE_BUILD" or "build/release"

describe("the build", function()
  it("exports nothing but luaopen_ane_core", function()
    local ok, text = tree.run("nm -D --defined-only " .. build .. "/ane/core.so")
    assert.is_true(ok, text)
    local names = {}
    for name in text:gmatch "%x+ %a (%S+)" do names[#names + 1] = name end
    assert.same({ "luaopen_ane_core" }, names)
  end)

  it("is hardened where that costs nothing: no executable stack, read-only relocations, checks of the stack and of buffers", function()
    if build ~= "build/release" or not tree.has "readelf" then return pending "only the release build, with readelf" end
    local ok, text = tree.run(("readelf -dlW --dyn-syms %s/ane/core.so"):format(build))
    assert.is_true(ok, text)
    assert.matches("GNU_RELRO", text)
    assert.matches("BIND_NOW", text)
    assert.equal("RW", (text:match "GNU_STACK%s+%S+%s+%S+%s+%S+%s+%S+%s+%S+%s+(%a+)"))
    assert.matches("__stack_chk_fail", text)
    for _, name in ipairs { "memcpy", "strcpy", "snprintf" } do assert.matches("__" .. name .. "_chk[@%s]", text) end
    local segments = 0
    for flags in text:gmatch "LOAD%s+%S+%s+%S+%s+%S+%s+%S+%s+%S+%s+([RWE ]+)" do
      assert.is_nil(flags:find "W.*E", "a segment is writable and executable")
      segments = segments + 1
    end
    assert.is_true(segments > 2)
    for _, tag in ipairs { "TEXTREL", "RPATH", "RUNPATH" } do assert.is_nil(text:find(tag, 1, true), tag) end
  end)

  it("uses special instructions only in files and functions that are named for them", function()
    -- Elsewhere a vector register of the larger sets would stop older machines. gcc names the copies of a function that the loader
    -- chooses from name.avx2, and csrc/quant/wide.c those that it chooses from name_avx2 and name_avx512f.
    if not tree.has "objdump" then pending "objdump is not installed" end
    if tree.read("/proc/cpuinfo"):match "x86" == nil and not select(2, tree.run "uname -m"):match "x86_64" then pending "not x86-64" end
    local plain = [[awk '/^[0-9a-f]+ </ { copy = /[._]avx/ } !copy && /%[yz]mm/ { print; exit }']]
    local bad = {}
    for _, path in ipairs(tree.files("csrc", "c")) do
      local object = build .. "/" .. path:gsub("%.c$", ".o")
      local built = io.open(object, "rb") -- not what stands in for a library that is there, and the other way round
      if built then built:close() end
      if built and not path:match "_avx" and not path:match "/arm/" then
        local _, text = tree.run(("objdump -d --no-show-raw-insn '%s' | %s"):format(object, plain))
        if text ~= "" then bad[#bad + 1] = object .. ": " .. text end
      end
    end
    assert.same({}, bad)
  end)

  it("has a command that starts from the tree", function()
    local ok, text = tree.run(build .. "/bin/ane --version")
    assert.is_true(ok, text)
    assert.matches("^ane %d+%.%d+%.%d+\n$", text)
  end)
end)

describe("make", function()
  it("compiles the programs of bench/", function()
    local x86 = select(2, tree.run "uname -m"):match "x86_64"
    if build ~= "build/release" or not x86 then return pending "only the release build, on x86-64" end
    for _, path in ipairs(tree.files("bench", "c")) do
      local object = ("%s/%s.o"):format(build, path:gsub("%.c$", ""))
      local ok, text = tree.run(("make --no-print-directory WERROR=1 %s 2>&1"):format(object))
      assert.is_true(ok, text)
    end
  end)

  it("has every target that its help names", function()
    local ok, help = tree.run "make --no-print-directory help"
    assert.is_true(ok, help)
    for target in help:gmatch "make (%l[%l-]*) " do
      local found, text = tree.run("make --no-print-directory -n JOBS=1 " .. target)
      assert.is_true(found, text)
    end
  end)

  it("refuses a configuration that there is not", function()
    local ok, text = tree.run "make config=fast"
    assert.is_false(ok)
    assert.matches("config=fast: choose release, debug, sanitize, tsan, coverage, faults or fuzz", text, 1, true)
  end)
end)
