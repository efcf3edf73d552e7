-- The time of greedy replies with a grammar, and that of plain ones, alternately in one process.
-- usage: lua5.4 bench/constrained.lua MODEL [turns] [tokens] [temperature] [case]
-- For each grammar, one warm reply, then in each turn a constrained and a plain reply to the same prompt (in alternating order), both of
-- `tokens` tokens at most. The time is that of the whole reply without its prompt. Printed are medians: ms per token, the ratio of a turn's
-- constrained to its plain reply, and the ratio to the same tokens fed one by one without a grammar.

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/?.so;" .. package.cpath
local ane = require "ane"
local core = require "ane.core"
local median = require("ane.evaluate.quantiles").median

local path = arg[1] or error("usage: lua5.4 bench/constrained.lua MODEL [turns] [tokens] [temperature]", 0)
local turns, tokens, temperature = tonumber(arg[2] or 7), math.tointeger(arg[3] or 100), tonumber(arg[4] or 0)

local function list_of(item) return { type = "array", minItems = 40, items = item } end

local function object(properties)
  local names = {}
  for name in pairs(properties) do names[#names + 1] = name end
  table.sort(names)
  return { type = "object", properties = properties, required = names, additionalProperties = false }
end

local CASES = {
  { "enums", "List events of the harbour with their kinds and times.", list_of(object {
    kind = { enum = { "arrival", "departure", "delay", "inspection", "unloading", "loading" } },
    at = { type = "string", format = "date-time" },
  }) },
  { "objects", "List the staff of a small shop.", list_of(object {
    name = { type = "string", pattern = "^[A-Z][a-z]+ [A-Z][a-z]+$" }, age = { type = "integer", minimum = 16, maximum = 70 },
    mail = { type = "string", pattern = "^[a-z.]+@[a-z]+\\.org$" },
  }) },
  { "numbers", "Give prices in steps of 0.05.", list_of { type = "number", multipleOf = 0.05, minimum = 0, maximum = 1000 } },
  { "free", "Describe a bicycle as JSON with many details.", true },
  { "strings", "Tell a long story about a lighthouse keeper.", list_of { type = "string", minLength = 120, maxLength = 400 } },
}

local model <close> = assert(ane.load(path))

local function reply(prompt, grammar)
  local started = core.clock()
  local result = assert(model:generate({ { role = "user", content = prompt } }, {
    grammar = grammar, max_tokens = tokens, temperature = temperature, seed = 1, details = true, ignore_eos = true,
  }))
  return (core.clock() - started - result.timings.prefill_s) / (#result.ids - 1), result
end

-- The same tokens without a grammar and without the loop of replies.
local function fed(result)
  local s <close> = assert(model:session())
  assert(s:feed(result.prompt_ids, { want = "argmax" }))
  local started = core.clock()
  for i = 1, #result.ids - 1 do assert(s:feed(result.ids[i], { want = "argmax" })) end
  return (core.clock() - started) / (#result.ids - 1)
end

for _, case in ipairs(CASES) do
  local name, prompt, schema = table.unpack(case)
  if arg[5] and arg[5] ~= name then goto continue end
  local grammar = assert(ane.grammar.json_schema(schema))
  local _, first = reply(prompt, grammar)
  local mine, plain, same, ratio, same_ratio = {}, {}, {}, {}, {}
  for i = 1, turns do
    if i % 2 == 0 then plain[i] = reply(prompt) end
    mine[i] = reply(prompt, grammar)
    plain[i] = plain[i] or reply(prompt)
    same[i] = fed(first)
    ratio[i], same_ratio[i] = mine[i] / plain[i], mine[i] / same[i]
  end
  print(("%-8s %3d tokens: %.3f ms a token, plain %.3f, the same tokens %.3f; ratios %.3f, %.3f"):format(name, #first.ids,
    median(mine) * 1e3, median(plain) * 1e3, median(same) * 1e3, median(ratio), median(same_ratio)))
  io.stdout:flush()
  ::continue::
end
