--- Which options of a command need or exclude others: an option that has no effect is wrong usage. Needs nothing.
--
-- A command states them as lists of names, as its parsed options have them; a name in capitals is an argument.
--   M.needs = { { "rate", "pool" }, { "hosts", "ranks", "MODEL" } }   --rate needs --pool; --hosts needs --ranks or MODEL
--   M.excludes = { { "special", "ids", "messages" } }                 --special goes neither with --ids nor with --messages
-- A row of one name replaces that of all commands. The first name of a row is an option without a default in the parser, so that
-- its value says that it was given.
-- Usage: `local message = relations.fault(command, args); if message then ... end`

local M = {}

-- Rows of all commands that have these options and no row of their own for the first.
local COMMON = { { "merge", "adapter" }, { "calibrate", "weights", "mixed" } }

--- Returns whether this option or argument was given.
function M.given(args, name)
  local value = args[name:lower()]
  if type(value) == "table" then return value[1] ~= nil end
  return value ~= nil and value ~= false
end

--- The spelling of a name: "--top-k", or "MODEL".
function M.spelling(name)
  return name:find "%u" and name or "--" .. name:gsub("_", "-")
end

--- The rows of what options of a command need: its own, then those of all commands.
function M.needs(command)
  local rows, own = {}, {}
  for i, row in ipairs(command.needs or {}) do rows[i], own[row[1]] = row, true end
  for _, row in ipairs(COMMON) do
    if not own[row[1]] then rows[#rows + 1] = row end
  end
  return rows
end

local function need_fault(row, args)
  if #row == 1 or not M.given(args, row[1]) then return nil end
  local names = {}
  for i = 2, #row do
    if M.given(args, row[i]) then return nil end
    names[i - 1] = M.spelling(row[i])
  end
  return ("%s needs %s"):format(M.spelling(row[1]), table.concat(names, " or "))
end

local function exclude_fault(row, args)
  for i = 2, M.given(args, row[1]) and #row or 0 do
    if M.given(args, row[i]) then return ("%s cannot be combined with %s"):format(M.spelling(row[1]), M.spelling(row[i])) end
  end
end

--- What is wrong with the options that were given, or nil.
-- @param command a module of ane.cli
-- @param args its parsed options
function M.fault(command, args)
  for _, row in ipairs(command.excludes or {}) do
    local fault = exclude_fault(row, args)
    if fault then return fault end
  end
  for _, row in ipairs(M.needs(command)) do
    local fault = need_fault(row, args)
    if fault then return fault end
  end
end

return M
