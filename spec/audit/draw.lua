--- What the properties of the audit draw their cases from: the same on every machine for the same seed.
--
--   local d = draw.new(seed)
--   d.below(5); d.between(2, 9); d.one_of(list); d.chance(0.2); d.cuts(40); d.floats(256)

local draws = require "support.draws"
local floats = require "support.floats"

local M = {}

function M.new(seed)
  local d, below = { seed = seed }, draws.numbers(seed)
  d.below = below

  --- A whole number low .. high.
  function d.between(low, high) return low + below(high - low + 1) end

  function d.one_of(list) return list[below(#list) + 1] end

  function d.chance(p) return below(1 << 20) < p * (1 << 20) end

  --- Numbers that add up to n: how a text is cut into calls. most: the largest.
  function d.cuts(n, most)
    local list, left = {}, n
    local top = math.min(most or n, d.one_of { 1, 2, 5, 9, n })
    while left > 0 do
      list[#list + 1] = d.between(1, math.min(top, left))
      left = left - list[#list]
    end
    return list
  end

  --- n token ids below vocab.
  function d.ids(n, vocab) return draws.ids(below, n, vocab) end

  --- n floats as a string, of a distribution that is drawn, too; and its name.
  function d.floats(n)
    local r, scale = floats.random(below(1 << 30)), 2.0 ^ d.between(-8, 4)
    local kind, values = d.one_of { "uniform", "normal", "sparse", "outliers", "one sign", "few values" }, {}
    for i = 1, n do
      local x = 2 * r() - 1
      if kind == "normal" or kind == "outliers" then x = (r() + r() + r() + r() + r() + r() - 3) * 0.7 end
      if kind == "outliers" and r() < 0.01 then x = x * 20 end
      if kind == "sparse" and r() < 0.8 then x = 0.0 end
      if kind == "one sign" then x = 0.5 + math.abs(x) end
      if kind == "few values" then x = math.floor(x * 2) / 2 end
      values[i] = x * scale
    end
    return floats.pack(values), kind
  end

  return d
end

return M
