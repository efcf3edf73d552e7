--- Profile of a model: the time of its steps by block, with the bytes and operations of each.
-- Needs ane.model. Usage: `profile.start(model); model:generate("Hi"); print(profile.text(profile.take(model)))`

local M = {}

local function program_of(model, level)
  local program = require("ane.model").bundle(model, level + 1).program
  if not program.profile then return nil, "this engine has no profile: it runs graphs op by op", "unsupported" end
  return program
end

--- Starts counting from zero.
-- @return true; or nil, message, code ("unsupported": the engine that runs graphs op by op)
function M.start(model)
  local program, message, code = program_of(model, 2)
  if not program then return nil, message, code end
  return program:profile(true)
end

--- Stops counting.
-- @return true; or nil, message, code
function M.stop(model)
  local program, message, code = program_of(model, 2)
  if not program then return nil, message, code end
  return program:profile(false)
end

-- The name of a step without its layer: "layers.*.attn_q".
local function block_of(name) return (name:gsub("%f[%w](%d+)%f[%W]", "*")) end

local function contains(list, value)
  for _, v in ipairs(list) do
    if v == value then return true end
  end
  return false
end

-- Adds the names of a step's weights to those of its row, without the prefix of the layer.
local function add_weights(names, step)
  for _, name in ipairs(step.weights) do
    name = name:gsub("^.*%f[%w]%d+%.", ""):gsub("%.weight$", "")
    if not contains(names, name) then names[#names + 1] = name end
  end
end

--- Returns the counts since the start or the last take, and resets them to zero.
-- @return list, longest first, of {name (numbers of layers as *), op, weights (list of names), steps, runs,
-- seconds, bytes, ops}; its field total is the sum of all; or nil, message, code
function M.take(model)
  local program, message, code = program_of(model, 2)
  if not program then return nil, message, code end
  local steps = program:profile()
  if not steps then return nil, "no profile was started", "invalid" end
  local rows, by_name, total = {}, {}, { name = "total", steps = 0, runs = 0, seconds = 0, bytes = 0, ops = 0 }
  for _, step in ipairs(steps) do
    local name = block_of(step.name)
    local row = by_name[name]
    if not row then
      row = { name = name, op = step.op, weights = {}, steps = 0, runs = 0, seconds = 0, bytes = 0, ops = 0 }
      by_name[name], rows[#rows + 1] = row, row
    end
    add_weights(row.weights, step)
    for _, sum in ipairs { row, total } do
      sum.steps, sum.runs = sum.steps + 1, math.max(sum.runs, step.runs)
      sum.seconds, sum.bytes, sum.ops = sum.seconds + step.seconds, sum.bytes + step.bytes, sum.ops + step.ops
    end
  end
  table.sort(rows, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.name < b.name
  end)
  rows.total = total
  local ok
  ok, message, code = program:profile(true)
  if not ok then return nil, message, code end
  return rows
end

local HEAD = ("%-32s %-12s %6s %10s %6s %9s %9s  %s"):format("block", "op", "steps", "ms a run", "%", "GB/s", "GOPS", "weights")

local function line(row, total)
  local function rate(n) return n > 0 and row.seconds > 0 and ("%.1f"):format(n / row.seconds / 1e9) or "" end
  local ms = row.runs > 0 and row.seconds / row.runs * 1e3 or 0
  local text = ("%-32s %-12s %6d %10.3f %6.1f %9s %9s  %s"):format(row.name, row.op or "", row.steps, ms,
    total.seconds > 0 and 100 * row.seconds / total.seconds or 0, rate(row.bytes), rate(row.ops), table.concat(row.weights or {}, ", "))
  return (text:gsub("%s+$", ""))
end

--- The rows as a table, longest first, with GB/s and GOPS of each block.
-- @param rows as take gives them
function M.text(rows)
  local lines = { HEAD }
  for _, row in ipairs(rows) do
    if row.runs > 0 then lines[#lines + 1] = line(row, rows.total) end
  end
  lines[#lines + 1] = line(rows.total, rows.total)
  return table.concat(lines, "\n") .. "\n"
end

return M
