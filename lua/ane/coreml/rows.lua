--- The output rows of a feed: the results of each call, looked up by row.
-- Needs ane.core. Usage: `local rows = rows.new(); rows[1] = call.run(...); rows.count = rows[1].count; local id = rows:argmax(1)`

local core = require "ane.core"

local M = {}

local Rows = {}
Rows.__index = Rows

-- The call that computed row i, and its token in that call.
local function call_of(self, i)
  for _, rows in ipairs(self) do
    if i <= rows.count then return rows, i + rows.skip end
    i = i - rows.count
  end
end

-- Logits of token t, joined from all slices of the head.
local function logits_of(rows, t)
  local parts = {}
  for k, slice in ipairs(rows.logits) do
    local n = rows.size
    if n > 1 then slice = slice:reshape({ #slice // n, n }):slice(2, t, t) end
    parts[k] = slice
  end
  if #parts == 1 then return parts[1]:reshape { #parts[1] } end
  for k, slice in ipairs(parts) do parts[k] = slice:tostring() end
  local bytes = table.concat(parts)
  return core.tensor({ #bytes // 4 }, bytes)
end

function Rows:logits(i)
  local rows, t = call_of(self, i)
  if self.no_logits then
    error("the packages give only the best token (they were exported with argmax): use temperature 0 and no logprobs", 4)
  end
  return logits_of(rows, t)
end

function Rows:argmax(i)
  local rows, t = call_of(self, i)
  local best = rows.best[t]
  if best then return best.id, best.value end
  return logits_of(rows, t):argmax()
end

--- An empty list of calls; count: their rows.
function M.new() return setmetatable({ count = 0 }, Rows) end

return M
