-- One contestant of bench/in_turns.py: computes a prompt and decodes whenever a line comes in on standard input.
-- usage: lua5.4 bench/in_turns.lua MODEL THREADS PROMPT STEPS [ADAPTER]      (after `make`, from the root of the tree)
-- Prints "ready", then for each line a JSON object: of the prompt wall and CPU seconds ("pp", "pp_cpu"), of the decode steps the list of
-- wall seconds and the CPU seconds of all ("tg", "tg_cpu", whole logits; "am", "am_cpu", the best token alone).

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/release/?.so;" .. package.cpath
table.insert(package.searchers, 2, function(name)
  local own = name:match "^ane%.models%.([%w_]+)$"
  return own and loadfile(("models/%s.lua"):format(own)) or nil
end)

local ane = require "ane"
local core = require "ane.core"

local path, threads, prompt, steps, adapter = arg[1], table.unpack(arg, 2, 5)
threads, prompt, steps = math.tointeger(tonumber(threads)), math.tointeger(tonumber(prompt)), math.tointeger(tonumber(steps))
local model = assert(ane.load(path, { threads = threads, context = prompt + steps + 8 }))
local session = assert(model:session(adapter and { adapters = { adapter } } or nil))

-- The same token ids as in bench/in_turns.py.
local function token(i) return 100 + i * 7919 % 30011 end

-- Wall and CPU seconds of a prompt in an empty cache.
local function fill()
  local ids = {}
  for i = 1, prompt do ids[i] = token(i) end
  session:rewind(0)
  local wall, cpu = core.clock(), os.clock()
  assert(session:feed(ids, { want = "last" }))
  return core.clock() - wall, os.clock() - cpu
end

-- Wall seconds of each step after the prompt, as one string, and the CPU seconds of all.
local function decode(want)
  local walls, cpu = {}, os.clock()
  for i = 1, steps do
    local from = core.clock()
    assert(session:feed({ token(prompt + i) }, { want = want }))
    walls[i] = ("%.6f"):format(core.clock() - from)
  end
  return table.concat(walls, ","), os.clock() - cpu
end

fill()
io.stdout:setvbuf "line"
print "ready"
for _ in io.stdin:lines() do
  local pp, pp_cpu = fill()
  local tg, tg_cpu = decode "last"
  fill()
  local am, am_cpu = decode "argmax"
  print(('{"pp":%.6f,"pp_cpu":%.6f,"tg":[%s],"tg_cpu":%.6f,"am":[%s],"am_cpu":%.6f}'):format(pp, pp_cpu, tg, tg_cpu, am, am_cpu))
end
