-- The HTTP server below ane.serve: what becomes of a connection when the server has no memory, or no response.
local core = require "ane.core"
local testing = core.testing
local found, socket = pcall(require, "socket")

if not (found and core.http_available()) then
  describe("the HTTP server", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

local REQUEST = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

local function connect(server)
  local tcp = assert(socket.tcp())
  assert(tcp:connect("127.0.0.1", server:port()))
  tcp:settimeout(30)
  return tcp
end

local function next_exchange(server)
  for _ = 1, 3000 do
    local exchange = server:take()
    if exchange then return exchange end
    server:wait(0.01)
  end
end

describe("the HTTP server", function()
  it("closes the connection of an exchange whose response is refused", function()
    local server <close> = assert(core.http { port = 0 })
    local tcp = connect(server)
    assert(tcp:send(REQUEST))
    local exchange = assert(next_exchange(server))
    assert.is_nil(exchange:reply(200, { ["Transfer-Encoding"] = "gzip" }, "x")) -- libmicrohttpd knows only chunked
    exchange:close()
    assert.equal("closed", (select(2, tcp:receive(1))))
    tcp:close()
  end)

  it("closes a connection that it has no memory for, and serves the next", function()
    local server <close> = assert(core.http { port = 0 })
    testing.alloc_fail_after(0) -- the next allocation is that of the connection
    local tcp = connect(server)
    assert(tcp:send(REQUEST))
    local _, why = tcp:receive(1)
    testing.alloc_fail_after(-1)
    assert.equal("closed", why)
    tcp:close()
    tcp = connect(server)
    assert(tcp:send(REQUEST))
    local exchange = assert(next_exchange(server))
    assert(exchange:reply(200, {}, "x"))
    exchange:close()
    assert.matches("^HTTP/1.1 200", (assert(tcp:receive "*l")))
    tcp:close()
  end)
end)
