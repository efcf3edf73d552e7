-- Loads a model and continues a text.
-- Usage: lua5.4 examples/hello.lua MODEL.gguf ["Text to continue"]

local ane = require "ane"

if not arg[1] then
  io.stderr:write 'usage: lua5.4 examples/hello.lua MODEL.gguf ["Text to continue"]\n'
  os.exit(2)
end

local path, text = arg[1], arg[2] or "The capital of France is"
local model <close> = assert(ane.load(path))

print(model)
print(text .. assert(model:generate(text, { max_tokens = 16 })))

-- The same with all details of the reply.
local reply = assert(model:generate(text, { max_tokens = 16, details = true, logprobs = 3 }))
for _, token in ipairs(reply.logprobs) do
  local word = model.tokenizer:token(token.id):gsub("\n", "\\n")
  print(("%-16s log probability %.3f"):format('"' .. word .. '"', token.logprob))
end
print(("%d tokens in %.3f s, ended by %s"):format(#reply.ids, reply.timings.decode_s, reply.stop))
