--- The tiny privacy filter with a tokenizer of as many tokens, for specs: its file has none.
-- Usage: `local model <close> = filter.load {activations = "fp32"}`

local core = require "ane.core"

local M = { path = "spec/fixtures/hf/privacy_filter" }

--- A tokenizer of 512 byte-level tokens.
function M.tokenizer()
  local source <close> = assert(core.open "spec/fixtures/tokenizer/llama-bias.gguf")
  return assert(require("ane.tokenizer").new(source))
end

--- The loaded model; labels do not mean anything, its weights are random.
function M.load(opts)
  local model = assert(require("ane").load(M.path, opts))
  model.tokenizer = M.tokenizer()
  return model
end

return M
