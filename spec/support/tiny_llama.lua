--- A llama of one layer as a GGUF description, for files with one error.
--
--   local path = tiny_llama.write(function(file, set) set("llama.block_count", "uint32", 0) end)

local floats = require "support.floats"
local gguf = require "support.gguf_writer"

local M = {}

local function tensor(name, ...)
  local n = 1
  for _, d in ipairs { ... } do n = n * d end
  return { name = name, dtype = "fp32", shape = { ... }, data = floats.uniform(n, #name, 0.4) }
end

function M.file()
  return {
    values = {
      { "general.architecture", "string", "llama" }, { "general.name", "string", "tiny" }, { "llama.block_count", "uint32", 1 },
      { "llama.embedding_length", "uint32", 16 }, { "llama.feed_forward_length", "uint32", 24 },
      { "llama.attention.head_count", "uint32", 4 }, { "llama.attention.head_count_kv", "uint32", 2 },
      { "llama.attention.layer_norm_rms_epsilon", "float32", 1e-5 },
      { "llama.context_length", "uint32", 32 }, { "llama.vocab_size", "uint32", 20 }, { "tokenizer.ggml.model", "string", "none" },
    },
    tensors = {
      tensor("token_embd.weight", 20, 16), tensor("output_norm.weight", 16), tensor("blk.0.attn_norm.weight", 16),
      tensor("blk.0.attn_q.weight", 16, 16), tensor("blk.0.attn_k.weight", 8, 16), tensor("blk.0.attn_v.weight", 8, 16),
      tensor("blk.0.attn_output.weight", 16, 16), tensor("blk.0.ffn_norm.weight", 16), tensor("blk.0.ffn_gate.weight", 24, 16),
      tensor("blk.0.ffn_up.weight", 24, 16), tensor("blk.0.ffn_down.weight", 16, 24),
    },
  }
end

local function index(list, key, name)
  for i, entry in ipairs(list) do
    if entry[key] == name then return i end
  end
end

--- The path of a file changed by change(file, set, replace): set(key, type, value) puts or (no type) removes a value,
-- replace(name, ...) gives a tensor another shape, or (no shape) removes it.
function M.write(change)
  local file = M.file()
  if change then
    change(file, function(key, kind, value)
      local at = index(file.values, 1, key) or #file.values + 1
      if kind then file.values[at] = { key, kind, value } else table.remove(file.values, at) end
    end, function(name, ...)
      local at = index(file.tensors, "name", name) or #file.tensors + 1
      if ... then file.tensors[at] = tensor(name, ...) else table.remove(file.tensors, at) end
    end)
  end
  return gguf.write(gguf.temp(), file)
end

return M
