-- Tokens a second of the pool alone, of `ane serve` and of its streams, in turns within one process.
-- usage: lua5.4 bench/serve.lua MODEL [turns] [tokens] [clients ...]
-- Each turn computes the same replies three times: as requests of the pool, and by bench/serve_load.py over HTTP, whole and streamed.
-- Prompts are those of serve_load.py. Medians of the turns' ratios are printed; "cpu" is the processor time of this process, per reply
-- token, of all threads.

local ane = require "ane"
local core = require "ane.core"
local median = require("ane.evaluate.quantiles").median

local path = arg[1] or error("usage: lua5.4 bench/serve.lua MODEL [turns] [tokens] [clients ...]", 0)
local turns, tokens = tonumber(arg[2] or 5), tonumber(arg[3] or 64)
local counts = { table.unpack(arg, 4) }
if #counts == 0 then counts = { "1", "8", "32" } end

-- Requests of each client: a few clients make more of them, so that the start of the client program counts little.
local function requests(clients) return math.max(2, 16 // clients) end

local model <close> = assert(ane.load(path))

-- Requests of the pool as the clients make them: each begins when the one before it has ended.
local function pool_alone(clients)
  local pool <close> = assert(model:pool { sessions = 32 })
  local running = {}
  local started, cpu = core.clock(), os.clock()
  local function ask(n, left)
    local prompt = ("Story number %d of teller %d: once upon a time there was a"):format(left - 1, n - 1)
    running[n] = { left = left - 1, request = assert(pool:add(prompt, { max_tokens = tokens, temperature = 0, ignore_eos = true })) }
  end
  for n = 1, clients do ask(n, requests(clients)) end
  while next(running) do
    pool:step()
    for n, one in pairs(running) do
      if one.request.done and one.left > 0 then ask(n, one.left) elseif one.request.done then running[n] = nil end
    end
  end
  local all = clients * requests(clients) * tokens
  return all / (core.clock() - started), (os.clock() - cpu) / all
end

-- The same by HTTP, from another process.
local function served(clients, stream)
  local server <close> = assert(ane.serve(model, { port = 0, sessions = 32, queue = 64 }))
  local load = "python3 bench/serve_load.py http://127.0.0.1:%d --clients %d --requests %d --tokens %d --ignore-eos%s"
  local pipe = assert(io.popen(load:format(server.port, clients, requests(clients), tokens, stream and " --stream" or "")))
  while server:stats().connections == 0 do server:turn(0.01) end
  local cpu = os.clock()
  while server:stats().connections > 0 do server:turn(0.01) end
  cpu = os.clock() - cpu
  local rate = tonumber(pipe:read("a"):match ": ([%d.]+)}")
  pipe:close()
  return rate, cpu / (clients * requests(clients) * tokens)
end

for _, count in ipairs(counts) do
  local clients = tonumber(count)
  local pool, whole, stream, pool_cpu, whole_cpu, stream_cpu, whole_ratio, stream_ratio = {}, {}, {}, {}, {}, {}, {}, {}
  for i = 1, turns do
    pool[i], pool_cpu[i] = pool_alone(clients)
    whole[i], whole_cpu[i] = served(clients, false)
    stream[i], stream_cpu[i] = served(clients, true)
    whole_ratio[i], stream_ratio[i] = whole[i] / pool[i], stream[i] / pool[i]
  end
  print(("%2d clients: pool %.1f tokens/s, served %.1f (ratio %.3f), streamed %.1f (ratio %.3f); cpu us/token %.0f, %.0f, %.0f"):format(
    clients, median(pool), median(whole), median(whole_ratio), median(stream), median(stream_ratio), median(pool_cpu) * 1e6,
    median(whole_cpu) * 1e6, median(stream_cpu) * 1e6))
end
