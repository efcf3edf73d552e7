--- Times requests that share a prefix, on ane's pool or on llama.cpp. A turn is one process.
--
--   lua5.4 bench/shared_prefix.lua MODEL.gguf [--llama PYTHON] [-r TURNS] [-n REQUESTS] [-p PREFIX] [-s OWN] [-g REPLY] [-t THREADS]
--
-- Each request has a prompt of PREFIX shared token ids and OWN of its own, and a greedy reply of REPLY tokens; defaults: 100, 1000,
-- 16 and 32, with 3 turns and 2 threads. PYTHON has llama-cpp-python, which computes one request after the other and begins each
-- after the longest prefix that it shares with the previous one. Programs take turns. Printed are seconds for all requests, the medians
-- over the turns and the median of the ratios (below 1: ane is faster).

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/?.so;" .. package.cpath

local ane = require "ane"
local core = require "ane.core"
local median = require("ane.evaluate.quantiles").median

local usage = "usage: lua5.4 bench/shared_prefix.lua MODEL [--llama PYTHON] [-r N] [-n N] [-p N] [-s N] [-g N] [-t N]\n"
local path, opts = arg[1], { ["-r"] = 3, ["-n"] = 100, ["-p"] = 1000, ["-s"] = 16, ["-g"] = 32, ["-t"] = 2 }
for i = 2, #arg, 2 do
  local value = arg[i] == "--llama" and arg[i + 1] or math.tointeger(tonumber(arg[i + 1]))
  if not value or not (opts[arg[i]] or arg[i] == "--llama" or arg[i] == "--turn") then path = nil end
  opts[arg[i]] = value
end
if not path then
  io.stderr:write(usage)
  os.exit(2)
end

-- n token ids; the same in both programs.
local function ids(seed, n)
  local out = {}
  for i = 1, n do out[i] = 100 + (i * 7919 + seed * 104729) % 20011 end
  return out
end

-- One turn of ane: seconds.
local function turn()
  local model = assert(ane.load(path, { threads = opts["-t"], context = opts["-p"] + opts["-s"] + opts["-g"] }))
  local prompts = {}
  for i = 1, opts["-n"] do
    prompts[i] = table.move(ids(100 + i, opts["-s"]), 1, opts["-s"], opts["-p"] + 1, ids(9, opts["-p"]))
  end
  assert(model:generate(ids(5, 8), { max_tokens = 1 }))
  local from = core.clock()
  assert(model:generate_many(prompts, { max_tokens = opts["-g"], ignore_eos = true, temperature = 0 }))
  return core.clock() - from
end

-- The same for llama-cpp-python; prints seconds.
local PEER = [[
import sys, time
from llama_cpp import Llama
path, (n, p, s, g, t) = sys.argv[1], map(int, sys.argv[2:])
model = Llama(path, n_ctx=p + s + g, n_threads=t, n_threads_batch=t, n_batch=512, verbose=False)
def ids(seed, n): return [100 + (i * 7919 + seed * 104729) % 20011 for i in range(1, n + 1)]
def reply(prompt, most):
    for i, _ in enumerate(model.generate(prompt, temp=0.0, top_k=1)):
        if i + 1 == most: break
reply(ids(5, 8), 1)
model.reset()
start = time.time()
for i in range(1, n + 1): reply(ids(9, p) + ids(100 + i, s), g)
print(time.time() - start)
]]

local function run(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  pipe:close()
  return assert(tonumber(text:match "([%d.]+)%s*$"), "no time was printed: " .. text)
end

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function numbers(names)
  local out = {}
  for i, name in ipairs(names) do out[i] = opts[name] end
  return out
end

if opts["--turn"] then
  print(turn())
  return
end
local own = ("lua5.4 bench/shared_prefix.lua %s --turn 1 -n %d -p %d -s %d -g %d -t %d"):format(quoted(path),
  table.unpack(numbers { "-n", "-p", "-s", "-g", "-t" }))
local peer = opts["--llama"] and ("%s -c %s %s %d %d %d %d %d 2>/dev/null"):format(quoted(opts["--llama"]), quoted(PEER), quoted(path),
  table.unpack(numbers { "-n", "-p", "-s", "-g", "-t" }))
local ours, theirs, ratios = {}, {}, {}
for i = 1, opts["-r"] do
  ours[i] = run(own)
  if peer then
    theirs[i] = run(peer)
    ratios[i] = ours[i] / theirs[i]
  end
end
print(("ane        %8.2f s"):format(median(ours)))
if peer then print(("llama.cpp  %8.2f s\nratio      %8.3f"):format(median(theirs), median(ratios))) end
