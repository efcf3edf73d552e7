--- GGUF files: the tensors one by one, then the model.
local use = require "lib.use"
local scratch = require "lib.scratch"

local M = { mutate = require "lib.mutate_gguf".mutate }

M.words = {
  "general.architecture", "general.alignment", "llama.block_count", "llama.embedding_length", "llama.attention.head_count",
  "llama.attention.head_count_kv", "llama.rope.dimension_count", "llama.rope.scaling.type", "llama.expert_count", "llama.context_length",
  "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
  "tokenizer.ggml.eos_token_id", "tokenizer.chat_template", "gpt2", "llama", "qwen2", "gemma3", "rope_freqs.weight", "output.weight",
}

function M.run(data)
  local path = scratch.write("model.gguf", data)
  use.tensors(path)
  use.model(path, data)
end

--- Inputs made of the fixtures: list of {name, bytes}.
function M.seeds()
  local gguf = require "support.gguf_writer"
  return {
    { "llama", (gguf.bytes(require "support.tiny_llama".file())) },
    { "kv-types", scratch.read "spec/fixtures/gguf/kv-types.gguf" },
    { "starcoder2", scratch.read "spec/fixtures/gguf/starcoder2-odd.gguf" },
  }
end

return M
