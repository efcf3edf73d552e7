-- Random schedules over tiny models of every architecture: arrivals, lengths, shared starts, forks, cancels, preemptions, speculation, kv
-- types, threads, ISA levels, budgets of prefixes. Each reply has the ids, and the logits to the bit, that it has alone.
--
-- A few seconds here; ANE_SCHEDULES=1000 runs so many schedules, ANE_SCHEDULES_SEED another series.
local ane = require "ane"
local core = require "ane.core"
local draws = require "support.draws"

local COUNT = tonumber(os.getenv "ANE_SCHEDULES")
local SEED = tonumber(os.getenv "ANE_SCHEDULES_SEED") or 1
local SECONDS = 12 -- where no number is asked for

-- Token by token: fixtures that are language models. Those that cannot be loaded into a pool are told apart below.
local function fixtures()
  local list = {}
  for _, kind in ipairs { "gguf", "hf" } do
    for _, name in ipairs(assert(core.list_dir("spec/fixtures/" .. kind))) do
      if kind == "hf" or name:match "%.gguf$" then list[#list + 1] = kind .. "/" .. name end
    end
  end
  table.sort(list)
  return list
end

local function pick(random, list) return list[1 + random(#list)] end

-- A processor that writes down all logits it sees, to the bit.
local function recorder()
  local seen = {}
  return seen, function(logits) seen[#seen + 1] = logits:tostring() end
end

local function request_of(random, vocab, starts)
  local ids = {}
  if random(3) > 0 then
    local start = pick(random, starts)
    table.move(start, 1, 1 + random(#start), 1, ids)
  end
  local tail = draws.ids(random, 1 + random(random(4) == 0 and 90 or 12), vocab)
  table.move(tail, 1, #tail, #ids + 1, ids)
  local r = { ids = ids, record = random(2) == 0, opts = { max_tokens = 1 + random(14), ignore_eos = true } }
  if random(2) == 0 then r.opts.temperature, r.opts.seed, r.opts.top_k = 0.9, random(1000), 20 end
  if random(3) == 0 then r.opts.speculate = true end
  return r
end

local function options_of(r)
  local opts, seen = {}, nil
  for key, value in pairs(r.opts) do opts[key] = value end
  if r.record then seen, opts.logits_processor = recorder() end
  return opts, seen
end

-- What a request gives alone.
local function alone(model, r)
  local opts, seen = options_of(r)
  opts.details = true
  local result = assert(model:generate(r.ids, opts))
  return { ids = result.ids, logits = seen and table.concat(seen) }
end

local function check(r, one)
  assert.is_nil(one.message)
  local got, want = one.result.ids, r.want
  if r.cancelled then
    assert.same(table.move(want.ids, 1, #got, 1, {}), got)
    return
  end
  assert.same(want.ids, got)
  if r.seen then assert.is_true(table.concat(r.seen) == want.logits, "other logits") end
end

-- One schedule. Requests come in between steps; one goes on from what another has said, one is stopped.
local function run(model, random)
  local starts = { draws.ids(random, 130, model.vocab), draws.ids(random, 40, model.vocab), draws.ids(random, 70, model.vocab) }
  local pool <close> = assert(model:pool {
    sessions = 1 + random(6), step_tokens = pick(random, { 16, 32, 64, 256 }), memory = pick(random, { nil, 60000, 200000 }) or (1 << 30),
    prefix_memory = pick(random, { 1, 100000, 1 << 30 }),
  })
  local made, requests, left = {}, {}, 5 + random(4)
  while left > 0 or not pool:idle() do
    if left > 0 and random(2) == 0 then
      local r = request_of(random, model.vocab, starts)
      local before = #made > 0 and pick(random, made)
      if before and before.done and random(2) == 0 then -- a later turn, or a fork, of what was said
        r.ids = table.move(before.ids, 1, #before.ids, 1, {})
        table.move(before.result.ids, 1, #before.result.ids, #r.ids + 1, r.ids)
        r.ids[#r.ids + 1] = random(model.vocab)
      end
      local opts
      opts, r.seen = options_of(r)
      opts.priority = random(3)
      requests[#requests + 1], made[#made + 1] = r, assert(pool:add(r.ids, opts))
      left = left - 1
    end
    if #made > 3 and random(25) == 0 then
      local i = 1 + random(#made)
      if not made[i].done then
        requests[i].cancelled = true
        made[i]:stop()
      end
    end
    pool:step()
  end
  for i, r in ipairs(requests) do
    r.want = alone(model, r)
    check(r, made[i])
  end
end

describe("a random schedule", function()
  local levels = core.testing.kernel_levels()
  local list, started, done = fixtures(), core.clock(), 0

  local function schedule(at)
    local random = draws.numbers(SEED * 100003 + at)
    local name = list[1 + (at * 7919 + SEED) % #list]
    local model <close> = ane.load("spec/fixtures/" .. name, {
      context = 320, threads = 1 + random(2), kv = pick(random, { "fp16", "fp32", "int8" }), isa = pick(random, levels),
    })
    if not model or not model:pool() then return end -- a classifier, an embedding model
    local ok, why = pcall(run, model, random)
    if not ok then error(("schedule %d of seed %d, %s: %s"):format(at, SEED, name, tostring(why)), 0) end
    done = done + 1
  end

  it("gives each reply the bits that it has alone", function()
    local at = 0
    while COUNT and done < COUNT or not COUNT and core.clock() - started < SECONDS do
      at = at + 1
      schedule(at)
      if at > 50 and done == 0 then error "no model could be loaded" end
    end
    assert.is_true(done > 0)
    if COUNT then io.stderr:write(("%d schedules\n"):format(done)) end
  end)
end)
