--- Tries the properties of spec/audit with random cases, one property after the other. Prints the seed of each case that fails.
-- usage (from the root of the tree, after `make`): lua5.4 scripts/audit.lua [--seconds 600] [--seed N] [--property NAME] [--cases N]
-- --seed is that of the first case (default: the time); --cases: most cases of each property. Prints a line of JSON for each property;
-- the exit code is 1 if a case failed. ANE_BUILD names the build folder. PYTHON names a Python that has jinja2, tokenizers and
-- sentencepiece; properties whose library is missing are left out.

local build = os.getenv "ANE_BUILD" or "build/release"
package.path = "./lua/?.lua;./lua/?/init.lua;./models/?.lua;./spec/?.lua;" .. package.path
package.cpath = "./" .. build .. "/?.so;" .. package.cpath

local core = require "ane.core"
local draw = require "audit.draw"
local properties = require "audit.properties"

local options = { seconds = 600, seed = os.time(), cases = math.maxinteger, property = "" }
for i = 1, #arg, 2 do
  local name = arg[i]:match "^%-%-(%l+)$"
  assert(options[name], arg[i] .. ": choose --seconds, --seed, --property or --cases")
  options[name] = name == "property" and arg[i + 1] or assert(math.tointeger(arg[i + 1]), arg[i] .. " wants a whole number")
end

local chosen = {}
for _, p in ipairs(properties) do
  local missing = p.missing and p.missing()
  if options.property ~= "" and options.property ~= p.name then goto continue end
  if missing then print(core.json_encode({ property = p.name, left_out = missing }, { sort = true }))
  else chosen[#chosen + 1] = p end
  ::continue::
end
assert(chosen[1], "no property to try")

local failed = false
for _, p in ipairs(chosen) do
  local ends, cases, failures = os.time() + options.seconds // #chosen, 0, 0
  while cases < options.cases and (os.time() < ends or cases == 0) and failures < 10 do -- at least one, however short the time
    local seed = options.seed + cases
    local ok, message = xpcall(p.case, debug.traceback, draw.new(seed))
    if not ok then
      failures, failed = failures + 1, true
      io.stderr:write(("%s, seed %d: %s\n"):format(p.name, seed, message))
    end
    cases = cases + 1
  end
  print(core.json_encode({ property = p.name, cases = cases, first_seed = options.seed, failed = failures }, { sort = true }))
end
os.exit(failed and 1 or 0, true)
