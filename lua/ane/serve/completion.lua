--- POST /completion, in the form of llama-server, for its clients.
-- Needs ane.serve.completions, fields, sampling.

local completions = require "ane.serve.completions"
local fields = require "ane.serve.fields"
local sampling = require "ane.serve.sampling"

local M = {}

--- The fields of a request.
M.rules = fields.merge(sampling.rules, {
  prompt = { type = { "string", "table" }, wanted = "a string or a list", required = true },
  n_predict = { type = "integer", min = -1, default = -1 },
  json_schema = {},
  cache_prompt = { only = { true } },
  id_slot = { only = { -1 } },
})

local Form = {}
Form.__index = Form

function Form:open() return self end

function Form.piece(_, job, _, text) job.call:event { content = text, stop = false, index = 0 } end

local WHY = { eos = "eos", stop = "word", grammar = "eos" }

local function last(self, result, text)
  local timings = result.timings
  local function rate(n, s) return s > 0 and n / s or 0 end
  return {
    content = text, stop = true, index = 0, model = self.model, tokens_predicted = #result.ids, tokens_evaluated = #result.prompt_ids,
    tokens_cached = timings.cached_tokens, stop_type = WHY[result.stop] or "limit", stopping_word = result.stop_string or "",
    truncated = false,
    timings = {
      prompt_n = #result.prompt_ids - timings.cached_tokens, prompt_ms = 1000 * timings.prefill_s, predicted_n = #result.ids,
      predicted_ms = 1000 * timings.decode_s, predicted_per_second = rate(#result.ids, timings.decode_s),
    },
  }
end

function Form:closed(job) job.call:event(last(self, job.requests[1].result, "")) end

function Form:close(job)
  job.call:finish()
  return self
end

function Form:whole(job)
  local result = job.requests[1].result
  return last(self, result, result.text)
end

function M.handle(server, call, body)
  local values = fields.check(M.rules, body)
  server:check_model(values.model)
  local prompts = completions.prompts(values.prompt, "prompt", server.model.vocab)
  if #prompts > 1 then fields.unsupported("prompt", "must be one prompt") end
  local format = values.json_schema ~= nil and { type = "json_schema", json_schema = { schema = values.json_schema } } or nil
  local opts = sampling.options(server, values, format, "json_schema")
  if values.n_predict >= 0 then opts.max_tokens = values.n_predict end
  server:generate(call, { { prompt = prompts[1], opts = opts } }, setmetatable({ model = server.id }, Form), values.stream)
end

return M
