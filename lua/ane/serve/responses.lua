--- POST /v1/responses: the text part of OpenAI's Responses API. Nothing is stored.
-- Needs ane.core and ane.serve.fields, messages, sampling.

local core = require "ane.core"
local fields = require "ane.serve.fields"
local messages = require "ane.serve.messages"
local sampling = require "ane.serve.sampling"

local M = {}

local FORMAT = {
  type = { type = "string", choices = { "text", "json_object", "json_schema" }, required = true },
  name = { type = "string" }, description = { type = "string" }, strict = { type = "boolean" }, schema = {},
}

--- The fields of a request.
M.rules = {
  model = { type = "string" },
  input = { type = { "string", "table" }, required = true },
  instructions = { type = "string" },
  max_output_tokens = { type = "integer", min = 1 },
  temperature = sampling.rules.temperature,
  top_p = sampling.rules.top_p,
  stream = sampling.rules.stream,
  text = { fields = { format = { object = true, fields = FORMAT }, verbosity = { only = {} } } },
  store = { only = { false } },
  truncation = { only = { "disabled" } },
  background = { only = { false } },
  metadata = { object = true },
  user = sampling.rules.user, safety_identifier = sampling.rules.user, prompt_cache_key = sampling.rules.user,
  tools = { list = true, type = "table", check = function(v)
    return #v > 0 and "is not supported here: /v1/chat/completions has tools" or nil
  end },
  tool_choice = { only = { "auto", "none" } },
  parallel_tool_calls = { type = "boolean", unused = true },
  include = { list = true, check = function(v) return #v > 0 and "is not supported" or nil end, type = "table" },
  service_tier = { only = { "auto", "default" } },
  previous_response_id = { only = {} }, conversation = { only = {} }, prompt = { only = {} }, reasoning = { only = {} },
  top_logprobs = { only = { 0 } }, max_tool_calls = { only = {} }, stream_options = { only = {} },
}

-- Messages of the field input.
local function read_input(values)
  local list = {}
  if values.instructions then list[1] = { role = "system", content = values.instructions } end
  if type(values.input) == "string" then
    list[#list + 1] = { role = "user", content = values.input }
    return list
  end
  if not fields.is_list(values.input) then fields.wrong("input", "must be a text or a list of messages") end
  local plain = {}
  for i, item in ipairs(values.input) do
    local at = ("input[%d]"):format(i - 1)
    if not fields.is_object(item) then fields.wrong(at, "must be an object") end
    if item.type ~= nil and item.type ~= "message" then
      fields.unsupported(at .. ".type", "is %s: only messages are supported", tostring(item.type))
    end
    local checked = fields.check({
      type = {}, role = { required = true }, content = { required = true }, id = { unused = true }, status = { unused = true },
    }, item, at)
    plain[i] = { role = checked.role, content = checked.content }
  end
  for _, message in ipairs(messages.read(plain, "input")) do list[#list + 1] = message end
  return list
end

-- ---- The form of the answer ----------------------------------------------------------------------------------------------

local Form = {}
Form.__index = Form

local function part(text) return { type = "output_text", text = text, annotations = core.json_array(), logprobs = core.json_array() } end

local function item(self, status, text)
  return {
    id = self.item_id, type = "message", status = status, role = "assistant", content = core.json_array(text and { part(text) } or {}),
  }
end

-- The response itself.
local function response(self, status, result)
  local values, null = self.values, core.null
  local usage = result and sampling.usage { result }
  local cut = result and sampling.reason(result) == "length"
  return {
    id = self.id, object = "response", created_at = self.created, status = cut and "incomplete" or status, model = self.model,
    error = null, incomplete_details = cut and { reason = "max_output_tokens" } or null, instructions = values.instructions or null,
    max_output_tokens = values.max_output_tokens or null, metadata = values.metadata or core.json_object(), parallel_tool_calls = true,
    previous_response_id = null, store = false, temperature = self.opts.temperature, top_p = self.opts.top_p or 1, tool_choice = "auto",
    tools = core.json_array(), truncation = "disabled", reasoning = { effort = null, summary = null },
    text = { format = values.text and values.text.format or { type = "text" } },
    output = core.json_array(result and { item(self, cut and "incomplete" or "completed", result.text) } or {}),
    usage = usage and {
      input_tokens = usage.prompt_tokens, output_tokens = usage.completion_tokens, total_tokens = usage.total_tokens,
      input_tokens_details = usage.prompt_tokens_details, output_tokens_details = { reasoning_tokens = 0 },
    } or null,
  }
end

local function send(self, job, name, event)
  event.type, event.sequence_number = name, self.count
  self.count = self.count + 1
  job.call:event(event, name)
end

-- An event of the only part of the only item.
local function about(self, event)
  event.item_id, event.output_index, event.content_index = self.item_id, 0, 0
  return event
end

function Form:open(job)
  send(self, job, "response.created", { response = response(self, "in_progress") })
  send(self, job, "response.in_progress", { response = response(self, "in_progress") })
  send(self, job, "response.output_item.added", { output_index = 0, item = item(self, "in_progress") })
  send(self, job, "response.content_part.added", about(self, { part = part "" }))
end

function Form:piece(job, _, text)
  send(self, job, "response.output_text.delta", about(self, { delta = text, logprobs = core.json_array() }))
end

function Form:closed(job)
  local result = job.requests[1].result
  local final = response(self, "completed", result)
  send(self, job, "response.output_text.done", about(self, { text = result.text, logprobs = core.json_array() }))
  send(self, job, "response.content_part.done", about(self, { part = part(result.text) }))
  send(self, job, "response.output_item.done", { output_index = 0, item = final.output[1] })
  send(self, job, "response." .. final.status, { response = final })
end

function Form:close(job)
  job.call:finish()
  return self
end

function Form:whole(job) return response(self, "completed", job.requests[1].result) end

-- ---- The endpoint --------------------------------------------------------------------------------------------------------

-- Converts the field text.format to response_format.
local function format_of(values)
  local format = values.text and values.text.format
  if not format or format.type ~= "json_schema" then return format end
  return { type = "json_schema", json_schema = { schema = format.schema, strict = format.strict } }
end

function M.handle(server, call, body)
  local values = fields.check(M.rules, body)
  server:check_model(values.model)
  local prompt = read_input(values)
  local opts = sampling.options(server, values, format_of(values), "text.format")
  opts.max_tokens = values.max_output_tokens
  local form = setmetatable({
    id = server:new_id "resp_", item_id = server:new_id "msg_", created = server:now(), model = server.id, values = values,
    opts = opts, count = 0,
  }, Form)
  server:generate(call, { { prompt = prompt, opts = opts } }, form, values.stream)
end

return M
