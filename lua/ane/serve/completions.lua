--- POST /v1/completions.
-- Needs ane.core and ane.serve.fields, frame, logprobs, sampling.

local core = require "ane.core"
local fields = require "ane.serve.fields"
local frame = require "ane.serve.frame"
local logprobs = require "ane.serve.logprobs"
local sampling = require "ane.serve.sampling"

local M = {}

-- Limit of the prompts in one request.
local MOST_PROMPTS = 64

--- Limit of the texts that one request may have embedded, as in OpenAI's API.
M.most_embedded = 2048

--- The fields of a request.
M.rules = fields.merge(sampling.openai, {
  prompt = { type = { "string", "table" }, wanted = "a string or a list", required = true },
  max_tokens = { type = "integer", min = 0, default = 16 },
  logprobs = { type = "integer", min = 0, max = sampling.most_logprobs },
  echo = { type = "boolean", default = false },
  suffix = { only = { "" } },
  best_of = { only = { 1 } },
  response_format = sampling.response_format,
})

--- Prompts of a field: a text, a list of ids, or a list of those.
-- @param n_ids ids of the model's vocabulary; nil: the model checks them
-- @param most limit of the list; default 64
-- @return list of texts and lists of ids
function M.prompts(prompt, path, n_ids, most)
  local list = prompt
  if type(prompt) == "string" or math.type(prompt[1]) == "integer" then list = { prompt } end
  if fields.is_object(prompt) then fields.wrong(path, "must be a text, a list of texts or a list of token ids, but is an object") end
  if #list == 0 then fields.wrong(path, "is empty") end
  most = most or MOST_PROMPTS
  if #list > most then fields.wrong(path, "has %d prompts, but must have at most %d", #list, most) end
  local out = {}
  for i, one in ipairs(list) do
    local at = #list > 1 and ("%s[%d]"):format(path, i - 1) or path
    if fields.is_list(one) then
      if #one == 0 then fields.wrong(at, "has no token ids") end
      out[i] = table.move(one, 1, #one, 1, {})
      for _, id in ipairs(one) do
        if math.type(id) ~= "integer" or id < 0 then fields.wrong(at, "has an entry that is not a token id") end
        if n_ids and id >= n_ids then fields.wrong(at, "has an entry that is not a token id of 0 .. %d", n_ids - 1) end
      end
    elseif type(one) == "string" then
      out[i] = one
    else
      fields.wrong(at, "must be a text or a list of token ids")
    end
  end
  return out
end

-- ---- The form of the answer ----------------------------------------------------------------------------------------------

local Form = {}
Form.__index = Form

local function object(self, choices)
  return { id = self.id, object = "text_completion", created = self.created, model = self.model, choices = core.json_array(choices) }
end

-- Number of tokens that the tokenizer has put before a text.
local function added_to(self, text, ids)
  return #ids - #(self.tokenizer:encode(text, { bos = false, eos = false }) or ids)
end

-- Entries of a reply's tokens, after those of its prompt if that is repeated; nil: they are not requested. Tokens that the tokenizer
-- adds to a text are left out.
local function entries_of(self, result, i)
  local list = self.logprobs and result.logprobs
  if not list or not self.echo[i] then return list or nil end
  local all = self.entries[i]
  if not all then
    local of_prompt = result.prompt_logprobs
    local added = self.is_text[i] and added_to(self, self.echo[i], result.prompt_ids) or 0
    all = table.move(of_prompt, added + 1, #of_prompt, 1, {})
    self.entries[i], self.before[i] = all, #all
  end
  return table.move(list, #all - self.before[i] + 1, #list, #all + 1, all)
end

-- The prompt of reply i if it is to be repeated before the next text, once.
local function take_echo(self, i)
  local text = self.echo[i]
  if not text or self.echoed[i] then return "" end
  self.echoed[i] = true
  return text
end

-- Log probabilities of the tokens that were not sent yet; null if they are not requested.
local function new_logprobs(self, job, i)
  local entries = entries_of(self, job.requests[i].result, i)
  if not entries then return core.null end
  local first, tokenizer = (self.sent[i] or 0) + 1, self.tokenizer
  self.sent[i] = #entries
  self.text_offsets[i] = self.text_offsets[i] or logprobs.text_offset(tokenizer, job.requests[i].result.prompt_ids, self.before[i] or 0)
  return logprobs.completion(tokenizer, entries, first, self.text_offsets[i])
end

-- A chunk of a stream.
local function chunk(self, i, text, probabilities, reason)
  local value = object(self, { { index = i - 1, text = text, logprobs = probabilities, finish_reason = reason or core.null } })
  if self.usage then value.usage = core.null end
  return value
end

-- With log probabilities, the prompt is sent when they are computed.
function Form:open(job)
  for i in pairs(self.logprobs and {} or self.echo) do job.call:event(chunk(self, i, take_echo(self, i), core.null)) end
end

function Form:piece(job, i, text)
  if self.logprobs then return job.call:event(chunk(self, i, take_echo(self, i) .. text, new_logprobs(self, job, i))) end
  self.encode[i] = self.encode[i] or frame.new(function(one) return chunk(self, i, one, core.null) end)
  job.call:encoded(self.encode[i](text))
end

function Form:closed(job, i)
  job.call:event(chunk(self, i, take_echo(self, i), new_logprobs(self, job, i), sampling.reason(job.requests[i].result)))
end

function Form:close(job)
  if self.usage then
    local value = object(self)
    value.usage = self:count(job)
    job.call:event(value)
  end
  job.call:finish "[DONE]"
end

-- Usage. A prompt with n replies counts once.
function Form:count(job)
  local results = job:results()
  for i, result in ipairs(results) do result.own_prompt = (i - 1) % self.n == 0 end
  return sampling.usage(results)
end

function Form:whole(job)
  local choices = {}
  for i, result in ipairs(job:results()) do
    choices[i] = {
      index = i - 1, text = (self.echo[i] or "") .. result.text, logprobs = new_logprobs(self, job, i),
      finish_reason = sampling.reason(result),
    }
  end
  local value = object(self, choices)
  value.usage = self:count(job)
  return value
end

-- ---- The endpoint --------------------------------------------------------------------------------------------------------

-- The text of a prompt. Ids beyond the vocabulary of the tokenizer, which some models take, have none.
local function text_of(server, prompt)
  if type(prompt) == "string" then return prompt end
  local tokenizer, known = server.model.tokenizer, {}
  for _, id in ipairs(prompt) do
    if id < #tokenizer then known[#known + 1] = id end
  end
  return tokenizer:decode(known, { utf8 = "replace" })
end

function M.handle(server, call, body)
  local values = fields.check(M.rules, body)
  server:check_model(values.model)
  sampling.check_stream(values)
  local prompts = M.prompts(values.prompt, "prompt", server.model.vocab)
  local base = sampling.options(server, values, values.response_format)
  base.max_tokens, base.logprobs = values.max_tokens, values.logprobs
  if values.echo then base.prompt_logprobs = values.logprobs end
  local form = setmetatable({
    id = server:new_id "cmpl-", created = server:now(), model = server.id, logprobs = values.logprobs, tokenizer = server.model.tokenizer,
    usage = values.stream_options and values.stream_options.include_usage, sent = {}, text_offsets = {}, encode = {}, n = values.n,
    echo = {}, echoed = {}, is_text = {}, entries = {}, before = {},
  }, Form)
  local asked = {}
  for p, prompt in ipairs(prompts) do
    for k = 1, values.n do
      local opts = {}
      for key, value in pairs(base) do opts[key] = value end
      if opts.seed then opts.seed = opts.seed + k - 1 end
      asked[(p - 1) * values.n + k] = { prompt = prompt, opts = opts }
      if values.echo then form.echo[#asked], form.is_text[#asked] = text_of(server, prompt), type(prompt) == "string" end
    end
  end
  server:generate(call, asked, form, values.stream)
end

return M
