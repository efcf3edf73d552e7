--- Uses the module for a long time in one process: many loads, then many tokens. Memory, open files, mappings and threads must not grow
-- after the first tenth, and each answer must equal the first answer of the same model or prompt.
-- usage (from the root of the tree, after `make`): lua5.4 scripts/soak.lua [--loads 10000] [--tokens 1000000] [--growth KIB]
-- Prints a line of JSON for each; the exit code is 1 if something was wrong. --growth (default 2048) is the number of KiB by which resident
-- memory may grow. `make soak` makes the C library's allocator return free memory at once, since by default it keeps some megabytes.
-- ANE_BUILD names the build folder.

local build = os.getenv "ANE_BUILD" or "build/release"
package.path = "./lua/?.lua;./lua/?/init.lua;./models/?.lua;" .. package.path
package.cpath = "./" .. build .. "/?.so;" .. package.cpath

local ane = require "ane"
local core = require "ane.core"

local LOADED = {
  "gguf/llama-q8_0.gguf", "gguf/llama-kquants.gguf", "gguf/qwen3_5-odd.gguf", "gguf/gpt_oss-odd.gguf", "gguf/deepseek_v2-odd.gguf",
  "hf/llama", "hf/gemma4-odd", "hf/mamba2-odd", "hf/qwen3_moe-odd", "hf/zaya-odd", "mlpackage/set",
}
local IDS = { 1, 17, 30, 5, 9, 2 }
local TALKER = "spec/fixtures/gguf/llama-q8_0.gguf"
local PROMPTS = { "Once upon", "The moon", "Hello", "A b c d e f g", "1 2 3", "Zebras are", "It was", "x" }

local limits = { loads = 10000, tokens = 1000000, growth = 2048 }
for i = 1, #arg, 2 do
  local name = arg[i]:match "^%-%-(%l+)$"
  assert(limits[name], arg[i] .. ": choose --loads, --tokens or --growth")
  limits[name] = assert(math.tointeger(arg[i + 1]), arg[i] .. " wants a whole number")
end

local function count_lines(path)
  local n = 0
  for _ in io.lines(path) do n = n + 1 end
  return n
end

--- What the process holds: KiB of resident memory, and numbers of open files, mappings and threads.
local function held()
  collectgarbage()
  collectgarbage()
  local file <close> = assert(io.open "/proc/self/status")
  local status = file:read "a"
  return {
    resident_kib = tonumber(status:match "VmRSS:%s+(%d+)"), threads = tonumber(status:match "Threads:%s+(%d+)"),
    files = #assert(core.list_dir "/proc/self/fd"), mappings = count_lines "/proc/self/maps", lua_kib = collectgarbage "count" // 1 | 0,
  }
end

-- What grew between two measurements, as a list of texts. The allocator maps and unmaps areas of its own, so a few mappings may differ.
local function growth(early, late)
  local problems = {}
  for name, allowed in pairs { resident_kib = limits.growth, lua_kib = 256, threads = 0, files = 0, mappings = 16 } do
    if late[name] > early[name] + allowed then
      problems[#problems + 1] = ("%s grew from %d to %d"):format(name, early[name], late[name])
    end
  end
  return problems
end

--- Calls turn(i) until its sum reaches n, and looks at what the process holds after a tenth and at the end. Prints the figures.
local function soak(name, n, turn)
  local begin, sum, i, early = os.time(), 0, 0, nil
  while sum < n do
    i = i + 1
    sum = sum + turn(i)
    if not early and sum * 10 >= n then early = held() end
  end
  local late = held()
  local problems = growth(early, late)
  print(core.json_encode { soak = name, n = sum, ok = #problems == 0, seconds = os.time() - begin, early = early, late = late,
    problems = problems })
  return #problems == 0
end

-- ---- Loads: every second model is closed, the others are left to the collector ----------------------------------------------

local answers = {}

local function load_turn(i)
  local path = "spec/fixtures/" .. LOADED[i % #LOADED + 1]
  local model = assert(ane.load(path, { threads = 1 + i % 3, context = 24 }))
  local ids = table.concat(assert(model:generate(IDS, { max_tokens = 2, ignore_eos = true, details = true })).ids, " ")
  answers[path] = answers[path] or ids
  assert(ids == answers[path], path .. ": another answer than at first")
  if i % 2 == 0 then model:close() end
  return 1
end

-- ---- Tokens: pools, sessions that are saved, restored, forked and rewound, streams that end early, chats ----------------------

local talker, told, length = nil, {}, 24

-- Raises unless the ids equal the first ones under this key. Returns their number.
local function same(key, ids)
  local text = table.concat(ids, " ")
  told[key] = told[key] or text
  assert(text == told[key], key .. ": another answer than at first")
  return #ids
end

local function pool_turn()
  local requests, sum = {}, 0
  local pool = talker:pool { sessions = 3 }
  for i, prompt in ipairs(PROMPTS) do
    requests[i] = assert(pool:add(prompt, { max_tokens = length + i, ignore_eos = true, details = true }))
  end
  pool:run()
  for i, request in ipairs(requests) do sum = sum + same("pool " .. i, request.result.ids) end
  pool:close()
  return sum
end

local function session_turn(i)
  local path = os.tmpname()
  local session <close> = talker:session()
  assert(session:feed(IDS))
  assert(session:save(path))
  local fork <close> = session:fork()
  local sum = same("session", assert(session:generate { max_tokens = length, ignore_eos = true, details = true }).ids)
  assert(session:restore(path))
  sum = sum + same("session", assert(session:generate { max_tokens = length, ignore_eos = true, details = true }).ids)
  sum = sum + same("session", assert(fork:generate { max_tokens = length, ignore_eos = true, details = true }).ids)
  assert(os.remove(path))
  if i % 2 == 0 then fork:rewind(4) end
  return sum
end

local function stream_turn(i)
  local sum = 0
  local stop = 4 + i % 12
  local pieces = talker:stream(PROMPTS[i % #PROMPTS + 1], { max_tokens = 40, ignore_eos = true })
  for _ in pieces do
    sum = sum + 1
    if sum == stop then pieces:stop() end
  end
  return sum
end

local function whole_turn(i)
  local k = i % #PROMPTS + 1
  local grammar = i % 16 == 0 and "(yes|no)+" or nil
  local result = assert(talker:generate(PROMPTS[k], { max_tokens = length, ignore_eos = not grammar, details = true, pattern = grammar,
    temperature = i % 3 == 0 and 0.8 or 0, seed = 7 }))
  return same(("whole %d %s %d"):format(k, grammar, i % 3 == 0 and 1 or 0), result.ids)
end

local KINDS = { pool_turn, session_turn, stream_turn, whole_turn }

local function token_turn(i) return KINDS[i % #KINDS + 1](i) end

local ok = limits.loads == 0 or soak("loads", limits.loads, load_turn)
if limits.tokens > 0 then
  talker = assert(ane.load(TALKER, { threads = 2, context = 128 }))
  ok = soak("tokens", limits.tokens, token_turn) and ok
  talker:close()
end
os.exit(ok, true)
