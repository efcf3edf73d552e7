-- Whole numbers drawn from a seed: the same on every machine.
local core = require "ane.core"

local M = {}

-- A function that draws the next number 0 .. n - 1.
function M.numbers(seed)
  local at = 0
  return function(n)
    at = at + 1
    return math.floor(core.random(seed, at) * n)
  end
end

-- n token ids below `vocab`. random: from numbers().
function M.ids(random, n, vocab)
  local ids = {}
  for i = 1, n do ids[i] = random(vocab) end
  return ids
end

return M
