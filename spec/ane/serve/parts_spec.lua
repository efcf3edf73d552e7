-- Requests that are computed in parts: embeddings, scores and labels of much text, while others are answered; and replies whose
-- clients read slowly.
local ane = require "ane"
local core = require "ane.core"
local filter = require "support.filter"
local http = require "support.http"
local tiny = require "support.tiny"

if not http.available then
  describe("requests in parts", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

-- Seconds after which a spec gives up.
local PATIENCE = 120

-- Waits, without turns of the server, until a condition holds.
local function await(condition, what)
  local deadline = core.clock() + PATIENCE
  while not condition() do
    assert.is_true(core.clock() < deadline, what)
    os.execute "sleep 0.01"
  end
end

-- Turns the server until a condition holds.
local function turn_until(server, condition, what)
  local deadline = core.clock() + PATIENCE
  while not condition() do
    assert.is_true(core.clock() < deadline, what)
    server:turn(0.01)
  end
end

-- A request on a connection that does not turn the server.
local function send(server, method, path, body)
  local c = http.open(server.port)
  c:send(http.text(method, path, body))
  return c
end

local WORDS = ("some words of a text "):rep(5)

-- Path of a model, its endpoint, a request of many runs, and the fields that its answer has.
local KINDS = {
  embeddings = { "spec/fixtures/hf/bert", "/v1/embeddings", function()
    local list = {}
    for i = 1, 64 do list[i] = WORDS .. i end
    return { input = list }
  end, "data" },
  scores = { "spec/fixtures/hf/cross_encoder", "/v1/rerank", function()
    local list = {}
    for i = 1, 80 do list[i] = WORDS .. i end
    return { query = "words", documents = list }
  end, "results" },
  labels = { "filter", "/redact", function() return { input = WORDS:rep(60) } end, "text" },
}

describe("much text", function()
  for name, kind in pairs(KINDS) do
    it("leaves turns to other requests: " .. name, function()
      local model <close> = kind[1] == "filter" and filter.load { context = 256 } or assert(ane.load(kind[1]))
      local server <close> = assert(ane.serve(model, { port = 0 }))
      local want = http.post(server, kind[2], kind[3]()).json[kind[4]]
      local c = send(server, "POST", kind[2], kind[3]())
      local health = send(server, "GET", "/health")
      await(function() return server._http:busy() == 2 end, "the requests do not come")
      server:turn(0)
      assert.equal(1, server:stats().tasks)
      assert.equal(200, health:answer(nil, PATIENCE).status)
      turn_until(server, function() return server:stats().tasks == 0 end, "the task does not end")
      local got = c:answer(nil, PATIENCE).json[kind[4]]
      assert.same(want, got)
      health:close()
      c:close()
    end)
  end

  it("ends when its client leaves", function()
    local model <close> = assert(ane.load(KINDS.embeddings[1]))
    local server <close> = assert(ane.serve(model, { port = 0, sessions = 1, queue = 0 }))
    local c = send(server, "POST", "/v1/embeddings", KINDS.embeddings[3]())
    await(function() return server._http:busy() == 1 end, "the request does not come")
    server:turn(0)
    local late = send(server, "POST", "/v1/embeddings", { input = "x" })
    await(function() return server._http:busy() == 2 end, "the second request does not come")
    server:turn(0)
    assert.equal(503, late:answer(nil, PATIENCE).status)
    late:close()
    c.tcp:setoption("linger", { on = true, timeout = 0 }) -- a reset, which the server sees at once
    c:close()
    turn_until(server, function() return server:stats().tasks == 0 end, "the task does not end")
    assert.equal(1, server:stats().rejected)
  end)

  it("tells of its progress in Lua", function()
    local model <close> = assert(ane.load(KINDS.embeddings[1]))
    local list, told = KINDS.embeddings[3]().input, {}
    assert(model:embed(list, { progress = function(stage, done, total) told[#told + 1] = { stage, done, total } end }))
    assert.is_true(#told > 1)
    assert.same({ "embed", #list, #list }, told[#told])
  end)
end)

describe("a stream", function()
  local BODY = { prompt = "a", max_tokens = 40, temperature = 0, ignore_eos = true, stream = true }

  -- The texts of a stream's events.
  local function texts(body)
    local list = {}
    for _, event in ipairs(http.events(body)) do list[#list + 1] = event == "[DONE]" and event or event.choices[1].text end
    return list
  end

  it("is the same on every kind of connection", function()
    local model <close> = tiny.load()
    local server <close> = assert(ane.serve(model, { port = 0 }))
    local want = texts(http.post(server, "/v1/completions", BODY).body)
    assert.equal("[DONE]", want[#want])
    for _, connection in ipairs { "keep-alive", "Keep-Alive", "close", "keep-alive, Upgrade" } do
      local answer = http.post(server, "/v1/completions", BODY, { Connection = connection })
      assert.same(want, texts(answer.body), connection)
    end
    local old = http.open(server)
    old:send((http.text("POST", "/v1/completions", BODY):gsub("HTTP/1.1", "HTTP/1.0", 1)))
    local all = assert(old:drain(PATIENCE))
    assert.is_nil(all:lower():match "transfer%-encoding")
    assert.same(want, texts(all:match "\r\n\r\n(.*)"))
    local same = http.open(server)
    for _ = 1, 3 do
      same:send(http.text("POST", "/v1/completions", BODY))
      assert.same(want, texts(same:answer("POST", PATIENCE).body))
    end
    same:close()
  end)

  it("sends what one step adds at once", function()
    local model <close> = tiny.load()
    local server <close> = assert(ane.serve(model, { port = 0 }))
    local body = { prompt = "a", max_tokens = 9, temperature = 0, ignore_eos = true, stream = true }
    body.stream_options = { include_usage = true }
    local c = http.open(server)
    c:send(http.text("POST", "/v1/completions", body))
    local all = c:wait(function(buffer) return buffer:find("\r\n0\r\n\r\n", 1, true) and buffer end, PATIENCE)
    c:close()
    -- The last chunk ends with the last text, the reason, the usage and the end. Texts of earlier steps come before them
    -- where the thread that writes was late.
    local last = all:match "\r\n%x+\r\n([^\r]*)\r\n0\r\n\r\n$"
    local events = http.events(last)
    local n = #events
    assert.is_true(n >= 4, last)
    assert.equal("string", type(events[n - 3].choices[1].text))
    assert.not_equal("length", events[n - 3].choices[1].finish_reason)
    assert.equal("length", events[n - 2].choices[1].finish_reason)
    assert.equal(9, events[n - 1].usage.completion_tokens)
    assert.equal("[DONE]", events[n])
  end)

  it("has the events that an encoder of whole values gives", function()
    local frame = require "ane.serve.frame"
    local model <close> = tiny.load()
    local server <close> = assert(ane.serve(model, { port = 0 }))
    local bodies = {
      ["/v1/completions"] = { prompt = "a", n = 2, seed = 3, max_tokens = 20, stream = true, stream_options = { include_usage = true } },
      ["/v1/chat/completions"] = { messages = { { role = "user", content = "a" } }, n = 2, seed = 3, max_tokens = 20, stream = true },
    }
    -- The events of each choice; how those of two mix depends on what the pool holds already.
    local function events(path)
      local list = { [0] = {}, [1] = {} }
      for _, event in ipairs(http.events(http.post(server, path, bodies[path]).body)) do
        local choice = event ~= "[DONE]" and event.choices and event.choices[1]
        if choice then
          event.id, event.created = nil, nil
          table.insert(list[choice.index], event)
        end
      end
      return list
    end
    for path in pairs(bodies) do
      local got, new = events(path), frame.new
      frame.new = function(build) return function(text) return core.json_encode(build(text)) end end
      local ok, want = pcall(events, path)
      frame.new = new
      assert.is_true(ok, want)
      assert.is_true(#got[0] > 10 and #got[1] > 10)
      assert.same(want, got, path)
    end
  end)
end)

describe("a client that reads slowly", function()
  local BODY = { prompt = "a", max_tokens = 500, temperature = 0, ignore_eos = true, stream = true, logprobs = 20 }

  it("does not stop the others, and gets its whole reply", function()
    local model <close> = tiny.load()
    local server <close> = assert(ane.serve(model, { port = 0, sessions = 1, queue = 4 }))
    local want = http.events(http.post(server, "/v1/completions", BODY).body)
    local text = ""
    for i = 1, #want - 1 do text = text .. want[i].choices[1].text end
    local slow = send(server, "POST", "/v1/completions", BODY)
    turn_until(server, function() return server:stats().replies == 1 end, "the request does not come")
    turn_until(server, function() return server:stats().replies == 0 end, "the reply is not computed")
    -- Its session is free, and whatever the client has not read waits.
    assert.equal(200, http.post(server, "/v1/completions", { prompt = "a", max_tokens = 3 }).status)
    slow.server = server
    local got, tokens = "", 0
    for _, event in ipairs(http.events(slow:answer(nil, PATIENCE).body)) do
      if event ~= "[DONE]" then
        got = got .. event.choices[1].text
        if event.choices[1].logprobs ~= ane.null then tokens = tokens + #event.choices[1].logprobs.tokens end
      end
    end
    assert.equal(text, got)
    assert.equal(BODY.max_tokens, tokens)
    slow:close()
  end)

  it("is left when it reads nothing for the time that is given", function()
    local model <close> = tiny.load()
    local server <close> = assert(ane.serve(model, { port = 0, receive_time = 0.5 }))
    -- More than the buffers of the system and of the server hold.
    local body = { prompt = "a", max_tokens = 500, temperature = 0, ignore_eos = true, stream = true, logprobs = 20, n = 16 }
    local slow = send(server, "POST", "/v1/completions", body)
    turn_until(server, function() return server:stats().replies > 0 end, "the request does not come")
    -- The reply counts as cancelled, or as given where its whole rest was waiting in the connection.
    turn_until(server, function()
      local stats = server:stats()
      return stats.connections == 0 and stats.replies == 0
    end, "the connection is not closed")
    slow:close()
  end)
end)
