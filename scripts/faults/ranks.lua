--- Sweeps n over the calls of each kind that one rank of an MPI program makes, while two ranks load a model, generate and leave. Each run
-- is an mpirun of its own. A rank that fails must give a message and a code, and the other rank must end too. No rank may die by a signal
-- or wait for ever. If rank 0 has a reply, it must be the right one.
-- usage: faults scripts/faults/ranks.lua [--sample N] [KIND ...]        (needs mpirun and build/<config>/ane/mpi.so: make mpi)
-- Only calls of ane's modules and of Lua fail, because MPI libraries may end the process when there is no memory.

local faults = _G.faults -- of scripts/faults/driver.c
local build = os.getenv "ANE_BUILD" or "build/faults"
package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
package.cpath = "./" .. build .. "/?.so;" .. package.cpath

local MODEL = "spec/fixtures/gguf/llama-q8_0.gguf"
local KINDS = { "alloc", "lua", "map", "open", "read", "write", "thread", "interrupt" }
local PARALLEL = { "pipeline", "tensor" }
local SECONDS = 60 -- after which a run counts as hanging

-- ---- A rank ---------------------------------------------------------------------------------------------------------

-- On rank 0: loads, generates and leaves. On rank 1: works for rank 0. Call n of rank `which` fails.
local function be_rank(which, kind, mode, n, parallel)
  local ranks = require "ane.pipeline"
  local ane = require "ane"
  local rank = assert(ranks.join { timeout = 20 })
  do -- work that a process does only once, such as loading modules, is done before the calls are counted
    local model <close> = assert(ane.load(MODEL, { threads = 1, context = 64 }))
    assert(model:generate({ 1, 17 }, { max_tokens = 1, details = true }))
    require(rank == 0 and "ane.pipeline.lead" or "ane.pipeline.work")
  end
  local function work()
    if rank > 0 then return ranks.work() end
    local model <close>, message, code = ane.load(MODEL, { ranks = { parallel = parallel }, threads = 1, context = 64 })
    if not model then return nil, message, code end
    local reply
    reply, message, code = model:generate({ 1, 17, 30, 5 }, { max_tokens = 4, ignore_eos = true, details = true })
    return reply and table.concat(reply.ids, " "), message, code
  end
  local calls, ran, value, message, code
  if rank == which then calls, ran, value, message, code = faults.here(n, kind, mode, work)
  else ran, value, message, code = pcall(work) end
  if rank == 0 then ranks.leave() end
  io.stdout:write(("rank=%d calls=%d ran=%s code=%s value=%s\n"):format(rank, calls or -1, ran, code,
    tostring(value or message):gsub("\n", " ")))
  io.stdout:flush()
  os.exit(ran and value and 0 or 1)
end

-- ---- The sweep ------------------------------------------------------------------------------------------------------

local START = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 %d mpirun --oversubscribe --bind-to none -n 2 "
  .. "'%s' scripts/faults/ranks.lua --rank %d %s %s %d %s 2>&1 </dev/null"

-- Runs both ranks. Returns the fields of each by its number, all text, and whether it ended in time.
local function run(which, kind, mode, n, parallel)
  local pipe = assert(io.popen(START:format(SECONDS, build .. "/bin/faults", which, kind, mode, n, parallel)))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  local of = {}
  for rank, calls, ran, code, value in text:gmatch "rank=(%d) calls=(%S+) ran=(%S+) code=(%S+) value=([^\n]*)" do
    of[tonumber(rank)] = { calls = tonumber(calls), ran = ran == "true", code = code ~= "nil" and code or nil, value = value }
  end
  return of, text, status ~= 124 and status ~= 137
end

-- What is wrong with a run; nil if nothing is.
local function fault(of, text, ended, which, kind, right)
  if not ended then return "hangs" end
  local signal = text:match "exited on signal (%d+)"
  if signal and signal ~= "9" and signal ~= "15" then return "died by signal " .. signal end
  local hit = of[which]
  if not hit then -- mpirun ends the others where one has ended with an error
    local other = of[1 - which]
    return not (other and other.code) and "says nothing: " .. text:sub(1, 300) or nil
  end
  if of[0] and of[0].ran and not of[0].code and of[0].value ~= right then return "replies " .. of[0].value end
  if not hit.ran then
    local memory = (kind == "alloc" or kind == "lua") and hit.value:find("memory", 1, true)
    return not memory and "raises: " .. hit.value or nil
  end
  if hit.code and kind == "interrupt" then return "an interrupted call is not repeated: " .. hit.value end
end

local function sweep_all(sample, chosen)
  local tries, problems = 0, 0
  for _, parallel in ipairs(PARALLEL) do
    local clean, text = run(0, "alloc", "once", 1 << 40, parallel)
    local right = assert(clean[0] and clean[0].ran and clean[1] and clean[1].ran and clean[0].value, text)
    for which = 0, 1 do
      for _, kind in ipairs(chosen) do
        local count = assert(run(which, kind, "once", 1 << 40, parallel)[which]).calls
        for _, mode in ipairs { "once", "on" } do
          local tried = 0
          for i = 1, count + 1e-9, math.max(1, count / sample) do
            local of, said, ended = run(which, kind, mode, math.floor(i), parallel)
            local problem = fault(of, said, ended, which, kind, right)
            tried, problems = tried + 1, problems + (problem and 1 or 0)
            if problem then print(("%s:%d:%s:%s:%d: %s"):format(parallel, which, kind, mode, math.floor(i), problem)) end
          end
          tries = tries + tried
          if count > 0 then print(("%-9s rank %d %-9s %-4s %6d calls, %4d tried"):format(parallel, which, kind, mode, count, tried)) end
        end
      end
    end
  end
  print(("%d runs with a fault, %d problems"):format(tries, problems))
  os.exit(problems == 0, true)
end

if arg[1] == "--rank" then be_rank(tonumber(arg[2]), arg[3], arg[4], math.tointeger(tonumber(arg[5])), arg[6]) end
local sample, chosen = math.huge, {}
local at = 1
while arg[at] do
  if arg[at] == "--sample" then
    at = at + 1
    sample = assert(tonumber(arg[at]), "--sample wants a number")
  else chosen[#chosen + 1] = arg[at] end
  at = at + 1
end
io.stdout:setvbuf "line"
sweep_all(sample, #chosen > 0 and chosen or KINDS)
