--- Texts that a model generates, for calibration if there is no other text (Liu et al. 2023, LLM-QAT).
-- Needs nothing. Usage: `local lists, message, code = samples.draw(model, 4096)`

local M = {}

-- Most tokens of one text, its first included: the window of calibration.
local LENGTH = 512

-- The token that begins a text: the model's own, else one that ends texts; or nil, message, code.
local function first_token(model)
  local tokenizer = model.tokenizer
  local id = tokenizer and (tokenizer.bos or (tokenizer.eos_ids or {})[1] or tokenizer.eos)
  if id then return id end
  return nil, "samples need a token to begin with: the model's tokenizer names none", "unsupported"
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
  while done < count do
    local result
    result, message, code = model:generate({ first }, {
      max_tokens = math.max(1, math.min(most, count - done - 1)), temperature = 1, top_k = 0, top_p = 1, seed = #lists + 1, details = true,
    })
    if not result then return nil, message, code end
    local ids = table.move(result.ids, 1, #result.ids, 2, { first })
    lists[#lists + 1], done = ids, done + #ids
    if progress then progress("sample", math.min(done, count), count) end
  end
  return lists
end

return M
