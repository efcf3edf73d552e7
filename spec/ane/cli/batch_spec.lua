-- The command batch: its summary, pipes, kills, shards, wrong usage.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

local folder

before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local function corpus(n)
  local list = {}
  for i = 1, n do list[i] = core.json_encode { id = i, prompt = "Once " .. i, max_tokens = 1 + i % 7 } end
  assert(core.write_file(folder .. "/in.jsonl", table.concat(list, "\n") .. "\n"))
  return folder .. "/in.jsonl", folder .. "/out.jsonl"
end

local function count(path)
  local n = 0
  for _ in io.lines(path) do n = n + 1 end
  return n
end

describe("ane batch", function()
  it("prints its summary as one object", function()
    local input, output = corpus(5)
    local summary = command.json { "batch", tiny.path(), input, "-o", output }
    assert.is_true(summary.ok)
    assert.is_true(summary.tokens > 10 and summary.seconds > 0)
    summary.tokens, summary.seconds = nil, nil
    assert.same({ ok = true, rows = 5, errors = 0, resumed = 0 }, setmetatable(summary, nil))
    assert.equal(5, count(output))
    assert.equal(5, command.json({ "batch", tiny.path(), input, "-o", output, "--resume" }).resumed)
  end)

  it("ends with code 1 beyond --max-errors, and prints the summary", function()
    local input, output = corpus(3)
    local code, out, err = command.run { "batch", tiny.path(), input, "-o", output, "--max-errors", "1", "--json", "--body", '{"wat":1}' }
    assert.equal(1, code)
    assert.is_false(core.json_decode(out).ok)
    assert.matches("%-%-max%-errors is 1", err)
    local again = select(3, command.run { "batch", tiny.path(), input, "-o", output })
    assert.matches("incomplete run: %-%-resume continues it, %-%-restart begins again", again)
  end)

  it("merges adapters where --merge goes with --adapter", function()
    local input, output = corpus(1)
    local code, _, err = command.run { "batch", tiny.path(), input, "-o", output, "--adapter", folder .. "/none", "--merge" }
    assert.equal(1, code)
    assert.is_truthy(err:find(folder .. "/none: No such file", 1, true), err)
    local _, help = command.run { "batch", "--help" }
    assert.equal(1, select(2, help:gsub("\n   %-%-merge ", "")))
  end)

  it("refuses wrong usage", function()
    local input, output = corpus(1)
    for _, words in ipairs {
      { tiny.path(), input }, { tiny.path(), "-o", output }, { tiny.path(), input, "-o", output, "--shard", "0/3" },
      { "--merge", "-o", output }, { "--merge", output, "-o", "x", "--context", "8" },
      { "--merge", output, "-o", "x", "--mixed", "ffn=q8_0" },
      { tiny.path(), input, "-o", output, "--body", "[1]" }, { tiny.path(), input, "-o", "-", "--resume" },
      { tiny.path(), input, "-o", output, "--resume", "--restart" }, { tiny.path(), input, input, "-o", output },
    } do
      local code, out, err = command.run { "batch", table.unpack(words) }
      assert.equal(2, code, table.concat(words, " ") .. err)
      assert.equal("", out)
    end
    assert.equal(1, (command.run { "batch", tiny.path(), input, "-o", input }))
    assert.equal(1, (command.run { "batch", tiny.path(), folder .. "/none", "-o", output }))
  end)

  it("refuses to resume and to merge answers of weights of other types, and names the option", function()
    local input, output = corpus(2)
    local function run(...) return command.run { "batch", tiny.path(), input, "-o", ... } end
    assert.equal(0, (run(output, "--shard", "1/2", "--weights", "int8")))
    local code, _, err = run(output, "--shard", "1/2", "--resume")
    assert.equal(1, code)
    assert.matches('other settings: %-%-weights is "file", was "int8"; %-%-restart starts again\n$', err)
    assert.equal(0, (run(output .. 2, "--shard", "2/2")))
    code, _, err = command.run { "batch", "--merge", output, output .. 2, "-o", folder .. "/all" }
    assert.equal(1, code)
    assert.matches('other settings than .*: %-%-weights is "file", not "int8"\n$', err)
    local text = folder .. "/text"
    assert(core.write_file(text, ("Once upon a time. "):rep(20)))
    assert.equal(0, (run(output, "--weights", "int4-block", "--calibrate", text, "--restart")))
    code, _, err = run(output, "--weights", "int4-block", "--resume")
    assert.equal(1, code)
    assert.matches("%-%-calibrate is not the same", err)
  end)

  it("answers each line of a pipe before the next one comes", function()
    -- each side opens its pipe as the other does; the reader sends row n + 1 when it has the answer to row n
    local here = select(2, tree.run "pwd"):gsub("\n", "/")
    local script = ([[
      set -e; cd '%s'; mkfifo a b; '%s' batch '%s' - -o - <a >b 2>err & pid=$!
      exec 3>a 4<b
      for i in 1 2 3; do
        printf '{"id":%%d,"prompt":"Once","max_tokens":2}\n' $i >&3
        read -r line <&4; echo "$line"
      done
      exec 3>&-; wait $pid
    ]]):format(folder, here .. command.path(), here .. tiny.path())
    assert(core.write_file(folder .. "/pipe.sh", script))
    local ok, text = tree.run(("timeout 300 bash '%s/pipe.sh'"):format(folder))
    assert.is_true(ok, text)
    assert.matches('"id":1.*"id":2.*"id":3', text)
  end)

  it("gives the file of one run after kills", function()
    local input, output = corpus(400)
    local want = folder .. "/want.jsonl"
    assert.equal(400, command.json({ "batch", tiny.path(), input, "-o", want, "--ordered" }).rows)
    local line = ("'%s' batch '%s' '%s' -o '%s' --ordered --resume"):format(command.path(), tiny.path(), input, output)
    for i = 1, 8 do
      os.execute(("timeout --foreground -s KILL %.3f %s >/dev/null 2>&1"):format(0.1 + 0.25 * core.random(3, i), line))
    end
    local summary = command.json { "batch", tiny.path(), input, "-o", output, "--ordered", "--resume" }
    assert.equal(400, summary.rows)
    assert.equal(tree.read(want), tree.read(output))
  end)

  it("merges shards", function()
    local input, output = corpus(10)
    for i = 1, 2 do command.json { "batch", tiny.path(), input, "-o", output .. i, "--shard", i .. "/2" } end
    assert.equal(10, command.json({ "batch", "--merge", output .. 2, output .. 1, "-o", output }).rows)
    command.json { "batch", tiny.path(), input, "-o", folder .. "/want", "--ordered" }
    assert.equal(tree.read(folder .. "/want"), tree.read(output))
    local code, out = command.run { "batch", "--merge", output .. 1, output .. 2, "-o", "-" }
    assert.equal(0, code)
    assert.equal(tree.read(output), out)
    local function refused(words, what)
      local wrong, _, err = command.run { "batch", "--merge", output .. 1, output .. 2, "-o", "-", table.unpack(words) }
      assert.equal(2, wrong, words[1])
      assert.equal(("ane batch: %s cannot be combined with --merge%s\n"):format(words[1], what), err)
    end
    for _, words in ipairs {
      { "--resume" }, { "--ordered" }, { "--shard", "1/2" }, { "--max-errors", "3" }, { "--max-tokens", "3" }, { "--temperature", "0" },
      { "--body", "{}" }, { "--mpi" }, { "--rank-timeout", "5" },
    } do
      refused(words, "")
    end
    for _, words in ipairs { { "--context", "8" }, { "--run-memory", "1G" }, { "--verify" }, { "--mixed", "ffn=q8_0" } } do
      refused(words, ", which loads no model")
    end
  end)
end)
