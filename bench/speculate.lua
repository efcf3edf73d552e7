-- Measures the gain of drafting from the prompt: four kinds of prompts, plain and speculative decoding in turns. It checks each
-- time that both give the same tokens.
-- Usage, from the top folder: lua5.4 bench/speculate.lua MODEL.gguf [REPETITIONS] [TOKENS] [THREADS]

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/?.so;" .. package.cpath
local ane = require "ane"
local median = require("ane.evaluate.quantiles").median

local CODE = [[
local function parse_line(line, number)
  local key, value = line:match("^%s*([%w_]+)%s*=%s*(.-)%s*$")
  if not key then
    return nil, ("line %d: no key"):format(number)
  end
  if value:match("^%d+$") then value = tonumber(value) end
  return key, value
end

local function parse_file(path)
  local file = io.open(path)
  local out, number = {}, 0
  for line in file:lines() do
    number = number + 1
    if line ~= "" and line:sub(1, 1) ~= "#" then
      local key, value = parse_line(line, number)
      out[key] = value
    end
  end
  file:close()
  return out
end

return { parse_line = parse_line, parse_file = parse_file }
]]

local ARTICLE = [[
The harbour of the town was built in 1874 by engineers from the capital. "We did not expect the silt," wrote Anna Berg, who
led the works, "and we paid for it for eleven years." The first dredger came in 1879; it sank the same winter. Until 1902 all
goods were landed from barges. The railway, finished in 1903, changed that: "In one summer the barges were gone," the
newspaper said, "and nobody has missed them." Today the harbour serves mainly fishing boats and, in July, sailors. The town
council plans a new breakwater. "It will outlive us all," said the mayor, Jonas Lind, on Monday, "if the silt lets it."
]]

local function edit(how)
  return "Rename the variable `number` to `line_number` everywhere in this Lua code. " .. how .. "\n\n```lua\n" .. CODE .. "```"
end

local PROMPTS = {
  { "code editing", edit "Answer with the whole file only." },
  { "explained edit", edit "Print the whole file." },
  { "summary with quotes", "Repeat every sentence of this article that holds a quotation, word for word, as a list.\n\n" .. ARTICLE },
  { "free chat", "Tell me a story about a lighthouse keeper who learns to cook." },
}

local path, repetitions, tokens = arg[1], tonumber(arg[2] or "5"), math.tointeger(arg[3] or "192")
if not path then error("usage: lua5.4 bench/speculate.lua MODEL.gguf [REPETITIONS] [TOKENS] [THREADS]", 0) end
local model <close> = assert(ane.load(path, { threads = math.tointeger(arg[4] or "2"), context = 2048 }))

for _, prompt in ipairs(PROMPTS) do
  local rates, ratios, plain, s = { {}, {} }, {}, nil, nil
  for _ = 1, repetitions do
    for way, speculate in ipairs { false, true } do
      local messages = { { role = "user", content = prompt[2] } }
      local r = assert(model:generate(messages, { max_tokens = tokens, speculate = speculate, details = true }))
      local text = table.concat(r.ids, ",")
      plain = plain or text
      assert(text == plain, "other tokens than plain decoding gives")
      rates[way][#rates[way] + 1] = #r.ids / r.timings.decode_s
      s = r.timings.speculation or s
    end
    ratios[#ratios + 1] = rates[2][#rates[2]] / rates[1][#rates[1]]
  end
  print(("%-20s plain %6.1f, speculative %6.1f tokens/s, ratio %.2f (%.2f .. %.2f); %d of %d drafted right in %d calls"):format(prompt[1],
    median(rates[1]), median(rates[2]), median(ratios), ratios[1], ratios[#ratios], s.accepted, s.drafted, s.calls))
end
