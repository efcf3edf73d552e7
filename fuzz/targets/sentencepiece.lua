--- tokenizer.model: SentencePiece's protobuf.
local Tokenizer = require "ane.tokenizer"
local core = require "ane.core"
local promise = require "lib.promise"
local scratch = require "lib.scratch"
local words = require "lib.words"

local M = { mutate = require "lib.mutate_proto".mutate }

local folder = scratch.folder "sentencepiece"

function M.run(data)
  scratch.write("sentencepiece/tokenizer.model", data)
  local tokenizer = promise.keep("tokenizer", Tokenizer.new(folder))
  if tokenizer then words.use(tokenizer) end
end

function M.seeds()
  local out = {}
  for name, text in pairs(assert(core.json_decode(scratch.read "spec/fixtures/tokenizer/sentencepiece.json")).models) do
    out[#out + 1] = { name, core.base64_decode(text) }
  end
  table.sort(out, function(a, b) return a[1] < b[1] end)
  return out
end

return M
