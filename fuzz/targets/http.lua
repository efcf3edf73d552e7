--- Requests of the server: a line "METHOD path", lines of headers, an empty line, the body; several requests are parts of a bundle.
-- The server's own code answers them. The sockets below it (csrc/http, libmicrohttpd) are replaced by tables, so that a run has no
-- waits and no threads.
local ane = require "ane"
local bundle = require "lib.bundle"
local core = require "ane.core"
local mutate_json = require "lib.mutate_json"

local M = { lines = true }

local WORDS = {
  "messages", "role", "content", "user", "assistant", "tool", "tools", "tool_calls", "function", "prompt", "stream", "max_tokens", "n",
  "best_of",
  "logprobs", "top_logprobs", "logit_bias", "stop", "temperature", "top_p", "top_k", "min_p", "seed", "response_format", "json_schema",
  "json_object", "grammar", "regex", "tool_choice", "required", "auto", "stream_options", "include_usage", "input", "instructions",
  "text", "echo",
  "suffix", "n_predict", "repeat_penalty", "model", "max_completion_tokens", "parallel_tool_calls", "input_text", "image_url", "type",
}
M.words = WORDS

local body = mutate_json.mutator(WORDS)

local function request(text, most, random, bytes)
  local head, rest = text:match "^(.-\n\n)(.*)$"
  if not head or random(6) == 0 then return bytes(text, most) end
  return head .. body(rest, most - #head, random, bytes)
end

M.mutate = bundle.mutator(request)

-- ---- An exchange of core.http, made of a text --------------------------------------------------------------------------------

local Exchange = {}
Exchange.__index = Exchange
M.Exchange = Exchange

local function exchange(text)
  local head, rest = text:match "^(.-)\r?\n\r?\n(.*)$"
  head, rest = head or text, rest or ""
  local self = setmetatable({ headers = {}, body = rest, size = 0 }, Exchange)
  self.method, self.path = head:match "^(%S+) +([^ ?\r\n]*)"
  for name, value in head:gmatch "\n([^:\r\n]+): *([^\r\n]*)" do self.headers[name:lower()] = value end
  return self
end

function Exchange:request()
  return { method = self.method or "GET", path = self.path or "/", body = self.body, authorised = true, too_large = false, crowded = false }
end

function Exchange:header(name) return self.headers[name:lower()] end

-- What is refused by the real exchange: a status out of range, headers with line ends.
local function check(status, headers)
  assert(math.type(status) == "integer" and status >= 200 and status <= 599, "status")
  for name, value in pairs(headers) do assert(not (name .. value):find "[\r\n%z]", "header " .. name) end
end

function Exchange:reply(status, headers, text)
  check(status, headers)
  assert(not self.status, "answered twice")
  assert(type(text) == "string")
  self.status = status
  return true
end

function Exchange:begin(status, headers)
  check(status, headers)
  assert(not self.status, "answered twice")
  self.status = status
  return true
end

function Exchange:write(text)
  self.size = self.size + #text
  return self.size < 1 << 20
end

function Exchange.finish() end
function Exchange.pending() return 0 end
function Exchange.full() return false end
function Exchange.gone() return false end
function Exchange:close() self.closed = true end

local waiting = {}
local sockets = {
  port = function() return 1 end, wait = function() end, look = function() end, busy = function() return 0 end, quiesce = function() end,
  connections = function() return 0 end, close = function() end, take = function() return table.remove(waiting, 1) end,
}

-- ---- Runs --------------------------------------------------------------------------------------------------------------------

local model = assert(ane.load("spec/fixtures/gguf/llama-q8_0.gguf", { threads = 1, context = 256 }))

local function complain(line) error("the server complains: " .. line) end

local function server()
  local real = core.http
  core.http = function() return sockets end
  local made = assert(ane.serve(model, { sessions = 2, queue = 4, metrics = true, time_limit = 5, complain = complain }))
  core.http = real
  return made
end

--- Sends requests to a server until all are answered.
-- @return the statuses, in the order of the requests
function M.run(data)
  local parts, names = bundle.split(data)
  local s <close> = server()
  local all = {}
  for i, name in ipairs(names) do
    all[i] = exchange(parts[name])
    waiting[#waiting + 1] = all[i]
  end
  repeat s:turn(0) until #waiting == 0 and s:stats().replies == 0
  local statuses = {}
  for i, x in ipairs(all) do
    assert(x.closed and x.status, ("request %d got no answer"):format(i))
    statuses[i] = x.status
  end
  return statuses
end

local JSON = "Content-Type: application/json\nHost: localhost\n\n"

function M.seeds()
  local function post(name, path, text) return { name, ("POST %s HTTP/1.1\n%s%s"):format(path, JSON, text) } end
  local chat = '{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],"max_tokens":3'
  return {
    { "page", "GET / HTTP/1.1\nHost: localhost\n\n" }, { "metrics", "GET /metrics HTTP/1.1\n\n" }, { "model",
      "GET /v1/models/x HTTP/1.1\n\n" },
    { "props", "HEAD /props HTTP/1.1\nOrigin: http://localhost\n\n" },
    { "options", "OPTIONS /v1/completions HTTP/1.1\nOrigin: http://localhost\nHost: localhost\n\n" },
    post("chat", "/v1/chat/completions", chat .. "}"),
    post("stream", "/v1/chat/completions",
      chat .. ',"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2}'),
    post("schema", "/v1/chat/completions", chat .. ',"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":'
      .. '{"type":"object","properties":{"a":{"type":"integer"}}}}}}'),
    post("tools", "/v1/chat/completions", chat .. ',"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",'
      .. '"properties":{"x":{"type":"string"}}}}}],"tool_choice":"required"}'),
    post("completion", "/v1/completions", '{"prompt":["a","b"],"max_tokens":2,"n":2,"echo":true,"logprobs":1,"stop":["x"],"seed":3}'),
    post("ids", "/v1/completions", '{"prompt":[1,2,3],"max_tokens":2,"logit_bias":{"5":-100},"temperature":0}'),
    post("llama", "/completion", '{"prompt":"a","n_predict":2,"top_k":3,"min_p":0.1,"repeat_penalty":1.1}'),
    post("responses", "/v1/responses", '{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}],"max_output_tokens":2}'),
    post("tokenize", "/tokenize", '{"content":"hello","add_special":true,"with_pieces":true}'),
    post("detokenize", "/detokenize", '{"tokens":[1,2,3]}'), post("embeddings", "/v1/embeddings", '{"input":["a"]}'),
    { "two", bundle.join { { "1", "POST /v1/completions HTTP/1.1\n" .. JSON .. '{"prompt":"a","max_tokens":2}' },
      { "2", "POST /v1/chat/completions HTTP/1.1\n" .. JSON .. chat .. ',"stream":true}' } } },
  }
end

return M
