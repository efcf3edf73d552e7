--- Fields shared by the endpoints of generated text, and their conversion to options of generate.
-- Needs ane.core, ane.grammar, ane.serve.errors and ane.serve.fields.
-- Usage: `local values = fields.check(sampling.rules, body); local opts = sampling.options(server, values)`

local core = require "ane.core"
local errors = require "ane.serve.errors"
local fields = require "ane.serve.fields"
local grammar = require "ane.grammar"

local M = {}

local MOST_STOPS, MOST_CHOICES, MOST_LOGPROBS = 16, 16, 20

local function check_stop(stop)
  local list = type(stop) == "table" and stop or { stop }
  if type(stop) == "table" and not fields.is_list(stop) then return "must be a string or a list of strings" end
  if #list > MOST_STOPS then return ("has %d strings, at most %d are supported"):format(#list, MOST_STOPS) end
  for _, s in ipairs(list) do
    if type(s) ~= "string" or s == "" then return "must be a string or a list of strings that are not empty" end
  end
end

local FORMAT = {
  type = { type = "string", choices = { "text", "json_object", "json_schema" }, required = true },
  json_schema = {
    object = true,
    fields = {
      name = { type = "string" }, description = { type = "string" }, strict = { type = "boolean" }, schema = { required = true },
    },
  },
}

--- Fields of sampling that the server has defaults for, with the limits of ane.generate.sampler. OpenAI's API limits the temperature
-- further.
M.sampled = {
  temperature = { type = "number", min = 0, max = 2 },
  top_p = { type = "number", min = 0, max = 1 },
  top_k = { type = "integer", min = 0, max = 0x7fffffff },
  min_p = { type = "number", min = 0, max = 1 },
  repeat_penalty = { type = "number", min = 1e-6, max = 1e6 },
}

--- Fields of sampling that all endpoints of generated text have.
M.rules = fields.merge(M.sampled, {
  model = { type = "string" },
  frequency_penalty = { only = { 0 } },
  presence_penalty = { only = { 0 } },
  seed = { type = "integer" },
  stop = { type = { "string", "table" }, wanted = "a string or a list", check = check_stop },
  logit_bias = { object = true },
  ignore_eos = { type = "boolean" },
  grammar = { type = "string" },
  stream = { type = "boolean", default = false },
  user = { type = "string", unused = true },
})

--- Further fields of OpenAI's endpoints.
M.openai = fields.merge(M.rules, {
  n = { type = "integer", min = 1, max = MOST_CHOICES, default = 1 },
  stream_options = { fields = { include_usage = { type = "boolean" }, include_obfuscation = { only = { false } } } },
})

M.most_logprobs = MOST_LOGPROBS

--- Throws if a request without stream has options of a stream.
function M.check_stream(values)
  if values.stream_options and not values.stream then fields.wrong("stream_options", "needs stream") end
end

--- The field response_format.
M.response_format = { object = true, fields = FORMAT }

-- ---- Grammars ------------------------------------------------------------------------------------------------------------

local KEPT = 32 -- number of recent grammars that are kept

local cache, order = {}, {}

-- Returns the grammar of a source text, from the kept ones if possible.
local function cached(key, make)
  local found = cache[key]
  if not found then
    local message, code
    found, message, code = make()
    if not found then return nil, message, code end
    cache[key] = found
    order[#order + 1] = key
    if #order > KEPT then cache[table.remove(order, 1)] = nil end
  end
  return found
end

--- The grammar of a format; nil for text.
-- @param format as FORMAT checked it, or a schema under json_schema
-- @param path of the field, for messages
function M.grammar_of(format, path)
  if not format or format.type == "text" then return nil end
  local schema, lenient = { type = "object" }, nil
  if format.type == "json_schema" then
    if not format.json_schema then fields.wrong(path .. ".json_schema", "is missing") end
    schema, lenient = format.json_schema.schema, format.json_schema.strict == false
    if type(schema) ~= "table" and type(schema) ~= "boolean" then fields.wrong(path .. ".json_schema.schema", "must be an object") end
  end
  local text = core.json_encode(schema, { sort = true, exact = true })
  local made, message, code = cached((lenient and "lenient " or "strict ") .. text, function()
    return grammar.json_schema(text, { strict = not lenient })
  end)
  if not made then error(errors.of(message, code == "memory" and code or "unsupported", path), 0) end
  return made
end

local function gbnf(text)
  local made, message, code = cached("gbnf " .. text, function() return grammar.gbnf(text) end)
  if not made then error(errors.of(message, code, "grammar"), 0) end
  return made
end

-- ---- Options -------------------------------------------------------------------------------------------------------------

local function bias_of(server, bias)
  local out, vocab = {}, server.model.vocab
  for key, value in pairs(bias) do
    local id = math.tointeger(tonumber(key))
    if not id or tostring(id) ~= key or id < 0 or id >= vocab then -- "5" and "5.0" would be two values for one token
      fields.wrong("logit_bias", "has the key %s: keys are token ids, 0 .. %d", tostring(key), vocab - 1)
    end
    if type(value) ~= "number" or value < -100 or value > 100 then
      fields.wrong("logit_bias", "maps %d to something else than a number of -100 .. 100", id)
    end
    out[id] = value == -100 and -math.huge or value
  end
  return out
end

--- Options of generate for checked fields.
-- @param format of response_format, or nil
-- @param format_path its path
-- @raise a failure; 400 if the model has no tokenizer, because the answers are texts
function M.options(server, values, format, format_path)
  local defaults = server.defaults
  if not server.model.tokenizer then errors.raise(400, "the model has no tokenizer, so it writes no text", { code = "unsupported" }) end
  local opts = {
    temperature = values.temperature or defaults.temperature, top_p = values.top_p or defaults.top_p,
    top_k = values.top_k or defaults.top_k, min_p = values.min_p or defaults.min_p,
    repeat_penalty = values.repeat_penalty or defaults.repeat_penalty,
    seed = values.seed, stop = values.stop and (type(values.stop) == "table" and setmetatable(values.stop, nil) or values.stop),
    ignore_eos = values.ignore_eos, time_limit = server.opts.time_limit,
  }
  if values.logit_bias then opts.logit_bias = bias_of(server, values.logit_bias) end
  opts.grammar = M.grammar_of(format, format_path or "response_format")
  if values.grammar then
    if opts.grammar then fields.wrong("grammar", "cannot be combined with %s", format_path or "response_format") end
    opts.grammar = gbnf(values.grammar)
  end
  return opts
end

-- ---- Results -------------------------------------------------------------------------------------------------------------

local REASONS = { length = "length", context = "length", time = "length" }

--- OpenAI's finish_reason of a result.
function M.reason(result)
  if result.tool_calls and #result.tool_calls > 0 and not REASONS[result.stop] then return "tool_calls" end
  return REASONS[result.stop] or "stop"
end

--- OpenAI's usage of the results of one prompt, or of several: the first result of each further one has own_prompt.
function M.usage(results)
  local prompt, reply, cached_tokens = 0, 0, 0
  for i, result in ipairs(results) do
    reply = reply + #result.ids
    if i == 1 or result.own_prompt then
      prompt, cached_tokens = prompt + #result.prompt_ids, cached_tokens + result.timings.cached_tokens
    end
  end
  return {
    prompt_tokens = prompt, completion_tokens = reply, total_tokens = prompt + reply,
    prompt_tokens_details = { cached_tokens = cached_tokens },
  }
end

return M
