--- Speed of a pool end to end: requests that arrive at a given rate, as servers see them.
-- Needs ane.core, ane.evaluate.bench, ane.evaluate.quantiles and ane.model. Prompts are random ids; gaps between arrivals are
-- exponential (a Poisson process).
-- Usage: `local row = assert(pools.run(model, { requests = 64, rate = 4, prompt = 64, tokens = 48 }))`

local bench = require "ane.evaluate.bench"
local core = require "ane.core"
local quantiles = require "ane.evaluate.quantiles"

local M = {}

local SEED = 20261122

-- Arrival times of the requests in seconds from the start; rate 0: all at once.
local function arrivals(n, rate)
  local at, list = 0, {}
  for i = 1, n do
    if rate > 0 then at = at - math.log(1 - core.random(SEED, i)) / rate end
    list[i] = at
  end
  return list
end

-- Prompts of all requests. Their first `shared` ids are equal. Other seeds give other prompts.
local function prompts_of(o, vocab, seed)
  local start, all = bench.random_ids(o.prompt, vocab, seed), {}
  for i = 1, o.requests do
    all[i] = bench.random_ids(o.prompt, vocab, seed + i)
    table.move(start, 1, o.shared, 1, all[i])
  end
  return all
end

-- Records the arrival times of a request's new tokens.
local function note(one, now, first, between)
  local n = #one.request.result.ids
  if n == one.seen then return end
  if one.seen == 0 then
    first[#first + 1] = now - one.arrived
    between[#between + 1] = n > 1 and 0 or nil
  else
    for _ = 1, n - one.seen do between[#between + 1] = (now - one.last) / (n - one.seen) end
  end
  one.seen, one.last = n, now
end

-- Adds requests whose time has come. Returns the number of the next one.
local function add_arrived(pool, o, live, next_one, due, prompts, now)
  while next_one <= o.requests and due[next_one] <= now do
    local request, message, code = pool:add(prompts[next_one], { max_tokens = o.tokens, ignore_eos = true })
    if not request then return nil, message, code end
    live[#live + 1] = { request = request, arrived = due[next_one], seen = 0 }
    next_one = next_one + 1
  end
  return next_one
end

-- Serves all requests. Seconds, lists of seconds to the first token and between tokens; or nil, message, code.
local function serve(pool, o, due, prompts)
  local live, next_one, first, between = {}, 1, {}, {}
  local started = core.clock()
  while next_one <= o.requests or #live > 0 do
    local now, message, code = core.clock() - started
    next_one, message, code = add_arrived(pool, o, live, next_one, due, prompts, now)
    if not next_one then return nil, message, code end
    if pool:step() then
      now = core.clock() - started
      for i = #live, 1, -1 do
        local one = live[i]
        if one.request.message then return nil, one.request.message, one.request.code end
        note(one, now, first, between)
        if one.request.done then table.remove(live, i) end
      end
    elseif due[next_one] then -- idle until the next arrival
      core.sleep(due[next_one] - (core.clock() - started))
    end
  end
  return core.clock() - started, first, between
end

-- Serves requests with prompts of their own, so that the pool's memory is mapped when the measurement begins: as many as the
-- pool computes at once, all of which arrive at once.
local function warm_up(pool, o, vocab)
  local some = setmetatable({ requests = math.min(o.requests, o.sessions or o.requests), rate = 0 }, { __index = o })
  return serve(pool, some, arrivals(some.requests, 0), prompts_of(some, vocab, -SEED))
end

--- Measures a pool that has served requests before.
-- @param model a loaded one whose context holds prompt + tokens
-- @param o requests (how many), rate (arrivals a second; 0: all at once), prompt and tokens (ids of each prompt and reply, 1 or more),
-- shared (ids with which all prompts begin; default 0), sessions, step_tokens, memory (of the pool)
-- @return {test = "pool", requests, rate, prompt, tokens, shared, sessions, seconds, requests_s, reply_s (reply tokens a second),
-- first_median_s, first_p99_s, between_median_s, between_p99_s, lua (share of the time that the executor does not use; nil unless rate is
-- 0), cached_tokens, preempted}; or nil, message, code
function M.run(model, o)
  o.shared = math.min(o.shared or 0, o.prompt - 1)
  local pool <close>, message, code = model:pool { sessions = o.sessions, step_tokens = o.step_tokens, memory = o.memory }
  if not pool then return nil, message, code end
  local vocab = require("ane.model").bundle(model, 2).program:n_ids()
  local seconds, first, between = warm_up(pool, o, vocab)
  if not seconds then return nil, first, between end
  local before = pool:stats()
  seconds, first, between = serve(pool, o, arrivals(o.requests, o.rate), prompts_of(o, vocab, SEED))
  if not seconds then return nil, first, between end
  local stats = pool:stats()
  local function since(key) return stats[key] - before[key] end
  return {
    test = "pool", requests = o.requests, rate = o.rate, prompt = o.prompt, tokens = o.tokens, shared = o.shared, sessions = o.sessions,
    seconds = seconds, requests_s = o.requests / seconds, reply_s = o.requests * o.tokens / seconds,
    first_median_s = quantiles.percentile(first, 0.5), first_p99_s = quantiles.percentile(first, 0.99),
    between_median_s = quantiles.percentile(between, 0.5), between_p99_s = quantiles.percentile(between, 0.99),
    lua = o.rate == 0 and 1 - since "seconds" / seconds or nil, cached_tokens = since "cached_tokens", preempted = since "preempted",
  }
end

return M
