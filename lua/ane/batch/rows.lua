--- Parses the rows of a batch and formats the lines of their answers. A row is a request of OpenAI's Batch files, or a plain object.
-- Needs ane.core, ane.batch.input, ane.util.exact, ane.util.keys and ane.serve.errors, fields.
-- Usage: `local asked = rows.read(row, settings); local line = rows.answer(row, asked, 200, body)`

local core = require "ane.core"
local errors = require "ane.serve.errors"
local exact = require "ane.util.exact"
local fields = require "ane.serve.fields"
local inputs = require "ane.batch.input"
local keys = require "ane.util.keys"

local M = {}

--- Tasks by the URL of a request.
M.urls = {
  ["/v1/chat/completions"] = "chat", ["/v1/completions"] = "completion", ["/v1/responses"] = "responses", ["/v1/embeddings"] = "embed",
  ["/v1/rerank"] = "rerank", ["/classify"] = "classify", ["/v1/classify"] = "classify", ["/redact"] = "redact",
  ["/v1/redact"] = "redact", ["/score"] = "score", ["/v1/score"] = "score",
}

--- The kind of model that a task needs.
M.kinds = {
  chat = "text", completion = "text", responses = "text", score = "text", embed = "vectors", rerank = "scores", classify = "labels",
  redact = "labels",
}

-- Default task of a plain row, by the kind of the model. nil: the row's fields decide.
local DEFAULT = { labels = "redact", vectors = "embed", scores = "rerank" }

-- Is a field absent? One that is null counts as absent.
local function is_absent(value) return value == nil or value == core.null end

-- ---- Requests ----------------------------------------------------------------------------------------------------------------

local REQUEST = {
  custom_id = { type = "string", required = true },
  method = { only = { "POST" } },
  url = { type = "string", required = true },
  body = { object = true, required = true },
}

-- The path of a URL, without the server and a last "/".
local function path_of(url) return (url:gsub("^%a+://[^/]*", ""):gsub("/$", "")) end

local function names_of(map) return table.concat(keys(map), ", ") end

local function of_request(value)
  local checked = fields.check(REQUEST, value)
  local task = M.urls[path_of(checked.url)]
  if not task then fields.wrong("url", "is %s: choose %s", checked.url, names_of(M.urls)) end
  return task, value.body
end

-- ---- Plain rows --------------------------------------------------------------------------------------------------------------

local function message_of(text) return core.json_array { { role = "user", content = text } } end

-- Moves field `from` to `to`, unless `to` is set.
local function move(body, from, to, convert)
  if body[from] == nil or body[to] ~= nil then return end
  body[to], body[from] = convert and convert(body[from]) or body[from], nil
end

-- Moves the field of the text to the field that the task's endpoint reads.
local FIELD = {
  chat = function(body)
    move(body, "text", "messages", message_of)
    move(body, "prompt", "messages", message_of)
  end,
  completion = function(body) move(body, "text", "prompt") end,
  embed = function(body) move(body, "text", "input") end,
  classify = function(body) move(body, "text", "input") end,
  redact = function(body) move(body, "text", "input") end,
}

-- The task that the fields of a plain row of a language model belong to.
local function guess(body)
  if body.messages ~= nil then return "chat" end
  if body.query ~= nil and body.documents ~= nil then return "rerank" end -- refused by name, unless the model answers yes or no
  return "completion"
end

-- Fields with what a row is about. One that is null is left out: tables of rows of several tasks have them. Other fields that are null
-- replace those of the option body.
local ABOUT = { text = true, prompt = true, messages = true, input = true, query = true, documents = true }

local OF_ROW = { id = true, custom_id = true, task = true, body = true, url = true }

local function of_plain(value, settings)
  local body = core.json_object()
  for name, v in pairs(value) do
    if not OF_ROW[name] and not (ABOUT[name] and v == core.null) then body[name] = v end
  end
  if not is_absent(value.task) and not M.kinds[value.task] then
    fields.wrong("task", "is %s, which is not a task: choose %s", core.json_encode(value.task), names_of(M.kinds))
  end
  local task = M.kinds[value.task] and value.task or settings.task or DEFAULT[settings.kind] or guess(body)
  if FIELD[task] then FIELD[task](body) end
  return task, body
end

-- Defaults of plain rows that generate text: greedy, up to an end token.
local function plain_defaults(task, body, settings)
  if settings.task_kinds[task] ~= "text" or task == "score" then return end
  if is_absent(body.temperature) then body.temperature = 0 end
  if task == "completion" and is_absent(body.max_tokens) then body.max_tokens = settings.context end
end

