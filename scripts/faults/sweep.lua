--- Sweeps n over the calls of each kind in each scenario, until n is past the last call. Prints a line per sweep and each problem.
-- usage: faults scripts/faults/sweep.lua [--sample N] [SCENARIO[:KIND[:MODE[:N]]] ...]
--   --sample N   about N values of n per sweep, spread evenly over the calls
--   --list       prints the names of the scenarios
-- FAULTS_TRACE=1 also prints who made the call that fails, and who made the first allocations that are left.

local faults = _G.faults -- of scripts/faults/driver.c
local build = os.getenv "ANE_BUILD" or "build/release"
package.path = "./lua/?.lua;./lua/?/init.lua;./spec/?.lua;./scripts/faults/?.lua;" .. package.path
package.cpath = "./" .. build .. "/?.so;" .. package.cpath

local KINDS = { "alloc", "lua", "map", "open", "read", "write", "sync", "rename", "thread", "interrupt", "socket" }

local sample, only, lists = math.huge, {}, false
do
  local i = 1
  while arg[i] do
    if arg[i] == "--sample" then
      i = i + 1
      sample = assert(tonumber(arg[i]), "--sample wants a number")
    elseif arg[i] == "--list" then lists = true
    else only[#only + 1] = arg[i] end
    i = i + 1
  end
end

local folder = os.tmpname()
os.remove(folder)
assert(os.execute("mkdir " .. folder))
local scenarios = require "scenarios" (folder)
local names = {}
for name in pairs(scenarios) do names[#names + 1] = name end
table.sort(names)
if lists then
  print(table.concat(names, "\n"))
  os.exit(os.execute("rm -rf " .. folder))
end

local function selected(name, kind, mode)
  if #only == 0 then return true end
  for _, pattern in ipairs(only) do
    local s, k, m, n = pattern:match "^([^:]*):?([^:]*):?([^:]*):?([^:]*)$"
    if s == name and (k == "" or k == kind) and (m == "" or m == mode) then return true, tonumber(n) end
  end
end

-- What is wrong with how a run ended. A run that fails says so with nil, message, code; only Lua itself and misuse raise.
local function misreported(scenario, kind, result)
  if result.ok == "1" then return end
  local message = result.message or ""
  if kind == "interrupt" then return "an interrupted call is not repeated: " .. message end
  if kind == "alloc" or kind == "lua" then
    local system = result.code == "io" and message:find "[Mm]emory" -- what a system call or a library said
    if result.code and result.code ~= "memory" and not system then return ("has the code %s: %s"):format(result.code, message) end
    if not result.code and not message:find("memory", 1, true) then return "raises: " .. message end
  elseif kind == "thread" or kind == "map" then
    if not result.code then return "raises: " .. message end
  else
    if result.code ~= "io" then return ("has the code %s: %s"):format(result.code, message) end
    if scenario.writes and not message:find("/", 1, true) then return "names no file: " .. message end
  end
end

local tries, problems = 0, 0

local function attempt(name, kind, mode, n)
  local scenario = scenarios[name]
  local result = faults.try(n, kind, mode, scenario.prepare, scenario.run, scenario.check)
  tries = tries + 1
  if result.problem == scenario.keeps then result.problem = nil end
  local problem = result.problem or not result["end"] and "gave no answer" or misreported(scenario, kind, result)
  if problem then
    problems = problems + 1
    print(("%s:%s:%s:%d: %s%s"):format(name, kind, mode, n, problem, result.message and " (" .. result.message .. ")" or ""))
  end
  return result
end

-- The values of n: all, or some of 1 .. count.
local function sweep(name, kind, mode, count)
  local step = math.max(1, count / sample)
  local done = 0
  for i = 1, count + 1e-9, step do
    attempt(name, kind, mode, math.floor(i))
    done = done + 1
  end
  if count > 0 then print(("%-17s %-9s %-4s %6d calls, %6d tried"):format(name, kind, mode, count, done)) end
end

for _, name in ipairs(names) do
  local warm, counts = false, nil
  for _, kind in ipairs(KINDS) do
    for _, mode in ipairs { "once", "on" } do
      local chosen, n = selected(name, kind, mode)
      if chosen and not warm then -- work that a process does only once is done before the calls are counted
        warm = true
        local s = scenarios[name]
        local thing = s.prepare()
        local value, message = s.run(thing)
        assert(value, message)
        local problem = s.check(thing, true, value)
        assert(not problem, problem)
        collectgarbage()
      end
      if chosen and not (scenarios[name].without or {})[kind] then
        if n then
          attempt(name, kind, mode, n)
        else
          counts = counts or attempt(name, kind, mode, 1 << 40) -- fails nowhere, and counts the calls of all kinds
          sweep(name, kind, mode, tonumber(counts[kind .. " calls"]) or 0)
        end
      end
    end
  end
  if scenarios[name].finish then scenarios[name].finish() end
end
os.execute("rm -rf " .. folder)
print(("%d runs with a fault, %d problems"):format(tries, problems))
os.exit(problems == 0, true)
