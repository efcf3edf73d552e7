-- Ctrl-C in the real command: each one ends what is being computed, not only the first.
local command = require "support.command"
local tiny = require "support.tiny"

-- Runs the command and writes lines to its standard input. After each line it waits until the command has begun (the shell
-- condition `begun`, with the line's number in $i), and sends SIGINT.
-- @return exit code, all that the command wrote
local function drive(args, lines, begun)
  local folder = os.tmpname()
  os.remove(folder)
  local function wait(condition) return ("n=0; until %s || [ $n -gt 400 ]; do sleep 0.05; n=$((n+1)); done"):format(condition) end
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
    local args, more = "chat " .. tiny.path() .. " --context 200000", "[ $(wc -c <$out) -gt $((size + 500)) ]"
    local code, out = drive(args, { "Hello", "Hello", "Hello" }, more)
    assert.equal(0, code)
    assert.is_true(#out < 30000, #out .. " bytes were written, a whole reply has some 60,000")
  end)

  it("ends ane run", function()
    local code = drive("run " .. tiny.path() .. " --context 200000 --ids 1 --ignore-eos", { "" }, "[ $(wc -c <$out) -gt $size ]")
    assert.equal(130, code)
  end)
end)
