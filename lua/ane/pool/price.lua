--- The marginal cost of a token in a step of a pool. Seconds of a step are fitted as a + b * tokens.
-- Needs nothing. Old steps have less weight. Usage: `local p = price.new(); p:stepped(40, 0.02); print(p:of(3, 8, 40))`

local M = {}

local Price = {}
Price.__index = Price

local MEMORY = 0.97 -- weight of the past in the sums, for each step
local LEAST = 6 -- steps before the fit is used

--- A price without steps.
function M.new() return setmetatable({ n = 0, x = 0, y = 0, xx = 0, xy = 0, steps = 0 }, Price) end

--- Records a step: its tokens and seconds.
function Price:stepped(tokens, seconds)
  for _, key in ipairs { "n", "x", "y", "xx", "xy" } do self[key] = MEMORY * self[key] end
  self.n, self.x, self.y = self.n + 1, self.x + tokens, self.y + seconds
  self.xx, self.xy = self.xx + tokens * tokens, self.xy + tokens * seconds
  self.steps = self.steps + 1
end

-- Seconds of a step without tokens, and of a token; nil if the steps do not determine them.
local function line(self)
  local spread = self.n * self.xx - self.x * self.x
  if self.steps < LEAST or spread <= 1e-9 * self.xx then return nil end
  local b = math.max(0, (self.n * self.xy - self.x * self.y) / spread)
  return math.max(0, (self.y - b * self.x) / self.n), b
end

--- The cost of `more` tokens for a reply, as a multiple of the cost of its next token. A step of `tokens` tokens serves `replies`
-- replies, and each bears an equal share. nil if the cost is not known.
function Price:of(more, replies, tokens)
  local a, b = line(self)
  if not a or a + b * tokens <= 0 then return nil end
  return 1 + b * more * math.max(1, replies) / (a + b * tokens)
end

return M
