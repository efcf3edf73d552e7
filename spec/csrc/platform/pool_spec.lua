-- Threads that run steps together: never more than the process has CPUs, asleep between two runs, and the caller's own affinity
-- left alone. Bits are held in spec/csrc/exec/bits_spec.lua. Each measurement has its own process.
local core = require "ane.core"
local programs = require "support.programs"
local tree = require "support.tree"

local child = [[
  local programs = require "support.programs"
  local p = programs.open("llama-mixed", { int8 = true, threads = tonumber(arg[1]), manner = "free" })
  local s = assert(p:session { context = 200, kv = "fp16" })
  local function status(name)
    for line in io.lines "/proc/self/status" do
      local value = line:match("^" .. name .. ":%s*(.-)%s*$")
      if value then return value end
    end
  end
  local may = status "Cpus_allowed"
  assert(s:feed(programs.ids(40, 1024), "none"))
  for i = 1, 60 do assert(s:feed({ i }, "argmax")) end
  local used = os.clock()
  os.execute "sleep 0.5"
  used = os.clock() - used
  print(status "Threads", used, may == status "Cpus_allowed")
]]

-- What the child prints: threads of the process, CPU seconds while it slept for half of one, is the affinity as before?
local function run(cpus, threads)
  local script = os.tmpname()
  local out = assert(io.open(script, "w"))
  assert(out:write("package.path, package.cpath = ", ("%q, %q\n"):format(package.path, package.cpath), child))
  out:close()
  local ok, text = tree.run(("taskset -c %s lua5.4 '%s' %d"):format(cpus, script, threads))
  os.remove(script)
  local count, used, same = text:match "^(%d+)\t(%S+)\t(%w+)"
  assert(ok and count, text)
  return tonumber(count), tonumber(used), same
end

describe("a pool of threads", function()
  local can = core.path_kind "/proc/self/status" == "file" and tree.run "taskset -c 0 true"
  for _, case in ipairs { { "0", 1 }, { "0", 2 }, { "0", 7 }, { "0,1", 1 }, { "0,1", 2 }, { "0,1", 7 } } do
    local cpus, threads = case[1], case[2]
    it(("has as many as can run, on CPU %s of %d asked for, and none is awake between two runs"):format(cpus, threads), function()
      if tree.emulator() then return pending(tree.emulator() .. " has threads of its own") end
      if tree.cannot_load() then return pending(tree.cannot_load()) end
      if not can or cpus == "0,1" and not tree.run "taskset -c 1 true" then return pending "CPUs cannot be chosen here" end
      local count, used, same = run(cpus, threads)
      assert(count <= math.min(threads, cpus == "0" and 1 or 2), count)
      if cpus == "0" or threads == 1 then assert.equal(1, count) end
      assert(used < 0.1, used) -- a thread that did not sleep would have used 0.5
      assert.equal("true", same)
    end)
  end

  it("takes all that are asked for where a spec wants them", function()
    local p <close> = programs.open("llama-mixed", { threads = 5 })
    assert.equal(5, p:info().threads)
    if not can then return pending "threads cannot be counted here" end
    local count
    for line in io.lines "/proc/self/status" do count = count or line:match "^Threads:%s*(%d+)" end
    assert(tonumber(count) >= 5, count)
  end)

  -- musl gives a thread 128 KiB, glibc the limit of the main thread's stack.
  it("gives each thread a stack of 1 MiB at least", function()
    if core.path_kind "/proc/self/maps" ~= "file" then return pending "maps cannot be read here" end
    if tree.cannot_load() then return pending(tree.cannot_load()) end
    local script = os.tmpname()
    local out = assert(io.open(script, "w"))
    assert(out:write("package.path, package.cpath = ", ("%q, %q\n"):format(package.path, package.cpath), [[
      local p <close> = require("support.programs").open("llama-mixed", { threads = 5, manner = "together" })
      local stacks, guard = 0, nil
      for line in io.lines "/proc/self/maps" do
        local from, to, rights = line:match "^(%x+)%-(%x+) (%S+)"
        from, to = tonumber(from, 16), tonumber(to, 16)
        -- Maps that follow each other may be shown as one.
        if rights == "rw-p" and from == guard then stacks = stacks + ((to - from) // 0x100000 > 0 and 1 or 0) end
        guard = rights == "---p" and to or nil
      end
      print(stacks)
    ]]))
    out:close()
    local ok, text = tree.run(("ulimit -S -s 512; %s '%s'"):format(os.getenv "LUA" or "lua5.4", script))
    os.remove(script)
    assert(ok and tonumber(text) >= 4, text)
  end)

  -- A worker that took SIGINT would run the host's handler while the host has it blocked or waits for it elsewhere.
  it("leaves signals to the threads of the host", function()
    if core.path_kind "/proc/self/task" ~= "folder" then return pending "signal masks cannot be read here" end
    local there = {} -- threads of others, such as a sanitizer's
    for _, task in ipairs(assert(core.list_dir "/proc/self/task")) do there[task] = true end
    local p <close> = programs.open("llama-mixed", { threads = 2, manner = "together" })
    local s <close> = assert(p:session { context = 20, kv = "fp16" })
    assert(s:feed({ 1, 2, 3 }, "none"))
    local own, workers = tree.read("/proc/thread-self/status"):match "Pid:%s*(%d+)", 0
    there[own] = nil
    for _, task in ipairs(assert(core.list_dir "/proc/self/task")) do
      if there[task] then goto continue end
      local status = tree.read("/proc/self/task/" .. task .. "/status")
      local name, blocked = status:match "Name:%s*(%S+)", tonumber(status:match "SigBlk:%s*(%x+)", 16)
      local function is_blocked(signal) return blocked >> (signal - 1) & 1 == 1 end
      for _, signal in ipairs { 1, 2, 3, 10, 13, 15, 17, 28 } do
        assert.equal(task ~= own, is_blocked(signal), ("%s %s: signal %d"):format(task, name, signal))
      end
      for _, signal in ipairs { 4, 5, 7, 8, 11 } do assert.is_false(is_blocked(signal), ("%s: fault %d"):format(task, signal)) end
      if task ~= own then workers = workers + 1 end
      ::continue::
    end
    assert(workers >= 1, workers)
  end)
end)
