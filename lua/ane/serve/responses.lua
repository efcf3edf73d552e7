--- POST /v1/responses: the part of OpenAI's Responses API that is text and calls of functions. Nothing is stored.
-- Needs ane.core and ane.serve.fields, response_input, response_output, sampling, tools.

local core = require "ane.core"
local fields = require "ane.serve.fields"
local input = require "ane.serve.response_input"
local output = require "ane.serve.response_output"
local sampling = require "ane.serve.sampling"
local tools = require "ane.serve.tools"

local M = {}

local FORMAT = {
  type = { type = "string", choices = { "text", "json_object", "json_schema" }, required = true },
  name = { type = "string" }, description = { type = "string" }, strict = { type = "boolean" }, schema = {},
}

--- The fields of a request.
M.rules = {
  model = { type = "string" },
  input = { type = { "string", "table" }, wanted = "a string or a list", required = true },
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
  tools = tools.rules.tools,
  tool_choice = tools.rules.tool_choice,
  parallel_tool_calls = tools.rules.parallel_tool_calls,
  include = { list = true, check = function(v) return #v > 0 and "is not supported" or nil end, type = "table" },
  service_tier = { only = { "auto", "default" } },
  previous_response_id = { only = {} }, conversation = { only = {} }, prompt = { only = {} },
  reasoning = { object = true, fields = { effort = { only = {} }, summary = { only = {} }, generate_summary = { only = {} } } },
  top_logprobs = { only = { 0 } }, max_tool_calls = { only = {} }, stream_options = { only = {} },
}

-- ---- The form of the answer ----------------------------------------------------------------------------------------------

local Form = {}
Form.__index = Form

-- The response itself. result: nil while it is computed.
local function response(self, status, result)
  local values, null = self.values, core.null
  local usage = result and sampling.usage { result }
  return {
    id = self.id, object = "response", created_at = self.created, status = status, model = self.model,
    error = null, incomplete_details = status == "incomplete" and { reason = "max_output_tokens" } or null,
    instructions = values.instructions or null, max_output_tokens = values.max_output_tokens or null,
    metadata = values.metadata or core.json_object(), parallel_tool_calls = values.parallel_tool_calls ~= false,
    previous_response_id = null, store = false, temperature = self.opts.temperature, top_p = self.opts.top_p or 1,
    tool_choice = values.tool_choice or "auto", tools = values.tools or core.json_array(), truncation = "disabled",
    reasoning = { effort = null, summary = null }, text = { format = values.text and values.text.format or { type = "text" } },
    output = result and self.output.items or core.json_array(),
    usage = usage and {
      input_tokens = usage.prompt_tokens, output_tokens = usage.completion_tokens, total_tokens = usage.total_tokens,
      input_tokens_details = usage.prompt_tokens_details, output_tokens_details = { reasoning_tokens = 0 },
    } or null,
  }
end

local function status_of(result) return sampling.reason(result) == "length" and "incomplete" or "completed" end

local function send(self, job, name, event)
  event.type, event.sequence_number = name, self.count
  self.count = self.count + 1
  job.call:event(event, name)
end

function Form:open(job)
  self.output = output.new(function(name, event) send(self, job, name, event) end, self.new_id)
  send(self, job, "response.created", { response = response(self, "in_progress") })
  send(self, job, "response.in_progress", { response = response(self, "in_progress") })
end

-- What is known of the call in which a reply ended: the call, if its name was read, and its text, which ends the text of the reply.
local function cut_of(result)
  local cut = result.tool_call_cut
  if not cut then return nil, "" end
  return cut["function"].name ~= "" and cut or nil, cut.text
end

-- Text; that of a call in which the reply ended follows the parts of the call.
function Form:piece(job, i, text)
  local request = job.requests[i]
  local _, tail = cut_of(request.done and request.result or {})
  local said = text:sub(1, #text - #tail)
  if said ~= "" then self.output:text(said) end
  if tail == "" then return end
  self:after()
  self.output:text(tail)
end

-- Sends the parts of calls that were generated since the last step.
function Form:after()
  local deltas = self.deltas
  if #deltas == 0 then return end
  self.deltas = {}
  for _, delta in ipairs(deltas) do self.output:call(delta) end
end

function Form:closed(job)
  local result = job.requests[1].result
  local status = status_of(result)
  self.output:finish(status, not cut_of(result))
  send(self, job, "response." .. status, { response = response(self, status, result) })
end

function Form:close(job)
  job.call:finish()
  return self
end

function Form:whole(job)
  local result = job.requests[1].result
  local status = status_of(result)
  self.output = output.new(function() end, self.new_id)
  local cut, tail = cut_of(result)
  local said = result.text:sub(1, #result.text - #tail)
  if said ~= "" then self.output:text(said) end
  for i, call in ipairs(result.tool_calls or {}) do
    self.output:call { index = i, id = call.id, name = call["function"].name, arguments = call["function"].arguments }
  end
  if cut then
    self.output:call { index = #self.output.calls + 1, id = cut.id, name = cut["function"].name, arguments = cut["function"].arguments }
  end
  if tail ~= "" then self.output:text(tail) end
  self.output:finish(status, not cut)
  return response(self, status, result)
end

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
  local prompt = input.messages(values)
  local opts = sampling.options(server, values, format_of(values), "text.format")
  opts.max_tokens = values.max_output_tokens
  tools.add(opts, {
    tools = input.tools(values.tools), tool_choice = values.tool_choice, parallel_tool_calls = values.parallel_tool_calls,
  })
  local form = setmetatable({
    id = server:new_id "resp_", created = server:now(), model = server.id, values = values, opts = opts, count = 0, deltas = {},
    new_id = function(prefix) return server:new_id(prefix) end,
  }, Form)
  if opts.tools and values.stream then
    opts.on_tool_call = function(delta) form.deltas[#form.deltas + 1] = delta end
  end
  server:generate(call, { { prompt = prompt, opts = opts } }, form, values.stream)
end

return M
