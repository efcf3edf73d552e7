-- Eight conversations at once: each is a coroutine that waits for its reply while the pool computes the others.
-- Usage: lua5.4 examples/many.lua MODEL.gguf [TURNS]

local ane = require "ane"

local turns = math.tointeger(tonumber(arg[2] or 2))
if not arg[1] or not turns then
  io.stderr:write "usage: lua5.4 examples/many.lua MODEL.gguf [TURNS]\n"
  os.exit(2)
end

local model <close> = assert(ane.load(arg[1], { progress = true }))
local pool <close> = assert(model:pool { sessions = 8 })

-- The turns of one person. While the reply is not ready, the coroutine lets the others run.
local function talk(name)
  local messages = { { role = "system", content = "Be brief." } }
  for turn = 1, turns do
    messages[#messages + 1] = { role = "user", content = ("I am %s. Tell me fact %d about the sea."):format(name, turn) }
    local request = assert(pool:add(messages, { max_tokens = 24 }))
    while not request.done do coroutine.yield() end
    assert(not request.message, request.message)
    -- max_tokens may end a reply inside a character, but the template takes whole ones.
    messages[#messages + 1] = { role = "assistant", content = model.tokenizer:decode(request.result.ids, { utf8 = "replace" }) }
    print(("%s, turn %d: %s"):format(name, turn, messages[#messages].content))
  end
end

local people = {}
for _, name in ipairs { "Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Ivy" } do
  people[#people + 1] = coroutine.create(function() talk(name) end)
end

while #people > 0 do
  for i = #people, 1, -1 do
    assert(coroutine.resume(people[i]))
    if coroutine.status(people[i]) == "dead" then table.remove(people, i) end
  end
  pool:step()
end

local stats = pool:stats()
print(("%d steps, %d tokens of prompts computed and %d known already, %d of replies"):format(stats.steps, stats.prompt_tokens,
  stats.cached_tokens, stats.reply_tokens))