local function object_of(row, settings)
  if settings.form ~= "jsonl" then
    if not utf8.len(row.text) then
      local fault = row.id and inputs.start_fault(row.text)
      errors.raise(400, fault and ("%s: %s"):format(row.id, fault) or "the text is not UTF-8", { code = "invalid_value" })
    end
    local value = core.json_object()
    value.id, value.text = row.id, row.text
    return value
  end
  local value, message = core.json_decode(row.text, { exact = true })
  if value == nil then errors.raise(400, "the row is not JSON: " .. message, { code = "invalid_json" }) end
  if not fields.is_object(value) then errors.raise(400, "the row must be a JSON object", { code = "invalid_json" }) end
  return value
end

-- The fault of a row that could not be read whole.
local function raise_fault(row)
  if row.text == "" then errors.raise(400, row.fault, { code = "io" }) end
  errors.raise(413, row.fault, { code = "row_too_large" })
end

-- A number of the row with its text: 1.50 stays 1.50. An integer has one text only (-0 is a float), so the row is not decoded again.
local function as_written(row, name, id)
  if math.type(id) == "integer" then return id end
  return core.json_decode(row.text, { exact = "texts" })[name]
end

-- Sets the id of the answer: a string or a number, as it is written in the row.
local function read_id(asked, value, row)
  local name = (asked.request or is_absent(value.id)) and "custom_id" or "id"
  local id = value[name]
  if is_absent(id) then return end
  if type(id) == "string" then
    asked.id = id
  elseif type(exact.number(id)) == "number" then
    asked.id = as_written(row, name, id)
  elseif not asked.request then
    fields.wrong(name, "must be a string or a number")
  end
end

--- Reads a row. Sets asked.request and asked.id first, so that a failure is answered in the form of the row.
-- @param asked table that is filled: request (true: in OpenAI's form), id (nil: none), task, body
-- @param row of ane.batch.input
-- @param settings form, task (or nil), kind (of the model), body (defaults of fields), context, task_kinds, does
-- (function(kind that a task needs) -> whether the model does it)
-- @raise a failure of ane.serve.errors
function M.read(asked, row, settings)
  if row.id then asked.id = row.id end
  if row.fault then raise_fault(row) end
  local value = object_of(row, settings)
  asked.request = not is_absent(value.body) or not is_absent(value.url)
  read_id(asked, value, row)
  local task, body
  if asked.request then task, body = of_request(value) else task, body = of_plain(value, settings) end
  for name, v in pairs(settings.body) do
    if body[name] == nil then body[name] = v end
  end
  if not asked.request then plain_defaults(task, body, settings) end
  asked.task, asked.body = task, body
  if not settings.does(settings.task_kinds[task]) then
    errors.raise(400, ("the model does not support the task %s"):format(task), { code = "unsupported" })
  end
  if body.stream == true then fields.unsupported("stream", "is not supported in a batch") end
end

-- ---- Answers -----------------------------------------------------------------------------------------------------------------

-- Set the fields of a plain answer from the body of an endpoint's answer, by task.
local PLAIN = {
  chat = function(out, body)
    out.usage = body.usage
    local choice = body.choices[1]
    if #body.choices > 1 then
      out.choices = body.choices
      return
    end
    out.text, out.tool_calls, out.finish_reason = choice.message.content, choice.message.tool_calls, choice.finish_reason
    if choice.logprobs ~= core.null then out.logprobs = choice.logprobs end
  end,
  completion = function(out, body)
    out.usage = body.usage
    local choice = body.choices[1]
    if #body.choices > 1 then
      out.choices = body.choices
      return
    end
    out.text, out.finish_reason = choice.text, choice.finish_reason
    if choice.logprobs ~= core.null then out.logprobs = choice.logprobs end
  end,
  embed = function(out, body)
    out.usage = body.usage
    if #body.data == 1 then
      out.embedding = body.data[1].embedding
      return
    end
    out.embeddings = core.json_array()
    for i, one in ipairs(body.data) do out.embeddings[i] = one.embedding end
  end,
}

local function plain_answer(out, task, body)
  if PLAIN[task] then return PLAIN[task](out, body) end
  for name, value in pairs(body) do
    if name ~= "model" and name ~= "id" then out[name] = value end
  end
end

--- Formats the line of an answer. It depends on the row, its number and the answer only.
-- @param row of ane.batch.input, with its key
-- @param asked as M.read has filled it
-- @param status of HTTP. 200: body is an answer; else body is {error = {message, type, param, code}}
-- @return the line, with its line end
function M.answer(row, asked, status, body)
  local out = core.json_object()
  if asked.request then
    local id = ("%016x"):format(row.key)
    out.id, out.custom_id = "batch_req_" .. id, asked.id or core.null
    out.response = { status_code = status, request_id = "req_" .. id, body = body }
    out.error = status ~= 200 and { code = body.error.code, message = body.error.message } or core.null
  else
    if asked.id ~= nil then out.id = asked.id else out.line = row.number end
    if status == 200 then plain_answer(out, asked.task, body) else out.error = body.error end
  end
  return core.json_encode(out, { sort = true }) .. "\n"
end

return M
