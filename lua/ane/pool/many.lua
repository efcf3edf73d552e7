--- A list of prompts through a pool.
-- Needs nothing. Usage: `local replies, failed = many.run(model, { "One", "Two" }, { max_tokens = 8 })`

local M = {}

-- Options of generate_many that are the pool's.
local POOL = { sessions = true, step_tokens = true, memory = true, prefix_memory = true, context = true, kv = true }

-- Level of the caller of generate_many, as Pool:add and Model:pool count it.
local ADD_LEVEL, POOL_LEVEL = 5, 4

--- Runs all prompts. Model:generate_many calls it, and has the comments.
function M.run(model, prompts, opts)
  local of_pool, of_request, on_reply = {}, {}, nil
  for key, value in pairs(opts or {}) do
    if key == "on_reply" then on_reply = value elseif POOL[key] then of_pool[key] = value else of_request[key] = value end
  end
  local pool <close>, why, word = model:pool(of_pool, POOL_LEVEL)
  if not pool then return nil, why, word end
  local replies, failed, requests = {}, nil, {}
  local function settle(i, message, code)
    failed = failed or {}
    replies[i], failed[i] = false, { message, code }
  end
  for i, prompt in ipairs(prompts) do
    local request, message, code = pool:add(prompt, of_request, ADD_LEVEL)
    requests[i] = request or false
    if not request then settle(i, message, code) end
  end
  local left = #prompts
  while left > 0 do
    local busy = pool:step()
    left = 0
    for i, request in ipairs(requests) do
      if request and request.done then
        requests[i] = false
        if request.raised then error(request.message, 0) end
        local result = request.result
        replies[i] = of_request.details and result or result.text or result.ids
        if request.message then settle(i, request.message, request.code) end
        if on_reply then on_reply(i, result) end
      elseif request then
        left = left + 1
      end
    end
    if not busy then break end
  end
  return replies, failed
end

return M
