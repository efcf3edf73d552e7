-- A conversation in the terminal: an empty line ends it.
-- Usage: lua5.4 examples/chat.lua MODEL.gguf ["System message"]

local ane = require "ane"

if not arg[1] then
  io.stderr:write 'usage: lua5.4 examples/chat.lua MODEL.gguf ["System message"]\n'
  os.exit(2)
end

local model <close> = assert(ane.load(arg[1], { progress = true }))
local chat <close> = assert(model:chat { system = arg[2], temperature = 0.7, max_tokens = 256 })

while true do
  io.write "> "
  io.flush()
  local line = io.read "l"
  if not line or line == "" then break end
  local pieces, message = chat:stream(line)
  if pieces then
    for piece in pieces do
      io.write(piece)
      io.flush()
    end
    io.write "\n"
  else
    io.write("(", message, ")\n") -- such as a full context; the messages are unchanged
  end
end

-- The messages are a plain list. Each reply computes only what is new:
if chat.last then
  local t = chat.last.timings
  print(("%d messages; of the last prompt's %d tokens %d were known"):format(#chat.messages, t.prompt_tokens, t.cached_tokens))
end
