-- bench/compare, with a script in place of ik_llama.cpp's llama-bench and a Python that finds no packages (-S).
local tiny = require "support.tiny"

local python = os.execute "command -v python3 >/dev/null 2>&1"

-- Exit code, standard output and standard error together.
local function compare(arguments)
  local pipe = assert(io.popen(("python3 -S bench/compare %s -t 1 %s 2>&1; echo code $?"):format(tiny.path(), arguments)))
  local text = pipe:read "a"
  pipe:close()
  local out, code = text:match "^(.*)code (%d+)\n$"
  return math.tointeger(code), out
end

-- A program that writes a text.
local function program(text)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write("#!/bin/sh\n", text, "\n")
  f:close()
  assert(os.execute("chmod +x " .. path))
  return path
end

-- What llama-bench says of the tests that its options ask for.
local PEER = [[
case "$*" in
  *-gp*) echo '[{"build_commit": "abc123", "n_prompt": 8, "n_gen": 2, "avg_ts": 30.0}]' ;;
  *) echo '[{"build_commit": "abc123", "n_prompt": 4, "n_gen": 0, "avg_ts": 10.0},'
     echo '{"build_commit": "abc123", "n_prompt": 0, "n_gen": 2, "avg_ts": 20.0}]' ;;
esac]]

describe("bench/compare", function()
  local function test(name, fn)
    it(name, function()
      if not python then return pending "python3 is not installed" end
      fn()
    end)
  end

  test("says what is missing before anything is measured", function()
    local code, out = compare "-r 1"
    assert.equal(1, code)
    assert.matches("^llama%-cpp%-python is not installed.- nothing to compare with\n$", out)
    for _, case in ipairs { { "--ik /nonexistent", "/nonexistent is not a program" }, { "--ik /tmp", "/tmp is not a program" },
      { "-r 0", "argument %-r: invalid" }, { "-p -3", "argument %-p: " }, { "-d x", "argument %-d: invalid" } } do
      code, out = compare(case[1])
      assert.equal(2, code)
      assert.matches(case[2], out)
      assert.is_nil(out:find "Traceback")
    end
  end)

  test("sets a peer beside ane, with date and versions", function()
    local peer = program(PEER)
    local code, out = compare("-r 2 -p 4 -n 2 -d 8 --ik " .. peer)
    os.remove(peer)
    assert.equal(0, code, out)
    assert.matches("llama.cpp is left out", out, 1, true)
    assert.matches("\n20%d%d%-%d%d%-%d%d; 1 threads of %d+, .-; ane [%d.]+; ik_llama.cpp abc123\n", out)
    assert.matches("| prefill, tokens/s | [%d.e+]+ | 10 | 10 | [%d.]+ %([%d.]+ %.%. [%d.]+%) | ", out)
    for _, ids in ipairs { "random ids", "greedy text" } do
      for _, head in ipairs { "", ", whole head" } do
        local rows = ("| decode, %s%s, tokens/s | [%%d.e+]+ | 20 | 20 | [^\n]+\n| ... read a token, MB | [%%d.]+ |  |"):format(ids, head)
        assert.matches(rows, out)
      end
    end
    assert.matches("| decode at depth, tokens/s | [%d.e+]+ | 30 | 30 | ", out)
    assert.matches("| process that [%a%d ]+, s | [%d.]+ | [%d.]+ | [%d.]+ | [%d.]+ %(", out)
  end)

  test("sets several sequences beside those of a peer", function()
    local peer = program [[echo "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |"
echo "|-------|--------|------|--------|----------|----------|----------|----------|"
echo "|     4 |      2 |    1 |      6 |    0.010 |    10.00 |    0.020 |    20.00 |"
echo "|     4 |      2 |    3 |     18 |    0.010 |    30.00 |    0.020 |    40.00 |"]]
    local code, out = compare("-r 1 --sequences 1,3 -p 4 -n 2 --ik " .. peer)
    assert.equal(0, code, out)
    assert.matches("| prefill, 3 sequences, tokens/s | [%d.e+]+ | 30 | 30 | ", out)
    assert.matches("| decode, 3 sequences, tokens/s | [%d.e+]+ | 40 | 40 | ", out)
    code, out = compare("-r 1 --sequences 1,2 -p 4 -n 2 --ik " .. peer)
    os.remove(peer)
    assert.equal(1, code)
    assert.matches("wrote no such table", out)
    assert.equal(2, (compare "--sequences 1,x"))
  end)

  test("shows what a peer wrote that is not a result", function()
    local peer = program "echo out of luck"
    local code, out = compare("-r 1 -p 4 -n 2 -d 8 --ik " .. peer)
    os.remove(peer)
    assert.equal(1, code)
    assert.matches("wrote no JSON: out of luck\n$", out)
    assert.is_nil(out:find "Traceback")
  end)
end)
