--- A client for specs of the server: raw connections and whole requests over real sockets, in the server's own process.
-- Needs lua-socket. While a client waits, the server takes its turns.
-- Usage: `local answer = http.post(server, "/v1/completions", { prompt = "a" }); print(answer.status, answer.json.choices[1].text)`

local core = require "ane.core"
local ok, socket = pcall(require, "socket")

local M = { available = ok and core.http_available() }

local Connection = {}
Connection.__index = Connection

-- Seconds that a client waits before the spec fails.
local PATIENCE = 120

--- Connects.
-- @param server of ane.serve; or a port, whose server is another process
function M.open(server)
  local tcp = assert(socket.tcp())
  local port = type(server) == "number" and server or server.port
  assert(tcp:connect("127.0.0.1", port))
  tcp:settimeout(0)
  return setmetatable({ tcp = tcp, server = type(server) ~= "number" and server or nil, buffer = "", closed = false }, Connection)
end

-- Lets the server work.
local function turn(self)
  if self.server then self.server:turn(0.002) else socket.select({ self.tcp }, nil, 0.01) end
end

function Connection:send(text)
  local at = 1
  local deadline = core.clock() + PATIENCE
  while at <= #text do
    local last, why, partial = self.tcp:send(text, at)
    at = (last or partial or at - 1) + 1
    if why == "closed" then return nil, why end
    if at <= #text then
      turn(self)
      if core.clock() > deadline then return nil, "timeout" end
    end
  end
  return true
end

-- Takes what has come.
local function pull(self)
  local data, why, partial = self.tcp:receive(65536)
  self.buffer = self.buffer .. (data or partial or "")
  if why == "closed" then self.closed = true end
end

--- Waits until a condition holds, the server has closed, or `seconds` are over.
-- @param done function(buffer) -> what is returned when it is true
function Connection:wait(done, seconds)
  local deadline = core.clock() + (seconds or PATIENCE)
  while true do
    pull(self)
    local result = done(self.buffer)
    if result or self.closed or core.clock() > deadline then return result end
    turn(self)
  end
end

--- Waits until the server closes the connection.
-- @return everything it sent; nil where it does not close in time
function Connection:drain(seconds)
  self:wait(function() return self.closed end, seconds)
  return self.closed and self.buffer or nil
end

-- A chunked body from `at` on: its text and the position after it; nil where it is not complete.
local function chunks(buffer, at)
  local parts = {}
  while true do
    local size, start = buffer:match("^(%x+)[^\r\n]*\r\n()", at)
    if not size then return nil end
    local n = tonumber(size, 16)
    if #buffer < start + n + 1 then return nil end
    if n == 0 then return table.concat(parts), start + 2 end
    parts[#parts + 1] = buffer:sub(start, start + n - 1)
    at = start + n + 2
  end
end

-- The first answer of a buffer, and the rest; nil where it is not complete.
local function parse(buffer, closed, method)
  local head, start = buffer:match "^(HTTP/1%.1 .-\r\n)\r\n()"
  if not head then return nil end
  local status = tonumber(head:match "^HTTP/1%.1 (%d+)")
  if status == 100 then return parse(buffer:sub(start), closed, method) end
  local headers = {}
  for name, value in head:gmatch "([%w-]+): ([^\r\n]*)\r\n" do headers[name:lower()] = value end
  local body, last
  if headers["transfer-encoding"] == "chunked" then
    body, last = chunks(buffer, start)
    if not body then return nil end
  else
    local n = method == "HEAD" and 0 or tonumber(headers["content-length"] or 0)
    if #buffer < start + n - 1 then return nil end
    body, last = buffer:sub(start, start + n - 1), start + n
  end
  local json = (headers["content-type"] or ""):match "json" and core.json_decode(body) or nil
  return { status = status, headers = headers, body = body, json = json }, buffer:sub(last)
end

--- The next answer on the connection; nil where the server closes before.
function Connection:answer(method, seconds)
  local answer, rest
  self:wait(function(buffer)
    answer, rest = parse(buffer, self.closed, method)
    return answer
  end, seconds)
  if answer then self.buffer = rest end
  return answer
end

function Connection:close() self.tcp:close() end

--- Closes the sending side only.
function Connection:half_close() self.tcp:shutdown "send" end

--- The text of a request.
function M.text(method, path, body, headers)
  local lines = { ("%s %s HTTP/1.1"):format(method, path) }
  if not (headers and headers.Host) then lines[2] = "Host: localhost" end
  if type(body) == "table" then body = core.json_encode(body) end
  if body then
    lines[#lines + 1] = "Content-Length: " .. #body
    if not (headers and headers["Content-Type"]) then lines[#lines + 1] = "Content-Type: application/json" end
  end
  for name, value in pairs(headers or {}) do lines[#lines + 1] = name .. ": " .. value end
  return table.concat(lines, "\r\n") .. "\r\n\r\n" .. (body or "")
end

--- A whole request on a connection of its own.
-- @return answer: status, headers (lower case), body, json; nil where the server closed
function M.request(server, method, path, body, headers)
  local c = M.open(server)
  c:send(M.text(method, path, body, headers))
  local answer = c:answer(method)
  c:close()
  return answer
end

function M.get(server, path, headers) return M.request(server, "GET", path, nil, headers) end

function M.post(server, path, body, headers) return M.request(server, "POST", path, body, headers) end

--- The values of an event stream; the last is the text "[DONE]" where it ends so.
function M.events(body)
  local list = {}
  for data in body:gmatch "data: ([^\n]*)\n" do list[#list + 1] = data == "[DONE]" and data or core.json_decode(data) end
  return list
end

return M
