--- A list of prompts through a pool.
-- Needs ane.util.failure. Usage: `local replies, failed = many.run(model, { "One", "Two" }, { max_tokens = 8 })`

local failure = require "ane.util.failure"

local M = {}

-- Options of generate_many that are the pool's.
local POOL = { sessions = true, step_tokens = true, memory = true, prefix_memory = true, context = true, kv = true }

--- Rules of the options that requests do not have.
-- @param of_pool rules of the pool
function M.rules(of_pool)
  local rules = { on_reply = { type = "callable" } }
  for name in pairs(POOL) do rules[name] = of_pool[name] end
  return rules
end

-- Level of the caller of generate_many, as Pool:add and Model:pool count it.
local ADD_LEVEL, POOL_LEVEL = 5, 4

local function by_number(a, b) return a.number < b.number end

--- Runs all prompts. See Model:generate_many.
function M.run(model, prompts, opts)
  local of_pool, of_request, on_reply = {}, {}, nil
  for key, value in pairs(opts) do
    if key == "on_reply" then on_reply = value elseif POOL[key] then of_pool[key] = value else of_request[key] = value end
  end
  local pool <close>, why, word = model:pool(of_pool, POOL_LEVEL)
  if not pool then return nil, why, word end
  local replies, failed, index = {}, nil, {}
  local function settle(i, message, code)
    failed = failed or {}
    replies[i], failed[i] = false, { message, code }
  end
  for i, prompt in ipairs(prompts) do
    local request, message, code = pool:add(prompt, of_request, ADD_LEVEL)
    if request then index[request] = i else settle(i, message, code) end
  end
  local cut = false
  repeat
    local ended = {}
    pool._ended = ended
    local busy = not model.closed and pool:step()
    table.sort(ended, by_number)
    for _, request in ipairs(ended) do
      local i, result = index[request], request.result
      if request.raised then error(request.message, 0) end
      if result.stop == "closed" then
        cut = true
        break
      end
      replies[i] = of_request.details and result or result.text or result.ids
      if request.message then settle(i, request.message, request.code) end
      if on_reply then on_reply(i, result) end
    end
  until not busy or cut
  if cut then return nil, failure.CLOSED, "state" end
  return replies, failed
end

return M
