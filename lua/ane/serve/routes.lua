--- The endpoints, one row each.
-- Needs nothing. A row's module is loaded at its first request.
-- Usage: `local route, id, allowed = routes.find("POST", "/v1/chat/completions")`

local M = {}

-- method, path (a last "*" stands for an id), module, function (default handle); open: no key is needed; needs: a kind of model. The
-- function is called as handle(server, call, body, id): body is the decoded JSON object, or nil; id is what "*" stands for. It answers
-- through call (ane.serve.call), or throws an error of ane.serve.errors
M.rows = {
  { "GET", "/", "about", "page", open = true },
  { "GET", "/health", "about", "health", open = true },
  { "GET", "/v1/health", "about", "health", open = true },
  { "GET", "/v1/models", "about", "models" },
  { "GET", "/v1/models/*", "about", "model" },
  { "GET", "/props", "about", "props" },
  { "POST", "/v1/chat/completions", "chat", needs = "text" },
  { "POST", "/v1/completions", "completions", needs = "text" },
  { "POST", "/v1/responses", "responses", needs = "text" },
  { "POST", "/completion", "completion", needs = "text" },
  { "POST", "/v1/embeddings", "vectors", "embeddings", needs = "vectors" },
  { "POST", "/v1/rerank", "vectors", "rerank", needs = "scores" },
  { "POST", "/classify", "labels", "classify", needs = "labels" },
  { "POST", "/redact", "labels", "redact", needs = "labels" },
  { "POST", "/tokenize", "tokens", "tokenize" },
  { "POST", "/detokenize", "tokens", "detokenize" },
  { "GET", "/metrics", "metrics" },
}

-- The id in a path that matches a row; nil: no match.
local function fits(row, path)
  local start = row[2]:match "^(.*)%*$"
  if not start then return row[2] == path and "" or nil end
  return #path > #start and path:sub(1, #start) == start and path:sub(#start + 1) or nil
end

--- The row of a request.
-- @return row, the id in its path; or nil, nil, list of the methods that the path supports, the path of their rows (nil: none)
function M.find(method, path)
  local allowed, known = {}, nil
  for _, row in ipairs(M.rows) do
    local id = fits(row, path)
    if id and (row[1] == method or row[1] == "GET" and method == "HEAD") then return row, id end
    if id then allowed[#allowed + 1], known = row[1], row[2] end
  end
  return nil, nil, allowed, known
end

--- The function that answers a row's requests: function(server, call, body, id).
function M.handler(row) return require("ane.serve." .. row[3])[row[4] or "handle"] end

return M
