--- Texts as runs of tokens that a model reads from an empty cache each.
-- Needs ane.util.list. Usage: `for _, ids in ipairs(assert(windows.split(model, text, 512))) do ... end`

local list_of = require "ane.util.list"

local M = {}

--- Splits an input into runs of ids, each for an empty cache.
-- @param input a text, a list of ids, or a list of those
-- @param chunk maximum ids of a run
-- @param most maximum ids of all runs; nil: no limit
-- @return list of lists of ids; or nil, message, code
function M.split(model, input, chunk, most)
  local lists, out = {}, {}
  local several = type(input) == "table" and math.type(input[1]) ~= "integer"
  local wrong = several and list_of.fault(input)
  if wrong then return nil, "the list of prompts " .. wrong, "invalid" end
  for i, one in ipairs(several and input or { input }) do
    if type(one) == "string" then
      local tokenizer = model.tokenizer
      if not tokenizer then return nil, "the model has no tokenizer: give token ids instead of text", "unsupported" end
      local ids, message, code = tokenizer:encode(one, { eos = false })
      if not ids then return nil, message, code end
      one = ids
    end
    if type(one) ~= "table" then
      return nil, ("prompt %d must be a text or a list of token ids, but is a %s"):format(i, type(one)), "invalid"
    end
    wrong = list_of.fault(one)
    if wrong then return nil, ("prompt %d %s"):format(i, wrong), "invalid" end
    for k, id in ipairs(one) do
      if math.type(id) ~= "integer" or id < 0 or id > 0x7fffffff then
        return nil, ("prompt %d: id %d must be a whole number of 0 or more, but is %s"):format(i, k, list_of.shown(id)), "range"
      end
    end
    lists[i] = one
  end
  local left = most or math.huge
  for _, ids in ipairs(lists) do
    for from = 1, #ids, chunk do
      local n = math.min(chunk, #ids - from + 1, left)
      if n > 0 then out[#out + 1] = table.move(ids, from, from + n - 1, 1, {}) end
      left = left - n
    end
  end
  if #out == 0 then return nil, "the text has no tokens", "invalid" end
  return out
end

return M
