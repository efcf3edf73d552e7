--- Measures the links between neighbouring ranks: a message back and forth.
-- Needs ane.core. Usage: `local times = assert(links.part(team, 0)); local row = links.row(team, 0, times)`

local core = require "ane.core"

local M = {}

-- Bytes of the messages, and how often each goes back and forth.
local SIZES = { { 8, 400 }, { 1 << 14, 200 }, { 1 << 20, 20 }, { 1 << 23, 6 } }

-- Half of the time that a message takes to `to` and back, for each size: the minimum, because other work on the machine only adds time.
-- @return list of {bytes, seconds}; or nil, message, code
local function ping(team, to)
  local row = {}
  for i, size in ipairs(SIZES) do
    local text, least = ("x"):rep(size[1]), math.huge
    for _ = 1, size[2] do
      local started = core.clock()
      local ok, message, code = team:send(to, "T", text)
      if ok then ok, message, code = team:take(to, "T") end
      if not ok then return nil, message, code end
      least = math.min(least, (core.clock() - started) / 2)
    end
    row[i] = { bytes = size[1], seconds = least }
  end
  return row
end

-- Sends back every message of ping().
local function echo(team, from)
  for _, size in ipairs(SIZES) do
    for _ = 1, size[2] do
      local text, message, code = team:take(from, "T")
      if not text then return nil, message, code end
      local ok
      ok, message, code = team:send(from, "T", text)
      if not ok then return nil, message, code end
    end
  end
  return {}
end

--- This rank's part in measuring the link between rank `from` and the next one.
-- @return the times of one way, on rank `from`: list of {bytes, seconds}; {} on others; or nil, message, code
function M.part(team, from)
  if team.rank == from then return ping(team, from + 1) end
  if team.rank == from + 1 then return echo(team, from) end
  return {}
end

--- A row of the report.
-- @param times of M.part, on rank `from`
-- @return {from, to (names of ranks), latency_s (seconds of the smallest message), bytes_s (bytes per second of the largest message,
-- without the latency), times}
function M.row(team, from, times)
  local largest = times[#times]
  return {
    from = team:name(from), to = team:name(from + 1), latency_s = times[1].seconds,
    bytes_s = largest.bytes / math.max(largest.seconds - times[1].seconds, 1e-9), times = times,
  }
end

return M
