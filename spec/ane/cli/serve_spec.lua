-- The command serve: its options, its line, its end by signals.
local command = require "support.command"
local core = require "ane.core"
local http = require "support.http"
local tiny = require "support.tiny"
local tree = require "support.tree"

if not http.available then
  describe("ane serve", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

local build = os.getenv "ANE_BUILD" or "build/release"

local folder

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir '%s'"):format(folder)))
end)

after_each(function()
  os.execute(("kill -KILL $(cat '%s/pid') 2>/dev/null"):format(folder))
  os.execute(("rm -r '%s'"):format(folder))
end)

-- Starts the command in a process of its own.
-- @return its port, its process id
local function start(options)
  local here = (select(2, tree.run "pwd"):gsub("\n", ""))
  local line = ("(cd '%s'; '%s/%s/bin/ane' serve '%s/%s' --port 0 %s > out 2> err & echo $! > pid; wait $!; "
    .. "echo $? > code.tmp; mv code.tmp code) >/dev/null 2>&1 &"):format(folder, here, build, here, tiny.path(), options or "")
  assert(os.execute(line))
  local deadline = core.clock() + 120
  local port
  repeat
    os.execute "sleep 0.05"
    port = (core.read_file(folder .. "/out") or ""):match ":(%d+)\n"
  until port or core.path_kind(folder .. "/code") or core.clock() > deadline
  return math.tointeger(tonumber(port)), tonumber((core.read_file(folder .. "/pid")))
end

local function exit_code()
  local deadline = core.clock() + 120
  while core.path_kind(folder .. "/code") == nil and core.clock() < deadline do os.execute "sleep 0.05" end
  return tonumber((core.read_file(folder .. "/code")))
end

local function completion(n) return { prompt = "a", max_tokens = n, temperature = 0, ignore_eos = true } end

describe("ane serve", function()
  it("answers, logs and ends with SIGTERM after the reply in progress", function()
    local port, pid = start "--sessions 1"
    assert.is_number(port)
    assert.equal("ok", http.get(port, "/health").json.status)
    local c = http.open(port)
    local body = completion(400)
    body.stream, body.stream_options = true, { include_usage = true }
    c:send(http.text("POST", "/v1/completions", body))
    assert.is_truthy(c:wait(function(buffer) return buffer:find "data: " end)) -- the reply is in progress
    os.execute("kill -TERM " .. pid)
    local answer = c:answer()
    assert.equal(200, answer.status)
    local events = http.events(answer.body)
    assert.same({ "[DONE]", 400 }, { events[#events], events[#events - 1].usage.completion_tokens })
    c:close()
    assert.equal(0, exit_code())
    local log = core.read_file(folder .. "/err")
    assert.matches("^%d+%-%d+%-%d+T%d+:%d+:%d+Z GET /health 200 [%d.]+ s\n", log)
  end)

  it("ends at once with a second signal", function()
    local port, pid = start "--quiet --temperature 0 --sessions 1"
    local c = http.open(port)
    local body = completion(400)
    body.stream = true
    c:send(http.text("POST", "/v1/completions", body))
    assert.is_truthy(c:wait(function(buffer) return buffer:find "data: " end)) -- the reply is in progress
    os.execute(("kill -INT %d; kill -INT %d"):format(pid, pid))
    assert.equal(0, exit_code())
    c:close()
  end)

  it("ends with 0 however many signals arrive while it ends", function()
    local port, pid = start "--quiet"
    assert.equal(200, http.get(port, "/health").status) -- from here on it catches signals
    os.execute(("while kill -INT %d && kill -TERM %d; do :; done 2>/dev/null"):format(pid, pid))
    assert.equal(0, exit_code())
  end)

  it("takes its key from a file, and refuses what is wrong", function()
    assert(core.write_file(folder .. "/key", "sesame\n"))
    local port, pid = start("--api-key @" .. folder .. "/key --alias tiny")
    assert.equal(401, http.get(port, "/v1/models").status)
    local list = http.get(port, "/v1/models", { Authorization = "Bearer sesame" }).json
    assert.equal("tiny", list.data[2].id)
    os.execute("kill -TERM " .. pid)
    assert.equal(0, exit_code())
    for _, options in ipairs { { "--port", "70000" }, { "--sessions", "0" }, { "--tls-cert", "x" }, { "--queue", "-1" } } do
      assert.equal(2, (command.run { "serve", tiny.path(), table.unpack(options) }))
    end
    local code, _, err = command.run { "serve", tiny.path(), "--api-key", "@/nonexistent" }
    assert.equal(1, code)
    assert.matches("nonexistent", err, 1, true)
    code, _, err = command.run { "serve", tiny.path(), "--tls-cert", "Makefile", "--tls-key", "Makefile" }
    assert.equal(1, code)
    assert.matches("Makefile: is not a PEM file", err, 1, true)
  end)
end)
