-- Random schedules over tiny models of every architecture: arrivals, lengths, shared starts, forks, cancels, preemptions, speculation,
-- kv types, threads, ISA levels, budgets of prefixes, grammars, adapters, priorities, time limits. Each reply has the ids, and the
-- logits to the bit, that it has alone; one that is cancelled or out of time has the first of them.
--
-- A few seconds here; ANE_SCHEDULES=1000 runs so many schedules, ANE_SCHEDULES_SEED another series.
local ane = require "ane"
local adapters = require "support.adapters"
local core = require "ane.core"
local draws = require "support.draws"
local safetensors = require "support.safetensors_writer"

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

-- Few fixtures have a tokenizer, which grammars need: they come more often.
local WITH_TOKENIZER = {
  "gguf/llama-mixed.gguf", "gguf/qwen2-q4_0.gguf", "gguf/llama-q8_0.gguf", "gguf/gemma3-q8_0.gguf", "gguf/qwen2-bf16.gguf",
}

local function pick(random, list) return list[1 + random(#list)] end

-- An adapter for some weights of a model, and the folder it is in; nil where the model has no weights with these names.
local function adapter_of(model, path, seed)
  local tensors = adapters.pairs_of(path, { "q_proj", "o_proj", "down_proj" }, 4, seed)
  if #tensors == 0 then return nil end
  local folder = adapters.peft { tensors = tensors }
  return model:adapter(folder) or nil, folder
end

-- A processor that writes down all logits it sees, to the bit.
local function recorder()
  local seen = {}
  return seen, function(logits) seen[#seen + 1] = logits:tostring() end
end

-- Grammars of texts that are random too: what a model without training says.
local GRAMMARS = {
  ane.grammar.regex "[a-z ]{1,40}", ane.grammar.choice { "yes", "no", "perhaps" },
  ane.grammar.json_schema { type = "array", items = { type = "integer", minimum = -9, maximum = 99 }, uniqueItems = true },
  ane.grammar.json_schema { type = "object", properties = { a = { type = "boolean" }, b = { enum = { "x", 1 } } }, required = { "a" } },
}

-- The options that change which token is chosen.
local function choose_by(random, opts, model, adapter)
  if random(2) == 0 then opts.temperature, opts.seed, opts.top_k = 0.9, random(1000), 20 end
  if random(5) == 0 then opts.repeat_penalty = 1.3 end
  if random(5) == 0 then opts.min_p, opts.top_p = 0.02, 0.9 end
  if random(5) == 0 then opts.logit_bias = { [random(model.vocab)] = 5, [random(model.vocab)] = -100 } end
  if random(3) == 0 then opts.speculate = true end
  if adapter and random(3) == 0 then opts.adapters = { adapter } end
  if model.tokenizer and random(2) == 0 then opts.grammar = pick(random, GRAMMARS) end
end

local function request_of(random, model, starts, adapter)
  local vocab = model.vocab
  local ids = {}
  if random(3) > 0 then
    local start = pick(random, starts)
    table.move(start, 1, 1 + random(#start), 1, ids)
  end
  local tail = draws.ids(random, 1 + random(random(4) == 0 and 90 or 12), vocab)
  table.move(tail, 1, #tail, #ids + 1, ids)
  local r = { ids = ids, record = random(2) == 0, opts = { max_tokens = 1 + random(14), ignore_eos = true } }
  choose_by(random, r.opts, model, adapter)
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
  local result, message = model:generate(r.ids, opts)
  if not result then return { message = message } end -- a small vocabulary has no token that a grammar allows
  return { ids = result.ids, logits = seen and table.concat(seen) }
end

local function check(r, one)
  local want = r.want
  local out_of_time = r.limited and one.result and one.result.stop == "time"
  if not r.cancelled and not out_of_time then assert.equal(want.message, one.message) end
  if one.message or want.message then return end
  local got = one.result.ids
  if r.cancelled or out_of_time then
    assert.same(table.move(want.ids, 1, #got, 1, {}), got)
    local seen = r.seen and table.concat(r.seen)
    if seen then assert.is_true(seen == want.logits:sub(1, #seen), "other logits") end
    return
  end
  assert.same(want.ids, got)
  if r.seen then assert.is_true(table.concat(r.seen) == want.logits, "other logits") end
end

-- One schedule. Requests come in between steps; one goes on from what another has said, one is stopped.
local function run(model, random, adapter)
  local starts = { draws.ids(random, 130, model.vocab), draws.ids(random, 40, model.vocab), draws.ids(random, 70, model.vocab) }
  local pool <close> = assert(model:pool {
    sessions = 1 + random(6), step_tokens = pick(random, { 16, 32, 64, 256 }), memory = pick(random, { nil, 60000, 200000 }) or (1 << 30),
    prefix_memory = pick(random, { 1, 100000, 1 << 30 }),
  })
  local made, requests, left = {}, {}, 5 + random(4)
  while left > 0 or not pool:idle() do
    if left > 0 and random(2) == 0 then
      local r = request_of(random, model, starts, adapter)
      local before = #made > 0 and pick(random, made)
      if before and before.done and random(2) == 0 then -- a later turn, or a fork, of what was said
        r.ids = table.move(before.ids, 1, #before.ids, 1, {})
        table.move(before.result.ids, 1, #before.result.ids, #r.ids + 1, r.ids)
        r.ids[#r.ids + 1] = random(model.vocab)
      end
      local opts
      opts, r.seen = options_of(r)
      opts.priority = random(3)
      r.limited = random(6) == 0
      if r.limited then opts.time_limit = 2 ^ random(10) / 1e5 end -- 20 us to 10 ms: before, within and behind the reply
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
    local name = at % 4 == 0 and pick(random, WITH_TOKENIZER) or list[1 + (at * 7919 + SEED) % #list]
    local model <close> = ane.load("spec/fixtures/" .. name, {
      context = 320, threads = 1 + random(2), kv = pick(random, { "int16", "fp16", "fp32", "int8" }), isa = pick(random, levels),
    })
    if not model or not model:pool() then return end -- a classifier, an embedding model
    local adapter, folder
    if name:match "^hf/" and random(2) == 0 then adapter, folder = adapter_of(model, "spec/fixtures/" .. name, at) end
    local ok, why = pcall(run, model, random, adapter)
    if folder then safetensors.remove(folder) end
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
