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

--- A logits_processor with which a model says a text, token by token, and then ends. The model says a forbidden token
-- nevertheless if it can.
function M.saying(model, text)
  local ids = assert(model.tokenizer:encode(text, { bos = false, eos = false }))
  ids[#ids + 1] = model.tokenizer.eos_ids[1]
  local at
  return function(logits, all)
    at = at or #all
    local id = ids[#all - at + 1]
    if id then logits:set(id + 1, 1000) end
  end
end

return M
