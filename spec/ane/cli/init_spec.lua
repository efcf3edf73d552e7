local command = require "support.command"
local tiny = require "support.tiny"

local cli = require "ane.cli"

describe("the command", function()
  it("has help for each of its commands", function()
    local code, out = command.run { "--help" }
    assert.equal(0, code)
    for _, name in ipairs(cli.commands) do
      assert.matches("\n   " .. name, out)
      local sub_code, text = command.run { name, "--help" }
      assert.same({ sub_code, text, "" }, { command.run { "help", name } })
      assert.equal(0, sub_code)
      assert.matches("^Usage: ane " .. name, text)
    end
  end)

  it("tells its version", function()
    assert.same({ 0, "ane 0.1.0\n", "" }, { command.run { "--version" } })
  end)

  it("fails where its output cannot be written", function()
    local tree = require "support.tree"
    for _, words in ipairs { "run %s --ids 1,2 -n 3", "run %s --ids 1,2 -n 3 --json", "plan %s" } do
      local ok, text = tree.run(("%s %s 2>&1 >/dev/full"):format(command.path(), words:format(tiny.path())))
      assert.is_false(ok, words)
      assert.equal("ane " .. words:match "%l+" .. ": standard output: No space left on device\n", text)
    end
  end)

  it("fails with one line and an exit code", function()
    local path = tiny.path()
    local cases = {
      { {}, 2, "a command is required" },
      { { "dance" }, 2, "unknown command 'dance'" },
      { { "run" }, 2, "missing argument 'model'" },
      { { "run", path, "--foo" }, 2, "unknown option '%-%-foo'" },
      { { "run", path, "--ids", "1,x" }, 2, "'x' is not a token id" },
      { { "run", path, "-t", "0", "-p", "x" }, 2, "'0' is not an integer of 1 or more" },
      { { "run", path }, 1, "give one of %-%-prompt, %-%-ids, %-%-messages" },
      { { "run", path, "-p", "x", "--ids", "1" }, 2, "can not be used together" },
      { { "run", "/nonexistent", "-p", "x" }, 1, "/nonexistent: " },
      { { "run", "spec", "-p", "x" }, 1, "spec: " },
      { { "run", "Makefile", "-p", "x" }, 1, "Makefile: " },
      { { "run", path, "-p", "x", "--weights", "int9" }, 1, "choose file, int8" },
      { { "run", path, "-p", "x", "--temperature=-1" }, 1, "temperature must be 0" },
      { { "run", path, "--ids", "9999" }, 1, "id 9999 at place 1 is not in 0 .. 1023" },
      { { "run", path, "--ids", "1,99999999999" }, 1, "id 99999999999 at place 2 is not in 0 .. 1023" },
      { { "logits", path, "--ids", "1", "-p", "x" }, 2, "can not be used together" },
      { { "run", path, "--ids", "1,2,3", "-c", "2" }, 1, "the prompt has 3 tokens, the context holds 2" },
      { { "run", path, "--messages", "/nonexistent" }, 1, "/nonexistent" },
      { { "run", path, "--messages", "Makefile" }, 1, "Makefile: " },
      { { "logits", path }, 1, "give %-%-ids or %-%-prompt" },
      { { "tokenize", path, "--decode" }, 1, "needs %-%-ids" },
      { { "tokenize", "spec/fixtures/gguf/llama-kquants.gguf" }, 1, "tokenizer" },
      { { "render", "/nonexistent", "x" }, 1, "/nonexistent" },
      { { "bench", path, "-r", "0" }, 2, "not an integer of 1 or more" },
      { { "info", "/nonexistent" }, 1, "/nonexistent" },
      { { "chat", "spec/fixtures/gguf/llama-kquants.gguf" }, 1, "no tokenizer" },
    }
    for _, case in ipairs(cases) do
      local code, out, err = command.run(case[1])
      local name = table.concat(case[1], " ")
      assert.equal(case[2], code, name .. ": " .. err)
      assert.equal("", out, name)
      assert.matches(case[3], err, nil, nil, name)
      assert.matches("^ane[^\n]*\n$", err, nil, nil, name)
      assert.not_matches("traceback", err, nil, nil, name)
      assert.not_matches("%.lua:%d", err, nil, nil, name)
    end
  end)

  it("tells Ctrl-C from other errors", function()
    assert.is_true(cli.interrupted "x.lua:1: interrupted!")
    assert.is_false(cli.interrupted "other")
    assert.is_false(cli.interrupted {})
  end)

  it("runs as a program of its own, from anywhere", function()
    local path = command.path()
    if not io.open(path) then return pending "the command is not built" end
    local pipe = io.popen(("cd / && '%s' --version 2>&1"):format(path:sub(1, 1) == "/" and path or os.getenv "PWD" .. "/" .. path))
    assert.equal("ane 0.1.0\n", pipe:read "a")
    pipe:close()
    local link = os.tmpname()
    os.remove(link)
    os.execute(("ln -s '%s' '%s'"):format(path:sub(1, 1) == "/" and path or os.getenv "PWD" .. "/" .. path, link))
    pipe = io.popen(("'%s' info 2>&1"):format(link))
    assert.matches("^ane 0.1.0; ", pipe:read "a")
    pipe:close()
    os.remove(link)
  end)
end)
