-- Greedy decoding that drafts the next tokens from earlier text and checks them in one call. This is the loop of `speculate = true`,
-- without its decision when drafting pays. The text equals that of plain decoding, to the last token.
-- Usage: lua5.4 examples/speculate.lua MODEL.gguf ["Text to continue"]

local ane = require "ane"

if not arg[1] then
  io.stderr:write 'usage: lua5.4 examples/speculate.lua MODEL.gguf ["Text to continue"]\n'
  os.exit(2)
end

local path, text = arg[1], arg[2] or "One two three four. One two three four. One two"
local model <close> = assert(ane.load(path, { context = 512 }))
local session <close> = assert(model:session())
local ids = assert(model.tokenizer:encode(text, { eos = false }))
local drafter, calls, wanted = ane.drafter(ids), 0, #ids + 64

assert(session:feed(table.move(ids, 1, #ids - 1, 1, {}), { want = "none" }))
while #ids < wanted do
  local draft = drafter:draft(math.min(7, wanted - #ids)) or {}
  local fed = table.move(draft, 1, #draft, 2, { ids[#ids] })
  assert(session:feed(fed, { want = "argmax" })) -- the weights are read once for all of them
  calls = calls + 1
  for row = 1, #fed do
    local id = session:argmax(row) -- the token after the row-th token fed
    ids[#ids + 1] = id
    drafter:push(id)
    if id ~= draft[row] or #ids == wanted then break end -- the rest of the draft differs from the model's choice
  end
  assert(session:rewind(math.min(session.length, #ids - 1)))
end

io.write(assert(model.tokenizer:decode(ids)), "\n[64 tokens in ", calls, " calls]\n")
local plain = assert(model:generate(text, { max_tokens = 64, ignore_eos = true, details = true }))
assert(table.concat(table.move(ids, #ids - 63, #ids, 1, {}), ",") == table.concat(plain.ids, ","))
