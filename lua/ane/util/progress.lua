--- Progress of long work: a bar on standard error if that is a terminal, nothing elsewhere.
-- Needs ane.core. A `progress` option is a function(stage, done, total); this module makes one.
-- Usage: `ane.load(path, {progress = progress.bar()})`

local core = require "ane.core"

local M = {}

local WIDTH = 30
local INTERVAL = 0.05 -- seconds between two drawings

-- Seconds of a stage before its remaining time is shown.
local SETTLED = 2

-- The remaining time at the present rate; "" at first.
-- @param done, left shares of the stage: since it was first drawn, and still to come
local function remaining(elapsed, done, left)
  if elapsed < SETTLED or done <= 0 then return "" end
  left = math.ceil(elapsed * left / done)
  return ("  %-14s"):format(("%d:%02d left"):format(left // 60, left % 60)) -- as wide as the one before it
end

--- A progress function that draws a bar, or one that does nothing if standard error is not a terminal.
-- @param out a file to draw to; default io.stderr (and then only if that is a terminal)
function M.bar(out)
  if not out then
    if not core.isatty(2) then return function() end end
    out = io.stderr
  end
  local last, open, begun, first = -math.huge, nil, 0, 0
  return function(stage, done, total)
    local finished = done >= total
    local now = core.clock()
    if not finished and stage == open and now - last < INTERVAL then return end
    last = now
    local share = total > 0 and done / total or 0
    if stage ~= open then begun, first = now, share end
    if finished then
      if open == stage then out:write("\r\27[K") end
      open = nil
    else
      open = stage
      local filled = math.floor(share * WIDTH)
      out:write(("\r%-10s [%s%s] %3d%%%s"):format(stage, ("#"):rep(filled), ("."):rep(WIDTH - filled), math.floor(share * 100),
        remaining(now - begun, share - first, 1 - share)))
    end
    out:flush()
  end
end

return M
