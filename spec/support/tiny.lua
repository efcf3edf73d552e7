--- Tiny real models of spec/fixtures/gguf, for specs.
-- Usage: `local model = tiny.load(); local other = tiny.load("llama-kquants", {activations = "fp32"})`

local M = {}

--- Path of a fixture; default a Llama of 3 layers with 1024 tokens, a tokenizer and a chat template.
function M.path(name)
  return ("spec/fixtures/gguf/%s.gguf"):format(name or "llama-q8_0")
end

--- A loaded model.
function M.load(name, opts)
  return assert(require("ane").load(M.path(name), opts))
end

return M
