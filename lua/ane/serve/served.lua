--- What the endpoints need to know about the model that they serve.
-- Needs nothing. Usage: `local kind, name = served.kind(model), served.name(model)`

local M = {}

local KINDS = { token_classifier = "labels", embedding = "vectors", reranker = "scores" }

--- The kind of a model, by what it computes: "text", "labels", "vectors" or "scores".
function M.kind(model) return KINDS[model.config.kind] or "text" end

--- Does a model do what an endpoint needs, which is one of these kinds? A language model that answers yes or no (Qwen3-Reranker) scores
-- texts too.
function M.does(model, need)
  local kind = M.kind(model)
  if kind == need then return true end
  return kind == "text" and need == "scores" and model:rerank("", {}) ~= nil
end

--- The name of a model in requests and answers: that of its file or folder, without ".gguf".
function M.name(model)
  local name = (model.path or "model"):gsub("/+$", ""):match "([^/]+)$" or "model"
  return (name:gsub("%.gguf$", ""))
end

return M
