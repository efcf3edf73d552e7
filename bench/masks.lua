-- Answers bench/masks.py: a line of JSON for each line of JSON.
-- usage: lua5.4 bench/masks.lua MODEL

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/?.so;" .. package.cpath
local core = require "ane.core"
local tokenizer = assert(require("ane.cli.tokenize").tokenizer(arg[1]))
local tree = assert(core.token_tree(tokenizer._raw))

local ASKED = {}

function ASKED.size() return { size = #tokenizer } end

function ASKED.encode(asked) return { ids = assert(tokenizer:encode(asked.text, { bos = false, eos = false })) } end

-- Microseconds of the first mask, from the schema's text on, and of each mask along the ids.
function ASKED.time(asked)
  local ids, times = asked.ids, {}
  local started = core.clock()
  local g, message = core.grammar("json_schema", asked.schema)
  if not g then return { message = message } end
  local matcher = assert(g:matcher())
  if not matcher:count(tree) then return { message = "no mask" } end
  local first = (core.clock() - started) * 1e6
  for i, id in ipairs(ids) do
    started = core.clock()
    local n = matcher:count(tree)
    times[i] = (core.clock() - started) * 1e6
    if not n or not matcher:push(tokenizer:token(id)) then return { message = "not accepted" } end
  end
  return { first = first, times = times }
end

for line in io.lines() do
  local asked = assert(core.json_decode(line))
  io.stdout:write(core.json_encode(ASKED[asked.what](asked)), "\n")
  io.stdout:flush()
end
