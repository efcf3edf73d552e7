--- The task score: the log probability of a given text.
-- Needs ane.core and ane.serve.errors, fields. The text's tokens follow the prompt's, or the beginning-of-text token. A first token
-- without a predecessor has no probability and is not scored.

local core = require "ane.core"
local errors = require "ane.serve.errors"
local fields = require "ane.serve.fields"

local M = {}

--- The fields of a request.
M.rules = {
  model = { type = "string" },
  prompt = { type = "string" },
  text = { type = "string", required = true },
  logprobs = { type = "boolean", default = false },
}

-- Bytes of logits that a chunk of a feed may hold.
local MOST_BYTES = 32 << 20

-- Returns value; for nil, message, code raises a failure of the field `param`.
local function try(param, value, message, code)
  if value == nil then error(errors.of(message, code, param), 0) end
  return value
end

-- Returns the ids of prompt and text, and the index of the text's first one.
local function ids_of(model, values)
  local tokenizer = model.tokenizer or errors.raise(400, "the model has no tokenizer", { code = "unsupported" })
  local ids = try("prompt", tokenizer:encode(values.prompt or "", { eos = false }))
  local own = try("text", tokenizer:encode(values.text, { bos = false, eos = false }))
  local first = #ids + 1
  table.move(own, 1, #own, first, ids)
  if #own == 0 then fields.wrong("text", "has no tokens") end
  if #ids > model.context then
    errors.raise(400, ("prompt and text have %d tokens, but the context has room for %d"):format(#ids, model.context),
      { param = "text", code = "context_length_exceeded" })
  end
  return ids, first
end

-- Log probabilities of ids[first ..]; ids[1] has none.
local function logprobs_of(session, ids, first, vocab)
  local list = {}
  local fed = table.move(ids, 1, #ids - 1, 1, {})
  local function each(s, from, count)
    for i = 1, count do
      local at = from + i -- the token that row i predicts
      if at >= first then list[#list + 1] = core.logprobs(s:logits(i), ids[at], 0) end
    end
  end
  try("text", session:rewind(0))
  if #fed > 0 then
    try("text", session:feed(fed, { want = "all", chunk = math.max(1, MOST_BYTES // (4 * vocab)), each = each }))
  end
  return list
end

--- Answers a row with {logprob (sum), tokens (number of scored tokens), perplexity, usage}, and with the field logprobs also with a list
-- of {token, logprob}.
function M.handle(worker, call, body)
  local values = fields.check(M.rules, body)
  local model = worker.model
  local ids, first = ids_of(model, values)
  worker.scorer = worker.scorer or try("text", model:session())
  local list, sum = logprobs_of(worker.scorer, ids, first, model.vocab), 0.0
  for _, x in ipairs(list) do sum = sum + x end
  local out = {
    object = "score", model = worker.id, logprob = sum, tokens = #list, perplexity = #list > 0 and math.exp(-sum / #list) or core.null,
    usage = { prompt_tokens = #ids, completion_tokens = 0, total_tokens = #ids },
  }
  if values.logprobs then
    out.logprobs = core.json_array()
    for i, x in ipairs(list) do
      out.logprobs[i] = { token = model.tokenizer:decode({ ids[#ids - #list + i] }, { utf8 = "replace" }), logprob = x }
    end
  end
  call:json(200, out)
end

return M
