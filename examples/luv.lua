-- Streams replies from an event loop that also does other work. Each line received over TCP is a prompt, and its reply is sent
-- back as it is made. Each turn of the loop computes one step of a pool.
-- Usage: lua5.4 examples/luv.lua MODEL [PORT], then: echo "Once upon a time" | nc 127.0.0.1 PORT
-- Needs luv (Debian: lua-luv).

if #arg < 1 then
  io.stderr:write "usage: lua5.4 examples/luv.lua MODEL [PORT]\n"
  os.exit(2)
end

local ane = require "ane"
local uv = require "luv"

local HELD = 1 << 16 -- bytes that may wait for a slow reader; a reply pauses when it has more

local clients, turn = {}, nil
local turns = assert(uv.new_idle()) -- calls back in each turn of the loop
local model <close> = assert(ane.load(arg[1]))
local pool <close> = assert(model:pool { sessions = 8, step_tokens = 64, on_work = function() turns:start(turn) end })

local function leave(client)
  if client.request then client.request:close() end
  clients[client] = nil
  if not client.stream:is_closing() then client.stream:close() end
end

-- Begins the reply to a client's next line. A client that sends no more is disconnected after its last reply.
local function begin(client)
  if client.request then return end
  local line, rest = client.text:match "^%s*([^\n]+)\n(.*)$"
  if line then
    client.text = rest
    client.request = assert(pool:add(line, { max_tokens = 64, temperature = 0.7 }))
  elseif client.silent then
    client.stream:shutdown(function() leave(client) end)
  end
end

local function write(client, text)
  client.stream:write(text, function(failed)
    if failed then leave(client) end -- disconnected: its reply ends too
  end)
end

-- Sends the ready part of a client's reply.
local function send(client)
  while client.request and client.stream:get_write_queue_size() < HELD do
    local piece = client.request:poll()
    if piece then
      write(client, piece)
    elseif client.request.done then
      write(client, "\n")
      client.request = nil
      begin(client)
    else
      return
    end
  end
end

function turn()
  if not pool:step() then turns:stop() end -- on_work starts it again
  for client in pairs(clients) do send(client) end
end

local server = uv.new_tcp()
assert(server:bind("127.0.0.1", tonumber(arg[2]) or 0))
assert(server:listen(64, function()
  local client = { stream = uv.new_tcp(), text = "" }
  server:accept(client.stream)
  clients[client] = true
  client.stream:read_start(function(failed, bytes)
    if failed or #client.text > 10000 then return leave(client) end
    client.silent = bytes == nil
    client.text = client.text .. (bytes or "\n")
    begin(client)
  end)
end))
print("listening on port " .. server:getsockname().port)
io.stdout:flush()

-- The rest of the program: here a clock, and shutdown on Ctrl-C.
local clock, stop, broken = uv.new_timer(), uv.new_signal(), uv.new_signal()
clock:start(1000, 1000, function()
  local stats = pool:stats()
  io.stderr:write(("%d replies, %d tokens so far\n"):format(stats.running, stats.reply_tokens))
end)
broken:start("sigpipe", function() end) -- without this, writing to a disconnected client would end the program
stop:start("sigint", function() uv.stop() end)
uv.run()
