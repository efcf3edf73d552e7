--- What a token more costs in a step of a pool: seconds of a step as a + b * tokens, learnt from the steps.
-- Needs nothing. Old steps count less. Usage: `local p = price.new(); p:stepped(40, 0.02); print(p:of(3, 8, 40))`

local M = {}

local Price = {}
Price.__index = Price

local MEMORY = 0.97 -- weight of the past in the sums, for each step
local LEAST = 6 -- steps before the line is trusted

function M.new() return setmetatable({ n = 0, x = 0, y = 0, xx = 0, xy = 0, steps = 0 }, Price) end

--- A step of so many tokens took so many seconds.
function Price:stepped(tokens, seconds)
  for _, key in ipairs { "n", "x", "y", "xx", "xy" } do self[key] = MEMORY * self[key] end
  self.n, self.x, self.y = self.n + 1, self.x + tokens, self.y + seconds
  self.xx, self.xy = self.xx + tokens * tokens, self.xy + tokens * seconds
  self.steps = self.steps + 1
end

-- Seconds of a step without tokens, and of a token; nil where steps do not tell them apart.
local function line(self)
  local spread = self.n * self.xx - self.x * self.x
  if self.steps < LEAST or spread <= 1e-9 * self.xx then return nil end
  local b = math.max(0, (self.n * self.xy - self.x * self.y) / spread)
  return math.max(0, (self.y - b * self.x) / self.n), b
end

--- What `more` tokens cost a reply, as a multiple of what its next token costs: a step of `tokens` tokens serves `replies` replies, and
-- each bears an equal part of it. nil where that is not known.
function Price:of(more, replies, tokens)
  local a, b = line(self)
  if not a or a + b * tokens <= 0 then return nil end
  return 1 + b * more * math.max(1, replies) / (a + b * tokens)
end

return M
