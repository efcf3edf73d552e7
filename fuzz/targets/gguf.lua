--- GGUF files: the tensors one by one, then the model.
local use = require "lib.use"
local scratch = require "lib.scratch"

local M = { mutate = require "lib.mutate_gguf".mutate }

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
