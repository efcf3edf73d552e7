-- Ctrl-C in the real command: each one ends what is being computed, not only the first.
local command = require "support.command"
local tiny = require "support.tiny"

-- Runs the command and writes lines to its standard input. After each line it waits until the command has begun (the shell
-- condition `begun`, with the line's number in $i), and sends SIGINT.
-- @return exit code, all that the command wrote
local function drive(args, lines, begun)
  local folder = os.tmpname()
  os.remove(folder)
  local function wait(condition) return ("n=0; until %s || [ $n -gt 1200 ]; do sleep 0.05; n=$((n+1)); done"):format(condition) end
  local script = {
    "mkdir " .. folder, "mkfifo " .. folder .. "/in", "touch " .. folder .. "/out",
    ("%s %s <%s/in >%s/out 2>&1 & pid=$!"):format(command.path(), args, folder, folder),
    ("exec 3>%s/in; out=%s/out; size=0"):format(folder, folder),
  }
  for i, text in ipairs(lines) do
    script[#script + 1] = ("i=%d; printf '%%s\\n' '%s' >&3"):format(i, text)
    script[#script + 1] = wait(begun)
    script[#script + 1] = "size=$(wc -c <$out); kill -INT $pid"
  end
  script[#script + 1] = "exec 3>&-"
  script[#script + 1] = wait "! kill -0 $pid 2>/dev/null" .. "; kill -KILL $pid 2>/dev/null"
  script[#script + 1] = ("wait $pid; echo $?; cat $out; rm -r %s"):format(folder)
  local pipe <close> = assert(io.popen("exec 2>/dev/null\n" .. table.concat(script, "\n")))
  local code = pipe:read "n"
  pipe:read "l"
  return code, pipe:read "a"
end

describe("Ctrl-C", function()
  it("ends each line of ane repl", function()
    local line = 'collectgarbage() print("begun") io.stdout:flush() while true do end'
    local code, out = drive("repl", { line, line, line }, "[ $(grep -c begun $out) -ge $i ]")
    assert.equal(0, code)
    assert.equal("begun\ninterrupted\nbegun\ninterrupted\nbegun\ninterrupted\n", out)
  end)

  it("ends each reply of ane chat", function()
    local replies = "[ $(grep -ac /quit $out) -ge $i ] && ! tail -c 500 $out | grep -aq /quit" -- /help ends with less behind /quit
    local line = "/help\n/reset\nHi" -- /help shows that the reply before has ended; /reset makes each reply the same long one
    local code, out = drive("chat " .. tiny.path() .. " --context 200000", { line, line, line }, replies)
    assert.equal(0, code, ("exit code %s: %s"):format(code, out))
    assert.is_true(#out < 30000, #out .. " bytes were written, one whole reply has more")
  end)

  it("ends ane run", function()
    local code = drive("run " .. tiny.path() .. " --context 200000 --ids 1 --ignore-eos", { "" }, "[ $(wc -c <$out) -gt $size ]")
    assert.equal(130, code)
  end)
end)

local has_readline = pcall(require, "readline")
local PROMPT = has_readline and "2004h" or "> "

-- The number of lines with PROMPT when the command reads line n. Without readline the echo of a line stands behind its prompt, so the
-- prompt itself is one line more.
local function at_line(n) return has_readline and n or n + 1 end

-- Runs the command on a terminal of its own, with what is typed there; each step waits for its text in the output first.
-- @param steps list of {text to wait for, bytes to type, number of lines that hold the text (1)}. readline writes PROMPT when it
-- begins to read: a step that waits for it types at the prompt, not while the line before is worked on.
-- @return exit code, all that stood on the terminal
local function type_in(args, steps)
  local out = os.tmpname()
  local script = { "(" }
  for _, step in ipairs(steps) do
    script[#script + 1] = ("n=0; until [ $(grep -c '%s' %s) -ge %d ] || [ $n -gt 1200 ]; do sleep 0.05; n=$((n+1)); done; printf '%s'")
      :format(step[1], out, step[3] or 1, step[2])
  end
  local line = ("HOME=/nonexistent TERM=xterm timeout 400 script -qec 'exec %s %s' /dev/null"):format(command.path(), args)
  script[#script + 1] = (") | %s >%s 2>&1; echo $?; cat %s; rm %s"):format(line, out, out, out)
  local pipe <close> = assert(io.popen(table.concat(script, "\n")))
  local code = pipe:read "n"
  pipe:read "l"
  return code, pipe:read "a"
end

describe("Ctrl-C at a prompt", function()
  if not io.open "/usr/bin/script" then return pending "script of util-linux is not installed" end

  it("clears the line of ane chat, and ends it where it comes twice", function()
    local code, out = type_in("chat " .. tiny.path() .. " -n 2", {
      { PROMPT, "some words\\003" }, { "Ctrl-C again", "Hi\\n" }, { PROMPT, "/prompt\\n", at_line(2) },
      { PROMPT, "half\\003", at_line(3) }, { "Ctrl-C again", "\\003", 2 },
    })
    assert.equal(0, code, ("exit code %s: %s"):format(code, out))
    assert.matches("|>\r\n\r\nHi<|", out, 1, true) -- without the words that were cleared
    local _, hints = out:gsub("Ctrl%-C again", "")
    assert.equal(2, hints)
  end)

  it("clears the line of ane repl, and ends it where it comes twice", function()
    local code, out = type_in("repl", {
      { PROMPT, "error(\\003" }, { "Ctrl-C again", "=6*7\\n" }, { PROMPT, "\\003", at_line(2) }, { "Ctrl-C again", "\\003", 2 },
    })
    assert.equal(0, code, ("exit code %s: %s"):format(code, out))
    assert.matches("42\r\n", out)
    assert.not_matches("expected", out)
  end)
end)
