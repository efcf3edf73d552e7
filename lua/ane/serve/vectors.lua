--- POST /v1/embeddings, for embedding models, and /v1/rerank, for rerankers.
-- Needs ane.core and ane.serve.base64, completions, errors, fields, and ane.util.failure. A request is computed in several turns of the
-- server, one run of the model in each.

local base64 = require "ane.serve.base64"
local completions = require "ane.serve.completions"
local core = require "ane.core"
local errors = require "ane.serve.errors"
local failures = require "ane.util.failure"
local fields = require "ane.serve.fields"

local M = {}

--- The fields of POST /v1/embeddings.
M.embedding_rules = {
  model = { type = "string" },
  input = { type = { "string", "table" }, wanted = "a string or a list", required = true },
  dimensions = { type = "integer", min = 1 },
  encoding_format = { type = "string", choices = { "float", "base64" }, default = "float" },
  prompt_name = { type = "string" },
  user = { type = "string", unused = true },
}

-- Beginnings of messages of Model:embed, and the fields that they are about.
local ABOUT = { ["option dims"] = "dimensions", ["the model has no prompt"] = "prompt_name" }

--- The failure of a request of embeddings.
-- @param message, code of Model:embed
function M.failure(message, code)
  message = tostring(message)
  for start, field in pairs(ABOUT) do
    if message:sub(1, #start) == start then
      message = field == "dimensions" and "field dimensions" .. message:sub(#start + 1) or message
      return errors.new(400, message, { param = field, code = "invalid_value" })
    end
  end
  if message:find("is not in 0 .. ", 1, true) then return errors.new(400, message, { param = "input", code = "invalid_value" }) end
  return errors.of(message, code, "input")
end

-- Calls a method of the model. Misuse raised there is a fault of the request.
-- @param failure function(message, code) -> the failure that it stands for
local function ask(param, failure, f, ...)
  local results = table.pack(pcall(f, ...))
  if not results[1] then
    if failures.is_interrupt(results[2]) then error(results[2], 0) end
    local message = tostring(results[2]):gsub("^%S+%.lua:%d+: ", "")
    errors.raise(400, message, { param = param, code = "invalid_value" })
  end
  if results[2] == nil then error(failure(results[3], results[4]), 0) end
  return table.unpack(results, 2, results.n)
end

--- A vector for JSON.
-- @param row tensor [dims]
-- @param format "float": a list of numbers; "base64": of little-endian float32
function M.embedding(row, format)
  if format == "base64" then return base64.encode(row:tostring()) end
  return core.json_array(row:totable())
end

--- Checks a request of embeddings.
-- @return its fields, its texts and lists of ids, the options of Model:embed
function M.read_embeddings(server, body)
  local values = fields.check(M.embedding_rules, body)
  server:check_model(values.model)
  local inputs = completions.prompts(values.input, "input", nil, completions.most_embedded)
  return values, inputs, { dims = values.dimensions, prompt = values.prompt_name, details = true }
end

--- The answer to a request of embeddings.
-- @param values its fields
-- @param result of Model:embed: embeddings (tensor [texts, dims]), dim, tokens
-- @param first, last the rows of the result that are this request's; default: all
function M.embeddings_answer(server, values, result, first, last)
  if values.dimensions and result.dim ~= values.dimensions then
    fields.wrong("dimensions", "is %d: the model's vectors have %d numbers", values.dimensions, result.dim)
  end
  local data, tokens = core.json_array(), 0
  for i = first or 1, last or #result.tokens do
    data[#data + 1] = { object = "embedding", index = #data, embedding = M.embedding(result.embeddings[i], values.encoding_format) }
    tokens = tokens + result.tokens[i]
  end
  return {
    object = "list", model = server.id, data = data, usage = { prompt_tokens = tokens, total_tokens = tokens },
    truncated = not first and result.truncated or nil, -- of all texts of the request
  }
end

--- POST /v1/embeddings
function M.embeddings(server, call, body)
  local values, inputs, opts = M.read_embeddings(server, body)
  local model = server.model
  server:work(call, function(pause)
    opts.progress = pause
    return M.embeddings_answer(server, values, ask("input", M.failure, model.embed, model, inputs, opts))
  end)
end

local RERANK = {
  model = { type = "string" },
  query = { type = "string", required = true },
  documents = { list = true, required = true },
  top_n = { type = "integer", min = 1 },
  return_documents = { type = "boolean", default = false },
  instruction = { type = "string" },
}

local MOST_DOCUMENTS = 1000

--- POST /v1/rerank, in the form of Jina and Cohere.
function M.rerank(server, call, body)
  local values = fields.check(RERANK, body)
  server:check_model(values.model)
  local documents = {}
  if #values.documents > MOST_DOCUMENTS then fields.wrong("documents", "has more than %d texts", MOST_DOCUMENTS) end
  for i, document in ipairs(values.documents) do
    local text = type(document) == "table" and document.text or document
    if type(text) ~= "string" then fields.wrong(("documents[%d]"):format(i - 1), "must be a text") end
    documents[i] = text
  end
  if #documents == 0 then fields.wrong("documents", "is empty") end
  local model = server.model
  if (model.config.n_scores or 1) > 1 then
    errors.raise(400, "the model's classifier has several labels, which give documents no order: model:rerank and ane rerank list them",
      { code = "unsupported" })
  end
  server:work(call, function(pause)
    local function failure(message, code)
      local about = message:match "^option instruction(.*)"
      return about and errors.of("field instruction" .. about, code, "instruction") or errors.of(message, code, "documents")
    end
    local found = ask("documents", failure, model.rerank, model, values.query, documents,
      { instruction = values.instruction, details = true, progress = pause })
    local results, total = core.json_array(), 0
    for _, n in ipairs(found.tokens) do total = total + n end
    for place = 1, math.min(values.top_n or #found.order, #found.order) do
      local i = found.order[place]
      results[place] = {
        index = i - 1, relevance_score = found.scores[i], document = values.return_documents and { text = documents[i] } or nil,
      }
    end
    return {
      id = server:new_id "rerank-", model = server.id, results = results, usage = { total_tokens = total }, truncated = found.truncated,
    }
  end)
end

return M
