-- How the server treats connections: wrong requests, limits, clients that leave, are slow or say nothing, its key, its end.
local ane = require "ane"
local core = require "ane.core"
local http = require "support.http"
local tiny = require "support.tiny"

if not http.available then
  describe("the server's protocol", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

local model

setup(function() model = tiny.load() end)
teardown(function() model:close() end)

local open = {}

-- A server that the spec's end closes.
local function serve(opts)
  opts = opts or {}
  opts.port = 0
  local server = assert(ane.serve(model, opts))
  open[#open + 1] = server
  return server
end

after_each(function()
  for _, server in ipairs(open) do server:close() end
  open = {}
end)

-- A completion of n tokens.
local function completion(n, more)
  local body = { prompt = "a", max_tokens = n, temperature = 0, ignore_eos = true }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

-- A request that is sent, on a connection that stays open.
local function start(server, body)
  local c = http.open(server)
  c:send(http.text("POST", "/v1/completions", body))
  return c
end

-- Turns until the server has so many replies.
local function wait_for(server, n)
  local deadline = core.clock() + 120
  repeat
    server:turn(0.01)
    assert.is_true(core.clock() < deadline, "the server has " .. server:stats().replies .. " replies")
  until server:stats().replies == n
end

-- Waits, without turns of the server, until a condition holds.
local function await(condition, what)
  local deadline = core.clock() + 120
  while not condition() do
    assert.is_true(core.clock() < deadline, what)
    os.execute "sleep 0.01"
  end
end

-- Waits until so many requests have come.
local function await_requests(server, n)
  await(function() return server._http:busy() == n end, n .. " requests do not come")
end

-- Waits until the server knows that all clients have left. It computes nothing meanwhile.
local function await_gone(server)
  await(function()
    server._http:look() -- the first look asks whether a client still reads; the answer comes over the socket
    for _, job in ipairs(server._jobs) do
      if not job.call:gone() then return false end
    end
    return true
  end, "the clients do not leave")
end

local function turns(server, n)
  for _ = 1, n do server:turn(0.01) end
end

describe("a wrong request", function()
  it("to an unknown path, by a wrong method or of a wrong type is refused in OpenAI's form", function()
    local server = serve()
    local answer = http.get(server, "/v2/chat")
    assert.equal(404, answer.status)
    assert.equal("not_found", answer.json.error.code)
    answer = http.get(server, "/v1/completions")
    assert.equal(405, answer.status)
    assert.equal("POST", answer.headers.allow)
    answer = http.post(server, "/v1/completions", "{}", { ["Content-Type"] = "text/plain" })
    assert.equal(415, answer.status)
  end)

  it("that is no JSON is told the place, and never the text", function()
    local server = serve()
    for _, body in ipairs { "", "{", '{"prompt": secret}', "[1]", '"text"', '{"prompt":"a","prompt":"b"}', "\255" } do
      local answer = http.post(server, "/v1/completions", body)
      assert.equal(400, answer.status, body)
      assert.equal("invalid_json", answer.json.error.code)
      assert.is_nil(answer.body:find "secret")
    end
    assert.equal(400, http.post(server, "/v1/completions", ("["):rep(100000)).status)
    assert.equal("missing_parameter", http.post(server, "/v1/completions", "{}").json.error.code)
  end)

  it("that may end at two places is refused, and ends its connection", function()
    local server = serve()
    for _, lines in ipairs {
      "Content-Length: 2\r\nContent-Length: 5", "Content-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip",
      "Host: example.org", "X-A : b", "Transfer-Encoding: gzip, chunked",
    } do
      local c = http.open(server)
      c:send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" .. lines .. "\r\n\r\n")
      local answer = c:answer()
      assert.same({ 400, "malformed_request", "close" },
        { answer.status, answer.json and answer.json.error.code, answer.headers.connection }, lines)
      assert.is_not_nil(c:drain())
      c:close()
    end
  end)

  it("that names no host is refused; its target may have scheme and host, and codes", function()
    local server = serve()
    local function ask(text)
      local c = http.open(server)
      c:send(text)
      local answer = c:answer()
      c:close()
      return answer
    end
    for _, version in ipairs { "1.1", "1.2" } do
      local answer = ask("GET /health HTTP/" .. version .. "\r\n\r\n")
      assert.same({ 400, "malformed_request" }, { answer.status, answer.json.error.code })
    end
    assert.equal(200, ask("GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n").status)
    assert.equal(200, ask("GET HTTP://localhost:80/health?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").status)
    assert.equal(200, ask("GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n").status)
    assert.equal(200, http.get(server, "/he%61l%74h").status)
    for _, path in ipairs { "/%00health", "/health%00", "/health%00/x", "/heal%zzth", "/health%", "/health%2" } do
      assert.equal(404, http.get(server, path).status, path)
    end
    assert.equal(404, ask("GET ftp://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n").status)
  end)

  it("that is no HTTP at all ends its connection alone", function()
    local server = serve { receive_time = 0.5 }
    for _, text in ipairs { "\0\1\2\3\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", ("x"):rep(70000) } do
      local c = http.open(server)
      c:send(text)
      assert.is_not_nil(c:drain(), text:sub(1, 10))
      c:close()
    end
    assert.equal(200, http.get(server, "/health").status)
  end)

  it("of a size beyond the limits is refused", function()
    local server = serve { max_body = 2000, max_header = 4096 }
    assert.equal(413, http.post(server, "/v1/completions", completion(1, { prompt = ("a"):rep(3000) })).status)
    -- Without a length, in chunks.
    local c = http.open(server)
    c:send "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ = 1, 5 do c:send("400\r\n" .. ("a"):rep(0x400) .. "\r\n") end
    c:send "0\r\n\r\n"
    assert.equal(413, c:answer().status)
    c:close()
    local answer = http.request(server, "GET", "/health", nil, { ["X-Long"] = ("a"):rep(5000) })
    assert.same({ 431, "headers_too_large" }, { answer.status, answer.json.error.code })
    answer = http.request(server, "GET", "/health", nil, { ["X-Long"] = ("a"):rep(100000) })
    assert.same({ 431, "headers_too_large" }, { answer.status, answer.json.error.code })
    answer = http.request(server, "GET", "/" .. ("a"):rep(60000))
    assert.same({ 431, "headers_too_large" }, { answer.status, answer.json.error.code })
    answer = http.request(server, "GET", "/health", nil, { ["X-Long"] = ("a"):rep(300000) })
    assert.is_true(answer == nil or answer.status == 431)
  end)
end)

describe("a connection", function()
  it("serves several requests, also where they come at once", function()
    local server = serve()
    local c = http.open(server)
    local text = http.text("POST", "/v1/completions", completion(4))
    c:send(text .. http.text("GET", "/health") .. text)
    local first, second, third = c:answer(), c:answer(), c:answer()
    assert.equal(200, first.status)
    assert.same({ status = "ok" }, second.json)
    assert.equal(first.json.choices[1].text, third.json.choices[1].text)
    c:close()
  end)

  it("that closes its sending side gets its answer", function()
    local server = serve()
    local want = http.post(server, "/v1/completions", completion(40)).json.choices[1].text
    local c = start(server, completion(40))
    c:half_close()
    assert.equal(want, c:answer().json.choices[1].text)
    c:close()
    c = start(server, completion(40, { stream = true }))
    c:half_close()
    local events = http.events(c:answer().body)
    assert.equal("[DONE]", events[#events])
    c:close()
  end)

  it("that closes its sending side gets its answer beside others that do", function()
    local server = serve()
    local want = http.post(server, "/v1/completions", completion(20)).json.choices[1].text
    for _, stream in ipairs { false, true } do
      local list = {}
      for i = 1, 8 do
        list[i] = start(server, completion(20, { stream = stream }))
        list[i]:half_close()
      end
      await_requests(server, 8)
      for _, c in ipairs(list) do
        local answer = c:answer()
        local events = stream and http.events(answer.body)
        assert.equal(stream and "[DONE]" or want, stream and events[#events] or answer.json.choices[1].text)
        c:close()
      end
    end
  end)

  it("that sends slowly is closed when its time is over", function()
    local server = serve { receive_time = 0.4 }
    local c = http.open(server)
    local started, closed = core.clock(), false
    while not closed and core.clock() - started < 120 do
      c:send "X"
      c:wait(function() return nil end, 0.05)
      closed = c.closed
    end
    assert.is_true(closed)
    c:close()
  end)

  it("that says nothing is closed too, and others are served meanwhile", function()
    local server = serve { receive_time = 0.5 }
    local silent = http.open(server)
    assert.equal(200, http.post(server, "/v1/completions", completion(3)).status)
    assert.equal("", silent:drain())
    silent:close()
  end)
end)

describe("a client that leaves", function()
  it("in the middle of a request leaves no connection open", function()
    local server = serve { receive_time = 3600 }
    local text = http.text("POST", "/v1/completions", completion(3))
    for round = 1, 3 do
      for i = 1, 20 do
        local c = http.open(server)
        c:send(text:sub(1, round == 1 and 20 or #text - i))
        c:close()
      end
    end
    local deadline = core.clock() + 120
    repeat
      server:turn(0.01)
      assert.is_true(core.clock() < deadline, server:stats().connections .. " connections stay open")
    until server:stats().connections == 0
  end)

  it("ends its reply, streamed or not", function()
    for _, stream in ipairs { false, true } do
      local server = serve()
      local c = start(server, completion(3000, { stream = stream }))
      wait_for(server, 1)
      turns(server, 3)
      c:close()
      local steps = server.pool:stats().steps
      await_gone(server)
      server:turn(0)
      assert.equal(1, server:stats().cancelled)
      assert.equal(0, server:stats().replies)
      assert.is_true(server.pool:stats().steps - steps <= 1)
    end
  end)

  it("ends it while the prompt is read, and while it waits", function()
    local server = serve { sessions = 1, step_tokens = 16 }
    local reading = start(server, completion(5, { prompt = ("word "):rep(150) }))
    local waiting = start(server, completion(5))
    await_requests(server, 2)
    server:turn(0)
    assert.equal(2, server:stats().replies)
    waiting:close()
    reading:close()
    await_gone(server)
    server:turn(0)
    assert.equal(2, server:stats().cancelled)
    assert.equal(0, server.pool:stats().reply_tokens)
    assert.is_true(server.pool:stats().prompt_tokens <= 64)
  end)
end)

describe("a full queue", function()
  it("is answered with 503 and the time to come back", function()
    local server = serve { sessions = 1, queue = 1 }
    local a, b = start(server, completion(200)), start(server, completion(3))
    await_requests(server, 2)
    local c = start(server, completion(3))
    await_requests(server, 3)
    local answer = c:answer()
    assert.equal(503, answer.status)
    assert.equal("queue_full", answer.json.error.code)
    assert.is_true(tonumber(answer.headers["retry-after"]) >= 1)
    assert.equal(1, server:stats().rejected)
    assert.equal(200, a:answer().status)
    assert.equal(200, b:answer().status)
    for _, one in ipairs { a, b, c } do one:close() end
    for field, body in pairs { n = completion(3, { n = 3 }), prompt = completion(3, { prompt = { "a", "b", "c" } }) } do
      local refused = http.post(server, "/v1/completions", body)
      assert.same({ 400, field }, { refused.status, refused.json.error.param })
    end
  end)
end)

describe("who may ask", function()
  it("is who has the key", function()
    local server = serve { api_key = "open sesame" }
    assert.equal(200, http.get(server, "/health").status)
    for _, headers in ipairs { {}, { Authorization = "Bearer wrong" }, { Authorization = "open sesame" }, { ["X-API-Key"] = "open" } } do
      local answer = http.get(server, "/v1/models", headers)
      assert.equal(401, answer.status)
      assert.equal("Bearer", answer.headers["www-authenticate"])
      assert.equal("invalid_api_key", answer.json.error.code)
    end
    assert.equal(200, http.get(server, "/v1/models", { Authorization = "Bearer open sesame" }).status)
    assert.equal(200, http.get(server, "/v1/models", { ["X-API-Key"] = "open sesame" }).status)
    assert.equal(401, http.post(server, "/v1/completions", completion(1)).status)
  end)

  it("is no page of another origin, unless it is named", function()
    local server = serve()
    local own = { Origin = "http://localhost", Host = "localhost" }
    assert.equal(200, http.get(server, "/health", own).status)
    assert.equal(403, http.get(server, "/health", { Origin = "https://example.org" }).status)
    local other = serve { cors = "https://example.org" }
    local answer = http.request(other, "OPTIONS", "/v1/completions", nil, { Origin = "https://example.org" })
    assert.equal(204, answer.status)
    assert.equal("https://example.org", answer.headers["access-control-allow-origin"])
    assert.equal("Origin", answer.headers.vary)
    for _, name in ipairs { "Authorization", "OpenAI-Organization", "X-Stainless-Timeout", "X-Stainless-Helper-Method" } do
      assert.matches(name, answer.headers["access-control-allow-headers"], 1, true)
    end
    assert.equal(403, http.get(other, "/health", { Origin = "https://example.com" }).status)
    other = serve { cors = { "https://example.org", "http://Other.example:8080" } }
    for _, origin in ipairs { "https://example.org", "http://other.example:8080" } do
      assert.equal(origin, http.get(other, "/health", { Origin = origin }).headers["access-control-allow-origin"])
    end
    assert.equal(403, http.get(other, "/health", { Origin = "https://example.com" }).status)
    assert.equal("*", http.get(serve { cors = "*" }, "/health", { Origin = "https://a.example" }).headers["access-control-allow-origin"])
  end)

  it("is no client that names another host", function()
    local server = serve()
    local c = http.open(server)
    c:send "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    assert.equal(403, c:answer().status)
    c:close()
  end)

  it("is no client that names another host, also over IPv6", function()
    local socket = require "socket"
    local made, server = pcall(serve, { host = "::1" })
    if not made then return pending "needs IPv6" end
    for host, status in pairs { ["evil.example"] = 403, ["[::1]:" .. server.port] = 200, localhost = 200 } do
      local tcp = assert(socket.tcp6())
      assert(tcp:connect("::1", server.port))
      assert(tcp:send("GET /v1/models HTTP/1.1\r\nConnection: close\r\nHost: " .. host .. "\r\n\r\n"))
      tcp:settimeout(0)
      local text, deadline = "", core.clock() + 60
      repeat
        server:turn(0.01)
        local data, why, partial = tcp:receive(65536)
        text = text .. (data or partial or "")
      until why == "closed" or core.clock() > deadline
      assert.equal(status, tonumber(text:match "^HTTP/1.1 (%d+)"), host)
      tcp:close()
    end
  end)
end)

describe("the log", function()
  it("holds no prompts and no keys", function()
    local lines = {}
    local server = serve { api_key = "sesame", log = function(line) lines[#lines + 1] = line end }
    http.post(server, "/v1/completions", completion(2, { prompt = "my secret" }), { Authorization = "Bearer sesame" })
    http.get(server, "/sesame/secret")
    http.get(server, "/v1/completions")
    assert.equal(3, #lines)
    assert.matches("^POST /v1/completions 200 [%d.]+ s$", lines[1])
    assert.matches("^GET %(unknown path%) 404 [%d.]+ s$", lines[2])
    assert.matches("^GET /v1/completions 405 [%d.]+ s$", lines[3])
  end)

  it("holds methods that are words, not what else a client sends as one", function()
    local lines = {}
    local server = serve { log = function(line) lines[#lines + 1] = line end }
    for _, method in ipairs { "\27[2J\27]0;title\7", ("A"):rep(5000), "M-SEARCH" } do
      local c = http.open(server)
      c:send(method .. " /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
      assert.equal(405, c:answer().status)
      c:close()
    end
    assert.matches("^%(unknown method%) /health 405 [%d.]+ s$", lines[1])
    assert.matches("^%(unknown method%) /health 405 [%d.]+ s$", lines[2])
    assert.matches("^M%-SEARCH /health 405 [%d.]+ s$", lines[3])
  end)
end)

describe("a fault of the server", function()
  it("in the answer to one request leaves the others alone", function()
    local sampling, said = require "ane.serve.sampling", {}
    local server <close> = assert(ane.serve(model, { port = 0, complain = function(text) said[#said + 1] = text end }))
    local reason = sampling.reason
    local _ <close> = setmetatable({}, { __close = function() sampling.reason = reason end })
    sampling.reason = function(result) return reason(#result.ids == 2 and error "broken" or result) end
    for _, stream in ipairs { false, true } do
      local other = http.open(server)
      other:send(http.text("POST", "/v1/completions", { prompt = { 4 }, max_tokens = 20, ignore_eos = true }))
      local answer = http.post(server, "/v1/completions", { prompt = { 3 }, max_tokens = 2, ignore_eos = true, stream = stream })
      if not stream then assert.equal(500, answer.status) end
      assert.matches("internal server error", answer.body)
      assert.equal(200, other:answer().status)
      other:close()
    end
    assert.equal(2, #said)
    assert.matches("^a fault while answering: .*broken", said[1])
    assert.equal(0, server:stats().replies)
  end)
end)

describe("an interrupt", function()
  -- Turns of a server that is interrupted in the function owner[name], if when(its arguments), after a request.
  local function interrupted(server, owner, name, when)
    local before = owner[name]
    owner[name] = function(...)
      if not when or when(...) then error("x.lua:1: interrupted!", 0) end
      return before(...)
    end
    local c = start(server, completion(4))
    local deadline = core.clock() + 60
    local ok, raised
    repeat ok, raised = pcall(server.turn, server, 0.01) until not ok or core.clock() > deadline
    owner[name] = before
    c:close()
    return ok, raised
  end

  it("of Ctrl-C ends the turn, wherever it comes", function()
    for _, place in ipairs {
      function(server) return server.pool, "step" end, function(server) return server.pool, "add" end,
      function() return require "ane.serve.sampling", "check_stream" end,
      function() return require "ane.util.schema", "argument", function(_, _, what) return what:find "^field " end end,
    } do
      local server <close> = assert(ane.serve(model, { port = 0 }))
      local ok, raised = interrupted(server, place(server))
      assert.is_false(ok)
      assert.equal("x.lua:1: interrupted!", raised)
    end
  end)
end)

describe("the end", function()
  it("lets replies end and takes no new requests", function()
    local server = serve()
    local want = http.post(server, "/v1/completions", completion(60)).json.choices[1].text
    local c, kept = start(server, completion(60)), http.open(server)
    wait_for(server, 1)
    server:stop()
    kept:send(http.text("POST", "/v1/completions", completion(2)))
    assert.is_nil(select(2, pcall(http.open, server)).tcp)
    local more = true
    while more do more = server:turn(0.01) end
    assert.equal(want, c:answer().json.choices[1].text)
    local answer = kept:answer()
    assert.is_true(answer == nil or answer.status == 503)
    c:close()
    kept:close()
  end)

  it("does not wait for requests that have not come in", function()
    local server = serve()
    local body, head = http.open(server), http.open(server)
    body:send "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    head:send "POST /v1/completions HTTP/1.1\r\nHost: loc"
    local started = core.clock()
    while server:stats().connections < 2 and core.clock() - started < 60 do server:turn(0.01) end
    for _ = 1, 20 do server:turn(0.01) end
    server:stop()
    local n = 0
    while server:turn(0.01) do n = n + 1 end
    assert.is_true(n < 5, n .. " turns")
    body:close()
    head:close()
  end)

  it("cuts replies off when the grace is over", function()
    local server = serve { grace = 0.05 }
    local c = start(server, completion(3000))
    wait_for(server, 1)
    server:stop()
    local more, started = true, core.clock()
    while more and core.clock() - started < 120 do more = server:turn(0.01) end
    assert.is_false(more)
    server:close()
    c:drain()
    c:close()
  end)

  it("answers clients whose replies it cuts off", function()
    local lines = {}
    local server = serve { grace = 0, log = function(line) lines[#lines + 1] = line end }
    local whole, stream = start(server, completion(3000)), start(server, completion(3000, { stream = true }))
    wait_for(server, 2)
    server:stop()
    assert.is_false(server:run())
    assert.equal(503, whole:answer().status)
    assert.matches('data: {"error":.*the server is stopping', stream:answer().body) -- its end, not that of the idle connection
    for _, line in ipairs(lines) do assert.matches("POST /v1/completions 503", line) end
    assert.equal(2, #lines)
    whole:close()
    stream:close()
  end)

  it("closes with replies in progress, and refuses to be used afterwards", function()
    local server = serve()
    local c = start(server, completion(3000, { stream = true }))
    wait_for(server, 1)
    server:close()
    server:close()
    c.server = nil
    assert.is_not_nil(c:drain())
    c:close()
    assert.has_error(function() server:turn() end, "server is closed")
    assert.equal("server (closed)", tostring(server))
  end)
end)

describe("ane.serve", function()
  it("refuses what it cannot do", function()
    assert.has_error(function() ane.serve(model, { prot = 1 }) end)
    assert.has_error(function() ane.serve(model, { cert = "x" }) end)
    for _, key in ipairs { "", "a\nb", "a\0b", ("x"):rep(4097) } do
      assert.has_error(function() ane.serve(model, { api_key = key }) end)
    end
    assert.has_error(function() ane.serve(model, { cors = { "https://a.example", "b" } }) end)
    local server = serve()
    local none, message, code = ane.serve(model, { port = server.port })
    assert.is_nil(none)
    assert.equal("io", code)
    assert.matches("cannot listen on 127.0.0.1 port " .. server.port, message, 1, true)
    none, message = ane.serve(model, { port = 0, cert = "no", key = "no" })
    assert.is_nil(none)
    assert.is_string(message)
  end)
end)
