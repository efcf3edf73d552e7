--- POST /v1/chat/completions.
-- Needs ane.core, ane.util.exact and ane.serve.fields, frame, logprobs, messages, sampling, tools.

local core = require "ane.core"
local exact = require "ane.util.exact"
local fields = require "ane.serve.fields"
local frame = require "ane.serve.frame"
local logprobs = require "ane.serve.logprobs"
local messages = require "ane.serve.messages"
local sampling = require "ane.serve.sampling"
local tools = require "ane.serve.tools"

local M = {}

--- The fields of a request.
M.rules = fields.merge(sampling.openai, tools.rules, {
  messages = { list = true, required = true },
  max_tokens = { type = "integer", min = 1 },
  max_completion_tokens = { type = "integer", min = 1 },
  logprobs = { type = "boolean", default = false },
  top_logprobs = { type = "integer", min = 0, max = sampling.most_logprobs },
  response_format = sampling.response_format,
  chat_template_kwargs = { object = true },
  store = { only = { false } },
  service_tier = { only = { "auto", "default" } },
  modalities = { list = true, check = function(v)
    if #v ~= 1 or v[1] ~= "text" then return "is supported only as [\"text\"]" end
  end, type = "table" },
  metadata = { object = true, unused = true }, audio = { only = {} }, prediction = { only = {} }, web_search_options = { only = {} },
  functions = { only = {} }, function_call = { only = {} }, reasoning_effort = { only = {} }, verbosity = { only = {} },
  safety_identifier = { type = "string", unused = true }, prompt_cache_key = { type = "string", unused = true },
})

-- ---- The form of the answer ----------------------------------------------------------------------------------------------

local Form = {}
Form.__index = Form

-- A chunk of a stream, or the whole answer.
local function object(self, kind, choices)
  return { id = self.id, object = kind, created = self.created, model = self.model, choices = core.json_array(choices) }
end

-- A chunk of a stream.
local function chunk(self, choice)
  local value = object(self, "chat.completion.chunk", { choice })
  if self.usage then value.usage = core.null end
  return value
end

local function send(self, job, choice) job.call:event(chunk(self, choice)) end

-- Log probabilities of the tokens that were not sent yet; null if they are not requested.
local function new_logprobs(self, job, i)
  local entries = self.logprobs and job.requests[i].result.logprobs
  if not entries then return core.null end
  local first = (self.sent[i] or 0) + 1
  self.sent[i] = #entries
  return { content = logprobs.chat(self.tokenizer, entries, first), refusal = core.null }
end

function Form:open(job)
  for i in ipairs(job.requests) do
    send(self, job, {
      index = i - 1, delta = { role = "assistant", content = "" }, logprobs = core.null, finish_reason = core.null,
    })
  end
end

function Form:piece(job, i, text)
  local function choice(one, probabilities)
    return { index = i - 1, delta = { content = one }, logprobs = probabilities, finish_reason = core.null }
  end
  if self.logprobs then return send(self, job, choice(text, new_logprobs(self, job, i))) end
  self.encode[i] = self.encode[i] or frame.new(function(one) return chunk(self, choice(one, core.null)) end)
  job.call:encoded(self.encode[i](text))
end

-- A delta of a tool call, as the option on_tool_call receives it.
local function call_part(delta)
  local part = { index = delta.index - 1, ["function"] = { name = delta.name, arguments = delta.arguments or "" } }
  if delta.id then part.id, part.type = delta.id, "function" end
  return part
end

function Form:after(job, i)
  local deltas = self.calls[i]
  if not deltas or #deltas == 0 then return end
  self.calls[i] = {}
  for _, delta in ipairs(deltas) do
    send(self, job, {
      index = i - 1, delta = { tool_calls = core.json_array { call_part(delta) } }, logprobs = core.null, finish_reason = core.null,
    })
  end
end

function Form:closed(job, i)
  local result = job.requests[i].result
  send(self, job, {
    index = i - 1, delta = core.json_object(), logprobs = new_logprobs(self, job, i), finish_reason = sampling.reason(result),
  })
end

function Form:close(job)
  if self.usage then
    local value = object(self, "chat.completion.chunk")
    value.usage = sampling.usage(job:results())
    job.call:event(value)
  end
  job.call:finish "[DONE]"
end

function Form:whole(job)
  local choices = {}
  for i, result in ipairs(job:results()) do
    local message = { role = "assistant", content = result.text, refusal = core.null }
    if result.tool_calls and #result.tool_calls > 0 then
      message.tool_calls = core.json_array(result.tool_calls)
      if result.text == "" then message.content = core.null end
    end
    choices[i] = {
      index = i - 1, message = message, logprobs = new_logprobs(self, job, i), finish_reason = sampling.reason(result),
    }
  end
  local value = object(self, "chat.completion", choices)
  value.usage = sampling.usage(job:results())
  return value
end

-- ---- The endpoint --------------------------------------------------------------------------------------------------------

-- Options of the request's first reply.
local function options(server, values)
  local opts = sampling.options(server, values, values.response_format)
  if values.max_tokens and values.max_completion_tokens then fields.wrong("max_tokens", "cannot be combined with max_completion_tokens") end
  opts.max_tokens = values.max_completion_tokens or values.max_tokens
  sampling.check_stream(values)
  if values.top_logprobs and not values.logprobs then fields.wrong("top_logprobs", "needs logprobs") end
  if values.logprobs then opts.logprobs = values.top_logprobs or 0 end
  opts.template_vars = exact.plain(values.chat_template_kwargs)
  tools.add(opts, {
    tools = tools.read(values.tools), tool_choice = values.tool_choice, parallel_tool_calls = values.parallel_tool_calls,
  })
  return opts
end

function M.handle(server, call, body)
  local values = fields.check(M.rules, body)
  server:check_model(values.model)
  local prompt = messages.read(values.messages, "messages")
  local base = options(server, values)
  local form = setmetatable({
    id = server:new_id "chatcmpl-", created = server:now(), model = server.id, logprobs = values.logprobs,
    tokenizer = server.model.tokenizer, usage = values.stream_options and values.stream_options.include_usage, sent = {}, calls = {},
    encode = {},
  }, Form)
  local asked = {}
  for i = 1, values.n do
    local opts = {}
    for key, value in pairs(base) do opts[key] = value end
    if opts.seed then opts.seed = opts.seed + i - 1 end
    if opts.tools and values.stream then
      form.calls[i] = {}
      opts.on_tool_call = function(delta) table.insert(form.calls[i], delta) end
    end
    asked[i] = { prompt = prompt, opts = opts }
  end
  server:generate(call, asked, form, values.stream)
end

return M
