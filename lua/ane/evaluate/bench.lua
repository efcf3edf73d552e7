--- Speed of a model: prefill and decoding at any depth, with the bytes read and the operations computed.
-- Needs ane.core and ane.model.profile. Terms are those of llama-bench: pp feeds a prompt at once, tg feeds tokens one by one.
-- Both follow `depth` cached tokens, which are not timed. Ids are random; with `greedy` tg feeds the model's own tokens.
-- Usage: `local rows = assert(bench.run(model, {prompts = {16, 512}, gens = {128}, depths = {0, 2048}, repetitions = 5}))`

local core = require "ane.core"
local profile = require "ane.model.profile"

local M = {}

local function random_ids(n, vocab, seed)
  local ids = {}
  for i = 1, n do ids[i] = math.floor(core.random(seed, i) * vocab) end
  return ids
end
M.random_ids = random_ids

-- Each feeds n tokens after the cached ones and returns the seconds; or nil, message, code. o: vocab, seed, greedy, progress (or nil).
local TESTS = {}

function TESTS.pp(session, n, o)
  local ids = random_ids(n, o.vocab, o.seed)
  local started = core.clock()
  local ok, message, code = session:feed(ids, { want = "last", progress = o.progress })
  if not ok then return nil, message, code end
  session:argmax()
  return core.clock() - started
end

function TESTS.tg(session, n, o)
  local ids = random_ids(n, o.vocab, o.seed)
  local id = ids[1]
  local started = core.clock()
  for i = 1, n do
    local ok, message, code = session:feed(id, { want = "argmax" })
    if not ok then return nil, message, code end
    local best = session:argmax()
    id = o.greedy and best or ids[i + 1]
  end
  return core.clock() - started
end

-- Work of one run of n tokens: {bytes and ops per token, matrix_ops per second}; {} if the engine has no profile.
local function work_of(rows, n)
  if not rows then return {} end
  local seconds, ops = 0, 0
  for _, row in ipairs(rows) do
    if row.op == "linear" or row.op == "experts" then seconds, ops = seconds + row.seconds, ops + row.ops end
  end
  return { bytes = rows.total.bytes / n, ops = rows.total.ops / n, matrix_ops = seconds > 0 and ops / seconds or nil }
end

-- Runs one test at one depth: the row, the seconds of the warm-up run; or nil, message, code.
local function measure(model, session, kind, n, depth, o)
  local row = { test = kind, tokens = n, depth = depth, rates = {} }
  local total, first = n * (o.repetitions + 1), nil
  for r = 0, o.repetitions do
    local function progress(_, done) return o.progress and o.progress(kind .. n, n * r + done, total) end
    local ok, message, code = session:rewind(depth)
    if not ok then return nil, message, code end
    progress(nil, 0)
    local profiled = r == 0 and profile.start(model)
    local seconds
    seconds, message, code = TESTS[kind](session, n, { vocab = model.vocab, seed = r, greedy = o.greedy, progress = progress })
    if not seconds then return nil, message, code end
    progress(nil, n)
    if r == 0 then
      first = seconds
      for key, value in pairs(work_of(profiled and profile.take(model), n)) do row[key] = value end
      if profiled then profile.stop(model) end
    else
      row.rates[r] = n / seconds
    end
  end
  return row, first
end

-- In the order of llama-bench: prompts, then decoding.
local function tests_of(o)
  local tests = {}
  for _, kind in ipairs { { "pp", o.prompts }, { "tg", o.gens } } do
    for _, n in ipairs(kind[2] or {}) do
      if n > 0 then tests[#tests + 1] = { kind = kind[1], n = n } end
    end
  end
  return tests
end

--- Measures a model.
-- @param model a loaded one whose context holds the deepest test
-- @param o prompts, gens (lists of tokens; 0: no such test), depths (list; default {0}), repetitions (after one that does not count),
-- greedy (decode what the model says instead of random ids), progress = function(stage, done, total): tokens of a test, all
-- repetitions together
-- @return list of {test ("pp", "tg"), tokens, depth, rates (tokens a second of each repetition), bytes and ops (a token: weights and
-- cached state read, multiplications and additions), matrix_ops (a second, of matrix products alone)}; its field first_s is what
-- the very first run took; or nil, message, code
function M.run(model, o)
  local session <close>, message, code = model:session()
  if not session then return nil, message, code end
  local rows, tests = {}, tests_of(o)
  for _, depth in ipairs(o.depths or { 0 }) do
    local ok
    ok, message, code = session:rewind(0)
    if ok and depth > 0 then
      local function progress(_, done, total) return o.progress and o.progress("depth " .. depth, done, total) end
      ok, message, code = session:feed(random_ids(depth, model.vocab, 1000), { want = "none", progress = progress })
    end
    if not ok then return nil, message, code end
    for _, test in ipairs(tests) do
      local row, first, why = measure(model, session, test.kind, test.n, depth, o)
      if not row then return nil, first, why end
      rows[#rows + 1] = row
      rows.first_s = rows.first_s or first
    end
  end
  return rows
end

--- Mean and standard deviation of a list (0 of a single value).
function M.mean(list)
  local sum, squares = 0, 0
  for _, v in ipairs(list) do sum = sum + v end
  local mean = sum / #list
  for _, v in ipairs(list) do squares = squares + (v - mean) ^ 2 end
  return mean, #list > 1 and math.sqrt(squares / (#list - 1)) or 0
end

return M
