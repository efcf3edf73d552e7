--- Texts that a model generates, for calibration if there is no other text (Liu et al. 2023, LLM-QAT).
-- Needs ane.util.failure. Usage: `local lists, message, code = samples.draw(model, 4096)`

local failure = require "ane.util.failure"

local M = {}

-- Most tokens of one text, its first included: the window of calibration.
local LENGTH = 512

-- Texts that are drawn together, and the most memory for their states.
local TOGETHER, MEMORY = 32, 1 << 30

-- The token that begins a text: the model's own, else one that ends texts; or nil, message, code.
local function first_token(model)
  local tokenizer, host = model.tokenizer, model._host
  if host and host.unsupported then return nil, host.unsupported, "unsupported" end -- it writes no texts
  local id = tokenizer and (tokenizer.bos or (tokenizer.eos_ids or {})[1] or tokenizer.eos)
  if id then return id end
  local why = tokenizer and "the model's tokenizer names none" or "the model has no tokenizer"
  return nil, "samples need a token to begin with: " .. why, "unsupported"
end

local function options(most, seed) return { max_tokens = most, temperature = 1, top_k = 0, top_p = 1, seed = seed } end

-- The ids that follow the first token in one text; or nil, message, code.
local function one(model, first, most, seed)
  local opts = options(most, seed)
  opts.details = true
  local result, message, code = model:generate({ first }, opts)
  if not result then return nil, message, code end
  return { result.ids }
end

-- The texts with the seeds 1, 2 and so on, drawn together until they have `count` tokens, first tokens included. Text i does not
-- depend on the others, and the number of texts does not depend on the order in which they end.
-- @param report function(number of tokens that were drawn so far)
-- @return list of lists of ids without the first one; the text that completes the count may be unfinished; or nil, message, code
local function together(pool, first, most, count, report)
  local requests = {}
  while true do
    local total, longest, prefix, complete = 0, 0, 0, true -- complete: all texts so far are finished
    for _, r in ipairs(requests) do
      if r.raised then error(r.message, 0) end
      if r.message then return nil, r.message, r.code end
      if r.result.stop == "closed" then return nil, failure.CLOSED, "state" end
      local n = 1 + #r.result.ids
      total, longest = total + n, longest + (r.done and n or most + 1)
      if complete then prefix, complete = prefix + n, r.done end
    end
    report(total)
    if prefix >= count then break end
    while longest < count do
      local request, message, code = pool:add({ first }, options(most, #requests + 1))
      if not request then return nil, message, code end
      requests[#requests + 1], longest = request, longest + most + 1
    end
    pool:step()
  end
  local lists = {}
  for i, r in ipairs(requests) do lists[i] = r.result.ids end
  return lists
end

--- Draws texts at temperature 1. Text i has the seed i, so the same model gives the same texts.
-- @param model a generative model; it must stay open
-- @param count tokens of all texts, 2 or more
-- @param progress function(stage, done, total), or nil
-- @return list of lists of ids, each at most 512 long or as long as the context; or nil, message, code
function M.draw(model, count, progress)
  local first, message, code = first_token(model)
  if not first then return nil, message, code end
  local most, lists, done = math.min(LENGTH, model.context) - 1, {}, 0
  local function report(total)
    if progress then progress("sample", math.min(total, count), count) end
  end
  -- Adds texts to the result until it has `count` tokens. The last text is as long as there is need for it.
  local function take(drawn)
    for _, ids in ipairs(drawn) do
      if done >= count then return end
      local length = math.max(1, math.min(#ids, count - done - 1))
      lists[#lists + 1] = table.move(ids, 1, length, 2, { first })
      done = done + #lists[#lists]
    end
  end
  -- nil: the model computes one session at a time
  local pool <close> = model:pool {
    sessions = TOGETHER, context = math.min(2 * LENGTH, model.context), memory = MEMORY, prefix_memory = 0,
  }
  while done < count do
    local drawn
    if pool and count > most + 1 then
      drawn, message, code = together(pool, first, most, count, report)
    else
      drawn, message, code = one(model, first, math.max(1, math.min(most, count - done - 1)), #lists + 1)
    end
    if not drawn then return nil, message, code end
    take(drawn)
    report(done)
    if model.closed then return nil, failure.CLOSED, "state" end
  end
  return lists
end

return M
