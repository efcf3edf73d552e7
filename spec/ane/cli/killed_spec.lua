-- What a command that is ended from outside leaves behind.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

-- A command that is stopped in the middle: it reads its model, has begun to write and then waits in its progress.
local SLOW = [[
  require("ane.cli.common").progress = function()
    return function(stage) while stage == "quantise" do end end
  end
  os.exit(require("ane.cli").main { "quantise", %q, %q, "--weights", "q8_0" })
]]

local folder

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir '%s'"):format(folder)))
end)

after_each(function() os.execute(("rm -r '%s'"):format(folder)) end)

local function names()
  local list = core.list_dir(folder)
  table.sort(list)
  return list
end

-- Runs a program in Lua, waits until a temporary file of `out` is in the folder, sends the signal. The program's standard input is
-- a pipe that stays open.
-- @return exit code
local function killed(signal, program, out)
  local script = folder .. "/program.lua"
  assert(core.write_file(script, ("package.path, package.cpath = %q, %q\n"):format(package.path, package.cpath) .. program))
  local pipe <close> = assert(io.popen(([[
    exec 2>/dev/null; mkfifo %s/in; exec 3<>%s/in
    %s %s <&3 >/dev/null & pid=$!
    until ls %s.*.tmp >/dev/null || ! kill -0 $pid; do sleep 0.05; done
    sleep 0.1; kill -%s $pid; wait $pid; echo $?; rm %s/in %s
  ]]):format(folder, folder, os.getenv "LUA" or "lua5.4", script, out, signal, folder, script)))
  return pipe:read "n"
end

-- What a signal does to a quantise that has begun to write and waits in its progress.
local function killed_quantise(signal)
  return killed(signal, SLOW:format(tiny.path(), folder .. "/out.gguf"), folder .. "/out.gguf")
end

describe("a quantise that is ended", function()
  it("by SIGTERM leaves nothing behind", function()
    assert.equal(143, killed_quantise "TERM")
    assert.same({}, names())
  end)

  it("by SIGINT leaves nothing behind", function()
    assert.equal(130, killed_quantise "INT")
    assert.same({}, names())
  end)

  it("by SIGKILL leaves a file that the next run removes", function()
    assert.equal(137, killed_quantise "KILL")
    assert.equal(1, #names())
    assert.matches("^out%.gguf%.%d+%-%d+%.tmp$", names()[1])
    local code = command.run { "quantise", tiny.path(), folder .. "/out.gguf", "--weights", "q8_0", "--no-progress" }
    assert.equal(0, code)
    assert.same({ "out.gguf" }, names())
  end)
end)

describe("a redact that is ended while it waits for input", function()
  local REDACT = [[
    require("ane.cli.common").load = function() return require("support.filter").load() end
    os.exit(require("ane.cli").main { "redact", "model", "-", "-o", %q })
  ]]
  for signal, code in pairs { TERM = 143, INT = 130 } do
    it("by SIG" .. signal .. " leaves nothing behind", function()
      local out = folder .. "/out.txt"
      assert.equal(code, killed(signal, REDACT:format(out), out))
      assert.same({}, names())
    end)
  end
end)

describe("the temporary file of a writer that lives", function()
  it("is left alone by another writer of the same file", function()
    local first <close> = assert(core.gguf_writer(folder .. "/out.gguf", 1))
    assert(first:set("general.architecture", "string", "x"))
    assert(first:begin())
    assert(core.write_file(folder .. "/out.gguf", "other"))
    assert(first:commit())
    assert.same({ "out.gguf" }, names())
    assert.equal("GGUF", core.read_file(folder .. "/out.gguf"):sub(1, 4))
  end)
end)

describe("a command whose standard streams are closed", function()
  local MODEL = tiny.path "llama-odd"

  local function run(words, streams) return (os.execute(("%s %s %s"):format(command.path(), words, streams))) == true end

  it("writes no message into its output, and fails where its result cannot be shown", function()
    assert.is_true(run(("quantise %s %s/want.gguf --weights q8_0"):format(MODEL, folder), ">/dev/null 2>&1"))
    local want = core.read_file(folder .. "/want.gguf")
    local works = { ["<&- >/dev/null 2>&1"] = true, [">/dev/null 2>&-"] = true, ["<&- >/dev/null 2>&-"] = true,
      [">&- 2>&-"] = false, ["<&- >&- 2>&-"] = false }
    for streams, wanted in pairs(works) do
      local out = folder .. "/out.gguf"
      assert.equal(wanted, run(("quantise %s %s --weights q8_0"):format(MODEL, out), streams), streams)
      assert.equal(want, core.read_file(out), streams)
      os.remove(out)
    end
    assert.is_false(run("info " .. MODEL, ">&- 2>/dev/null"))
  end)

  it("in a folder that cannot be written says so", function()
    if core.path_kind "/proc/sys" ~= "folder" then return pending "needs a folder that not even root can write" end
    local ok, text = tree.run(("%s quantise %s /proc/out.gguf --weights q8_0"):format(command.path(), MODEL))
    assert.is_false(ok)
    assert.matches("/proc/out.gguf: cannot create: ", text)
  end)
end)
