-- Writes a reply piece by piece, ends it early, and shows that a seed fixes the text.
-- Usage: lua5.4 examples/stream.lua MODEL.gguf ["Text to continue"]

local ane = require "ane"

if not arg[1] then
  io.stderr:write 'usage: lua5.4 examples/stream.lua MODEL.gguf ["Text to continue"]\n'
  os.exit(2)
end

local path, text = arg[1], arg[2] or "Once upon a time"
local model <close> = assert(ane.load(path, { progress = true }))
local opts = { temperature = 0.8, top_p = 0.95, seed = 1, max_tokens = 64, stop = "\n\n" }

io.write(text)
local pieces = assert(model:stream(text, opts))
for piece in pieces do
  io.write(piece)
  io.flush()
end
io.write("\n[", pieces.result.stop, "]\n")

-- The same seed gives the same text without streaming.
assert(model:generate(text, opts) == pieces.result.text)

-- A loop may be left at any time. Two replies may alternate.
local a, b = model:stream(text, opts), model:stream("In the beginning", opts)
for _ = 1, 5 do io.write("a: ", tostring(a()), "\nb: ", tostring(b()), "\n") end
a:close()
b:close()
