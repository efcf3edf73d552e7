local command = require "support.command"
local tiny = require "support.tiny"
local tree = require "support.tree"

local cli = require "ane.cli"

local files = {}

-- The path of a new file with a text.
local function file(text)
  local name = os.tmpname()
  files[#files + 1] = name
  local f <close> = assert(io.open(name, "w"))
  f:write(text)
  return name
end

teardown(function()
  for _, name in ipairs(files) do os.remove(name) end
end)

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
    for _, words in ipairs { "run %s --ids 1,2 -n 3", "run %s --ids 1,2 -n 3 --json", "plan %s", "run --help %s" } do
      local ok, text = tree.run(("%s %s 2>&1 >/dev/full"):format(command.path(), words:format(tiny.path())))
      assert.is_false(ok, words)
      assert.equal("ane " .. words:match "%l+" .. ": standard output: No space left on device\n", text)
    end
    for _, words in ipairs { "--help", "--version", "help" } do
      local ok, text = tree.run(("%s %s 2>&1 >/dev/full"):format(command.path(), words))
      assert.same({ false, "ane: standard output: No space left on device\n" }, { ok, text })
    end
  end)

  it("ends as interrupted where Ctrl-C reached a function that returns its failure", function()
    local sequence = require "ane.quantise.sequence"
    local make, text, out = sequence.new, os.tmpname(), os.tmpname()
    finally(function()
      sequence.new = make
      os.remove(text)
      os.remove(out)
    end)
    assert(require("ane.core").write_file(text, "a text"))
    function sequence.new() require("ane.util.failure").raise("io", "sending to the next stage: interrupted!") end
    assert.same({ 130, "", "\n" }, { command.run {
      "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", text,
    } })
  end)

  it("says of an interrupted run that the same command continues it", function()
    local sequence = require "ane.quantise.sequence"
    local make, text, out = sequence.new, os.tmpname(), os.tmpname()
    finally(function()
      sequence.new = make
      for _, name in ipairs { text, out, out .. ".journal", out .. ".part", out .. ".part.state" } do os.remove(name) end
    end)
    assert(require("ane.core").write_file(text, ("a text\n"):rep(40)))
    local command_line = { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", text }
    function sequence.new(...)
      local made = make(...)
      made.put = function() error("interrupted!", 0) end
      return made
    end
    local message = "\nane quantise: interrupted: the same command continues from here\n"
    assert.same({ 130, "", message }, { command.run(command_line) })
    sequence.new = make
    local code, words, err = command.run(command_line)
    assert.same({ 0, "" }, { code, err })
    assert.matches("tensors of an earlier run were kept", words)
  end)

  it("fails with one line and an exit code", function()
    local path = tiny.path()
    local cases = {
      { {}, 2, "a command is required" },
      { { "dance" }, 2, "unknown command 'dance'" },
      { { "run" }, 2, "missing argument 'model'" },
      { { "run", path, "--foo" }, 2, "unknown option '%-%-foo'" },
      { { "run", path, "--ids", "1,x" }, 2, "'x' is not a token id" },
      { { "run", path, "--ids", "1,,2" }, 2, "'1,,2' has a comma without a token id" },
      { { "run", path, "-t", "0", "-p", "x" }, 2, "%-%-threads must be 1 .. 1024, but is 0" },
      { { "run", path }, 2, "give one of %-%-prompt, %-%-file, %-%-ids, %-%-messages" },
      { { "run", path, "-p", "x", "--ids", "1" }, 2, "can not be used together" },
      { { "run", "/nonexistent", "-p", "x" }, 1, "/nonexistent: " },
      { { "run", "spec", "-p", "x" }, 1, "spec: " },
      { { "run", "Makefile", "-p", "x" }, 1, "Makefile: " },
      { { "run", path, "-p", "x", "--weights", "int9" }, 2, "%-%-weights is \"int9\": choose file, int8" },
      { { "run", path, "-p", "x", "--temperature=-1" }, 2, "%-%-temperature must be 0 .. 1000000, but is %-1" },
      { { "run", path, "-p", "x", "--temperature", "-1" }, 2, "%-%-temperature must be 0 .. 1000000, but is %-1" },
      { { "run", path, "-p", "x", "--max-tokens", "-5" }, 2, "%-%-max%-tokens must be 0 or more, but is %-5" },
      { { "run", path, "-p", "x", "-n", "-5" }, 2, "%-%-max%-tokens must be 0 or more, but is %-5" },
      { { "run", path, "-p", "x", "--top-p", "1.5" }, 2, "%-%-top%-p must be 0 .. 1, but is 1.5" },
      { { "run", path, "-p", "x", "--seed", "x" }, 2, '%-%-seed must be an integer, but is "x"' },
      { { "run", path, "-p", "x", "--stop", "" }, 2, "%-%-stop: the text is empty" },
      { { "run", path, "-p", "x", "--weights", "q5" }, 2, '%-%-weights is "q5": choose file' },
      { { "run", path, "-p", "x", "--kv", "q5" }, 2, "'%-%-kv' must be one of 'fp16'" },
      { { "run", path, "-p", "x", "-c", "0" }, 2, "%-%-context must be 1 .. " },
      { { "run", path, "-p", "x", "--logprobs", "2" }, 2, "%-%-logprobs needs %-%-json" },
      { { "run", path, "--ids", "1", "--system", "x" }, 2, "%-%-system needs %-%-prompt" },
      { { "run", path, "-p", "x", "--stop-ngram", "0" }, 2, "%-%-stop%-ngram must be 1 or more, but is 0 " },
      { { "run", path, "-p", "x", "--stop-ngram", "x" }, 2, '%-%-stop%-ngram must be an integer, but is "x"' },
      { { "run", path, "-p", "x", "-t", "100000000000000000000" }, 2, "%-%-threads must be 1 .. 1024, but is 100000000000000000000 " },
      { { "run", path, "-p", "x", "--seed", "100000000000000000000" }, 2, "%-%-seed must be an integer of 64 bits, but is 10+ " },
      { { "export", path, "x", "--target", "coreai", "--size-limit", "5" }, 2, "export: %-%-size%-limit has no effect with target coreai" },
      { { "export", path, "x", "--target", "coreai", "--argmax" }, 2, "export: %-%-argmax has no effect with target coreai" },
      { { "embed", "spec/fixtures/hf/bert", "--dims", "999", "--ids", "1,2" }, 2, "embed: %-%-dims must be at most 64, .* but is 999" },
      { { "embed", "spec/fixtures/hf/bert", "--prompt", "q" }, 1, "%(%-%-prefix gives one as text%)" },
      { { "embed", "spec/fixtures/hf/bert", "-c", "2" }, 1, "give %-%-context a larger number, or %-%-max%-length one of at most 2" },
      { { "plan", "spec/none.json" }, 1, "^ane plan: spec/none.json: No such file or directory\n" },
      { { "run", path, "-f", "/nonexistent" }, 1, "/nonexistent" },
      { { "run", path, "-p", "-" }, 2, "standard input is empty" },
      { { "run", "/nonexistent" }, 1, "/nonexistent: No such file" },
      { { "info", "" }, 2, "the name of the model is empty" },
      { { "run", path, "--messages", file "[]" }, 1, "/.*: has no message" },
      { { "run", path, "--messages", file "[5]" }, 1, "/.*: messages%[1%] must be an object" },
      { { "run", path, "--messages", "-" }, 1, "standard input: json: line 1" },
      { { "run", path, "-p", "x\xff", "-s", "x" }, 2, "%-%-prompt must be UTF%-8, but has an invalid byte at 2" },
      { { "run", path, "-p", "x", "-s", "\xff" }, 2, "%-%-system must be UTF%-8, but has an invalid byte at 1" },
      { { "chat", path, "-p", "\xff" }, 2, "%-%-prompt must be UTF%-8, but has an invalid byte at 1" },
      { { "chat", "spec/fixtures/hf/bert", "-p", "x" }, 1, "is an embedding model: it makes vectors of texts %(embed%)" },
      { { "batch", path, "x", "-o", "build/x", "--resume", "--restart" }, 2, "%-%-resume cannot be combined with %-%-restart" },
      { { "predict", "spec/fixtures/mlpackage/flow.mlpackage", file '{"calls": [5]}' }, 1, "/.*: call 1: must be an object with" },
      { { "predict", path, "x", "--run-memory", "1X" }, 2, "%-%-run%-memory must be a number of bytes, .*, but is 1X" },
      { { "render", file "{{ raise_exception('boo') }}", file "{}" }, 1, "/.*:1:19: the template raises: boo" },
      { { "render", "Makefile", "-" }, 1, "standard input: json: line 1" },
      { { "rerank", "spec/fixtures/hf/cross_encoder", "-q", "x" }, 1, "standard input: has no text, but must have one in each line" },
      { { "run", path, "-p", "x", "--verify" }, 1, "%-%-verify is for package sets" },
      { { "run", path, "-p", "x", "--engine", "graph" }, 1, '%-%-engine is "graph", which is for ONNX models and package sets' },
      { { "quantise", path, "/nonexistent/x" }, 2, "give %-%-weights: " },
      { { "quantise", path, "/nonexistent/x", "--weights", "q5" }, 2, '%-%-weights is "q5": choose ' },
      { { "quantise", path, "/nonexistent/x", "--weights", "q4_k", "--mixed", "x=q5" }, 2, "%-%-mixed: the type for 'x' is \"q5\"" },
      { { "plan", path, "--weights", "q5" }, 2, '%-%-weights is "q5": choose ' },
      { { "plan", path, "--mixed", "x=q5" }, 2, "%-%-mixed: the type for 'x' is \"q5\"" },
      { { "export", path, "/nonexistent/x", "--chip", "Z80" }, 2, '%-%-chip is "Z80": choose ' },
      { { "plan", path, "--experts", "x" }, 2, '%-%-experts is "x": choose auto' },
      { { "compare", path, path, "x", "--chunk", "1" }, 2, "%-%-chunk must be 2 or more, but is 1" },
      { { "classify", path, "--threshold", "2" }, 2, "%-%-threshold must be 0 .. 1, but is 2" },
      { { "run", path, "--ids", "9999" }, 1, "id 9999 at place 1 is not in 0 .. 1023" },
      { { "run", path, "--ids", "1,99999999999" }, 1, "id 99999999999 at place 2 is not in 0 .. 1023" },
      { { "logits", path, "--ids", "1", "-p", "x" }, 2, "can not be used together" },
      { { "run", path, "--ids", "1,2,3", "-c", "2" }, 1, "the prompt has 3 tokens, but the context has room for 2" },
      { { "run", path, "--messages", "/nonexistent" }, 1, "/nonexistent" },
      { { "run", path, "--messages", "Makefile" }, 1, "Makefile: " },
      { { "logits", path }, 2, "give %-%-ids or %-%-prompt" },
      { { "tokenize", path, "--ids", "1" }, 2, "%-%-ids needs %-%-decode" },
      { { "tokenize", "spec/fixtures/gguf/llama-kquants.gguf" }, 1, "tokenizer" },
      { { "render", "/nonexistent", "x" }, 1, "/nonexistent" },
      { { "bench", path, "-r", "0" }, 2, "%-%-repetitions must be 1 or more, but is 0" },
      { { "info", "/nonexistent" }, 1, "/nonexistent" },
      { { "chat", "spec/fixtures/gguf/llama-kquants.gguf" }, 1, "no tokenizer" },
      { { "render", "Makefile", "-", "--now", "noon" }, 2, "%-%-now: YYYY%-MM%-DDTHH:MM:SS expected, got noon" },
      { { "compare", path, path, "-", "--mixed-b", "x=q8_0" }, 1, "%-%-mixed%-b: no weight matches \"x\"" },
      { { "compare", path, path, "-" }, 1, "standard input: the text has 0 tokens, but must have 2 or more" },
      { { "quantise", path, "build/x.gguf", "--weights", "q4_k", "--calibrate", "-" }, 1, "standard input: is empty" },
      { { "quantise", path, "/nonexistent/x", "--weights", "q4_k", "--calibrate", "-" }, 1, "/nonexistent/x: cannot create" },
      { { "bench", "spec/fixtures/hf/bert", "-p", "8", "-n", "0" }, 1, "hf/bert: reads whole texts in both directions" },
      { { "plan", path, "--ranks", "2", "--network", "0" }, 2, "%-%-network must be above 0, but is 0" },
      { { "plan", path, "--ranks", "2", "--hosts", "README.md" }, 1, "README.md: line 3: 'is' is not KEY=VALUE" },
      { { "export", path, "Makefile" }, 1, "Makefile: is not a folder: the packages need a folder" },
      { { "predict", path, "Makefile" }, 1, "Makefile: line 1, column 1" },
      { { "serve", path, "--cors", "example.org" }, 2, "%-%-cors must be %* or an origin such as https://example.org" },
      { { "serve", path, "--alias", "" }, 2, "%-%-alias: the text is empty" },
    }
    for _, case in ipairs(cases) do
      local code, out, err = command.run(case[1], case[1][1] == "embed" and "The moon.\n" or nil)
      local name = table.concat(case[1], " ")
      assert.equal(case[2], code, name .. ": " .. err)
      assert.equal("", out, name)
      assert.matches(case[3], err, nil, nil, name)
      assert.matches("^ane[^\n]*\n$", err, nil, nil, name)
      assert.not_matches("traceback", err, nil, nil, name)
      assert.not_matches("%.lua:%d", err, nil, nil, name)
      assert.not_matches("[a-z]_[a-z]+ must", err, nil, nil, name)
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
    if path:sub(1, 1) ~= "/" then path = select(2, tree.run "pwd"):gsub("\n", "/") .. path end
    local pipe = io.popen(("cd / && '%s' --version 2>&1"):format(path))
    assert.equal("ane 0.1.0\n", pipe:read "a")
    pipe:close()
    local link = os.tmpname()
    os.remove(link)
    os.execute(("ln -s '%s' '%s'"):format(path, link))
    pipe = io.popen(("'%s' info 2>&1"):format(link))
    assert.matches("^ane 0.1.0; ", pipe:read "a")
    pipe:close()
    os.remove(link)
  end)
end)
