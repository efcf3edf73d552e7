--- Speed of several sequences at once, as llama.cpp's batched-bench measures it.
-- Needs ane.core, ane.evaluate.bench, ane.evaluate.quantiles and ane.model. Each sequence has a session of its own. Prompts of several
-- sequences share runs of at most the program's chunk; then every run decodes one token of each sequence. Ids are random.
-- Usage: `local rows = assert(sequences.run(model, { numbers = { 1, 8 }, prompt = 64, tokens = 64, repetitions = 5 }))`

local bench = require "ane.evaluate.bench"
local core = require "ane.core"
local median = require("ane.evaluate.quantiles").median

local M = {}

-- Sessions of the core in a list that closes them together.
local function open_sessions(program, n, opts)
  local sessions = setmetatable({}, { __close = function(list)
    for _, s in ipairs(list) do s:close() end
  end })
  for i = 1, n do
    local message, code
    sessions[i], message, code = program:session(opts)
    if not sessions[i] then
      getmetatable(sessions).__close(sessions)
      return nil, message, code
    end
  end
  return sessions
end

-- Feeds each session its prompt, in runs that hold as many tokens as the program takes. Seconds; or nil, message, code.
local function prefill(program, sessions, prompts)
  local room = program:max_chunk()
  local items, used, tickets = {}, 0, {}
  local started = core.clock()
  local begin = program.begin or program.run
  local function flush()
    if used == 0 then return true end
    local ok, message, code = begin(program, items, "last")
    items, used, tickets[#tickets + 1] = {}, 0, ok or nil
    return ok, message, code
  end
  for i, ids in ipairs(prompts) do
    local first = 1
    while first <= #ids do
      local last = math.min(#ids, first + room - used - 1)
      items[#items + 1] = { sessions[i], table.move(ids, first, last, 1, {}) }
      used, first = used + last - first + 1, last + 1
      if used == room then
        local ok, message, code = flush()
        if not ok then return nil, message, code end
      end
    end
  end
  local ok, message, code = flush()
  for i = 1, ok and program.begin and #tickets or 0 do
    ok, message, code = program:finish(tickets[i])
    if not ok then return nil, message, code end
  end
  if not ok then return nil, message, code end
  return core.clock() - started
end

-- Decodes in a program whose runs overlap. The sessions are divided into as many sets as the program has stages, and the sets take turns.
-- Seconds; or nil, message, code.
local function decode_in_turns(program, sessions, tokens, next_ids)
  local started, sets, tickets = core.clock(), math.min(program:depth(), #sessions), {}
  for t = 1, tokens do
    for set = 1, sets do
      local ok, message, code = true, nil, nil
      if tickets[set] then ok, message, code = program:finish(tickets[set]) end
      if not ok then return nil, message, code end
      local items = {}
      for i = set, #sessions, sets do items[#items + 1] = { sessions[i], { next_ids[i][t] } } end
      tickets[set], message, code = program:begin(items, "argmax")
      if not tickets[set] then return nil, message, code end
    end
  end
  for set = 1, sets do
    local ok, message, code = program:finish(tickets[set])
    if not ok then return nil, message, code end
  end
  return core.clock() - started
end

-- Decodes `tokens` tokens of each session, one of each per run. Seconds; or nil, message, code.
local function decode(program, sessions, tokens, next_ids)
  if program.begin then return decode_in_turns(program, sessions, tokens, next_ids) end
  local started = core.clock()
  for t = 1, tokens do
    local items = {}
    for i, s in ipairs(sessions) do items[i] = { s, { next_ids[i][t] } } end
    local ok, message, code = program:run(items, "argmax")
    if not ok then return nil, message, code end
  end
  return core.clock() - started
end

-- Ids of every sequence: a list of n lists.
local function ids_of(n, tokens, vocab, seed)
  local all = {}
  for i = 1, n do all[i] = bench.random_ids(tokens, vocab, seed * 1000 + i) end
  return all
end

-- One repetition with fresh states: seconds of prefill and of decoding; or nil, message, code.
local function once(program, sessions, o, seed)
  for _, s in ipairs(sessions) do
    local ok, message, code = s:rewind(0)
    if not ok then return nil, message, code end
  end
  local vocab = program:n_ids()
  local pp, tg, message, code
  pp, message, code = prefill(program, sessions, ids_of(#sessions, o.prompt, vocab, seed))
  if not pp then return nil, message, code end
  tg, message, code = decode(program, sessions, o.tokens, ids_of(#sessions, o.tokens, vocab, seed + 500))
  if not tg then return nil, message, code end
  return pp, tg
end

--- Measures a model at several numbers of sequences.
-- @param model a loaded one whose context holds prompt + tokens
-- @param o numbers (list of numbers of sequences), prompt and tokens (of each sequence, 1 or more), repetitions (after one that does
-- not count; default 5), progress = function(row) after each number
-- @return list of {test = "batch", sequences, prompt, tokens, pp, tg}: tokens a second of all sequences together, medians; or nil,
-- message, code ("unsupported": the engine runs one sequence at a time; "range": more sequences than fit in a run)
function M.run(model, o)
  local program = require("ane.model").bundle(model, 2).program
  if not program.run then
    return nil, ("%s runs one sequence at a time: engine \"%s\""):format(tostring(model), model.engine), "unsupported"
  end
  local most = program:max_chunk() * (program.begin and program:depth() or 1) -- a run decodes one token of each sequence
  for _, n in ipairs(o.numbers) do
    if n > most then return nil, ("at most %d sequences fit in a run, but %d are to be measured"):format(most, n), "range" end
  end
  local rows = {}
  for _, n in ipairs(o.numbers) do
    local sessions <close>, message, code = open_sessions(program, n, { context = o.prompt + o.tokens, kv = model.kv })
    if not sessions then return nil, message, code end
    local pps, tgs = {}, {}
    for r = 0, o.repetitions or 5 do
      local pp, tg
      pp, tg, code = once(program, sessions, o, r)
      if not pp then return nil, tg, code end
      if r > 0 then pps[r], tgs[r] = n * o.prompt / pp, n * o.tokens / tg end
    end
    local row = { test = "batch", sequences = n, prompt = o.prompt, tokens = o.tokens, pp = median(pps), tg = median(tgs) }
    rows[#rows + 1] = row
    if o.progress then o.progress(row) end
  end
  return rows
end

return M
