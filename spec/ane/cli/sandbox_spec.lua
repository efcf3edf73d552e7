-- The option --sandbox: what a command can still do before and after the load.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

local folder
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local lua = os.getenv "LUA" or "lua5.4"

-- Runs a program in its own process: what is given up stays so.
local function run(code)
  local script = folder .. "/program.lua"
  assert(core.write_file(script, ("package.path, package.cpath = %q, %q\nlocal FOLDER, MODEL = %q, %q\n"):format(package.path,
    package.cpath, folder, tiny.path()) .. code))
  return tree.run(lua .. " " .. script)
end

local ok, text = tree.run(("LUA_CPATH='%s' %s -e \"print(require 'ane.core'.sandbox({}, {}))\""):format(package.cpath, lua))
local can = ok and text:find "^true"

describe("a sandbox", function()
  it("begins before the load that --calibrate needs", function()
    local models, order = require "ane.model", {}
    local enter, load = core.sandbox, models.load
    core.sandbox = function() order[#order + 1] = "sandbox" return true end -- luacheck: ignore 122
    models.load = function(...) order[#order + 1] = "load" return load(...) end -- luacheck: ignore 122
    assert(core.write_file(folder .. "/text", ("Once upon a time. "):rep(20)))
    local code = command.run { "run", tiny.path(), "--ids", "1,2", "-n", "1", "--weights", "lut4", "--calibrate", folder .. "/text",
      "--sandbox" }
    core.sandbox, models.load = enter, load -- luacheck: ignore 122
    assert.equal(0, code)
    assert.same({ "sandbox", "load", "load", "sandbox" }, order)
  end)

  it("begins before a command opens anything", function()
    local enter = core.sandbox
    core.sandbox = function() return nil, "sandbox: not here", "unsupported" end -- luacheck: ignore 122
    local told = {}
    for i, words in ipairs {
      { "info", tiny.path() }, { "info", "spec/fixtures/aimodel/apple.aimodel" }, { "info", "spec/fixtures/mlpackage/flow.mlpackage" },
      { "repl", "-e", "print 'unconfined'" }, { "repl", tiny.path(), "-e", "print 'unconfined'" }, { "bench", tiny.path(), "-p", "1" },
    } do
      words[#words + 1] = "--sandbox"
      local code, out, message = command.run(words)
      told[i] = ("%d %s %s"):format(code, out, message)
    end
    core.sandbox = enter -- luacheck: ignore 122
    for _, line in ipairs(told) do assert.matches("^1  ane %l+: sandbox: not here\n$", line) end
  end)

  it("is refused with the reason where the kernel cannot do it", function()
    if can then return end
    assert.matches("^nil\tsandbox: .*\tunsupported", text)
  end)
  if not can then return end

  it("takes files, programs, processes and sockets away, and leaves outputs, threads and what is open", function()
    ok, text = run [[
      local ane, core = require "ane", require "ane.core"
      local model = assert(ane.load(MODEL, { threads = 2 }))
      local want = assert(model:generate({ 1, 2, 3 }, { max_tokens = 3, details = true })).ids
      assert(core.sandbox({ "lua" }, { FOLDER }))
      local got = assert(model:generate({ 1, 2, 3 }, { max_tokens = 3, details = true })).ids
      assert(table.concat(got, " ") == table.concat(want, " "))
      for _, path in ipairs { MODEL, "/etc/passwd", "/proc/self/mem", "." } do
        local file, message, code = io.open(path)
        assert(not file and code == 13, tostring(message))
      end
      assert(not core.list_dir "/")
      assert(not core.write_file("/tmp/outside.txt", "x") and not os.rename(FOLDER, FOLDER .. "2"))
      assert(not os.execute "true")
      assert(not (io.popen "true"))
      assert(core.write_file(FOLDER .. "/out", "x") and core.read_file(FOLDER .. "/out") == "x")
      assert(model:quantise(FOLDER .. "/out.gguf", { weights = "q8_0" }))
      assert(core.sandbox({}, {})) -- once more takes more away
      assert(not io.open(FOLDER .. "/out"))
      print "held"
    ]]
    assert.is_true(ok, text)
    assert.equal("held\n", text)
  end)

  it("takes the calls away that write to a terminal's input, and those for files of other processes", function()
    assert(core.write_file(folder .. "/calls.c", [[
      #define _GNU_SOURCE
      #include <errno.h>
      #include <fcntl.h>
      #include <stdio.h>
      #include <sys/ioctl.h>
      #include <sys/syscall.h>
      #include <unistd.h>
      #ifndef SYS_pidfd_getfd
      #define SYS_pidfd_getfd 438
      #endif
      int luaopen_calls(void *L) {
        char text[] = "x";
        const unsigned long wide = 1ul << 32;
        static int null = -1; /* opened before, as a terminal is */
        if (null < 0) null = open("/dev/null", O_RDWR);
        (void)L;
        printf("%d %d %d %d %d\n", ioctl(null, TIOCSTI, text) ? errno : 0, ioctl(null, TIOCSTI | wide, text) ? errno : 0,
               ioctl(null, 0x541C, text) ? errno : 0, ioctl(null, TIOCGWINSZ, text) ? errno : 0,
               syscall(SYS_pidfd_getfd, -1, 0, 0) ? errno : 0);
        return 0;
      }
    ]]))
    if not os.execute(("env -u LD_PRELOAD cc -shared -fPIC -o %s/calls.so %s/calls.c 2>/dev/null"):format(folder, folder)) then
      return pending "needs a compiler"
    end
    ok, text = run [[
      local call = assert(package.loadlib(FOLDER .. "/calls.so", "luaopen_calls"))
      call()
      assert(require "ane.core".sandbox({}, {}))
      call()
    ]]
    assert.is_true(ok, text)
    -- ENOTTY and EBADF; EPERM.
    assert.equal("25 25 25 25 9\n1 1 1 25 1\n", text)
  end)

  local function same(words)
    local plain, sandboxed = { tree.run(command.path() .. " " .. words) }, { tree.run(command.path() .. " " .. words .. " --sandbox") }
    assert.is_true(plain[1], plain[2])
    assert.same(plain, sandboxed)
  end

  it("changes no answer of a command", function()
    assert(core.write_file(folder .. "/prompts", "Once\nTwice\n"))
    for _, from in ipairs { "%s/prompts", "%s/prompts+samples:20", "samples:20" } do
      same(("run %s --prompt Once --max-tokens 4 --weights lut4 --calibrate " .. from):format(tiny.path(), folder))
    end
    same(("run %s --prompt Once --max-tokens 4"):format(tiny.path()))
    same(("run %s --prompts %s/prompts --max-tokens 4 --threads 2"):format(tiny.path(), folder))
    same(("run %s --prompt Once --max-tokens 4 --speculate-corpus %s/prompts"):format(tiny.path(), folder))
    same "run spec/fixtures/hf/llama --ids 1,2,3 --max-tokens 4"
    same(("logits %s --ids 1,2,3"):format(tiny.path()))
    same(("chat %s --prompt Hello --max-tokens 4"):format(tiny.path()))
    for _, name in ipairs { "bert", "embedding_gemma", "nomic_bert", "qwen3_embedding" } do
      same("embed spec/fixtures/hf/" .. name .. " --ids 1,2,3")
    end
    for _, name in ipairs { "cross_encoder", "cross_encoder_xlmr", "llama_score-odd" } do
      same("rerank spec/fixtures/hf/" .. name .. " --ids 1,2,3")
    end
    same "classify spec/fixtures/hf/privacy_filter --ids 1,2,3"
    same "check spec/fixtures/check/llama.gguf spec/fixtures/check/llama.golden.json"
    assert(core.write_file(folder .. "/in.jsonl", '{"id": 1, "prompt": "Once", "max_tokens": 2}\n'))
    local batch = "%s batch %s %s/in.jsonl -o %s/out.jsonl --sandbox --no-progress"
    ok, text = tree.run(batch:format(command.path(), tiny.path(), folder, folder))
    assert.is_true(ok, text)
    assert.matches('"id":1', core.read_file(folder .. "/out.jsonl"))
  end)

  it("holds for a Lua prompt without a model", function()
    ok, text = tree.run(("%s repl --sandbox -e 'print(io.open \"/etc/passwd\", os.execute \"true\")'"):format(command.path()))
    assert.is_true(ok, text)
    assert.matches("^nil\tnil", text)
  end)

  it("is refused for the ranks of a launcher", function()
    local alone = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 " .. command.path()
    for _, words in ipairs { "run %s --ids 1 --sandbox", "batch %s - --sandbox" } do
      ok, text = tree.run(("%s %s </dev/null"):format(alone, words:format(tiny.path())))
      assert.is_false(ok)
      assert.matches("%-%-sandbox: this command needs the network", text)
    end
  end)

  it("is refused where a command needs the network", function()
    assert.not_matches("%-%-sandbox", select(2, tree.run(command.path() .. " serve --help")))
    assert.matches("%-%-sandbox", select(2, tree.run(command.path() .. " run --help")))
    if not core.http_available() then return pending "ane serve needs libmicrohttpd" end
    ok, text = tree.run(("%s serve %s --sandbox"):format(command.path(), tiny.path()))
    assert.is_false(ok)
    assert.matches("ane serve: %-%-sandbox: this command needs the network", text)
  end)
end)
