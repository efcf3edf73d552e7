--- The first token of windows, which weighs more for the keys and values of attention.
-- Usage: `local s = sinks.new(layout.keyed); s:note("layers.0.attn_norm", x, source); s:add(moments, "layers.0.attn_norm", tokens)`
--
-- In many models the attention of most tokens has its largest weight on the first token of the text (attention sinks: Xiao et al. 2023,
-- arXiv 2309.17453). So an error of its key or value reaches all tokens, while the second moment of the inputs counts it once. Where the
-- first token is such a sink, its inputs hardly depend on what it is. Therefore the mean of the windows' first tokens counts like all
-- their tokens together: it is large if they are alike, and small if they differ (figures: bench/results/quantising.md).

local M = {}

--- Weight of the mean of the first tokens, as a multiple of that of all tokens. KL of SmolLM2 with 0, 1 and 4: 0.102, 0.093, 0.099.
M.WEIGHT = 1

local Sinks = {}
Sinks.__index = Sinks

-- a + the first row of x.
local function plus_first(a, x)
  local first = x:slice(1, 1, 1)
  return a and a + first or first
end

--- Notes the inputs of a window, which begins with the first token of its text.
-- @param value name of the inputs
-- @param x tensor [tokens, columns]
-- @param source the same of the source, or nil
function Sinks:note(value, x, source)
  if not self.keyed[value] then return end
  local sum = self.sums[value] or { n = 0 }
  self.sums[value] = sum
  sum.n, sum.x = sum.n + 1, plus_first(sum.x, x)
  sum.source = source and plus_first(sum.source, source)
end

--- Adds the mean of the first tokens to the moment of a value, and forgets them.
-- @param moments of ane.core
-- @param tokens of all windows: the weight of the mean
-- @return true; or nil, message, code
function Sinks:add(moments, value, tokens)
  local sum = self.sums[value]
  self.sums[value] = nil
  if not sum then return true end
  return moments:add(value, sum.x * (1 / sum.n), sum.source and sum.source * (1 / sum.n), M.WEIGHT * tokens)
end

--- @param keyed set of the values whose products are keys or values (ane.quantise.layout)
function M.new(keyed) return setmetatable({ keyed = keyed, sums = {} }, Sinks) end

return M
