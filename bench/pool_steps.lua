-- The time of N replies in a pool, and that of the same steps without a pool, alternately in one process.
--   lua5.4 bench/pool_steps.lua MODEL [replies, default 8] [turns, default 7] [threads, default 2]
-- Each reply has a prompt of 64 ids, new in every turn, and 48 tokens. Without a pool: four prompts a run, then one token of all sequences,
-- in sessions that are rewound. Lua finds its modules by LUA_PATH="lua/?.lua;lua/?/init.lua;;" LUA_CPATH="build/?.so;;".
local ane = require "ane"
local core = require "ane.core"
local median = require("ane.evaluate.quantiles").median
local random_ids = require("ane.evaluate.bench").random_ids

local PROMPT, TOKENS, PROMPTS_OF_RUN = 64, 48, 4

local path, n, turns = arg[1], tonumber(arg[2] or 8), tonumber(arg[3] or 7)
local model <close> = assert(ane.load(path, { threads = tonumber(arg[4] or 2) }))
local program = require("ane.model").bundle(model, 2).program

local function ids(seed) return random_ids(PROMPT, program:n_ids(), seed) end

local pool <close> = model:pool { sessions = n }
local function pooled(turn)
  for i = 1, n do pool:add(ids(turn * n + i), { max_tokens = TOKENS, temperature = 0, ignore_eos = true }) end
  local from = core.clock()
  pool:run()
  return core.clock() - from
end

local sessions = {}
for i = 1, n do sessions[i] = assert(program:session { context = PROMPT + TOKENS, kv = model.kv }) end
local function bare(turn)
  local from = core.clock()
  for first = 1, n, PROMPTS_OF_RUN do
    local items = {}
    for i = first, math.min(first + PROMPTS_OF_RUN - 1, n) do
      assert(sessions[i]:rewind(0))
      items[#items + 1] = { sessions[i], ids(turn * n + i) }
    end
    assert(program:run(items, "argmax"))
  end
  for t = 1, TOKENS - 1 do
    local items = {}
    for i, s in ipairs(sessions) do items[i] = { s, random_ids(1, program:n_ids(), t * n + i) } end
    assert(program:run(items, "argmax"))
  end
  return core.clock() - from
end

pooled(0)
bare(0)
local a, b, ratios = {}, {}, {}
for turn = 1, turns do
  a[turn], b[turn] = pooled(turn), bare(turn)
  ratios[turn] = b[turn] / a[turn]
end
print(("%d replies: pool %.0f ms, bare %.0f ms, bare to pool %.3f (medians of %d turns)"):format(n, median(a) * 1e3, median(b) * 1e3,
  median(ratios), turns))
